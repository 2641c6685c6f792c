"""Surveys, early access features and experiments: in the forms that SDKs read them in, each with
the flag that decides over it.

As in the real service a flag goes with each of them, and is decided as all flags are:
- a survey's `targeting_flag_filters` become the flag `survey-targeting-…`, which
  `targeting_flag_key` names; `linked_flag_key` names any flag;
- an early access feature's flag is on for whoever has enrolled: its `feature_enrollment` asks for
  the property `$feature_enrollment/KEY`, which SDKs set, before the conditions. Features in draft
  and archived ones leave their flag alone;
- an experiment's flag has its variants (`parameters.feature_flag_variants`, by default `control`
  and `test`, half each), is off as long as `start_date` is null, and names the experiment in
  `experiment_set`.
A flag that is there keeps its conditions and variants. Which variant wins an experiment is not
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from forwarder.sandbox.flags.definitions import InvalidDefinition
from forwarder.sandbox.flags.stored import (
    DefinitionKey,
    DefinitionKind,
    StoredDefinition,
    check_definition,
    find_definition,
    put_definition,
)
from forwarder.sandbox.store.database import Store

_STAGES: Final = ("draft", "concept", "alpha", "beta", "general-availability", "archived")
_SURVEY: Final[Mapping[str, Any]] = {
    "description": "",
    "type": "popover",
    "feature_flag_keys": [],
    "linked_flag_key": None,
    "targeting_flag_key": None,
    "internal_targeting_flag_key": None,
    "questions": [],
    "appearance": None,
    "conditions": None,
    "start_date": None,
    "end_date": None,
    "current_iteration": None,
    "current_iteration_start_date": None,
    "schedule": "once",
    "enable_partial_responses": False,
}
_HALVES: Final = (
    {"key": "control", "rollout_percentage": 50},
    {"key": "test", "rollout_percentage": 50},
)


def add_linked(
    store: Store, api_key: str, kind: DefinitionKind, content: Mapping[str, Any], now: datetime
) -> None:
    """Add a survey, feature or experiment unless it is there, and its flag, or what it needs in
    its flag. Raises `InvalidDefinition`.
    """
    name, completed = read_linked(kind, content)
    if find_definition(store, DefinitionKey(api_key, kind, name)) is not None:
        return
    stored = put_definition(store, DefinitionKey(api_key, kind, name), completed, now)
    key, change = _FLAGS[kind](stored)
    if key is None:
        return
    flag_key = DefinitionKey(api_key, DefinitionKind.FLAG, key)
    flag = find_definition(store, flag_key)
    put_definition(store, flag_key, change({} if flag is None else dict(flag.content)), now)


def check_entry(kind: DefinitionKind, content: object) -> None:
    """Raise `InvalidDefinition` if a definition of any kind, which says itself what it is named,
    can't be added.
    """
    if kind is DefinitionKind.FLAG:
        check_definition(kind, str(_required(content, "key", str)), content)
    elif kind is DefinitionKind.COHORT:
        check_definition(kind, str(_required(content, "id", int)), content)
    elif isinstance(content, dict):
        read_linked(kind, content)
    else:
        raise InvalidDefinition("", "must be an object")


def _required(content: object, name: str, kind: type) -> object:
    value = content.get(name) if isinstance(content, dict) else None
    if type(value) is not kind or value in ("", 0):
        raise InvalidDefinition(
            name, "this is required: " + ("a text" if kind is str else "a number from 1 on")
        )
    return value


def read_linked(kind: DefinitionKind, content: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name under which a survey, feature or experiment is stored, and its
    form. Raises `InvalidDefinition`.
    """
    if not isinstance(content.get("name"), str) or not content["name"]:
        raise InvalidDefinition("name", "this is required")
    if kind is DefinitionKind.EXPERIMENT:
        return _read_experiment(content)
    identity = str(content.get("id") or uuid5(NAMESPACE_URL, f"{kind}\0{content['name']}"))
    return (
        _read_survey(identity, content)
        if kind is DefinitionKind.SURVEY
        else _read_feature(identity, content)
    )


