// The node map on a canvas: one square for each node, domain by domain. The style sheet has the colors.

import { number } from "./numbers.js";

let canvas = null;
let tip = null;
let said = null;
let key = null;
let tools = null;
const QUEUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a500", "#8c6bb1"];
const LETTERS = "ABCDEFGH";

const GAP = 4;
const LARGEST = 40; // side of a square

let cluster = null;
let cells = []; // x, y of each node
let groups = []; // captions of the domains of the coarsest level
let size = 0;
let at = -1;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const by = () => tools.elements.by.value;
// The value of the coarsest level, with the name of the level where the value does not begin with it.
function caption(value) {
  const level = cluster.levels[0];
  const name = level.slice(level.lastIndexOf("/") + 1);
  return value.startsWith(name) ? value : `${name} ${value}`;
}

async function load() {
  if (!canvas) return;
  const answer = await fetch(canvas.dataset.source);
  if (!answer.ok) return;
  const read = await answer.json();
  read.queues = [...new Set(read.gangs.map((gang) => gang[2]).filter(Boolean))].sort();
  const name = cluster?.nodes[at]; // the selected node can have another place, other figures, or be gone
  cluster = read;
  at = name === undefined ? -1 : cluster.nodes.indexOf(name);
  arrange();
  if (name !== undefined) show(at);
}

// The nodes of a domain of the finest level are in one row, or in several where the row is full. Each domain of the coarsest
// level has a caption.
function arrange() {
  const width = canvas.clientWidth;
  const count = cluster.nodes.length;
  size = side(width, count);
  cells = [];
  groups = [];
  let x = 0;
  let y = 0;
  let group = null;
  let domain = null;
  for (let i = 0; i < count; i++) {
    const path = cluster.domains[cluster.domain[i]] ?? [];
    const outer = path.length > 1 ? path[0] : "";
    if (outer !== group) {
      if (group !== null) y += size + GAP;
      if (outer) {
        groups.push({ text: caption(outer), y });
        y += 18;
      }
      group = outer;
      x = 0;
    } else if (cluster.domain[i] !== domain) {
      const length = run(i) * size;
      x += GAP;
      if (x + length > width + 0.5 && length <= width) {
        x = 0;
        y += size + GAP;
      }
    }
    domain = cluster.domain[i];
    if (x + size > width + 0.5) {
      x = 0;
      y += size;
    }
    cells.push([x, y]);
    x += size;
  }
  const height = y + size + 2;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  draw();
}

// The side of a square in whole pixels, so that all squares are equal and a whole number of the widest domains fits side by side.
function side(width, count) {
  const wanted = Math.floor(Math.max(7, Math.min(LARGEST, Math.sqrt((width * Math.max(340, width * 0.42)) / Math.max(count, 1)))));
  let widest = 1;
  for (let i = 0; i < count; i += run(i)) widest = Math.max(widest, run(i));
  const abreast = Math.round((width + GAP) / (widest * wanted + GAP));
  if (abreast < 1) return wanted;
  return Math.min(LARGEST, Math.max(6, Math.floor((width - (abreast - 1) * GAP - 1) / abreast / widest)));
}

function run(from) {
  let to = from;
  while (to < cluster.nodes.length && cluster.domain[to] === cluster.domain[from]) to++;
  return to - from;
}

function draw() {
  const pen = canvas.getContext("2d");
  const scale = devicePixelRatio || 1;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const inks = {
    free: color("--free"), busy: color("--c-active"), out: color("--c-out"), unknown: color("--c-unknown"),
    idle: color("--c-idle"), ink: color("--ink"), soft: color("--soft"), panel: color("--panel"), accent: color("--accent"),
    danger: color("--danger"),
  };
  pen.font = "600 12px system-ui, sans-serif";
  pen.fillStyle = inks.soft;
  for (const group of groups) pen.fillText(group.text, 0, group.y + 12);
  const paint = { free: freeCell, queue: queueCell, use: useCell }[by()];
  const wanted = (tools.elements.q?.value ?? "").trim().toLowerCase();
  for (let i = 0; i < cells.length; i++) {
    const [x, y] = cells[i];
    pen.globalAlpha = wanted && !matches(i, wanted) ? 0.16 : 1;
    const edge = size - 1;
    paint(pen, i, x, y, edge, inks);
    if (unhealthy(i)) triangle(pen, x, y, edge, inks.danger, inks.panel);
    else if (cluster.closed[i]) cross(pen, x, y, edge, inks);
    else if (cluster.tainted[i]) triangle(pen, x, y, edge, inks.panel, inks.danger);
  }
  pen.globalAlpha = 1;
  if (at >= 0 && cells[at]) {
    const [x, y] = cells[at];
    pen.lineWidth = 2;
    pen.strokeStyle = inks.ink;
    pen.strokeRect(x - 1, y - 1, size + 1, size + 1);
  }
  legend(inks);
}

