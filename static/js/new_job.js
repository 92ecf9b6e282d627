/* New job: where the script comes from, values that a script fills in, and the file box. */
(function () {
  "use strict";
  function one(selector) { return document.querySelector(selector); }
  function all(selector) { return Array.prototype.slice.call(document.querySelectorAll(selector)); }
  document.addEventListener("DOMContentLoaded", function () {
    var form = one("#job-form");
    if (!form) { return; }
    /* The fields that the chosen template fixes, and the words that say so. */
    var fixed = { names: all("#fields [data-locked], #id_cluster[data-locked]").map(function (i) { return i.name; }), words: "" };
    function preview() { window.htmx.trigger(document.body, "qd:preview"); }
    var scheduler = form.dataset.scheduler0, fromTemplate = form.dataset.manifest0 === "1";
    /* A cluster shows the fields that its scheduler knows, a manifest says its size itself; what was typed stays. */
    function arrange() {
      var source = form.elements.source.value;
      var isManifest = source === "manifest" || (source === "template" && fromTemplate);
      all("[data-scheduler], [data-no-manifest]").forEach(function (part) {
        var other = part.dataset.scheduler && part.dataset.scheduler !== scheduler;
        part.hidden = Boolean(other || (isManifest && "noManifest" in part.dataset));
      });
    }
    function choose(source) {
      form.elements.source.value = source;
      if (source !== "template") { lock([], ""); }
      else if (one("#parameters").childElementCount || fixed.names.length) { lock(fixed.names, fixed.words); }
      arrange();
      all("[data-source]").forEach(function (tab) {
        var chosen = tab.dataset.source === source;
        tab.setAttribute("aria-selected", chosen ? "true" : "false");
        one("#from-" + tab.dataset.source).hidden = !chosen;
      });
      if (source === "template" && !one("#parameters").childElementCount && !fixed.names.length) {
        window.htmx.trigger(document.body, "qd:template");
      } else {
        preview();
      }
    }
    all("[data-source]").forEach(function (tab) {
      tab.addEventListener("click", function () { choose(tab.dataset.source); });
      tab.addEventListener("keydown", function (event) {
        if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") { return; }
        var tabs = all("[data-source]"), step = event.key === "ArrowRight" ? 1 : tabs.length - 1;
        var other = tabs.length > 1 && tabs[(tabs.indexOf(tab) + step) % tabs.length];
        if (other) { other.focus(); choose(other.dataset.source); }
      });
    });
    document.body.addEventListener("qd:fill", function (event) {
      Object.keys(event.detail).forEach(function (name) {
        var input = form.elements[name], value = String(event.detail[name]);
        if (!input || name === "value" || name === "elt") { return; }
        if (input.tagName === "SELECT" && !Array.prototype.some.call(input.options, function (o) { return o.value === value; })) {
          input.add(new Option(value, value));
        }
        input.value = value;
        var fold = value && input.closest && input.closest("[data-fold-fill]");
        if (fold) { fold.open = true; }
      });
    });
    function lock(names, words) {
      all("#fields [data-locked], #id_cluster[data-locked]").forEach(function (input) {
        input.removeAttribute("data-locked");
        input.readOnly = false;
        input.removeAttribute("aria-readonly");
        var told = one("#lock-" + input.name);
        if (told) { told.remove(); }
      });
      names.forEach(function (name) {
        var input = form.elements[name];
        if (!input || !input.closest) { return; }
        input.dataset.locked = "true";
        if (input.tagName === "SELECT") { input.setAttribute("aria-readonly", "true"); } else { input.readOnly = true; }
        if (!words) { return; }
        var note = document.createElement("p");
        note.className = "help lock-note";
        note.id = "lock-" + name;
        note.textContent = words;
        input.insertAdjacentElement("afterend", note);
      });
    }
    document.body.addEventListener("qd:lock", function (event) {
      fixed = event.detail;
      lock(fixed.names, fixed.words);
    });
    /* A list has no readonly of its own: what is fixed stays at its value. */
    ["mousedown", "keydown"].forEach(function (kind) {
      document.addEventListener(kind, function (event) {
        if (event.target.matches("select[data-locked]") && event.key !== "Tab") { event.preventDefault(); }
      });
    });
    document.body.addEventListener("qd:scheduler", function (event) {
      scheduler = event.detail.name;
      arrange();
    });
    document.body.addEventListener("qd:manifest", function (event) {
      fromTemplate = event.detail.is;
      arrange();
    });
    /* To the line of a flaw: the text is selected there and scrolled to. */
    document.addEventListener("click", function (event) {
      var button = event.target.closest("[data-line]");
      if (!button) { return; }
      var box = document.getElementById(button.dataset.in), lines = box.value.split("\n"), at = Number(button.dataset.line) - 1;
      var start = lines.slice(0, at).join("\n").length + (at > 0 ? 1 : 0);
      box.focus();
      box.setSelectionRange(start, start + (lines[at] || "").length);
      box.scrollTop = Math.max(0, (at - 4) * (box.scrollHeight / Math.max(1, lines.length)));
    });
    document.addEventListener("click", function (event) {
      var button = event.target.closest("[data-fill]");
      if (!button) { return; }
      var input = form.elements[button.dataset.fill];
      input.value = button.dataset.value;
      /* Another cluster brings its own fields; its preview follows the same event. */
      if (input.tagName === "SELECT") { input.dispatchEvent(new Event("change", { bubbles: true })); } else { preview(); }
    });
    /* A preview of a template that is no longer the chosen one speaks of fields that are gone. */
    document.addEventListener("htmx:beforeSwap", function (event) {
      var config = event.detail.requestConfig, sent = config && config.parameters && config.parameters.template;
      if (event.detail.target.id === "verdict" && sent !== undefined && sent !== form.elements.template.value) {
        event.detail.shouldSwap = false;
      }
    });
    document.addEventListener("htmx:afterRequest", function (event) {
      if (event.detail.elt.matches("[data-reader]")) { one("#id_" + event.detail.elt.dataset.reader).value = ""; }
    });
    form.elements.template.addEventListener("change", function () {
      all("[data-template-words]").forEach(function (p) { p.hidden = p.dataset.templateWords !== form.elements.template.value; });
    });
  });
})();
