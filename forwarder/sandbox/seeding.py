"""Applies a seed to the database: only what is not there yet.

Invariants: applying a seed again changes nothing; ids that a seed does not give are derived from
its content. Persons and groups are created by events, as they are by senders: a person is an
`$identify`, its further ids are merged by `$merge_dangerously`, a group is a `$groupidentify` of
the project's first person; without one, of a person named by the group, as SDKs do. An entry that
changes in the file becomes a new event. What the management API changed stays changed; what it
deleted comes back. Only label and scopes of a personal key, which no endpoint changes,
follow the seed.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid5

from forwarder.contract.resources import MEMBER
from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.flags.linked import add_linked
from forwarder.sandbox.flags.stored import DefinitionKey, DefinitionKind, add_definition
from forwarder.sandbox.manage.authorize import key_digest
from forwarder.sandbox.manage.members import normalized_email
from forwarder.sandbox.manage.projects import (
    DEFAULT_DASHBOARD,
    DashboardDraft,
    ProjectDraft,
    add_dashboard,
    add_project,
    make_primary,
)
from forwarder.sandbox.protocol.times import format_time
from forwarder.sandbox.seed_entries import (
    Seed,
    SeedDashboard,
    SeedDomain,
    SeedExport,
    SeedInvite,
    SeedKey,
    SeedMember,
    SeedOrganization,
    SeedProject,
    SeedProjectKey,
    SeedRun,
    folded,
    seed_json,
)
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.meaning import storable
from forwarder.sandbox.store.stored_records import IngestedEvent, RequestRecord

PATH: Final = "/sandbox/seed"
"""The path in the record of a seed's events."""
SEED_NAMESPACE: Final = UUID("0d6a2ff4-6d1c-5a52-9a43-5b0c3f7d7f70")
"""Namespace of the ids that are derived from an entry."""


def apply_seed(seed: Seed, store: Store, now: datetime) -> Seed:
    """Store what is new of a seed, the events of each project as one request; returns the seed.

    Raises `ConfigurationError` if an organization has a unique value of another in this database.
    """
    SeedWriter(store.connection, now).write(seed.organizations)
    for project in seed.all_projects:
        _add_definitions(project, store, now)
    repeats = Counter[str]()
    events: dict[str, list[IngestedEvent]] = {}
    for draft in _event_drafts(seed):
        event = _event(draft, len(events.get(draft.api_key, ())), repeats, now)
        if not store.holds(draft.api_key, event.uuid or ""):
            events.setdefault(draft.api_key, []).append(event)
    for api_key, new in events.items():
        size = sum(len(event.raw) for event in new)
        store.add(
            RequestRecord(
                format_time(now),
                PATH,
                "",
                {},
                200,
                "",
                api_key=api_key,
                size=size,
                events=new,
                method="SEED",
            )
        )
    return seed


def _add_definitions(project: SeedProjectKey | SeedProject, store: Store, now: datetime) -> None:
    """Add what a project's flags are decided by. A flag that is there stays as it is, whoever
    changed it.
    """
    for name in project.group_types:
        add_definition(
            store, DefinitionKey(project.api_key, DefinitionKind.GROUP_TYPE, name), {}, now
        )
    for cohort in project.cohorts:
        add_definition(
            store,
            DefinitionKey(project.api_key, DefinitionKind.COHORT, str(cohort["id"])),
            cohort,
            now,
        )
    for flag in project.flags:
        add_definition(
            store, DefinitionKey(project.api_key, DefinitionKind.FLAG, flag["key"]), flag, now
        )
    for kind, entries in (
        (DefinitionKind.SURVEY, project.surveys),
        (DefinitionKind.EARLY_ACCESS_FEATURE, project.early_access_features),
        (DefinitionKind.EXPERIMENT, project.experiments),
    ):
        for entry in entries:
            add_linked(store, project.api_key, kind, entry, now)


