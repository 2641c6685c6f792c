"""Definitions of flags and cohorts, in the service's own form (the one of `/flags/definitions`),
validated and prepared for evaluation.

A flag: `{id, key, name, active, deleted, ensure_experience_continuity, bucketing_identifier,
filters}`, its filters `{groups, multivariate: {variants: [{key, rollout_percentage}]}, payloads,
aggregation_group_type_index, holdout: {id, exclusion_percentage}, feature_enrollment,
early_exit}`, each group `{properties, rollout_percentage, variant, aggregation_group_type_index}`.
Filters with a `version` other than 1 have another form (`rules`). The service no longer evaluates
`super_groups` and `holdout_groups` (rust/feature-flags/src/flags/flag_matching.rs in
PostHog/posthog, commit 0da8f8c35ac1).

A cohort: `{id, name, is_static, filters: {properties: GROUP} | GROUP, groups}`, a GROUP
`{type: AND|OR, values: [GROUP | property]}`.

Fields that are unknown here stay in `content`; what comes from people has none that the service's
form doesn't have (`members`).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from forwarder.sandbox.conditions.matching import PropertyCondition, prepare_condition
from forwarder.sandbox.conditions.values import CannotDecide, shown
from forwarder.sandbox.flags.flag_rules import (
    FlagRules,
    InvalidRules,
    UnsupportedRules,
    parse_rules,
)

MAX_NESTING: Final = 30
"""How deep the groups of a cohort may be nested."""
MAX_CONDITIONS: Final = 10_000
"""The most conditions of one flag or cohort."""
_COHORT_TYPES: Final = ("cohort", "static-cohort", "dynamic-cohort", "precalculated-cohort")
CONDITION_TYPES: Final = ("person", "group", "person_metadata", "flag", *_COHORT_TYPES)
_OF_OTHER_TYPES: Final = frozenset(("in", "not_in", "flag_evaluates_to"))
"""Operators that are none of properties."""
_DIRECT: Final = object()
"""Instead of an aggregation: the condition set has none of its own."""


class InvalidDefinition(Exception):
    """A definition hasn't the service's form. `path`: where, as in
    `filters.groups[0].rollout_percentage`; `what`: what is wrong there.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}" if path else what)
        self.path: Final = path
        self.what: Final = what


@dataclass(frozen=True, slots=True)
class OwnProperty:
    """A condition on a property of the person or of a group."""

    condition: PropertyCondition
    group: bool
    """Of a group; else of a person."""
    metadata: bool
    """About what the service records of a person (`created_at`), not about its properties."""
    group_type_index: int | None
    """The group's type; None: the condition set's."""
    typed: bool
    """Whether the definition says person or group; else the condition set's aggregation does."""


@dataclass(frozen=True, slots=True)
class CohortMembership:
    """A condition on a cohort."""

    cohort: int
    member: bool | None
    """Whether a member is required, or someone else. None: never matches."""


@dataclass(frozen=True, slots=True)
class FlagDependency:
    """A condition on the value of another flag."""

    flag: str
    """Its key, or its id as a text."""
    expected: bool | str | None
    """True: on, with any variant. None: never matches."""


@dataclass(frozen=True, slots=True)
class UndecidableCondition:
    """A condition that the sandbox can't evaluate: it has an unknown operator."""

    why: str


@dataclass(frozen=True, slots=True)
class ImpossibleCondition:
    """A condition that nobody matches, as for the service: on what a person did, because flags are
    evaluated without events, or with an operator of another type.
    """

    why: str


Condition: TypeAlias = (
    OwnProperty | CohortMembership | FlagDependency | ImpossibleCondition | UndecidableCondition
)


@dataclass(frozen=True, slots=True)
class ConditionSet:
    """One of a flag's groups: its conditions are and-ed."""

    conditions: tuple[Condition, ...]
    rollout: float
    """Percent."""
    variant: str | None
    aggregation: int | None
    """The index of the type of group to which it applies; None: persons."""


@dataclass(frozen=True, slots=True)
class FlagVariant:
    """A variant, and its share of those for whom the flag is on, in percent."""

    key: str
    rollout: float


