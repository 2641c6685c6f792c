"""The tables of a sandbox's database, and the migration of a file of an older version.

`requests`, `events` and `not_ingested` are the source of truth and are append-only. Persons and
groups are derived from them in order, up to the arrival in `progress` (see `effects`): a file of
version 1, which has arrivals only, gets empty tables, and the next query derives their content. A
file of version 2 has no management tables and gets empty ones. Up to version 3 no arrival has the
name of its import; up to version 4 there are no definitions of flags, and batch exports don't run;
up to version 5 it isn't known where a person's properties come from, and no index finds a group's
type.

Columns of the management tables are named as the fields that they hold; times are ISO 8601 in UTC
(`times.format_time`), JSON is text. Resources are listed in the order of `number`, or of `id`
where that is a number. None of them is derived from events, so `clear` keeps them.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from forwarder.core.errors import ConfigurationError

VERSION: Final = 6
_ARRIVALS: Final = """
CREATE TABLE requests (
    id INTEGER PRIMARY KEY, received_at TEXT NOT NULL, path TEXT NOT NULL, query TEXT NOT NULL,
    headers TEXT NOT NULL, api_key TEXT, historical_migration INTEGER NOT NULL, encoding TEXT,
    size INTEGER NOT NULL, status INTEGER NOT NULL, answer TEXT NOT NULL, error TEXT,
    events INTEGER NOT NULL, duplicates INTEGER NOT NULL, conflicts INTEGER NOT NULL,
    not_ingested INTEGER NOT NULL
);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, request INTEGER NOT NULL REFERENCES requests,
    position INTEGER NOT NULL, kind TEXT NOT NULL, first INTEGER, api_key TEXT NOT NULL,
    historical INTEGER NOT NULL, uuid TEXT NOT NULL, event TEXT NOT NULL,
    distinct_id TEXT NOT NULL, timestamp_sent TEXT, timestamp TEXT NOT NULL,
    properties TEXT NOT NULL, raw BLOB NOT NULL
);
CREATE INDEX versions ON events (uuid, api_key) WHERE kind <> 'duplicate';
CREATE INDEX conflicts ON events (id) WHERE kind = 'conflict';
CREATE TABLE not_ingested (
    id INTEGER PRIMARY KEY, request INTEGER NOT NULL REFERENCES requests,
    position INTEGER NOT NULL, reason TEXT NOT NULL, raw BLOB NOT NULL
);
CREATE INDEX not_ingested_of ON not_ingested (request);
"""
_ADDED: Final = """
ALTER TABLE requests ADD COLUMN method TEXT NOT NULL DEFAULT 'POST';
CREATE INDEX events_of ON events (request);
"""
_EFFECTS: Final = """
CREATE TABLE progress (arrival INTEGER NOT NULL);
INSERT INTO progress VALUES (0);
CREATE TABLE persons (
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL, api_key TEXT NOT NULL,
    distinct_id TEXT NOT NULL, properties TEXT NOT NULL, created_at TEXT NOT NULL,
    is_identified INTEGER NOT NULL
);
CREATE INDEX persons_by_uuid ON persons (uuid);
CREATE TABLE distinct_ids (
    id INTEGER PRIMARY KEY, api_key TEXT NOT NULL, distinct_id TEXT NOT NULL,
    person INTEGER NOT NULL REFERENCES persons, UNIQUE (api_key, distinct_id)
);
CREATE INDEX distinct_ids_of ON distinct_ids (person);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, api_key TEXT NOT NULL, group_type TEXT NOT NULL,
    group_key TEXT NOT NULL, properties TEXT NOT NULL, created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL, UNIQUE (api_key, group_type, group_key)
);
CREATE TABLE marks (
    mark TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    event INTEGER NOT NULL REFERENCES events, PRIMARY KEY (mark, name, value, event)
) WITHOUT ROWID;
"""
MANAGEMENT: Final = """
CREATE TABLE organizations (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
    created_at TEXT NOT NULL
);
CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE, distinct_id TEXT NOT NULL,
    first_name TEXT NOT NULL, last_name TEXT NOT NULL,
    email TEXT NOT NULL UNIQUE COLLATE NOCASE, is_email_verified INTEGER NOT NULL,
    hedgehog_config TEXT NOT NULL, role_at_organization TEXT NOT NULL,
    is_2fa_enabled INTEGER NOT NULL, has_social_auth INTEGER NOT NULL, last_login TEXT
);
CREATE TABLE members (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    organization TEXT NOT NULL REFERENCES organizations (id),
    user INTEGER NOT NULL REFERENCES users, level INTEGER NOT NULL, joined_at TEXT NOT NULL,
    updated_at TEXT NOT NULL, UNIQUE (organization, user)
);
CREATE TABLE personal_keys (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, user INTEGER NOT NULL REFERENCES users,
    label TEXT NOT NULL, scopes TEXT NOT NULL, created_at TEXT NOT NULL
);
CREATE TABLE domains (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    organization TEXT NOT NULL REFERENCES organizations (id), domain TEXT NOT NULL,
    verified_at TEXT, verification_challenge TEXT NOT NULL,
    jit_provisioning_enabled INTEGER NOT NULL DEFAULT 0,
    sso_enforcement TEXT NOT NULL DEFAULT '', saml_entity_id TEXT NOT NULL DEFAULT '',
    saml_acs_url TEXT NOT NULL DEFAULT '', saml_x509_cert TEXT NOT NULL DEFAULT '',
    UNIQUE (organization, domain)
);
CREATE TABLE invites (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    organization TEXT NOT NULL REFERENCES organizations (id),
    target_email TEXT NOT NULL COLLATE NOCASE, first_name TEXT NOT NULL,
    emailing_attempt_made INTEGER NOT NULL, level INTEGER NOT NULL,
    created_by INTEGER NOT NULL REFERENCES users, created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL, message TEXT NOT NULL, private_project_access TEXT NOT NULL,
    send_email INTEGER NOT NULL, combine_pending_invites INTEGER NOT NULL
);
CREATE INDEX invites_of ON invites (organization, target_email);
CREATE TABLE projects (
    id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE,
    organization TEXT NOT NULL REFERENCES organizations (id), api_token TEXT NOT NULL UNIQUE,
    live_events_token TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    settings TEXT NOT NULL
);
CREATE TABLE dashboards (
    id INTEGER PRIMARY KEY AUTOINCREMENT, project INTEGER NOT NULL REFERENCES projects,
    name TEXT NOT NULL, description TEXT NOT NULL, pinned INTEGER NOT NULL,
    created_at TEXT NOT NULL, created_by INTEGER REFERENCES users, is_shared INTEGER NOT NULL,
    deleted INTEGER NOT NULL, creation_mode TEXT NOT NULL, tags TEXT NOT NULL,
    restriction_level INTEGER NOT NULL
);
CREATE TABLE batch_exports (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    project INTEGER NOT NULL REFERENCES projects, name TEXT NOT NULL, model TEXT NOT NULL,
    destination TEXT NOT NULL, interval TEXT NOT NULL, paused INTEGER NOT NULL,
    created_at TEXT NOT NULL, last_updated_at TEXT NOT NULL, last_paused_at TEXT, start_at TEXT,
    end_at TEXT, hogql_query TEXT NOT NULL, schema TEXT NOT NULL, filters TEXT NOT NULL
);
CREATE TABLE batch_export_runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    batch_export TEXT NOT NULL REFERENCES batch_exports (id), status TEXT NOT NULL,
    records_completed INTEGER NOT NULL, latest_error TEXT NOT NULL, data_interval_start TEXT,
    data_interval_end TEXT, cursor TEXT NOT NULL, created_at TEXT NOT NULL, finished_at TEXT,
    last_updated_at TEXT NOT NULL, records_total_count INTEGER
);
CREATE INDEX batch_export_runs_of ON batch_export_runs (batch_export, number);
"""
"""`settings` of a project is a JSON object with the fields of `payloads.NewProject`;
`private_project_access`, `destination`, `schema`, `filters`, `tags`, `hedgehog_config` and
`scopes` are JSON too. `digest` is the SHA-256 of a personal key, in hex; the key itself isn't kept.
"""
_PROJECTS: Final = f"""
CREATE INDEX requests_with_events ON requests (api_key) WHERE events > 0;
{MANAGEMENT}
"""
"""The index answers whether a project has ever had an event."""
_IMPORTS: Final = """
ALTER TABLE events ADD COLUMN import_job TEXT;
CREATE INDEX imported ON events (import_job, timestamp, uuid, api_key, kind)
    WHERE import_job IS NOT NULL;
