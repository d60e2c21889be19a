// What all pages do: the theme, signing in and out, copying, and commands with their confirmation.

import { gpuHours, number } from "./numbers.js";

const PROOF = { "X-Queuectl-Session": "1" };
const SIGN_IN = "/ui/signin";
const PRICE_MS = 1500; // between two requests for the cost of a command

function theme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const update = () => button.setAttribute("aria-label", dark() ? "Dark theme. Change to light" : "Light theme. Change to dark");
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("queuectl-theme", root.dataset.theme);
    update();
    document.dispatchEvent(new CustomEvent("theme"));
  });
  update();
}

async function ask(method, address, body, headers = {}) {
  const answer = await fetch(address, {
    method,
    headers: { "Content-Type": "application/json", ...PROOF, ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  let parsed = {};
  try {
    parsed = text ? JSON.parse(text) : {};
  } catch {
    // not JSON: the status is enough
  }
  if (!answer.ok) {
    const error = new Error(parsed.detail || `the server returned status ${answer.status}`);
    throw Object.assign(error, { status: answer.status });
  }
  return parsed;
}

function say(form, text, bad = false) {
  const said = form.querySelector(".said");
  said.toggleAttribute("data-bad", bad);
  said.textContent = text;
}

function show(notice, text) {
  notice.classList.remove("hidden");
  notice.textContent = text;
}

function session() {
  const form = document.getElementById("sign-in");
  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    say(form, "Signing in …");
    try {
      await ask("POST", "/api/v1/session", { token: form.elements.token.value.trim() });
      location.assign(form.dataset.next);
    } catch (error) {
      say(form, error.message, true);
    }
  });
  document.getElementById("sign-out")?.addEventListener("click", async () => {
    try {
      await ask("DELETE", "/api/v1/session");
    } catch (error) {
      if (error.status !== 401) return show(document.getElementById("signed-in"), `You are still signed in: ${error.message}`);
    }
    location.assign(SIGN_IN);
  });
}

// The API accepts a form only with our header, which an HTML form cannot send. The response replaces the page. A response without
// a form, as in an outage, leaves the page with the typed text, and the reason is shown.
function forms() {
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form[data-own]")) return;
    event.preventDefault();
    const button = event.submitter;
    const body = new URLSearchParams(new FormData(form));
    if (button?.name) body.set(button.name, button.value);
    if (button) button.disabled = true;
    say(form, "Sending …");
    try {
      const address = button?.getAttribute("formaction") || form.getAttribute("action");
      const answer = await fetch(address, { method: "POST", headers: PROOF, body });
      if (answer.redirected) return void location.assign(answer.url);
      put(await answer.text(), answer.status);
    } catch (error) {
      say(form, error.message, true);
      if (button) button.disabled = false;
    }
  });
}

function put(text, status) {
  const made = new DOMParser().parseFromString(text, "text/html");
  const main = made.getElementById("main");
  if (!main?.querySelector("form[data-own]")) throw new Error(reason(text, made, status));
  document.title = made.title;
  document.getElementById("main").replaceWith(main);
  window.htmx?.process(main);
  const first = main.querySelector("[data-first]") ?? main;
  first.focus();
  first.scrollIntoView({ block: "nearest" });
}

// The reason of a refusal, from a page or from a problem of the API.
function reason(text, page, status) {
  if (status === 401) return "Your session has ended. Sign in from another tab, then try again here.";
  const shown = page.querySelector("#main .panel-in p")?.textContent;
  if (shown) return shown;
  try {
    return JSON.parse(text).detail || `the server returned status ${status}`;
  } catch {
    return `the server returned status ${status}`;
  }
}

