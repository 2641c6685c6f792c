// A person with where everything of it comes from: its properties, distinct ids, merges and groups, and what the service warns about.

import { badge, button, copied, facts, propertyText } from "./parts.js";
import { count, el, outside, plural, visible, when } from "./text.js";
import { OF_MERGES, said } from "./warnings.js";

const LISTED = 50; // distinct ids, merges, groups, warnings
const PROPERTIES = 200;

export class Persons {
  // `go` opens something by its name in the address; `filterLink` makes a link that lists the events with a value.
  constructor({ go, filterLink }) {
    this.go = go;
    this.filterLink = filterLink;
  }

  // The parts of a person's details. `found` is what `/sandbox/persons/{person}` says.
  parts(found) {
    const { person, created_by: first } = found;
    return [
      ...this.warned(found.warnings),
      facts([["id", copied(person.id, "id")], ["made", when(person.created_at)], ["made by", this.by("", first, person)], ["project key", this.filterLink("api_key", person.api_key, "mono")]]),
      ...this.properties(found),
      ...this.ids(person),
      ...this.merges(found),
      ...this.groups(found),
    ];
  }

  // What the service warns about, the newest first.
  warned(warnings) {
    if (!warnings.length) return [];
    const items = warnings.toReversed().slice(0, LISTED).map((warning) =>
      el("li", { "data-key": `warning:${warning.id}` }, el("p", {}, ...said(warning, (id, person) => this.person(id, person))), el("p", { class: "soft" }, el("span", { class: "mono" }, visible(warning.type, 80)), " ", this.by("by", warning.event))),
    );
    return [el("section", { class: "note warn", "data-key": "warnings" }, el("h3", {}, plural(warnings.length, "warning")), el("ul", { class: "plain stacked" }, ...items, ...more(warnings)))];
  }

  properties({ person, sources }) {
    const names = Object.keys(person.properties);
    const head = el("h3", {}, names.length ? plural(names.length, "property", "properties") : "Properties");
    if (!names.length) return [head, el("p", { class: "soft" }, "None.")];
    const list = el("dl", { class: "facts properties", "data-key": "properties" });
    for (const name of names.slice(0, PROPERTIES)) {
      const value = outside(propertyText(person.properties[name]), 1000, "mono");
      list.append(el("dt", { "data-key": `name:${name}` }, visible(name, 100)), el("dd", { "data-key": `value:${name}` }, value, this.source(sources[name], person)));
    }
    if (names.length > PROPERTIES) list.append(el("dt", {}, "…"), el("dd", {}, `${plural(names.length - PROPERTIES, "property", "properties")} more`));
    return [head, list];
  }

  // Where a property comes from: set by an event, or taken from what else the event says.
  source({ event, operation, lifted }, person) {
    return el("span", { class: "source soft" }, el("span", { class: "mono" }, operation), " ", this.by(lifted ? "lifted from" : "by", event, person));
  }

  ids(person) {
    const items = person.distinct_ids.slice(0, LISTED).map((id) => el("li", {}, this.filterLink("distinct_id", id), id === person.distinct_id && person.distinct_ids.length > 1 ? badge("main") : ""));
    return [el("h3", {}, plural(person.distinct_ids.length, "distinct id")), el("ul", { class: "plain", "data-key": "ids" }, ...items, ...more(person.distinct_ids))];
  }

  // Merges in their order, those that were refused among them.
  merges({ merges, warnings }) {
    const refused = warnings.filter((warning) => OF_MERGES.includes(warning.type));
    const all = [...merges, ...refused].sort((one, other) => one.event.arrival - other.event.arrival);
    if (!all.length) return [el("h3", {}, "Merges"), el("p", { class: "soft" }, "None.")];
    const items = all.slice(0, LISTED).map((merge) => el("li", { "data-key": `merge:${merge.event.arrival}` }, ...(merge.outcome ? this.merge(merge) : this.refused(merge))));
    return [el("h3", {}, all.length > 1 ? `${plural(all.length, "merge")}, the first on top` : "1 merge"), el("ol", { class: "plain stacked merges", "data-key": "merges" }, ...items, ...more(all))];
  }

  merge({ event, outcome, source, target, merged_person: merged }) {
    const what = outcome === "merged" ? `The person ${visible(merged, 80)} is no more.` : "At most one of these ids had a person, which has both now.";
    return [
      el("p", { class: "name" }, badge(outcome, "good"), el("span", {}, outside(source, 120, "strong"), " into ", outside(target, 120, "strong"))),
      el("p", { class: "soft" }, what, " ", this.by("By", event)),
    ];
  }

  refused(warning) {
    return [el("p", { class: "name" }, badge("refused", "warn"), el("span", {}, ...said(warning))), el("p", { class: "soft" }, this.by("By", warning.event))];
  }

  groups({ groups, person }) {
    if (!groups.length) return [el("h3", {}, "Groups"), el("p", { class: "soft" }, "None: no event of this person names one in $groups.")];
    const items = groups.slice(0, LISTED).map((group) => {
      const name = button(el("span", {}, outside(group.group_key, 120)), () => this.go(`group:${JSON.stringify([group.group_type, group.group_key, person.api_key])}`), { class: "link" });
      return el("li", { "data-key": `group:${group.group_type}:${group.group_key}` }, outside(group.group_type, 120), ": ", name, " ", this.by("last named by", group.event));
    });
    return [el("h3", {}, plural(groups.length, "group")), el("ul", { class: "plain stacked", "data-key": "groups" }, ...items, ...more(groups))];
  }

  // The event that did something, and when; and the distinct id that it came with, if it isn't the main one of `person`.
  by(word, event, person = null) {
    const name = button(el("span", {}, outside(event.event, 120)), () => this.go(`event:${event.uuid}:${event.arrival}`), { class: "link" });
    const as = person && event.distinct_id !== person.distinct_id ? [" of ", outside(event.distinct_id, 80)] : [];
    return el("span", { class: "soft" }, word && `${word} `, name, ...as, ", ", when(event.timestamp));
  }

  person(distinctId, id) {
    return button(el("span", {}, outside(distinctId, 120, "strong")), () => this.go(`person:${id}`), { class: "link" });
  }
}

function more(all) {
  return all.length > LISTED ? [el("li", { class: "soft" }, `${count(all.length - LISTED)} more`)] : [];
}
