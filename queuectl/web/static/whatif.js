// The what-if form: sends POST /api/v1/plans and shows the response. All text is inserted as text, never as markup.

import { gpuHours, number } from "./numbers.js";

const form = document.getElementById("whatif");
const answer = document.getElementById("answer");
const said = form.querySelector(".said");

const make = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

function question() {
  const given = form.elements;
  const body = { manifests: given.manifests.value };
  body.drain = given.drain.value.split(/[\s,]+/).filter(Boolean);
  body.add = [];
  if (given.like.value.trim()) body.add.push({ like: given.like.value.trim(), count: Number(given.count.value || 1) });
  return body;
}

function counts(plan) {
  const rows = [
    ["Gangs that start", "starts"],
    ["GPUs of gangs that start", "gpusStarted"],
    ["Pending gangs", "waits"],
    ["Evicted gangs", "leaves"],
    ["Lost work, GPU-hours", "lostGpuSeconds"],
  ];
  const shown = (key, value) => (key === "lostGpuSeconds" ? gpuHours(value) : number(value));
  return table(
    "Summary",
    ["", "Without the change", "With the change"],
    rows.map(([name, key]) => [name, shown(key, plan.before[key]), shown(key, plan.after[key])]),
  );
}

function table(title, heads, rows) {
  const section = make("section", { className: "panel" }, make("header", {}, make("h2", { textContent: title })));
  if (!rows.length) {
    section.append(make("p", { className: "empty", textContent: "No gangs." }));
    return section;
  }
  const head = make("tr", {}, ...heads.map((text) => make("th", { textContent: text, scope: "col" })));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell))));
  const made = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  section.append(make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `${title}: table` }, made));
  return section;
}

function gang(one) {
  if (!one.uid || one.submitted) return one.workload;
  return make("a", { href: `/ui/workloads/${encodeURIComponent(one.uid)}`, textContent: one.workload });
}

function nodes(one) {
  const names = (one.placement?.podSets ?? []).flatMap((podset) => Object.keys(podset.nodes));
  return names.length > 4 ? `${names.slice(0, 4).join(", ")} and ${names.length - 4} more` : names.join(", ");
}

// A note for each reason, with its first document.
function ignored(plan) {
  const byReason = Map.groupBy(plan.ignored, (one) => one.reason);
  return [...byReason].map(([reason, [first, ...others]]) => {
    const what = others.length ? `${first.object} and ${number(others.length)} more have` : `${first.object} has`;
    return make("p", { className: "note", textContent: `${what} no effect: ${reason}` });
  });
}

function show(plan) {
  const why = (one) => [one.reason?.message, ...one.suggestedFixes.map((fix) => `suggested fix: ${fix.message}`)].filter(Boolean).join("; ");
  const pending = table("Pending gangs", ["Gang", "Without the change", "GPUs", "Reason"], plan.waits.map((o) => [gang(o), o.before ?? "-", number(o.gpus), why(o)]));
  if (plan.omitted) pending.append(make("p", { className: "empty", textContent: `${number(plan.omitted)} more pending gangs are not listed.` }));
  const parts = [
    counts(plan),
    table("Gangs that start", ["Gang", "Without the change", "GPUs", "Nodes"], plan.starts.map((o) => [gang(o), o.before ?? "-", number(o.gpus), nodes(o)])),
    table(
      "Evicted gangs",
      ["Gang", "Preemptor", "GPUs", "Lost work, GPU-hours"],
      plan.leaves.map((o) => [gang(o), o.preemptor ?? "-", number(o.gpus), o.cost ? gpuHours(o.cost.lostGpuSeconds) : "-"]),
    ),
    pending,
  ];
  if (plan.overQuota.length) {
    parts.push(table("Over quota", ["Object", "Flavor and resource", "Used", "Allowed"], plan.overQuota.map((o) => [o.name, `${o.flavor} ${o.resource}`, String(o.used), String(o.allowed)])));
  }
  const warnings = plan.warnings.map((text) => make("p", { className: "note", textContent: text }));
  answer.replaceChildren(...ignored(plan), ...warnings, ...parts);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const go = form.querySelector("button.go");
  said.removeAttribute("data-bad");
  said.textContent = "Planning …";
  go.disabled = true;
  try {
    const reply = await fetch("/api/v1/plans", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Queuectl-Session": "1" },
      body: JSON.stringify(question()),
    });
    const plan = await reply.json();
    if (!reply.ok) throw new Error(plan.detail || `the server returned status ${reply.status}`);
    show(plan);
    said.textContent = "";
  } catch (error) {
    said.toggleAttribute("data-bad", true);
    said.textContent = error.message;
  }
  go.disabled = false;
});
