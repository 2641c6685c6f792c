// What changes between the two halves of the page, events and management: the parts that are there, and what there is to choose from.

import { half, VIEWS } from "./address.js";
import { ask } from "./asking.js";
import { OF_PROJECTS } from "./managed.js";
import { alike, el, visible } from "./text.js";

const at = (id) => document.getElementById(id);
const FIND = { events: "Find text in events and requests", management: "Find names and addresses" };
const CHOICES = 200; // organizations, or projects, to choose from
let offered = 0;

// Show the half that a view belongs to, and its tab as the chosen one.
export function turnTo(view) {
  const now = half(view);
  for (const part of document.querySelectorAll("[data-half]")) part.hidden = part.dataset.half !== now;
  for (const name of Object.keys(VIEWS)) {
    if (name === now) at(`to-${name}`).setAttribute("aria-current", "page");
    else at(`to-${name}`).removeAttribute("aria-current");
  }
  const form = at("filters").elements;
  form.project.closest("label").hidden = !OF_PROJECTS.includes(view.tab);
  form.text.placeholder = FIND[now];
  for (const button of document.querySelectorAll('[role="tab"]')) {
    const chosen = button.dataset.tab === view.tab;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
  at("panel").setAttribute("aria-labelledby", `tab-${view.tab}`);
}

// The tab that an arrow leads to.
export function beside(view, step) {
  const tabs = VIEWS[half(view)];
  return tabs[(tabs.indexOf(view.tab) + step + tabs.length) % tabs.length];
}

// Let the organizations and projects that there are be chosen from; of an organization, if one is chosen, its projects.
export async function offer(view) {
  if (half(view) !== "management") return;
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
