/* All charts, drawn by uPlot (vendor/uplot): [data-delayq-chart] has what admin/charts.py says of a chart,
   [data-delayq-spark] the values of a line without axes. The numbers also stand in a table below each chart. */
"use strict";

(() => {
  const root = document.querySelector(".delayq");
  if (!root || !window.uPlot) return;
  const HEIGHT = 190;
  const SPARK_HEIGHT = 24;
  const NARROW = 480;
  const FONT = "11px sans-serif";
  /* Seconds between two marks of an axis of durations. */
  const DURATIONS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];
  /* And of an axis of times: what it says has no seconds. */
  const TIMES = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 172800, 604800, 1209600, 2419200];
  /* Each element that has a chart -> the chart; and the part of it that somebody chose, by the name of the figure. */
  const drawn = new Map();
  const zoomed = new Map();

  function colour(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  function number(value, compact) {
    const options = compact && Math.abs(value) >= 10000 ? { notation: "compact" } : { maximumFractionDigits: 2 };
    return value.toLocaleString(document.documentElement.lang || undefined, options);
  }

  function words(value, unit, compact) {
    if (value == null) return "–";
    if (unit === "duration") return window.delayq.duration(value, 3);
    return number(value, compact) + (unit === "rate" ? "/s" : "");
  }

  /* In the page's zone, as everything else on it, unless the chart has one of its own. */
  function clock(seconds, step, chart) {
    const format = step >= 86400 ? { month: "2-digit", day: "2-digit" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    return window.delayq.clock(new Date(seconds * 1000), chart.zone ? { ...format, timeZone: chart.zone } : format);
  }

  function inZone(seconds, chart) {
    try {
      return uPlot.tzDate(new Date(seconds * 1000), chart.zone || root.dataset.zone);
    } catch {
      return new Date(seconds * 1000);
    }
  }

  function axis(scale, side, title, text) {
    const line = colour("--delayq-line");
    return {
      scale,
      side,
      label: title,
      labelSize: 18,
      labelFont: FONT,
      font: FONT,
      stroke: text || colour("--delayq-muted"),
      grid: { stroke: line, width: 1, show: side !== 1 },
      ticks: { stroke: line, width: 1 },
    };
  }

  function horizontal(chart, element) {
    const shown = axis("x", 2, chart.x);
    shown.size = 34;
    if (chart.labels.length) {
      const every = Math.ceil(chart.labels.length / Math.max(3, element.clientWidth / 70));
      shown.splits = () => chart.labels.map((_, nth) => nth).filter((nth) => nth % every === 0);
      shown.values = (_, splits) => splits.map((nth) => chart.labels[nth]);
    } else {
      shown.space = 56;
      shown.incrs = TIMES;
      shown.values = (_, splits, __, ___, step) => splits.map((at) => clock(at, step, chart));
    }
    return shown;
  }

  function vertical(chart, place) {
    const { title, unit } = chart.axes[place];
    const one = chart.axes.length > 1 && chart.series.find((series) => series.axis === place);
    const shown = axis(`y${place}`, place ? 1 : 3, title, one && colour(`--delayq-${one.colour}`));
    shown.size = unit === "duration" ? 62 : 48;
    shown.values = (_, splits) => splits.map((value) => words(value, unit, true));
    if (unit === "duration") shown.incrs = DURATIONS;
    if (unit === "count") shown.incrs = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8, 1e9];
    return shown;
  }

  function isBars(chart) {
    return chart.ranges.length > 0;
  }

  /* Bars on each other: the first series is drawn as high as all together, and each next one covers it from below. What is
     not 0 can be seen. */
  function columns(chart) {
    const at = chart.labels.length ? chart.labels.map((_, nth) => nth) : chart.at;
    if (!isBars(chart)) return [at, ...chart.series.map((series) => series.values)];
    const sums = at.map(() => 0);
    const piled = chart.series.map((series) => series.values.map((value, nth) => (sums[nth] += value || 0))).reverse();
    const least = Math.max(...sums) * 0.015;
    return [at, ...piled.map((values) => values.map((value) => (value ? Math.max(value, least) : null)))];
  }

  function lines(chart) {
    if (!isBars(chart)) {
      return chart.series.map((series, nth) => ({
        scale: `y${series.axis}`,
        stroke: colour(`--delayq-${series.colour}`),
        dash: nth ? [6, 4] : undefined,
        width: 2,
        points: { show: false },
      }));
    }
    const paths = uPlot.paths.bars({ size: [0.82, 60], align: chart.labels.length ? 0 : 1 });
    return [...chart.series].reverse().map((series) => {
      const fill = colour(`--delayq-${/^\d+$/.test(series.colour) ? "stack-" : ""}${series.colour}`);
      return { scale: `y${series.axis}`, paths, fill, stroke: fill, width: 0, points: { show: false } };
    });
  }

  function options(chart, element) {
    const fromZero = { range: (_, low, high) => [0, Math.max((high || 0) * 1.08, 0.01)] };
    const last = chart.at.length - 1;
    const x = chart.labels.length
      ? { time: false, range: [-0.6, chart.labels.length - 0.4] }
      : { time: true, ...(isBars(chart) ? { range: [chart.at[0], chart.at[last] + chart.step] } : {}) };
    return {
      width: element.clientWidth,
      height: HEIGHT,
      tzDate: (seconds) => inZone(seconds, chart),
      scales: { x, y0: fromZero, y1: fromZero },
      series: [{}, ...lines(chart)],
      axes: [horizontal(chart, element), ...chart.axes.map((_, place) => vertical(chart, place))],
      cursor: { drag: { x: !isBars(chart), y: false }, points: { show: false }, y: false },
      legend: { show: false },
      hooks: { draw: [(self) => drawMarks(self, chart.marks)], setCursor: [(self) => tell(self, chart)], setSelect: [(self) => noteZoom(self, element)] },
      padding: [8, chart.axes.length > 1 ? 0 : 18, 0, 0], // half of a time stands beyond the last bar
    };
  }

  /* What people did, and deploys: a line each, with its words along it. They also stand below the chart. */
  function drawMarks(self, marks) {
    const { ctx, bbox } = self;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--delayq-muted");
    ctx.font = `${10 * devicePixelRatio}px sans-serif`;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const [at, said] of marks) {
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
      ctx.fillText(said.slice(0, 24), 0, 0);
      ctx.restore();
    }
    ctx.restore();
  }

  function noteZoom(self, element) {
    if (self.select.width > 0) zoomed.set(nameOf(element), [self.select.left, self.select.left + self.select.width].map((x) => self.posToVal(x, "x")));
  }

  function nameOf(element) {
    return element.closest("figure")?.id;
  }

  /* Which bar the mouse is on: uPlot gives the nearest place, and a bar of a time begins at its place. */
  function under(self, chart) {
    const { left, idx } = self.cursor;
    if (left < 0 || idx == null) return -1;
    if (!isBars(chart) || chart.labels.length) return idx;
    const at = self.posToVal(left, "x");
    return Math.min(Math.floor((at - chart.at[0]) / chart.step), chart.at.length - 1);
  }

  /* As Chart.link() of admin/charts.py: of the part of a bar that the mouse is on, else of the whole bar. */
  function linkOf(self, chart, nth) {
    if (!chart.listed || nth < 0 || !chart.series.some((series) => series.values[nth])) return "";
    const height = self.posToVal(self.cursor.top, "y0");
    let sum = 0;
    const part = chart.series.find((series) => (sum += series.values[nth] || 0) >= height);
    const listed = part?.listed || chart.listed;
    const [begin, end] = [chart.at[nth], chart.at[nth] + chart.step].map((at) => `${new Date(at * 1000).toISOString().slice(0, 16)}Z`);
    return `${listed}${nth ? `since=${begin}&` : ""}until=${end}`;
  }

  function tell(self, chart) {
    const nth = under(self, chart);
    const tip = self.delayqTip;
    if (!tip) return; // it is about to be made
    tip.hidden = nth < 0;
    if (nth < 0) return;
    const when = isBars(chart) ? chart.ranges[nth] : clock(chart.at[nth], 0, chart);
    const told = chart.series
      .map((series) => ({ series, value: series.values[nth] }))
      .filter(({ value }) => !isBars(chart) || chart.series.length === 1 || value)
      .map(({ series, value }) => line(`${series.label}: ${words(value, chart.axes[series.axis].unit)}`, series.colour));
    tip.replaceChildren(line(when), ...told);
    const room = self.over.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, self.cursor.left + 12))}px`;
    self.over.style.cursor = linkOf(self, chart, nth) ? "pointer" : "";
  }

  function line(text, colourName) {
    const element = document.createElement("div");
    if (colourName) element.className = `delayq-colour-${colourName}`;
    element.textContent = text;
    return element;
  }

  function draw(element) {
    drawn.get(element)?.destroy();
    drawn.delete(element);
    if (!element.clientWidth) return;
    const chart = JSON.parse(element.dataset.delayqChart);
    const plot = new uPlot(options(chart, element), columns(chart), element);
    plot.delayqTip = document.createElement("div");
    plot.delayqTip.className = "delayq-tip";
    plot.delayqTip.hidden = true;
    plot.over.append(plot.delayqTip);
    plot.over.addEventListener("click", () => {
      const where = linkOf(plot, chart, under(plot, chart));
      if (where) window.location.assign(where);
    });
    plot.over.addEventListener("dblclick", () => zoomed.delete(nameOf(element)));
    const part = zoomed.get(nameOf(element));
    if (part) plot.setScale("x", { min: part[0], max: part[1] });
    drawn.set(element, plot);
  }

  function drawSpark(element) {
    drawn.get(element)?.destroy();
    drawn.delete(element);
    if (!element.clientWidth) return;
    const values = JSON.parse(element.dataset.delayqSpark);
    const plot = new uPlot(
      {
        width: element.clientWidth,
        height: SPARK_HEIGHT,
        padding: [2, 0, 1, 0],
        scales: { x: { time: false }, y: { range: (_, low, high) => [0, high || 1] } },
        series: [{}, { stroke: colour("--delayq-run"), width: 1.5, points: { show: false } }],
        axes: [{ show: false }, { show: false }],
        cursor: { show: false },
        legend: { show: false },
      },
      [values.map((_, nth) => nth), values],
      element,
    );
    drawn.set(element, plot);
  }

  function drawAll() {
    for (const element of drawn.keys()) if (!element.isConnected) drawn.delete(element);
    for (const element of root.querySelectorAll("[data-delayq-chart]")) draw(element);
    for (const element of root.querySelectorAll("[data-delayq-spark]")) drawSpark(element);
  }

  /* After a refresh only what is new is drawn: live.js keeps a chart that has not changed. */
  function drawNew() {
    for (const element of drawn.keys()) if (!element.isConnected) drawn.delete(element);
    for (const element of root.querySelectorAll("[data-delayq-chart]")) if (!drawn.has(element)) draw(element);
    for (const element of root.querySelectorAll("[data-delayq-spark]")) if (!drawn.has(element)) drawSpark(element);
  }

  /* Drawn anew when the theme or the width changes: the colours are in the picture. */

  document.addEventListener("delayq-refreshed", drawNew);
  new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["data-theme", "class"] });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.matchMedia(`(max-width: ${NARROW}px)`).addEventListener("change", drawAll);
  let width = 0;
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    drawAll();
  }).observe(root);
})();
