/* The log viewer: text only, whole lines put together from chunks, follow or pause, a bounded number of lines. */
(function () {
  "use strict";
  var MOST_LINES = 5000, LONGEST = 8000, EVERY_MS = 2000;
  /* The same words as in apps/jobs/log_levels.py. */
  var ERROR = /(?:error|exception)\b|\b(?:traceback|fatal|panic|critical|segmentation fault|out of memory|oom-kill|nccl warn|xid)\b/i;
  var WARNING = /\bwarn(?:ing)?\b/i;
  var COLOUR = /\u001b\[([0-9;]*)m/g;
  var LEVELS = { any: 0, warning: 1, error: 2 };
  /* CSI, OSC and two-character escapes, then the other control characters but tab. */
  var ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g;
  var CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

  function plain(line) {
    var text = line.replace(/\r+$/, "");
    var back = text.lastIndexOf("\r");
    if (back >= 0) { text = text.slice(back + 1); } /* a progress bar redraws its line: the last drawing counts */
    return text.replace(ESCAPES, "").replace(CONTROLS, "");
  }

  function levelOf(text) { return ERROR.test(text) ? 2 : WARNING.test(text) ? 1 : 0; }

  /* The eight colours and bold of ANSI as classes; every other escape is dropped. Text nodes only, never markup. */
  function paint(span, line) {
    var text = line.replace(/\r+$/, "");
    var back = text.lastIndexOf("\r");
    if (back >= 0) { text = text.slice(back + 1); }
    var at = 0, names = [], match;
    COLOUR.lastIndex = 0;
    function put(part) {
      var words = plain(part);
      if (!words) { return; }
      if (!names.length) { span.appendChild(document.createTextNode(words)); return; }
      var piece = document.createElement("span");
      piece.className = names.join(" ");
      piece.textContent = words;
      span.appendChild(piece);
    }
    while ((match = COLOUR.exec(text)) !== null) {
      put(text.slice(at, match.index));
      at = match.index + match[0].length;
      (match[1] || "0").split(";").forEach(function (code) {
        var number = Number(code || 0);
        if (number === 0) { names = []; }
        else if (number === 1) { names = names.concat("ansi-bold"); }
        else if ((number >= 30 && number <= 37) || (number >= 90 && number <= 97)) {
          names = names.filter(function (name) { return name.indexOf("ansi-c") !== 0; }).concat("ansi-c" + (number % 10));
        } else if (number === 39) { names = names.filter(function (name) { return name.indexOf("ansi-c") !== 0; }); }
      });
    }
    put(text.slice(at));
  }

  function start(root) {
    var box = root.querySelector("[data-log]"), list = box.appendChild(document.createElement("ol")), say = root.dataset;
    function tool(name) { return root.querySelector("[data-log-" + name + "]"); }
    var follow = true, attempt = "", runner = "", next = null, first = null, open = say.open === "1";
    var tails = {}, lastAttempt = null, query = "", hits = [], hit = -1, generation = 0, timer = 0;
    var level = "any", target = 0, asked = "";

    function item(line) {
      var li = document.createElement("li"), time = document.createElement("time"), text = document.createElement("span");
      var words = plain(line.text);
      if (words.length > LONGEST) {
        words = words.slice(0, LONGEST) + " … (" + words.length.toLocaleString("en-US") + " " + say.wordCut + ")";
      }
      time.dateTime = line.at;
      time.textContent = window.qdClock(new Date(line.at));
      if (words.length > LONGEST || line.text.length > 4 * LONGEST) { text.textContent = words; } else { paint(text, line.text); }
      var worst = levelOf(words);
      if (worst) { li.className = worst === 2 ? "err" : "warn"; }
      li.appendChild(time);
      li.appendChild(text);
      li.dataset.chunk = line.id;
      if (worst < LEVELS[level]) { li.hidden = true; }
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
        /* A line belongs to the chunk in which it begins. */
        var tail = tails[key], text = chunk.text, begins = chunk.id;
        if (tail) { text = tail.text + text; begins = tail.id; tail.node.remove(); delete tails[key]; }
        var lines = text.split("\n"), rest = lines.pop();
        lines.forEach(function (line, index) { batch.appendChild(item({ text: line, at: chunk.at, id: index ? chunk.id : begins })); });
        if (rest) {
          var owner = lines.length ? chunk.id : begins, node = item({ text: rest, at: chunk.at, id: owner });
          tails[key] = { text: rest.slice(-65536), node: node, id: owner };
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
    function offerLater(yes) {
      var button = root.querySelector(".log-later");
      if (!yes) { if (button) { button.remove(); } return; }
      if (button) { return; }
      button = document.createElement("button");
      button.type = "button";
      button.className = "btn btn-sm log-later";
      button.textContent = say.wordLater;
      button.addEventListener("click", function () { offerLater(false); poll(); });
      box.appendChild(button);
    }
    function get(parameters, where) {
      var address = new URL(where || say.logs, window.location.href);
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
      get({ after: next, attempt: attempt, runner: runner, level: level }).then(function (page) {
        if (mine !== generation) { return; }
        window.qdOffline(false);
        if (page.is_fetching) {
          status(page.away);
          timer = window.setTimeout(poll, 1000);
          return;
        }
        if (page.away) { status(page.away); return; }
        if (next === null || target) {
          list.textContent = "";
          first = page.first_id;
          offerEarlier(page.has_earlier);
        }
        next = page.next_after;
        open = page.is_open;
        if (page.chunks.length) {
          var before = list.childElementCount;
          append(page.chunks);
          if (query) { search(query, false); }
          if (target) { show(target); target = 0; }
          else if (follow) { toEnd(); } else { status("+" + (list.childElementCount - before) + " " + say.wordMore); }
        } else if (!list.childElementCount) {
          status(say.wordNone);
        }
        if (page.chunks.length >= 200 && follow) { timer = window.setTimeout(poll, 50); }
        else if (page.chunks.length >= 200) { offerLater(true); }
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
      get({ before: first, attempt: attempt, runner: runner, level: level }).then(function (page) {
        if (mine !== generation) { return; }
        if (page.away) {
          status(page.away);
          if (page.is_fetching) { window.setTimeout(earlier, 1000); }
          return;
        }
        if (!page.chunks.length) { offerEarlier(false); return; }
        status("");
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
        offerEarlier(page.has_earlier);
      }, function () { window.qdOffline(true); });
    }
    /* The lines of one chunk, wherever it is: the page is filled anew from there on. */
    function jump(id) {
      setFollow(false);
      var there = list.querySelector('li[data-chunk="' + id + '"]:not([hidden])');
      if (there) { show(id); return; }
      generation += 1;
      window.clearTimeout(timer);
      offerLater(false);
      tails = {};
      lastAttempt = null;
      target = id;
      next = id - 1;
      poll();
    }
    function show(id) {
      Array.prototype.forEach.call(list.querySelectorAll(".hit-now"), function (li) { li.classList.remove("hit-now"); });
      var all = list.querySelectorAll('li[data-chunk="' + id + '"]:not([hidden])'), wanted = query;
      var found = Array.prototype.filter.call(all, function (li) {
        return wanted ? li.textContent.toLowerCase().indexOf(wanted) >= 0 : li.classList.contains("err");
      })[0] || all[0];
      if (!found) { return; }
      found.classList.add("hit-now");
      found.scrollIntoView({ block: "center" });
    }
    /* A search through the whole output, by the server; its lines lead to their place. */
    function searchAll(after) {
      var panel = tool("hits"), rows = tool("hits-list"), more = tool("hits-more");
      if (query.length < 2 && level === "any") { return; }
      get({ q: query, after: after, attempt: attempt, runner: runner, level: level }, say.searchUrl).then(function (found) {
        panel.hidden = false;
        if (!Number(after)) { rows.textContent = ""; }
        found.hits.forEach(function (one) {
          var li = document.createElement("li"), button = document.createElement("button");
          button.type = "button";
          button.textContent = plain(one.line);
          button.addEventListener("click", function () { jump(one.id); });
          li.appendChild(button);
          rows.appendChild(li);
        });
        tool("hits-words").textContent = rows.childElementCount || found.next_after !== null || found.has_away ? found.words : say.wordNohit;
        more.hidden = found.next_after === null && !found.has_away;
        more.textContent = found.next_after !== null ? say.wordGoon : say.wordFetch;
        more.onclick = function () {
          if (found.next_after !== null) { searchAll(found.next_after); return; }
          get({ q: query, attempt: attempt, runner: runner, level: level, fetch: 1 }, say.searchUrl).then(function () { window.setTimeout(function () { searchAll(0); }, 2000); });
        };
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
      offerLater(false);
      target = 0;
      list.textContent = "";
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
      if (!follow && (next === null || root.querySelector(".log-later"))) { setFollow(true); again(); return; }
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
      get({ attempt: attempt, runner: runner }, say.errorUrl).then(function (found) {
        if (found.id === null) { status(say.wordNoerror); return; }
        query = "";
        jump(found.id);
      }, function () { window.qdOffline(true); });
    });
    tool("level").addEventListener("change", function () {
      level = this.value;
      setFollow(true);
      again();
    });
    tool("hits-close").addEventListener("click", function () { tool("hits").hidden = true; });
    tool("search").addEventListener("input", function () { search(this.value, true); });
    tool("search").addEventListener("keydown", function (event) {
      if (event.key !== "Enter") { return; }
      event.preventDefault();
      if (event.shiftKey) { step(-1); return; }
      if (this.value.toLowerCase() !== asked) { asked = this.value.toLowerCase(); searchAll(0); } else { step(1); }
    });
    if (tool("attempt")) {
      tool("attempt").addEventListener("change", function () { attempt = this.value; setFollow(true); again(); });
    }
    if (tool("runner")) {
      tool("runner").addEventListener("change", function () {
        runner = this.value;
        setFollow(true);
        again();
      });
    }
    /* Scrolling up pauses, scrolling to the end follows again. */
    box.addEventListener("scroll", function () {
      var atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
      if (follow && !atEnd) { setFollow(false); } else if (!follow && atEnd && next !== null && !query && !root.querySelector(".log-later")) { setFollow(true); }
    });
    poll();
  }
  document.addEventListener("DOMContentLoaded", function () {
    var root = document.querySelector("[data-logs]");
    if (root) { start(root); }
  });
})();
