"""What the interface document leaves open or the service does otherwise, and what is decided about it here; one record each.

Other modules name a gap where they close it: "gap `levels`". `docs/interface.md` has the same rows for people to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Gap:
    """One question that the interface document doesn't answer, or answers otherwise than the service."""

    name: str
    place: str
    """The heading in the interface document under which it is left open, or where the answer would be."""
    open: str
    """What is shown nowhere."""
    known: str
    """What the service is seen to do; empty: nothing."""
    decided: str


_RESOURCES: Final = "Gaps in the resource definitions"
_STATES: Final = "States and transitions"
_ENDPOINTS: Final = "Gaps in the management endpoints"
_INGESTION: Final = "Gaps in the ingestion endpoints"
_AUTHENTICATION: Final = "Authentication"
_EVENTS: Final = "Events"
_ERRORS: Final = "Errors"
_LIMITS: Final = "Limits"
_VERSIONING: Final = "Versioning"
_ENVELOPE: Final = "Paginated list envelope"
_DOMAIN: Final = "Domain"
_INVITE: Final = "Invite"
_MEMBER: Final = "Member"
_PROJECT: Final = "Project"
_EXPORT: Final = "BatchExport"
_DECIDE: Final = "POST /decide?v=3 (flag evaluation)"

# ruff: noqa: E501 - a table is read by its columns
# fmt: off
GAPS: Final = (
    Gap("read-only", _RESOURCES, "Which fields can be written.", "", "Those named as accepted for an operation; every other field of a body is ignored, whatever its value."),
    Gap("no-value-yet", _RESOURCES, "What a field that isn't called nullable has before there is anything to tell.", "null", "null for times, the primary dashboard, the creator of a dashboard and the total of a run; texts are empty."),
    Gap("null", _RESOURCES, "Whether null can be written.", "", "Only to fields that can be null; elsewhere it is refused with the code `null`."),
    Gap("lengths", _RESOURCES, "How long texts and lists can be.", "", "As the tables above say."),
    Gap("defaults", _RESOURCES, "The value of a field that was not sent.", "", "As the tables above say."),
    Gap("newer-fields", _RESOURCES, "Fields that a newer service adds.", "They are added at any time.", "The client keeps them as they came; the sandbox answers none."),
    Gap("levels", _RESOURCES, "Allowed values of `level`, and what each may do.", "1 member, 8 admin, 15 owner (unverified).", "These three. Members read, invite, take their own invites back, leave, and do everything about batch exports; the rest takes an admin. A caller may not give a level above their own, replace a pending invite or change a member above it, or change their own level: 403."),
    Gap("last-owner", _MEMBER, "Whether an organization can be without an owner.", "", "No: the last owner can neither be removed nor lowered nor leave: 400 `last_owner`."),
    Gap("roles", _RESOURCES, "Allowed values of `role_at_organization`.", "", "Any text; it comes from the seed."),
    Gap("sso-enforcement", _RESOURCES, "Allowed values of `sso_enforcement`.", "", "Any text up to 28 characters; empty: not enforced."),
    Gap("restriction-levels", _RESOURCES, "Allowed values of the restriction and privilege levels of a dashboard.", "21 and 37 (unverified).", "These two. As a restriction 21 lets all members edit and 37 only admins and the dashboard's creator; the effective one is the same. As a privilege 21 is to view and 37 to edit."),
    Gap("creation-mode", _RESOURCES, "Allowed values of `creation_mode`.", "default, template, duplicate (unverified).", "Any text; it comes from the seed."),
    Gap("dashboard-access", _RESOURCES, "Allowed values of `user_access_level` and `access_control_version`.", "", "`editor` or `viewer`, by the effective privilege; always `v2`."),
    Gap("intervals", _RESOURCES, "Allowed values of `interval`.", "hour, day, week, every 5 minutes, every 15 minutes.", "These five."),
    Gap("destination-types", _RESOURCES, "Allowed values of `destination.type`.", "", "Any text of 1 to 64 characters; a type that can't be served is reported when the export runs."),
    Gap("destination-config", _RESOURCES, "What is in `destination.config`.", "Its secrets are not read back.", "Any JSON. Keys that name secrets are left out of every answer; a change that leaves one out, or sends it masked, keeps it, unless the type changes."),
    Gap("export-settings", _RESOURCES, "What is in `schema` and `filters`.", "", "`filters`: any JSON, kept as sent. `schema`: null, as nothing can set it but a seed."),
    Gap("project-settings", _RESOURCES, "What is in the JSON settings of a project.", "", "Any JSON, kept as sent."),
    Gap("json-values", _PROJECT, "Which JSON can be kept.", "", "Up to 64 levels deep, numbers within 64 bits, texts without NUL and without half a surrogate pair; else 400 `invalid`."),
    Gap("texts-of-json", _PROJECT, "Why `default_modifiers` and `product_intents` are strings.", "The service answers an object and a list (unverified).", "Strings, as written: JSON texts, `{}` and `[]`."),
    Gap("sample-rate", _PROJECT, "What `session_recording_sample_rate` looks like.", "A decimal number between 0 and 1 as a string (unverified).", "That, with at most two decimals."),
    Gap("send-email", _RESOURCES, "Default of `send_email`.", "true", "true. The sandbox sends no email: `emailing_attempt_made` only says that it was asked to."),
    Gap("project-access", _RESOURCES, "What an entry of `private_project_access` is.", "`{id, level}`.", "`{id: integer, level: member or admin}` of projects of the same organization; null: none."),
    Gap("domain-names", _DOMAIN, "What a domain can be.", "A lower-case host name.", "A host name with at least one dot, lower-cased; each once in an organization, and once in all when it is verified."),
    Gap("domain-immutable", _DOMAIN, "Whether `domain` can be changed, though it is accepted on update.", "It can't.", "The same name is accepted, another is 400 `immutable`."),
    Gap("single-sign-on", _DOMAIN, "When single sign-on can be turned on.", "Once the domain is verified.", "`jit_provisioning_enabled` and `sso_enforcement` are ignored on create; on update of an unverified domain another value is 400 `verification_needed`. The SAML fields can be written at any time; `has_saml` says that all three are."),
    Gap("run-transitions", _STATES, "How the status of a run changes.", "", "It begins as Starting. Nothing runs exports in the sandbox yet, so it stays so; other statuses come from a seed."),
    Gap("verification", _STATES, "How a domain becomes verified.", "By its challenge in the DNS; a verified one is 400 `already_verified`.", "A TXT record of `_posthog-challenge.<domain>` with the challenge. If it isn't found, or the DNS fails, the answer is 200 and the domain stays unverified. It doesn't become unverified again."),
    Gap("invite-expiry", _STATES, "When an invite expires.", "After three days (unverified).", "After three days; it is listed until it is deleted or replaced."),
    Gap("pause-twice", _STATES, "What pausing a paused export does.", "", "Nothing, with the same answer: `last_paused_at` stays; likewise unpause. Writing `paused` is the same as the operation."),
    Gap("invite-again", _INVITE, "What another invite of an address does.", "It replaces the earlier ones (unverified).", "Addresses are compared without case. The earlier invites are gone; with `combine_pending_invites` the new one has the highest level and all the access of itself and of those that haven't expired."),
    Gap("invited-members", _INVITE, "What the invite of a member does.", "400", "400 about `target_email`."),
    Gap("bulk", "Invites", "What a bulk of invites is: the document names the fields of one.", "An array of at most 20.", "An array of at most 20, or one object; all are made or none. In an array an error names its place: `1__target_email`."),
    Gap("verify-scope", _ENDPOINTS, "Scope of domain verify.", "", "`organization:write`."),
    Gap("logs-scope", _ENDPOINTS, "Scope of the logs of a batch export.", "", "`batch_export:read`."),
    Gap("action-payloads", _ENDPOINTS, "Which fields pause, unpause, verify, backfill and retry need, and what these do.", "Backfill reads `start_at` and `end_at`.", "None is needed. All are checked, and ignored except those two of backfill."),
    Gap("backfill", _ENDPOINTS, "Which range a backfill takes.", "With a zone, start before end, not in the future.", "That, else 400. Without `start_at` it begins at the beginning, without `end_at` it ends now. It makes a run."),
    Gap("retry", _STATES, "What a retry leaves of the run.", "", "The run stays as it is; a new one of the same interval is made."),
    Gap("latest-runs", _EXPORT, "How many runs `latest_runs` has.", "", "The newest ten, the newest first."),
    Gap("export-deletion", _EXPORT, "What becomes of the runs of a deleted batch export.", "", "They are gone with it."),
    Gap("export-range", _EXPORT, "Whether `start_at` must be before `end_at`.", "", "Yes, else 400."),
    Gap("no-body", _ENDPOINTS, "Pause, unpause, backfill, retry and verify are said to have no body.", "They have: `{\"paused\": true}`, `{\"backfill_id\": …}`, the Domain.", "None; with `--strict` the service's. The client takes both."),
    Gap("logs-body", _ENDPOINTS, "What the logs of a batch export answer, which is said to have no body.", "", "No body in both modes."),
    Gap("export-operations", _ENDPOINTS, "Listing and creating batch exports and runs, and reading them by the organization.", "", "There are none; batch exports come from a seed."),
    Gap("project-operations", _ENDPOINTS, "Changing and deleting a project.", "", "There are none; a project stays."),
    Gap("dashboard-operations", _ENDPOINTS, "Everything about dashboards but the list.", "", "There is none; dashboards come from a seed, and one comes with each new project."),
    Gap("environments", "Environment batch exports", "What `project_id` of an environment is.", "", "The project's `id`, a number."),
    Gap("project-token", _PROJECT, "When the ingestion API accepts a new project's `api_token`.", "", "At once. What `ingested_event` and `has_group_types` say is worked out of what came with it."),
    Gap("primary-dashboard", _PROJECT, "Which dashboards can be a project's `primary_dashboard`.", "", "Those of the organization, else 400 `does_not_exist`; unless it is named, a new project gets one of its own."),
    Gap("capture-answer", _INGESTION, "Status and body of what capture and batch took.", "200 `{\"status\": \"Ok\"}`; older: `{\"status\": 1}`.", "200 `{\"status\": \"Ok\"}`."),
    Gap("keys", _AUTHENTICATION, "How personal keys are made, and what else there is about them.", "They begin with `phx_`, project keys with `phc_`.", "Personal keys come from a seed. Only `Authorization: Bearer` counts; a project key is no personal key, and the other way around."),
    Gap("scopes", _AUTHENTICATION, "Whether a write scope is enough to read.", "It is.", "It is; `*` is every scope."),
    Gap("isolation", _AUTHENTICATION, "What a key finds of an organization that its owner isn't a member of.", "", "Nothing: 404, as if it weren't there."),
    Gap("project-keys", _AUTHENTICATION, "Which project keys there are.", "A key that doesn't exist is answered 200 by batch, and 401 by decide.", "Those of the sandbox's projects, its seed and `--api-key`; without any of these every well-formed one. Another one is 401; with `--strict` batch and capture answer 200 and drop the events."),
    Gap("notifications", _EVENTS, "What the service sends to others about events.", "", "Nothing."),
    Gap("management-errors", _ERRORS, "Status and body of errors of the management API.", "`{\"type\", \"code\", \"detail\", \"attr\"}`.", "That body, with the statuses, types and codes that are tabulated here."),
    Gap("check-order", _ERRORS, "Which of several errors is answered.", "", "Key, scope, organization or project, level, body, ids within it, rules."),
    Gap("malformed-ids", _ERRORS, "What an id of the wrong form is.", "", "An id that doesn't exist: 404."),
    Gap("slashes", "Endpoints", "Whether the slash at the end of a path is needed.", "Some SDKs leave it out, and a redirect breaks them.", "It isn't; both forms are answered alike, without a redirect."),
    Gap("ingestion-failures", _ERRORS, "Status and body of a failure of the ingestion API.", "400, 401, 413, 429 and 503, in plain text.", "400, 401 and 413 in plain text, which quotes nothing of an event."),
    Gap("nameless-events", _ERRORS, "An event without name or distinct_id is said to be answered 200 and not ingested.", "400 for the whole request.", "200, and the other events of the request are ingested; with `--strict` 400. The forwarder filters such events, event by event."),
    Gap("shapes", _ERRORS, "A body without `batch`, or with another value than a list of objects.", "400 for the whole request, but an object without `batch` is one event.", "An object without `batch`, or with null, is one event; a list that is empty, or no list, is 400. What stands in the list and is no object isn't ingested, with 200; without a project key beside it, it is 400. With `--strict` it is 400 for the whole request."),
    Gap("historical-values", "POST /batch/ (multiple events)", "`historical_migration` that is no boolean.", "400 in a batch; beside a single event it isn't looked at.", "400; null counts as not given. With `--strict` the service's."),
    Gap("body-limit", _LIMITS, "A body of exactly 20 MB, and what 20 MB are.", "", "20,000,000 bytes are too many: 413, as it was sent or decompressed. `sources.http.max_body` is such a limit, too."),
    Gap("property-types", "POST /capture/ (single event)", "`properties` that is no object.", "400 for the whole request.", "200; it is kept as it came, and the event has no properties. With `--strict` 400."),
    Gap("timestamp-types", "POST /capture/ (single event)", "`timestamp` that is no text, or no time.", "400 for the whole request if it is no text; else the time of receipt.", "200; the event has the time of its receipt. With `--strict` the service's."),
    Gap("distinct-id-types", "POST /capture/ (single event)", "`distinct_id` that is no text.", "The id is the value as JSON text.", "That, in events and in flag evaluation; null counts as not given."),
    Gap("flag-types", _DECIDE, "`groups`, `person_properties` or `group_properties` of the wrong type.", "400", "400; null counts as not given, and the values of `groups` aren't looked at. Beside an event these are no fields: kept, without effect."),
    Gap("survey-without-id", _EVENTS, "An event of a survey without `$survey_id`, which is required.", "200; it is ingested, and belongs to no survey.", "200; the sandbox doesn't ingest it, and shows it with its request (`no_survey_id`). The forwarder delivers it: whether it is ingested is for the service to say. With `--strict` the service's."),
    Gap("ignored-fields", _DOMAIN, "Whether a caller learns that a field was ignored.", "", "The answer has the value that holds. `forwarder manage` compares it with what was sent, and says on stderr what was not applied; `domains verify` exits with 1 while the domain isn't verified."),
    Gap("rate-limits", _LIMITS, "Rate limits.", "429 `throttled`, with Retry-After.", "The sandbox has none. The client waits as Retry-After says where asking again is safe."),
    Gap("page-size", _LIMITS, "Default and maximum page size.", "100; a bad limit or offset is the default.", "100, at most 10,000. A `limit` that is not a positive number is 100, such an `offset` 0. `next` and `previous` keep all else of the query."),
    Gap("list-order", _ENVELOPE, "In which order lists are.", "", "Oldest first."),
    Gap("body-size", _LIMITS, "How large a body of the management API can be.", "", "1 MB, else 413."),
    Gap("management-versions", _VERSIONING, "Versioning of the management API.", "", "There is none."),
    Gap("decide-versions", _VERSIONING, "Other values of `v`.", "1 lists keys, 2 maps those that are on, 4 has an object for each flag.", "All of these; without `v` it is 1."),
    Gap("compressions", _DECIDE, "`supportedCompression` is said to be gzip and lz64.", "gzip, gzip-js.", "gzip and lz64; with `--strict` gzip and gzip-js. The listener takes all of them."),
    Gap("other-methods", "B. Ingestion API at {ingest_url}", "Whether anything but POST is answered.", "", "405. With `--strict` a GET of `/decide` is answered in the same form, without a person."),
    Gap("forwarded-for", _DECIDE, "How the header is spelled on the wire: `HTTP_X_FORWARDED_FOR` is a server's name of it.", "X-Forwarded-For.", "`X-Forwarded-For`. The sandbox looks no places up, so it changes nothing there."),
    Gap("group-flags", _DECIDE, "Which flags there are.", "", "None in the sandbox yet: every answer is empty, and `errorsWhileComputingFlags` false."),
)
# fmt: on
