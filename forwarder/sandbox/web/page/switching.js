// What changes between the areas of the page: the parts that are there, and what there is to choose from.

import { area, AREAS } from "./address.js";
import { ask } from "./asking.js";
import { MANAGED, OF_PROJECTS } from "./managed.js";
import { alike, el, visible } from "./text.js";

const at = (id) => document.getElementById(id);
const OF_PERSONS = ["events", "requests", "persons", "warnings"]; // lists that a distinct id filters
const CHOICES = 200; // organizations, or projects, to choose from
let offered = 0;

// Show the area that a view belongs to, and its tab as the chosen one. An area with one list has a heading in place of tabs.
export function turnTo(view) {
  const now = area(view);
  for (const part of document.querySelectorAll("[data-area]")) part.hidden = !part.dataset.area.split(" ").includes(now);
  document.body.dataset.now = now;
  for (const name of Object.keys(AREAS)) {
    if (name === now) at(`to-${name}`).setAttribute("aria-current", "page");
    else at(`to-${name}`).removeAttribute("aria-current");
  }
  const form = at("filters").elements;
  form.project.closest("label").hidden = !OF_PROJECTS.includes(view.tab);
  form.distinct_id.closest("label").hidden = !OF_PERSONS.includes(view.tab);
  form.text.placeholder = now === "events" ? "Find text in events and requests" : "Find names and addresses";
  for (const button of document.querySelectorAll('[role="tab"]')) {
    const chosen = button.dataset.tab === view.tab;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
  at("panel").setAttribute("aria-labelledby", `tab-${view.tab}`);
  at("panel").setAttribute("role", AREAS[now].length > 1 ? "tabpanel" : "region");
}

// The tab that an arrow leads to.
export function beside(view, step) {
  const tabs = AREAS[area(view)];
  return tabs[(tabs.indexOf(view.tab) + step + tabs.length) % tabs.length];
}

// Let the organizations and projects that there are be chosen from; of an organization, if one is chosen, its projects.
export async function offer(view) {
  if (!Object.hasOwn(MANAGED, view.tab)) return;
  const form = at("filters").elements;
  const turn = (offered += 1);
  const within = view.organization ? { organization: view.organization } : {};
  const [organizations, projects] = await Promise.all([ask("organizations", { limit: CHOICES }), ask("projects", { ...within, limit: CHOICES })]).catch(() => [null, null]);
  if (organizations === null || turn !== offered) return;
  fill(form.organization, organizations.results, view.organization);
  fill(form.project, projects.results, view.project);
}

// Also what isn't there (any more) is chosen, if the address says so.
function fill(select, items, chosen) {
  const known = items.map((item) => [String(item.id), visible(item.name, 60)]);
  if (chosen && !known.some(([id]) => id === chosen)) known.push([chosen, visible(chosen, 60)]);
  const options = known.map(([id, name]) => el("option", { value: id }, name));
  const [all, ...there] = select.options;
  if (!alike(there, options)) select.replaceChildren(all, ...options);
  select.value = chosen;
}
