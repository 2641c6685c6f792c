// A flag with its conditions and variants, who gets what of it and why; and what a person can do: turn it on and off, change its rollout.

import { action, actions, field, form, submit } from "./acting.js";
import { ask, change, reason } from "./asking.js";
import { aggregates, conditionsOf, filtersOf, percent, properties, rulesOf, share, variantsOf } from "./conditions.js";
import { pretty } from "./json.js";
import { mood } from "./managed.js";
import { badge, button, facts } from "./parts.js";
import { count, el, outside, plural, visible, when } from "./text.js";

const OVERRIDES = { groups: "Groups", person_properties: "Person properties", group_properties: "Group properties" };
const LIKE = { groups: '{"company": "acme"}', person_properties: '{"plan": "pro"}', group_properties: '{"company": {"seats": 12}}' };
const REASONS = {
  condition_match: (number) => `Condition ${number} matches.`,
  no_condition_match: () => "No condition matches.",
  out_of_rollout_bound: (number) => `What condition ${number} asks for is there, but its rollout leaves this one out.`,
  no_group_type: () => "It has no condition, or is decided for groups, and none of that type is given.",
  flag_disabled: () => "The flag is off.",
  super_condition_value: () => "The enrollment in its early access feature decides.",
  holdout_condition_value: () => "Held out: the holdout decides before all conditions.",
  missing_dependency: () => "It depends on a flag that doesn't exist.",
};
const OTHERS = 200; // flags of the project that are listed with what a person gets of them

export class Flags {
  // `go` opens something by its name in the address; `changed` is called once something was changed here.
  constructor({ go, changed }) {
    this.go = go;
    this.changed = changed;
  }

  // The parts of a flag's details. `subject` is, as JSON, who is asked about; empty if nobody is.
  async parts(item, places, subject) {
    const wanted = read(subject);
    const found = wanted && (await evaluations({ flag: item.id, ...wanted }));
    const own = found?.results?.find((each) => each.key === item.key);
    return [
      actions(`flag:${item.id}`, this.toggle(item)),
      el("h3", { "data-key": "who" }, "Who gets what"),
      this.asking(item, wanted),
      el("div", { class: "result", "data-key": "result" }, ...(found ? this.result(own, found, wanted) : [])),
      ...this.release(item, own),
      ...variants(item.definition),
      ...(found?.results ? this.others(item, found.results, wanted) : []),
      el("h3", {}, "Flag"),
      facts([
        ["name", item.definition?.name],
        ["key", outside(item.key, 400, "mono")],
        ["id", String(item.id)],
        ...places,
        ["project key", outside(item.api_key, 40, "mono")],
        ["decided for", aggregates(item.definition)],
        ["continuity", item.definition?.ensure_experience_continuity ? "a person keeps the value from before identification" : null],
        ["early access", filtersOf(item.definition).feature_enrollment ? "enrollment decides before the conditions" : null],
        ["holdout", filtersOf(item.definition).holdout ? "decides before the conditions" : null],
        ["made", when(item.created_at)],
        ["changed", when(item.updated_at)],
        ["calls", item.calls ? count(item.calls) : "none yet"],
      ]),
      el("h3", {}, "Definition"),
      pretty(JSON.stringify(item.definition)),
    ];
  }

  toggle(item) {
    return action(item.active ? "Turn off" : "Turn on", async () => {
      await change("PATCH", `flags?${new URLSearchParams({ id: item.id })}`, { active: !item.active });
      await this.changed();
      return `${visible(item.key, 80)} is ${item.active ? "off" : "on"}.`;
    });
  }

