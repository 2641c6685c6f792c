"""The projects of an organization and their dashboards.

Events with a project's `api_token` are ingested as soon as the project exists. The fields that the
contract lets a project have are kept as one JSON object; the others are computed on request.
Dashboards have one endpoint, which lists them; a seed creates them, and each new project has one.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final
from uuid import uuid4
from zoneinfo import available_timezones

from forwarder.contract.endpoints import (
    CREATE_PROJECT,
    GET_PROJECT,
    LIST_DASHBOARDS,
    LIST_PROJECTS,
    Endpoint,
)
from forwarder.contract.resources import ADMIN, Dashboard, Project, ProjectItem
from forwarder.sandbox.manage.call import (
    CallingMember,
    Handler,
    Listing,
    ManagementCall,
    list_page,
    row,
)
from forwarder.sandbox.manage.members import embedded_user
from forwarder.sandbox.protocol.http import invalid, not_found
from forwarder.sandbox.protocol.times import format_time

CAN_VIEW = 21
CAN_EDIT = 37
"""Privilege levels. As a restriction, the first lets everybody of the project edit, the second
only some: whoever made the dashboard, and admins (gap `dashboard-access`).
"""
DEFAULTS: Final[Mapping[str, Any]] = {
    "name": "Default project",
    "product_description": "",
    "app_urls": [],
    "slack_incoming_webhook": "",
    "anonymize_ips": False,
    "completed_snippet_onboarding": False,
    "test_account_filters": [],
    "test_account_filters_default_checked": False,
    "path_cleaning_filters": [],
    "is_demo": False,
    "timezone": "UTC",
    "data_attributes": ["data-attr"],
    "person_display_name_properties": [],
    "correlation_config": {},
    "autocapture_opt_out": False,
    "autocapture_exceptions_opt_in": False,
    "autocapture_web_vitals_opt_in": False,
    "autocapture_web_vitals_allowed_metrics": None,
    "autocapture_exceptions_errors_to_ignore": None,
    "capture_console_log_opt_in": False,
    "capture_performance_opt_in": False,
    "session_recording_opt_in": False,
    "session_recording_sample_rate": "1.00",
    "session_recording_minimum_duration_milliseconds": 0,
    "session_recording_linked_flag": None,
    "session_recording_network_payload_capture_config": None,
    "session_replay_config": None,
    "survey_config": None,
    "access_control": False,
    "week_start_day": 0,
    "primary_dashboard": None,
    "live_events_columns": [],
    "recording_domains": [],
    "inject_web_apps": False,
    "extra_settings": None,
    "modifiers": None,
    "has_completed_onboarding_for": {},
    "surveys_opt_in": False,
    "heatmaps_opt_in": False,
    "flags_persistence_default": False,
}
"""The writable fields of a project with their defaults."""
DEFAULT_DASHBOARD: Final = "My App Dashboard"
_LETTERS: Final = string.ascii_letters + string.digits
_LENGTH: Final = 43
"""Letters and digits of an `api_token`."""


@dataclass(frozen=True, slots=True)
class ProjectDraft:
    """A project to make, with the fields that it doesn't have by default."""

    organization: str
    settings: Mapping[str, Any]
    created_at: str
    api_token: str
    uuid: str


def new_token() -> str:
    """A new project key."""
    return "phc_" + "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def add_project(database: sqlite3.Connection, new: ProjectDraft) -> int:
    """Make a project, as yet without a dashboard; its id."""
    settings = json.dumps({**DEFAULTS, **new.settings})
    values = (
        new.uuid,
        new.organization,
        new.api_token,
        secrets.token_urlsafe(32),
        new.created_at,
        new.created_at,
        settings,
    )
    statement = "INSERT INTO projects VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)"
    return database.execute(statement, values).lastrowid or 0


def make_primary(database: sqlite3.Connection, project: int, dashboard: int) -> None:
    """Make a dashboard the project's primary one."""
    database.execute(
        "UPDATE projects SET settings = json_set(settings, '$.primary_dashboard', ?) WHERE id = ?",
        (dashboard, project),
    )


def is_timezone(name: str) -> bool:
    """Whether there is a time zone of this name."""
    return name in _timezones()


@cache
def _timezones() -> frozenset[str]:
    # a machine's own, which not every machine has
    return frozenset(available_timezones()) - {"localtime"}


def _list_projects(call: ManagementCall) -> Listing:
    statement = "SELECT * FROM projects WHERE organization = ? ORDER BY id"
    return list_page(
        call.database, call.page, partial(_item, call.database), statement, call.organization
    )


def _create_project(call: ManagementCall) -> dict[str, Any]:
    if not is_timezone(call.body.get("timezone", "UTC")):
        raise invalid(
            "timezone", "There is no such time zone; one is Europe/Berlin.", "invalid_choice"
        )
    if (dashboard := call.body.get("primary_dashboard")) is not None:
        _check_dashboard(call, dashboard)
    now = format_time(call.now)
    project = add_project(
        call.database, ProjectDraft(call.organization, call.body, now, new_token(), str(uuid4()))
    )
    if "primary_dashboard" not in call.body:
        default = DashboardDraft(DEFAULT_DASHBOARD, now, call.caller.user, pinned=True)
        make_primary(call.database, project, add_dashboard(call.database, project, default))
    return _project_resource(call, project)


