"""The projects of an organization. What is sent with a project's `api_token` is ingested as soon as the project is there.

What the contract lets a project have is kept as one JSON object; what it says beside that is worked out when it is asked for.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final
from uuid import uuid4
from zoneinfo import available_timezones

from forwarder.contract.endpoints import CREATE_PROJECT, GET_PROJECT, LIST_PROJECTS, Endpoint
from forwarder.contract.resources import Project, ProjectItem
from forwarder.sandbox.management.call import Call, Handler, Listing, invalid, not_found
from forwarder.sandbox.management.dashboards import NewDashboard, add_dashboard
from forwarder.sandbox.management.rows import listing, row
from forwarder.sandbox.timing import format_time

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
"""The fields of a project that can be set, as they are unless they are."""
DEFAULT_DASHBOARD: Final = "My App Dashboard"
_LETTERS: Final = string.ascii_letters + string.digits
_LENGTH: Final = 43
"""Letters and digits of an `api_token`."""


@dataclass(frozen=True, slots=True)
class NewProject:
    """A project to make, with the fields that it doesn't have by default."""

    organization: str
    settings: Mapping[str, Any]
    created_at: str
    api_token: str
    uuid: str


def new_token() -> str:
    """A project key that nobody has yet."""
    return "phc_" + "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def add_project(database: sqlite3.Connection, new: NewProject) -> int:
    """Make a project, as yet without a dashboard; its id."""
    settings = json.dumps({**DEFAULTS, **new.settings})
    values = (new.uuid, new.organization, new.api_token, secrets.token_urlsafe(32), new.created_at, new.created_at, settings)
    return database.execute("INSERT INTO projects VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", values).lastrowid or 0


def make_primary(database: sqlite3.Connection, project: int, dashboard: int) -> None:
    """Let a dashboard be the first that a project shows."""
    database.execute("UPDATE projects SET settings = json_set(settings, '$.primary_dashboard', ?) WHERE id = ?", (dashboard, project))


def is_timezone(name: str) -> bool:
    """Whether there is a time zone of this name."""
    return name in _timezones()


@cache
def _timezones() -> frozenset[str]:
    return frozenset(available_timezones()) - {"localtime"}  # a machine's own, which not every machine has


def _list(call: Call) -> Listing:
    statement = "SELECT * FROM projects WHERE organization = ? ORDER BY id"
    return listing(call.database, call.page, partial(_item, call.database), statement, call.organization)


def _create(call: Call) -> dict[str, Any]:
    if not is_timezone(call.body.get("timezone", "UTC")):
        raise invalid("timezone", "There is no such time zone; one is Europe/Berlin.", "invalid_choice")
    if (dashboard := call.body.get("primary_dashboard")) is not None:
        _check_dashboard(call, dashboard)
    now = format_time(call.now)
    project = add_project(call.database, NewProject(call.organization, call.body, now, new_token(), str(uuid4())))
    if "primary_dashboard" not in call.body:
        default = NewDashboard(DEFAULT_DASHBOARD, now, call.caller.user, pinned=True)
        make_primary(call.database, project, add_dashboard(call.database, project, default))
    return _shown(call, project)


def _check_dashboard(call: Call, dashboard: int) -> None:
    statement = "SELECT 1 FROM dashboards JOIN projects ON projects.id = dashboards.project WHERE dashboards.id = ? AND organization = ?"
    if row(call.database, statement, dashboard, call.organization) is None:
        raise invalid("primary_dashboard", "The organization has no such dashboard.", "does_not_exist")


def _get(call: Call) -> dict[str, Any]:
    return _shown(call, int(call.ids["id"]))


def _shown(call: Call, project: int) -> dict[str, Any]:
    """A project as it is answered in full."""
    found = row(call.database, "SELECT * FROM projects WHERE id = ? AND organization = ?", project, call.organization)
    if found is None:
        raise not_found()
    whole = {
        **DEFAULTS,
        **json.loads(found["settings"]),
        **_names(call.database, found),
        "created_at": found["created_at"],
        "updated_at": found["updated_at"],
        "effective_membership_level": call.caller.level,
        "has_group_types": row(call.database, "SELECT 1 FROM groups WHERE api_key = ? LIMIT 1", found["api_token"]) is not None,
        "live_events_token": found["live_events_token"],
        "person_on_events_querying_enabled": "true",
        "default_modifiers": "{}",
        "product_intents": "[]",
    }
    return {name: whole[name] for name in Project.__annotations__}


def _item(database: sqlite3.Connection, found: sqlite3.Row) -> dict[str, Any]:
    """A project as lists show it."""
    whole = {**DEFAULTS, **json.loads(found["settings"]), **_names(database, found)}
    return {name: whole[name] for name in ProjectItem.__annotations__}


def _names(database: sqlite3.Connection, found: sqlite3.Row) -> dict[str, Any]:
    """What a list and the full project say alike, beside settings."""
    arrived = "SELECT 1 FROM requests WHERE api_key = ? AND events > 0 LIMIT 1"
    return {
        "id": found["id"],
        "uuid": found["uuid"],
        "organization": found["organization"],
        "api_token": found["api_token"],
        "ingested_event": row(database, arrived, found["api_token"]) is not None,
    }


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {LIST_PROJECTS: _list, CREATE_PROJECT: _create, GET_PROJECT: _get}
