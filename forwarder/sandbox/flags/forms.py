"""The forms of answers about flags: by path and version.

`/decide` (interface document: "POST /decide?v=3"): version 1 lists the keys of the flags that are
on, version 2 maps them to their values, version 3 maps all flags to theirs, false ones too, and
adds payloads; from 4 on each flag is an object. `/flags`: version 1 is `/decide`'s third; in
version 2 each flag is an object with `enabled` and `variant`, and from version 3 on a record with
one typed `value` instead. A flag that can't be computed is false in maps, and `failed` among
objects.

The source is the service's code: `rust/feature-flags/src/api/types.rs` of PostHog/posthog at
016d5b14dc82, `get_versioned_response` in `api/endpoint.rs` at 00a9ba8f059a, and for typed records
`rust/feature-flags/tests/test_flags_v3.rs` at 0da8f8c35ac1. There the typed record is behind a
setting of the service; the newest SDKs ask for it with version 4.
"""

from __future__ import annotations

from typing import Any, Final

from forwarder.sandbox.flags.definitions import Flag
from forwarder.sandbox.flags.evaluation import Evaluation, FlagResult
from forwarder.sandbox.flags.flag_rules import FlagRuleOutcome
from forwarder.sandbox.flags.stored import ProjectDefinitions

DECIDE: Final = "/decide"
FLAGS: Final = "/flags"
_OBJECTS_SINCE: Final = {DECIDE: 4, FLAGS: 2}
"""The version from which on each flag is an object."""
_TYPED_SINCE: Final = 3
"""The version of `/flags` from which on an object has a typed value."""


def flags_in_form(
    path: str, version: int, evaluation: Evaluation, project: ProjectDefinitions
) -> dict[str, Any]:
    """An evaluation in the form of a version, without what isn't about single flags."""
    if version >= _OBJECTS_SINCE[path]:
        return {"flags": _objects(path, version, evaluation, project)}
    results = evaluation.results
    values = {
        key: result.variant if result.variant is not None else result.enabled
        for key, result in results.items()
    }
    enabled = {key: value for key, value in values.items() if results[key].enabled}
    if path == DECIDE and version < 2:
        return {"featureFlags": list(enabled)}
    if path == DECIDE and version == 2:
        return {"featureFlags": enabled}
    payloads = {
        key: result.payload for key, result in results.items() if result.payload is not None
    }
    return {
        "featureFlags": {**values, **dict.fromkeys(evaluation.failed, False)},
        "featureFlagPayloads": payloads,
    }


def tells_errors(path: str, version: int) -> bool:
    """Whether the service says in this form if some flags could not be computed."""
    return path != DECIDE or version > 2


def linked_to_experiment(project: ProjectDefinitions) -> frozenset[str]:
    """The keys of the flags that an experiment uses."""
    return frozenset(
        experiment["feature_flag_key"]
        for experiment in project.experiments
        if not experiment.get("deleted")
    )


def show_flag(result: FlagResult, *, has_experiment: bool = False) -> dict[str, Any]:
    """A decision as an object."""
    return {
        "key": result.flag.key,
        "enabled": result.enabled,
        "variant": result.variant,
        "reason": _reason(result),
        "metadata": _metadata(result.flag, result.payload, has_experiment=has_experiment),
    }


def _objects(
    path: str, version: int, evaluation: Evaluation, project: ProjectDefinitions
) -> dict[str, Any]:
    experiments = linked_to_experiment(project)
    if path == FLAGS and version >= _TYPED_SINCE:
        show, fail = _show_typed, _fail_typed
    else:
        show, fail = show_flag, _fail
    shown = {
        key: show(result, has_experiment=key in experiments)
        for key, result in evaluation.results.items()
    }
    failed = {
        key: fail(project.flags[key], why, has_experiment=key in experiments)
        for key, why in evaluation.failed.items()
    }
    return {**shown, **failed}


def _fail(flag: Flag, why: str, *, has_experiment: bool) -> dict[str, Any]:
    return {
        "key": flag.key,
        "enabled": False,
        "variant": None,
        "failed": True,
        "reason": {"code": "error", "condition_index": None, "description": why},
        "metadata": _metadata(flag, None, has_experiment=has_experiment),
    }


def _show_typed(result: FlagResult, *, has_experiment: bool) -> dict[str, Any]:
    if result.by_rules is not None:
        return _show_rules(result.flag, result.by_rules, has_experiment=has_experiment)
    variant = {} if result.variant is None else {"variant_key": result.variant}
    return {
        "key": result.flag.key,
        "value": result.value,
        "reason": _reason(result),
        "metadata": {
            **_metadata(result.flag, result.payload, has_experiment=has_experiment),
            **_config_version(result.flag),
            **variant,
        },
    }


def _show_rules(flag: Flag, outcome: FlagRuleOutcome, *, has_experiment: bool) -> dict[str, Any]:
    """What rules decided: by their own codes, and by which of them."""
    rule = outcome.rule
    return {
        "key": flag.key,
        "value": outcome.value,
        "reason": {
            "code": outcome.code,
            "condition_index": outcome.index,
            "description": outcome.description,
        },
        "metadata": {
            **_metadata(flag, None, has_experiment=has_experiment),
            **_config_version(flag),
            **({} if rule is None else {"rule_type": rule.kind, "rule_id": rule.id}),
        },
    }


def _fail_typed(flag: Flag, why: str, *, has_experiment: bool) -> dict[str, Any]:
    failed = _fail(flag, why, has_experiment=has_experiment)
    return {
        "key": flag.key,
        "value": None,
        "failed": True,
        "reason": failed["reason"],
        "metadata": {**failed["metadata"], **_config_version(flag)},
    }


def _reason(result: FlagResult) -> dict[str, Any]:
    reason = result.reason
    return {
        "code": reason.code,
        "condition_index": reason.condition_index,
        "description": reason.description,
    }


def _metadata(flag: Flag, payload: str | None, *, has_experiment: bool) -> dict[str, Any]:
    return {
        "id": flag.content["id"],
        "version": flag.content["version"],
        "description": None,
        "payload": payload,
        "has_experiment": has_experiment,
    }


def _config_version(flag: Flag) -> dict[str, int]:
    """The version of the form of a flag's filters."""
    return {"config_version": 2 if flag.content["filters"].get("version") == 2 else 1}
