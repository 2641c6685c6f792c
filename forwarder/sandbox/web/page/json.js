// JSON as it was sent, cut into tokens and laid out: never parsed, so that numbers, escapes and repeated keys stay what they are.

import { el, plural, visible, visibleLines } from "./text.js";

const TOKEN = /\s+|[{}[\],:]|"[^"\\]*(?:\\.[^"\\]*)*"|[^\s{}[\],:"]+|"/gsy;
const SHOWN = 60000; // characters that are laid out; the rest can be copied
const STRING = 4000; // characters of one token

// The tokens of a text, white space among them. Joined they are the text.
export function tokens(text) {
  return text.match(TOKEN) ?? [];
}

// A block that shows `raw` indented, with a colour for each kind of token.
export function pretty(raw) {
  const block = el("pre", { class: "json", tabindex: 0, role: "group", "aria-label": "JSON, indented" });
  const parts = new Layout(block);
  const all = tokens(raw.slice(0, SHOWN)).filter((token) => token.trim() !== "");
  all.forEach((token, place) => parts.add(token, all[place + 1]));
  if (raw.length > SHOWN) block.append(el("span", { class: "soft" }, `\n… ${plural(raw.length - SHOWN, "character")} more: Copy has all`));
  return block;
}

// A block that shows `raw` as it stands.
export function asSent(raw) {
  const shown = visibleLines(raw.slice(0, SHOWN), SHOWN);
  const block = el("pre", { class: "json sent", tabindex: 0, role: "group", "aria-label": "JSON as sent" }, shown);
  if (raw.length > SHOWN) block.append(el("span", { class: "soft" }, `… ${plural(raw.length - SHOWN, "character")} more: Copy has all`));
  return block;
}

class Layout {
  constructor(block) {
    this.block = block;
    this.depth = 0;
    this.open = []; // for each open bracket, whether it is an object's
    this.key = false;
  }

  add(token, next) {
    if (token === "{" || token === "[") this.begin(token, next);
    else if (token === "}" || token === "]") this.end(token);
    else if (token === ",") this.comma();
    else if (token === ":") this.colon();
    else this.value(token);
    this.last = token;
  }

  begin(token, next) {
    this.text(token);
    this.open.push(token === "{");
    this.key = token === "{";
    if (next !== "}" && next !== "]") this.line(1);
  }

  end(token) {
    this.open.pop();
    if (this.last !== "{" && this.last !== "[") this.line(-1);
    this.text(token);
  }

  comma() {
    this.text(",");
    this.key = this.open.at(-1) === true;
    this.line(0);
  }

  colon() {
    this.text(": ");
    this.key = false;
  }

  value(token) {
    const kind = this.key ? "key" : token.startsWith('"') ? "string" : /^[-\d]/.test(token) ? "number" : "word";
    this.block.append(el("span", { class: kind }, visible(token, STRING)));
  }

  line(change) {
    this.depth = Math.max(0, this.depth + change);
    if (change > 0 && this.open.length < this.depth) this.depth = this.open.length;
    this.text(`\n${"  ".repeat(Math.min(this.depth, 40))}`);
  }

  text(text) {
    this.block.append(text);
  }
}
