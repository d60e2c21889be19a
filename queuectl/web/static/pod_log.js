// The log of a container: reads the stream, and shows its text as text nodes only. Following ends with the page.

// Kept on the page. A line has at most 8,192 characters.
const LINES = 5000;
const CHARACTERS = 2 ** 21;
const RETRY = "Read again to try once more.";

const form = document.getElementById("log-choice");
const log = document.getElementById("log");
const state = document.getElementById("log-state");
const fields = form.elements;

let reading = null; // the AbortController of the stream
let blocks = []; // [text node, its number of lines]
let lines = 0;
let characters = 0;
let waiting = ""; // text that the next frame adds

function say(text, bad = false) {
  state.toggleAttribute("data-bad", bad);
  state.textContent = text;
}

const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 8;

// A burst of events changes the page once in a frame. A hidden page has no frames.
function add(text) {
  if (!waiting) (document.hidden ? (later) => setTimeout(later, 500) : requestAnimationFrame)(show);
  waiting += text;
}

const newest = (text) => text.slice(-CHARACTERS).split("\n").slice(-LINES - 1).join("\n");

function show() {
  const text = newest(waiting);
  waiting = "";
  if (!text) return;
  const stays = atEnd();
  const node = document.createTextNode(text);
  const count = text.split("\n").length - 1;
  log.append(node);
  blocks.push([node, count]);
  lines += count;
  characters += text.length;
  while (blocks.length > 1 && (lines - blocks[0][1] >= LINES || characters - blocks[0][0].length >= CHARACTERS)) {
    const [first, gone] = blocks.shift();
    lines -= gone;
    characters -= first.length;
    first.remove();
  }
  if (stays) log.scrollTop = log.scrollHeight;
}

function clear() {
  log.replaceChildren();
  blocks = [];
  lines = characters = 0;
  waiting = "";
}

// Whether it is the last event, which says why the stream ends.
function handle(event) {
  let name = "";
  let data = "";
  for (const line of event.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("data: ")) data = line.slice(6);
  }
  if (!data) return false;
  const parsed = JSON.parse(data);
  if (name !== "end") {
    add(parsed.text);
    return false;
  }
  show();
  say(parsed.reason);
  return true;
}

async function refusal(answer) {
  if (answer.status === 401) return "Your session has ended. Sign in again to read the log.";
  try {
    const problem = await answer.json();
    return problem.detail || `The server returned status ${answer.status}.`;
  } catch {
    return `The server returned status ${answer.status}.`;
  }
}

async function read() {
  reading?.abort();
  const mine = (reading = new AbortController());
  clear();
  say("Opening …");
  const query = new URLSearchParams({ container: fields.container.value, tail: fields.tail.value });
  for (const name of ["previous", "follow"]) if (fields[name].checked && !fields[name].disabled) query.set(name, "on");
  try {
    const answer = await fetch(`${form.dataset.address}?${query}`, {
      method: "POST",
      headers: { Accept: "text/event-stream", "X-Queuectl-Session": "1" },
      signal: mine.signal,
    });
    if (!answer.ok) return say(await refusal(answer), true);
    say(query.has("follow") ? "Following" : "Reading");
    let rest = "";
    let ended = false;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) ended = handle(event) || ended;
    }
    if (!ended) say(`The connection has ended. ${RETRY}`, true);
  } catch {
    if (!mine.signal.aborted) say(`The connection has broken. ${RETRY}`, true);
  }
}

function stop() {
  reading?.abort();
  show();
  say("Not followed. The text stays.");
}

// Names of Kubernetes have no characters that a shell reads.
function update() {
  const chosen = fields.container.selectedOptions[0];
  fields.previous.disabled = !chosen || !chosen.hasAttribute("data-restarted");
  fields.follow.disabled = fields.previous.checked && !fields.previous.disabled;
  log.classList.toggle("wrap", fields.wrap.checked);
  const { namespace, pod } = form.dataset;
  const words = ["kubectl logs", `-n ${namespace}`, pod, `-c ${fields.container.value}`, `--tail=${fields.tail.value}`];
  if (fields.follow.disabled) words.push("--previous");
  else if (fields.follow.checked) words.push("-f");
  const command = words.join(" ");
  document.getElementById("log-command").textContent = command;
  const copy = document.getElementById("log-copy");
  copy.dataset.copy = command;
  copy.setAttribute("aria-label", `Copy: ${command}`);
}

form.addEventListener("change", (event) => {
  update();
  if (event.target === fields.wrap) return;
  if (event.target === fields.follow && !fields.follow.checked) stop();
  else read();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  read();
});
addEventListener("pagehide", () => reading?.abort());
addEventListener("pageshow", (event) => event.persisted && read());

update();
read();
