// Lists that are asked for a page at a time, and again when there is more, or what they hold may have changed.

import { Rows } from "./rows.js";
import { count } from "./text.js";

const SIZE = 100;
const AGAIN = 2000; // milliseconds between two questions, at least
const FRESH = 4000; // milliseconds for which a row that is new or changed is marked

export class Listing {
  // `changed` is called whenever what there is to say about the page has changed. `wanted` makes the parameters of a view, `empty` says what
  // to do where there is nothing; with `marks`, a row that is new or changed is marked for a while.
  constructor(kind, title, open, changed, { wanted, empty, marks = false }) {
    this.kind = kind;
    this.rows = new Rows(kind, title, open);
    this.changed = changed;
    this.parameters = wanted;
    this.empty = empty;
    this.marks = marks;
    this.offset = 0;
    this.total = 0;
    this.asked = 0;
    this.at = 0;
    this.timer = 0;
    this.wanted = "";
    this.known = null; // key -> item as text, of the page that is shown
    this.masked = "";
  }

  // Show those that the filter lets through, from the newest on.
  show(view) {
    const wanted = new URLSearchParams({ order: "newest", limit: SIZE });
    for (const [name, value] of Object.entries(this.parameters(view))) if (value) wanted.set(name, value);
    this.view = view;
    this.masked = wanted.get("api_key")?.includes("…") ? wanted.get("api_key") : ""; // the sandbox takes keys in full only
    if (this.masked) wanted.delete("api_key");
    if (String(wanted) !== this.wanted) this.begin(String(wanted), 0);
    return this.ask();
  }

  begin(wanted, offset) {
    this.wanted = wanted;
    this.offset = offset;
    this.known = null;
  }

  // Ask again, but not more often than is good.
  soon() {
    this.timer ||= setTimeout(() => this.ask(), Math.max(0, this.at + AGAIN - Date.now()));
  }

  turn(pages) {
    this.begin(this.wanted, Math.max(0, this.offset + pages * SIZE));
    return this.ask();
  }

  async ask() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.at = Date.now();
    const turn = (this.asked += 1);
    const answer = await fetch(`sandbox/${this.kind}?${this.wanted}&offset=${this.offset}`).then((response) => response.json()).catch(() => null);
    if (answer === null || turn !== this.asked) return;
    this.total = answer.count;
    this.put(answer.results.filter((item) => !this.masked || item.api_key === this.masked));
    this.rows.say(this.empty(this.view));
    this.changed();
  }

  put(items) {
    const focused = this.rows.body.contains(document.activeElement) ? document.activeElement.closest("tr").dataset.key : null;
    const text = JSON.stringify(items);
    if (text !== this.text) {
      this.rows.set(items);
      this.rows.rows.get(focused)?.focus({ preventScroll: true });
    }
    this.text = text;
    this.mark(items);
  }

  mark(items) {
    const known = new Map(items.map((item) => [this.rows.columns.key(item), JSON.stringify(item)]));
    if (this.marks && this.known) {
      for (const [key, text] of known) if (this.known.get(key) !== text) this.rows.mark(key, FRESH);
    }
    this.known = known;
  }

  // Whether what is shown is what was asked for.
  get loaded() {
    return this.known !== null;
  }

  get more() {
    return this.offset + SIZE < this.total;
  }

  get words() {
    if (!this.total) return "";
    const last = Math.min(this.total, this.offset + SIZE);
    return this.total <= SIZE ? `${count(this.total)} in all` : `${count(this.offset + 1)}–${count(last)} of ${count(this.total)}`;
  }
}
