// A batch export with its runs and their logs, and what a person can do with them: pause, backfill, retry, terminate.

import { action, actions, confirmed, field, form, submit } from "./acting.js";
import { ask, change } from "./asking.js";
import { mood } from "./managed.js";
import { badge, button, facts, properties } from "./parts.js";
import { count, el, outside, plural, visible, when } from "./text.js";

const SHOWN = 20; // runs that are listed, and as many more at a time
const LINES = 500; // of a log that are shown, the newest
const SECONDS = { "every 5 minutes": 300, "every 15 minutes": 900, hour: 3600, day: 86400, week: 604800 };
const MONDAY = 4 * 86400; // seconds from the first day of 1970, a Thursday, to a Monday
const GOING = ["Starting", "Running", "FailedRetryable"];
const TRIGGERS = { schedule: "by schedule", backfill: "backfill", retry: "retry", seed: "from the seed" };
const LEVELS = { ERROR: "bad", CRITICAL: "bad", FATAL: "bad", WARNING: "warn", WARN: "warn", INFO: "info" };
const RANGE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });

export class Runs {
  // `go` opens something by its name in the address; `changed` is called once something was changed here, or more is to be seen.
  constructor({ go, changed }) {
    this.go = go;
    this.changed = changed;
    this.logs = new Set(); // ids of the runs whose logs are open
    this.most = new Map(); // id of an export -> how many runs are listed
    this.backfilling = ""; // id of the export whose form is open
  }

  // The parts of an export's details: what it does, then each run.
  async parts(item, places) {
    const most = this.most.get(item.id) ?? SHOWN;
    const [{ count: total, results }, time] = await Promise.all([ask("batch-export-runs", { batch_export: item.id, limit: most }), sandboxTime()]);
    const open = results.filter((run) => this.logs.has(run.id));
    const logs = new Map(await Promise.all(open.map(async (run) => [run.id, (await ask(`batch-export-runs/${encodeURIComponent(run.id)}/logs`, {})).results])));
    return [
      actions(item.id, this.pausing(item), this.opening(item)),
      this.backfilling === item.id ? this.backfill(item, time.now) : "",
      el("p", { class: "soft", "data-key": "next" }, ...upcoming(item, time)),
      ...this.list(item, total, results, logs),
      el("h3", {}, "Settings"),
      facts([
        ["id", outside(item.id, 80, "mono")],
        ...places,
        ["model", item.model],
        ["interval", item.interval],
        ["from", item.start_at && when(item.start_at)],
        ["until", item.end_at && when(item.end_at)],
        ["last paused", item.last_paused_at && when(item.last_paused_at)],
        ["made", when(item.created_at)],
        ["changed", when(item.last_updated_at)],
        ["query", item.hogql_query && outside(item.hogql_query, 1000, "mono")],
        ["filters", filled(item.filters) && outside(JSON.stringify(item.filters), 1000, "mono")],
      ]),
      el("h3", {}, "Destination ", badge(item.destination.type)),
      properties(Object(item.destination.config)),
    ];
  }

  pausing(item) {
    const [verb, label, done] = item.paused ? ["unpause", "Unpause export", "runs again"] : ["pause", "Pause export", "is paused"];
    return action(label, async () => {
      await change("POST", `${path(item)}/${verb}`);
      await this.changed();
      return `${visible(item.name, 80)} ${done}.`;
    });
  }

  opening(item) {
    const open = this.backfilling === item.id;
    return button("Backfill…", async () => {
      this.backfilling = this.backfilling === item.id ? "" : item.id;
      await this.changed();
      document.querySelector('#detail [name="start_at"]')?.focus();
    }, { "aria-expanded": String(open), "data-key": "backfill-toggle" });
  }

