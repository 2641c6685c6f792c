"""The tables of a sandbox's database, and how a file of an older version gets those that it lacks.

What arrived (`requests`, `events`, `not_ingested`) is the truth and is only ever added to. Persons and groups are worked out of it, in
order, up to the arrival that `progress` names (see `effects.py`), so a file of version 1, which had nothing but arrivals, gets empty
tables, and what its events do is worked out when somebody asks. A file of version 2 had no management half, and gets an empty one. Up to
version 3 no arrival had the name of its import: none was there before imports were.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.management.tables import MANAGEMENT

VERSION: Final = 4
_ARRIVALS: Final = """
CREATE TABLE requests (
    id INTEGER PRIMARY KEY, received_at TEXT NOT NULL, path TEXT NOT NULL, query TEXT NOT NULL, headers TEXT NOT NULL, api_key TEXT,
    historical_migration INTEGER NOT NULL, encoding TEXT, size INTEGER NOT NULL, status INTEGER NOT NULL, answer TEXT NOT NULL, error TEXT,
    events INTEGER NOT NULL, duplicates INTEGER NOT NULL, conflicts INTEGER NOT NULL, not_ingested INTEGER NOT NULL
);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, request INTEGER NOT NULL REFERENCES requests, position INTEGER NOT NULL, kind TEXT NOT NULL, first INTEGER,
    api_key TEXT NOT NULL, historical INTEGER NOT NULL, uuid TEXT NOT NULL, event TEXT NOT NULL, distinct_id TEXT NOT NULL,
    timestamp_sent TEXT, timestamp TEXT NOT NULL, properties TEXT NOT NULL, raw BLOB NOT NULL
);
CREATE INDEX versions ON events (uuid, api_key) WHERE kind <> 'duplicate';
CREATE INDEX conflicts ON events (id) WHERE kind = 'conflict';
CREATE TABLE not_ingested (
    id INTEGER PRIMARY KEY, request INTEGER NOT NULL REFERENCES requests, position INTEGER NOT NULL, reason TEXT NOT NULL, raw BLOB NOT NULL
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
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL, api_key TEXT NOT NULL, distinct_id TEXT NOT NULL, properties TEXT NOT NULL,
    created_at TEXT NOT NULL, is_identified INTEGER NOT NULL
);
CREATE INDEX persons_by_uuid ON persons (uuid);
CREATE TABLE distinct_ids (
    id INTEGER PRIMARY KEY, api_key TEXT NOT NULL, distinct_id TEXT NOT NULL, person INTEGER NOT NULL REFERENCES persons,
    UNIQUE (api_key, distinct_id)
);
CREATE INDEX distinct_ids_of ON distinct_ids (person);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, api_key TEXT NOT NULL, group_type TEXT NOT NULL, group_key TEXT NOT NULL, properties TEXT NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL, UNIQUE (api_key, group_type, group_key)
);
CREATE TABLE marks (
    mark TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events,
    PRIMARY KEY (mark, name, value, event)
) WITHOUT ROWID;
"""
_PROJECTS: Final = f"""
CREATE INDEX requests_with_events ON requests (api_key) WHERE events > 0;
{MANAGEMENT}
"""
"""The index tells at once whether a project has ever got an event."""
_IMPORTS: Final = """
ALTER TABLE events ADD COLUMN import_job TEXT;
CREATE INDEX imported ON events (import_job, timestamp, uuid, api_key, kind) WHERE import_job IS NOT NULL;
"""
"""The index has all that is asked of imported events (see `imports.py`); imports come in the order of time, so it grows at its end."""
EFFECT_TABLES: Final = ("persons", "distinct_ids", "groups", "marks")
_STEPS: Final = (_ARRIVALS, _ADDED + _EFFECTS, _PROJECTS, _IMPORTS)
"""What each version has beside those before it."""
TABLES: Final = ("events", "not_ingested", "requests", *EFFECT_TABLES)


def prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    """Make sure that all tables are there. Raises `ConfigurationError` if the database is another program's, or of a later version."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    if version > VERSION and _is_ours(connection):
        raise ConfigurationError(f"{path} was written by a later version of the sandbox", hint="Use that version, or name another file.")
    if not (empty if version == 0 else _is_ours(connection)):
        raise ConfigurationError(f"{path} is not a database of this sandbox", hint="Name another file, or a new one.")
    missing = "".join(_STEPS[version:])
    if missing:
        connection.executescript(f"BEGIN; {missing} PRAGMA user_version = {VERSION}; COMMIT;")


def _is_ours(connection: sqlite3.Connection) -> bool:
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return {"requests", "events", "not_ingested"} <= names
