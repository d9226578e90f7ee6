// Sets the theme before anything is drawn. A classic script in the head, so that nothing flashes.
(() => {
  "use strict";
  const KEY = "tarn-theme";
  const KINDS = ["system", "light", "dark"];
  let kind = "system";
  try {
    kind = KINDS.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "system";
  } catch {
    // Storage is switched off: the theme is then that of the system until it is switched.
  }
  const show = () => {
    if (kind === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = kind;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${kind}`;
  };
  show();
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      kind = KINDS[(KINDS.indexOf(kind) + 1) % KINDS.length];
      try {
        localStorage.setItem(KEY, kind);
      } catch {
        // It holds until the page is left.
      }
      show();
    });
  });
})();
