"""Lists what the management API holds, for tests and people: no key is required, and no secret is
shown.

Each listing shows the resource as the management API answers it, with its owner and further
details. Project keys are masked, a personal key has its label and scopes, destinations come
without their secrets. `MANAGEMENT_LISTINGS` is the table: a listing's name (its path is
`/sandbox/` and that), what it shows, its tables, and its filters. Filters are texts: an invalid id
matches nothing. `text` is searched in names and addresses, ignoring the case of ASCII letters.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from typing_extensions import TypedDict

from forwarder.contract.payloads import NewProject
from forwarder.contract.resources import (
    LEVELS,
    OWNER,
    BatchExport,
    Dashboard,
    Domain,
    Invite,
    Member,
    Timestamp,
    Uuid,
)
from forwarder.core.secrets import mask_credentials, mask_key
from forwarder.sandbox.exports.batch_exports import batch_export_resource
from forwarder.sandbox.manage.call import CallingMember, rows
from forwarder.sandbox.manage.domains import challenge_name, domain_resource
from forwarder.sandbox.manage.members import (
    INVITE_LIFETIME,
    invite_resource,
    is_expired,
    member_resource,
)
from forwarder.sandbox.manage.projects import DEFAULTS, dashboard_resource
from forwarder.sandbox.protocol.http import masked_key
from forwarder.sandbox.protocol.times import format_time, parse_time
from forwarder.sandbox.store.stored_records import ListingPage, like_pattern

_KEY: Final = re.compile(r"(?<![A-Za-z0-9])ph[cxs]_\w+", re.ASCII)
_SOME_OWNER: Final = CallingMember(0, "", OWNER)
"""What a caller may do to a dashboard is shown for an owner."""
_NAME: Final = "json_extract(projects.settings, '$.name')"
_PRIMARY: Final = "json_extract(projects.settings, '$.primary_dashboard')"
_RUNS: Final = "(SELECT count(*) FROM batch_export_runs WHERE batch_export = batch_exports.id)"
_OF_PROJECT: Final = """
    EXISTS (SELECT 1 FROM requests WHERE api_key = api_token AND events > 0) AS ingested_event,
    (SELECT count(*) FROM dashboards WHERE project = projects.id AND NOT deleted) AS dashboards,
    (SELECT count(*) FROM batch_exports WHERE project = projects.id) AS batch_exports"""
_OWNER: Final = "organizations.id AS owner, organizations.name AS owner_name"
_PLACE: Final = f"{_OWNER}, projects.id AS place, {_NAME} AS place_name"
_IN_ORGANIZATION: Final = "JOIN organizations ON organizations.id = {0}.organization"
_IN_PROJECT: Final = (
    "JOIN projects ON projects.id = {0}.project JOIN organizations ON organizations.id = "
    "projects.organization"
)


@dataclass(frozen=True, slots=True)
class ManagementListing:
    """One listing."""

    record: type
    """What it shows."""
    make: Callable[[sqlite3.Connection, datetime, sqlite3.Row], Mapping[str, Any]]
    columns: str
    source: str
    """The tables, the first of which is listed."""
    order: str
    """The column that grows with each new one."""
    searched: tuple[str, ...]
    """The columns that `text` is looked for in."""
    filters: Mapping[str, str]
    """Columns by the names of the parameters that they must equal."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all filters."""
        return (*self.filters, "text")


def list_management(
    database: sqlite3.Connection,
    name: str,
    wanted: Mapping[str, str],
    page: ListingPage,
    now: datetime,
) -> tuple[int, list[Any]]:
    """The number of items of a listing that match `wanted`, and a page of them."""
    listed = MANAGEMENT_LISTINGS[name]
    condition, values = _condition(listed, wanted)
    tail = f"FROM {listed.source} WHERE {condition}"
    (count,) = database.execute(f"SELECT count(*) {tail}", values).fetchone()
    stored_rows = rows(
        database,
        f"SELECT {listed.columns} {tail}{page.ordered(listed.order)}",
        *values,
        *page.bounds(),
    )
    return count, [_without_keys(listed.make(database, now, row)) for row in stored_rows]