  backfill(item, now) {
    const length = SECONDS[item.interval] ?? 3600;
    const end = floor(now, length);
    const many = el("p", { class: "soft numbers", role: "status" });
    const fields = [["From", "start_at", end - length], ["Until", "end_at", end]].map(([label, name, at]) => field(label, name, { type: "datetime-local", required: true, step: 1, value: local(at) }));
    const say = (elements) => (many.textContent = intervals(seconds(elements.start_at.value), seconds(elements.end_at.value), item.interval));
    const made = form(`backfill:${item.id}`, "Backfill", { fields: [...fields, many], buttons: [submit("Start backfill", { class: "primary" }), button("Cancel", () => this.closed())] }, async (elements) => {
      await change("POST", `${path(item)}/backfill`, { start_at: instant(elements.start_at.value), end_at: instant(elements.end_at.value) });
      await this.closed();
      return "The backfill has started.";
    });
    made.addEventListener("input", () => say(made.elements));
    say(made.elements);
    return made;
  }

  async closed() {
    this.backfilling = "";
    await this.changed();
    document.querySelector('#detail [data-key="backfill-toggle"]')?.focus();
  }

  list(item, total, results, logs) {
    if (!total) return [el("h3", {}, "Runs"), el("p", { class: "soft" }, item.paused ? "None: the export is paused. Unpause it, or start a backfill." : "None yet. A run starts when its interval has ended; a backfill starts at once.")];
    const more = button(`Show ${count(Math.min(SHOWN, total - results.length))} older`, () => {
      this.most.set(item.id, results.length + SHOWN);
      this.changed();
    }, { class: "link" });
    const rest = total > results.length ? [el("p", {}, more, el("span", { class: "soft" }, ` of ${count(total - results.length)}`))] : [];
    return [el("h3", { "data-key": "runs-title" }, plural(total, "run")), el("ul", { class: "plain runs", "data-key": `runs:${item.id}` }, ...results.map((run) => this.run(run, logs.get(run.id)))), ...rest];
  }

  run(run, log) {
    const going = GOING.includes(run.status);
    return el(
      "li",
      { class: "run", "data-key": `run:${run.id}`, "data-running": going && run.trigger !== "seed" },
      el("p", { class: "name", id: title(run) }, mood.run(run), el("span", {}, interval(run)), el("span", { class: "cause soft" }, visible(cause(run), 80))),
      going && run.records_total_count ? el("progress", { max: run.records_total_count, value: Math.min(run.records_completed, run.records_total_count), "aria-label": "Records exported" }) : "",
      facts([
        ["records", records(run)],
        ["started", when(run.created_at)],
        ["finished", run.finished_at && when(run.finished_at)],
        ["next attempt", run.next_attempt_at && when(run.next_attempt_at)],
        ["error", run.latest_error && outside(run.latest_error, 1000, run.status === "Completed" ? "" : "bad-text")],
        ["id", outside(run.id, 80, "mono soft")],
      ]),
      actions(run.id, this.logging(run), going ? this.terminating(run) : this.retrying(run)),
      log ? lines(run, log) : "",
    );
  }

  logging(run) {
    return button("Log", () => {
      if (!this.logs.delete(run.id)) this.logs.add(run.id);
      return this.changed();
    }, { "aria-expanded": String(this.logs.has(run.id)), "aria-describedby": title(run), "data-key": `log-toggle:${run.id}` });
  }

  retrying(run) {
    return action("Retry", async () => {
      await change("POST", `batch-export-runs/${encodeURIComponent(run.id)}/retry`);
      await this.changed();
      return "A new run of the same interval has started.";
    }, { "aria-describedby": title(run) });
  }

  terminating(run) {
    return action("Terminate…", async () => {
      const sure = await confirmed("Terminate this run?", "It stops and is not resumed; what it has exported so far stays at the destination. A retry exports the interval again.", "Terminate");
      if (!sure) return "";
      await change("POST", `batch-export-runs/${encodeURIComponent(run.id)}/terminate`);
      await this.changed();
      return "The run is terminated.";
    }, { class: "danger", "aria-describedby": title(run) });
  }
}

// The id of the line that says which run it is: what its buttons are about.
function title(run) {
  return `run-${run.id}`;
}

function path(item) {
  return `batch-exports/${encodeURIComponent(item.id)}`;
}

