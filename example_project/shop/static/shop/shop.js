// Counts down, and replaces #live by the server's newest rendering. Without it the pages work as text.
"use strict";

// The browser's clock may be wrong: only the distance from the server's counts. `at` is when the answer came.
let offset = 0;

function learnOffset(at) {
  const face = document.querySelector("[data-now]");
  if (face) offset = 1000 * Number(face.dataset.now) - at;
}

function tick() {
  const face = document.querySelector("[data-due]");
  if (face) {
    const left = Math.max(0, Number(face.dataset.due) - (Date.now() + offset) / 1000);
    const share = 100 * Math.min(1, left / Number(face.dataset.window));
    face.querySelector(".count").textContent = left > 0 ? left.toFixed(left < 10 ? 1 : 0) : "now";
    document.querySelector(".ring .left").setAttribute("stroke-dashoffset", String(100 - share));
  }
  requestAnimationFrame(tick);
}

async function refresh() {
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!response.ok) return;
  const at = Date.now();
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const [old, fresh] = [document.getElementById("live"), page.getElementById("live")];
  // A button that has the keyboard's focus must not vanish under it while nothing has changed.
  if (fresh && old.className === fresh.className && old.contains(document.activeElement)) return;
  if (fresh) old.replaceWith(document.adoptNode(fresh));
  learnOffset(at);
}

function wait() {
  const live = document.getElementById("live");
  if (!live || !live.dataset.live) return;
  const face = live.querySelector("[data-due]");
  const left = face ? 1000 * Number(face.dataset.due) - Date.now() - offset : Infinity;
  // Look again just after the deadline, else at the page's own pace, and not at all while nobody looks.
  const pause = left > -1500 ? Math.max(150, left + 60) : Infinity;
  setTimeout(async () => {
    if (!document.hidden) await refresh().catch(() => {});
    wait();
  }, Math.min(Number(live.dataset.live), pause));
}

for (const input of document.querySelectorAll("[data-output]")) {
  const show = () => { document.getElementById(input.dataset.output).value = `${input.value} s`; };
  input.addEventListener("input", show);
  show();
}
const [navigation] = performance.getEntriesByType("navigation");
learnOffset(performance.timeOrigin + (navigation ? navigation.responseStart : performance.now()));
tick();
wait();
