// The page as a whole: what the address says is shown, what arrives is listed, what is asked for is opened.

import * as address from "./address.js";
import { tick } from "./ago.js";
import { sparingly } from "./asking.js";
import { Chart } from "./chart.js";
import { Details } from "./details.js";
import { Listing } from "./lists.js";
import { Stream } from "./live.js";
import { listed, MANAGED } from "./managed.js";
import { Rows } from "./rows.js";
import { beside, offer, turnTo } from "./switching.js";
import { count, plural } from "./text.js";
import { Tiles } from "./tiles.js";

const AGAIN = 2000; // milliseconds between two looks at what is open, at least
const TYPING = 300; // milliseconds after the last key until a filter counts
const LOOK_EVERY = 15000; // milliseconds between two looks at what changes by time alone: an invite expires
const SAY_EVERY = 10000; // milliseconds between two words to a screen reader about what arrived
const HELD = 500; // rows that are kept back while paused

const at = (id) => document.getElementById(id);
const pause = { on: false, held: { events: [], requests: [] }, missed: 0 };
const news = { events: 0, skipped: { events: 0, requests: 0 }, older: { events: 0, requests: 0 } };
let view = address.read();
let typing = 0;

const open = (kind) => (item) => show({ open: lists[kind].columns.open(item) }, true);
const ofKey = ({ api_key }) => ({ api_key });
const ofPerson = ({ api_key, distinct_id }) => ({ api_key, distinct_id });
const none = (words, wanted) => (view) => (Object.values(wanted(view)).some(Boolean) ? "Nothing that is here matches the filter." : words);
const of = (kind, title, what) => new Listing(kind, title, (item) => open(kind)(item), () => notice(), what);
const listings = {
  persons: of("persons", "Persons", { wanted: ofPerson, empty: none("No persons yet: each event makes one of its distinct id, unless it is anonymous.", ofPerson), marks: true }),
  groups: of("groups", "Groups", { wanted: ofKey, empty: none("No groups yet: $groupidentify makes one.", ofKey), marks: true }),
  warnings: of("warnings", "Warnings", { wanted: ofPerson, empty: none("No warnings: the service would have none about what arrived.", ofPerson) }),
  ...Object.fromEntries(Object.keys(MANAGED).map((kind) => [kind, of(kind, ...listed(kind))])),
};
const lists = {
  events: new Rows("events", "Events, the newest first", (item) => open("events")(item), () => notice()),
  requests: new Rows("requests", "Requests, the newest first", (item) => open("requests")(item), () => notice()),
  ...Object.fromEntries(Object.entries(listings).map(([kind, listing]) => [kind, listing.rows])),
};
const renewRest = sparingly(() => {
  offer(view);
  details.again();
}, AGAIN);
const chart = new Chart(at("chart"), at("rate"), at("peak"));
const details = new Details(at("detail"), {
  go: (name) => show({ open: name }, true),
  filter: (wanted) => show({ tab: "events", ...wanted, ...(overlays() ? { open: "" } : {}) }, true),
  list: (wanted) => show({ organization: "", project: "", text: "", ...wanted, ...(overlays() ? { open: "" } : {}) }, true),
  leave: () => leave(),
  changed: () => Promise.all([details.again(), listings[view.tab]?.ask()]),
  going: () => document.hidden || pause.on || Promise.all([details.again(), listings[view.tab]?.soon()]),
});
const tiles = new Tiles(at("tiles"), (tab, problems) => show({ tab, problems, open: "" }, true));
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
  return follow(before);
}

function follow(before) {
  const filtered = before === null || String(address.filters(before)) !== String(address.filters(view));
  if (filtered) fillIn();
  if (before === null || String(address.query(before)) !== String(address.query(view))) refilter();
  if (before?.tab !== view.tab || filtered) tab();
  lists[view.tab].choose(view.open);
  behind();
  return view.open ? details.open(view.open) : details.close();
}

function fillIn() {
  for (const name of address.FILTERS) if (document.activeElement !== at("filters").elements[name]) at("filters").elements[name].value = view[name];
  at("filters").elements.problems.checked = view.problems;
}

function refilter() {
  discard();
  stream.open(address.query(view));
}

// What was listed, kept back or left out counts no more.
function discard() {
  lists.events.clear();
  lists.requests.clear();
  release(false);
  Object.assign(news, { skipped: { events: 0, requests: 0 }, older: { events: 0, requests: 0 } });
}