// Filled from below by the used share, so that the height repeats the color.
function freeCell(pen, i, x, y, side, inks) {
  const part = cluster.gpus[i] ? Math.min(1, (cluster.gpus[i] - cluster.free[i]) / cluster.gpus[i]) : 1;
  pen.fillStyle = inks.free;
  pen.fillRect(x, y, side, side);
  pen.fillStyle = inks.busy;
  const tall = part ? Math.max(1, Math.round(side * part)) : 0;
  pen.fillRect(x, y + side - tall, side, tall);
}

function queueCell(pen, i, x, y, side, inks) {
  pen.fillStyle = inks.free;
  pen.fillRect(x, y, side, side);
  let bottom = y + side;
  const occupancy = cluster.occupancy[i];
  let largest = -1;
  for (let s = 0; s < occupancy.length; s += 2) {
    const place = cluster.queues.indexOf(cluster.gangs[occupancy[s]][2]);
    const tall = Math.max(1, Math.round((side * occupancy[s + 1]) / (cluster.gpus[i] || 1)));
    pen.fillStyle = place < 0 ? inks.unknown : QUEUES[place % QUEUES.length];
    pen.fillRect(x, Math.max(y, bottom - tall), side, Math.min(tall, bottom - y));
    bottom -= tall;
    if (s === 0) largest = place;
  }
  if (side >= 12 && largest >= 0) {
    pen.fillStyle = "#000";
    pen.font = `600 ${Math.round(side * 0.62)}px system-ui, sans-serif`;
    pen.fillText(LETTERS[largest % LETTERS.length], x + side * 0.24, y + side * 0.76);
  }
}

// Lighter is busier. A node without samples is a ring, which cannot be mistaken for an idle one.
function useCell(pen, i, x, y, side, inks) {
  const known = use(i);
  if (known === null) {
    pen.fillStyle = cluster.occupancy[i].length ? inks.unknown : inks.free;
    pen.fillRect(x, y, side, side);
    if (cluster.occupancy[i].length) {
      pen.fillStyle = inks.panel;
      pen.fillRect(x + 2, y + 2, side - 4, side - 4);
    }
    return;
  }
  pen.fillStyle = known < 0.05 ? inks.idle : ramp(known);
  pen.fillRect(x, y, side, side);
}

const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function ramp(value) {
  const place = Math.min(0.9999, Math.max(0, value)) * (RAMP.length - 1);
  const from = RAMP[Math.floor(place)];
  const to = RAMP[Math.floor(place) + 1];
  const part = place % 1;
  return `rgb(${from.map((c, n) => Math.round(c + (to[n] - c) * part)).join(" ")})`;
}

function use(i) {
  const occupancy = cluster.occupancy[i];
  let sum = 0;
  let weight = 0;
  for (let s = 0; s < occupancy.length; s += 2) {
    const known = cluster.gangs[occupancy[s]][3];
    if (known === null) continue;
    sum += known * occupancy[s + 1];
    weight += occupancy[s + 1];
  }
  return weight ? sum / weight : null;
}

function cross(pen, x, y, side, inks) {
  pen.strokeStyle = inks.ink;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + side, y + side);
  pen.moveTo(x + side, y);
  pen.lineTo(x, y + side);
  pen.stroke();
}

const unhealthy = (i) => cluster.closed[i].startsWith("unhealthy");

// A warning sign with an outline, so that it is visible on each color.
function triangle(pen, x, y, side, fill, outline) {
  pen.beginPath();
  pen.moveTo(x + side / 2, y + 0.5);
  pen.lineTo(x + side - 0.5, y + side - 0.5);
  pen.lineTo(x + 0.5, y + side - 0.5);
  pen.closePath();
  pen.fillStyle = fill;
  pen.fill();
  pen.strokeStyle = outline;
  pen.lineWidth = 1;
  pen.stroke();
}

function matches(i, wanted) {
  if (cluster.nodes[i].toLowerCase().includes(wanted)) return true;
  if ((cluster.domains[cluster.domain[i]] ?? []).join("/").toLowerCase().includes(wanted)) return true;
  return tenants(i).some(([gang]) => gang[0].toLowerCase().includes(wanted));
}

function tenants(i) {
  const found = [];
  for (let s = 0; s < cluster.occupancy[i].length; s += 2) found.push([cluster.gangs[cluster.occupancy[i][s]], cluster.occupancy[i][s + 1]]);
  return found;
}

function chip(fill, text) {
  const item = document.createElement("li");
  const square = document.createElement("span");
  square.className = "chip";
  square.style.background = fill;
  item.append(square, text);
  return item;
}

// A sign that is drawn on squares of each color, with its meaning.
function sign(character, meaning, name = "") {
  const item = document.createElement("li");
  const mark = document.createElement("span");
  mark.className = name;
  mark.textContent = character;
  item.append(mark, ` ${meaning}`);
  return item;
}