// A button opens the dialog. The command is sent when the user confirms it there.
function actions() {
  const dialog = document.getElementById("confirm");
  if (!dialog) return;
  const form = dialog.querySelector("form");
  const go = form.querySelector("button.go");
  let asked = null;
  const show = (name, on) => document.getElementById(name)?.classList.toggle("hidden", !on);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-action], button[data-address]");
    if (!button || button.ariaDisabled === "true") return;
    asked = { ...button.dataset, key: crypto.randomUUID?.() ?? String(Math.random()).slice(2) };
    form.reset();
    say(form, "");
    document.getElementById("confirm-title").textContent = `${asked.label}: ${asked.ref}`;
    document.getElementById("confirm-follows").textContent = asked.follows;
    document.getElementById("confirm-price").textContent = "";
    show("ask-priority", asked.action === "priority");
    show("ask-until", asked.action === "priority");
    show("ask-queue", asked.action === "move");
    go.textContent = asked.label;
    go.classList.toggle("danger", "evicts" in asked);
    go.disabled = false;
    dialog.showModal();
    const mine = asked;
    if ("evicts" in asked) preview(mine, () => dialog.open && asked === mine);
  });
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    say(form, "Sending …");
    try {
      await ask("POST", address(asked), wish(asked, form), { "Idempotency-Key": asked.key });
      dialog.close();
      // A command is followed by the page of its workload. A changed queue is shown at once.
      document.body.dispatchEvent(new CustomEvent(asked.address ? "live" : "asked"));
    } catch (error) {
      say(form, error.message, true);
      go.disabled = false;
    }
  });
}

const address = (asked) => asked.address ?? `/api/v1/workloads/${encodeURIComponent(asked.uid)}/${asked.action}`;

function wish(asked, form) {
  if (asked.address) {
    const reason = form.elements.reason.value.trim();
    return { ...JSON.parse(asked.body), ...(reason && { reason }) };
  }
  const body = {};
  const why = form.elements.why.value.trim();
  if (why) body.why = why;
  // A gang that has started since the dialog opened is not evicted: the dialog did not say so.
  if ("attempt" in asked) body.attempt = Number(asked.attempt);
  if (asked.action === "priority") {
    const given = form.elements.priority.value;
    body.priority = given === "" ? null : Number(given);
    if (form.elements.until.value) body.until = new Date(form.elements.until.value).toISOString();
  }
  if (asked.action === "move") body.queue = form.elements.queue.value;
  return body;
}

// The cost of a command. It can be unknown right after a start, so it is requested again while the dialog is open.
async function preview(asked, open) {
  const show = (text) => {
    if (open()) document.getElementById("confirm-price").textContent = text;
  };
  show("Computing the cost …");
  while (open()) {
    try {
      const cost = await ask("POST", `${address(asked)}?dry_run=true`, asked.address ? JSON.parse(asked.body) : {});
      if (cost.drains) return show(drained(cost.drains));
      if (typeof cost.lostGpuSeconds === "number") return show(`${price(cost.lostGpuSeconds)} of work would be lost.`);
      show("The cost is not known yet. Trying again …");
    } catch (error) {
      return show(`The cost is not known: ${error.message}.`);
    }
    await new Promise((resolve) => setTimeout(resolve, PRICE_MS));
  }
}

// Browsers offer the clipboard on https and localhost only; elsewhere a selected text is copied.
function copies() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const done = await copied(button.dataset.copy);
    button.textContent = done ? "Copied" : "Failed";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}

async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

const price = (seconds) => (seconds < 180 ? "Less than 0.1 GPU-hours" : `About ${gpuHours(seconds)} GPU-hours`);

function drained({ gangs, gpus, lostGpuSeconds }) {
  if (!gangs) return "No gang runs: none is evicted.";
  const of = `${number(gangs)} ${gangs === 1 ? "gang is" : "gangs are"} evicted, and ${number(gpus)} ${gpus === 1 ? "GPU is" : "GPUs are"} freed.`;
  return `${of} ${price(lostGpuSeconds)} of work would be lost.`;
}

theme();
session();
forms();
actions();
copies();
