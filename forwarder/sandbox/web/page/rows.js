// A list of rows, the newest on top: bounded, drawn once a frame however much comes, and walked through by keyboard.

import { MANAGED } from "./managed.js";
import { COLUMNS } from "./parts.js";
import { el } from "./text.js";

export const MOST = 500; // rows that are kept
const AT_ONCE = 100; // rows that are drawn in one frame

export class Rows {
  // `open` is called with a row's item when somebody opens it, `drawn` after rows were drawn.
  constructor(kind, title, open, drawn = () => {}) {
    this.drawn = drawn;
    this.columns = COLUMNS[kind] ?? MANAGED[kind];
    this.openRow = open;
    this.items = new Map(); // key -> item, the oldest first
    this.rows = new Map(); // key -> row
    this.waiting = [];
    this.shown = ""; // what is open, by its name in the address
    this.stop = null; // the row that Tab leads to: the newest, until somebody was at another
    this.visited = false;
    this.frame = 0;
    this.body = el("tbody", { role: "rowgroup" });
    const heads = this.columns.heads.map((head) => el("th", { role: "columnheader", scope: "col", "data-managed": this.columns.managed }, head));
    this.table = el("table", { role: "grid", class: `rows ${kind}`, "aria-label": title, "aria-rowcount": -1 });
    this.table.append(el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads)), this.body);
    this.empty = el("p", { class: "empty soft" });
    this.element = el("div", {}, this.table, this.empty);
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.body.addEventListener("focusin", (event) => this.visit(event.target.closest("tr")));
  }

  get count() {
    return this.items.size;
  }

  // Whether there are rows that are not drawn yet.
  get drawing() {
    return this.waiting.length > 0;
  }

  // Put an item on top; soon, not at once.
  add(item) {
    if (this.waiting.push(item) > 2 * MOST) this.waiting = this.waiting.slice(-MOST);
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  // Show these and no others, the first on top.
  set(items) {
    this.clear();
    for (const item of items.toReversed()) this.put(item);
  }

  clear() {
    this.waiting = [];
    this.items.clear();
    this.rows.clear();
    this.stop = null;
    this.visited = false;
    this.body.replaceChildren();
    this.empty.hidden = false;
  }

  // `words` are a text, or parts of it.
  say(words) {
    this.empty.hidden = this.count > 0;
    if (!this.empty.hidden) this.empty.replaceChildren(...[words].flat());
  }

  // Let a row stand out for some milliseconds.
  mark(key, time) {
    const row = this.rows.get(key);
    row.classList.add("fresh");
    setTimeout(() => row.classList.remove("fresh"), time);
  }

  draw() {
    this.frame = 0;
    for (const item of this.waiting.splice(0, AT_ONCE)) this.put(item);
    if (this.waiting.length) this.frame = requestAnimationFrame(() => this.draw());
    this.drawn();
  }

  put(item) {
    const key = this.columns.key(item);
    if (this.items.has(key)) return;
    const row = this.row(key, item);
    this.items.set(key, item);
    this.rows.set(key, row);
    this.body.prepend(row);
    this.empty.hidden = true;
    if (this.items.size > MOST) this.drop(this.items.keys().next().value);
    if (!this.visited) this.settle(row);
  }

  row(key, item) {
    const row = el("tr", { role: "row", tabindex: -1, class: this.columns.bad(item) ? "row bad" : "row", "data-key": key });
    this.columns.cells(item).forEach((cell, place) => row.append(el("td", { role: "gridcell", "data-head": this.columns.heads[place], "data-managed": this.columns.managed }, cell)));
    this.select(key, row, item);
    return row;
  }

  drop(key) {
    const row = this.rows.get(key);
    const before = row.previousElementSibling;
    if (row.contains(document.activeElement)) before?.focus();
    if (row === this.stop && before) this.settle(before);
    row.remove();
    this.rows.delete(key);
    this.items.delete(key);
  }

  clicked(event) {
    const row = event.target.closest("tr");
    if (!row || getSelection().toString()) return;
    this.visit(row);
    this.openRow(this.items.get(row.dataset.key));
  }

  // Somebody is at this row: Tab leads to it from now on, whatever comes on top.
  visit(row) {
    this.visited = true;
    this.settle(row);
  }

  // Let Tab lead to this row.
  settle(row) {
    if (this.stop) this.stop.tabIndex = -1;
    this.stop = row;
    row.tabIndex = 0;
  }

  // Mark the row whose details are shown, also if it comes later.
  choose(open) {
    this.shown = open;
    this.chosen = undefined;
    for (const [key, row] of this.rows) this.select(key, row, this.items.get(key));
  }

  // Whoever closes what a row opened is back at that row.
  select(key, row, item) {
    const name = this.columns.open(item);
    const chosen = this.shown === name || this.shown.startsWith(`${name}:`);
    row.setAttribute("aria-selected", String(chosen));
    if (!chosen) return;
    this.chosen = key;
    this.visit(row);
  }

  focus() {
    (this.rows.get(this.chosen) ?? this.stop)?.focus();
  }

  // Whether a key was one that moves or opens.
  pressed(event) {
    const row = this.body.contains(document.activeElement) ? document.activeElement.closest("tr") : null;
    if (event.key === "Enter" || event.key === " ") return this.enter(row);
    const steps = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (steps === undefined || (!row && !"jk".includes(event.key))) return false;
    this.move(row, steps);
    return true;
  }

  enter(row) {
    if (!row) return false;
    this.openRow(this.items.get(row.dataset.key));
    return true;
  }

  move(row, steps) {
    const all = [...this.body.children];
    if (!all.length) return;
    const from = row ? all.indexOf(row) : -1;
    const to = row ? Math.min(all.length - 1, Math.max(0, from + steps)) : Math.max(0, all.indexOf(this.stop));
    all[to].focus();
    all[to].scrollIntoView({ block: "nearest" });
  }
}