def _without_keys(value: Any) -> Any:
    """A value with keys and credentials in URLs masked, wherever they were written."""
    if isinstance(value, str):
        return mask_credentials(_KEY.sub(lambda key: mask_key(key[0]), value))
    if isinstance(value, dict):
        return {_without_keys(name): _without_keys(item) for name, item in value.items()}
    return [_without_keys(item) for item in value] if isinstance(value, list) else value


def _condition(listed: ManagementListing, wanted: Mapping[str, str]) -> tuple[str, list[object]]:
    chosen = {
        f"{column} = ?": wanted[name] for name, column in listed.filters.items() if name in wanted
    }
    if wanted.get("text"):
        chosen[f"{' || char(10) || '.join(listed.searched)} LIKE ? ESCAPE '!'"] = like_pattern(
            wanted["text"]
        )
    return " AND ".join(["1", *chosen]), list(chosen.values())


def _organization(database: sqlite3.Connection, now: datetime, row: sqlite3.Row) -> dict[str, Any]:
    made = rows(database, "SELECT created_at FROM invites WHERE organization = ?", row["id"])
    return {**dict(row), "pending_invites": sum(not is_expired(invite, now) for invite in made)}


def _project(_database: sqlite3.Connection, _now: datetime, row: sqlite3.Row) -> dict[str, Any]:
    settings = {**DEFAULTS, **json.loads(row["settings"])}
    if settings.get("slack_incoming_webhook"):  # who knows it may write there
        settings["slack_incoming_webhook"] = "…"
    return {
        "id": row["id"],
        "uuid": row["uuid"],
        "organization": _owner(row),
        "name": row["place_name"],
        "api_key": masked_key(row["api_token"]),
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "ingested_event": bool(row["ingested_event"]),
        "dashboards": row["dashboards"],
        "batch_exports": row["batch_exports"],
        "settings": settings,
    }


def _member(database: sqlite3.Connection, _now: datetime, row: sqlite3.Row) -> dict[str, Any]:
    keys = rows(
        database,
        "SELECT label, scopes, created_at FROM personal_keys WHERE user = ? ORDER BY id",
        row["user"],
    )
    shown = [{**dict(key), "scopes": json.loads(key["scopes"])} for key in keys]
    return {
        **member_resource(database, row),
        "organization": _owner(row),
        **_level(row),
        "personal_api_keys": shown,
    }


def _invite(database: sqlite3.Connection, now: datetime, row: sqlite3.Row) -> dict[str, Any]:
    made = parse_time(row["created_at"]) or now
    expires_at = format_time(made + INVITE_LIFETIME)
    return {
        **invite_resource(database, now, row),
        "organization": _owner(row),
        **_level(row),
        "expires_at": expires_at,
    }


def _domain(_database: sqlite3.Connection, _now: datetime, row: sqlite3.Row) -> dict[str, Any]:
    record = {
        "type": "TXT",
        "name": challenge_name(row["domain"]),
        "value": row["verification_challenge"],
    }
    return {**domain_resource(row), "organization": _owner(row), "dns_record": record}


def _dashboard(database: sqlite3.Connection, _now: datetime, row: sqlite3.Row) -> dict[str, Any]:
    shown = dashboard_resource(database, _SOME_OWNER, row)
    return {
        **shown,
        "organization": _owner(row),
        "project": _place(row),
        "is_primary": bool(row["is_primary"]),
    }


def _batch_export(database: sqlite3.Connection, _now: datetime, row: sqlite3.Row) -> dict[str, Any]:
    return {
        **batch_export_resource(database, row),
        "organization": _owner(row),
        "project": _place(row),
        "runs": row["runs"],
    }


def _place(row: sqlite3.Row) -> dict[str, Any]:
    return {"id": row["place"], "name": row["place_name"]}


def _owner(row: sqlite3.Row) -> dict[str, Any]:
    return {"id": row["owner"], "name": row["owner_name"]}


def _level(row: sqlite3.Row) -> dict[str, str]:
    return {"level_name": LEVELS.get(row["level"], str(row["level"]))}


class OwningOrganization(TypedDict):
    """The organization that something belongs to."""

    id: Uuid
    name: str


class OwningProject(TypedDict):
    """The project that something belongs to."""

    id: int
    name: str


class ShownOrganization(TypedDict):
    """An organization, and how much it has; of invites those that haven't expired."""

    id: Uuid
    name: str
    created_at: Timestamp
    members: int
    projects: int
    domains: int
    pending_invites: int