"""
"""The index covers all queries of imported events (see `aggregates`); imports are in the order of
time, so it grows at its end.
"""
_DECISIONS: Final = """
CREATE TABLE clock ("offset" REAL NOT NULL);
INSERT INTO clock VALUES (0);
CREATE TABLE definitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, api_key TEXT NOT NULL, kind TEXT NOT NULL,
    name TEXT NOT NULL, content TEXT NOT NULL, created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL, UNIQUE (api_key, kind, name)
);
CREATE TABLE definition_revisions (api_key TEXT PRIMARY KEY, revision TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE hash_keys (
    api_key TEXT NOT NULL, distinct_id TEXT NOT NULL, flag TEXT NOT NULL,
    hash_key TEXT NOT NULL, PRIMARY KEY (api_key, distinct_id, flag)
) WITHOUT ROWID;
ALTER TABLE batch_export_runs ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE batch_export_runs ADD COLUMN cause TEXT NOT NULL DEFAULT 'seed';
ALTER TABLE batch_export_runs ADD COLUMN attempt INTEGER NOT NULL DEFAULT 1;
ALTER TABLE batch_export_runs ADD COLUMN due_at TEXT;
ALTER TABLE batch_export_runs ADD COLUMN selection TEXT NOT NULL DEFAULT '';
CREATE INDEX batch_export_runs_by_cause ON batch_export_runs (batch_export, cause, number);
CREATE INDEX batch_export_runs_unfinished
    ON batch_export_runs (batch_export, cause, selection = '', number)
    WHERE finished_at IS NULL;
CREATE TABLE export_logs (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, at TEXT NOT NULL, level TEXT NOT NULL,
    message TEXT NOT NULL
);
CREATE INDEX export_logs_of ON export_logs (run, id);
DELETE FROM marks;
DELETE FROM groups;
DELETE FROM distinct_ids;
DELETE FROM persons;
UPDATE progress SET arrival = 0;
ALTER TABLE persons ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;
"""
"""`clock`: the seconds that the sandbox's clock was moved forward.
`definitions`: flags, cohorts and what else of a project is evaluated, as JSON, by kind and key;
the `revision` of a project's is another one after each change. `hash_keys`: what flags with
continuity are decided by for a distinct id, and so for the person that has it. `origin` of a run:
the first run of the same work; `selection`: what it exports, as JSON. `changed` of a person: the
arrival that changed it last; persons are derived anew for it.
"""
_PERSONS: Final = """
DELETE FROM marks;
DELETE FROM groups;
DELETE FROM distinct_ids;
DELETE FROM persons;
UPDATE progress SET arrival = 0;
ALTER TABLE persons ADD COLUMN created INTEGER NOT NULL DEFAULT 0;
ALTER TABLE persons ADD COLUMN sources TEXT NOT NULL DEFAULT '{}';
ALTER TABLE persons ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
CREATE TABLE person_versions (
    person INTEGER NOT NULL, version INTEGER NOT NULL, properties TEXT NOT NULL,
    UNIQUE (person, version)
);
CREATE TABLE event_persons (
    event INTEGER PRIMARY KEY REFERENCES events, person INTEGER NOT NULL,
    version INTEGER NOT NULL, differs INTEGER NOT NULL
);
CREATE TABLE merges (
    id INTEGER PRIMARY KEY, person INTEGER NOT NULL, event INTEGER NOT NULL REFERENCES events,
    outcome TEXT NOT NULL, source TEXT NOT NULL, target TEXT NOT NULL, merged TEXT
);
CREATE INDEX merges_of ON merges (person);
CREATE TABLE warnings (
    id INTEGER PRIMARY KEY, person INTEGER, event INTEGER NOT NULL REFERENCES events,
    type TEXT NOT NULL, details TEXT NOT NULL
);
CREATE INDEX warnings_of ON warnings (person);
CREATE INDEX warnings_about ON warnings (event);
CREATE TABLE person_groups (
    person INTEGER NOT NULL, group_type TEXT NOT NULL, group_key TEXT NOT NULL,
    event INTEGER NOT NULL REFERENCES events, PRIMARY KEY (person, group_type, group_key)
) WITHOUT ROWID;
"""
"""`created` of a person: the arrival that created it; `sources`: as JSON, of each property the
arrival that set it, times four, plus the index of how (`person_changes.OPERATIONS`); `version`: the
arrival that changed its properties last. `event_persons` has the person of an event and its version
as the event left it, which is the person's own or in `person_versions`, also when the person was
merged away; `differs` says that the event's own `$set` has more. Persons are derived anew for it.
"""
_GROUP_TYPES: Final = "CREATE INDEX groups_by_type ON groups (api_key, group_type);"
"""The index finds the first group of each type, however many groups there are."""
EFFECT_TABLES: Final = (
    *("persons", "distinct_ids", "groups", "marks"),
    *("person_versions", "event_persons", "merges", "warnings", "person_groups"),
)
_STEPS: Final = (
    _ARRIVALS,
    _ADDED + _EFFECTS,
    _PROJECTS,
    _IMPORTS,
    _DECISIONS,
    _PERSONS + _GROUP_TYPES,
)
"""What each version has beside those before it."""
TABLES: Final = ("events", "not_ingested", "requests", *EFFECT_TABLES)


def prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    """Make sure that all tables are there. Raises `ConfigurationError` if the database is another
    program's, or of a later version.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    if version > VERSION and _is_ours(connection):
        raise ConfigurationError(
            f"{path} was written by a later version of the sandbox",
            hint="Use that version, or name another file.",
        )
    if not (empty if version == 0 else _is_ours(connection)):
        raise ConfigurationError(
            f"{path} is not a database of this sandbox", hint="Name another file, or a new one."
        )
    missing = "".join(_STEPS[version:])
    if missing:
        connection.executescript(f"BEGIN; {missing} PRAGMA user_version = {VERSION}; COMMIT;")


def _is_ours(connection: sqlite3.Connection) -> bool:
    names = {
        row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    }
    return {"requests", "events", "not_ingested"} <= names
