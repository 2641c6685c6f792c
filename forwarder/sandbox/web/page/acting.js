// Buttons and forms that change what the sandbox holds: the result shows at once, an error beside them, in words.

import { reason } from "./asking.js";
import { button } from "./parts.js";
import { el, visible } from "./text.js";

// Buttons side by side, and room for an error. `key` distinguishes them from others on the page.
export function actions(key, ...buttons) {
  const outcome = el("p", { class: "outcome bad-text", role: "alert", "data-key": "outcome", "data-own": true });
  return el("div", { class: "actions", "data-key": `actions:${key}` }, ...buttons, outcome);
}

// A button that does something. `act` returns what to say to a screen reader; nothing if it wasn't done.
export function action(label, act, more = {}) {
  const made = button(label, () => attempt(made, act), more);
  return made;
}

// A form of fields, then buttons, the first of which sends it, then what is asked less often. What stands in it stays while what is around
// it changes.
export function form(key, name, { fields, buttons, rest = [] }, act) {
  const made = el("form", { class: "asked", "data-key": key, "data-own": true, "aria-label": name, autocomplete: "off" }, ...fields, actions(key, ...buttons), ...rest);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(buttons[0], () => act(made.elements));
  });
  return made;
}

export function submit(label, more = {}) {
  return el("button", { type: "submit", ...more }, label);
}

export function field(label, name, more = {}) {
  return el("label", {}, el("span", {}, label), el("input", { name, spellcheck: "false", ...more }));
}

// Ask before what can't be undone.
export function confirmed(title, words, yes) {
  const at = (id) => document.getElementById(id);
  at("confirm-title").textContent = title;
  at("confirm-words").textContent = words;
  at("confirm-yes").textContent = yes;
  at("confirm").returnValue = "";
  at("confirm").showModal();
  return new Promise((resolve) => at("confirm").addEventListener("close", () => resolve(at("confirm").returnValue === "yes"), { once: true }));
}

async function attempt(made, act) {
  if (made.getAttribute("aria-disabled") === "true") return;
  const outcome = made.closest(".actions").querySelector(".outcome");
  made.setAttribute("aria-disabled", "true");
  outcome.textContent = "";
  try {
    const words = await act();
    if (words) document.getElementById("said").textContent = words;
  } catch (error) {
    outcome.textContent = visible(reason(error), 1000);
  }
  made.removeAttribute("aria-disabled");
}
