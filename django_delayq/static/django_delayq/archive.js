// Lists with boxes: one in the head that ticks every message of the page. A list may be replaced while it is shown.
// Where a count is a lower bound, counting goes on by itself.
"use strict";

(() => {
  const boxesOf = (all) => [...all.closest("table").querySelectorAll("tbody input[type=checkbox]")];

  const tell = (all) => {
    const boxes = boxesOf(all);
    const ticked = boxes.filter((box) => box.checked).length;
    all.checked = ticked > 0 && ticked === boxes.length;
    all.indeterminate = ticked > 0 && !all.checked;
  };

  const headOf = (box) => box.closest("table")?.querySelector("[data-delayq-all]");

  document.addEventListener("change", ({ target }) => {
    if (!(target instanceof HTMLInputElement) || target.type !== "checkbox") return;
    if (target.matches("[data-delayq-all]")) for (const box of boxesOf(target)) box.checked = target.checked;
    const head = headOf(target);
    if (head) tell(head);
  });
  // The browser's way back keeps what was ticked.
  addEventListener("pageshow", () => document.querySelectorAll("[data-delayq-all]").forEach(tell));

  const countOn = document.querySelector("[data-delayq-count-all]");
  if (countOn) {
    fetch(countOn.href).then((answer) => (answer.ok ? answer.text() : "")).then((text) => {
      const page = new DOMParser().parseFromString(text, "text/html");
      const counted = page.querySelector("[data-delayq-count]");
      if (!counted) return;
      document.querySelector("[data-delayq-count]").textContent = counted.textContent;
      if (!page.querySelector("[data-delayq-bound]")) document.querySelector("[data-delayq-bound]").remove();
    }).catch(() => {}); // the link stays
  }
})();