class ShownProject(TypedDict):
    """A project, and how much it has; of dashboards those that aren't deleted. In `settings` the
    address of a webhook is `…`.
    """

    id: int
    uuid: Uuid
    organization: OwningOrganization
    name: str
    api_key: str
    created_at: Timestamp
    updated_at: Timestamp
    ingested_event: bool
    dashboards: int
    batch_exports: int
    settings: NewProject


class ShownKey(TypedDict):
    """A personal API key, without the key. The scope `*` is all of them."""

    label: str
    scopes: list[str]
    created_at: Timestamp


class ShownMember(Member):
    """Somebody in an organization."""

    organization: OwningOrganization
    level_name: str
    personal_api_keys: list[ShownKey]


class ShownInvite(Invite):
    """Somebody who was asked to join."""

    organization: OwningOrganization
    level_name: str
    expires_at: Timestamp


class DnsRecord(TypedDict):
    """What the DNS must say for a domain to be verified."""

    type: str
    name: str
    value: str


class ShownDomain(Domain):
    """A domain of an organization."""

    organization: OwningOrganization
    dns_record: DnsRecord


class ShownDashboard(Dashboard):
    """A dashboard of a project, and whether it is the project's `primary_dashboard`."""

    organization: OwningOrganization
    project: OwningProject
    is_primary: bool


class ShownBatchExport(BatchExport):
    """A batch export with its latest runs, and how many there are in all."""

    organization: OwningOrganization
    project: OwningProject
    runs: int


MANAGEMENT_LISTINGS: Final[Mapping[str, ManagementListing]] = {
    "organizations": ManagementListing(
        ShownOrganization,
        _organization,
        """
            organizations.id, name, created_at,
            (SELECT count(*) FROM members WHERE organization = organizations.id) AS members,
            (SELECT count(*) FROM projects WHERE organization = organizations.id) AS projects,
            (SELECT count(*) FROM domains WHERE organization = organizations.id) AS domains""",
        "organizations",
        "organizations.number",
        ("name",),
        {"id": "organizations.id"},
    ),
    "projects": ManagementListing(
        ShownProject,
        _project,
        f"projects.*, {_PLACE}, {_OF_PROJECT}",
        f"projects {_IN_ORGANIZATION.format('projects')}",
        "projects.id",
        (_NAME,),
        {
            "id": "projects.id",
            "organization": "projects.organization",
            "api_key": "projects.api_token",
        },
    ),
    "members": ManagementListing(
        ShownMember,
        _member,
        f"members.*, is_2fa_enabled, has_social_auth, last_login, {_OWNER}",
        f"members {_IN_ORGANIZATION.format('members')} JOIN users ON users.id = members.user",
        "members.number",
        ("email", "first_name", "last_name"),
        {"id": "members.id", "organization": "members.organization", "user": "users.uuid"},
    ),
    "invites": ManagementListing(
        ShownInvite,
        _invite,
        f"invites.*, {_OWNER}",
        f"invites {_IN_ORGANIZATION.format('invites')}",
        "invites.number",
        ("target_email", "first_name"),
        {"id": "invites.id", "organization": "invites.organization"},
    ),
    "domains": ManagementListing(
        ShownDomain,
        _domain,
        f"domains.*, {_OWNER}",
        f"domains {_IN_ORGANIZATION.format('domains')}",
        "domains.number",
        ("domain",),
        {"id": "domains.id", "organization": "domains.organization"},
    ),
    "dashboards": ManagementListing(
        ShownDashboard,
        _dashboard,
        f"dashboards.*, {_PLACE}, {_PRIMARY} IS dashboards.id AS is_primary",
        f"dashboards {_IN_PROJECT.format('dashboards')}",
        "dashboards.id",
        ("dashboards.name", "description"),
        {"id": "dashboards.id", "organization": "projects.organization", "project": "projects.id"},
    ),
    "batch-exports": ManagementListing(
        ShownBatchExport,
        _batch_export,
        f"batch_exports.*, {_PLACE}, {_RUNS} AS runs",
        f"batch_exports {_IN_PROJECT.format('batch_exports')}",
        "batch_exports.number",
        ("batch_exports.name",),
        {
            "id": "batch_exports.id",
            "organization": "projects.organization",
            "project": "projects.id",
        },
    ),
}
