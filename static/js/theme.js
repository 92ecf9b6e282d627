/* Sets theme and sidebar width before the first paint, so that nothing flashes. */
(function () {
  "use strict";
  var root = document.documentElement;
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  function stored(key) {
    try { return window.localStorage.getItem(key); } catch (_error) { return null; }
  }
  function apply() {
    var choice = stored("qd-theme") || "system";
    var theme = choice === "system" ? (dark.matches ? "dark" : "light") : choice;
    root.setAttribute("data-bs-theme", theme);
    root.setAttribute("data-theme-choice", choice);
  }
  apply();
  dark.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  root.setAttribute("data-nav", stored("qd-nav") === "narrow" ? "narrow" : "wide");
  window.qdTheme = {
    choose: function (choice) {
      try { window.localStorage.setItem("qd-theme", choice); } catch (_error) { /* private mode: this page only */ }
      root.setAttribute("data-theme-choice", choice);
      root.setAttribute("data-bs-theme", choice === "system" ? (dark.matches ? "dark" : "light") : choice);
      document.dispatchEvent(new CustomEvent("qd:theme"));
    },
    nav: function (width) {
      try { window.localStorage.setItem("qd-nav", width); } catch (_error) { /* private mode: this page only */ }
      root.setAttribute("data-nav", width);
    },
  };
})();
