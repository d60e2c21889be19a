// Menus: a summary that opens a list of buttons. Arrow keys, Home and End move between them; Escape and a click elsewhere close it.

const menus = () => document.querySelectorAll("details.menu[open]");

function close(menu, focused) {
  menu.open = false;
  if (focused) menu.querySelector("summary").focus();
}

// Before the listener of the button opens a dialog, which gives the focus back at its end: to the summary, since the button is hidden then.
const chosen = (event) => {
  for (const menu of menus()) {
    const button = event.target.closest("button:not([aria-disabled])");
    const inside = menu.contains(event.target);
    if (!inside || (button && menu.contains(button))) close(menu, inside);
  }
};
document.addEventListener("click", chosen, true);

document.addEventListener("keydown", (event) => {
  const menu = event.target.closest?.("details.menu");
  if (!menu) return;
  if (event.key === "Escape" && menu.open) {
    event.preventDefault();
    return close(menu, true);
  }
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (!(event.key in steps) && !(menu.open && ["Home", "End"].includes(event.key))) return;
  event.preventDefault();
  menu.open = true;
  const items = [...menu.querySelectorAll("button")];
  const at = items.indexOf(document.activeElement);
  const step = steps[event.key];
  const next = event.key === "Home" ? 0 : event.key === "End" ? -1 : at < 0 ? (step > 0 ? 0 : -1) : (at + step) % items.length;
  items.at(next).focus();
});

document.addEventListener("focusin", (event) => {
  for (const menu of menus()) if (!menu.contains(event.target)) close(menu, false);
});
