/* The overview's chart: throughput and lag of the last three hours, drawn by uPlot (vendor/uplot). */
"use strict";

(() => {
  const HEIGHT = 200;
  const NARROW = 480;
  const holder = () => document.querySelector("[data-delayq-plot]");
  /* The points of the moments when this page was refreshed; the server keeps one for each minute only. */
  const seen = new Map();
  let chart = null;
  let zoomed = false;

  function colour(name) {
    return getComputedStyle(document.querySelector(".delayq")).getPropertyValue(name).trim();
  }

  function data() {
    const sent = JSON.parse(document.getElementById("delayq-chart-data").textContent);
    const points = new Map(sent.at.map((at, nth) => [at, [sent.rate[nth], sent.lag[nth]]]));
    const oldest = sent.at.length ? sent.at[0] : Date.now() / 1000 - 3 * 3600;
    if (sent.now) seen.set(sent.now[0], [sent.now[1], sent.now[2]]);
    for (const [at, point] of seen) {
      if (at < oldest) seen.delete(at);
      else points.set(at, point);
    }
    const sorted = [...points].sort(([one], [other]) => one - other);
    return [sorted.map(([at]) => at), sorted.map(([, [rate]]) => rate), sorted.map(([, [, lag]]) => lag)];
  }

  /* In the project's zone, as everything else on the page, where the browser knows it. */
  function clock(seconds, options) {
    const when = new Date(seconds * 1000);
    const format = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...options };
    try {
      return when.toLocaleTimeString(undefined, { ...format, timeZone: holder().dataset.zone });
    } catch {
      return when.toLocaleTimeString(undefined, format);
    }
  }

  function times() {
    return { ...axis("x", 2), values: (_, splits) => splits.map((at) => clock(at)) };
  }

  function axis(scale, side, width) {
    const text = colour("--delayq-muted");
    const grid = { stroke: colour("--delayq-line"), width: 1, show: side !== 1 };
    const font = "11px sans-serif";
    return { scale, side, stroke: text, grid, ticks: grid, font, ...(width ? { size: width } : {}) };
  }

  function line(label, scale, stroke, dash) {
    return { label, scale, stroke, dash, width: 2, points: { show: false }, value: (_, v) => (v == null ? "–" : v.toFixed(2)) };
  }

  function options(element) {
    const fromZero = { range: (_, low, high) => [0, Math.max(high * 1.1, 0.1)] };
    return {
      width: element.clientWidth,
      height: HEIGHT,
      scales: { rate: fromZero, lag: fromZero },
      series: [
        { label: element.dataset.time, value: (_, at) => (at == null ? "–" : clock(at, { second: "2-digit" })) },
        line(element.dataset.rate, "rate", colour("--delayq-run")),
        line(element.dataset.lag, "lag", colour("--delayq-warn"), [6, 4]),
      ],
      axes: [times(), axis("rate", 3, 46), axis("lag", 1, 46)],
      cursor: { drag: { x: true, y: false } },
      legend: { live: element.clientWidth > NARROW },
      hooks: { draw: [drawMarks], setSelect: [(self) => (zoomed = self.select.width > 0)] },
    };
  }

  /* What people did, and deploys: a line each, with its words along it. They also stand below the chart. */
  function drawMarks(self) {
    const { ctx, bbox } = self;
    const marks = JSON.parse(document.getElementById("delayq-chart-data").textContent).marks;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--delayq-muted");
    ctx.font = `${10 * devicePixelRatio}px sans-serif`;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const [at, words] of marks) {
      const x = self.valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.save();
      ctx.translate(x - 3 * devicePixelRatio, bbox.top + 4 * devicePixelRatio);
      ctx.rotate(-Math.PI / 2);
      ctx.textAlign = "right";
      ctx.fillText(words.slice(0, 24), 0, 0);
      ctx.restore();
    }
    ctx.restore();
  }

  function build() {
    chart?.destroy();
    chart = null;
    zoomed = false;
    const element = holder();
    const points = element && data();
    if (!points || points[0].length < 2) return;
    element.classList.add("delayq-plotted");
    chart = new uPlot(options(element), points, element);
    chart.over.addEventListener("dblclick", () => (zoomed = false));
  }

  function update() {
    if (!holder()) return;
    if (!chart || !holder().contains(chart.root)) build();
    else chart.setData(data(), !zoomed);
  }

  /* Drawn anew when the theme or the width changes: the colours are in the picture. */

  document.addEventListener("delayq-refreshed", update);
  new MutationObserver(build).observe(document.documentElement, { attributeFilter: ["data-theme", "class"] });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
  let width = 0;
  const resized = new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    build();
  });
  resized.observe(document.querySelector("[data-delayq-live]"));
})();