def _check_dashboard(call: ManagementCall, dashboard: int) -> None:
    statement = (
        "SELECT 1 FROM dashboards JOIN projects ON projects.id = dashboards.project WHERE "
        "dashboards.id = ? AND organization = ?"
    )
    if row(call.database, statement, dashboard, call.organization) is None:
        raise invalid(
            "primary_dashboard", "The organization has no such dashboard.", "does_not_exist"
        )


def _get_project(call: ManagementCall) -> dict[str, Any]:
    return _project_resource(call, int(call.ids["id"]))


def _project_resource(call: ManagementCall, project: int) -> dict[str, Any]:
    """A project as it is answered in full."""
    project_row = row(
        call.database,
        "SELECT * FROM projects WHERE id = ? AND organization = ?",
        project,
        call.organization,
    )
    if project_row is None:
        raise not_found()
    whole = {
        **DEFAULTS,
        **json.loads(project_row["settings"]),
        **_names(call.database, project_row),
        "created_at": project_row["created_at"],
        "updated_at": project_row["updated_at"],
        "effective_membership_level": call.caller.level,
        "has_group_types": row(
            call.database,
            "SELECT 1 FROM groups WHERE api_key = ? LIMIT 1",
            project_row["api_token"],
        )
        is not None,
        "live_events_token": project_row["live_events_token"],
        "person_on_events_querying_enabled": "true",
        "default_modifiers": "{}",
        "product_intents": "[]",
    }
    return {name: whole[name] for name in Project.__annotations__}


def _item(database: sqlite3.Connection, project: sqlite3.Row) -> dict[str, Any]:
    """A project as lists show it."""
    whole = {**DEFAULTS, **json.loads(project["settings"]), **_names(database, project)}
    return {name: whole[name] for name in ProjectItem.__annotations__}


def _names(database: sqlite3.Connection, project: sqlite3.Row) -> dict[str, Any]:
    """What a list and the full project say alike, beside settings."""
    arrived = "SELECT 1 FROM requests WHERE api_key = ? AND events > 0 LIMIT 1"
    return {
        "id": project["id"],
        "uuid": project["uuid"],
        "organization": project["organization"],
        "api_token": project["api_token"],
        "ingested_event": row(database, arrived, project["api_token"]) is not None,
    }


@dataclass(frozen=True, slots=True)
class DashboardDraft:
    """A dashboard to make."""

    name: str
    created_at: str
    created_by: int | None
    description: str = ""
    pinned: bool = False
    is_shared: bool = False
    deleted: bool = False
    creation_mode: str = "default"
    tags: Sequence[Any] = ()
    restriction_level: int = CAN_VIEW


def add_dashboard(database: sqlite3.Connection, project: int, new: DashboardDraft) -> int:
    """Make a dashboard of a project; its id."""
    cursor = database.execute(
        "INSERT INTO dashboards VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(
                project,
                new.name,
                new.description,
                new.pinned,
                new.created_at,
                new.created_by,
                new.is_shared,
                new.deleted,
            ),
            *(new.creation_mode, json.dumps(list(new.tags)), new.restriction_level),
        ),
    )
    return cursor.lastrowid or 0


def dashboard_resource(
    database: sqlite3.Connection, caller: CallingMember, dashboard: sqlite3.Row
) -> Dashboard:
    """A dashboard as it is answered, with what the caller may do to it."""
    edits = (
        dashboard["restriction_level"] < CAN_EDIT
        or caller.level >= ADMIN
        or dashboard["created_by"] == caller.user
    )
    return Dashboard(
        id=dashboard["id"],
        name=dashboard["name"],
        description=dashboard["description"],
        pinned=bool(dashboard["pinned"]),
        created_at=dashboard["created_at"],
        created_by=None
        if dashboard["created_by"] is None
        else embedded_user(database, dashboard["created_by"]),
        is_shared=bool(dashboard["is_shared"]),
        deleted=bool(dashboard["deleted"]),
        creation_mode=dashboard["creation_mode"],
        tags=json.loads(dashboard["tags"]),
        restriction_level=dashboard["restriction_level"],
        effective_restriction_level=dashboard["restriction_level"],
        effective_privilege_level=CAN_EDIT if edits else CAN_VIEW,
        user_access_level="editor" if edits else "viewer",
        access_control_version="v2",
    )


def _list_dashboards(call: ManagementCall) -> Listing:
    statement = "SELECT * FROM dashboards WHERE project = ? ORDER BY id"
    return list_page(
        call.database,
        call.page,
        partial(dashboard_resource, call.database, call.caller),
        statement,
        call.project,
    )


def count_organizations(database: sqlite3.Connection) -> int:
    """How many there are."""
    return int(database.execute("SELECT count(*) FROM organizations").fetchone()[0])


def project_exists(database: sqlite3.Connection, api_key: str) -> bool | None:
    """Whether a project of an organization has this key; None as long as there is no organization,
    so that nothing is said.
    """
    exists, any_at_all = database.execute(
        """
        SELECT
            EXISTS (SELECT 1 FROM projects WHERE api_token = ?),
            EXISTS (SELECT 1 FROM organizations)
        """,
        (api_key,),
    ).fetchone()
    return bool(exists) if any_at_all else None


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {
    LIST_PROJECTS: _list_projects,
    CREATE_PROJECT: _create_project,
    GET_PROJECT: _get_project,
    LIST_DASHBOARDS: _list_dashboards,
}
