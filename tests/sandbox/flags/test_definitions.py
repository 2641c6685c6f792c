"""Definitions in the service's form are taken as they are, and a wrong one is rejected with the
place of what is wrong.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from forwarder.sandbox.flags.definitions import (
    MAX_NESTING,
    CohortMembership,
    FlagDependency,
    FlagHoldout,
    ImpossibleCondition,
    InvalidDefinition,
    OwnProperty,
    UndecidableCondition,
    parse_cohort,
    parse_flag,
)
from tests.support.cases import cases

EMAIL: Final = {"key": "email", "operator": "icontains", "value": "@example.com", "type": "person"}


def in_group(**group: Any) -> dict[str, Any]:
    return {"key": "a", "filters": {"groups": [{"properties": []}, group]}}


def with_property(condition: Any) -> dict[str, Any]:
    return in_group(properties=[EMAIL, condition])


def test_a_flag_with_everything() -> None:
    """Each field that decides is read, and unknown ones are kept."""
    content = {
        "id": 7,
        "key": "checkout",
        "name": "Checkout",
        "active": False,
        "ensure_experience_continuity": True,
        "tags": ["x"],
        "filters": {
            "groups": [
                {
                    "properties": [EMAIL],
                    "rollout_percentage": 12.5,
                    "variant": "b",
                    "sort_key": "1",
                },
                {
                    "properties": [
                        {"key": "id", "type": "cohort", "value": "3", "operator": "not_in"}
                    ],
                    "aggregation_group_type_index": None,
                },
                {
                    "properties": [
                        {
                            "key": "other",
                            "type": "flag",
                            "value": "x",
                            "operator": "flag_evaluates_to",
                            "dependency_chain": [],
                        }
                    ]
                },
            ],
            "multivariate": {
                "variants": [
                    {"key": "a", "name": "A", "rollout_percentage": 33.3},
                    {"key": "b", "rollout_percentage": 66.7},
                ]
            },
            "payloads": {"a": '{"n":1}', "b": {"n": 2}, "c": None},
            "aggregation_group_type_index": 1,
            "holdout": {"id": 4, "exclusion_percentage": 10**400},
            "feature_enrollment": True,
            "early_exit": True,
        },
    }
    flag = parse_flag(content)
    assert (flag.key, flag.id, flag.active, flag.deleted, flag.continuity, flag.by_device) == (
        "checkout",
        "7",
        False,
        False,
        True,
        False,
    )
    assert [
        (condition_set.rollout, condition_set.variant, condition_set.aggregation)
        for condition_set in flag.sets
    ] == [
        (12.5, "b", 1),
        (100.0, None, None),
        (100.0, None, 1),
    ]
    assert [condition_set.conditions[0] for condition_set in flag.sets[1:]] == [
        CohortMembership(3, member=False),
        FlagDependency("other", "x"),
    ]
    assert [(variant.key, variant.rollout) for variant in flag.variants] == [
        ("a", 33.3),
        ("b", 66.7),
    ]
    assert flag.payloads == {"a": '{"n":1}', "b": '{"n": 2}'}
    assert (flag.holdout, flag.enrollment, flag.early_exit) == (
        FlagHoldout("holdout-4", 100.0),
        True,
        True,
    )
    assert flag.content == content


def test_defaults() -> None:
    """A flag needs a key; nulls count as left out. It is active, and on for
    no one without conditions.
    """
    nothing = {
        "multivariate": None,
        "payloads": None,
        "groups": None,
        "holdout": None,
        "early_exit": None,
    }
    for content in (
        {"key": "a"},
        {"key": "a", "filters": None},
        {"key": "a", "filters": nothing, "ensure_experience_continuity": None},
    ):
        flag = parse_flag(content)
        assert (
            flag.active,
            flag.sets,
            flag.variants,
            flag.holdout,
            flag.rules,
            flag.aggregation,
        ) == (True, (), (), None, None, None)
    assert parse_flag(in_group(properties=None, rollout_percentage=None)).sets[1].rollout == 100


@cases(
    ("condition", "kind"),
    [
        (EMAIL, OwnProperty),
        ({"key": "a", "value": 1}, OwnProperty),
        ({"key": "a", "value": 1, "type": "group", "group_type_index": 2}, OwnProperty),
        ({"key": "a", "type": "person", "operator": "telepathy"}, UndecidableCondition),
        ({"key": "a", "type": "behavioral", "value": "performed_event"}, UndecidableCondition),
        ({"key": "a", "type": "person", "operator": "in", "value": 1}, ImpossibleCondition),
        ({"type": "cohort", "value": 3, "operator": "gt"}, CohortMembership),
        ({"key": "created_at", "type": "person_metadata", "operator": "is_set"}, OwnProperty),
        ({"key": "id", "type": "cohort", "value": 3}, CohortMembership),
        (
            {"key": "5", "type": "flag", "value": True, "operator": "flag_evaluates_to"},
            FlagDependency,
        ),
    ],
)
def test_kinds_of_conditions(condition: dict[str, Any], kind: type) -> None:
    """What can't be evaluated is no error of the form: it fails when it is needed."""
    assert isinstance(parse_flag(with_property(condition)).sets[1].conditions[1], kind)


