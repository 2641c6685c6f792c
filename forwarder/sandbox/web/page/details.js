// One event, request, person or group, or a resource that is managed, whole: asked for when it is opened, by what the address says.

import { tick } from "./ago.js";
import { ask } from "./asking.js";
import { comparison, showDifferences } from "./compare.js";
import { flagsOf } from "./flags.js";
import { asSent, pretty } from "./json.js";
import { badge, button, copyButton, facts, kindBadge, properties, statusBadge } from "./parts.js";
import { patch } from "./patch.js";
import { Persons } from "./persons.js";
import { Resources } from "./resources.js";
import { bytes, count, el, outside, plural, utf8, visible, when } from "./text.js";

const LISTED = 50; // events, ids or headers that are listed
const LIVE = ["person", "group"]; // what changes with what arrives, besides resources
const GOING = 1500; // milliseconds between two looks at what runs

export class Details {
  // `go` opens another item by its name in the address; `filter` lists events, and `list` something else, by filters; `leave` is called
  // when somebody closes the panel, `changed` when something was changed in it, `going` after a while if something in it runs.
  constructor(panel, { go, filter, list, leave, changed, going }) {
    this.panel = panel;
    this.go = go;
    this.filter = filter;
    this.leave = leave;
    this.going = going;
    this.resources = new Resources({ go, filter, list, changed });
    this.persons = new Persons({ go, filterLink: (...value) => this.filterLink(...value) });
    this.shown = "";
    this.asked = 0; // times that something was opened or closed
    this.looked = 0; // times that what is open was asked for again
    this.timer = 0;
  }

  async open(name) {
    if (name === this.shown) return;
    const before = this.shown;
    this.shown = name;
    const turn = (this.asked += 1);
    const content = await this.content(name).catch((error) => this.failed(error));
    if (turn !== this.asked) return;
    if (item(before) === item(name) && !this.panel.hidden) {
      this.patch(content); // the same with another question: where somebody is in it stays
      return;
    }
    this.panel.replaceChildren(...content);
    this.watch();
    this.panel.hidden = false;
    this.panel.scrollTop = 0;
    showDifferences(this.panel);
    this.panel.focus({ preventScroll: false });
  }

  // What a name in the address stands for.
  async content(name) {
    const [kind, ...rest] = name.split(":");
    const own = { event: () => this.event(...rest), request: () => this.request(rest[0]), person: () => this.person(rest[0]), group: () => this.group(rest.join(":")) };
    if (Object.hasOwn(own, kind)) return (await own[kind]()) ?? this.missing();
    const found = await this.resources.whole(kind, rest[0], rest.slice(1).join(":"));
    return found ? [this.head(...found.head), ...found.parts] : this.missing();
  }

  // Look whether what is open has changed since it was opened, and show it as it is now, at the same place.
  async again() {
    const [kind] = this.shown.split(":");
    if (!LIVE.includes(kind) && !this.resources.knows(kind)) return;
    const [opened, turn] = [this.asked, (this.looked += 1)];
    const content = await this.content(this.shown).catch(() => null);
    if (opened !== this.asked || turn !== this.looked) return;
    if (content !== null) {
      const focused = [...this.panel.querySelectorAll("button")].indexOf(document.activeElement);
      this.patch(content);
      if (focused >= 0 && !this.panel.contains(document.activeElement)) (this.panel.querySelectorAll("button")[focused] ?? this.panel).focus({ preventScroll: true });
    }
    this.watch();
  }

  // Show what differs; times that only got older don't.
  patch(content) {
    tick(this.panel);
    patch(this.panel, content);
  }

  // Look again soon while something in the panel runs.
  watch() {
    clearTimeout(this.timer);
    if (this.panel.querySelector("[data-running]")) this.timer = setTimeout(this.going, GOING);
  }

  close() {
    if (!this.shown) return;
    this.asked += 1;
    clearTimeout(this.timer);
    this.shown = "";
    this.panel.hidden = true;
    this.panel.replaceChildren();
  }

  head(title, ...beside) {
    const close = button("Close", () => this.leave(), { "aria-keyshortcuts": "Escape" });
    return el("div", { class: "detail-head" }, el("h2", { id: "detail-title" }, title), ...beside, close);
  }

  missing(words = "The sandbox doesn't hold this (any more).") {
    return [this.head("Not here"), el("p", {}, words)];
  }

  failed(error) {
    return [this.head("Not readable"), el("p", { class: "bad-text" }, `The sandbox didn't answer: ${visible(String(error), 200)}`)];
  }

