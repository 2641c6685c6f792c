// The page as a whole: what the address says is shown, what arrives is listed, what is asked for is opened.

import * as address from "./address.js";
import { Chart } from "./chart.js";
import { Details } from "./details.js";
import { Listing } from "./lists.js";
import { Stream } from "./live.js";
import { Rows } from "./rows.js";
import { count, el, plural } from "./text.js";

const TYPING = 300; // milliseconds after the last key until a filter counts
const SAY_EVERY = 10000; // milliseconds between two words to a screen reader about what arrived
const HELD = 500; // rows that are kept back while paused
const TILES = [
  ["requests", "Requests", "requests", false],
  ["events", "Events", "events", false],
  ["duplicates", "Duplicates", "events", false],
  ["conflicts", "Conflicts", "events", true],
  ["not_ingested", "Not ingested", "requests", true],
  ["refused", "Refused", "requests", true],
  ["persons", "Persons", "persons", false],
  ["groups", "Groups", "groups", false],
];

const at = (id) => document.getElementById(id);
const pause = { on: false, held: { events: [], requests: [] }, missed: 0 };
const news = { events: 0, skipped: { events: 0, requests: 0 }, older: { events: 0, requests: 0 } };
let view = address.read();
let typing = 0;

const open = (kind) => (item) => show({ open: lists[kind].columns.open(item) }, true);
const persons = new Listing("persons", "Persons", (item) => open("persons")(item), () => notice());
const groups = new Listing("groups", "Groups", (item) => open("groups")(item), () => notice());
const lists = {
  events: new Rows("events", "Events, the newest first", (item) => open("events")(item), () => notice()),
  requests: new Rows("requests", "Requests, the newest first", (item) => open("requests")(item), () => notice()),
  persons: persons.rows,
  groups: groups.rows,
};
const chart = new Chart(at("chart"), at("rate"), at("peak"));
const details = new Details(at("detail"), {
  go: (name) => show({ open: name }, true),
  filter: (wanted) => show({ tab: "events", ...wanted, ...(overlays() ? { open: "" } : {}) }, true),
  leave: () => leave(),
});
const tiles = Object.fromEntries(TILES.map((tile) => [tile[0], makeTile(...tile)]));
const stream = new Stream({
  state: (word) => connection(word),
  opened: (older) => (news.older = older),
  skipped: (left) => skipped(left),
  cleared: () => cleared(),
  event: (event) => arrived("events", event),
  request: (request) => arrived("requests", request),
  rates: (rates) => chart.add(rates),
  summary: (summary) => figures(summary),
});

// Change the view, and all that follows from it.
function show(change, step) {
  const before = view;
  view = { ...view, ...change };
  address.write(view, step);
  follow(before);
}

function follow(before) {
  const filtered = before === null || String(address.query(before)) !== String(address.query(view));
  if (filtered) refilter();
  if (before?.tab !== view.tab || filtered) tab();
  if (view.open) details.open(view.open);
  else details.close();
  lists[view.tab].choose(view.open);
  behind();
}

function refilter() {
  for (const name of address.FILTERS) if (document.activeElement !== at("filters").elements[name]) at("filters").elements[name].value = view[name];
  at("filters").elements.problems.checked = view.problems;
  lists.events.clear();
  lists.requests.clear();
  release(false);
  Object.assign(news, { skipped: { events: 0, requests: 0 }, older: { events: 0, requests: 0 } });
  stream.open(address.query(view));
}

