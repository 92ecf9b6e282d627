/* Loss and throughput of one job: reads the page's own JSON, draws with uPlot, follows while the job runs. */
(function () {
  "use strict";
  var EVERY_MS = 5000;
  function start(root) {
    var plots = {};
    var say = root.dataset;
    function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
    function joins(data) {
      return {
        hooks: {
          draw: function (plot) {
            var context = plot.ctx, ratio = window.devicePixelRatio || 1;
            context.save();
            context.strokeStyle = colour("--qd-soft");
            context.fillStyle = colour("--qd-soft");
            context.lineWidth = ratio;
            context.textAlign = "left";
            context.setLineDash([4 * ratio, 4 * ratio]);
            context.font = 11 * ratio + "px " + getComputedStyle(root).fontFamily;
            data().joins.forEach(function (join) {
              var x = Math.round(plot.valToPos(join[0], "x", true));
              context.beginPath();
              context.moveTo(x, plot.bbox.top);
              context.lineTo(x, plot.bbox.top + plot.bbox.height);
              context.stroke();
              context.fillText(say.wordAttempt + " " + join[1], x + 4 * ratio, plot.bbox.top + 12 * ratio);
            });
            context.restore();
          },
        },
      };
    }
    var latest = null;
    function compact(value) {
      if (value === null || value === undefined) { return "–"; }
      if (Math.abs(value) >= 1000) { return Math.round(value).toLocaleString("en-US"); }
      return String(Number(value.toPrecision(4)));
    }
    function axis() {
      return {
        stroke: colour("--qd-soft"),
        grid: { stroke: colour("--qd-line"), width: 1 },
        ticks: { show: false },
        font: "11px " + getComputedStyle(root).fontFamily,
        size: 52,
        values: function (_plot, values) { return values.map(compact); },
      };
    }
    function draw(name, series, columns) {
      var box = root.querySelector('[data-plot="' + window.CSS.escape(name) + '"]');
      if (!box) { return; }
      var data = [latest.steps].concat(columns);
      if (plots[name]) { plots[name].setData(data); return; }
      box.textContent = "";
      var bottom = axis();
      bottom.size = 30;
      plots[name] = new window.uPlot({
        width: box.clientWidth - 16,
        height: box.clientHeight - 34,
        scales: { x: { time: false } },
        legend: { live: true },
        cursor: { points: { size: 6 } },
        axes: [bottom, axis()],
        plugins: [joins(function () { return latest; })],
        series: [{ label: say.wordStep, value: function (_plot, value) { return compact(value); } }].concat(series),
      }, data, box);
    }
    function line(label, name, dashed) {
      return {
        label: label,
        stroke: function () { return colour(name); },
        width: 1.5,
        dash: dashed ? [4, 3] : undefined,
        spanGaps: !dashed,
        points: { show: false },
        value: function (_plot, value) { return compact(value); },
      };
    }
    function show(curve) {
      latest = curve;
      if (!curve.steps.length) { return; }
      var lost = curve.lost_loss.some(function (value) { return value !== null; });
      if (lost && plots.loss && plots.loss.series.length < 3) { plots.loss.destroy(); delete plots.loss; }
      draw("loss", [line(say.wordLoss, "--qd-s1")].concat(lost ? [line(say.wordLost, "--qd-s2", true)] : []),
        [curve.loss].concat(lost ? [curve.lost_loss] : []));
      draw("tokens_per_s", [line("tokens/s", "--qd-s1")], [curve.tokens_per_s]);
      draw("step_s", [line("s", "--qd-s1")], [curve.step_s]);
      Object.keys(curve.series || {}).forEach(function (name) {
        draw(name, [line(name, "--qd-s1")], [curve.series[name]]);
      });
    }
    function load() {
      if (document.hidden) { window.setTimeout(load, EVERY_MS); return; }
      window.fetch(root.dataset.curves, { headers: { Accept: "application/json" } }).then(function (answer) {
        if (answer.redirected) { window.location.reload(); throw new Error("signed out"); }
        if (!answer.ok) { throw new Error("status " + answer.status); }
        return answer.json();
      }).then(function (curve) {
        window.qdOffline(false);
        show(curve);
        if (curve.is_open) { window.setTimeout(load, EVERY_MS); }
      }, function () {
        window.qdOffline(true);
        window.setTimeout(load, 3 * EVERY_MS);
      });
    }
    function redraw() {
      Object.keys(plots).forEach(function (name) { plots[name].destroy(); delete plots[name]; });
      if (latest) { show(latest); }
    }
    document.addEventListener("qd:theme", redraw);
    var width = root.clientWidth, wait = 0;
    new ResizeObserver(function () {
      if (Math.abs(root.clientWidth - width) < 4) { return; }
      width = root.clientWidth;
      window.clearTimeout(wait);
      wait = window.setTimeout(redraw, 120);
    }).observe(root);
    load();
  }
  document.addEventListener("DOMContentLoaded", function () {
    var root = document.querySelector("[data-curves]");
    if (root && window.uPlot) { start(root); }
  });
})();