  async event(uuid, arrival) {
    const { results } = await ask("events", { uuid, arrivals: true, limit: 1000 });
    const event = results.find((each) => String(each.arrival) === arrival);
    if (!event) return null;
    const first = event.first === null ? null : results.find((each) => each.arrival === event.first);
    const own = async () => (event.warnings.length ? (await ask("warnings", { uuid, limit: LISTED })).results : []);
    const [person, groups, warnings] = await Promise.all([personOf(event), groupsOf(event), own()]);
    const warned = warnings.filter((each) => each.event.arrival === event.arrival);
    return [
      this.head(outside(event.event, 200), kindBadge(event)),
      event.kind === "conflict" && first ? this.conflict(event, first) : "",
      ...this.persons.warned(warned),
      this.factsOf(event, results),
      json(event.raw),
      ...this.personPart(event, person),
      ...this.groupsPart(event, groups),
    ].filter(Boolean);
  }

  conflict(event, first) {
    const words = `This uuid was here already (arrival ${count(first.arrival)}), with other bytes: one event was sent as two.`;
    return el("section", { class: "note bad" }, el("h3", {}, "Conflict"), el("p", {}, words), comparison(first.raw, event.raw));
  }

  factsOf(event, versions) {
    const others = versions.filter((each) => each.api_key === event.api_key && each.arrival !== event.arrival);
    return facts([
      ["distinct_id", this.filterLink("distinct_id", event.distinct_id)],
      ["uuid", outside(event.uuid, 80, "mono")],
      ["happened", when(event.timestamp)],
      ["timestamp sent", event.timestamp_note ? sentInVain(event) : event.timestamp_sent],
      ["received", when(event.received_at)],
      ["request", button(`${count(event.request)}, event ${event.index + 1} of it`, () => this.go(`request:${event.request}`), { class: "link" })],
      ["project key", this.filterLink("api_key", event.api_key, "mono")],
      ["arrival", `${count(event.arrival)}${event.historical ? ", historical" : ""}`],
      ["other arrivals", others.length ? this.arrivals(others) : null],
    ]);
  }

  arrivals(others) {
    const links = others.slice(0, LISTED).map((each) => button(`${count(each.arrival)} (${each.kind})`, () => this.go(`event:${each.uuid}:${each.arrival}`), { class: "link" }));
    return el("span", { class: "links" }, ...links);
  }

  filterLink(name, value, kind = "") {
    if (!value) return null;
    const label = el("span", {}, outside(value, 200, kind));
    return button(label, () => this.filter({ [name]: value }), { class: "link", title: "Show only events with it" });
  }

  personPart(event, person) {
    if (!person) return [el("h3", {}, "Person"), el("p", { class: "soft" }, "None: the event is anonymous, or made no person.")];
    const name = button(el("span", {}, outside(person.distinct_id, 120, "strong")), () => this.go(`person:${person.id}`), { class: "link" });
    return [el("h3", {}, "Person"), el("p", { class: "name" }, name, person.is_identified ? badge("identified", "good") : ""), properties(person.properties)];
  }

  groupsPart(event, groups) {
    return groups.flatMap(([type, key, group]) => [
      el("h3", {}, "Group ", outside(`${type}: ${key}`, 160)),
      group ? properties(group.properties) : el("p", { class: "soft" }, "Named by the event only: no $groupidentify made it."),
    ]);
  }

  async request(number) {
    const { results } = await ask("requests", { offset: Number(number) - 1, limit: 1 });
    const request = results.find((each) => String(each.request) === number);
    if (!request) return null;
    const { count: total, results: events } = await ask("events", { request: number, arrivals: true, limit: LISTED });
    return [
      this.head(`Request ${count(request.request)}`, statusBadge(request.status)),
      request.error ? el("p", { class: "note bad" }, outside(request.error, 1000)) : "",
      this.requestFacts(request),
      ...this.notIngested(request),
      ...this.eventsOf(events, total),
      el("h3", {}, "Headers"),
      properties(request.headers),
    ].filter(Boolean);
  }

  requestFacts(request) {
    return facts([
      ["path", outside(`${request.method} ${request.path}`, 500, "mono")],
      ["query", request.query ? outside(request.query, 1000, "mono") : null],
      ["answer", outside(`${request.status} ${request.answer}`, 1000, "mono")],
      ["received", when(request.received_at)],
      ["encoding", request.encoding],
      ["size", `${bytes(request.size)} on the wire`],
      ["events", `${count(request.arrivals)} kept: ${plural(request.duplicates, "duplicate")} and ${plural(request.conflicts, "conflict")} among them`],
      ["project key", this.filterLink("api_key", request.api_key, "mono")],
      ["historical", request.historical ? "yes" : null],
    ]);
  }

