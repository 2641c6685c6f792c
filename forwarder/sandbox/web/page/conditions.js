// A flag's definition in words: who it is for, and in which shares. A definition is whatever was set: nothing in it is relied on.

import { count, el, outside, plural } from "./text.js";

const OPERATORS = {
  exact: "is",
  is_not: "is not",
  is_set: "is set",
  is_not_set: "is not set",
  icontains: "contains",
  not_icontains: "doesn't contain",
  regex: "matches",
  not_regex: "doesn't match",
  gt: "is greater than",
  gte: "is at least",
  lt: "is less than",
  lte: "is at most",
  min: "is at least",
  max: "is at most",
  is_date_exact: "is on",
  is_date_before: "is before",
  is_date_after: "is after",
  semver_eq: "is version",
  semver_neq: "is not version",
  semver_gt: "is a later version than",
  semver_gte: "is version, or later than,",
  semver_lt: "is an earlier version than",
  semver_lte: "is version, or earlier than,",
  flag_evaluates_to: "is",
};
const VALUES = 20; // of a condition that are listed

export function filtersOf(definition) {
  return object(object(definition).filters);
}

// The conditions of a flag, any of which is enough.
export function conditionsOf(definition) {
  return list(filtersOf(definition).groups).map(object);
}

// The rules of a flag whose filters are of version 2; null if it has conditions.
export function rulesOf(definition) {
  const filters = filtersOf(definition);
  return (filters.version ?? 1) === 1 ? null : list(filters.rules).map(object);
}

export function variantsOf(definition) {
  return list(object(filtersOf(definition).multivariate).variants).map(object);
}

export function share(condition) {
  return typeof condition.rollout_percentage === "number" ? condition.rollout_percentage : 100;
}

export function percent(number) {
  return `${typeof number === "number" ? number.toLocaleString("en-GB", { maximumFractionDigits: 4 }) : "?"}%`;
}

// A flag's release in a few words, for a list.
export function release(definition) {
  const rules = rulesOf(definition);
  if (rules) return rules.length === 1 ? "1 rule" : `${count(rules.length)} rules`;
  const conditions = conditionsOf(definition);
  const variants = variantsOf(definition);
  const [only] = conditions;
  const who = conditions.length === 0 ? "no conditions" : conditions.length > 1 ? `${count(conditions.length)} conditions` : `${percent(share(only))} of ${list(only.properties).length ? "those who match" : `all ${aggregates(definition)}`}`;
  return variants.length ? `${who}: ${variants.slice(0, 8).map((each) => `${each.key} ${percent(each.rollout_percentage)}`).join(", ")}` : who;
}

// Whom a flag is decided for: "persons", or groups of a type.
export function aggregates(definition) {
  const index = filtersOf(definition).aggregation_group_type_index;
  return Number.isInteger(index) ? `groups of type ${index}` : "persons";
}

// What one condition asks for: a list, one property each.
export function properties(condition) {
  const asked = list(condition.properties).map(object);
  if (!asked.length) return el("p", {}, "Everyone");
  return el("ul", { class: "plain asks" }, ...asked.map((each, place) => el("li", {}, el("span", {}, ...(place ? [el("span", { class: "soft" }, "and ")] : []), ...property(each)))));
}

function property({ key, operator, value, type, negation, cohort_name, group_type_index }) {
  if (type === "cohort") return [`${negation || operator === "not_in" ? "not in" : "in"} cohort `, named(cohort_name ?? value)];
  const words = OPERATORS[operator] ?? String(operator ?? "is").replaceAll("_", " ");
  const kind = type === "flag" ? "flag " : type === "group" ? `property of group type ${group_type_index ?? 0} ` : "";
  return [kind, named(key), ` ${words} `, ...(words.endsWith(" set") ? [] : either(value))];
}

function either(value) {
  const values = Array.isArray(value) ? value : [value];
  const shown = values.slice(0, VALUES).flatMap((each, place) => [...(place ? [" or "] : []), named(each)]);
  return values.length > VALUES ? [...shown, ` or ${plural(values.length - VALUES, "other")}`] : shown;
}

function named(value) {
  return outside(typeof value === "string" ? value : (JSON.stringify(value) ?? ""), 200, "mono strong");
}

function list(value) {
  return Array.isArray(value) ? value : [];
}

function object(value) {
  return value && typeof value === "object" && !Array.isArray(value) ? value : {};
}
