/* Every page that is live: fetches its changing part, [data-delayq-live], again and again. Without it there is the Reload
   link. */
"use strict";

(() => {
  const bar = document.getElementById("delayq-refresh");
  const live = document.querySelector("[data-delayq-live]");
  if (!bar || !live) return;

  const STORED_AS = "delayq.refresh";
  const ANSWER_WITHIN_MS = 15000;
  const LONGEST_PAUSE_MS = 60000;
  const SUMMARY_EVERY_MS = 60000;
  const interval = document.getElementById("delayq-interval");
  const status = bar.querySelector("[data-delayq-status]");
  const banner = document.querySelector("[data-delayq-failed]");
  const summary = document.querySelector("[data-delayq-summary]");
  const alerts = document.querySelector("[data-delayq-alert]");

  let timer = 0;
  let running = false;
  let etag = "";
  let failures = 0;
  let failingSince = "";
  let summaryAt = Date.now();

  function clock() {
    return window.delayq.clock(new Date(), { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  }

  function fill(text, values) {
    return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  }

  /* What was chosen is kept in this browser; one that keeps nothing is no reason to fail. */

  function remembered() {
    try {
      return localStorage.getItem(STORED_AS);
    } catch {
      return null;
    }
  }

  function remember(value) {
    try {
      localStorage.setItem(STORED_AS, value);
    } catch {
      /* Private windows. */
    }
  }

  /* When: after each answer, never two at a time, not while the page is hidden, slower while it fails. */

  function schedule() {
    clearTimeout(timer);
    const every = Number(interval.value) * 1000;
    if (!every || document.hidden) return;
    const pause = Math.max(every, Math.min(LONGEST_PAUSE_MS, 1000 * 2 ** failures));
    timer = setTimeout(refresh, failures ? pause : every);
  }

  async function refresh() {
    clearTimeout(timer);
    if (running) return;
    running = true;
    try {
      await fetchAndShow();
    } finally {
      running = false;
      schedule();
    }
  }

  async function fetchAndShow() {
    if (inUse()) {
      status.textContent = bar.dataset.used;
      return;
    }
    try {
      const address = new URL(window.location.href);
      address.searchParams.set("part", "1");
      address.hash = "";
      const answer = await fetch(address, {
        cache: "no-store",
        credentials: "same-origin",
        headers: etag ? { "If-None-Match": etag } : {},
        redirect: "manual",
        signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
      });
      const elsewhere = answer.headers.get("X-DelayQ-Location");
      if (elsewhere) {
        window.location.assign(elsewhere);
        return;
      }
      if (answer.status !== 304) {
        if (answer.type === "opaqueredirect") throw new Error(bar.dataset.loggedOut);
        if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
        const html = await answer.text();
        if (inUse()) return; // somebody began meanwhile
        show(html);
        etag = answer.headers.get("ETag") || "";
      }
      succeeded();
    } catch (error) {
      // Browsers put what they say about a lost connection in words of their own.
      failed(error.constructor === Error ? error.message : bar.dataset.silent);
    }
  }

  function succeeded() {
    failures = 0;
    failingSince = "";
    banner.hidden = true;
    live.classList.remove("delayq-stale");
    sayWhen();
    if (Date.now() - summaryAt >= SUMMARY_EVERY_MS) {
      summaryAt = Date.now();
      summary.textContent = document.getElementById("delayq-summary")?.textContent ?? "";
    }
  }

  /* Redis may be away although the server answers: then its figures are those of before. */
  function sayWhen() {
    const since = live.querySelector("[data-since]")?.dataset.since;
    const unread = alerts.childElementCount && !live.querySelector("[data-delayq-figures]");
    if (since) status.textContent = fill(bar.dataset.stale, { time: since });
    else status.textContent = unread ? "" : fill(bar.dataset.updated, { time: clock() });
  }

  /* What is wrong stands above the part that is replaced, and changes only with its words: it is read out. */
  function showAlert(part) {
    const problem = part.querySelector("#delayq-problem");
    problem?.remove();
    if ((problem?.textContent ?? "") !== alerts.textContent) alerts.replaceChildren(...(problem ? [problem] : []));
  }

  function failed(why) {
    failures += 1;
    failingSince ||= clock();
    live.classList.add("delayq-stale");
    const text = fill(bar.dataset.failed, { time: failingSince, why });
    // Only when it changes: it is read out.
    if (banner.hidden || banner.textContent !== text) banner.textContent = text;
    banner.hidden = false;
    status.textContent = "";
  }

  /* What somebody marks, presses or writes just now is left alone. */

  function inUse() {
    const selection = window.getSelection();
    if (!selection.isCollapsed && live.contains(selection.anchorNode)) return true;
    const fields = [...live.querySelectorAll("input:not([type=hidden]), select, textarea")];
    return Boolean(live.querySelector("button:active, a:active")) || fields.some((field) => field === document.activeElement || isChanged(field));
  }

  function isChanged(field) {
    if (field.matches("select")) {
      const chosen = [...field.options].some((option) => option.defaultSelected);
      return [...field.options].some((option, nth) => option.selected !== (chosen ? option.defaultSelected : nth === 0));
    }
    if (field.matches("[type=checkbox], [type=radio]")) return field.checked !== field.defaultChecked;
    return field.value !== field.defaultValue;
  }

  /* What: the part is replaced; focus, what is open, places in scrolled boxes and charts that are the same stay. */

  function show(html) {
    const fresh = new DOMParser().parseFromString(`<div>${html}</div>`, "text/html").body.firstChild;
    const focused = placeOf(document.activeElement);
    const boxes = ".delayq-scroll, pre";
    const scrolled = [...live.querySelectorAll(boxes)].map((box) => [box.scrollLeft, box.scrollTop]);
    const opened = [...live.querySelectorAll("details")];
    fresh.querySelectorAll("details").forEach((one, nth) => {
      const before = one.id ? opened.find((other) => other.id === one.id) : opened[nth];
      if (before) one.open = before.open;
    });
    keepCharts(fresh);
    showAlert(fresh);
    live.replaceChildren(...fresh.childNodes);
    live.querySelectorAll(boxes).forEach((box, nth) => {
      [box.scrollLeft, box.scrollTop] = scrolled[nth] || [0, 0];
    });
    if (focused) elementAt(focused)?.focus({ preventScroll: true });
    document.dispatchEvent(new CustomEvent("delayq-refreshed"));
  }

  function keepCharts(fresh) {
    const of = (part) => [...part.querySelectorAll("[data-delayq-chart], [data-delayq-spark]")];
    const same = (one, other) => one.dataset.delayqChart === other.dataset.delayqChart && one.dataset.delayqSpark === other.dataset.delayqSpark && one.ariaLabel === other.ariaLabel;
    const old = of(live);
    for (const element of of(fresh)) {
      const place = old.findIndex((other) => same(element, other));
      if (place >= 0) element.replaceWith(...old.splice(place, 1));
    }
  }

  /* Where the focus is, in words that outlive the element: an address and which of those, or a table's place. */

  function placeOf(element) {
    if (!element || !live.contains(element)) return null;
    const href = element.getAttribute("href");
    const likewise = href ? `a[href="${CSS.escape(href)}"]` : `${element.localName}:not([href])`;
    return { likewise, nth: [...live.querySelectorAll(likewise)].indexOf(element) };
  }

  function elementAt({ likewise, nth }) {
    const found = live.querySelectorAll(likewise);
    return found[nth] || found[0];
  }

  /* Start */

  if ([...interval.options].some((option) => option.value === remembered())) interval.value = remembered();
  bar.querySelector("[data-delayq-scripted]").hidden = false;
  interval.addEventListener("change", () => {
    remember(interval.value);
    failures = 0;
    schedule();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : catchUp()));
  document.addEventListener("delayq-refresh", (event) => {
    event.preventDefault();
    refresh();
  });
  window.addEventListener("online", catchUp);

  function catchUp() {
    if (Number(interval.value)) refresh();
  }

  showAlert(live);
  sayWhen();
  schedule();
})();
