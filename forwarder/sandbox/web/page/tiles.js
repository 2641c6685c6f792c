// The figures of everything that has arrived. Each leads to the list of what it counts.

import { count, el } from "./text.js";

const TILES = [
  ["requests", "Requests", "requests", false],
  ["events", "Events", "events", false],
  ["duplicates", "Duplicates", "events", false],
  ["conflicts", "Conflicts", "events", true],
  ["not_ingested", "Not ingested", "requests", true],
  ["refused", "Refused", "requests", true],
  ["persons", "Persons", "persons", false],
  ["groups", "Groups", "groups", false],
];

export class Tiles {
  // `lead` is called with a tab, and whether only problems are wanted, when somebody follows a figure.
  constructor(place, lead) {
    this.tiles = TILES.map(([name, label, leads, problem]) => {
      const figure = el("span", { class: "figure" }, "–");
      const tile = el("button", { type: "button", class: "card tile", id: `tile-${name}` }, el("span", { class: "label" }, label), figure);
      tile.addEventListener("click", () => lead(leads, problem));
      place.append(tile);
      return { name, problem, tile, figure };
    });
  }

  set(summary) {
    for (const { name, problem, tile, figure } of this.tiles) {
      figure.textContent = count(summary[name] ?? 0);
      tile.classList.toggle("bad", problem && summary[name] > 0);
    }
  }
}
