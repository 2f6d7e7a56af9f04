/* Follows what a worker does: [data-delayq-refresh="2"] with an id is fetched anew every two seconds, until the server
   sends it without that attribute. Without it there is the Reload link. */
"use strict";

(() => {
  const ANSWER_WITHIN_MS = 15000;
  const LONGEST_PAUSE_MS = 60000;
  const note = document.querySelector("[data-delayq-note]");
  let element = document.querySelector("[data-delayq-refresh][id]");
  if (!element || !note) return;

  let timer = 0;
  let running = false;
  let failures = 0;

  /* After each answer, never two at a time, not while the page is hidden, slower while it fails. */

  function schedule() {
    clearTimeout(timer);
    if (!element.dataset.delayqRefresh || document.hidden) return;
    const every = Number(element.dataset.delayqRefresh) * 1000;
    timer = setTimeout(refresh, Math.max(every, failures ? Math.min(LONGEST_PAUSE_MS, 1000 * 2 ** failures) : 0));
  }

  async function refresh() {
    clearTimeout(timer);
    if (running) return;
    running = true;
    try {
      if (!inUse()) await fetchAndShow();
      failures = 0;
    } catch {
      failures += 1;
      note.textContent = note.dataset.delayqNote;
      note.hidden = false;
    }
    running = false;
    schedule();
  }

  async function fetchAndShow() {
    const answer = await fetch(window.location.href, {
      cache: "no-store",
      credentials: "same-origin",
      redirect: "manual",
      signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
    });
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById(element.id);
    if (!fresh) throw new Error("another page");
    show(document.importNode(fresh, true));
  }

  /* What somebody marks or presses just now is left alone. */

  function inUse() {
    const selection = window.getSelection();
    return element.querySelector(":active") || (!selection.isCollapsed && element.contains(selection.anchorNode));
  }

  function show(fresh) {
    const focusable = "a[href], button";
    const place = [...element.querySelectorAll(focusable)].indexOf(document.activeElement);
    element.replaceWith(fresh);
    element = fresh;
    if (place >= 0) element.querySelectorAll(focusable)[place]?.focus({ preventScroll: true });
    note.hidden = true;
    note.textContent = "";
    if (!element.dataset.delayqRefresh) {
      // Read out, once: that it has ended, and how.
      note.classList.add("delayq-hidden");
      note.hidden = false;
      note.textContent = element.querySelector("p")?.textContent.trim() || "";
    }
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refreshIfAlive()));
  document.addEventListener("delayq-refresh", (event) => {
    if (!element.dataset.delayqRefresh) return;
    event.preventDefault();
    refresh();
  });

  function refreshIfAlive() {
    if (element.dataset.delayqRefresh) refresh();
  }

  schedule();
})();
