"""What the endpoints accept, field by field, with the rules for each (interface document: "Fields
accepted on …").

Everything is optional unless `Required`. Other fields, read-only ones among them, are
ignored (gap `read-only`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, Literal, Required, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema
from typing_extensions import TypedDict

from forwarder.contract.resources import Json, Model, RunStatus

MOST_INVITES: Final = 20
"""In one bulk (wire facts: "bulk takes an array of at most 20")."""


def _zoned(text: str) -> str:
    """ISO 8601 with a zone (wire facts: "zone required"), and a time that there is in UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "Datetime has wrong format. Use ISO 8601, such as 2026-01-31T12:00:00Z."
        ) from None
    if time.tzinfo is None:
        raise ValueError("The time needs a zone, such as 2026-01-31T12:00:00Z.")
    try:
        time.astimezone(UTC)
    except OverflowError:
        raise ValueError("This time is before the year 1 or after the year 9999 in UTC.") from None
    return text


Moment: TypeAlias = Annotated[
    str, AfterValidator(_zoned), WithJsonSchema({"type": "string", "format": "date-time"})
]
Address: TypeAlias = Annotated[
    str,
    StringConstraints(
        max_length=254, pattern=r"^[^@\s\x00-\x1f<>]+@[^@\s\x00-\x1f.]+(\.[^@\s\x00-\x1f.]+)+$"
    ),
    WithJsonSchema({"type": "string", "format": "email", "maxLength": 254}),
]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"\S")]
Text: TypeAlias = Annotated[str, StringConstraints(max_length=10_000)]
Line: TypeAlias = Annotated[str, StringConstraints(max_length=400)]
Texts: TypeAlias = Annotated[
    list[Annotated[str, StringConstraints(max_length=2_048)]], Field(max_length=1_000)
]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**53 - 1)]
MembershipLevel: TypeAlias = Literal[1, 8, 15]
Interval: TypeAlias = Literal["hour", "day", "week", "every 5 minutes", "every 15 minutes"]


class SingleSignOn(TypedDict, total=False):
    """What of a domain concerns single sign-on."""

    jit_provisioning_enabled: bool
    sso_enforcement: Annotated[str, StringConstraints(max_length=28)]
    saml_entity_id: Annotated[str, StringConstraints(max_length=512)]
    saml_acs_url: Annotated[str, StringConstraints(max_length=512)]
    saml_x509_cert: Text


class NewDomain(SingleSignOn):
    """A domain to add."""

    domain: Required[Annotated[str, StringConstraints(min_length=1, max_length=253)]]


class DomainChange(SingleSignOn, total=False):
    """What of a domain changes; `domain` itself can't."""

    domain: Annotated[str, StringConstraints(max_length=253)]


class AccessToProject(TypedDict):
    """Access to one private project, which an invite brings."""

    id: int
    level: Literal["member", "admin"]


class NewInvite(TypedDict, total=False):
    """Somebody to invite."""

    target_email: Required[Address]
    first_name: Annotated[str, StringConstraints(max_length=30)]
    level: MembershipLevel
    message: Text
    private_project_access: list[AccessToProject] | None
    send_email: bool
    combine_pending_invites: bool


class MemberChange(TypedDict, total=False):
    """What of a membership changes."""

    level: MembershipLevel


class NewProject(TypedDict, total=False):
    """A project to add."""

    name: Name
    product_description: Text
    app_urls: Texts
    slack_incoming_webhook: Annotated[str, StringConstraints(max_length=500)]
    anonymize_ips: bool
    completed_snippet_onboarding: bool
    test_account_filters: Json
    test_account_filters_default_checked: bool
    path_cleaning_filters: Json
    is_demo: bool
    timezone: Annotated[str, StringConstraints(max_length=240)]
    data_attributes: Json
    person_display_name_properties: Texts
    correlation_config: Json
    autocapture_opt_out: bool
    autocapture_exceptions_opt_in: bool
    autocapture_web_vitals_opt_in: bool
    autocapture_web_vitals_allowed_metrics: Json
    autocapture_exceptions_errors_to_ignore: Json
    capture_console_log_opt_in: bool
    capture_performance_opt_in: bool
    session_recording_opt_in: bool
    session_recording_sample_rate: Annotated[
        str, StringConstraints(pattern=r"^(0(\.[0-9]{1,2})?|1(\.0{1,2})?)$")
    ]
    session_recording_minimum_duration_milliseconds: Count
    session_recording_linked_flag: Json
    session_recording_network_payload_capture_config: Json
    session_replay_config: Json
    survey_config: Json
    access_control: bool
    week_start_day: Annotated[int, Field(ge=0, le=6)]
    primary_dashboard: int | None
    live_events_columns: Texts
    recording_domains: Texts
    inject_web_apps: bool
    extra_settings: Json
    modifiers: Json
    has_completed_onboarding_for: Json
    surveys_opt_in: bool
    heatmaps_opt_in: bool
    flags_persistence_default: bool


class DestinationChange(TypedDict, total=False):
    """Where a batch export is to go. Secrets that `config` leaves out stay as they are."""

    type: Required[Annotated[str, StringConstraints(min_length=1, max_length=64)]]
    config: Json


class BatchExportChange(TypedDict, total=False):
    """What of a batch export changes."""

    name: Name
    model: Model
    destination: DestinationChange
    interval: Interval
    paused: bool
    last_paused_at: Moment | None
    start_at: Moment | None
    end_at: Moment | None
    hogql_query: Text
    filters: Json


class RunChange(TypedDict, total=False):
    """What of a run a retry may bring; it is checked, and changes nothing."""

    status: RunStatus
    records_completed: Count | None
    latest_error: Text | None
    data_interval_start: Moment | None
    data_interval_end: Moment | None
    cursor: Text | None
    finished_at: Moment | None
    records_total_count: Count | None
