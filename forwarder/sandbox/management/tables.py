"""The tables of the management half. Nothing here is worked out of events, so none of it is forgotten with them.

Columns are named as the fields that they hold; times are ISO 8601 in UTC (`timing.format_time`), JSON is text. Resources are listed in the
order of `number`, or of `id` where that is a number.
"""

from __future__ import annotations

from typing import Final

MANAGEMENT: Final = """
CREATE TABLE organizations (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, created_at TEXT NOT NULL);
CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE, distinct_id TEXT NOT NULL, first_name TEXT NOT NULL,
    last_name TEXT NOT NULL, email TEXT NOT NULL UNIQUE COLLATE NOCASE, is_email_verified INTEGER NOT NULL, hedgehog_config TEXT NOT NULL,
    role_at_organization TEXT NOT NULL, is_2fa_enabled INTEGER NOT NULL, has_social_auth INTEGER NOT NULL, last_login TEXT
);
CREATE TABLE members (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, organization TEXT NOT NULL REFERENCES organizations (id),
    user INTEGER NOT NULL REFERENCES users, level INTEGER NOT NULL, joined_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    UNIQUE (organization, user)
);
CREATE TABLE personal_keys (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, user INTEGER NOT NULL REFERENCES users, label TEXT NOT NULL, scopes TEXT NOT NULL,
    created_at TEXT NOT NULL
);
CREATE TABLE domains (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, organization TEXT NOT NULL REFERENCES organizations (id), domain TEXT NOT NULL,
    verified_at TEXT, verification_challenge TEXT NOT NULL, jit_provisioning_enabled INTEGER NOT NULL DEFAULT 0,
    sso_enforcement TEXT NOT NULL DEFAULT '', saml_entity_id TEXT NOT NULL DEFAULT '', saml_acs_url TEXT NOT NULL DEFAULT '',
    saml_x509_cert TEXT NOT NULL DEFAULT '', UNIQUE (organization, domain)
);
CREATE TABLE invites (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, organization TEXT NOT NULL REFERENCES organizations (id),
    target_email TEXT NOT NULL COLLATE NOCASE, first_name TEXT NOT NULL, emailing_attempt_made INTEGER NOT NULL, level INTEGER NOT NULL,
    created_by INTEGER NOT NULL REFERENCES users, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, message TEXT NOT NULL,
    private_project_access TEXT NOT NULL, send_email INTEGER NOT NULL, combine_pending_invites INTEGER NOT NULL
);
CREATE INDEX invites_of ON invites (organization, target_email);
CREATE TABLE projects (
    id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE, organization TEXT NOT NULL REFERENCES organizations (id),
    api_token TEXT NOT NULL UNIQUE, live_events_token TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    settings TEXT NOT NULL
);
CREATE TABLE dashboards (
    id INTEGER PRIMARY KEY AUTOINCREMENT, project INTEGER NOT NULL REFERENCES projects, name TEXT NOT NULL, description TEXT NOT NULL,
    pinned INTEGER NOT NULL, created_at TEXT NOT NULL, created_by INTEGER REFERENCES users, is_shared INTEGER NOT NULL,
    deleted INTEGER NOT NULL, creation_mode TEXT NOT NULL, tags TEXT NOT NULL, restriction_level INTEGER NOT NULL
);
CREATE TABLE batch_exports (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, project INTEGER NOT NULL REFERENCES projects, name TEXT NOT NULL,
    model TEXT NOT NULL, destination TEXT NOT NULL, interval TEXT NOT NULL, paused INTEGER NOT NULL, created_at TEXT NOT NULL,
    last_updated_at TEXT NOT NULL, last_paused_at TEXT, start_at TEXT, end_at TEXT, hogql_query TEXT NOT NULL,
    schema TEXT NOT NULL, filters TEXT NOT NULL
);
CREATE TABLE batch_export_runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, batch_export TEXT NOT NULL REFERENCES batch_exports (id),
    status TEXT NOT NULL, records_completed INTEGER NOT NULL, latest_error TEXT NOT NULL, data_interval_start TEXT, data_interval_end TEXT,
    cursor TEXT NOT NULL, created_at TEXT NOT NULL, finished_at TEXT, last_updated_at TEXT NOT NULL, records_total_count INTEGER
);
CREATE INDEX batch_export_runs_of ON batch_export_runs (batch_export, number);
"""
"""`settings` of a project is a JSON object with the fields of `payloads.NewProject`; `private_project_access`, `destination`,
`schema`, `filters`, `tags`, `hedgehog_config` and `scopes` are JSON too. `digest` is the SHA-256 of a personal key, in hex; the key itself
isn't kept."""
