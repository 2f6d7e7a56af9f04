/* Every page of the operators: keys and copy buttons. The pages work without it. */
"use strict";

(() => {
  const root = document.querySelector(".delayq");
  if (!root) return;
  root.classList.add("delayq-scripted");

  /* Keys. `g` and a letter go to a tab; nothing happens while somebody types or a dialog is open. Who talks to the
     browser, or is disturbed by them, switches them off. */

  const OFF = "delayq.keys-off";
  const dialog = root.querySelector("#delayq-keys");
  const on = root.querySelector("#delayq-keys-on");
  const opener = root.querySelector("[data-delayq-keys]");
  try {
    on.checked = !localStorage.getItem(OFF);
  } catch {
    /* A browser that keeps nothing. */
  }
  on.addEventListener("change", () => {
    try {
      if (on.checked) localStorage.removeItem(OFF);
      else localStorage.setItem(OFF, "yes");
    } catch {
      /* Then it holds for this page. */
    }
  });
  opener.hidden = false;
  opener.addEventListener("click", () => dialog.showModal());

  const TABS = {
    o: "changelist", d: "dead_letters", a: "archive", s: "statistics", b: "bulk_list", w: "workers",
    r: "recurring", p: "operator_actions", e: "schedule",
  };
  const SECOND_KEY_WITHIN_MS = 1500;
  let goPressedAt = -Infinity;

  /* Not in a checkbox: nothing is typed there. One keeps the focus for a moment after its dialog has closed. */
  function typing(target) {
    const fields = "input:not([type='checkbox'], [type='radio']), select, textarea";
    return target instanceof HTMLElement && (target.isContentEditable || target.matches(fields));
  }

  function goTo(letter) {
    const tab = TABS[letter] && root.querySelector(`[data-delayq-tab="${TABS[letter]}"]`);
    if (tab) tab.click();
  }

  function refresh() {
    const asked = new CustomEvent("delayq-refresh", { cancelable: true });
    // Not reload(), which would send a form again.
    if (document.dispatchEvent(asked)) window.location.assign(window.location.pathname + window.location.search);
  }

  /* The rows of lists: j and k go to the link of the next and the previous one, which Enter opens; x ticks its box. */

  const linkOf = (row) => row.querySelector("a[href]") || row.querySelector("input[type='checkbox']");
  const here = () => document.activeElement?.closest(".delayq-table tbody tr");

  function step(by) {
    const rows = [...root.querySelectorAll(".delayq-table tbody tr")].filter((row) => linkOf(row)?.checkVisibility());
    const at = rows.indexOf(here());
    const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
    if (!next) return false;
    linkOf(next).focus();
    next.scrollIntoView({ block: "nearest" });
    return true;
  }

  function tick() {
    const box = here()?.querySelector("input[type='checkbox']");
    if (box) box.click();
    return Boolean(box);
  }

  function pressed(key) {
    if (key === "j" || key === "k") return step(key === "j" ? 1 : -1);
    if (key === "x") return tick();
    if (key === "?") dialog.showModal();
    else if (key === "/") root.querySelector("#delayq-find")?.focus();
    else if (key === "r") refresh();
    else return false;
    return true;
  }

  document.addEventListener("keydown", (event) => {
    const elsewhere = event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented;
    if (!on.checked || elsewhere || typing(event.target) || document.querySelector("dialog[open]")) return;
    if (event.timeStamp - goPressedAt < SECOND_KEY_WITHIN_MS) {
      goPressedAt = -Infinity;
      goTo(event.key);
    } else if (event.key === "g") {
      goPressedAt = event.timeStamp;
    } else if (pressed(event.key)) {
      event.preventDefault();
    }
  });

  /* Copy buttons: <button type="button" data-delayq-copy="#id">. */

  async function copy(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    // Over plain HTTP there is no clipboard but this one.
    const area = document.createElement("textarea");
    area.value = text;
    root.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) throw new Error("The browser does not copy.");
    return undefined;
  }

  function select(element) {
    window.getSelection().selectAllChildren(element);
  }

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-delayq-copy]");
    const source = button && document.querySelector(button.dataset.delayqCopy);
    if (!source) return;
    try {
      await copy("value" in source ? source.value : source.textContent);
    } catch {
      select(source); // Then the person has only to press the keys.
      return;
    }
    button.focus();
    const before = (button.dataset.delayqLabel ??= button.textContent);
    button.textContent = root.dataset.delayqCopied;
    button.setAttribute("aria-live", "polite");
    setTimeout(() => (button.textContent = before), 2000);
  });
})();
