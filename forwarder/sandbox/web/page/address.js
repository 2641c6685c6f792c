// The view as it stands in the address, so that it can be shared, reloaded and gone back to: `#tab=requests&problems=1`.

export const FILTERS = ["text", "event", "distinct_id", "api_key", "organization", "project"];
export const AREAS = {
  events: ["events", "requests"],
  persons: ["persons", "groups", "warnings"],
  flags: ["flags"],
  exports: ["batch-exports"],
  management: ["organizations", "projects", "members", "invites", "domains", "dashboards"],
};
const TABS = Object.values(AREAS).flat();
const OF_EVENTS = ["text", "event", "distinct_id", "api_key"];

export function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const view = { tab: TABS.includes(given.get("tab")) ? given.get("tab") : "events", problems: given.get("problems") === "1", open: given.get("open") ?? "" };
  for (const name of FILTERS) view[name] = given.get(name) ?? "";
  return view;
}

// Put the view into the address: as a step to go back from, or in place of the last one.
export function write(view, step) {
  const given = new URLSearchParams();
  if (view.tab !== "events") given.set("tab", view.tab);
  for (const [name, value] of filters(view)) given.set(name, value);
  if (view.open) given.set("open", view.open);
  const hash = given.size ? `#${given}` : location.pathname + location.search;
  if (hash === location.hash || (!given.size && !location.hash)) return;
  if (step) history.pushState(null, "", hash);
  else history.replaceState(null, "", hash);
}

// The area of the page, an entry of its navigation, that a view's tab belongs to.
export function area(view) {
  return Object.keys(AREAS).find((name) => AREAS[name].includes(view.tab));
}

// All that is filtered by.
export function filters(view) {
  const wanted = new URLSearchParams();
  for (const name of FILTERS) if (view[name]) wanted.set(name, view[name]);
  if (view.problems) wanted.set("problems", "1");
  return wanted;
}

// The filter as the stream of what arrives takes it.
export function query(view) {
  if (area(view) !== "events") return new URLSearchParams();
  return new URLSearchParams([...filters(view)].filter(([name]) => name === "problems" || OF_EVENTS.includes(name)));
}
