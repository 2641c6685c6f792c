// Small parts that lists and details are made of.

import { bytes, count, el, outside, plural, visible, when } from "./text.js";
import { said } from "./warnings.js";

export function badge(word, mood = "") {
  return el("span", { class: `pill ${mood}`.trim() }, visible(word, 40));
}

// What an arrival was, beside those before it; nothing for a new one, which most are.
export function kindBadge(event) {
  if (event.kind === "conflict") return badge("conflict", "bad");
  return event.kind === "duplicate" ? badge("duplicate") : "";
}

export function statusBadge(status) {
  return badge(String(status), status >= 400 ? "bad" : "good");
}

// What is wrong with a request, in words; empty if nothing is.
export function problems(request) {
  const found = [];
  if (request.conflicts) found.push(plural(request.conflicts, "conflict"));
  if (request.not_ingested.length) found.push(`${count(request.not_ingested.length)} not ingested`);
  if (request.error) found.push(visible(request.error, 160));
  return found.join(", ");
}

// A few of an event's properties on one line; those of the SDK itself, whose names begin with `$`, come last.
export function glance(properties) {
  const entries = Object.entries(properties ?? {}).sort(([one], [other]) => one.startsWith("$") - other.startsWith("$"));
  return entries.slice(0, 8).map(([name, value]) => `${name}: ${brief(value)}`).join("  ·  ").slice(0, 240);
}

function brief(value) {
  if (typeof value === "string") return value.slice(0, 60);
  return (JSON.stringify(value) ?? "").slice(0, 60);
}

// A list of terms and what they are; pairs without a value are left out.
export function facts(pairs) {
  const list = el("dl", { class: "facts" });
  for (const [term, value] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    list.append(el("dt", {}, term), el("dd", {}, typeof value === "string" ? outside(value, 1000) : value));
  }
  return list;
}

// Properties as a table: names and values, as they were set.
export function properties(values) {
  const names = Object.keys(values);
  if (!names.length) return el("p", { class: "soft" }, "No properties.");
  const shown = names.slice(0, 200);
  const list = facts(shown.map((name) => [visible(name, 100), outside(propertyText(values[name]), 1000, "mono")]));
  list.classList.add("properties");
  if (names.length > shown.length) list.append(el("dt", {}, "…"), el("dd", {}, `${plural(names.length - shown.length, "property", "properties")} more`));
  return list;
}

// A property's value: a text as it is, anything else as JSON.
export function propertyText(value) {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}

export function button(label, act, more = {}) {
  const made = el("button", { type: "button", ...more }, label);
  made.addEventListener("click", act);
  return made;
}

// A button that copies what `text` gives; where a browser lets no page do that, it selects `block` instead. `what` is said to who can't see
// what it stands beside.
export function copyButton(text, block, what = "") {
  const made = button("", async () => {
    const done = await navigator.clipboard?.writeText(text()).then(() => true, () => false);
    if (!done) getSelection().selectAllChildren(block());
    made.textContent = done ? "Copied" : "Selected";
    setTimeout(rest, 1500);
  });
  const rest = () => made.replaceChildren("Copy", ...(what ? [el("span", { class: "unseen" }, ` ${what}`)] : []));
  rest();
  return made;
}

// A value that somebody will need elsewhere.
export function copied(text, what) {
  const shown = outside(text, 200, "mono");
  return el("span", { class: "copied" }, shown, copyButton(() => text, () => shown, what));
}

// The cells of a row, per list.
export const COLUMNS = {
  events: {
    heads: ["Time", "Event", "Distinct id", "Properties", "Key"],
    cells: (event) => [
      when(event.received_at),
      el("span", { class: "name" }, outside(event.event, 120, "strong"), kindBadge(event)),
      outside(event.distinct_id, 80),
      outside(event.raw === "" ? "large: open it to see it" : glance(event.properties), 240, "soft"),
      outside(event.api_key ?? "", 40, "mono soft"),
    ],
    key: (event) => String(event.arrival),
    open: (event) => `event:${event.uuid}:${event.arrival}`,
    bad: (event) => event.kind === "conflict",
    words: (event) => `${visible(event.event, 80)}${event.kind === "conflict" ? ", conflict" : ""}`,
  },
  requests: {
    heads: ["Time", "Path", "Answer", "Encoding", "Size", "Events", "What was wrong", "Key"],
    cells: (request) => [
      when(request.received_at),
      outside(request.method === "POST" ? request.path : `${request.method} ${request.path}`, 120, "mono strong"),
      statusBadge(request.status),
      outside(request.encoding ?? "–", 40, "soft"),
      el("span", { class: "numbers" }, bytes(request.size)),
      el("span", { class: "numbers" }, count(request.arrivals)),
      el("span", { class: "bad-text" }, problems(request)),
      outside(request.api_key ?? "", 40, "mono soft"),
    ],
    key: (request) => String(request.request),
    open: (request) => `request:${request.request}`,
    bad: (request) => problems(request) !== "" || request.status >= 400,
    words: (request) => `${visible(request.path, 80)}, answered ${request.status}`,
  },
  persons: {
    heads: ["Made", "Person", "Known as", "Properties", "Key"],
    cells: (person) => [
      when(person.created_at),
      el("span", { class: "name" }, outside(person.distinct_id, 120, "strong"), person.is_identified ? badge("identified", "good") : ""),
      el("span", {}, plural(person.distinct_ids.length, "id")),
      outside(glance(person.properties), 240, "soft"),
      outside(person.api_key ?? "", 40, "mono soft"),
    ],
    key: (person) => person.id,
    open: (person) => `person:${person.id}`,
    bad: () => false,
    words: (person) => visible(person.distinct_id, 80),
  },
  groups: {
    heads: ["Changed", "Group", "Type", "Properties", "Key"],
    cells: (group) => [
      when(group.updated_at),
      outside(group.group_key, 120, "strong"),
      outside(group.group_type, 60),
      outside(glance(group.properties), 240, "soft"),
      outside(group.api_key ?? "", 40, "mono soft"),
    ],
    key: (group) => JSON.stringify([group.api_key, group.group_type, group.group_key]),
    open: (group) => `group:${JSON.stringify([group.group_type, group.group_key, group.api_key])}`,
    bad: () => false,
    words: (group) => visible(group.group_key, 80),
  },
  warnings: {
    heads: ["Time", "Warning", "Distinct id", "What happened", "Key"],
    cells: (warning) => [
      when(warning.event.timestamp),
      outside(warning.type, 80, "mono strong"),
      outside(warning.event.distinct_id, 80),
      el("span", { class: "soft" }, ...said(warning)),
      outside(warning.api_key ?? "", 40, "mono soft"),
    ],
    key: (warning) => String(warning.id),
    open: (warning) => `event:${warning.event.uuid}:${warning.event.arrival}`,
    bad: () => false,
    words: (warning) => visible(warning.type, 80),
  },
};