@dataclass(frozen=True, slots=True)
class FlagHoldout:
    """Those who are kept out of an experiment."""

    variant: str
    """What they get."""
    percentage: float


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, prepared."""

    key: str
    id: str
    """Its id as a text, or empty."""
    active: bool
    deleted: bool
    sets: tuple[ConditionSet, ...]
    variants: tuple[FlagVariant, ...]
    payloads: Mapping[str, str]
    """JSON texts by variant; `true`: without a variant."""
    aggregation: int | None
    holdout: FlagHoldout | None
    enrollment: bool
    """Whether the person's property `$feature_enrollment/KEY` decides, if there is one."""
    early_exit: bool
    continuity: bool
    """Whether a person keeps the flag when it is identified (`ensure_experience_continuity`)."""
    by_device: bool
    """Whether persons are bucketed by device."""
    needs: tuple[str, ...]
    """The keys or ids of the flags on whose values conditions are."""
    rules: FlagRules | UnsupportedRules | None
    """What decides instead of conditions, if the filters are of another version than 1."""
    content: Mapping[str, Any]
    """What came."""


@dataclass(frozen=True, slots=True)
class CohortGroup:
    """Conditions and groups of conditions, and-ed or or-ed; each may be negated."""

    every: bool
    members: tuple[tuple[Condition | CohortGroup, bool], ...]
    """With whether it is negated."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """A cohort, prepared."""

    id: int
    name: str
    is_static: bool
    deleted: bool
    """Conditions on it can't be computed, as on one that never was."""
    group: CohortGroup | None
    """None: no one, unless it is static."""
    needs: frozenset[int]
    """The cohorts on which conditions are."""
    property_group: Mapping[str, Any] | None
    """The form that SDKs evaluate: `{type, values}`; None if they can't."""
    content: Mapping[str, Any]


def parse_flag(content: object) -> Flag:
    """Validate and prepare a flag. Raise `InvalidDefinition`."""
    flag = _object(content, "")
    key = flag.get("key")
    if not isinstance(key, str) or not key:
        raise InvalidDefinition("key", "must be a text that is not empty")
    document = _optional(flag, "filters")
    rules = None if is_first_version(document) else _rules(document)
    filters: Mapping[str, Any] = document if rules is None else {}
    aggregation = _index(filters, "filters", "aggregation_group_type_index")
    sets = _sets(filters, "groups", aggregation)
    number = _integer(flag, "id")
    _integer(flag, "version")
    return Flag(
        key=key,
        id="" if number is None else str(number),
        active=_boolean(flag, "", "active", default=True),
        deleted=_boolean(flag, "", "deleted", default=False),
        sets=sets,
        variants=_variants(filters),
        payloads=_payloads(filters),
        aggregation=aggregation,
        holdout=_holdout(filters),
        enrollment=_boolean(filters, "filters", "feature_enrollment", default=False),
        early_exit=_boolean(filters, "filters", "early_exit", default=False),
        continuity=_boolean(flag, "", "ensure_experience_continuity", default=False),
        by_device=flag.get("bucketing_identifier") == "device_id",
        needs=_needs(sets),
        rules=rules,
        content=flag,
    )


def is_first_version(filters: Mapping[str, Any]) -> bool:
    """Whether a flag's filters are conditions, not rules: without `version`, or with 1."""
    version = filters.get("version", 1)
    return not isinstance(version, bool) and version == 1


def _rules(document: Mapping[str, Any]) -> FlagRules | UnsupportedRules:
    try:
        return parse_rules(document)
    except InvalidRules as error:
        raise InvalidDefinition(f"filters.{error.path}", error.what) from None


def _needs(sets: Sequence[ConditionSet]) -> tuple[str, ...]:
    conditions = itertools.chain.from_iterable(condition_set.conditions for condition_set in sets)
    named = [condition.flag for condition in conditions if isinstance(condition, FlagDependency)]
    return tuple(dict.fromkeys(named))


def parse_cohort(content: object) -> Cohort:
    """Validate and prepare a cohort. Raise `InvalidDefinition`."""
    cohort = _object(content, "")
    identifier = _integer(cohort, "id")
    if identifier is None:
        raise InvalidDefinition("id", "must be an integer")
    name = cohort.get("name")
    if not isinstance(name, str | None):
        raise InvalidDefinition("name", "must be a text")
    is_static = _boolean(cohort, "", "is_static", default=False)
    raw, path = _property_group(cohort)
    deleted = _boolean(cohort, "", "deleted", default=False)
    group = None if is_static or raw is None else _group(raw, path, 0)
    return Cohort(
        identifier,
        name or "",
        is_static,
        deleted,
        group,
        frozenset(_cohorts_in(group)),
        None if group is None or deleted else raw,
        cohort,
    )


