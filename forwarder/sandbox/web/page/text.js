// Text from outside, made safe to look at: it only ever becomes text, never markup, and nothing in it can hide or reorder what stands beside it.

import { ago } from "./ago.js";

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;

// What can't be seen, or turns the direction of what follows, as a sign that can: NUL is ␀, others are their code points.
export function visible(text, most = 2000) {
  const cut = text.length > most ? text.slice(0, most) : text;
  const shown = cut.replace(HIDDEN, (sign) => {
    const code = sign.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return code === 0x7f ? "\u2421" : `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
  return cut.length < text.length ? `${shown}… (${count(text.length)} characters)` : shown;
}

// As `visible`, but lines stay lines: for text that is shown as a block.
export function visibleLines(text, most) {
  return text.split("\n").map((line) => visible(line, most)).join("\n");
}

// An element. `more` are attributes; `class` among them. Strings among the children become text.
export function el(tag, more = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(more)) {
    if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children);
  return made;
}

// Whether two lists of nodes show the same.
export function alike(some, others) {
  return some.length === others.length && [...some].every((node, place) => node.isEqualNode(others[place]));
}

// Text from outside in an element of its own, whose direction is its own affair.
export function outside(text, most = 300, kind = "") {
  return el("bdi", { class: kind || undefined, title: text.length > 40 ? visible(text, 1000) : undefined }, visible(text, most));
}

export function count(number) {
  return number.toLocaleString("en-GB");
}

export function bytes(number) {
  if (number < 1024) return `${number} B`;
  return number < 1048576 ? `${(number / 1024).toFixed(1)} KiB` : `${(number / 1048576).toFixed(1)} MiB`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

const EXACT = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "short" });

// An ISO 8601 time as it is seen from now, or in words; its title is the exact one, in the reader's zone.
export function when(iso, words = "") {
  const time = Date.parse(iso);
  if (Number.isNaN(time)) return el("time", {}, visible(String(iso), 40));
  return el("time", { datetime: iso, title: EXACT.format(time), "data-ago": !words }, words || ago(time));
}

export function utf8(text) {
  return new TextEncoder().encode(text);
}