function scale() {
  const item = document.createElement("li");
  const bar = document.createElement("span");
  bar.className = "ramp";
  bar.style.background = `linear-gradient(to right, ${[0.05, 0.25, 0.5, 0.75, 1].map(ramp).join(", ")})`;
  item.append("5%", bar, "100% mean GPU utilization");
  return item;
}

function legend(inks) {
  const items = [];
  if (by() === "free") {
    items.push(chip(inks.busy, "used share of its GPUs, from below: empty 0%, full 100%"), chip(inks.free, "free GPUs"));
  } else if (by() === "queue") {
    cluster.queues.forEach((name, n) => items.push(chip(QUEUES[n % QUEUES.length], `${LETTERS[n % LETTERS.length]} ${name}`)));
    items.push(chip(inks.unknown, "gang of another team, or without ClusterQueue"), chip(inks.free, "free GPUs"));
  } else {
    items.push(chip(inks.idle, "below 5%"), scale(), chip(inks.unknown, "ring: no samples"), chip(inks.free, "no gang"));
  }
  key.replaceChildren(...items, sign("╳", "cordoned or not ready"), sign("▲", "unhealthy: its hardware fails", "danger"), sign("△", "some devices have taints", "danger"));
}

function sentence(i) {
  const where = (cluster.domains[cluster.domain[i]] ?? []).join(" / ");
  const held = tenants(i).map(([gang, gpus]) => `${gang[0]} ${number(gpus)}`).join(", ") || "no gang";
  const takes = cluster.closed[i] ? `; unschedulable: ${cluster.closed[i]}` : "";
  const bad = cluster.tainted[i];
  const without = bad ? `; ${bad} ${bad === 1 ? "device" : "devices"} with taints` : "";
  return [`${cluster.nodes[i]}`, `${where ? `${where}; ` : ""}${number(cluster.free[i])} of ${number(cluster.gpus[i])} GPUs free${takes}${without}`, held];
}

function show(i) {
  at = i;
  tip.classList.toggle("hidden", i < 0);
  if (i >= 0) {
    const [name, free, held] = sentence(i);
    const strong = document.createElement("strong");
    strong.textContent = name;
    tip.replaceChildren(strong, free, document.createElement("br"), held);
    const [x, y] = cells[i];
    const left = Math.min(x + size + 22, canvas.clientWidth - tip.offsetWidth + 14);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${y + size + 8}px`;
    const sentences = `${name}: ${free}; ${held}`;
    if (said.textContent !== sentences) said.textContent = sentences; // a screen reader reads each text that is set
  }
  draw();
}

function under(event) {
  const box = canvas.getBoundingClientRect();
  const x = event.clientX - box.left;
  const y = event.clientY - box.top;
  return cells.findIndex(([left, top]) => x >= left && x < left + size && y >= top && y < top + size);
}

function near(i, down) {
  const [x, y] = cells[i];
  let best = i;
  let least = Infinity;
  cells.forEach(([left, top], n) => {
    const away = (top - y) * down;
    if (away < size / 2) return;
    const far = away * 4 + Math.abs(left - x);
    if (far < least) [least, best] = [far, n];
  });
  return best;
}

const KEYS = {
  ArrowRight: (i) => Math.min(i + 1, cells.length - 1),
  ArrowLeft: (i) => Math.max(i - 1, 0),
  ArrowDown: (i) => near(i, 1),
  ArrowUp: (i) => near(i, -1),
  Home: () => 0,
  End: () => cells.length - 1,
};

function open(i) {
  const field = tools.elements.q;
  field.value = cluster.nodes[i];
  field.dispatchEvent(new Event("input", { bubbles: true }));
  draw();
}

// A page that is opened before the nodes are listed gets the map by a refresh.
function begin() {
  const found = document.getElementById("map");
  if (!found || found === canvas) return;
  canvas = found;
  [tip, said, key, tools] = ["tip", "map-said", "map-key", "map-tools"].map((id) => document.getElementById(id));
  at = -1;
  canvas.addEventListener("pointermove", (event) => cluster && under(event) !== at && show(under(event)));
  canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && show(-1));
  canvas.addEventListener("click", (event) => {
    const found = cluster ? under(event) : -1;
    if (found >= 0) open(found);
  });
  canvas.addEventListener("keydown", (event) => {
    if (!cluster || !cells.length) return;
    if (event.key === "Enter" && at >= 0) return void open(at);
    if (event.key === "Escape") return void show(-1);
    const move = KEYS[event.key];
    if (!move) return;
    event.preventDefault();
    show(at < 0 ? 0 : move(at));
  });
  canvas.addEventListener("blur", () => show(-1));
  tools.addEventListener("change", (event) => (event.target.name === "topology" ? tools.submit() : cluster && draw()));
  tools.addEventListener("input", () => cluster && draw());
  tools.addEventListener("submit", (event) => event.preventDefault());
  load();
}

addEventListener("resize", () => cluster && arrange());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => cluster && draw());
document.addEventListener("theme", () => cluster && draw());
document.body.addEventListener("live", load);
document.addEventListener("htmx:after:swap", begin);
begin();