@dataclass(slots=True)
class SeedWriter:
    """Writes organizations with the given time; transactions are the caller's."""

    database: sqlite3.Connection
    now: datetime
    _repeats: Counter[str] = field(default_factory=Counter)

    def write(self, organizations: Iterable[SeedOrganization]) -> None:
        """Insert what is new. Raises `ConfigurationError` if one of them has a unique value of
        another in this database.
        """
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
            *(
                "users",
                None,
                uuid,
                seed.distinct_id or uuid,
                seed.first_name,
                seed.last_name,
                seed.email,
                seed.is_email_verified,
            ),
            *(
                json.dumps(seed.hedgehog_config),
                seed.role_at_organization,
                seed.is_2fa_enabled,
                seed.has_social_auth,
            ),
            self._time(seed.last_login, None),
        )
        user = self._user(seed.email)
        if user is None:
            raise _conflict(f"the uuid of the member {seed.email}", "user")
        joined = self._time(seed.joined_at)
        self._insert(
            "members",
            None,
            self._id(None, "member", organization, uuid),
            organization,
            user,
            seed.level,
            joined,
            joined,
        )
        for key in seed.personal_api_keys:
            if not self._key(user, key):
                raise _conflict(f"a personal key of {seed.email}", "user")

    def _key(self, user: int, seed: SeedKey) -> bool:
        """Insert or update a key; whether it is the user's."""
        digest = key_digest(seed.key)
        scopes = json.dumps(seed.scopes)
        self._insert("personal_keys", None, digest, user, seed.label, scopes, format_time(self.now))
        changed = "UPDATE personal_keys SET label = ?, scopes = ? WHERE digest = ? AND user = ?"
        return self.database.execute(changed, (seed.label, scopes, digest, user)).rowcount == 1

    def _domain(self, organization: str, seed: SeedDomain) -> None:
        verified = self._time(seed.verified_at, None)
        others = (
            "SELECT 1 FROM domains WHERE domain = ? AND organization <> ? AND verified_at IS "
            "NOT NULL"
        )
        if verified is not None and self._exists(others, seed.domain, organization):
            raise _conflict(f"the domain {seed.domain}", "organization")
        self._insert(
            *(
                "domains",
                None,
                self._id(seed.id, "domain", organization, seed.domain),
                organization,
                seed.domain,
                verified,
            ),
            *(
                seed.verification_challenge or secrets.token_urlsafe(32),
                seed.jit_provisioning_enabled,
                seed.sso_enforcement,
            ),
            *(seed.saml_entity_id, seed.saml_acs_url, seed.saml_x509_cert),
        )
        if not self._exists(
            "SELECT 1 FROM domains WHERE domain = ? AND organization = ?", seed.domain, organization
        ):
            raise _conflict(f"the id of the domain {seed.domain}", "domain")

    def _invite(self, organization: str, seed: SeedInvite, whole: SeedOrganization) -> None:
        fields = seed.settings
        email = normalized_email(fields["target_email"])
        send = fields.get("send_email", True)
        invited = "SELECT 1 FROM invites WHERE organization = ? AND target_email = ?"
        member = (
            "SELECT 1 FROM members JOIN users ON users.id = members.user WHERE organization = "
            "? AND email = ?"
        )
        if self._exists(invited, organization, email) or self._exists(member, organization, email):
            return
        created = self._time(seed.created_at)
        self._insert(
            *(
                "invites",
                None,
                self._id(seed.id, "invite", organization, email),
                organization,
                email,
                fields.get("first_name", ""),
            ),
            *(
                send,
                fields.get("level", MEMBER),
                self._user(seed.created_by or whole.owner.email),
                created,
                created,
            ),
            *(fields.get("message", ""), json.dumps(fields.get("private_project_access")), send),
            fields.get("combine_pending_invites", False),
        )
        if not self._exists(invited, organization, email):
            raise _conflict(f"the id of the invite of {email}", "invite")

    def _project(self, organization: str, seed: SeedProject, whole: SeedOrganization) -> None:
        token = seed.api_key
        now = format_time(self.now)
        project_row = self.database.execute(
            "SELECT id, organization FROM projects WHERE api_token = ?", (token,)
        ).fetchone()
        if project_row is not None and project_row[1] != organization:
            raise _conflict(f"the api_key of a project of {whole.name}", "organization")
        if project_row is None:
            new = ProjectDraft(
                organization, seed.settings, now, token, self._id(seed.uuid, "project", token)
            )
            if self._exists("SELECT 1 FROM projects WHERE uuid = ?", new.uuid):
                raise _conflict(f"the uuid of a project of {whole.name}", "project")
            project = add_project(self.database, new)
        else:
            project = int(project_row[0])
        first = self._dashboards(project, seed.dashboards, whole.owner.email)
        if project_row is None and first is not None:
            make_primary(self.database, project, first)
        for export in seed.batch_exports:
            self._export(project, token, export)

    def _dashboards(
        self, project: int, seeds: Sequence[SeedDashboard] | None, owner: str
    ) -> int | None:
        """Insert the dashboards of a project; returns the first one that it has."""
        wanted = Counter[str]()
        counting = "SELECT count(*) FROM dashboards WHERE project = ? AND name = ?"
        for seed in (
            [SeedDashboard(name=DEFAULT_DASHBOARD, pinned=True)] if seeds is None else seeds
        ):
            wanted[seed.name] += 1
            (there,) = self.database.execute(counting, (project, seed.name)).fetchone()
            if there < wanted[seed.name]:
                said: dict[str, Any] = seed.model_dump(exclude={"created_by", "created_at"})
                by = self._user(seed.created_by or owner)
                add_dashboard(
                    self.database,
                    project,
                    DashboardDraft(**said, created_at=self._time(seed.created_at), created_by=by),
                )
        (first,) = self.database.execute(
            "SELECT min(id) FROM dashboards WHERE project = ?", (project,)
        ).fetchone()
        return None if first is None else int(first)

    def _export(self, project: int, token: str, seed: SeedExport) -> None:
        created = self._time(seed.created_at)
        identity = self._id(seed.id, "batch export", token, seed.name)
        self._insert(
            *(
                "batch_exports",
                None,
                identity,
                project,
                seed.name,
                seed.model,
                json.dumps(seed.destination.model_dump()),
                seed.interval,
            ),
            *(
                seed.paused,
                created,
                created,
                created if seed.paused else None,
                self._time(seed.start_at, None),
            ),
            *(
                self._time(seed.end_at, None),
                seed.hogql_query,
                json.dumps(seed.schema_),
                json.dumps(seed.filters),
            ),
        )
        if not self._exists(
            "SELECT 1 FROM batch_exports WHERE id = ? AND project = ?", identity, project
        ):
            raise _conflict(f"the id of the batch export {seed.name}", "project")
        for run in seed.runs:
            self._run(identity, run)

    def _run(self, export: str, seed: SeedRun) -> None:
        created = self._time(seed.created_at)
        identity = self._id(seed.id, "run", export, seed.model_dump_json(exclude={"id"}))
        self._insert(
            *(
                "batch_export_runs",
                None,
                identity,
                export,
                seed.status,
                seed.records_completed,
                seed.latest_error,
            ),
            *(
                self._time(seed.data_interval_start, None),
                self._time(seed.data_interval_end, None),
                seed.cursor,
                created,
            ),
            *(
                self._time(seed.finished_at, None),
                self._time(seed.finished_at, created),
                seed.records_total_count,
            ),
            *(identity, "seed", 1, None, ""),
        )
        if not self._exists(
            "SELECT 1 FROM batch_export_runs WHERE id = ? AND batch_export = ?", identity, export
        ):
            raise _conflict(f"the id of a run {identity}", "batch export")

    def _insert(self, table: str, *values: object) -> None:
        """Insert a row, unless its id exists."""
        places = ", ".join("?" * len(values))
        # S608: the table's name is written in this module, the values have placeholders.
        statement = f"INSERT OR IGNORE INTO {table} VALUES ({places})"  # noqa: S608
        self.database.execute(statement, values)

    def _exists(self, statement: str, *parameters: object) -> bool:
        return self.database.execute(statement, parameters).fetchone() is not None

    def _user(self, email: str) -> int | None:
        user_row = self.database.execute(
            "SELECT id FROM users WHERE email = ?", (email,)
        ).fetchone()
        return None if user_row is None else int(user_row[0])

    def _id(self, given: UUID | None, *said: str, repeats: bool = True) -> str:
        """The given id, or one that is derived from the content; equal
        entries are different things.
        """
        if given is not None:
            return str(given)
        text = "\0".join(said)
        if repeats:
            self._repeats[text] += 1
        return str(uuid5(SEED_NAMESPACE, f"{self._repeats[text]}\0{text}"))

    def _time(self, time: datetime | None, otherwise: str | None = "now") -> Any:
        if time is not None:
            return format_time(time)
        return format_time(self.now) if otherwise == "now" else otherwise