function tab() {
  turnTo(view);
  at("panel").replaceChildren(lists[view.tab].element);
  at("pager").hidden = true;
  listings[view.tab]?.show(view);
  offer(view);
  notice();
}

// What there is to say beside the tabs about the list.
function notice() {
  const listing = listings[view.tab];
  at("panel").setAttribute("aria-busy", String(listing ? !listing.loaded : !stream.loaded || lists[view.tab].drawing));
  if (listing) {
    at("notice").textContent = listing.words;
    at("pager").hidden = !listing.more && listing.offset === 0;
    at("back").disabled = listing.offset === 0;
    at("on").disabled = !listing.more;
    return;
  }
  const [rows, older, missed] = [lists[view.tab], news.older[view.tab], news.skipped[view.tab]];
  const parts = [];
  if (rows.count) parts.push(older || missed ? `newest ${count(rows.count)}` : plural(rows.count, view.tab.slice(0, -1)));
  if (older) parts.push(`${count(older)} older`);
  if (missed) parts.push(`${count(missed)} skipped: too fast to show`);
  at("notice").textContent = parts.join(" · ");
  rows.say(stream.loaded ? nothing() : "");
}

function nothing() {
  if (Object.keys(Object.fromEntries(address.query(view))).length) return "Nothing that is here matches the filter.";
  return `Nothing yet. Send events to ${location.origin}/batch/ and they appear here.`;
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
  discard();
  chart.clear();
}

function figures(summary) {
  tiles.set(summary);
  if (pause.on) heldBack();
  else renew();
  notice();
}

// Something was written, or some time has gone by: what is listed and what is open may be other than it was.
function renew() {
  listings[view.tab]?.soon();
  renewRest();
}

function connection(word) {
  const state = at("state");
  const text = word === "live" && pause.on ? "paused" : word;
  if (state.textContent !== text) state.textContent = text;
  state.className = `pill ${{ live: "good", paused: "info", disconnected: "bad" }[text] ?? ""}`;
  state.dataset.state = word;
}

function togglePause() {
  pause.on = !pause.on;
  at("pause").setAttribute("aria-pressed", String(pause.on));
  at("pause").textContent = pause.on ? "Resume" : "Pause";
  if (!pause.on) {
    release(true);
    renew();
  }
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
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const field = event.target.closest("input, textarea, select");
  if (event.key === "Escape") escape(field);
  else if (field) return;
  else if (event.key === "/") at("filters").querySelector("label:not([hidden]) input").focus();
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

// What is typed counts once the typing rests; what is chosen counts at once, before an answer under way can put the old choice back.
function entered(event) {
  clearTimeout(typing);
  if (event.target.matches("select, [type=checkbox]")) filter();
  else typing = setTimeout(filter, TYPING);
}

function filter() {
  const form = at("filters").elements;
  show({ ...Object.fromEntries(address.FILTERS.map((name) => [name, form[name].value])), problems: form.problems.checked }, false);
}

function tabbed(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = beside(view, step);
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
  at("filters").addEventListener("input", entered);
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("filters").addEventListener("reset", () => show({ ...Object.fromEntries(address.FILTERS.map((name) => [name, ""])), problems: false }, true));
  for (const tabs of document.querySelectorAll('[role="tablist"]')) {
    tabs.addEventListener("click", (event) => event.target.dataset.tab && show({ tab: event.target.dataset.tab, open: "" }, true));
    tabs.addEventListener("keydown", tabbed);
  }
  at("pause").addEventListener("click", togglePause);
  at("held").addEventListener("click", togglePause);
  at("back").addEventListener("click", () => listings[view.tab].turn(-1));
  at("on").addEventListener("click", () => listings[view.tab].turn(1));
  at("clear").addEventListener("click", () => at("sure").showModal());
  at("keep").addEventListener("click", () => at("sure").close());
  at("delete").addEventListener("click", clearAll);
  at("confirm-no").addEventListener("click", () => at("confirm").close("no"));
  at("confirm-yes").addEventListener("click", () => at("confirm").close("yes"));
  document.addEventListener("keydown", pressed);
  addEventListener("popstate", () => moved());
  addEventListener("resize", behind);
  document.addEventListener("visibilitychange", () => document.hidden || pause.on || renew());
  setInterval(announce, SAY_EVERY);
  setInterval(() => tick(document), 1000);
  setInterval(() => pause.on || renew(), LOOK_EVERY);
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
