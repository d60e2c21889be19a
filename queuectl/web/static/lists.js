// Lists of workloads: the menu of states, and a selection with one command for all of it: its cost, a confirmation, and the results.

const PROOF = { "X-Queuectl-Session": "1" };
const MOST = 100; // workloads of one request
const PRICE_MS = 1500; // between two requests for a cost that is not known yet
const PRICES = 20;
const FIRST_MS = 400; // until the first read of the results
const READS = 12;
const SHOWN = 5; // names of workloads with the same refusal

const dialog = document.getElementById("bulk-dialog");
const selected = new Map(); // uid to namespace/name
const byId = (id) => document.getElementById(id);
const boxes = () => [...document.querySelectorAll('input[name="workload"]')];
const of = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

async function post(address, body, headers = {}) {
  const answer = await fetch(address, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...PROOF, ...headers },
    body: JSON.stringify(body),
  });
  return read(answer);
}

async function read(answer) {
  const parsed = await answer.json().catch(() => ({}));
  if (answer.ok) return parsed;
  if (answer.status === 401) throw new Error("your session has ended: sign in from another tab, then try again here");
  throw new Error(parsed.detail || `the server returned status ${answer.status}`);
}

// ---- The menu of states, which closes like a select.

function closes(menu) {
  document.addEventListener("click", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}

document.querySelectorAll("details.choices").forEach(closes);

// ---- The selection. A refresh replaces rows, so the boxes follow the selection, and not the other way round. A list without
// workloads has no bar, which appears with the first one.

function show() {
  if (!byId("bulk")) return;
  const here = boxes();
  for (const box of here) box.checked = selected.has(box.value);
  const checked = here.filter((box) => box.checked).length;
  const all = byId("select-page");
  all.checked = checked > 0 && checked === here.length;
  all.indeterminate = checked > 0 && checked < here.length;
  all.disabled = here.length === 0;
  const gone = selected.size - checked;
  const rest = gone ? `, ${gone} of them no longer on this page` : "";
  const many = selected.size > MOST ? `: select at most ${MOST}` : "";
  byId("selected").textContent = selected.size ? `${selected.size} selected${rest}${many}` : "None selected";
  byId("bulk-open").disabled = selected.size > MOST;
  for (const id of ["bulk-action", "bulk-open", "bulk-clear"]) byId(id).classList.toggle("hidden", selected.size === 0);
}

function choose(box, on) {
  if (on) selected.set(box.value, box.ariaLabel.replace("Select ", ""));
  else selected.delete(box.value);
}

function follow() {
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.id === "select-page") boxes().forEach((one) => choose(one, box.checked));
    else if (box.name === "workload") choose(box, box.checked);
    else return;
    show();
  });
  document.addEventListener("click", (event) => {
    if (event.target.id === "bulk-open") open();
    if (event.target.id !== "bulk-clear") return;
    selected.clear();
    show();
    byId("select-page").focus();
  });
  document.addEventListener("htmx:after:swap", show);
  show();
}

// ---- The dialog

const form = dialog.querySelector("form");
let batch = null; // the command of the open dialog

function say(text, bad = false) {
  const said = form.querySelector(".said");
  said.toggleAttribute("data-bad", bad);
  said.textContent = text;
}

function list(lines) {
  byId("bulk-list").replaceChildren(
    ...lines.map(([name, text, state]) => {
      const line = document.createElement("li");
      const strong = document.createElement("strong");
      strong.textContent = name;
      line.dataset.state = state;
      line.append(strong, `: ${text}`);
      return line;
    }),
  );
}

// Each refusal once, with the workloads that it concerns.
function refusals(items) {
  const names = new Map();
  for (const item of items.filter((one) => one.refusal)) {
    const text = reason(item);
    names.set(text, [...(names.get(text) ?? []), named(item)]);
  }
  return [...names].map(([text, all]) => {
    if (all.length === 1) return [all[0], text, "refused"];
    const more = all.length > SHOWN ? ` and ${all.length - SHOWN} more` : "";
    return [of(all.length, "workload"), `${text} (${all.slice(0, SHOWN).join(", ")}${more})`, "refused"];
  });
}

// A refusal can begin with the name of its workload, which the list shows before it.
const reason = (item) => (item.refusal.startsWith(`${item.workload} `) ? item.refusal.slice(item.workload.length + 1) : item.refusal);
const named = (item) => item.workload ?? batch.names.get(item.uid) ?? item.uid;
const go = () => form.querySelector("button.go");

function cost(view) {
  const whole = `${view.accepted} of ${of(view.items.length, "workload")} can get this command.`;
  if (!view.evicted) return `${whole} No gang that runs is evicted.`;
  const stops = `${of(view.evicted, "gang")} with ${of(view.pods, "pod")} ${view.evicted === 1 ? "is" : "are"} evicted, and ${of(Number(view.gpus.toFixed(2)), "GPU")} ${view.gpus === 1 ? "becomes" : "become"} free.`;
  if (view.lostGpuSeconds === null) return `${whole} ${stops} The lost work is not known yet.`;
  const hours = view.lostGpuSeconds / 3600;
  return `${whole} ${stops} ${hours < 0.1 ? "Less than 0.1 GPU-hours" : `About ${hours.toFixed(1)} GPU-hours`} of work would be lost.`;
}