def _cohorts_in(group: CohortGroup | None) -> Iterator[int]:
    for member, _ in () if group is None else group.members:
        if isinstance(member, CohortGroup):
            yield from _cohorts_in(member)
        elif isinstance(member, CohortMembership):
            yield member.cohort


def _property_group(cohort: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """A cohort's conditions as one group, and where they stand: of the current form, of the SDKs',
    or of the one before (`groups`).
    """
    filters = _optional(cohort, "filters")
    if "properties" in filters:
        return _optional(filters, "filters.properties"), "filters.properties"
    if filters:
        return filters, "filters"
    if "values" in cohort:
        return cohort, ""
    groups = cohort.get("groups")
    if isinstance(groups, list) and groups:
        values = [
            _legacy_group(_object(member, f"groups[{at}]")) for at, member in enumerate(groups)
        ]
        return {"type": "OR", "values": values}, "groups"
    if isinstance(groups, dict) and groups:
        return groups, "groups"
    if groups is not None and not isinstance(groups, list | dict):
        raise InvalidDefinition("groups", "must be an object or a list")
    return None, ""


def _legacy_group(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """One of the `groups` that cohorts had before: conditions on persons, or their values by key.
    Anything else counts events, and has no one (rust/feature-flags/src/cohorts/legacy_groups.rs in
    PostHog/posthog, commit c4753141cd9a).
    """
    properties = group.get("properties")
    if isinstance(properties, dict) and {"type", "values"} <= properties.keys():
        return properties
    if isinstance(properties, dict) and properties and not {"type", "values"} & properties.keys():
        properties = [{"key": key, "value": value} for key, value in properties.items()]
    if not isinstance(properties, list) or not properties:
        return {"type": "behavioral", "key": group.get("action_id") or group.get("event_id")}
    values = [
        {**entry, "type": "person"}
        if isinstance(entry, dict) and entry.get("type") in (None, "event")
        else entry
        for entry in properties
    ]
    return {"type": "AND", "values": values}


def _group(group: Mapping[str, Any], path: str, depth: int) -> CohortGroup:
    if depth > MAX_NESTING:
        raise InvalidDefinition(path, f"is nested deeper than {MAX_NESTING} levels")
    if not group:
        return CohortGroup(every=True, members=())
    kind = group.get("type")
    if kind not in ("AND", "OR", "property"):
        raise InvalidDefinition(_at(path, "type"), "must be AND or OR")
    members: list[tuple[Condition | CohortGroup, bool]] = []
    for index, value in enumerate(_list(group, path, "values")):
        here = f"{_at(path, 'values')}[{index}]"
        member = _object(value, here)
        if not member or "values" in member or member.get("type") in ("AND", "OR"):
            members.append((_group(member, here, depth + 1), False))
        else:
            members.append((_cohort_condition(member, here), bool(member.get("negation"))))
    return CohortGroup(every=kind != "OR", members=tuple(members))


def _cohort_condition(condition: Mapping[str, Any], path: str) -> Condition:
    kind = condition.get("type")
    if kind == "behavioral":
        return ImpossibleCondition("flags are evaluated without events")
    if isinstance(kind, str) and kind not in CONDITION_TYPES:
        return ImpossibleCondition(f"cohorts have no conditions of the type {shown(kind)}")
    return _condition(condition, path)


def _sets(
    filters: Mapping[str, Any], name: str, aggregation: int | None
) -> tuple[ConditionSet, ...]:
    sets = []
    for index, value in enumerate(_list(filters, "filters", name)):
        path = f"filters.{name}[{index}]"
        group = _object(value, path)
        properties = [
            _condition(_object(member, f"{path}.properties[{at}]"), f"{path}.properties[{at}]")
            for at, member in enumerate(_list(group, path, "properties"))
        ]
        own = (
            _index(group, path, "aggregation_group_type_index")
            if "aggregation_group_type_index" in group
            else _DIRECT
        )
        variant = group.get("variant")
        if not isinstance(variant, str | None):
            raise InvalidDefinition(f"{path}.variant", "must be a text or null")
        sets.append(
            ConditionSet(
                tuple(properties),
                _percentage(group, path, "rollout_percentage", default=100.0),
                variant or None,
                aggregation if own is _DIRECT else cast("int | None", own),
            )
        )
    return tuple(sets)


def _condition(condition: Mapping[str, Any], path: str) -> Condition:
    kind = condition.get("type")
    if not isinstance(kind, str | None):
        raise InvalidDefinition(f"{path}.type", "must be a text")
    operator = condition.get("operator")
    if not isinstance(operator, str | None):
        raise InvalidDefinition(f"{path}.operator", "must be a text")
    if kind in _COHORT_TYPES:
        return _membership(condition.get("value"), operator or "in", path)
    key = condition.get("key")
    if not isinstance(key, str) or not key:
        raise InvalidDefinition(f"{path}.key", "must be a text that is not empty")
    if kind == "flag":
        value = condition.get("value")
        decides = operator == "flag_evaluates_to" and isinstance(value, bool | str)
        return FlagDependency(key, value if decides else None)
    if kind is not None and kind not in CONDITION_TYPES:
        return UndecidableCondition(f"flags have no conditions of the type {shown(kind)}")
    if operator in _OF_OTHER_TYPES:
        return ImpossibleCondition(f"properties have no {operator}")
    try:
        prepared = prepare_condition(condition)
    except CannotDecide as error:
        return UndecidableCondition(error.why)
    typed = kind in ("person", "person_metadata", "group")
    return OwnProperty(
        prepared,
        kind == "group",
        kind == "person_metadata",
        _index(condition, path, "group_type_index"),
        typed,
    )


def _membership(value: object, operator: str, path: str) -> Condition:
    try:
        cohort = (
            int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
        )
    except ValueError:
        cohort = None
    if cohort is None:
        raise InvalidDefinition(f"{path}.value", "must be a cohort's id")
    # Any other operator of the service is one, but matches no one.
    return CohortMembership(cohort, {"in": True, "not_in": False}.get(operator))


def _variants(filters: Mapping[str, Any]) -> tuple[FlagVariant, ...]:
    multivariate = _optional(filters, "filters.multivariate")
    variants = []
    for index, value in enumerate(_list(multivariate, "filters.multivariate", "variants")):
        path = f"filters.multivariate.variants[{index}]"
        variant = _object(value, path)
        key = variant.get("key")
        if not isinstance(key, str) or not key:
            raise InvalidDefinition(f"{path}.key", "must be a text that is not empty")
        variants.append(
            FlagVariant(key, _percentage(variant, path, "rollout_percentage", default=None))
        )
    return tuple(variants)


def _payloads(filters: Mapping[str, Any]) -> Mapping[str, str]:
    payloads = _optional(filters, "filters.payloads")
    texts = {
        variant: payload if isinstance(payload, str) else json.dumps(payload)
        for variant, payload in payloads.items()
    }
    return {variant: text for variant, text in texts.items() if payloads[variant] is not None}


def _holdout(filters: Mapping[str, Any]) -> FlagHoldout | None:
    holdout = _optional(filters, "filters.holdout")
    number = holdout.get("id")
    share = holdout.get("exclusion_percentage")
    if number is None or share is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | str):
        raise InvalidDefinition("filters.holdout.id", "must be a number")
    if (
        isinstance(share, bool)
        or not isinstance(share, int | float)
        or not -math.inf <= share <= math.inf
    ):
        raise InvalidDefinition("filters.holdout.exclusion_percentage", "must be a number")
    # The service takes a share out of bounds for the nearest in them.
    return FlagHoldout(f"holdout-{number}", float(min(max(share, 0), 100)))


def _object(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidDefinition(path, "must be an object")
    return value


def _optional(parent: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The object at the end of a path; an empty one if it is left out or null."""
    value = parent.get(path.rpartition(".")[2])
    return {} if value is None else _object(value, path)


def _list(parent: Mapping[str, Any], path: str, name: str) -> Sequence[object]:
    value = parent.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidDefinition(_at(path, name), "must be a list")
    if len(value) > MAX_CONDITIONS:
        raise InvalidDefinition(_at(path, name), f"has more than {MAX_CONDITIONS:,} members")
    return value


def _integer(parent: Mapping[str, Any], name: str) -> int | None:
    """A number that SDKs read as an integer, or None."""
    value = parent.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidDefinition(name, "must be an integer")
    return value


def _boolean(parent: Mapping[str, Any], path: str, name: str, *, default: bool) -> bool:
    value = parent.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidDefinition(_at(path, name), "must be true or false")
    return value


def _index(parent: Mapping[str, Any], path: str, name: str) -> int | None:
    value = parent.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidDefinition(_at(path, name), "must be the index of a type of group, or null")
    return value


def _percentage(parent: Mapping[str, Any], path: str, name: str, *, default: float | None) -> float:
    value = parent.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise InvalidDefinition(_at(path, name), "must be a number from 0 to 100")
    return float(value)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
