/* How times are written, for all scripts of a page (window.delayq), and the distances that go on by themselves:
   [data-delayq-at] has an instant, and says "in 2.4 s" or "3 min ago". The server writes them once, without a script. */
"use strict";

(() => {
  const root = document.querySelector(".delayq");
  if (!root) return;
  const units = JSON.parse(root.dataset.units);
  const language = document.documentElement.lang || undefined;
  /* The clock of the server: that of this machine may be wrong. */
  const ahead = Number(root.dataset.now) * 1000 - Date.now();

  function write(value, unit) {
    return units[unit].replace("%(number)s", value.toLocaleString(language, { maximumSignificantDigits: 6 }));
  }

  /* As duration_parts() of core/times.py. */
  function parts(seconds, digits) {
    if (seconds < 0.9995) return [[Math.round(seconds * 1000), "ms"]];
    if (seconds < 59.5) return [[Number(seconds >= 10 ** (digits - 1) ? Math.round(seconds) : seconds.toPrecision(digits)), "s"]];
    const pair = (size, smaller, unit, other) => {
      const all = Math.round(seconds / smaller);
      return [[Math.floor(all / (size / smaller)), unit], [all % (size / smaller), other]];
    };
    if (seconds < 599.5) return pair(60, 1, "min", "s");
    if (seconds < 3570) return [[Math.round(seconds / 60), "min"]];
    if (seconds < 2 * 86400 - 30) return pair(3600, 60, "h", "min");
    if (seconds < 10 * 86400 - 1800) return pair(86400, 3600, "d", "h");
    return [[Math.round(seconds / 86400), "d"]];
  }

  function duration(seconds, digits) {
    const [first, second] = parts(Math.abs(seconds), digits);
    const said = write(...first) + (second?.[0] ? ` ${write(...second)}` : "");
    return seconds < 0 ? `-${said}` : said;
  }

  function clock(when, format) {
    try {
      return when.toLocaleString(language, { timeZone: root.dataset.zone, ...format });
    } catch {
      return when.toLocaleString(language, format); // a zone that the browser does not know
    }
  }

  function distance(element) {
    const left = (Date.parse(element.dataset.delayqAt) - Date.now() - ahead) / 1000;
    if (left <= 0 && element.dataset.delayqOverdue) return element.dataset.delayqOverdue;
    return (left > 0 ? root.dataset.in : root.dataset.ago).replace("%(time)s", duration(Math.abs(left), 2));
  }

  function tick() {
    if (document.hidden || !window.getSelection().isCollapsed) return;
    for (const element of root.querySelectorAll("[data-delayq-at]")) {
      const said = distance(element);
      if (element.textContent !== said) element.textContent = said;
    }
  }

  window.delayq = { duration, clock };
  setInterval(tick, 1000);
})();
