"""What is said of each resource: a line of help, the columns of its table, what its things are called, and an example for each command.

The contract says everything else. Tests hold every name here against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from forwarder.contract.endpoints import ENDPOINTS, Endpoint, IdKind


@dataclass(frozen=True, slots=True)
class Words:
    """What is said of a resource. A field inside of another has a dot before it: `user.email`."""

    help: str
    thing: str
    """What one is called where somebody is asked whether it may go."""
    name: str = "name"
    """The field that a person knows it by."""
    id: str = "id"
    """The field that a path names it by."""
    columns: tuple[str, ...] = ()
    """Fields that a list shows."""


RUNS: Final = (
    *("id", "status", "records_completed", "records_total_count", "data_interval_start", "data_interval_end", "finished_at"),
    "latest_error",
)
"""Fields of the runs that a batch export is shown with."""

WORDS: Final = {
    "organization-batch-exports": Words("Pause batch exports of any project of an organization.", "batch export"),
    "domains": Words(
        "Domains of an organization: verify them, and set their single sign-on.",
        *("domain", "domain", "id"),
        ("id", "domain", "is_verified", "verified_at", "sso_enforcement", "jit_provisioning_enabled", "has_saml"),
    ),
    "invites": Words(
        "Invites to an organization, one or twenty at once.",
        *("invite of", "target_email", "id"),
        ("id", "target_email", "level", "is_expired", "first_name", "created_by", "created_at"),
    ),
    "members": Words(
        "Members of an organization, and their levels.",
        *("member", "user.email", "user.uuid"),
        ("user.uuid", "user.email", "level", "user.first_name", "user.last_name", "joined_at", "last_login", "is_2fa_enabled"),
    ),
    "projects": Words(
        "Projects of an organization, and the keys that events are sent with.",
        *("project", "name", "id"),
        ("id", "name", "api_token", "timezone", "ingested_event", "is_demo", "access_control"),
    ),
    "batch-exports": Words("Batch exports of a project: change, pause, run them once more.", "batch export"),
    "batch-export-runs": Words("Runs of a batch export.", "run"),
    "dashboards": Words(
        "Dashboards of a project.",
        *("dashboard", "name", "id"),
        ("id", "name", "description", "pinned", "is_shared", "tags", "created_by", "created_at"),
    ),
}

_UUID: Final = "01900000-0000-7000-8000-000000000401"
_FIELDS: Final = {
    "organization-batch-exports pause": "--organization 01900000-0000-7000-8000-000000000001",
    "domains list": "--all --output json",
    "domains create": "--domain example.com",
    "domains update": "--sso-enforcement saml",
    "domains delete": "--yes",
    "invites list": "--limit 20 --offset 40",
    "invites create": "--target-email mia@example.com --level admin",
    "invites bulk": "--target-email mia@example.com --target-email ben@example.com --no-send-email",
    "members update": "--level admin",
    "projects create": "--name Shop --timezone Europe/Berlin --anonymize-ips",
    "batch-exports update": "--interval day --start-at 2026-02-01T00:00:00Z",
    "batch-exports backfill": "--start-at 2026-01-01T00:00:00Z --end-at 2026-01-02T00:00:00Z",
    "dashboards list": "--project 1",
}
"""What the example of a command has behind its ids."""


def example(endpoint: Endpoint[Any, Any]) -> str:
    """A line that can be typed."""
    ids = ["1" if each.kind is IdKind.INTEGER else _UUID for each in endpoint.parameters if each.name not in OWNERS]
    return " ".join(["forwarder manage", endpoint.name, *ids, _FIELDS.get(endpoint.name, "")]).strip()


OWNERS: Final = {"organization_id": "organization", "project_id": "project"}
"""The ids that are options, for most people have one of each, by the names of these options and of their settings."""


def endpoint_of(resource: str, verb: str) -> Endpoint[Any, Any] | None:
    """The row of the table, if there is one."""
    return next((each for each in ENDPOINTS if (each.resource, each.verb) == (resource, verb)), None)
