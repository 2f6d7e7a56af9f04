// The archive's list: one box that selects every message of the page.
"use strict";

(() => {
  const all = document.querySelector("[data-delayq-all]");
  const boxes = all ? [...all.form.querySelectorAll("input[name=id]")] : [];
  if (!boxes.length) return;

  const tell = () => {
    const ticked = boxes.filter((box) => box.checked).length;
    all.checked = ticked === boxes.length;
    all.indeterminate = ticked > 0 && !all.checked;
  };

  all.addEventListener("change", () => {
    for (const box of boxes) box.checked = all.checked;
    tell();
  });
  for (const box of boxes) box.addEventListener("change", tell);
  addEventListener("pageshow", tell); // the browser's way back keeps what was ticked
  tell();
  all.hidden = false;
})();
