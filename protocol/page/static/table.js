// Tables that sort. A column: { name, of (row → what is sorted by), show (row → element or text), num, rank (2, 3: left out on narrow screens) }.

import { el, empty, put } from "./dom.js";

export function table(label, columns, { sort = null, down = true, none = "Nothing yet.", onSort = null } = {}) {
  const state = { sort, down, rows: [] };
  const outer = el("div", {}, empty("loading"));

  const cell = (tag, column, ...rest) => el(tag, { class: `${column.num ? "num" : ""} ${column.wide ? "wide" : ""} ${column.rank ? `p${column.rank}` : ""}`.trim() || null }, ...rest);

  function head(column) {
    const made = cell("th", column);
    made.scope = "col";
    if (column.title) made.title = column.title;
    if (!column.of && !column.key) {
      made.append(column.name);
      return made;
    }
    const key = column.key ?? column.name;
    if (state.sort === key) made.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    made.append(el("button", { type: "button", onclick: () => turn(key, column) }, column.name));
    return made;
  }

  function turn(key, column) {
    state.down = state.sort === key ? !state.down : Boolean(column.num);
    state.sort = key;
    if (onSort) onSort(state.sort, state.down);
    draw();
    [...outer.querySelectorAll("th button")].find((button) => button.textContent === column.name)?.focus();
  }

  function ordered() {
    const column = columns.find((each) => each.of && (each.key ?? each.name) === state.sort);
    if (!column || onSort) return state.rows;
    const known = state.rows.filter((row) => column.of(row) !== null && column.of(row) !== undefined);
    const unknown = state.rows.filter((row) => !known.includes(row));
    known.sort((a, b) => (column.of(a) < column.of(b) ? -1 : column.of(a) > column.of(b) ? 1 : 0) * (state.down ? -1 : 1));
    return [...known, ...unknown];
  }

  function draw() {
    if (!state.rows.length) {
      put(outer, empty(none));
      return;
    }
    const held = outer.querySelector(".scroll");
    const left = held ? held.scrollLeft : 0;
    const rows = ordered().map((row) => el("tr", {}, ...columns.map((column) => cell("td", column, column.show(row)))));
    const made = el("table", {}, el("caption", { class: "hidden" }, label), el("thead", {}, el("tr", {}, ...columns.map(head))), el("tbody", {}, ...rows));
    const scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, made);
    const focused = outer.contains(document.activeElement) ? document.activeElement.textContent : null;
    put(outer, scroll);
    scroll.scrollLeft = left;
    if (focused) [...outer.querySelectorAll("button, a")].find((each) => each.textContent === focused)?.focus({ preventScroll: true });
  }

  return { outer, show(rows) { state.rows = rows; draw(); }, get sort() { return state.sort; }, get down() { return state.down; } };
}
