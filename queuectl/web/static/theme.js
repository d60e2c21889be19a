// Before the first paint: the theme that was chosen here, if one was.
(() => {
  const chosen = localStorage.getItem("queuectl-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