  notIngested(request) {
    const lost = request.not_ingested;
    if (!lost.length) return [];
    const shown = lost.slice(0, LISTED).flatMap((each) => [
      el("p", { class: "bad-text" }, `Event ${count(each.index + 1)}: ${visible(each.reason, 80)}`),
      each.raw ? asSent(each.raw) : "",
    ]);
    const more = lost.length > LISTED ? el("p", { class: "soft" }, `${count(lost.length - LISTED)} more`) : "";
    return [el("section", { class: "note bad" }, el("h3", {}, `${plural(lost.length, "event")} not ingested`), ...shown, more)];
  }

  eventsOf(events, total) {
    if (!total) return [];
    const items = events.map((event) => {
      const name = el("span", {}, outside(event.event, 120, "strong"), " ", outside(event.distinct_id, 60, "soft"));
      return el("li", {}, button(name, () => this.go(`event:${event.uuid}:${event.arrival}`), { class: "link" }), kindBadge(event));
    });
    const more = total > events.length ? [el("li", { class: "soft" }, `${count(total - events.length)} more`)] : [];
    return [el("h3", {}, plural(total, "event")), el("ul", { class: "plain" }, ...items, ...more)];
  }

  async person(id) {
    const person = (await ask("persons", { person: id, limit: 1 })).results[0];
    if (!person) return this.missing("No person has this id: it was merged into another one, or everything was cleared.");
    const [found, { count: total, results }, flags] = await Promise.all([ask(`persons/${person.id}`), ask("events", { person: id, order: "newest", limit: LISTED }), flagsOf(person, this.go)]);
    return [
      this.head(outside(person.distinct_id, 200), person.is_identified ? badge("identified", "good") : badge("not identified")),
      ...this.persons.parts(found),
      ...flags,
      ...this.eventsOf(results, total),
    ];
  }

  async group(name) {
    const [type, key, project] = JSON.parse(name);
    const group = (await ask("groups", { group_type: type, group_key: key })).results.find((each) => each.api_key === project);
    if (!group) return this.missing("No $groupidentify made this group, or everything was cleared.");
    const { count: total, results: found } = await ask("events", { group_type: type, group_key: key, order: "newest", limit: LISTED });
    const events = found.filter((each) => each.api_key === project);
    const own = events.length === found.length; // else another project has a group of that name, and events of both are counted
    return [
      this.head(outside(group.group_key, 200), badge(group.group_type)),
      facts([["made", when(group.created_at)], ["changed", when(group.updated_at)], ["project key", this.filterLink("api_key", group.api_key, "mono")]]),
      el("h3", {}, "Properties"),
      properties(group.properties),
      ...this.eventsOf(events, own ? total : events.length),
    ];
  }
}

// What a name in the address opens, without what is asked about it: `flag:1` of `flag:1:{"distinct_id": "ann"}`.
function item(name) {
  return name.startsWith("flag:") ? name.split(":", 2).join(":") : name;
}

async function personOf(event) {
  return event.person ? (await ask("persons", { person: event.person, limit: 1 })).results[0] : null;
}

async function groupsOf(event) {
  const named = Object.entries(event.groups ?? {}).slice(0, 5);
  return Promise.all(
    named.map(async ([type, key]) => {
      const { results } = await ask("groups", { group_type: type, group_key: key });
      return [type, String(key), results.find((each) => each.api_key === event.api_key)];
    }),
  );
}

// A timestamp that didn't become the event's time, and why.
function sentInVain(event) {
  return el("span", {}, outside(event.timestamp_sent, 200, "mono"), el("span", { class: "bad-text" }, `: ${visible(event.timestamp_note, 200)}`));
}

// The event's JSON, laid out or as it was sent, to be copied as it was sent.
function json(raw) {
  const part = el("section", { class: "raw" });
  let block = pretty(raw);
  const toggle = button("As sent", () => {
    const sent = toggle.getAttribute("aria-pressed") !== "true";
    toggle.setAttribute("aria-pressed", String(sent));
    const next = sent ? asSent(raw) : pretty(raw);
    block.replaceWith(next);
    block = next;
  }, { "aria-pressed": "false" });
  const head = el("div", { class: "detail-head" }, el("h3", {}, "JSON ", el("span", { class: "soft" }, bytes(utf8(raw).length))), toggle, copyButton(() => raw, () => block));
  part.append(head, block);
  return part;
}
