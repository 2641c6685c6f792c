// One resource of what is managed, whole, and what belongs to it.

import { ask } from "./asking.js";
import { fullName, listed, marks, mood, signOn } from "./managed.js";
import { Flags } from "./flags.js";
import { badge, button, copied, copyButton, facts, properties } from "./parts.js";
import { Runs } from "./runs.js";
import { count, el, outside, plural, when } from "./text.js";

const LISTED = 50; // of each kind that belongs to something

const NAMES = {
  members: (item) => [`member:${item.id}`, item.user.email, mood.level(item)],
  projects: (item) => [`project:${item.id}`, item.name, mood.events(item)],
  invites: (item) => [`invite:${item.id}`, item.target_email, mood.invite(item), mood.level(item)],
  domains: (item) => [`domain:${item.id}`, item.domain, mood.domain(item)],
  dashboards: (item) => [`dashboard:${item.id}`, item.name, ...marks(item)],
  flags: (item) => [`flag:${item.id}`, item.key, mood.active(item)],
  "batch-exports": (item) => [`batch-export:${item.id}`, item.name, mood.paused(item)],
};

export class Resources {
  // `go` opens another item by its name in the address; `filter` lists events, and `list` something else, by filters; `changed` is called
  // when something was changed.
  constructor({ go, filter, list, changed }) {
    this.go = go;
    this.runs = new Runs({ go, changed });
    this.flags = new Flags({ go, changed });
    this.filter = filter;
    this.list = list;
    this.builds = {
      organization: ["organizations", (item) => this.organization(item)],
      project: ["projects", (item) => this.project(item)],
      member: ["members", (item) => this.member(item)],
      invite: ["invites", (item) => this.invite(item)],
      domain: ["domains", (item) => this.domain(item)],
      dashboard: ["dashboards", (item) => this.dashboard(item)],
      flag: ["flags", (item, more) => this.flag(item, more)],
      "batch-export": ["batch-exports", (item) => this.batchExport(item)],
    };
  }

  knows(kind) {
    return Object.hasOwn(this.builds, kind);
  }

  // What there is to see of a resource: what stands in its head, and the parts below; null if there is no such thing. `more` is what stands
  // behind its id in the address.
  async whole(kind, id, more) {
    if (!this.knows(kind)) return null;
    const [listing, build] = this.builds[kind];
    const item = (await ask(listing, { id, limit: 1 })).results[0];
    if (!item) return null;
    const { head, parts } = await build(item, more);
    return { head, parts: parts.flat().filter(Boolean) };
  }

  async organization(item) {
    const kinds = ["members", "projects", "invites", "domains"];
    const found = await Promise.all(kinds.map((kind) => this.belonging(kind, { organization: item.id })));
    return { head: [outside(item.name, 200)], parts: [facts([["id", copied(item.id, "id")], ["made", when(item.created_at)]]), ...found] };
  }

  async project(item) {
    const kinds = ["flags", "dashboards", "batch-exports"];
    const found = await Promise.all(kinds.map((kind) => this.belonging(kind, { project: item.id })));
    const events = button("Show its events", () => this.filter({ api_key: item.api_key, text: "", organization: "", project: "" }), { class: "link" });
    return {
      head: [outside(item.name, 200), mood.events(item)],
      parts: [
        facts([
          ["id", copied(String(item.id), "id")],
          ["uuid", copied(item.uuid, "uuid")],
          ["organization", this.owner(item)],
          ["project key", outside(item.api_key, 40, "mono")],
          ["events", item.ingested_event ? events : "none yet: send them with this project's api_token"],
          ["made", when(item.created_at)],
          ["changed", when(item.updated_at)],
        ]),
        ...found,
        heading("Settings"),
        properties(Object.fromEntries(Object.entries(item.settings).map(([name, value]) => [name, value === "" ? '""' : value]))),
      ],
    };
  }

  async member(item) {
    const { results } = await ask("members", { user: item.user.uuid, limit: LISTED });
    const others = results.filter((each) => each.id !== item.id);
    const also = others.map((each) => row(this.link(each.organization.name, `member:${each.id}`), mood.level(each)));
    const user = item.user;
    return {
      head: [outside(user.email, 200), mood.level(item)],
      parts: [
        facts([
          ["user uuid", copied(user.uuid, "user uuid")],
          ["name", fullName(user)],
          ["organization", this.owner(item)],
          ["level", `${item.level} (${item.level_name})`],
          ["role", user.role_at_organization],
          ["e-mail", user.is_email_verified ? "verified" : "not verified"],
          ["two factors", item.is_2fa_enabled ? "yes" : "no"],
          ["social login", item.has_social_auth ? "yes" : "no"],
          ["last login", item.last_login ? when(item.last_login) : "never"],
          ["joined", when(item.joined_at)],
          ["changed", when(item.updated_at)],
          ["distinct id", outside(user.distinct_id, 120, "mono")],
        ]),
        ...keys(item.personal_api_keys),
        also.length ? [heading("Also in"), el("ul", { class: "plain" }, ...also)] : [],
      ],
    };
  }

