"""What the interface document leaves open or the service does otherwise, and what is decided about
it here; one record each.

Other modules name a gap where they close it: "gap `levels`". `docs/maintainers/interface.md` has
the same rows for people to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Gap:
    """One question that the interface document doesn't answer, or answers
    otherwise than the service.
    """

    name: str
    place: str
    """The heading in the interface document under which it is left open, or
    where the answer would be.
    """
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

GAPS: Final = (
    Gap(
        "read-only",
        _RESOURCES,
        "Which fields can be written.",
        "",
        (
            "Those named as accepted for an operation; every other field of a body is ignored, "
            "whatever its value."
        ),
    ),
    Gap(
        "no-value-yet",
        _RESOURCES,
        "What a field that isn't called nullable has before there is anything to tell.",
        "null",
        (
            "null for times, the primary dashboard, the creator of a dashboard and the total of a "
            "run; texts are empty."
        ),
    ),
    Gap(
        "null",
        _RESOURCES,
        "Whether null can be written.",
        "",
        "Only to fields that can be null; elsewhere it is refused with the code `null`.",
    ),
    Gap("lengths", _RESOURCES, "How long texts and lists can be.", "", "As the tables above say."),
    Gap(
        "defaults",
        _RESOURCES,
        "The value of a field that was not sent.",
        "",
        "As the tables above say.",
    ),
    Gap(
        "newer-fields",
        _RESOURCES,
        "Fields that a newer service adds.",
        "They are added at any time.",
        "The client keeps them as they came; the sandbox answers none.",
    ),
    Gap(
        "levels",
        _RESOURCES,
        "Allowed values of `level`, and what each may do.",
        "1 member, 8 admin, 15 owner (unverified).",
        (
            "These three. Members read, invite, take their own invites back, leave, and do "
            "everything about batch exports; the rest takes an admin. A caller may not give a "
            "level above their own, replace a pending invite or change a member above it, or "
            "change their own level: 403."
        ),
    ),
    Gap(
        "last-owner",
        _MEMBER,
        "Whether an organization can be without an owner.",
        "",
        "No: the last owner can neither be removed nor lowered nor leave: 400 `last_owner`.",
    ),
    Gap(
        "roles",
        _RESOURCES,
        "Allowed values of `role_at_organization`.",
        "",
        "Any text; it comes from the seed.",
    ),
    Gap(
        "sso-enforcement",
        _RESOURCES,
        "Allowed values of `sso_enforcement`.",
        "",
        "Any text up to 28 characters; empty: not enforced.",
    ),
    Gap(
        "restriction-levels",
        _RESOURCES,
        "Allowed values of the restriction and privilege levels of a dashboard.",
        "21 and 37 (unverified).",
        (
            "These two. As a restriction 21 lets all members edit and 37 only admins and the "
            "dashboard's creator; the effective one is the same. As a privilege 21 is to view and "
            "37 to edit."
        ),
    ),
    Gap(
        "creation-mode",
        _RESOURCES,
        "Allowed values of `creation_mode`.",
        "default, template, duplicate (unverified).",
        "Any text; it comes from the seed.",
    ),
    Gap(
        "dashboard-access",
        _RESOURCES,
        "Allowed values of `user_access_level` and `access_control_version`.",
        "",
        "`editor` or `viewer`, by the effective privilege; always `v2`.",
    ),
    Gap(
        "intervals",
        _RESOURCES,
        "Allowed values of `interval`.",
        "hour, day, week, every 5 minutes, every 15 minutes.",
        "These five.",
    ),
    Gap(
        "interval-alignment",
        _EXPORT,
        "Where intervals begin, and which is the first and the last of an export.",
        "Aligned in UTC; newer versions have a zone and an offset.",
        (
            "At the hour, at midnight, at Monday's midnight, at each fifth or fifteenth minute, "
            "in UTC. The first is that of `start_at`, else the one in which the export was made; "
            "the last is the last one that ends at or before `end_at`. A run is made once its "
            "interval has ended."
        ),
    ),
    Gap(
        "missed-intervals",
        _EXPORT,
        "What becomes of the intervals in which an export is paused, or nothing runs.",
        "Those of a pause are left out.",
        (
            "They run afterwards, one after the other, the oldest first; each has one run, and "
            "none is left out. Beyond the newest 100,000 what is older goes out with the first of "
            "these."
        ),
    ),
    Gap(
        "exported-events",
        _EXPORT,
        "Which events a run exports.",
        (
            "A run of the schedule those that were ingested in its interval, a run of a backfill "
            "those whose time is in it."
        ),
        (
            "A run of the schedule: all that is there when it is made and has its time before the "
            "end of the interval, without what the one before it had; so each event goes out "
            "once, a late one with the interval in which it came. The first leaves out what came "
            "before the export was made and has an earlier time; none before `start_at`. A run of "
            "a backfill: those whose time is in its interval. Retries and continued runs have the "
            "selection of the first."
        ),
    ),
    Gap(
        "exported-records",
        _EXPORT,
        "What a record has.",
        "Columns of its own for each destination.",
        (
            "Of an event `uuid`, `event`, `distinct_id`, `timestamp`, `properties` as sent, "
            "`$set`, `$set_once`, `$unset` where it has them, `person_id`, `person_properties` as "
            "it was ingested, `team_id`, `created_at`; of a person one record for each of its "
            "distinct ids, with `person_id`, `properties`, `created_at`, `is_identified`. "
            "Duplicates and conflicts are left out."
        ),
    ),
    Gap(
        "exported-files",
        _EXPORT,
        "What a destination gets.",
        "Files or requests of many records, each at least once.",
        (
            "Parts, each durable before the next: files of up to 10,000 records or 16 MB, "
            "`FIRST_LAST_RUN_PART.jsonl` and so on, requests of up to 1,000 events or 8 MB. A "
            "part that is written again replaces itself. Without records there is none."
        ),
    ),
    Gap(
        "export-changes",
        _EXPORT,
        "When a change of a batch export takes effect.",
        "",
        (
            "With the next run: one that has begun keeps its model, destination, filters and "
            "interval, also for further attempts. After a change of `interval` or `start_at` the "
            "next interval begins where the last one ended, or later."
        ),
    ),
    Gap(
        "destination-types",
        _RESOURCES,
        "Allowed values of `destination.type`.",
        "",
        (
            "Any text of 1 to 64 characters. `Folder`, `S3` and `HTTP` are served, in any case; a "
            "run to another type is Failed, and says so."
        ),
    ),
    Gap(
        "destination-config",
        _RESOURCES,
        "What is in `destination.config`.",
        "Its secrets are not read back.",
        (
            "Any JSON. [Destination config](#destination-config) has the keys that count; where "
            "one is missing or wrong, a run is Failed, and says so. Keys that name secrets are "
            "left out of every answer; a change that leaves one out, or sends it masked, keeps "
            "it, unless the type changes."
        ),
    ),
    Gap(
        "private-destinations",
        _EXPORT,
        "Which addresses an export can go to.",
        "Public ones.",
        (
            "Those that are public; with `--allow-private-destinations` all. Folders are below "
            "`--export-root`, which a run can't leave."
        ),
    ),
    Gap(
        "export-settings",
        _RESOURCES,
        "What is in `schema`, `filters` and `hogql_query`.",
        "",
        (
            "`filters`: any JSON, kept as sent. A list of property conditions, as flags have "
            "them, is applied to events or persons; with anything else a run is Failed. `schema` "
            "and `hogql_query` are kept and not run, which the log of each run says; `schema` is "
            "null unless a seed says otherwise."
        ),
    ),
    Gap(
        "project-settings",
        _RESOURCES,
        "What is in the JSON settings of a project.",
        "",
        "Any JSON, kept as sent.",
    ),
    Gap(
        "json-values",
        _PROJECT,
        "Which JSON can be kept.",
        "",
        (
            "Up to 64 levels deep, numbers within 64 bits, texts without NUL and without half a "
            "surrogate pair; else 400 `invalid`."
        ),
    ),
    Gap(
        "texts-of-json",
        _PROJECT,
        "Why `default_modifiers` and `product_intents` are strings.",
        "The service answers an object and a list (unverified).",
        "Strings, as written: JSON texts, `{}` and `[]`.",
    ),
    Gap(
        "sample-rate",
        _PROJECT,
        "What `session_recording_sample_rate` looks like.",
        "A decimal number between 0 and 1 as a string (unverified).",
        "That, with at most two decimals.",
    ),
    Gap(
        "send-email",
        _RESOURCES,
        "Default of `send_email`.",
        "true",
        "true. The sandbox sends no email: `emailing_attempt_made` only says that it was asked to.",
    ),
    Gap(
        "project-access",
        _RESOURCES,
        "What an entry of `private_project_access` is.",
        "`{id, level}`.",
        "`{id: integer, level: member or admin}` of projects of the same organization; null: none.",
    ),
    Gap(
        "domain-names",
        _DOMAIN,
        "What a domain can be.",
        "A lower-case host name.",
        (
            "A host name with at least one dot, lower-cased; each once in an organization, and "
            "once in all when it is verified."
        ),
    ),
    Gap(
        "domain-immutable",
        _DOMAIN,
        "Whether `domain` can be changed, though it is accepted on update.",
        "It can't.",
        "The same name is accepted, another is 400 `immutable`.",
    ),
    Gap(
        "single-sign-on",
        _DOMAIN,
        "When single sign-on can be turned on.",
        "Once the domain is verified.",
        (
            "`jit_provisioning_enabled` and `sso_enforcement` are ignored on create; on update of "
            "an unverified domain another value is 400 `verification_needed`. The SAML fields can "
            "be written at any time; `has_saml` says that all three are."
        ),
    ),
    Gap(
        "run-transitions",
        _STATES,
        "How the status of a run changes.",
        "",
        (
            "Starting, Running, Completed. An error of the destination is FailedRetryable and, "
            "after 2, 4, 8 and 16 seconds, Starting again; the fifth is Failed, and so is an "
            "error of the configuration. Terminated: stopped on the page. Cancelled: its export "
            "was deleted. TimedOut: an attempt took longer than the interval. ContinuedAsNew: the "
            "sandbox was stopped, and a new run continues from the `cursor`. A finished run "
            "doesn't change."
        ),
    ),
    Gap(
        "verification",
        _STATES,
        "How a domain becomes verified.",
        "By its challenge in the DNS; a verified one is 400 `already_verified`.",
        (
            "A TXT record of `_posthog-challenge.<domain>` with the challenge. If it isn't found, "
            "or the DNS fails, the answer is 200 and the domain stays unverified. It doesn't "
            "become unverified again."
        ),
    ),
    Gap(
        "invite-expiry",
        _STATES,
        "When an invite expires.",
        "After three days (unverified).",
        "After three days; it is listed until it is deleted or replaced.",
    ),
    Gap(
        "pause-twice",
        _STATES,
        "What pausing a paused export does.",
        "",
        (
            "Nothing, with the same answer: `last_paused_at` stays; likewise unpause. Writing "
            "`paused` is the same as the operation. A run that has begun comes to its end."
        ),
    ),
    Gap(
        "invite-again",
        _INVITE,
        "What another invite of an address does.",
        "It replaces the earlier ones (unverified).",
        (
            "Addresses are compared without case. The earlier invites are gone; with "
            "`combine_pending_invites` the new one has the highest level and all the access of "
            "itself and of those that haven't expired."
        ),
    ),
    Gap(
        "invited-members",
        _INVITE,
        "What the invite of a member does.",
        "400",
        "400 about `target_email`.",
    ),
    Gap(
        "bulk",
        "Invites",
        "What a bulk of invites is: the document names the fields of one.",
        "An array of at most 20.",
        (
            "An array of at most 20, or one object; all are made or none. In an array an error "
            "names its place: `1__target_email`."
        ),
    ),
    Gap("verify-scope", _ENDPOINTS, "Scope of domain verify.", "", "`organization:write`."),
    Gap(
        "logs-scope", _ENDPOINTS, "Scope of the logs of a batch export.", "", "`batch_export:read`."
    ),
    Gap(
        "action-payloads",
        _ENDPOINTS,
        "Which fields pause, unpause, verify, backfill and retry need, and what these do.",
        "Backfill reads `start_at` and `end_at`.",
        "None is needed. All are checked, and ignored except those two of backfill.",
    ),
    Gap(
        "backfill",
        _ENDPOINTS,
        "Which range a backfill takes.",
        "With a zone, start before end, not in the future.",
        (
            "That, else 400. Without `start_at` it begins with that of the export, else with the "
            "first event of the project; without `end_at` it ends now. Each interval that it "
            "touches is a run, the oldest first, the first and last clipped to the range; more "
            "than 100,000 are 400. They run whether the export is paused or not."
        ),
    ),
    Gap(
        "retry",
        _STATES,
        "What a retry leaves of the run.",
        "",
        (
            "The run stays as it is, whatever its status. A new one exports the same selection by "
            "what destination, model and filters the export then has, and replaces what the first "
            "one wrote."
        ),
    ),
    Gap(
        "latest-runs",
        _EXPORT,
        "How many runs `latest_runs` has.",
        "",
        "The newest ten, the newest first.",
    ),
    Gap(
        "export-deletion",
        _EXPORT,
        "What becomes of the runs of a deleted batch export.",
        "",
        (
            "Those that aren't finished are Cancelled, and write no more once the deletion is "
            "answered. The API has none of them any more; the sandbox's own "
            "`/sandbox/batch-export-runs` has."
        ),
    ),
    Gap(
        "export-range", _EXPORT, "Whether `start_at` must be before `end_at`.", "", "Yes, else 400."
    ),
    Gap(
        "no-body",
        _ENDPOINTS,
        "Pause, unpause, backfill, retry and verify are said to have no body.",
        'They have: `{"paused": true}`, `{"backfill_id": …}`, the Domain.',
        "None; with `--strict` the service's. The client takes both.",
    ),
    Gap(
        "logs-body",
        _ENDPOINTS,
        "What the logs of a batch export answer, which is said to have no body.",
        "Lines of a log, each with its time, level and message.",
        (
            'None; with `--strict` `{"results": [{"timestamp", "level", "message"}]}`, the newest '
            "1,000 lines of all its runs, the newest last. The client takes both."
        ),
    ),
    Gap(
        "export-operations",
        _ENDPOINTS,
        "Listing and creating batch exports and runs, and reading them by the organization.",
        "",
        (
            "There are none; batch exports come from a seed, and `/sandbox/batch-export-runs` "
            "lists runs."
        ),
    ),
    Gap(
        "project-operations",
        _ENDPOINTS,
        "Changing and deleting a project.",
        "",
        "There are none; a project stays.",
    ),
    Gap(
        "dashboard-operations",
        _ENDPOINTS,
        "Everything about dashboards but the list.",
        "",
        "There is none; dashboards come from a seed, and one comes with each new project.",
    ),
    Gap(
        "environments",
        "Environment batch exports",
        "What `project_id` of an environment is.",
        "",
        "The project's `id`, a number.",
    ),
    Gap(
        "project-token",
        _PROJECT,
        "When the ingestion API accepts a new project's `api_token`.",
        "",
        (
            "At once. What `ingested_event` and `has_group_types` say is worked out of what came "
            "with it."
        ),
    ),
    Gap(
        "primary-dashboard",
        _PROJECT,
        "Which dashboards can be a project's `primary_dashboard`.",
        "",
        (
            "Those of the organization, else 400 `does_not_exist`; unless it is named, a new "
            "project gets one of its own."
        ),
    ),
    Gap(
        "capture-answer",
        _INGESTION,
        "Status and body of what capture and batch took.",
        '200 `{"status": "Ok"}`; older: `{"status": 1}`.',
        '200 `{"status": "Ok"}`.',
    ),
    Gap(
        "keys",
        _AUTHENTICATION,
        "How personal keys are made, and what else there is about them.",
        "They begin with `phx_`, project keys with `phc_`.",
        (
            "Personal keys come from a seed. Only `Authorization: Bearer` counts; a project key "
            "is no personal key, and the other way around."
        ),
    ),
    Gap(
        "scopes",
        _AUTHENTICATION,
        "Whether a write scope is enough to read.",
        "It is.",
        "It is; `*` is every scope.",
    ),
    Gap(
        "isolation",
        _AUTHENTICATION,
        "What a key finds of an organization that its owner isn't a member of.",
        "",
        "Nothing: 404, as if it weren't there.",
    ),
    Gap(
        "project-keys",
        _AUTHENTICATION,
        "Which project keys there are.",
        "A key that doesn't exist is answered 200 by batch, and 401 by decide.",
        (
            "Those of the sandbox's projects, its seed and `--api-key`; without any of these "
            "every well-formed one. Another one is 401; with `--strict` batch and capture answer "
            "200 and drop the events."
        ),
    ),
    Gap("notifications", _EVENTS, "What the service sends to others about events.", "", "Nothing."),
    Gap(
        "management-errors",
        _ERRORS,
        "Status and body of errors of the management API.",
        '`{"type", "code", "detail", "attr"}`.',
        "That body, with the statuses, types and codes that are tabulated here.",
    ),
    Gap(
        "check-order",
        _ERRORS,
        "Which of several errors is answered.",
        "",
        "Key, scope, organization or project, level, body, ids within it, rules.",
    ),
    Gap(
        "malformed-ids",
        _ERRORS,
        "What an id of the wrong form is.",
        "",
        "An id that doesn't exist: 404.",
    ),
    Gap(
        "slashes",
        "Endpoints",
        "Whether the slash at the end of a path is needed.",
        "Some SDKs leave it out, and a redirect breaks them.",
        "It isn't; both forms are answered alike, without a redirect.",
    ),
    Gap(
        "ingestion-failures",
        _ERRORS,
        "Status and body of a failure of the ingestion API.",
        "400, 401, 413, 429 and 503, in plain text; decide answers 401 in JSON.",
        (
            "400, 401 and 413 in plain text, which quotes nothing of an event. With `--strict` "
            "decide answers 401 as the service does."
        ),
    ),
    Gap(
        "nameless-events",
        _ERRORS,
        "An event without name or distinct_id is said to be answered 200 and not ingested.",
        "400 for the whole request.",
        (
            "200, and the other events of the request are ingested; with `--strict` 400. The "
            "forwarder filters such events, event by event."
        ),
    ),
    Gap(
        "shapes",
        _ERRORS,
        "A body without `batch`, or with another value than a list of objects.",
        "400 for the whole request, but an object without `batch` is one event.",
        (
            "An object without `batch`, or with null, is one event; a list that is empty, or no "
            "list, is 400. What stands in the list and is no object isn't ingested, with 200; "
            "without a project key beside it, it is 400. With `--strict` it is 400 for the whole "
            "request."
        ),
    ),
    Gap(
        "historical-values",
        "POST /batch/ (multiple events)",
        "`historical_migration` that is no boolean.",
        "400 in a batch; beside a single event it isn't looked at.",
        "400; null counts as not given. With `--strict` the service's.",
    ),
    Gap(
        "body-limit",
        _LIMITS,
        "A body of exactly 20 MB, and what 20 MB are.",
        "",
        (
            "20,000,000 bytes are too many: 413, as it was sent or decompressed. "
            "`sources.http.max_body` is such a limit, too."
        ),
    ),
    Gap(
        "property-types",
        "POST /capture/ (single event)",
        "`properties` that is no object.",
        "400 for the whole request.",
        "200; it is kept as it came, and the event has no properties. With `--strict` 400.",
    ),
    Gap(
        "timestamp-types",
        "POST /capture/ (single event)",
        "`timestamp` that is no text, or no time.",
        "400 for the whole request if it is no text; else the time of receipt.",
        "200; the event has the time of its receipt. With `--strict` the service's.",
    ),
    Gap(
        "distinct-id-types",
        "POST /capture/ (single event)",
        "`distinct_id` that is no text.",
        "The id is the value as JSON text.",
        "That, in events and in flag evaluation; null counts as not given.",
    ),
    Gap(
        "flag-types",
        _DECIDE,
        "`groups`, `person_properties` or `group_properties` of the wrong type.",
        "400",
        (
            "400; null counts as not given, and a value of `groups` that is no text is a group's "
            "key as JSON text. Beside an event these are no fields: kept, without effect."
        ),
    ),
    Gap(
        "survey-without-id",
        _EVENTS,
        "An event of a survey without `$survey_id`, which is required.",
        "200; it is ingested, and belongs to no survey.",
        (
            "200; the sandbox doesn't ingest it, and shows it with its request (`no_survey_id`). "
            "The forwarder delivers it: whether it is ingested is for the service to say. With "
            "`--strict` the service's."
        ),
    ),
    Gap(
        "ignored-fields",
        _DOMAIN,
        "Whether a caller learns that a field was ignored.",
        "",
        (
            "The answer has the value that holds. `forwarder manage` compares it with what was "
            "sent, and says on stderr what was not applied; `domains verify` exits with 1 while "
            "the domain isn't verified."
        ),
    ),
    Gap(
        "rate-limits",
        _LIMITS,
        "Rate limits.",
        "429 `throttled`, with Retry-After.",
        (
            "The sandbox has none, unless `/sandbox/faults` makes it answer so. The client waits "
            "as Retry-After says where asking again is safe."
        ),
    ),
    Gap(
        "page-size",
        _LIMITS,
        "Default and maximum page size.",
        "100; a bad limit or offset is the default.",
        (
            "100, at most 10,000. A `limit` that is not a positive number is 100, such an "
            "`offset` 0. `next` and `previous` keep all else of the query."
        ),
    ),
    Gap("list-order", _ENVELOPE, "In which order lists are.", "", "Oldest first."),
    Gap(
        "body-size",
        _LIMITS,
        "How large a body of the management API can be.",
        "",
        "1 MB, else 413.",
    ),
    Gap(
        "management-versions",
        _VERSIONING,
        "Versioning of the management API.",
        "",
        "There is none.",
    ),
    Gap(
        "decide-versions",
        _VERSIONING,
        "Other values of `v`.",
        "1 lists keys, 2 maps those that are on, 4 has an object for each flag.",
        "All of these; without `v`, or with one that isn't a number, it is 1.",
    ),
    Gap(
        "compressions",
        _DECIDE,
        "`supportedCompression` is said to be gzip and lz64.",
        "gzip, gzip-js.",
        "gzip and lz64; with `--strict` gzip and gzip-js. The listener takes all of them.",
    ),
    Gap(
        "decide-fields",
        _DECIDE,
        "Whether decide answers more fields than these.",
        (
            "`requestId`, `evaluatedAt` and the project's settings; versions 1 and 2 have no "
            "`errorsWhileComputingFlags`."
        ),
        "It doesn't; with `--strict` as the service.",
    ),
    Gap(
        "decide-numbers",
        _DECIDE,
        "NaN and Infinity in a body.",
        "They are null.",
        "400, since they are no JSON; with `--strict` null.",
    ),
    Gap(
        "other-methods",
        "B. Ingestion API at {ingest_url}",
        "Whether anything but POST is answered.",
        "",
        "405. With `--strict` a GET of `/decide` is answered in the same form, without a person.",
    ),
    Gap(
        "forwarded-for",
        _DECIDE,
        "How the header is spelled on the wire: `HTTP_X_FORWARDED_FOR` is a server's name of it.",
        "X-Forwarded-For.",
        (
            "`HTTP_X_FORWARDED_FOR` literally, else `X-Forwarded-For`, else the sender's address. "
            "The first address of a header counts, wherever it is. Without `--geoip` no address "
            "has a place."
        ),
    ),
    Gap(
        "group-flags",
        _DECIDE,
        "Which flags there are.",
        "",
        "Those of the seed, of `PUT /sandbox/flags/{key}`, and of the page.",
    ),
    Gap(
        "flag-forms",
        _DECIDE,
        "How flags and cohorts are made; the document has no endpoint for them.",
        "By an API of its own, in the form that `/flags/definitions` returns.",
        (
            "In that form by the seed and by `PUT /sandbox/flags/{key}`, `/sandbox/cohorts/{id}`. "
            "Fields that mean nothing here are kept; what is of another form is 400, or an error "
            "of the seed, and says where."
        ),
    ),
    Gap(
        "flag-evaluation",
        _DECIDE,
        "How the value of a flag is found.",
        "By its public code; its SDKs find it from the definitions.",
        (
            "As that code does, also where an SDK decides otherwise. An inactive flag isn't "
            "answered, nor is a deleted one."
        ),
    ),
    Gap(
        "evaluated-properties",
        _DECIDE,
        "How properties of a request go together with stored ones.",
        "Those of the request replace stored ones of the same name, for this request.",
        (
            "That, property by property, of the person and of each group; the places of the "
            "address come between the two. A property of a place that is null counts as not given."
        ),
    ),
    Gap(
        "flag-errors",
        _DECIDE,
        "When `errorsWhileComputingFlags` is true, and what of a flag that failed is answered.",
        "Such a flag is false, or marked as failed.",
        (
            "When a flag can't be computed, and no other of its conditions decides. It is false "
            "in `featureFlags`, and `failed` where each flag is an object; all others are right. "
            "A condition on a flag that there is not is no error: that flag is false. Flags that "
            "depend on themselves aren't answered, and all answers of their project have errors."
        ),
    ),
)
