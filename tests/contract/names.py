"""What the interface document lists, typed from it by hand: neither the contract package nor
`interface.md` may leave one out.

Endpoints: method, path, scope, status, answer. Fields: name and type, those of a resource in its
order; then what is accepted, by name.
"""

from __future__ import annotations

from typing import Final

ENDPOINTS: Final = """
POST /api/organizations/:organization_id/batch_exports/:id/pause/ batch_export:write 200 -
POST /api/organizations/:organization_id/batch_exports/:id/unpause/ batch_export:write 200 -
GET /api/organizations/:organization_id/domains/ organization:read 200 Domain...
POST /api/organizations/:organization_id/domains/ organization:write 201 Domain
GET /api/organizations/:organization_id/domains/:id/ organization:read 200 Domain
PATCH /api/organizations/:organization_id/domains/:id/ organization:write 200 Domain
DELETE /api/organizations/:organization_id/domains/:id/ organization:write 204 -
POST /api/organizations/:organization_id/domains/:id/verify/ organization:write 200 -
GET /api/organizations/:organization_id/invites/ organization_member:read 200 Invite...
POST /api/organizations/:organization_id/invites/ organization_member:write 201 Invite
DELETE /api/organizations/:organization_id/invites/:id/ organization_member:write 204 -
POST /api/organizations/:organization_id/invites/bulk/ organization_member:write 200 -
GET /api/organizations/:organization_id/members/ organization_member:read 200 Member...
PATCH /api/organizations/:organization_id/members/:user__uuid/ organization_member:write 200 Member
DELETE /api/organizations/:organization_id/members/:user__uuid/ organization_member:write 204 -
GET /api/organizations/:organization_id/projects/ project:read 200 ProjectItem...
POST /api/organizations/:organization_id/projects/ project:write 201 Project
GET /api/organizations/:organization_id/projects/:id/ project:read 200 Project
GET /api/environments/:project_id/batch_exports/:id/ batch_export:read 200 BatchExport
PATCH /api/environments/:project_id/batch_exports/:id/ batch_export:write 200 BatchExport
DELETE /api/environments/:project_id/batch_exports/:id/ batch_export:write 204 -
POST /api/environments/:project_id/batch_exports/:id/backfill/ batch_export:write 200 -
POST /api/environments/:project_id/batch_exports/:id/pause/ batch_export:write 200 -
POST /api/environments/:project_id/batch_exports/:id/unpause/ batch_export:write 200 -
GET /api/environments/:project_id/batch_exports/:id/logs/ batch_export:read 200 -
POST /api/environments/:project_id/batch_exports/:batch_export_id/runs/:id/retry/ \
batch_export:write 200 -
GET /api/environments/:project_id/dashboards/ dashboard:read 200 Dashboard...
"""