  async invite(item) {
    const by = (await ask("members", { user: item.created_by.uuid, organization: item.organization.id, limit: 1 })).results[0];
    const access = (item.private_project_access ?? []).map((each) => row(this.link(`project ${each.id}`, `project:${each.id}`), badge(each.level)));
    return {
      head: [outside(item.target_email, 200), mood.invite(item)],
      parts: [
        facts([
          ["id", copied(item.id, "id")],
          ["first name", item.first_name],
          ["organization", this.owner(item)],
          ["level", mood.level(item)],
          ["invited by", by ? this.link(item.created_by.email, `member:${by.id}`) : item.created_by.email],
          [item.is_expired ? "expired" : "expires", when(item.expires_at)],
          ["made", when(item.created_at)],
          ["message", item.message],
          ["e-mail", item.send_email ? "requested; the sandbox sends none" : "not requested"],
          ["combines", item.combine_pending_invites ? "with pending invites" : null],
        ]),
        access.length ? [heading("Access to private projects"), el("ul", { class: "plain" }, ...access)] : [],
      ],
    };
  }

  async domain(item) {
    return {
      head: [outside(item.domain, 200), mood.domain(item)],
      parts: [
        facts([
          ["id", copied(item.id, "id")],
          ["organization", this.owner(item)],
          ["verified", item.verified_at ? when(item.verified_at) : "not yet"],
          ["single sign-on", signOn(item)],
          ["SAML entity", item.saml_entity_id],
          ["SAML address", item.saml_acs_url],
          ["SAML certificate", item.saml_x509_cert ? outside(item.saml_x509_cert, 300, "mono") : null],
        ]),
        heading("DNS record"),
        el("p", { class: "soft" }, item.is_verified ? "By this the domain was, or could have been, verified." : "Set this, then verify: the domain is this organization's once the record is found."),
        facts([["type", item.dns_record.type], ["name", copied(item.dns_record.name, "name")], ["value", copied(item.dns_record.value, "value")]]),
        item.is_verified ? "" : command(`domains verify ${item.id} --organization ${item.organization.id}`),
      ],
    };
  }

  async dashboard(item) {
    return {
      head: [outside(item.name, 200), ...marks(item)],
      parts: [
        facts([
          ["id", copied(String(item.id), "id")],
          ["project", this.link(item.project.name, `project:${item.project.id}`)],
          ["organization", this.owner(item)],
          ["description", item.description],
          ["tags", item.tags.map((tag) => (typeof tag === "string" ? tag : JSON.stringify(tag))).join(", ")],
          ["made", when(item.created_at)],
          ["made by", item.created_by?.email],
          ["way", item.creation_mode],
          ["restriction", String(item.restriction_level)],
        ]),
      ],
    };
  }

  async flag(item, subject) {
    const places = item.project === null ? [] : [["project", this.link(item.project_name, `project:${item.project}`)]];
    return { head: [outside(item.key, 200), mood.active(item)], parts: await this.flags.parts(item, places, subject) };
  }

  async batchExport(item) {
    const places = [["project", this.link(item.project.name, `project:${item.project.id}`)], ["organization", this.owner(item)]];
    return { head: [outside(item.name, 200), mood.paused(item)], parts: await this.runs.parts(item, places) };
  }

  // What of a kind belongs to something, each of it to be opened.
  async belonging(kind, wanted) {
    const { count: total, results } = await ask(kind, { ...wanted, order: "newest", limit: LISTED });
    const [title] = listed(kind);
    const head = [heading(button(`${title} (${count(total)})`, () => this.list({ tab: kind, ...texts(wanted) }), { class: "link", title: "List them" }))];
    if (!total) return [...head, el("p", { class: "soft" }, "None.")];
    const items = results.map((item) => {
      const [address, name, ...badges] = NAMES[kind](item);
      return row(this.link(name, address), ...badges);
    });
    const more = total > results.length ? [el("li", { class: "soft" }, `${count(total - results.length)} more`)] : [];
    return [...head, el("ul", { class: "plain" }, ...items, ...more)];
  }

  owner(item) {
    return this.link(item.organization.name, `organization:${item.organization.id}`);
  }

  link(label, address) {
    return button(el("span", {}, outside(label, 120)), () => this.go(address), { class: "link" });
  }
}

function texts(wanted) {
  return Object.fromEntries(Object.entries(wanted).map(([name, value]) => [name, String(value)]));
}

function heading(...parts) {
  return el("h3", {}, ...parts);
}

function row(...parts) {
  return el("li", {}, ...parts);
}

function command(words) {
  const text = `forwarder manage ${words} --url ${location.origin}`;
  const shown = el("code", {}, outside(text, 400));
  return el("p", { class: "copied command" }, shown, copyButton(() => text, () => shown, "command"));
}

function keys(found) {
  if (!found.length) return [heading("Personal keys"), el("p", { class: "soft" }, "None: a seed gives them.")];
  const items = found.map((key) => [key.label || "without a label", outside(key.scopes.includes("*") ? "everything" : key.scopes.join(", "), 500, "mono")]);
  return [heading(plural(found.length, "personal key")), facts(items.map(([label, scopes]) => [outside(label, 80), scopes]))];
}
