// The search in the header: suggestions while the user types, as a combobox with a listbox (WAI-ARIA). Without this script, the
// form opens the page of results.

const PAUSE_MS = 150; // after the last key, before the search

function search() {
  const form = document.querySelector("form.find");
  if (!form) return;
  const input = form.elements.q;
  const popup = document.getElementById("find-options");
  const said = document.getElementById("find-said");
  let timer = null;
  let request = null;
  let active = null;

  input.setAttribute("role", "combobox");
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-haspopup", "listbox");
  input.setAttribute("aria-expanded", "false");

  const options = () => [...popup.querySelectorAll("[role=option]")];
  const isOpen = () => !popup.classList.contains("hidden");

  function close() {
    clearTimeout(timer);
    request?.abort();
    select(null);
    popup.classList.add("hidden");
    popup.replaceChildren();
    said.textContent = "";
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-controls");
  }

  function open(nodes) {
    select(null);
    popup.replaceChildren(...nodes);
    popup.classList.toggle("hidden", !popup.childElementCount);
    const list = popup.querySelector("[role=listbox]");
    input.setAttribute("aria-expanded", String(Boolean(list)));
    if (list) input.setAttribute("aria-controls", list.id);
    else input.removeAttribute("aria-controls");
    const count = options().length;
    said.textContent = list ? `${count} ${count === 1 ? "suggestion" : "suggestions"}` : popup.textContent.trim();
  }

  function note(text) {
    const line = document.createElement("p");
    line.className = "soft";
    line.textContent = text;
    open([line]);
  }

  function select(option) {
    active?.setAttribute("aria-selected", "false");
    active = option;
    active?.setAttribute("aria-selected", "true");
    active?.scrollIntoView({ block: "nearest" });
    if (active) input.setAttribute("aria-activedescendant", active.id);
    else input.removeAttribute("aria-activedescendant");
  }

  function move(step) {
    const all = options();
    if (!all.length) return;
    const at = all.indexOf(active);
    select(all[at < 0 ? (step > 0 ? 0 : all.length - 1) : (at + step + all.length) % all.length]);
  }

  async function suggest() {
    const text = input.value.trim();
    request?.abort();
    if (!text) return close();
    request = new AbortController();
    const { signal } = request;
    try {
      const answer = await fetch(`${form.dataset.options}?q=${encodeURIComponent(text)}`, { signal });
      const page = await answer.text();
      if (signal.aborted) return;
      if (answer.status === 401) return note("Your session has ended. Sign in again to search.");
      if (answer.status === 503) return note("The search is not available: the database does not respond.");
      if (!answer.ok) return note(`The search is not available: the server returned status ${answer.status}.`);
      open(new DOMParser().parseFromString(page, "text/html").body.childNodes);
    } catch {
      if (!signal.aborted) note("The search is not available: the server does not respond.");
    }
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(suggest, PAUSE_MS);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (isOpen()) move(event.key === "ArrowDown" ? 1 : -1);
      else suggest();
    } else if (event.key === "Escape" && isOpen()) {
      event.preventDefault(); // the first Escape closes the suggestions, the next one empties the field
      close();
    } else if (event.key === "Enter" && active) {
      event.preventDefault();
      location.assign(active.dataset.href);
    }
  });
  input.addEventListener("blur", close);
  popup.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
  popup.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) location.assign(option.dataset.href);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, select, textarea, [contenteditable], dialog[open]")) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
}

search();