  release(item, own) {
    const rules = rulesOf(item.definition);
    if (rules) return [el("h3", {}, "Rules, the first that includes someone decides"), el("ol", { class: "plain conditions", "data-key": "rules" }, ...rules.map((rule, place) => this.rule(rule, place, own)))];
    const conditions = conditionsOf(item.definition);
    if (!conditions.length) return [el("h3", {}, "Conditions"), el("p", { class: "soft" }, "None: no one gets this flag.")];
    const made = conditions.map((condition, place) => this.condition(item, condition, place, own));
    return [el("h3", {}, conditions.length > 1 ? `${plural(conditions.length, "condition")}, the first that matches decides` : "Condition"), el("ol", { class: "plain conditions", "data-key": "conditions" }, ...made)];
  }

  rule(rule, place, own) {
    const shown = typeof rule.rollout_percentage === "number" ? [el("p", { class: "soft" }, `Rolled out to ${percent(rule.rollout_percentage)}`)] : [];
    return el(
      "li",
      { class: this.decides(place, own) ? "decides" : undefined, "data-key": `rule:${place}` },
      this.title(`Rule ${place + 1}`, place, own),
      properties(Object(rule.targeting)),
      ...shown,
      this.reasons(place, own),
    );
  }

  decides(place, own) {
    return own?.reason?.condition_index === place && own?.conditions?.[place]?.matched;
  }

  title(name, place, own, ...badges) {
    const result = own?.conditions?.[place];
    return el("p", { class: "name" }, el("span", { class: "strong" }, name), result ? badge(result.matched ? "matches" : "doesn't match", result.matched ? "good" : "") : "", ...badges);
  }

  reasons(place, own) {
    const why = own?.conditions?.[place]?.why;
    return why ? el("ul", { class: "plain why" }, ...why.split("; ").map((each) => el("li", {}, outside(each, 1000)))) : "";
  }

  condition(item, condition, place, own) {
    const variant = condition.variant ? [badge(`variant ${condition.variant}`, "info")] : [];
    return el(
      "li",
      { class: this.decides(place, own) ? "decides" : undefined, "data-key": `condition:${place}` },
      this.title(`Condition ${place + 1}`, place, own, ...variant),
      properties(condition),
      this.rollout(item, condition, place),
      this.reasons(place, own),
    );
  }

  // The field has the share's value in its key: another one, set elsewhere, makes a new field.
  rollout(item, condition, place) {
    const now = share(condition);
    const more = { type: "number", min: 0, max: 100, step: "any", required: true, value: now, inputmode: "decimal" };
    const fields = [field(`Rollout of condition ${place + 1}, percent`, "rollout", more), el("span", { class: "soft", "aria-hidden": "true" }, "%")];
    fields[0].firstChild.className = "unseen";
    return form(`rollout:${item.id}:${place}:${now}`, `Rollout of condition ${place + 1}`, { fields: ["Rolled out to ", ...fields], buttons: [submit("Save")] }, async (elements) => {
      const wanted = Number(elements.rollout.value);
      await change("PATCH", `flags?${new URLSearchParams({ id: item.id })}`, { rollout_percentage: wanted, condition: place });
      await this.changed();
      document.querySelector(`[data-key^="rollout:${item.id}:${place}:"] button`)?.focus();
      return `Condition ${place + 1} is rolled out to ${percent(wanted)}.`;
    });
  }

  asking(item, wanted) {
    const more = Object.entries(OVERRIDES).map(([name, label]) => field(`${label} (JSON)`, name, { type: "text", value: wanted?.[name] ?? "", placeholder: LIKE[name], class: "mono" }));
    const person = field("Distinct id", "distinct_id", { type: "text", value: wanted?.distinct_id ?? "", required: true });
    const open = Object.keys(OVERRIDES).some((name) => wanted?.[name]);
    const instead = el("details", { open }, el("summary", {}, "With groups or other properties"), ...more);
    return form(`asking:${item.id}:${JSON.stringify(wanted)}`, "Who gets what", { fields: [person], buttons: [submit("Show", { class: "primary" })], rest: [instead] }, async (elements) => {
      const given = ["distinct_id", ...Object.keys(OVERRIDES)].map((name) => [name, elements[name].value.trim()]).filter(([, value]) => value);
      const asked = Object.fromEntries(given);
      const { results } = await ask("evaluations", { flag: item.id, ...asked }); // refused here, what was typed stays
      await this.go(`flag:${item.id}:${JSON.stringify(asked)}`);
      document.querySelector('#detail [name="distinct_id"]')?.select();
      const own = results.find((each) => each.key === item.key);
      return own ? words(own) : "";
    });
  }