function lines(run, log) {
  const shown = log.slice(-LINES).map((line) => {
    const level = String(line.level).toUpperCase();
    return el("li", {}, el("span", { class: "soft numbers" }, when(line.timestamp, since(run, line))), badge(String(line.level).toLowerCase(), LEVELS[level] ?? ""), outside(line.message, 2000, LEVELS[level] === "bad" ? "bad-text" : ""));
  });
  const left = log.length - shown.length;
  const none = shown.length ? "" : el("p", { class: "soft" }, "The log is empty.");
  const older = left > 0 ? el("p", { class: "soft" }, `${plural(left, "older line")} not shown.`) : "";
  return el("div", { class: "log", role: "log", "aria-label": "Log of the run", tabindex: 0, "data-key": `log:${run.id}` }, older, none, el("ul", { class: "plain", "data-key": "lines" }, ...shown));
}

// How long after its run began a line was written.
function since(run, line) {
  const seconds = Math.max(0, Date.parse(line.timestamp) - Date.parse(run.created_at)) / 1000;
  return seconds < 60 ? `+${seconds.toFixed(1)}s` : `+${Math.trunc(seconds / 60)}m ${Math.trunc(seconds % 60)}s`;
}

function records(run) {
  return run.records_total_count === null ? count(run.records_completed) : `${count(run.records_completed)} of ${count(run.records_total_count)}`;
}

// What made a run, and how often it was tried.
function cause(run) {
  const continued = run.origin !== run.id && run.trigger !== "retry";
  return [TRIGGERS[run.trigger] ?? run.trigger, continued ? "continued" : "", run.attempt > 1 ? `attempt ${count(run.attempt)}` : ""].filter(Boolean).join(", ");
}

// The interval of a run in the reader's zone; without an end, or a beginning, all that there is.
function interval(run) {
  const [first, last] = [run.data_interval_start, run.data_interval_end].map((time) => (time ? new Date(time) : null));
  if (!first && !last) return "everything";
  if (!first || !last) return first ? `from ${RANGE.format(first)}` : `until ${RANGE.format(last)}`;
  return RANGE.formatRange(first, last);
}

function filled(filters) {
  return filters && (!Array.isArray(filters) || filters.length) && JSON.stringify(filters) !== "{}";
}

// How many intervals a range has; each becomes a run.
function intervals(first, last, name) {
  const length = SECONDS[name];
  if (!length || Number.isNaN(first) || Number.isNaN(last)) return "";
  if (first >= last) return "The first time must be before the second.";
  const number = Math.ceil((last - offset(length)) / length) - Math.floor((first - offset(length)) / length);
  return `${plural(number, "run")}, the oldest interval first. Times are in your time zone; intervals begin at whole UTC ${name === "day" ? "days" : name === "week" ? "weeks" : "hours and minutes"}.`;
}

function floor(time, length) {
  return Math.floor((time - offset(length)) / length) * length + offset(length);
}

function offset(length) {
  return length === SECONDS.week ? MONDAY : 0;
}

// The sandbox's time, and how far a test moved it, in seconds.
async function sandboxTime() {
  const { now, offset } = await ask("clock", {});
  return { now: Date.parse(now) / 1000, offset };
}

// When the next run of an export is, in words.
function upcoming(item, { now, offset }) {
  const length = SECONDS[item.interval];
  const [start, end] = [item.start_at, item.end_at].map((time) => (time ? Date.parse(time) / 1000 : null));
  const next = floor(Math.max(now, start ?? 0), length) + length;
  const moved = offset >= 1 ? [` The sandbox's clock is ${ahead(offset)} ahead.`] : [];
  if (item.paused) return ["Paused: intervals that end meanwhile run once it is unpaused.", ...moved];
  if (!length) return moved;
  return end !== null && next > end ? ["No further interval: the export has an end.", ...moved] : ["Next run: ", when(new Date(next * 1000).toISOString()), ".", ...moved];
}

function ahead(offset) {
  const [unit, size] = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]].find(([, size]) => offset >= size);
  return plural(Math.round((offset / size) * 10) / 10, unit);
}

// A time as an input of the reader's zone takes it, and back.
function local(at) {
  const time = new Date(at * 1000);
  return new Date(time - time.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

function seconds(text) {
  return Date.parse(text) / 1000;
}

function instant(text) {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? text : time.toISOString();
}
