// Keeps the page as it is now: asks for it again, and puts in the parts that changed, so that nothing flickers, scrolls or loses its place.
// Rates are made here, of what was counted between two looks.

import { tick } from "./ago.js";

const EVERY = 2000; // milliseconds between two looks
const LIMIT = 10000; // milliseconds that a look may take
const SPAN = 10; // seconds that a rate is the mean of
const MANY = 8; // lanes from which on they can be searched

const looks = []; // [seconds, counts by what they count], the oldest first
const finder = makeFinder(); // one for good: what is typed in it outlives the parts around it

// The page as the daemon gives it now. It is parsed as a document that runs nothing.
function ask() {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.timeout = LIMIT;
    request.setRequestHeader("Accept", "text/html");
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject(new Error(`answered ${request.status}`)));
    request.onerror = request.ontimeout = () => reject(new Error("doesn't answer"));
    request.send();
  });
}

async function look() {
  if (!document.hidden) {
    try {
      show(await ask());
      lost(null);
    } catch (error) {
      lost(error);
    }
  }
  setTimeout(look, EVERY);
}

function show(next) {
  remember(next);
  const parts = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
  const wanted = [...next.querySelectorAll("[data-part]")];
  if (wanted.length !== parts.size || wanted.some((part) => !parts.has(part.dataset.part))) return whole(next);
  for (const part of wanted) swap(parts.get(part.dataset.part), part);
  return undefined;
}

// Parts came or went, such as the workers'.
function whole(next) {
  for (const part of next.querySelectorAll("[data-part]")) prepared(part);
  for (const name of ["header", "main"]) document.querySelector(name).replaceWith(next.querySelector(name));
  sift();
}

function swap(now, next) {
  const focused = now.contains(document.activeElement) ? place(now, document.activeElement) : -1;
  const scrolled = now.querySelector(".across")?.scrollLeft ?? 0;
  prepared(next);
  if (now.isEqualNode(next)) return;
  now.replaceWith(next);
  const across = next.querySelector(".across");
  if (across) across.scrollLeft = scrolled;
  if (focused >= 0) reachable(next)[focused]?.focus({ preventScroll: true });
  if (next.dataset.part === "lanes") sift();
}

function place(part, element) {
  return reachable(part).indexOf(element);
}

function reachable(part) {
  return [...part.querySelectorAll("input, [tabindex], a")];
}

// A part with its rates, and with what only a script can do.
function prepared(part) {
  for (const figure of part.querySelectorAll("[data-count]")) rate(figure);
  if (part.dataset.part === "lanes") searchable(part);
  return part;
}

function remember(page) {
  const head = page.querySelector("header");
  const counts = new Map([...page.querySelectorAll("[data-count]")].map((figure) => [figure.dataset.of, Number(figure.dataset.count)]));
  const [now, started] = [Number(head.dataset.now), head.dataset.started];
  if (looks.length && looks.at(-1).started !== started) looks.length = 0;
  looks.push({ now, started, counts });
  while (looks.length > 2 && looks[1].now <= now - SPAN) looks.shift();
}

function rate(figure) {
  const [first, last] = [looks[0], looks.at(-1)];
  const before = first?.counts.get(figure.dataset.of);
  if (before === undefined || last.now <= first.now) return;
  const perSecond = Math.max(0, (Number(figure.dataset.count) - before) / (last.now - first.now));
  const words = `${perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond).toLocaleString("en-GB")}/s`;
  const line = figure.closest(".stage")?.querySelector(".rate");
  if (line) {
    line.textContent = words;
    line.hidden = false;
  } else if (figure.closest("td") && perSecond > 0) {
    const small = document.createElement("span");
    small.className = "rate";
    small.textContent = words;
    figure.closest("td").append(small);
  }
}

function makeFinder() {
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Find a lane, or a state";
  field.setAttribute("aria-label", "Find a lane, or a state");
  field.addEventListener("input", sift);
  const made = document.createElement("p");
  made.className = "find";
  made.append(field);
  return made;
}

function searchable(part) {
  if (part.querySelectorAll("tbody tr").length > MANY) part.querySelector("h2").after(finder);
}

function named(row) {
  return `${row.textContent} ${row.querySelector("code").title}`; // a lane with a name has its label there
}

function sift() {
  const wanted = finder.isConnected ? finder.firstChild.value.toLowerCase() : "";
  for (const row of document.querySelectorAll('[data-part="lanes"] tbody tr')) row.hidden = !named(row).toLowerCase().includes(wanted);
}

function lost(error) {
  const seen = document.getElementById("seen");
  document.querySelector("header").classList.toggle("lost", error !== null);
  let note = document.getElementById("lost");
  if (error === null) return note?.remove();
  if (note) return tick(document);
  note = document.createElement("p");
  note.id = "lost";
  note.className = "note bad";
  note.setAttribute("role", "alert");
  note.append(`Disconnected: the daemon ${error.message}. The figures below were seen `, seen.firstChild.cloneNode(true), ".");
  document.querySelector("main").before(note);
  return undefined;
}

remember(document);
for (const part of document.querySelectorAll('[data-part="lanes"]')) searchable(part);
setTimeout(look, EVERY);
