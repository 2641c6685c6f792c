// The lists of what is managed: the cells of their rows, what filters them, and what to do where one is empty.

import { release } from "./conditions.js";
import { badge } from "./parts.js";
import { count, el, outside, visible, when } from "./text.js";

export const OF_PROJECTS = ["flags", "dashboards", "batch-exports"];
const RUNS = { Completed: "good", Running: "info", Starting: "info", FailedRetryable: "info", Cancelled: "", Terminated: "", ContinuedAsNew: "" };

export const mood = {
  level: (member) => badge(member.level_name, member.level_name === "member" ? "" : "info"),
  invite: (invite) => (invite.is_expired ? badge("expired", "warn") : badge("pending", "info")),
  domain: (domain) => (domain.is_verified ? badge("verified", "good") : badge("not verified", "warn")),
  active: (flag) => (flag.definition.deleted ? badge("deleted", "bad") : flag.active ? badge("on", "good") : badge("off")),
  paused: (batchExport) => (batchExport.paused ? badge("paused") : badge("on", "good")),
  run: (run) => badge(run.status, RUNS[run.status] ?? "bad"),
  events: (project) => (project.ingested_event ? badge("has events", "good") : badge("no events yet")),
};

// What a dashboard is, beside one among others.
export function marks(dashboard) {
  return [
    dashboard.is_primary ? badge("primary", "info") : "",
    dashboard.pinned ? badge("pinned", "info") : "",
    dashboard.is_shared ? badge("shared", "info") : "",
    dashboard.deleted ? badge("deleted", "bad") : "",
  ].filter(Boolean);
}

export function fullName(user) {
  return `${user.first_name} ${user.last_name}`.trim();
}

function name(text, ...badges) {
  return el("span", { class: "name" }, outside(text, 120, "strong"), ...badges);
}

function number(value) {
  return el("span", { class: "numbers" }, count(value));
}

function soft(text, most = 120) {
  return outside(text, most, "soft");
}

const plain = { managed: true, key: (item) => String(item.id), bad: () => false };

export const MANAGED = {
  organizations: {
    ...plain,
    heads: ["Made", "Organization", "Members", "Projects", "Domains", "Invites"],
    cells: (item) => [when(item.created_at), name(item.name), number(item.members), number(item.projects), number(item.domains), number(item.pending_invites)],
    open: (item) => `organization:${item.id}`,
  },
  projects: {
    ...plain,
    heads: ["Made", "Project", "Id", "Dashboards", "Batch exports", "Organization", "Key"],
    cells: (item) => [
      when(item.created_at),
      name(item.name, mood.events(item)),
      number(item.id),
      number(item.dashboards),
      number(item.batch_exports),
      soft(item.organization.name),
      outside(item.api_key, 40, "mono soft"),
    ],
    open: (item) => `project:${item.id}`,
  },
  members: {
    ...plain,
    heads: ["Joined", "Member", "Name", "Personal keys", "Organization"],
    cells: (item) => [when(item.joined_at), name(item.user.email, mood.level(item)), outside(fullName(item.user), 80), number(item.personal_api_keys.length), soft(item.organization.name)],
    open: (item) => `member:${item.id}`,
  },
  invites: {
    ...plain,
    heads: ["Made", "Invited", "Level", "Expires", "Organization"],
    cells: (item) => [when(item.created_at), name(item.target_email, mood.invite(item)), mood.level(item), when(item.expires_at), soft(item.organization.name)],
    open: (item) => `invite:${item.id}`,
  },
  domains: {
    ...plain,
    heads: ["Verified", "Domain", "Single sign-on", "Organization"],
    cells: (item) => [item.verified_at ? when(item.verified_at) : soft("not yet"), name(item.domain, mood.domain(item)), soft(signOn(item)), soft(item.organization.name)],
    open: (item) => `domain:${item.id}`,
  },
  flags: {
    ...plain,
    heads: ["Made", "Flag", "Release", "Calls", "Project"],
    cells: (item) => [when(item.created_at), name(item.key, mood.active(item)), soft(release(item.definition), 200), number(item.calls), soft(item.project_name ?? item.api_key)],
    open: (item) => `flag:${item.id}`,
  },
  dashboards: {
    ...plain,
    heads: ["Made", "Dashboard", "Id", "Project", "Organization"],
    cells: (item) => [when(item.created_at), name(item.name, ...marks(item)), number(item.id), outside(item.project.name, 80), soft(item.organization.name)],
    open: (item) => `dashboard:${item.id}`,
  },
  "batch-exports": {
    ...plain,
    heads: ["Made", "Batch export", "To", "Every", "Latest run", "Project", "Organization"],
    cells: (item) => [
      when(item.created_at),
      name(item.name, mood.paused(item)),
      outside(`${item.model} to ${item.destination.type}`, 80),
      soft(item.interval.replace(/^every /, ""), 40),
      item.latest_runs.length ? mood.run(item.latest_runs[0]) : soft("none"),
      outside(item.project.name, 80),
      soft(item.organization.name),
    ],
    open: (item) => `batch-export:${item.id}`,
  },
};

// What of single sign-on a domain has, in words.
export function signOn(domain) {
  const found = [domain.sso_enforcement && `enforced: ${domain.sso_enforcement}`, domain.has_saml && "SAML", domain.jit_provisioning_enabled && "makes accounts by itself"];
  return found.filter(Boolean).join(", ") || "none";
}

function seed() {
  return ["No endpoint of the interface makes one: start the sandbox with ", el("code", {}, "--seed example"), ", or with a seed of your own."];
}

function command(words, view) {
  const organization = view.organization ? visible(view.organization, 60) : "ID";
  const text = `forwarder manage ${words} --organization ${organization} --url ${location.origin}`;
  return ["Make one: ", el("code", {}, text), ". Organizations and keys come with --seed FILE."];
}

function flag() {
  return `curl -X PUT '${location.origin}/sandbox/flags/new-checkout?api_key=phc_…' -H 'Content-Type: application/json' -d '{"active": true, "filters": {"groups": [{"properties": [], "rollout_percentage": 50}]}}'`;
}

const TITLES = {
  organizations: ["Organizations", () => ["No organizations. ", ...seed()]],
  projects: ["Projects", (view) => ["No projects. ", ...command("projects create --name Shop", view)]],
  members: ["Members", () => ["No members. ", ...seed()]],
  invites: ["Invites", (view) => ["No invites. ", ...command("invites create --target-email someone@example.com", view)]],
  domains: ["Domains", (view) => ["No domains. ", ...command("domains create --domain example.com", view)]],
  flags: ["Flags", () => ["No flags. Set one: ", el("code", {}, flag()), ", or start the sandbox with --seed FILE."]],
  dashboards: ["Dashboards", (view) => ["No dashboards. Each new project gets one. ", ...command("projects create --name Shop", view)]],
  "batch-exports": ["Batch exports", () => ["No batch exports. ", ...seed()]],
};

// What a listing of a kind is made with: its title, and what else it needs.
export function listed(kind) {
  const [title, none] = TITLES[kind];
  const inProject = OF_PROJECTS.includes(kind);
  const empty = (view) => (view.text ? "Nothing that is here matches the filter." : none(view));
  const wanted = (view) => ({ text: view.text, [kind === "organizations" ? "id" : "organization"]: view.organization, ...(inProject ? { project: view.project } : {}) });
  return [title, { wanted, empty, marks: true }];
}