@cases(
    ("content", "path"),
    [
        (None, ""),
        ([], ""),
        ({}, "key"),
        ({"key": ""}, "key"),
        ({"key": 1}, "key"),
        ({"key": "a", "active": "yes"}, "active"),
        ({"key": "a", "filters": []}, "filters"),
        ({"key": "a", "filters": "x"}, "filters"),
        ({"key": "a", "filters": {"groups": {"x": 1}}}, "filters.groups"),
        ({"key": "a", "filters": {"groups": [1]}}, "filters.groups[0]"),
        (in_group(properties={"a": 1}), "filters.groups[1].properties"),
        (in_group(rollout_percentage=101), "filters.groups[1].rollout_percentage"),
        (in_group(rollout_percentage=-1), "filters.groups[1].rollout_percentage"),
        (in_group(rollout_percentage="50"), "filters.groups[1].rollout_percentage"),
        (in_group(rollout_percentage=True), "filters.groups[1].rollout_percentage"),
        (in_group(rollout_percentage=float("nan")), "filters.groups[1].rollout_percentage"),
        (in_group(variant=1), "filters.groups[1].variant"),
        (
            in_group(aggregation_group_type_index="0"),
            "filters.groups[1].aggregation_group_type_index",
        ),
        (with_property("x"), "filters.groups[1].properties[1]"),
        (with_property({"value": 1}), "filters.groups[1].properties[1].key"),
        (with_property({"key": "a", "operator": 5}), "filters.groups[1].properties[1].operator"),
        (with_property({"key": "a", "type": 5}), "filters.groups[1].properties[1].type"),
        (
            with_property({"key": "id", "type": "cohort", "value": "x"}),
            "filters.groups[1].properties[1].value",
        ),
        (
            with_property({"key": "id", "type": "cohort", "value": [1]}),
            "filters.groups[1].properties[1].value",
        ),
        (
            {"key": "a", "filters": {"multivariate": {"variants": [{"key": "a"}]}}},
            "filters.multivariate.variants[0].rollout_percentage",
        ),
        (
            {"key": "a", "filters": {"multivariate": {"variants": [{"rollout_percentage": 1}]}}},
            "filters.multivariate.variants[0].key",
        ),
        ({"key": "a", "filters": {"payloads": [1]}}, "filters.payloads"),
        (
            {"key": "a", "filters": {"aggregation_group_type_index": -1}},
            "filters.aggregation_group_type_index",
        ),
        (
            {"key": "a", "filters": {"holdout": {"id": 1, "exclusion_percentage": "x"}}},
            "filters.holdout.exclusion_percentage",
        ),
        (
            {"key": "a", "filters": {"holdout": {"id": [], "exclusion_percentage": 1}}},
            "filters.holdout.id",
        ),
        (
            {"key": "a", "filters": {"holdout": {"id": 1, "exclusion_percentage": float("nan")}}},
            "filters.holdout.exclusion_percentage",
        ),
        ({"key": "a", "filters": {"groups": [{}] * 10_001}}, "filters.groups"),
    ],
)
def test_a_wrong_flag_is_rejected_with_its_place(content: Any, path: str) -> None:
    """`path` leads to what is wrong."""
    with pytest.raises(InvalidDefinition) as rejected:
        parse_flag(content)
    assert rejected.value.path == path
    assert str(rejected.value).startswith(path)


