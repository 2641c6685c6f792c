"""Puts the organizations of a seed into the database, as far as they aren't there.

What is there is left as it is, so what was changed through the API stays changed; what was deleted through it comes back. Ids that a seed
doesn't give follow from what it says, so that planting again finds what it planted. Only of a personal key, which no endpoint changes,
label and scopes become what the seed says.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

from forwarder.contract.kinds import MEMBER
from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.management.dashboards import NewDashboard, add_dashboard
from forwarder.sandbox.management.invites import address
from forwarder.sandbox.management.keys import digest
from forwarder.sandbox.management.projects import DEFAULT_DASHBOARD, NewProject, add_project, make_primary
from forwarder.sandbox.management.seeding import (
    SeedDashboard,
    SeedDomain,
    SeedExport,
    SeedInvite,
    SeedKey,
    SeedMember,
    SeedOrganization,
    SeedProject,
    SeedRun,
    folded,
)
from forwarder.sandbox.sections import NAMESPACE
from forwarder.sandbox.timing import format_time


@dataclass(slots=True)
class Planter:
    """Plants at a time; transactions are the caller's."""

    database: sqlite3.Connection
    now: datetime
    _repeats: Counter[str] = field(default_factory=Counter)

    def plant(self, organizations: Iterable[SeedOrganization]) -> None:
        """Plant them. Raises `ConfigurationError` if one of them claims what is another's in this database."""
        for seed in organizations:
            organization = self._id(seed.id, "organization", seed.name)
            self._insert("organizations", None, organization, seed.name, format_time(self.now))
            for member in seed.members:
                self._member(organization, member)
            for domain in seed.domains:
                self._domain(organization, domain)
            for project in seed.projects:
                self._project(organization, project, seed)
            for invite in seed.invites:
                self._invite(organization, invite, seed)

    def _member(self, organization: str, seed: SeedMember) -> None:
        uuid = self._id(seed.uuid, "user", folded(seed.email), repeats=False)
        self._insert(
            *("users", None, uuid, seed.distinct_id or uuid, seed.first_name, seed.last_name, seed.email, seed.is_email_verified),
            *(json.dumps(seed.hedgehog_config), seed.role_at_organization, seed.is_2fa_enabled, seed.has_social_auth),
            self._time(seed.last_login, None),
        )
        user = self._user(seed.email)
        if user is None:
            raise _claimed(f"the uuid of the member {seed.email}", "user")
        joined = self._time(seed.joined_at)
        self._insert("members", None, self._id(None, "member", organization, uuid), organization, user, seed.level, joined, joined)
        for key in seed.personal_api_keys:
            if not self._key(user, key):
                raise _claimed(f"a personal key of {seed.email}", "user")

    def _key(self, user: int, seed: SeedKey) -> bool:
        """Whether the key is the user's now."""
        kept, scopes = digest(seed.key), json.dumps(seed.scopes)
        self._insert("personal_keys", None, kept, user, seed.label, scopes, format_time(self.now))
        changed = "UPDATE personal_keys SET label = ?, scopes = ? WHERE digest = ? AND user = ?"
        return self.database.execute(changed, (seed.label, scopes, kept, user)).rowcount == 1

    def _domain(self, organization: str, seed: SeedDomain) -> None:
        verified = self._time(seed.verified_at, None)
        others = "SELECT 1 FROM domains WHERE domain = ? AND organization <> ? AND verified_at IS NOT NULL"
        if verified is not None and self._there(others, seed.domain, organization):
            raise _claimed(f"the domain {seed.domain}", "organization")
        self._insert(
            *("domains", None, self._id(seed.id, "domain", organization, seed.domain), organization, seed.domain, verified),
            *(seed.verification_challenge or secrets.token_urlsafe(32), seed.jit_provisioning_enabled, seed.sso_enforcement),
            *(seed.saml_entity_id, seed.saml_acs_url, seed.saml_x509_cert),
        )
        if not self._there("SELECT 1 FROM domains WHERE domain = ? AND organization = ?", seed.domain, organization):
            raise _claimed(f"the id of the domain {seed.domain}", "domain")

    def _invite(self, organization: str, seed: SeedInvite, whole: SeedOrganization) -> None:
        fields = seed.settings
        email, send = address(fields["target_email"]), fields.get("send_email", True)
        invited = "SELECT 1 FROM invites WHERE organization = ? AND target_email = ?"
        member = "SELECT 1 FROM members JOIN users ON users.id = members.user WHERE organization = ? AND email = ?"
        if self._there(invited, organization, email) or self._there(member, organization, email):
            return
        created = self._time(seed.created_at)
        self._insert(
            *("invites", None, self._id(seed.id, "invite", organization, email), organization, email, fields.get("first_name", "")),
            *(send, fields.get("level", MEMBER), self._user(seed.created_by or whole.owner.email), created, created),
            *(fields.get("message", ""), json.dumps(fields.get("private_project_access")), send),
            fields.get("combine_pending_invites", False),
        )
        if not self._there(invited, organization, email):
            raise _claimed(f"the id of the invite of {email}", "invite")

    def _project(self, organization: str, seed: SeedProject, whole: SeedOrganization) -> None:
        token, now = seed.api_key, format_time(self.now)
        found = self.database.execute("SELECT id, organization FROM projects WHERE api_token = ?", (token,)).fetchone()
        if found is not None and found[1] != organization:
            raise _claimed(f"the api_key of a project of {whole.name}", "organization")
        if found is None:
            new = NewProject(organization, seed.settings, now, token, self._id(seed.uuid, "project", token))
            if self._there("SELECT 1 FROM projects WHERE uuid = ?", new.uuid):
                raise _claimed(f"the uuid of a project of {whole.name}", "project")
            project = add_project(self.database, new)
        else:
            project = int(found[0])
        first = self._dashboards(project, seed.dashboards, whole.owner.email)
        if found is None and first is not None:
            make_primary(self.database, project, first)
        for export in seed.batch_exports:
            self._export(project, token, export)

    def _dashboards(self, project: int, seeds: Sequence[SeedDashboard] | None, owner: str) -> int | None:
        """Plant those of a project; the first dashboard that it has."""
        wanted, counting = Counter[str](), "SELECT count(*) FROM dashboards WHERE project = ? AND name = ?"
        for seed in [SeedDashboard(name=DEFAULT_DASHBOARD, pinned=True)] if seeds is None else seeds:
            wanted[seed.name] += 1
            (there,) = self.database.execute(counting, (project, seed.name)).fetchone()
            if there < wanted[seed.name]:
                said: dict[str, Any] = seed.model_dump(exclude={"created_by", "created_at"})
                by = self._user(seed.created_by or owner)
                add_dashboard(self.database, project, NewDashboard(**said, created_at=self._time(seed.created_at), created_by=by))
        (first,) = self.database.execute("SELECT min(id) FROM dashboards WHERE project = ?", (project,)).fetchone()
        return None if first is None else int(first)

    def _export(self, project: int, token: str, seed: SeedExport) -> None:
        created = self._time(seed.created_at)
        identity = self._id(seed.id, "batch export", token, seed.name)
        self._insert(
            *("batch_exports", None, identity, project, seed.name, seed.model, json.dumps(seed.destination.model_dump()), seed.interval),
            *(seed.paused, created, created, created if seed.paused else None, self._time(seed.start_at, None)),
            *(self._time(seed.end_at, None), seed.hogql_query, json.dumps(seed.schema_), json.dumps(seed.filters)),
        )
        if not self._there("SELECT 1 FROM batch_exports WHERE id = ? AND project = ?", identity, project):
            raise _claimed(f"the id of the batch export {seed.name}", "project")
        for run in seed.runs:
            self._run(identity, run)

    def _run(self, export: str, seed: SeedRun) -> None:
        created = self._time(seed.created_at)
        identity = self._id(seed.id, "run", export, seed.model_dump_json(exclude={"id"}))
        self._insert(
            *("batch_export_runs", None, identity, export, seed.status, seed.records_completed, seed.latest_error),
            *(self._time(seed.data_interval_start, None), self._time(seed.data_interval_end, None), seed.cursor, created),
            *(self._time(seed.finished_at, None), self._time(seed.finished_at, created), seed.records_total_count),
        )
        if not self._there("SELECT 1 FROM batch_export_runs WHERE id = ? AND batch_export = ?", identity, export):
            raise _claimed(f"the id of a run {identity}", "batch export")

    def _insert(self, table: str, *values: object) -> None:
        """A row, unless there is one of the same id."""
        places = ", ".join("?" * len(values))
        self.database.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", values)  # noqa: S608 - names of this module

    def _there(self, statement: str, *parameters: object) -> bool:
        return self.database.execute(statement, parameters).fetchone() is not None

    def _user(self, email: str) -> int | None:
        found = self.database.execute("SELECT id FROM users WHERE email = ?", (email,)).fetchone()
        return None if found is None else int(found[0])

    def _id(self, given: UUID | None, *said: str, repeats: bool = True) -> str:
        """The id that a seed gives, or one that follows from what it says; what it says twice is two things."""
        if given is not None:
            return str(given)
        text = "\0".join(said)
        if repeats:
            self._repeats[text] += 1
        return str(uuid5(NAMESPACE, f"{self._repeats[text]}\0{text}"))

    def _time(self, time: datetime | None, otherwise: str | None = "now") -> Any:
        if time is not None:
            return format_time(time)
        return format_time(self.now) if otherwise == "now" else otherwise


def _claimed(what: str, whose: str) -> ConfigurationError:
    return ConfigurationError(f"{what} in the seed is another {whose}'s in the database", hint="Change the seed, or use another database.")