@dataclass(frozen=True, slots=True)
class _EventDraft:
    """One event of a seed, before it has a uuid."""

    api_key: str
    event: str
    distinct_id: str
    properties: Mapping[str, Any]
    time: datetime | None
    uuid: UUID | None = None


def _event(
    draft: _EventDraft, position: int, repeats: Counter[str], now: datetime
) -> IngestedEvent:
    """An event with a uuid that is derived from its content, and from the number of equal ones
    before it.
    """
    content = {
        "event": draft.event,
        "distinct_id": draft.distinct_id,
        "properties": draft.properties,
    }
    if draft.time is not None:
        content["timestamp"] = format_time(draft.time)
    text = seed_json({"api_key": draft.api_key, **content})
    uuid = str(draft.uuid or uuid5(SEED_NAMESPACE, f"{repeats[text]}\0{text}"))
    repeats[text] += 1
    return IngestedEvent(
        position=position,
        uuid=uuid,
        event=storable(draft.event),
        distinct_id=storable(draft.distinct_id),
        timestamp_sent=None if draft.time is None else seed_json(content["timestamp"]),
        timestamp=format_time(draft.time or now),
        properties=seed_json(draft.properties),
        raw=seed_json({**content, "uuid": uuid}).encode(),
    )


def _event_drafts(seed: Seed) -> Iterator[_EventDraft]:
    otherwise = seed.only_project or ""
    somebody: dict[str, str] = {}
    for person in seed.persons:
        api_key = person.api_key or otherwise
        somebody.setdefault(api_key, person.distinct_id)
        yield _EventDraft(
            api_key, "$identify", person.distinct_id, {"$set": person.properties}, person.created_at
        )
        for other in person.distinct_ids:
            if other != person.distinct_id:
                yield _EventDraft(
                    api_key,
                    "$merge_dangerously",
                    person.distinct_id,
                    {"alias": other},
                    person.created_at,
                )
    for group in seed.groups:
        api_key = group.api_key or otherwise
        said = {
            "$group_type": group.group_type,
            "$group_key": group.group_key,
            "$group_set": group.properties,
        }
        named = f"{group.group_type}_{group.group_key}"[:200]
        yield _EventDraft(
            api_key, "$groupidentify", somebody.get(api_key, named), said, group.created_at
        )
    for one in seed.events:
        yield _EventDraft(
            one.api_key or otherwise,
            one.event,
            one.distinct_id,
            one.properties,
            one.timestamp,
            one.uuid,
        )


def _conflict(what: str, whose: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} in the seed is another {whose}'s in the database",
        hint="Change the seed, or use another database.",
    )