function open() {
  const option = byId("bulk-action").selectedOptions[0];
  const key = crypto.randomUUID?.() ?? `${Date.now()}-${String(Math.random()).slice(2)}`;
  batch = { action: option.value, key, names: new Map(selected), view: null, sent: false };
  form.reset();
  say("");
  list([]);
  byId("bulk-title").textContent = `${option.dataset.label}: ${of(selected.size, "workload")}`;
  byId("bulk-follows").textContent = `For each of them: ${option.dataset.follows}`;
  byId("bulk-price").textContent = "Checking each workload …";
  form.elements.why.parentElement.classList.remove("hidden");
  form.querySelector("[data-close]").textContent = "Cancel";
  go().classList.remove("hidden", "danger");
  go().textContent = option.dataset.label;
  go().disabled = true;
  dialog.showModal();
  preview(batch);
}

// The dry run says which workloads get the command, and what is lost. What is confirmed is what it said.
async function preview(mine) {
  const current = () => dialog.open && batch === mine && !mine.sent;
  const workloads = [...mine.names.keys()].map((uid) => ({ uid }));
  for (let reads = 0; reads < PRICES && current(); reads++) {
    try {
      const view = await post(`/api/v1/commands/${mine.action}?dry_run=true`, { workloads });
      if (!current()) return;
      mine.view = view;
      byId("bulk-price").textContent = cost(view);
      list(refusals(view.items));
      go().disabled = view.accepted === 0;
      go().classList.toggle("danger", view.evicted > 0);
      if (view.lostGpuSeconds !== null) return;
    } catch (error) {
      if (!mine.view && current()) byId("bulk-price").textContent = `The workloads cannot be checked: ${error.message}.`;
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, PRICE_MS));
  }
}

// Sent again after a failure, the same key gives no workload a second command.
async function send(event) {
  event.preventDefault();
  const mine = batch;
  if (mine.sent || !mine.view) return;
  mine.sent = true;
  go().disabled = true;
  say("Sending …");
  const accepted = mine.view.items.filter((item) => !item.refusal);
  const why = form.elements.why.value.trim();
  const body = { workloads: accepted.map(({ uid, attempt }) => ({ uid, attempt })), ...(why && { why }) };
  try {
    const view = await post(`/api/v1/commands/${mine.action}`, body, { "Idempotency-Key": mine.key });
    for (const item of view.items) if (!item.refusal) selected.delete(item.uid);
    show();
    say("");
    await results(mine, [...view.items, ...mine.view.items.filter((item) => item.refusal)]);
  } catch (error) {
    if (batch !== mine) return;
    say(`${error.message}. Some workloads can have the command already; none gets it twice.`, true);
    mine.sent = false;
    go().disabled = false;
  }
}

// The leader executes the commands a moment later.
async function results(mine, items) {
  const commands = new Map(items.filter((item) => item.command).map((item) => [item.command.id, item.command]));
  const update = () => {
    const lines = items.map((item) => {
      if (!item.command) return [named(item), reason(item), "refused"];
      const { state, outcome } = commands.get(item.command.id);
      if (state === "Waiting") return [named(item), "requested", "requested"];
      return state === "Done" ? [named(item), "done", "done"] : [named(item), `refused: ${outcome}`, "refused"];
    });
    const counts = ["done", "requested", "refused"].map((state) => [lines.filter((line) => line[2] === state).length, state]);
    byId("bulk-price").textContent = counts.filter(([number]) => number).map(([number, state]) => `${number} ${state}`).join(", ");
    const order = ["refused", "requested", "done"];
    list(lines.sort((a, b) => order.indexOf(a[2]) - order.indexOf(b[2])));
  };
  const current = () => dialog.open && batch === mine;
  form.elements.why.parentElement.classList.add("hidden");
  go().classList.add("hidden");
  form.querySelector("[data-close]").textContent = "Close";
  form.querySelector("[data-close]").focus();
  update();
  for (let reads = 0; reads < READS && current(); reads++) {
    if ([...commands.values()].every((command) => command.state !== "Waiting")) return;
    await new Promise((resolve) => setTimeout(resolve, FIRST_MS * 1.5 ** reads));
    if (!current()) return;
    try {
      const page = await read(await fetch("/api/v1/commands?limit=500"));
      for (const command of page.items) if (commands.has(command.id)) commands.set(command.id, command);
      if (current()) update();
    } catch {
      // the next read can succeed; the commands are stored
    }
  }
}

follow();
form.addEventListener("submit", send);
form.querySelector("[data-close]").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => document.body.dispatchEvent(new CustomEvent("live")));
