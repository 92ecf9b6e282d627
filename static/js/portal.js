/* The frame's behaviour: CSRF for htmx, dialogs, menus, drawer, palette, times, copying, selection. */
(function () {
  "use strict";
  var root = document.documentElement;
  function one(selector, scope) { return (scope || document).querySelector(selector); }
  function all(selector, scope) { return Array.prototype.slice.call((scope || document).querySelectorAll(selector)); }
  function meta(name) { var found = one('meta[name="' + name + '"]'); return found ? found.content : ""; }
  var words = JSON.parse(meta("qd-words") || "{}");

  /* --- htmx ------------------------------------------------------------------------------- */
  document.addEventListener("htmx:configRequest", function (event) {
    event.detail.headers["X-CSRFToken"] = meta("csrf-token");
  });
  document.addEventListener("htmx:beforeRequest", function (event) {
    var trigger = event.detail.elt.getAttribute("hx-trigger") || "";
    if (trigger.indexOf("every") === 0 && (document.hidden || one("dialog[open]"))) { event.preventDefault(); }
  });
  /* A proxy's error page must never land inside a fragment: only our own notices are shown. */
  document.addEventListener("htmx:beforeSwap", function (event) {
    var xhr = event.detail.xhr;
    if (xhr.status >= 400 && !xhr.getResponseHeader("HX-Retarget")) {
      event.detail.shouldSwap = false;
      offline(true);
    }
  });
  document.addEventListener("htmx:sendError", function () { offline(true); });
  document.addEventListener("htmx:afterRequest", function (event) {
    if (event.detail.successful) { offline(false); }
  });
  function offline(yes) {
    var banner = one("#offline");
    if (!banner) { return; }
    if (yes && banner.hidden) { one("[data-since]", banner).textContent = clock(new Date()); }
    banner.hidden = !yes;
  }
  window.qdOffline = offline;
  /* What the keyboard's focus is in, or a menu that stands open, is left alone until the next poll. */
  function holdsFocus(node) {
    var active = document.activeElement;
    if (node.querySelector && node.querySelector("details.menu[open]")) { return true; }
    return Boolean(active && active !== document.body && active.matches(":focus-visible") && node.contains && node.contains(active));
  }
  document.addEventListener("htmx:beforeSwap", function (event) {
    var elt = event.detail.requestConfig && event.detail.requestConfig.elt;
    var trigger = elt ? elt.getAttribute("hx-trigger") || "" : "";
    if (trigger.indexOf("every") === 0 && holdsFocus(event.detail.target)) { event.detail.shouldSwap = false; }
  });
  document.addEventListener("htmx:oobBeforeSwap", function (event) {
    if (holdsFocus(event.detail.target)) { event.detail.shouldSwap = false; }
  });
  /* A list that polls itself whole: rows are freshened where they stand, new ones wait behind a pill, so that
     nothing moves under the pointer. A row is known by its first link. */
  function rowsOf(scope) {
    var found = new Map();
    all("table.rows > tbody > tr", scope).forEach(function (row) {
      var link = one("a[href]", row);
      if (link) { found.set(link.getAttribute("href"), row); }
    });
    return found;
  }
  document.addEventListener("htmx:beforeSwap", function (event) {
    var detail = event.detail, elt = detail.requestConfig && detail.requestConfig.elt, target = detail.target;
    var trigger = elt ? elt.getAttribute("hx-trigger") || "" : "";
    if (!detail.shouldSwap || trigger.indexOf("every") !== 0 || elt !== target || !one("table.rows", target)) { return; }
    var old = rowsOf(target);
    var fresh = rowsOf(new DOMParser().parseFromString(detail.serverResponse, "text/html"));
    var added = Array.from(fresh.keys()).filter(function (key) { return !old.has(key); });
    if (!old.size || !added.length) { return; }
    detail.shouldSwap = false;
    old.forEach(function (row, key) {
      if (fresh.has(key) && !holdsFocus(row)) { row.innerHTML = fresh.get(key).innerHTML; freshen(row); }
    });
    if (window.htmx) { window.htmx.process(target); }
    var pill = one("button.new-pill", target);
    if (!pill) {
      pill = document.createElement("button");
      pill.type = "button";
      pill.className = "new-pill";
      pill.addEventListener("click", function () {
        window.htmx.ajax("GET", elt.getAttribute("hx-get"), { target: target, swap: "outerHTML" });
      });
      target.prepend(pill);
    }
    var text = fill(words.newer, { n: added.length });
    if (pill.textContent !== text) { pill.textContent = text; say(text); }
  });
  /* A row that was ticked stays ticked when its fresh copy arrives. */
  document.addEventListener("htmx:oobBeforeSwap", function (event) {
    var old = event.detail.target, fresh = event.detail.fragment;
    if (!old || !fresh || !old.querySelector) { return; }
    var ticked = one("input[type=checkbox]", old), next = one("input[type=checkbox]", fresh);
    if (ticked && next) { next.checked = ticked.checked; }
  });
  document.addEventListener("htmx:load", function (event) { freshen(event.detail.elt); countPicked(); });
  document.addEventListener("htmx:afterSettle", function () { countPicked(); });

  /* --- times ------------------------------------------------------------------------------ */
  function fill(text, values) {
    return text.replace(/%\((\w+)\)s/g, function (_all, name) { return values[name]; });
  }
  function two(number) { return (number < 10 ? "0" : "") + number; }
  function clock(date) { return two(date.getHours()) + ":" + two(date.getMinutes()) + ":" + two(date.getSeconds()); }
  function day(date) { return date.getFullYear() + "-" + two(date.getMonth() + 1) + "-" + two(date.getDate()); }
  function duration(seconds) {
    var total = Math.max(0, Math.round(seconds));
    var d = Math.floor(total / 86400), h = Math.floor(total % 86400 / 3600);
    var m = Math.floor(total % 3600 / 60), s = total % 60;
    if (d) { return fill(h ? words.dh : words.d, { d: d, h: h }); }
    if (h) { return fill(m ? words.hm : words.h, { h: h, m: m }); }
    if (m) { return fill(s && m < 10 ? words.ms : words.m, { m: m, s: s }); }
    return fill(words.s, { s: s });
  }
  window.qdDuration = duration;
  window.qdClock = clock;
  function freshen(scope) {
    var now = Date.now();
    all("time[data-time]", scope && scope.querySelectorAll ? scope : document).forEach(function (node) {
      var date = new Date(node.dateTime);
      if (isNaN(date)) { return; }
      var kind = node.dataset.time, seconds = (now - date.getTime()) / 1000, text = node.textContent;
      if (kind === "ago") {
        text = fill(seconds < 0 ? words.inn : words.ago, { age: duration(Math.abs(seconds)) });
      } else if (kind === "elapsed") {
        text = duration(seconds);
      } else if (kind === "clock") {
        text = clock(date);
      } else if (kind === "instant") {
        text = day(date) + " " + clock(date);
      }
      if (node.textContent !== text) { node.textContent = text; }
      var zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "";
      node.title = day(date) + " " + clock(date) + " " + zone;
    });
  }
  window.setInterval(function () { if (!document.hidden) { freshen(document); } }, 5000);

  /* --- clicks: one listener for all that carries a data attribute --------------------------- */
  document.addEventListener("click", function (event) {
    var target = event.target.closest ? event.target : event.target.parentElement;
    if (!target) { return; }
    var hit;
    if ((hit = target.closest("[data-dialog]"))) { openDialog(hit.dataset.dialog); return; }
    if (target.closest("[data-unpick]")) {
      all("input[data-pick], .basket input[name=all]").forEach(function (box) { box.checked = false; });
      countPicked();
    }
    if ((hit = target.closest("[data-close]"))) { var open = hit.closest("dialog"); if (open) { open.close(); } return; }
    if ((hit = target.closest("[data-copy]"))) { copy(hit); return; }
    if ((hit = target.closest("[data-theme-set]"))) { window.qdTheme.choose(hit.dataset.themeSet); markTheme(); return; }
    if (target.closest("[data-nav-toggle]")) {
      window.qdTheme.nav(root.getAttribute("data-nav") === "narrow" ? "wide" : "narrow");
      return;
    }
    if (target.closest("[data-drawer-toggle]")) { drawer(!root.hasAttribute("data-drawer")); return; }
    if (target.closest("[data-drawer-close]")) { drawer(false); return; }
    if ((hit = target.closest("[data-dismiss]"))) { hit.closest(".notice").remove(); return; }
    if ((hit = target.closest("[data-tab-for]"))) { pickTab(hit); return; }
    if (target.tagName === "DIALOG") { target.close(); }
    all("details.menu[open]").forEach(function (menu) { if (!menu.contains(target)) { menu.open = false; } });
  });
  function openDialog(id) {
    var dialog = document.getElementById(id);
    if (!dialog || dialog.open) { return; }
    all("details.menu[open]").forEach(function (menu) { menu.open = false; });
    dialog.showModal();
  }
  window.qdOpenDialog = openDialog;
  function copy(button) {
    navigator.clipboard.writeText(button.dataset.copy).then(function () {
      button.classList.add("is-copied");
      say(words.copied);
      window.setTimeout(function () { button.classList.remove("is-copied"); }, 1500);
    }, function () { say(words.uncopied); });
  }
  function say(text) { var live = one("#live"); if (live) { live.textContent = ""; live.textContent = text; } }
  window.qdSay = say;
  function pickTab(tab) {
    all("[data-tab-for]", tab.parentElement).forEach(function (other) {
      var chosen = other === tab;
      other.setAttribute("aria-selected", chosen ? "true" : "false");
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.dataset.tabFor).hidden = !chosen;
    });
    tab.focus();
  }
  function markTheme() {
    all("[data-theme-set]").forEach(function (button) {
      button.setAttribute("aria-pressed", button.dataset.themeSet === root.getAttribute("data-theme-choice") ? "true" : "false");
    });
  }

  /* --- drawer ------------------------------------------------------------------------------ */
  var narrow = window.matchMedia("(max-width: 900px)");
  function drawer(open) {
    var side = one("#side");
    if (!side) { return; }
    if (open) { root.setAttribute("data-drawer", "open"); } else { root.removeAttribute("data-drawer"); }
    side.inert = narrow.matches && !open;
    all("[data-drawer-toggle]").forEach(function (b) { b.setAttribute("aria-expanded", open ? "true" : "false"); });
    if (open) { var first = one("a", side); if (first) { first.focus(); } }
  }
  narrow.addEventListener("change", function () { drawer(false); });

  /* --- keys --------------------------------------------------------------------------------- */
  function typing(node) { return node && (node.matches("input, textarea, select") || node.isContentEditable); }
  document.addEventListener("keydown", function (event) {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      palette();
      return;
    }
    if (event.key === "Escape") {
      all("details.menu[open]").forEach(function (menu) { menu.open = false; one("summary", menu).focus(); });
      if (root.hasAttribute("data-drawer")) { drawer(false); }
    }
    if (event.key === "/" && !typing(document.activeElement) && !one("dialog[open]")) {
      var search = one("[data-search]");
      if (search) { event.preventDefault(); search.focus(); }
    }
    var tab = event.target.closest && event.target.closest("[data-tab-for]");
    if (tab && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
      var tabs = all("[data-tab-for]", tab.parentElement);
      var step = event.key === "ArrowRight" ? 1 : tabs.length - 1;
      pickTab(tabs[(tabs.indexOf(tab) + step) % tabs.length]);
      event.preventDefault();
    }
  });

  /* --- palette ------------------------------------------------------------------------------ */
  function palette() {
    var dialog = one("#palette");
    if (!dialog) { return; }
    if (dialog.open) { dialog.close(); return; }
    openDialog("palette");
    var input = one("input", dialog);
    input.value = "";
    input.focus();
    if (window.htmx) { window.htmx.trigger(input, "palette-open"); }
  }
  document.addEventListener("keydown", function (event) {
    var dialog = one("#palette");
    if (!dialog || !dialog.open || ["ArrowDown", "ArrowUp", "Enter"].indexOf(event.key) < 0) { return; }
    var input = one("input", dialog), rows = all("[role=option]", dialog);
    if (!rows.length) { return; }
    var at = rows.findIndex(function (row) { return row.getAttribute("aria-selected") === "true"; });
    if (event.key === "Enter") {
      event.preventDefault();
      window.location.assign(one("a", rows[Math.max(at, 0)]).href);
      return;
    }
    event.preventDefault();
    at = (at + (event.key === "ArrowDown" ? 1 : rows.length - 1 + (at < 0 ? 1 : 0))) % rows.length;
    rows.forEach(function (row, index) { row.setAttribute("aria-selected", index === at ? "true" : "false"); });
    rows[at].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", rows[at].id);
  });
  document.addEventListener("click", function (event) {
    if (event.target.closest && event.target.closest("[data-palette]")) { palette(); }
  });

  /* --- picked rows of a list ------------------------------------------------------------------ */
  function countPicked() {
    var baskets = all("[data-picked]");
    if (!baskets.length) { return; }
    var boxes = all("input[data-pick]"), picked = boxes.filter(function (box) { return box.checked; });
    baskets.forEach(function (basket) {
      basket.hidden = !picked.length;
      var shown = one("[data-picked-count]", basket);
      if (shown) { shown.textContent = picked.length; }
    });
    var head = one("input[data-pick-all]");
    if (head) {
      head.checked = boxes.length > 0 && picked.length === boxes.length;
      head.indeterminate = picked.length > 0 && picked.length < boxes.length;
    }
  }
  document.addEventListener("change", function (event) {
    if (event.target.matches("input[data-pick-all]")) {
      all("input[data-pick]").forEach(function (box) { box.checked = event.target.checked; });
    }
    if (event.target.matches("input[data-pick], input[data-pick-all]")) { countPicked(); }
    if (event.target.matches("[data-submit-on-change]")) { event.target.form.requestSubmit(); }
  });
  /* An empty filter is left out of the address. */
  document.addEventListener("submit", function (event) {
    if (event.target.matches("form[data-filters]")) {
      all("input, select", event.target).forEach(function (input) { if (!input.value) { input.disabled = true; } });
    }
    if (event.target.matches("form[data-once]")) {
      if (event.target.dataset.sent) { event.preventDefault(); return; }
      event.target.dataset.sent = "1";
      all("button[type=submit], button:not([type])", event.target).forEach(function (b) { b.setAttribute("aria-busy", "true"); });
    }
  });
  window.addEventListener("pageshow", function () {
    all("form[data-filters] :disabled").forEach(function (input) { input.disabled = false; });
    all("form[data-once]").forEach(function (form) {
      delete form.dataset.sent;
      all("[aria-busy]", form).forEach(function (b) { b.removeAttribute("aria-busy"); });
    });
  });
  /* A typed name unlocks a destructive button. */
  document.addEventListener("input", function (event) {
    if (event.target.matches("[data-must-equal]")) {
      var button = one("[data-unlocked]", event.target.form);
      if (button) { button.disabled = event.target.value !== event.target.dataset.mustEqual; }
    }
  });

  document.addEventListener("DOMContentLoaded", function () {
    if (narrow.matches) { drawer(false); }
    freshen(document);
    markTheme();
    countPicked();
    /* A form that was refused comes back in its open dialog. */
    all("dialog[data-open]").forEach(function (dialog) { openDialog(dialog.id); });
  });
})();