FIELDS: Final = {
    "Domain": """
        id: UUID, domain: string, is_verified: boolean, verified_at: time,
        verification_challenge: string, jit_provisioning_enabled: boolean, sso_enforcement: string,
        has_saml: boolean, saml_entity_id: string, saml_acs_url: string, saml_x509_cert: string
    """,
    "User": """
        id: integer, uuid: UUID, distinct_id: string, first_name: string, last_name: string,
        email: e-mail address, is_email_verified: boolean, hedgehog_config: object,
        role_at_organization: string
    """,
    "Invite": """
        id: UUID, target_email: e-mail address, first_name: string, emailing_attempt_made: boolean,
        level: integer, is_expired: boolean, created_by: User, created_at: time, updated_at: time,
        message: string, private_project_access: list of ProjectAccess, send_email: boolean,
        combine_pending_invites: boolean
    """,
    "Member": """
        id: UUID, user: User, level: integer, joined_at: time, updated_at: time,
        is_2fa_enabled: boolean, has_social_auth: boolean, last_login: time
    """,
    "ProjectItem": """
        id: integer, uuid: UUID, organization: UUID, api_token: string, name: string,
        completed_snippet_onboarding: boolean, has_completed_onboarding_for: JSON,
        ingested_event: boolean, is_demo: boolean, timezone: string, access_control: boolean
    """,
    "Project": """
        id: integer, uuid: UUID, organization: UUID, name: string, product_description: string,
        created_at: time, updated_at: time, effective_membership_level: integer,
        has_group_types: boolean, live_events_token: string, api_token: string,
        app_urls: list of string, slack_incoming_webhook: string, anonymize_ips: boolean,
        completed_snippet_onboarding: boolean, ingested_event: boolean, test_account_filters: JSON,
        test_account_filters_default_checked: boolean, path_cleaning_filters: JSON,
        is_demo: boolean, timezone: string, data_attributes: JSON,
        person_display_name_properties: list of string, correlation_config: JSON,
        autocapture_opt_out: boolean, autocapture_exceptions_opt_in: boolean,
        autocapture_web_vitals_opt_in: boolean, autocapture_web_vitals_allowed_metrics: JSON,
        autocapture_exceptions_errors_to_ignore: JSON, capture_console_log_opt_in: boolean,
        capture_performance_opt_in: boolean, session_recording_opt_in: boolean,
        session_recording_sample_rate: string,
        session_recording_minimum_duration_milliseconds: integer,
        session_recording_linked_flag: JSON,
        session_recording_network_payload_capture_config: JSON, session_replay_config: JSON,
        survey_config: JSON, access_control: boolean, week_start_day: integer,
        primary_dashboard: integer, live_events_columns: list of string,
        recording_domains: list of string, person_on_events_querying_enabled: string,
        inject_web_apps: boolean, extra_settings: JSON, modifiers: JSON, default_modifiers: string,
        has_completed_onboarding_for: JSON, surveys_opt_in: boolean, heatmaps_opt_in: boolean,
        product_intents: string, flags_persistence_default: boolean
    """,
    "BatchExport": """
        id: UUID, team_id: integer, name: string, model: string, destination: Destination,
        interval: string, paused: boolean, created_at: time, last_updated_at: time,
        last_paused_at: time, start_at: time, end_at: time, latest_runs: list of BatchExportRun,
        hogql_query: string, schema: JSON, filters: JSON
    """,
    "Destination": "type: string, config: JSON",
    "BatchExportRun": """
        id: UUID, status: string, records_completed: integer, latest_error: string,
        data_interval_start: time, data_interval_end: time, cursor: string, created_at: time,
        finished_at: time, last_updated_at: time, records_total_count: integer, batch_export: UUID
    """,
    "Dashboard": """
        id: integer, name: string, description: string, pinned: boolean, created_at: time,
        created_by: User, is_shared: boolean, deleted: boolean, creation_mode: string,
        tags: list of JSON, restriction_level: integer, effective_restriction_level: integer,
        effective_privilege_level: integer, user_access_level: string,
        access_control_version: string
    """,
    "Envelope": "count: integer, next: string, previous: string, results: list",
    "Decide request": """
        api_key: string, distinct_id: string, groups: object of string, person_properties: object,
        group_properties: object of object
    """,
    "Decide answer": """
        config: DecideConfig, toolbarParams: object, errorsWhileComputingFlags: boolean,
        isAuthenticated: boolean, supportedCompression: list of string,
        featureFlags: object of boolean or string, featureFlagPayloads: object of string
    """,
    "DecideConfig": "enable_collect_everything: boolean",
    "Capture request": (
        "api_key: string, event: string, distinct_id: string, properties: object, timestamp: time"
    ),
    "Batch request": "api_key: string, historical_migration: boolean, batch: list of BatchEvent",
}

_DOMAIN: Final = (
    "domain, jit_provisioning_enabled, sso_enforcement, saml_entity_id, saml_acs_url, "
    "saml_x509_cert"
)