function tab() {
  for (const button of at("tabs").children) {
    const chosen = button.dataset.tab === view.tab;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
  at("panel").setAttribute("aria-labelledby", `tab-${view.tab}`);
  at("panel").replaceChildren(lists[view.tab].element);
  at("pager").hidden = true;
  if (view.tab === "persons") persons.show(view);
  if (view.tab === "groups") groups.show(view);
  notice();
}

// What there is to say beside the tabs about the list.
function notice() {
  const listing = { persons, groups }[view.tab];
  if (listing) {
    at("notice").textContent = listing.words;
    at("pager").hidden = listing.total <= 100;
    at("back").disabled = listing.offset === 0;
    at("on").disabled = !listing.more;
    return;
  }
  const [rows, older, missed] = [lists[view.tab], news.older[view.tab], news.skipped[view.tab]];
  const parts = [];
  if (rows.count) parts.push(older || missed ? `newest ${count(rows.count)}` : plural(rows.count, view.tab.slice(0, -1)));
  if (older) parts.push(`${count(older)} older`);
  if (missed) parts.push(`${count(missed)} skipped: they came too fast to show`);
  at("notice").textContent = parts.join(" · ");
  rows.say(Object.keys(Object.fromEntries(address.query(view))).length ? "Nothing that is here matches the filter." : `Nothing yet. Send events to ${location.origin}/batch/ and they appear here.`);
}

function arrived(kind, item) {
  if (kind === "events") news.events += 1;
  if (!pause.on) {
    lists[kind].add(item);
    return;
  }
  if (pause.held[kind].push(item) > HELD) pause.held[kind].shift();
  pause.missed += kind === "events" ? 1 : 0;
}

function skipped(left) {
  news.skipped.events += left.events;
  news.skipped.requests += left.requests;
  if (pause.on) pause.missed += left.events;
}

function cleared() {
  lists.events.clear();
  lists.requests.clear();
  chart.clear();
  release(false);
  Object.assign(news, { skipped: { events: 0, requests: 0 }, older: { events: 0, requests: 0 } });
}

function figures(summary) {
  for (const [name, , , problem] of TILES) {
    const [tile, figure] = tiles[name];
    figure.textContent = count(summary[name] ?? 0);
    tile.classList.toggle("bad", problem && summary[name] > 0);
  }
  if (view.tab === "persons" && !pause.on) persons.soon();
  if (view.tab === "groups" && !pause.on) groups.soon();
  if (pause.on) heldBack();
  notice();
}

function makeTile(name, label, leads, problem) {
  const figure = el("span", { class: "figure" }, "–");
  const tile = el("button", { type: "button", class: "card tile", id: `tile-${name}` }, el("span", { class: "label" }, label), figure);
  tile.addEventListener("click", () => show({ tab: leads, problems: problem, open: "" }, true));
  at("tiles").append(tile);
  return [tile, figure];
}

function connection(word) {
  const state = at("state");
  const text = word === "live" && pause.on ? "paused" : word;
  if (state.textContent !== text) state.textContent = text;
  state.className = `pill ${{ live: "good", paused: "warn", disconnected: "bad" }[text] ?? ""}`;
  state.dataset.state = word;
}

function togglePause() {
  pause.on = !pause.on;
  at("pause").setAttribute("aria-pressed", String(pause.on));
  at("pause").textContent = pause.on ? "Go on" : "Pause";
  if (!pause.on) release(true);
  connection(at("state").dataset.state ?? "connecting");
  heldBack();
}

function release(shown) {
  for (const kind of ["events", "requests"]) {
    if (shown) pause.held[kind].forEach((item) => lists[kind].add(item));
    pause.held[kind] = [];
  }
  pause.missed = 0;
  heldBack();
}

function heldBack() {
  at("held").hidden = !pause.on || pause.missed === 0;
  at("held").textContent = `${count(pause.missed)} new`;
}

function overlays() {
  return matchMedia("(max-width: 1100px)").matches;
}

// While details cover the page, what is behind them can't be reached.
function behind() {
  const covered = Boolean(view.open) && overlays();
  for (const part of document.querySelectorAll("[data-behind]")) part.inert = covered;
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || at("sure").open) return;
  const field = event.target.closest("input, textarea");
  if (event.key === "Escape") escape(field);
  else if (field) return;
  else if (event.key === "/") at("filters").elements.text.focus();
  else if (event.key === "p") togglePause();
  else if (event.target.closest("button, a, pre, #detail")) return;
  else if (!lists[view.tab].pressed(event)) return;
  event.preventDefault();
}

function escape(field) {
  if (field) field.blur();
  else leave();
}

function leave() {
  if (!view.open) return;
  show({ open: "" }, true);
  lists[view.tab].focus();
}

function typed() {
  clearTimeout(typing);
  typing = setTimeout(() => {
    const form = at("filters").elements;
    show({ ...Object.fromEntries(address.FILTERS.map((name) => [name, form[name].value])), problems: form.problems.checked }, false);
  }, TYPING);
}

function tabbed(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = address.TABS[(address.TABS.indexOf(view.tab) + step + address.TABS.length) % address.TABS.length];
  show({ tab: next, open: "" }, true);
  at(`tab-${next}`).focus();
  event.preventDefault();
}

async function clearAll() {
  at("sure").close();
  const response = await fetch("sandbox/events", { method: "DELETE" }).catch(() => null);
  at("said").textContent = response?.ok ? "Everything is cleared." : "Clearing failed.";
  if (!response?.ok) at("notice").textContent = "Clearing failed: the sandbox didn't do it.";
}

function start() {
  at("filters").addEventListener("input", typed);
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("filters").addEventListener("reset", () => show({ text: "", event: "", distinct_id: "", api_key: "", problems: false }, true));
  at("tabs").addEventListener("click", (event) => event.target.dataset.tab && show({ tab: event.target.dataset.tab, open: "" }, true));
  at("tabs").addEventListener("keydown", tabbed);
  at("pause").addEventListener("click", togglePause);
  at("held").addEventListener("click", togglePause);
  at("back").addEventListener("click", () => ({ persons, groups })[view.tab].turn(-1));
  at("on").addEventListener("click", () => ({ persons, groups })[view.tab].turn(1));
  at("clear").addEventListener("click", () => at("sure").showModal());
  at("keep").addEventListener("click", () => at("sure").close());
  at("delete").addEventListener("click", clearAll);
  document.addEventListener("keydown", pressed);
  addEventListener("popstate", () => moved());
  addEventListener("resize", behind);
  setInterval(announce, SAY_EVERY);
  follow(null);
}

function moved() {
  const before = view;
  view = address.read();
  follow(before);
}

function announce() {
  if (news.events) at("said").textContent = `${plural(news.events, "event")} arrived.`;
  news.events = 0;
}

start();
