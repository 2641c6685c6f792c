"""Lists what the management half holds, for tests and people: no key is asked for, and no secret is told.

`LISTED` is the table of it: a listing's name (its address is `/sandbox/` and that), what it shows, where that is kept, and by what it can
be filtered. Filters are texts: what is no id finds nothing. `text` is looked for in names and addresses, in any case of ASCII letters.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from forwarder.contract.kinds import LEVELS, OWNER
from forwarder.core.secrets import mask_credentials, mask_key
from forwarder.sandbox.answers import masked
from forwarder.sandbox.management import batch_exports, dashboards, domains, invites, members, projects
from forwarder.sandbox.management.call import Caller
from forwarder.sandbox.management.rows import rows
from forwarder.sandbox.management.shown import (
    ShownBatchExport,
    ShownDashboard,
    ShownDomain,
    ShownInvite,
    ShownMember,
    ShownOrganization,
    ShownProject,
)
from forwarder.sandbox.management.verification import challenge_name
from forwarder.sandbox.selection import Page, containing
from forwarder.sandbox.timing import format_time, parse_time

_KEY: Final = re.compile(r"(?<![A-Za-z0-9])ph[cxs]_\w+", re.ASCII)
_SOME_OWNER: Final = Caller(0, "", OWNER)
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
_IN_PROJECT: Final = "JOIN projects ON projects.id = {0}.project JOIN organizations ON organizations.id = projects.organization"


@dataclass(frozen=True, slots=True)
class Look:
    """What a row is read with."""

    database: sqlite3.Connection
    now: datetime


@dataclass(frozen=True, slots=True)
class Listed:
    """One listing."""

    record: type
    """What it shows."""
    make: Callable[[Look, sqlite3.Row], Mapping[str, Any]]
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


def show(database: sqlite3.Connection, name: str, wanted: Mapping[str, str], page: Page, now: datetime) -> tuple[int, list[Any]]:
    """How many there are of a listing that `wanted` lets through, and a page of them."""
    listed, look = LISTED[name], Look(database, now)
    condition, values = _condition(listed, wanted)
    tail = f"FROM {listed.source} WHERE {condition}"
    (count,) = database.execute(f"SELECT count(*) {tail}", values).fetchone()
    found = rows(database, f"SELECT {listed.columns} {tail}{page.ordered(listed.order)}", *values, *page.bounds())
    return count, [_without_keys(listed.make(look, row)) for row in found]


def _without_keys(value: Any) -> Any:
    """What is shown, with the keys masked, and the credentials in addresses, that somebody wrote into a name or anywhere else."""
    if isinstance(value, str):
        return mask_credentials(_KEY.sub(lambda key: mask_key(key[0]), value))
    if isinstance(value, dict):
        return {_without_keys(name): _without_keys(each) for name, each in value.items()}
    return [_without_keys(each) for each in value] if isinstance(value, list) else value


def _condition(listed: Listed, wanted: Mapping[str, str]) -> tuple[str, list[object]]:
    chosen = {f"{column} = ?": wanted[name] for name, column in listed.filters.items() if name in wanted}
    if wanted.get("text"):
        chosen[f"{' || char(10) || '.join(listed.searched)} LIKE ? ESCAPE '!'"] = containing(wanted["text"])
    return " AND ".join(["1", *chosen]), list(chosen.values())


def _organization(look: Look, row: sqlite3.Row) -> dict[str, Any]:
    made = rows(look.database, "SELECT created_at FROM invites WHERE organization = ?", row["id"])
    return {**dict(row), "pending_invites": sum(not invites.expired(each, look.now) for each in made)}


def _project(_look: Look, row: sqlite3.Row) -> dict[str, Any]:
    settings = {**projects.DEFAULTS, **json.loads(row["settings"])}
    if settings.get("slack_incoming_webhook"):  # who knows it may write there
        settings["slack_incoming_webhook"] = "…"
    return {
        "id": row["id"],
        "uuid": row["uuid"],
        "organization": _owner(row),
        "name": row["place_name"],
        "api_key": masked(row["api_token"]),
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "ingested_event": bool(row["ingested_event"]),
        "dashboards": row["dashboards"],
        "batch_exports": row["batch_exports"],
        "settings": settings,
    }


def _member(look: Look, row: sqlite3.Row) -> dict[str, Any]:
    keys = rows(look.database, "SELECT label, scopes, created_at FROM personal_keys WHERE user = ? ORDER BY id", row["user"])
    shown = [{**dict(key), "scopes": json.loads(key["scopes"])} for key in keys]
    return {**members.shown(look.database, row), "organization": _owner(row), **_level(row), "personal_api_keys": shown}


def _invite(look: Look, row: sqlite3.Row) -> dict[str, Any]:
    made = parse_time(row["created_at"]) or look.now
    expires_at = format_time(made + invites.GOOD_FOR)
    return {**invites.shown(look.database, look.now, row), "organization": _owner(row), **_level(row), "expires_at": expires_at}


def _domain(_look: Look, row: sqlite3.Row) -> dict[str, Any]:
    record = {"type": "TXT", "name": challenge_name(row["domain"]), "value": row["verification_challenge"]}
    return {**domains.shown(row), "organization": _owner(row), "dns_record": record}


def _dashboard(look: Look, row: sqlite3.Row) -> dict[str, Any]:
    shown = dashboards.shown(look.database, _SOME_OWNER, row)
    return {**shown, "organization": _owner(row), "project": _place(row), "is_primary": bool(row["is_primary"])}


def _batch_export(look: Look, row: sqlite3.Row) -> dict[str, Any]:
    return {**batch_exports.shown(look.database, row), "organization": _owner(row), "project": _place(row), "runs": row["runs"]}


def _place(row: sqlite3.Row) -> dict[str, Any]:
    return {"id": row["place"], "name": row["place_name"]}


def _owner(row: sqlite3.Row) -> dict[str, Any]:
    return {"id": row["owner"], "name": row["owner_name"]}


def _level(row: sqlite3.Row) -> dict[str, str]:
    return {"level_name": LEVELS.get(row["level"], str(row["level"]))}


LISTED: Final[Mapping[str, Listed]] = {
    "organizations": Listed(
        ShownOrganization,
        _organization,
        """organizations.id, name, created_at, (SELECT count(*) FROM members WHERE organization = organizations.id) AS members,
            (SELECT count(*) FROM projects WHERE organization = organizations.id) AS projects,
            (SELECT count(*) FROM domains WHERE organization = organizations.id) AS domains""",
        "organizations",
        "organizations.number",
        ("name",),
        {"id": "organizations.id"},
    ),
    "projects": Listed(
        ShownProject,
        _project,
        f"projects.*, {_PLACE}, {_OF_PROJECT}",
        f"projects {_IN_ORGANIZATION.format('projects')}",
        "projects.id",
        (_NAME,),
        {"id": "projects.id", "organization": "projects.organization", "api_key": "projects.api_token"},
    ),
    "members": Listed(
        ShownMember,
        _member,
        f"members.*, is_2fa_enabled, has_social_auth, last_login, {_OWNER}",
        f"members {_IN_ORGANIZATION.format('members')} JOIN users ON users.id = members.user",
        "members.number",
        ("email", "first_name", "last_name"),
        {"id": "members.id", "organization": "members.organization", "user": "users.uuid"},
    ),
    "invites": Listed(
        ShownInvite,
        _invite,
        f"invites.*, {_OWNER}",
        f"invites {_IN_ORGANIZATION.format('invites')}",
        "invites.number",
        ("target_email", "first_name"),
        {"id": "invites.id", "organization": "invites.organization"},
    ),
    "domains": Listed(
        ShownDomain,
        _domain,
        f"domains.*, {_OWNER}",
        f"domains {_IN_ORGANIZATION.format('domains')}",
        "domains.number",
        ("domain",),
        {"id": "domains.id", "organization": "domains.organization"},
    ),
    "dashboards": Listed(
        ShownDashboard,
        _dashboard,
        f"dashboards.*, {_PLACE}, {_PRIMARY} IS dashboards.id AS is_primary",
        f"dashboards {_IN_PROJECT.format('dashboards')}",
        "dashboards.id",
        ("dashboards.name", "description"),
        {"id": "dashboards.id", "organization": "projects.organization", "project": "projects.id"},
    ),
    "batch-exports": Listed(
        ShownBatchExport,
        _batch_export,
        f"batch_exports.*, {_PLACE}, {_RUNS} AS runs",
        f"batch_exports {_IN_PROJECT.format('batch_exports')}",
        "batch_exports.number",
        ("batch_exports.name",),
        {"id": "batch_exports.id", "organization": "projects.organization", "project": "projects.id"},
    ),
}
