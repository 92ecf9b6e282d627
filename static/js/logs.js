/* The log viewer: text only, whole lines put together from chunks, follow or pause, a bounded number of lines. */
(function () {
  "use strict";
  var MOST_LINES = 5000, LONGEST = 8000, EVERY_MS = 2000;
  var ERROR = /(?:error|exception)\b|\b(?:traceback|fatal|panic|segmentation fault|out of memory|oom-kill|nccl warn|xid)\b/i;
  /* CSI, OSC and two-character escapes, then the other control characters but tab. */
  var ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g;
  var CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

  function plain(line) {
    var text = line.replace(/\r+$/, "");
    var back = text.lastIndexOf("\r");
    if (back >= 0) { text = text.slice(back + 1); } /* a progress bar redraws its line: the last drawing counts */
    return text.replace(ESCAPES, "").replace(CONTROLS, "");
  }

  function start(root) {
    var box = root.querySelector("[data-log]"), list = box.appendChild(document.createElement("ol")), say = root.dataset;
    function tool(name) { return root.querySelector("[data-log-" + name + "]"); }
    var follow = true, attempt = "", runner = "", next = null, first = null, open = say.open === "1";
    var tails = {}, lastAttempt = null, query = "", hits = [], hit = -1, generation = 0, timer = 0;

    function item(line) {
      var li = document.createElement("li"), time = document.createElement("time"), text = document.createElement("span");
      var words = plain(line.text);
      if (words.length > LONGEST) {
        words = words.slice(0, LONGEST) + " … (" + words.length.toLocaleString("en-US") + " " + say.wordCut + ")";
      }
      time.dateTime = line.at;
      time.textContent = window.qdClock(new Date(line.at));
      text.textContent = words;
      if (ERROR.test(words)) { li.className = "err"; }
      li.appendChild(time);
      li.appendChild(text);
      li.dataset.runner = line.runner;
      if (runner && line.runner !== runner) { li.hidden = true; }
      return li;
    }
    function joint(number) {
      var li = document.createElement("li");
      li.className = "joint";
      li.textContent = say.wordAttempt + " " + number;
      return li;
    }
    /* Chunks end anywhere: what comes after the last line break waits for its rest, shown meanwhile. */
    function append(chunks) {
      var batch = document.createDocumentFragment();
      chunks.forEach(function (chunk) {
        if (chunk.attempt !== lastAttempt) {
          if (!attempt) { batch.appendChild(joint(chunk.attempt)); }
          lastAttempt = chunk.attempt;
        }
        var key = chunk.attempt + "/" + chunk.runner + "/" + chunk.stream;
        var tail = tails[key], text = chunk.text;
        if (tail) { text = tail.text + text; tail.node.remove(); delete tails[key]; }
        var lines = text.split("\n"), rest = lines.pop();
        lines.forEach(function (line) { batch.appendChild(item({ text: line, at: chunk.at, runner: chunk.runner })); });
        if (rest) {
          var node = item({ text: rest, at: chunk.at, runner: chunk.runner });
          tails[key] = { text: rest.slice(-65536), node: node };
          batch.appendChild(node);
        }
      });
      list.appendChild(batch);
      if (follow) { while (list.childElementCount > MOST_LINES) { list.firstElementChild.remove(); offerEarlier(true); } }
    }
    function status(text) { tool("status").textContent = text; }
    function toEnd() { box.scrollTop = box.scrollHeight; }
    function setFollow(yes) {
      follow = yes;
      tool("follow").setAttribute("aria-pressed", yes ? "true" : "false");
      if (yes) { toEnd(); status(""); }
    }
    function offerEarlier(yes) {
      var button = root.querySelector(".log-earlier");
      if (!yes) { if (button) { button.remove(); } return; }
      if (button) { return; }
      button = document.createElement("button");
      button.type = "button";
      button.className = "btn btn-sm log-earlier";
      button.textContent = say.wordEarlier;
      button.addEventListener("click", earlier);
      box.insertBefore(button, list);
    }
    function get(parameters) {
      var address = new URL(say.logs, window.location.href);
      Object.keys(parameters).forEach(function (name) { if (parameters[name] !== null && parameters[name] !== "") { address.searchParams.set(name, parameters[name]); } });
      return window.fetch(address, { headers: { Accept: "application/json" } }).then(function (answer) {
        if (answer.redirected) { window.location.reload(); throw new Error("signed out"); }
        if (!answer.ok) { throw new Error("status " + answer.status); }
        return answer.json();
      });
    }
    function poll() {
      window.clearTimeout(timer);
      var mine = generation;
      if (document.hidden) { timer = window.setTimeout(poll, EVERY_MS); return; }
      get({ after: next, attempt: attempt }).then(function (page) {
        if (mine !== generation) { return; }
        window.qdOffline(false);
        if (next === null) {
          list.textContent = "";
          first = page.first_id;
          offerEarlier(page.chunks.length >= 200);
        }
        next = page.next_after;
        open = page.is_open;
        if (page.chunks.length) {
          var before = list.childElementCount;
          append(page.chunks);
          if (query) { search(query, false); }
          if (follow) { toEnd(); } else { status("+" + (list.childElementCount - before) + " " + say.wordMore); }
        } else if (!list.childElementCount) {
          status(say.wordNone);
        }
        if (page.chunks.length >= 200) { timer = window.setTimeout(poll, 50); }
        else if (open) { timer = window.setTimeout(poll, EVERY_MS); }
      }, function () {
        if (mine !== generation) { return; }
        window.qdOffline(true);
        timer = window.setTimeout(poll, 3 * EVERY_MS);
      });
    }
    /* Earlier lines go on top; those furthest below are dropped and fetched again when following. */
    function earlier() {
      setFollow(false);
      var mine = generation;
      get({ before: first, attempt: attempt }).then(function (page) {
        if (mine !== generation || !page.chunks.length) { offerEarlier(false); return; }
        first = page.first_id;
        var kept = list, height = box.scrollHeight, held = { tails: tails, last: lastAttempt };
        list = document.createElement("ol");
        tails = {};
        lastAttempt = null;
        append(page.chunks);
        while (list.lastElementChild) { kept.insertBefore(list.lastElementChild, kept.firstElementChild); }
        list = kept;
        tails = held.tails;
        lastAttempt = held.last;
        box.scrollTop += box.scrollHeight - height;
        if (list.childElementCount > MOST_LINES) {
          while (list.childElementCount > MOST_LINES) { list.lastElementChild.remove(); }
          stopAtPast();
        }
        offerEarlier(page.chunks.length >= 200);
      }, function () { window.qdOffline(true); });
    }
    function stopAtPast() {
      generation += 1;
      window.clearTimeout(timer);
      next = null;
      status(say.wordTrimmed);
    }
    function again() {
      generation += 1;
      next = null;
      tails = {};
      lastAttempt = null;
      status("");
      poll();
    }
    function search(text, jump) {
      query = text.toLowerCase();
      hits = [];
      Array.prototype.forEach.call(list.children, function (li) {
        var found = query !== "" && !li.hidden && li.textContent.toLowerCase().indexOf(query) >= 0;
        li.classList.toggle("hit", found);
        li.classList.remove("hit-now");
        if (found) { hits.push(li); }
      });
      if (query) { status(hits.length + " " + say.wordMatches); } else { status(""); }
      if (jump && hits.length) { setFollow(false); hit = hits.length; step(-1); }
    }
    function step(by) {
      if (!hits.length) { return; }
      if (hits[hit]) { hits[hit].classList.remove("hit-now"); }
      hit = (hit + by + hits.length) % hits.length;
      hits[hit].classList.add("hit-now");
      hits[hit].scrollIntoView({ block: "center" });
      status((hit + 1) + " / " + hits.length);
    }
    tool("follow").addEventListener("click", function () {
      if (!follow && next === null) { setFollow(true); again(); return; }
      setFollow(!follow);
    });
    tool("wrap").addEventListener("click", function () {
      this.setAttribute("aria-pressed", box.classList.toggle("is-wrapped") ? "true" : "false");
      if (follow) { toEnd(); }
    });
    tool("times").addEventListener("click", function () {
      this.setAttribute("aria-pressed", box.classList.toggle("has-times") ? "true" : "false");
    });
    tool("error").addEventListener("click", function () {
      var found = list.querySelector("li.err:not([hidden])");
      if (!found) { status(say.wordNoerror); return; }
      setFollow(false);
      Array.prototype.forEach.call(list.querySelectorAll(".hit-now"), function (li) { li.classList.remove("hit-now"); });
      found.classList.add("hit-now");
      found.scrollIntoView({ block: "center" });
    });
    tool("search").addEventListener("input", function () { search(this.value, true); });
    tool("search").addEventListener("keydown", function (event) {
      if (event.key === "Enter") { event.preventDefault(); step(event.shiftKey ? -1 : 1); }
    });
    if (tool("attempt")) {
      tool("attempt").addEventListener("change", function () { attempt = this.value; setFollow(true); again(); });
    }
    if (tool("runner")) {
      tool("runner").addEventListener("change", function () {
        runner = this.value;
        Array.prototype.forEach.call(list.children, function (li) { li.hidden = Boolean(runner && li.dataset.runner && li.dataset.runner !== runner); });
        if (follow) { toEnd(); }
      });
    }
    /* Scrolling up pauses, scrolling to the end follows again. */
    box.addEventListener("scroll", function () {
      var atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
      if (follow && !atEnd) { setFollow(false); } else if (!follow && atEnd && next !== null && !query) { setFollow(true); }
    });
    poll();
  }
  document.addEventListener("DOMContentLoaded", function () {
    var root = document.querySelector("[data-logs]");
    if (root) { start(root); }
  });
})();