@cases(
    "form",
    [
        {"filters": {"properties": {"type": "OR", "values": [{"type": "AND", "values": [EMAIL]}]}}},
        {"filters": {"type": "AND", "values": [EMAIL]}},
        {"type": "AND", "values": [EMAIL]},
        {"groups": [{"properties": [EMAIL]}]},
        {"groups": {"type": "OR", "values": [EMAIL]}},
        {
            "filters": {
                "properties": {"type": "OR", "values": [{"type": "property", "values": [EMAIL]}]}
            }
        },
    ],
)
def test_forms_of_cohorts(form: dict[str, Any]) -> None:
    """Those of the service, of the SDKs, and older ones; the property group
    is what an SDK evaluates.
    """
    cohort = parse_cohort({"id": 3, "name": "Ours", **form})
    assert (cohort.id, cohort.name, cohort.is_static) == (3, "Ours", False)
    assert cohort.group is not None
    assert cohort.property_group is not None
    assert {"type", "values"} <= set(cohort.property_group)


def test_a_cohort_without_conditions() -> None:
    """A static one has none that count; a dynamic one without any is no one's. SDKs get neither,
    nor one that is deleted.
    """
    assert (
        parse_cohort(
            {"id": 1, "deleted": True, "filters": {"type": "AND", "values": [EMAIL]}}
        ).property_group
        is None
    )
    assert (
        parse_cohort(
            {"id": 1, "is_static": True, "filters": {"properties": {"type": "AND", "values": []}}}
        ).property_group
        is None
    )
    assert parse_cohort({"id": 1}).property_group is None


@cases(
    ("content", "path"),
    [
        (1, ""),
        ({}, "id"),
        ({"id": "1"}, "id"),
        ({"id": True}, "id"),
        ({"id": 1, "name": 1}, "name"),
        ({"id": 1, "filters": 1}, "filters"),
        ({"id": 1, "groups": 1}, "groups"),
        ({"id": 1, "filters": {"type": "XOR", "values": []}}, "filters.type"),
        (
            {"id": 1, "filters": {"properties": {"type": "AND", "values": {"a": 1}}}},
            "filters.properties.values",
        ),
        (
            {"id": 1, "filters": {"properties": {"type": "AND", "values": [{"value": 1}]}}},
            "filters.properties.values[0].key",
        ),
        ({"id": 1, "type": "AND", "values": [1]}, "values[0]"),
    ],
)
def test_a_wrong_cohort_is_rejected_with_its_place(content: Any, path: str) -> None:
    """As a flag."""
    with pytest.raises(InvalidDefinition) as rejected:
        parse_cohort(content)
    assert rejected.value.path == path


def test_a_cohort_that_is_nested_too_deep() -> None:
    """It is rejected, not followed until the stack ends."""
    group: dict[str, Any] = {"type": "AND", "values": [EMAIL]}
    for _ in range(MAX_NESTING):
        group = {"type": "AND", "values": [group]}
    parse_cohort({"id": 1, "filters": group})
    for _ in range(5_000):
        group = {"type": "AND", "values": [group]}
    with pytest.raises(InvalidDefinition, match="nested"):
        parse_cohort({"id": 1, "filters": group})
