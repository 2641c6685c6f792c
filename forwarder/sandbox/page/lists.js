// Persons and groups: a page at a time, asked for again when there are more of them or what they hold may have changed.

import { Rows } from "./rows.js";
import { count } from "./text.js";

const SIZE = 100;
const AGAIN = 2000; // milliseconds between two questions, at least

export class Listing {
  // `told` is called whenever what there is to say about the page has changed.
  constructor(kind, title, open, told) {
    this.kind = kind;
    this.rows = new Rows(kind, title, open);
    this.told = told;
    this.offset = 0;
    this.total = 0;
    this.asked = 0;
    this.timer = 0;
    this.wanted = "";
    this.masked = "";
  }

  // Show those that the filter lets through, from the newest on.
  show(view) {
    const wanted = new URLSearchParams({ order: "newest", limit: SIZE });
    this.masked = view.api_key.includes("…") ? view.api_key : ""; // the sandbox takes keys in full only
    if (view.api_key && !this.masked) wanted.set("api_key", view.api_key);
    if (this.kind === "persons" && view.distinct_id) wanted.set("distinct_id", view.distinct_id);
    if (String(wanted) !== this.wanted) this.offset = 0;
    this.wanted = String(wanted);
    return this.ask();
  }

  // Ask again, but not more often than is good.
  soon() {
    this.timer ||= setTimeout(() => this.ask(), AGAIN);
  }

  turn(pages) {
    this.offset = Math.max(0, this.offset + pages * SIZE);
    return this.ask();
  }

  async ask() {
    clearTimeout(this.timer);
    this.timer = 0;
    const turn = (this.asked += 1);
    const answer = await fetch(`sandbox/${this.kind}?${this.wanted}&offset=${this.offset}`).then((response) => response.json()).catch(() => null);
    if (answer === null || turn !== this.asked) return;
    this.total = answer.count;
    this.put(answer.results.filter((item) => !this.masked || item.api_key === this.masked));
    this.rows.say(this.kind === "persons" ? "No persons yet: an event with a person's properties, or $identify, makes one." : "No groups yet: $groupidentify makes one.");
    this.told();
  }

  put(items) {
    const focused = this.rows.body.contains(document.activeElement) ? document.activeElement.closest("tr").dataset.key : null;
    const text = JSON.stringify(items);
    if (text === this.text) return;
    this.text = text;
    this.rows.set(items);
    this.rows.rows.get(focused)?.focus();
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