ACCEPTED: Final = {
    ("Domain", "create"): _DOMAIN,
    ("Domain", "update"): _DOMAIN,
    (
        "Invite",
        "create",
    ): (
        "target_email, first_name, level, message, private_project_access, send_email, "
        "combine_pending_invites"
    ),
    ("Member", "update"): "level",
    ("Project", "create"): """
        name, product_description, app_urls, slack_incoming_webhook, anonymize_ips,
        completed_snippet_onboarding, test_account_filters, test_account_filters_default_checked,
        path_cleaning_filters, is_demo, timezone, data_attributes, person_display_name_properties,
        correlation_config, autocapture_opt_out, autocapture_exceptions_opt_in,
        autocapture_web_vitals_opt_in, autocapture_web_vitals_allowed_metrics,
        autocapture_exceptions_errors_to_ignore, capture_console_log_opt_in,
        capture_performance_opt_in, session_recording_opt_in, session_recording_sample_rate,
        session_recording_minimum_duration_milliseconds, session_recording_linked_flag,
        session_recording_network_payload_capture_config, session_replay_config, survey_config,
        access_control, week_start_day, primary_dashboard, live_events_columns, recording_domains,
        inject_web_apps, extra_settings, modifiers, has_completed_onboarding_for, surveys_opt_in,
        heatmaps_opt_in, flags_persistence_default
    """,
    (
        "BatchExport",
        "update",
    ): (
        "name, model, destination, interval, paused, last_paused_at, start_at, end_at, "
        "hogql_query, filters"
    ),
    ("Retry", "retry"): """
        status, records_completed, latest_error, data_interval_start, data_interval_end, cursor,
        finished_at, records_total_count
    """,
}

STATUSES: Final = (
    "Cancelled, Completed, ContinuedAsNew, Failed, FailedRetryable, Terminated, TimedOut, "
    "Running, Starting"
)
PLACES: Final = """
    $geoip_city_name, $geoip_country_name, $geoip_country_code, $geoip_continent_name, \
$geoip_continent_code, $geoip_postal_code,
    $geoip_time_zone"""
EVENTS: Final = [
    ("", ""),
    ("$pageview", "$current_url"),
    ("$screen", "$screen_name"),
    ("$identify", "$set"),
    ("$create_alias", "alias"),
    ("$groupidentify", "$group_type $group_key $group_set"),
    ("", "$groups"),
    ("survey sent, survey shown, survey dismissed", "$survey_id $survey_response"),
    ("$feature_flag_called", "$feature_flag $feature_flag_response"),
    ("", "$feature/<flag_key>"),
    ("", "$process_person_profile"),
]

OPEN: Final = {
    "Gaps in the resource definitions, 1: what can be written": "read-only",
    "2: level": "levels",
    "2: role_at_organization": "roles",
    "2: sso_enforcement": "sso-enforcement",
    "2: restriction levels": "restriction-levels",
    "2: creation_mode": "creation-mode",
    "2: interval": "intervals",
    "2: destination.type": "destination-types",
    "3: destination.config": "destination-config",
    "3: schema, filters": "export-settings",
    "3: settings of a project": "project-settings",
    "4: send_email": "send-email",
    "5: private_project_access": "project-access",
    "States and transitions: conditions of pause and unpause": "pause-twice",
    "States and transitions, 2: statuses of runs": "run-transitions",
    "2: verification": "verification",
    "2: expiry of invites": "invite-expiry",
    "Gaps in the management endpoints, 1: scope of verify": "verify-scope",
    "1: scope of logs": "logs-scope",
    "2: what pause, unpause, backfill and retry need": "action-payloads",
    "3: batch exports and runs": "export-operations",
    "4: projects": "project-operations",
    "4: dashboards": "dashboard-operations",
    "Gaps in the ingestion endpoints: success": "capture-answer",
    "Authentication, 4: keys": "keys",
    "Events: notifications": "notifications",
    "Errors, 3: management": "management-errors",
    "Errors, 4: ingestion": "ingestion-failures",
    "Limits, 3: rates": "rate-limits",
    "Limits, 4: pages": "page-size",
    "Versioning, 3: management": "management-versions",
    "Versioning, 3: v": "decide-versions",
    "otherwise than the service: events without a name": "nameless-events",
    "otherwise: no body": "no-body",
    "otherwise: compression": "compressions",
    "decided: bulk": "bulk",
    "decided: malformed ids": "malformed-ids",
    "decided: another invite": "invite-again",
    "decided: what isn't there yet": "no-value-yet",
}
"""What the interface document or the agreement leaves open, and the gap that answers it."""


def listed(text: str) -> list[tuple[str, str]]:
    """Names and types of a text above."""
    pairs = (entry.split(": ") for entry in " ".join(text.split()).split(", "))
    return [(name, kind) for name, kind in pairs]


def named(text: str) -> set[str]:
    """Names of a text above."""
    return set(" ".join(text.split()).split(", "))
