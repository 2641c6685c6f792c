"""The members of a flag and of a cohort in the service's own form, and what is proposed for others.

Sources: of PostHog/posthog `filters_schema` in `products/feature_flags/backend/api` (commit
2d8dc36) for `filters` and what is in it, `FeatureFlagSerializer` beside it (99623ca) for a flag,
with what `/flags/definitions` adds (`rust/feature-flags/src/flags/flag_models.rs`,
00c5d0b) and what older versions had. The service drops an unknown member and warns; here a test
that misspells one must not pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from forwarder.core.near_names import near_name, propose_name

Form: TypeAlias = Mapping[str, Any]
"""The form of each member: None is anything, a form is an object, a list of a form a list."""


def _anything(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names)


_CONDITION: Final = _anything(
    *("key", "value", "type", "operator", "negation", "group_type_index"),
    *("label", "cohort_name", "group_key_names", "dependency_chain", "bytecode", "conditionHash"),
    *("event_type", "event_filters", "time_value", "time_interval", "operator_value"),
    *("seq_event", "seq_event_type", "seq_time_value", "seq_time_interval"),
    *("total_periods", "min_periods", "explicit_datetime", "explicit_datetime_to"),
)
_GROUP: Final[Form] = {
    "properties": [_CONDITION],
    **_anything("rollout_percentage", "variant", "aggregation_group_type_index"),
    **_anything("description", "sort_key", "users_affected"),
    **_anything("exposure_frozen", "exposure_frozen_cohort"),
}
_FILTERS: Final[Form] = {
    "groups": [_GROUP],
    "super_groups": [_GROUP],
    "holdout_groups": [_GROUP],
    "multivariate": {
        "variants": [_anything("key", "name", "rollout_percentage", "description")],
    },
    "holdout": _anything("id", "exclusion_percentage"),
    **_anything("payloads", "aggregation_group_type_index", "feature_enrollment", "early_exit"),
    **_anything("version"),
    "properties": [_CONDITION],
    **_anything("rollout_percentage"),
}
FLAG: Final[Form] = {
    "filters": _FILTERS,
    "properties": [_CONDITION],
    **_anything("id", "key", "name", "active", "deleted", "archived", "version", "team_id"),
    **_anything("ensure_experience_continuity", "bucketing_identifier", "evaluation_runtime"),
    **_anything("evaluation_contexts", "evaluation_environments", "evaluation_tags", "tags"),
    **_anything("is_remote_configuration", "has_encrypted_payloads", "rollout_percentage"),
    **_anything("is_simple_flag", "experiment_set", "experiment_set_metadata", "has_experiment"),
    **_anything("surveys", "features", "rollback_conditions", "performed_rollback", "can_edit"),
    **_anything("created_by", "created_at", "updated_at", "last_modified_by", "last_called_at"),
    **_anything("usage_dashboard", "analytics_dashboards", "has_enriched_analytics", "status"),
    **_anything("user_access_level", "creation_context", "is_used_in_replay_settings"),
    **_anything("minimal_flag_called_events", "property_matching_version", "config_version"),
    **_anything("_create_in_folder", "_should_create_usage_dashboard"),
}
"""A flag's. `filters` of a later version have a form of their own, which isn't checked here."""
COHORT: Final[Form] = {
    **_anything("id", "name", "description", "is_static", "deleted", "filters", "groups", "query"),
    **_anything("type", "values", "distinct_ids", "count", "version", "pending_version"),
    **_anything("team_id", "cohort_type", "experiment_set", "created_by", "created_at"),
    **_anything("is_calculating", "last_calculation", "errors_calculating", "last_error_at"),
    **_anything("last_error_message", "last_backfill_person_properties_at", "_create_in_folder"),
    **_anything("_create_static_person_ids"),
}


class UnknownMember(NamedTuple):
    """A member that the form doesn't have."""

    path: str
    """As in `filters.groups[0].rolout`."""
    hint: str
    """What may have been meant."""


def find_unknown_member(content: object, form: Form) -> UnknownMember | None:
    """The first member of a flag or cohort that its form doesn't have; None if there is none."""
    return next(_unknown(content, form, "", form), None)


def _unknown(content: object, form: Form, path: str, whole: Form) -> Iterator[UnknownMember]:
    if not isinstance(content, dict):
        return
    if form is _FILTERS and content.get("version", 1) != 1:
        return
    for name, value in content.items():
        here = f"{path}.{name}" if path else name
        if name not in form:
            yield UnknownMember(here, _hint(name, form, path, whole))
        elif isinstance(form[name], list):
            for index, item in enumerate(value if isinstance(value, list) else ()):
                yield from _unknown(item, form[name][0], f"{here}[{index}]", whole)
        elif form[name] is not None:
            yield from _unknown(value, form[name], here, whole)


def _hint(name: str, form: Form, path: str, whole: Form) -> str:
    """A member beside it that is like it, or else one of that name, or like it, elsewhere."""
    if near := near_name(name, form):
        return f"did you mean {path}.{near}?" if path else f"did you mean {near}?"
    elsewhere = dict(_places(whole, ""))
    near = name if name in elsewhere else near_name(name, elsewhere)
    return f"did you mean {elsewhere[near]}?" if near else propose_name(name, form)


def _places(form: Form, path: str) -> Iterator[tuple[str, str]]:
    """Each name within other members, with the first place where it stands."""
    for name, inner in reversed(list(form.items())):
        here = f"{path}.{name}" if path else name
        if isinstance(inner, list):
            yield from _places(inner[0], f"{here}[0]")
        elif inner is not None:
            yield from _places(inner, here)
        if path:
            yield name, here
