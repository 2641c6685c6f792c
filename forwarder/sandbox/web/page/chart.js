// Events per second over five minutes: a bar a second, and a mark above it where a conflict or a refusal was.

import { ago, follow } from "./ago.js";
import { count, plural } from "./text.js";

const SECONDS = 300;
const HEIGHT = 100;
const MARKS = 12; // of the height, kept free above the bars

export class Chart {
  constructor(svg, rate, peak) {
    this.svg = svg;
    this.rate = rate;
    this.peak = peak;
    this.seconds = new Map(); // second since 1970 -> [events, conflicts, refused]
    this.ahead = 0; // how far the sandbox's clock is ahead of this one, in seconds
    this.grid = this.path("grid");
    this.bars = this.path("bars");
    this.marks = this.path("marks");
    this.grid.setAttribute("d", [1, 2, 3, 4].map((minute) => `M${minute * 60} 0v${HEIGHT}`).join(""));
    svg.addEventListener("pointermove", (event) => this.point(event));
    svg.addEventListener("pointerleave", () => this.draw());
    setInterval(() => this.draw(), 1000);
  }

  path(kind) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
    made.setAttribute("class", kind);
    this.svg.append(made);
    return made;
  }

  add({ start, events, conflicts, refused }) {
    this.ahead = start + events.length - 1 - Math.floor(Date.now() / 1000);
    follow(Math.abs(this.ahead) > 1 ? this.ahead * 1000 : 0);
    events.forEach((number, place) => this.seconds.set(start + place, [number, conflicts[place], refused[place]]));
    for (const second of this.seconds.keys()) if (second < this.now() - SECONDS) this.seconds.delete(second);
    this.draw();
  }

  clear() {
    this.seconds.clear();
    this.draw();
  }

  now() {
    return Math.floor(Date.now() / 1000) + this.ahead;
  }

  at(second) {
    return this.seconds.get(second) ?? [0, 0, 0];
  }

  draw() {
    const shown = this.shown();
    const most = Math.max(1, ...shown.map(([events]) => events));
    const height = (events) => Math.max(1.5, (events / most) * (HEIGHT - MARKS));
    this.bars.setAttribute("d", shown.map(([events], x) => (events ? `M${x} ${HEIGHT}v${-height(events).toFixed(1)}h.9v${height(events).toFixed(1)}z` : "")).join(""));
    this.marks.setAttribute("d", shown.map(([, conflicts, refused], x) => (conflicts || refused ? `M${Math.max(0, x - 1)} 0h3v8h-3z` : "")).join(""));
    this.tell(shown, most);
  }

  shown() {
    const first = this.now() - SECONDS + 1;
    return Array.from({ length: SECONDS }, (_, place) => this.at(first + place));
  }

  tell(shown, most) {
    const last = shown.slice(-6, -1); // whole seconds: the one under way isn't
    const mean = last.reduce((sum, [events]) => sum + events, 0) / last.length;
    const bad = shown.reduce((sum, [, conflicts, refused]) => [sum[0] + conflicts, sum[1] + refused], [0, 0]);
    const problems = `${plural(bad[0], "conflict")}, ${plural(bad[1], "refusal")}`;
    this.rate.textContent = `${mean > 0 && mean < 10 ? mean.toFixed(1) : count(Math.round(mean))}/s`;
    this.peak.textContent = `peak ${count(most)}/s${bad[0] || bad[1] ? ` · ${problems}` : ""}`;
    this.svg.setAttribute("aria-label", `Events per second in the last five minutes: ${this.rate.textContent} now, at most ${count(most)}; ${problems}`);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const second = this.now() - SECONDS + 1 + Math.floor(((event.clientX - box.left) / box.width) * SECONDS);
    const [events, conflicts, refused] = this.at(second);
    this.rate.textContent = `${ago(second * 1000)}: ${plural(events, "event")}${conflicts ? `, ${plural(conflicts, "conflict")}` : ""}${refused ? `, ${plural(refused, "refusal")}` : ""}`;
  }
}
