// Two versions of one event, byte by byte: where they differ first, and which tokens of each the other one hasn't.

import { tokens } from "./json.js";
import { count, el, utf8, visible } from "./text.js";

const MOST = 600; // differing tokens of each version that are compared one by one; beyond, the whole stretch counts as different
const BEFORE = 2000; // characters before the first difference that are compared token by token
const LONGEST = 100000; // characters of each version that are
const AROUND = 4000; // characters that are shown of what both begin or end with

// What a person needs to see that two versions differ, and where.
export function comparison(first, second) {
  const place = firstDifference(utf8(first), utf8(second));
  const from = Math.max(0, (firstDifference(first, second) ?? 0) - BEFORE);
  const [one, other] = differences(first.slice(from, from + LONGEST), second.slice(from, from + LONGEST));
  const sizes = `${count(utf8(first).length)} and ${count(utf8(second).length)} bytes`;
  return el(
    "div",
    { class: "comparison" },
    el("p", {}, place === null ? "Every byte is equal." : `They differ from byte ${count(place)} on (${sizes}). What the other version hasn't is marked.`),
    el("div", { class: "versions" }, version("First version", one), version("This version", other)),
  );
}

// Let each version show where it differs from the other one.
export function showDifferences(part) {
  for (const place of part.querySelectorAll(".comparison [data-difference]")) {
    const block = place.closest("pre");
    const above = place.getBoundingClientRect().top - block.getBoundingClientRect().top;
    block.scrollTop += above - block.clientHeight / 3;
  }
  part.querySelector(".versions")?.scrollIntoView({ block: "nearest" });
}

// The first index at which two texts, or two runs of bytes, differ; null if they are equal.
export function firstDifference(first, second) {
  const shorter = Math.min(first.length, second.length);
  for (let place = 0; place < shorter; place += 1) if (first[place] !== second[place]) return place;
  return first.length === second.length ? null : shorter;
}

// Both texts as runs `[text, differs]`, in order; joined they are the texts.
export function differences(first, second) {
  const [one, other] = [tokens(first), tokens(second)];
  const head = common(one, other, (list, place) => list[place]);
  const rest = [one.slice(head), other.slice(head)];
  const tail = common(...rest, (list, place) => list[list.length - 1 - place]);
  const middles = rest.map((list) => list.slice(0, list.length - tail));
  const same = longest(...middles);
  return [one, other].map((list, side) => runs(list.slice(0, head), middles[side], same[side], tail ? list.slice(-tail) : []));
}

function common(one, other, at) {
  const most = Math.min(one.length, other.length);
  let length = 0;
  while (length < most && at(one, length) === at(other, length)) length += 1;
  return length;
}

// Which tokens of each belong to their longest common sequence, as two sets of indices.
function longest(one, other) {
  if (one.length > MOST || other.length > MOST) return [new Set(), new Set()];
  const lengths = Array.from({ length: one.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i -= 1) {
    for (let j = other.length - 1; j >= 0; j -= 1) {
      lengths[i][j] = one[i] === other[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  return walk(one, other, lengths);
}

function walk(one, other, lengths) {
  const [inOne, inOther] = [new Set(), new Set()];
  let [i, j] = [0, 0];
  while (i < one.length && j < other.length) {
    if (one[i] === other[j]) {
      inOne.add(i);
      inOther.add(j);
      i += 1;
      j += 1;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i += 1;
    else j += 1;
  }
  return [inOne, inOther];
}

function runs(head, middle, same, tail) {
  const found = [[head.join(""), false]];
  middle.forEach((token, place) => {
    const differs = !same.has(place);
    if (found.at(-1)[1] === differs) found.at(-1)[0] += token;
    else found.push([token, differs]);
  });
  found.push([tail.join(""), false]);
  return found.filter(([text]) => text !== "");
}

function version(title, parts) {
  const block = el("pre", { class: "json sent", tabindex: 0, role: "group", "aria-label": title });
  const first = parts.findIndex(([, differs]) => differs);
  parts.forEach(([text, differs], number) => {
    if (differs) block.append(el("mark", { "data-difference": number === first }, spaced(visible(text, AROUND))));
    else block.append(text.length > AROUND ? `${visible(text.slice(0, AROUND / 2))} … ${visible(text.slice(-AROUND / 2))}` : visible(text, AROUND));
    if (first < 0 && number === 0) block.append(el("span", { "data-difference": true })); // something is missing here that the other one has
  });
  return el("div", {}, el("h4", {}, title), block);
}

// Where nothing but white space differs it must be seen.
function spaced(text) {
  return text.trim() === "" ? text.replaceAll(" ", "␠") : text;
}