  result(own, found, wanted) {
    if (found.error) return [el("p", { class: "note bad" }, visible(found.error, 1000))];
    const who = outside(wanted.distinct_id, 200, "strong");
    if (!own) return [el("p", { class: "note" }, "This flag is not evaluated: no one gets it.")];
    return [el("div", { class: "note" }, el("p", { class: "name" }, who, " gets ", value(own)), el("p", {}, outside(why(own), 1000)), payload(own))];
  }

  others(item, all, wanted) {
    const results = all.filter((each) => each.key !== item.key);
    if (!results.length) return [];
    return [el("h3", {}, "The project's other flags for ", outside(wanted.distinct_id, 200)), values(results, wanted, this.go)];
  }
}

// What a person gets of each flag of the project; nothing if it has none.
export async function flagsOf(person, go) {
  const { results } = await evaluations({ person: person.id });
  return results?.length ? [el("h3", {}, "Flags"), values(results, { distinct_id: person.distinct_id }, go)] : [];
}

function values(results, wanted, go) {
  const items = results.slice(0, OTHERS).map((each) => {
    const link = button(outside(each.key, 120), () => go(`flag:${each.id}:${JSON.stringify(wanted)}`), { class: "link" });
    return el("li", {}, link, value(each), el("span", { class: "soft" }, outside(why(each), 200)));
  });
  const more = results.length > OTHERS ? [el("li", { class: "soft" }, `${count(results.length - OTHERS)} more`)] : [];
  return el("ul", { class: "plain values" }, ...items, ...more);
}

// What one gets of each flag of a project; `error` in words if that can't be said.
async function evaluations(wanted) {
  return ask("evaluations", wanted).catch((error) => ({ error: reason(error) }));
}

function read(subject) {
  try {
    const wanted = JSON.parse(subject || "null");
    return typeof wanted?.distinct_id === "string" ? Object.fromEntries(Object.entries(wanted).filter(([name, value]) => typeof value === "string" && (name === "distinct_id" || Object.hasOwn(OVERRIDES, name)))) : null;
  } catch {
    return null;
  }
}

function variants(definition) {
  const found = variantsOf(definition);
  const payloads = Object(filtersOf(definition).payloads);
  if (!found.length) return Object.hasOwn(payloads, "true") ? [el("h3", {}, "Payload"), outside(text(payloads.true), 1000, "mono")] : [];
  const rows = found.map((each) => [outside(String(each.key), 120, "mono"), el("span", {}, el("span", { class: "numbers strong" }, percent(each.rollout_percentage)), each.name ? outside(` ${each.name}`, 200, "soft") : "", Object.hasOwn(payloads, each.key) ? el("span", {}, ", payload ", outside(text(payloads[each.key]), 1000, "mono")) : "")]);
  return [el("h3", {}, plural(found.length, "variant")), facts(rows)];
}

// What somebody gets of a flag, as a badge.
function value(result) {
  if (result.error) return badge("can't be decided", "bad");
  if (result.variant) return badge(result.variant, "good");
  return result.enabled ? badge("true", "good") : badge("false");
}

function words(result) {
  return `${visible(result.key, 80)}: ${result.variant ?? String(result.enabled)}. ${visible(why(result), 300)}`;
}

function why({ error, reason }) {
  if (error) return `${error}.`;
  return Object.hasOwn(REASONS, reason.code) ? REASONS[reason.code]((reason.condition_index ?? 0) + 1) : reason.description;
}

function payload(result) {
  return result.payload === null || result.payload === undefined ? "" : el("p", {}, "Payload: ", outside(text(result.payload), 1000, "mono"));
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
