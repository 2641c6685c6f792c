"""The resources as they are answered, field by field, named to the letter (interface document,
"Resources and their fields"), and the pages and errors of the management API (wire facts:
"Management API, where the contract says not shown").

Each is a dictionary: fields that a newer service adds are kept as they came. A field is `| None`
where the interface document says "nullable", and where there may be no value yet, which the
document does not show (gap `no-value-yet`): a domain that is not verified has no `verified_at`.
Texts without a value are empty.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Generic, Literal, TypeAlias, TypeVar

from pydantic import Field, JsonValue, WithJsonSchema
from typing_extensions import TypedDict

Uuid: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "uuid"})]
Timestamp: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""ISO 8601 in UTC."""
Email: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "email"})]
Json: TypeAlias = JsonValue
"""Any JSON value; null is one."""
JsonObject: TypeAlias = dict[str, JsonValue]
MEMBER: Final = 1
ADMIN: Final = 8
OWNER: Final = 15
LEVELS: Final = {MEMBER: "member", ADMIN: "admin", OWNER: "owner"}
"""Of a membership (wire facts: "Management API, where the contract says not shown"; unverified)."""
Level: TypeAlias = Annotated[int, Field(json_schema_extra={"enum": list(LEVELS)})]
Model: TypeAlias = Literal["events", "persons"]
RunStatus: TypeAlias = Literal[
    "Cancelled",
    "Completed",
    "ContinuedAsNew",
    "Failed",
    "FailedRetryable",
    "Terminated",
    "TimedOut",
    "Running",
    "Starting",
]
T = TypeVar("T")
PAGE_SIZE: Final = 100
"""Items of a page unless `limit` says otherwise."""
LARGEST_PAGE: Final = 10_000
"""What `limit` can ask for at most (gap `page-size`)."""


class Domain(TypedDict):
    """A domain of an organization, for single sign-on."""

    id: Uuid
    domain: str
    is_verified: bool
    verified_at: Timestamp | None
    verification_challenge: str
    jit_provisioning_enabled: bool
    sso_enforcement: str
    has_saml: bool
    saml_entity_id: str
    saml_acs_url: str
    saml_x509_cert: str


class User(TypedDict):
    """Somebody, as embedded in other resources."""

    id: int
    uuid: Uuid
    distinct_id: str
    first_name: str
    last_name: str
    email: Email
    is_email_verified: bool
    hedgehog_config: JsonObject
    role_at_organization: str


class Invite(TypedDict):
    """An invitation to an organization."""

    id: Uuid
    target_email: Email
    first_name: str
    emailing_attempt_made: bool
    level: Level
    is_expired: bool
    created_by: User
    created_at: Timestamp
    updated_at: Timestamp
    message: str
    private_project_access: list[ProjectAccess] | None
    send_email: bool
    combine_pending_invites: bool


class ProjectAccess(TypedDict):
    """Access to one private project, which an invite brings."""

    id: int
    level: Literal["member", "admin"]


class Member(TypedDict):
    """A membership of a user in an organization."""

    id: Uuid
    user: User
    level: Level
    joined_at: Timestamp
    updated_at: Timestamp
    is_2fa_enabled: bool
    has_social_auth: bool
    last_login: Timestamp | None


class ProjectItem(TypedDict):
    """A project as lists show it."""

    id: int
    uuid: Uuid
    organization: Uuid
    api_token: str
    name: str
    completed_snippet_onboarding: bool
    has_completed_onboarding_for: Json
    ingested_event: bool
    is_demo: bool
    timezone: str
    access_control: bool


class Project(TypedDict):
    """A project in full."""

    id: int
    uuid: Uuid
    organization: Uuid
    name: str
    product_description: str
    created_at: Timestamp
    updated_at: Timestamp
    effective_membership_level: Level
    has_group_types: bool
    live_events_token: str
    api_token: str
    app_urls: list[str]
    slack_incoming_webhook: str
    anonymize_ips: bool
    completed_snippet_onboarding: bool
    ingested_event: bool
    test_account_filters: Json
    test_account_filters_default_checked: bool
    path_cleaning_filters: Json
    is_demo: bool
    timezone: str
    data_attributes: Json
    person_display_name_properties: list[str]
    correlation_config: Json
    autocapture_opt_out: bool
    autocapture_exceptions_opt_in: bool
    autocapture_web_vitals_opt_in: bool
    autocapture_web_vitals_allowed_metrics: Json
    autocapture_exceptions_errors_to_ignore: Json
    capture_console_log_opt_in: bool
    capture_performance_opt_in: bool
    session_recording_opt_in: bool
    session_recording_sample_rate: str
    session_recording_minimum_duration_milliseconds: int
    session_recording_linked_flag: Json
    session_recording_network_payload_capture_config: Json
    session_replay_config: Json
    survey_config: Json
    access_control: bool
    week_start_day: int
    primary_dashboard: int | None
    live_events_columns: list[str]
    recording_domains: list[str]
    person_on_events_querying_enabled: str
    inject_web_apps: bool
    extra_settings: Json
    modifiers: Json
    default_modifiers: str
    has_completed_onboarding_for: Json
    surveys_opt_in: bool
    heatmaps_opt_in: bool
    product_intents: str
    flags_persistence_default: bool


class Destination(TypedDict):
    """Where a batch export goes. Secrets in `config` are not read back."""

    type: str
    config: Json


class BatchExportRun(TypedDict):
    """One run of a batch export."""

    id: Uuid
    status: RunStatus
    records_completed: int
    latest_error: str
    data_interval_start: Timestamp | None
    data_interval_end: Timestamp | None
    cursor: str
    created_at: Timestamp
    finished_at: Timestamp | None
    last_updated_at: Timestamp
    records_total_count: int | None
    batch_export: Uuid


class BatchExport(TypedDict):
    """A scheduled export of events or persons to a destination."""

    id: Uuid
    team_id: int
    name: str
    model: Model
    destination: Destination
    interval: str
    paused: bool
    created_at: Timestamp
    last_updated_at: Timestamp
    last_paused_at: Timestamp | None
    start_at: Timestamp | None
    end_at: Timestamp | None
    latest_runs: list[BatchExportRun]
    hogql_query: str
    schema: Json
    filters: Json


class Dashboard(TypedDict):
    """A dashboard as lists show it."""

    id: int
    name: str
    description: str
    pinned: bool
    created_at: Timestamp
    created_by: User | None
    is_shared: bool
    deleted: bool
    creation_mode: str
    tags: list[Json]
    restriction_level: int
    effective_restriction_level: int
    effective_privilege_level: int
    user_access_level: str
    access_control_version: str


class ErrorType(StrEnum):
    """`type` of an error."""

    AUTHENTICATION = "authentication_error"
    VALIDATION = "validation_error"
    INVALID_REQUEST = "invalid_request"
    THROTTLED = "throttled_error"
    SERVER = "server_error"


class ErrorBody(TypedDict):
    """The body of every answer from 400 on; `attr` names the field, if it is about one."""

    type: str
    code: str
    detail: str
    attr: str | None


class PageEnvelope(TypedDict, Generic[T]):
    """One page of a list; `next` and `previous` are absolute URLs."""

    count: int
    next: str | None
    previous: str | None
    results: list[T]
