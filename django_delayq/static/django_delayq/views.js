/* Saved views: names for the filters of a list, kept by this browser. */
"use strict";

(() => {
  const box = document.querySelector("[data-delayq-views]");
  if (!box) return;
  const KEY = `delayq.views ${window.location.pathname}`;
  const list = box.querySelector("ul");
  const form = box.querySelector("form");
  const field = form.querySelector("input");

  const read = () => {
    try {
      const found = JSON.parse(localStorage.getItem(KEY) || "[]");
      return Array.isArray(found) ? found.filter((one) => typeof one?.name === "string" && typeof one.query === "string") : [];
    } catch {
      return [];
    }
  };

  const write = (views) => {
    try {
      localStorage.setItem(KEY, JSON.stringify(views));
    } catch {
      /* A browser that keeps nothing: then the view is gone with the page. */
    }
    show(views);
  };

  function show(views) {
    list.replaceChildren(
      ...views.map(({ name, query }) => {
        const item = document.createElement("li");
        const link = document.createElement("a");
        link.href = `${window.location.pathname}?${query}`;
        link.textContent = name;
        if (query === window.location.search.slice(1)) link.setAttribute("aria-current", "true");
        const remove = document.createElement("button");
        remove.type = "button";
        remove.textContent = "×";
        remove.setAttribute("aria-label", `${box.dataset.delayqViews}: ${name}`);
        remove.addEventListener("click", () => write(read().filter((one) => one.name !== name)));
        item.append(link, " ", remove);
        return item;
      }),
    );
    box.open = box.open || views.length > 0;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = field.value.trim();
    if (!name) return;
    const query = new URLSearchParams(window.location.search);
    for (const place of ["before", "after"]) query.delete(place); // a view begins at its newest
    write([...read().filter((one) => one.name !== name), { name, query: query.toString() }]);
    field.value = "";
  });
  show(read());
  box.hidden = false;
})();