def _read_survey(identity: str, content: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    survey = {**_SURVEY, **content, "id": identity}
    filters = survey.pop("targeting_flag_filters", None)
    if filters is not None:
        survey["targeting_flag_key"] = (
            survey["targeting_flag_key"] or f"survey-targeting-{identity}"
        )
        survey["targeting_flag_filters"] = filters
        _check_flag(survey["targeting_flag_key"], filters, "targeting_flag_filters")
    if not isinstance(survey["questions"], list):
        raise InvalidDefinition("questions", "this is not a list")
    if not survey["feature_flag_keys"]:
        flags = {
            name: survey[name]
            for name in ("linked_flag_key", "targeting_flag_key", "internal_targeting_flag_key")
        }
        survey["feature_flag_keys"] = [
            {"key": name, "value": value} for name, value in flags.items() if value
        ]
    return identity, survey


def _read_feature(identity: str, content: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    key = next(
        (content[name] for name in ("flagKey", "flag_key", "feature_flag") if content.get(name)),
        None,
    )
    if not isinstance(key, str):
        raise InvalidDefinition("flagKey", "this is required: the key of the feature's flag")
    stage = content.get("stage", "beta")
    if stage not in _STAGES:
        raise InvalidDefinition("stage", f"this is none of {', '.join(_STAGES)}")
    others = {
        name: value
        for name, value in content.items()
        if name not in ("flag_key", "feature_flag", "documentation_url")
    }
    documentation = content.get("documentationUrl") or content.get("documentation_url") or ""
    form = {
        "description": "",
        "payload": {},
        **others,
        "id": identity,
        "stage": stage,
        "flagKey": key,
        "documentationUrl": documentation,
    }
    return identity, form


def _read_experiment(content: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    key = content.get("feature_flag_key")
    if not isinstance(key, str) or not key:
        raise InvalidDefinition(
            "feature_flag_key", "this is required: the key of the experiment's flag"
        )
    parameters = content.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InvalidDefinition("parameters", "this is not an object")
    _check_flag(key, _experiment_filters(parameters), "parameters.feature_flag_variants")
    return str(content.get("id") or content["name"]), {
        "description": "",
        "type": "product",
        "end_date": None,
        **content,
    }


def _check_flag(key: str, filters: object, path: str) -> None:
    try:
        check_definition(DefinitionKind.FLAG, key, {"filters": filters})
    except InvalidDefinition as error:
        raise InvalidDefinition(path, f"{error.path}: {error.what}") from None


def _experiment_filters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    variants = parameters.get("feature_flag_variants") or list(_HALVES)
    return {
        "groups": [
            {"properties": [], "rollout_percentage": parameters.get("rollout_percentage", 100)}
        ],
        "multivariate": {"variants": variants},
    }


_FlagChange = Callable[[dict[str, Any]], dict[str, Any]]
"""A flag's content from the one that is there, empty if there is none."""


def _survey_flag(survey: StoredDefinition) -> tuple[str | None, _FlagChange]:
    filters = survey.content.get("targeting_flag_filters")
    name = f"Targeting flag of the survey {survey.content['name']}"
    key = None if filters is None else survey.content["targeting_flag_key"]
    return key, lambda flag: flag or {"name": name, "filters": filters}


def _feature_flag(feature: StoredDefinition) -> tuple[str | None, _FlagChange]:
    key = feature.content["flagKey"]
    if feature.content["stage"] in ("draft", "archived"):
        return None, lambda flag: flag

    def change(flag: dict[str, Any]) -> dict[str, Any]:
        filters = flag.get("filters") or {"groups": []}
        return {
            "name": f"Early access: {feature.content['name']}",
            **flag,
            "filters": {"feature_enrollment": True, **filters},
        }

    return key, change


def _experiment_flag(experiment: StoredDefinition) -> tuple[str | None, _FlagChange]:
    content = experiment.content

    def change(flag: dict[str, Any]) -> dict[str, Any]:
        started = content.get("start_date", "") is not None
        filters = _experiment_filters(content.get("parameters") or {})
        made = {"name": f"Experiment: {content['name']}", "active": started, "filters": filters}
        return {**made, **flag, "experiment_set": [*flag.get("experiment_set", []), content["id"]]}

    return content["feature_flag_key"], change


_FLAGS: Final[
    Mapping[DefinitionKind, Callable[[StoredDefinition], tuple[str | None, _FlagChange]]]
] = {
    DefinitionKind.SURVEY: _survey_flag,
    DefinitionKind.EARLY_ACCESS_FEATURE: _feature_flag,
    DefinitionKind.EXPERIMENT: _experiment_flag,
}
