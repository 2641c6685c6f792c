"""The resources as they are answered, field by field, named to the letter (interface document, "Resources and their fields").

Each is a dictionary: what a newer service answers beside these fields is kept as it came. A field is `| None` where the interface document
says "nullable", and where there may be nothing to tell yet, which the document doesn't show (gap `no-value-yet`): a domain that isn't
verified has no `verified_at`. Texts without a value are empty.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from typing_extensions import TypedDict

from forwarder.contract.kinds import Email, Json, JsonObject, Level, Timestamp, Uuid

Model: TypeAlias = Literal["events", "persons"]
RunStatus: TypeAlias = Literal[
    "Cancelled", "Completed", "ContinuedAsNew", "Failed", "FailedRetryable", "Terminated", "TimedOut", "Running", "Starting"
]


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
