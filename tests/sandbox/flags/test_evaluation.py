"""Flags are evaluated by the rules of the service, and the result says why."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import pytest
from posthog import Posthog

from forwarder.sandbox.conditions.matching import OPERATORS
from forwarder.sandbox.flags.definitions import Flag, InvalidDefinition, parse_cohort, parse_flag
from forwarder.sandbox.flags.evaluation import (
    Definitions,
    FlagReason,
    FlagResult,
    Subject,
    evaluate,
)
from forwarder.sandbox.flags.hashing import bucket
from tests.support.cases import cases
from tests.support.flags import FlagMaker, visitors

NOW: Final = datetime(2026, 3, 31, 12, tzinfo=UTC)


def definitions(*flags: dict[str, Any], cohorts: tuple[dict[str, Any], ...] = ()) -> Definitions:
    parsed = [parse_flag(flag) for flag in flags]
    return Definitions(
        {flag.key: flag for flag in parsed},
        {cohort.id: cohort for cohort in map(parse_cohort, cohorts)},
        ["company", "project"],
    )


def flag(key: str, *groups: dict[str, Any], **filters: Any) -> dict[str, Any]:
    return {"key": key, "active": True, "filters": {"groups": list(groups), **filters}}


def one(
    subject: Subject, *flags: dict[str, Any], cohorts: tuple[dict[str, Any], ...] = ()
) -> FlagResult:
    """The result of the first flag."""
    return evaluate(definitions(*flags, cohorts=cohorts), subject, NOW).results[flags[0]["key"]]


def test_the_first_condition_set_that_matches_decides() -> None:
    """Its index, its variant and the payload of the variant are in the result."""
    variants = {
        "variants": [
            {"key": "control", "rollout_percentage": 50},
            {"key": "test", "rollout_percentage": 50},
        ]
    }
    definition = flag(
        "color",
        {
            "properties": [
                {"key": "email", "value": "@example.com", "operator": "icontains", "type": "person"}
            ]
        },
        {"properties": [], "variant": "test"},
        multivariate=variants,
        payloads={"test": {"color": "blue"}},
    )
    result = one(Subject("u1", {"email": "joe@x.org"}), definition)
    assert (result.enabled, result.variant, result.payload) == (True, "test", '{"color": "blue"}')
    assert (result.reason.code, result.reason.condition_index) == ("condition_match", 1)
    assert [(condition.matched, condition.why) for condition in result.conditions] == [
        (False, 'email icontains "@example.com": no, it is "joe@x.org"'),
        (True, "it applies to everyone"),
    ]


PERSON: Final = {"key": "plan", "operator": "exact", "value": ["pro"], "type": "person"}
PRO: Final = Subject("u1", {"plan": "Pro"})
EVERYONE: Final[dict[str, Any]] = {"properties": []}
HALVES: Final = {
    "variants": [{"key": "a", "rollout_percentage": 50}, {"key": "b", "rollout_percentage": 50}]
}


def only(*properties: dict[str, Any], **group: Any) -> dict[str, Any]:
    return {"properties": list(properties), **group}


def depends(key: str, value: object = "on") -> dict[str, Any]:
    return {
        "key": key,
        "type": "flag",
        "operator": "flag_evaluates_to",
        "value": True if value == "on" else value,
    }


def in_cohort(number: int, operator: str = "in") -> dict[str, Any]:
    return {"key": "id", "type": "cohort", "value": number, "operator": operator}


def cohort(number: int, *values: dict[str, Any], kind: str = "AND", **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"C{number}",
        "filters": {"properties": {"type": kind, "values": list(values)}},
        **more,
    }


@cases(
    ("key", "identifier", "salt", "separator", "place"),
    [
        ("simple-flag", "distinct_id_0", "", ".", 0.7836963764220432),
        ("simple-flag", "distinct_id_0", "variant", ".", 0.6595248869787484),
        ("holdout", "zoë", "", "-", 0.1543954849555491),
    ],
)
def test_buckets(key: str, identifier: str, salt: str, separator: str, place: float) -> None:
    """The first 15 hexadecimal digits of the SHA-1 of `key.identifier` and the salt, as a share of
    the largest such number.
    """
    assert bucket(key, identifier, salt, separator) == pytest.approx(place, abs=1e-9)


def test_shares_are_as_large_as_they_say() -> None:
    """Of 4,000 persons 30% are in the roll-out, and of these the variants get their shares; the
    rest gets no variant.
    """
    quarter = {
        "variants": [{"key": "a", "rollout_percentage": 25}, {"key": "b", "rollout_percentage": 50}]
    }
    known = definitions(flag("share", only(rollout_percentage=30), multivariate=quarter))
    values = [
        evaluate(known, Subject(f"u{number}"), NOW).results["share"].value
        for number in range(4_000)
    ]
    assert {
        value: pytest.approx(values.count(value) / 4_000, abs=0.03) for value in set(values)
    } == {
        False: 0.7,
        "a": 0.075,
        "b": 0.15,
        True: 0.075,
    }


def test_reasons() -> None:
    """The service's codes, the most telling set's index and the service's descriptions."""
    nobody = only(rollout_percentage=0)
    assert one(PRO, flag("f", only(PERSON), nobody)).reason == FlagReason(
        "condition_match", 0, "Matched condition set 1"
    )
    assert one(Subject("u1"), flag("f", nobody, only(PERSON))).reason == FlagReason(
        "out_of_rollout_bound", 0, "Out of rollout bound"
    )
    assert one(Subject("u1"), flag("f", only(PERSON), only(PERSON))).reason == FlagReason(
        "no_condition_match", 1, "No matching condition set"
    )
    assert one(Subject("u1"), flag("f")).reason == FlagReason(
        "no_group_type", None, "No group type"
    )
    assert one(
        Subject("u1"), flag("f", EVERYONE, aggregation_group_type_index=0)
    ).reason == FlagReason("no_group_type", 0, "No group type")
    off = one(PRO, {**flag("f", EVERYONE), "active": False, "ensure_experience_continuity": True})
    assert (off.value, off.reason) == (
        False,
        FlagReason("flag_disabled", None, "Feature flag is disabled"),
    )


def test_deleted_and_unrequested_flags_are_left_out() -> None:
    """A flag that is requested brings those on which it depends."""
    known = definitions(
        flag("a", EVERYONE), {**flag("b", EVERYONE), "deleted": True}, flag("c", only(depends("a")))
    )
    assert evaluate(known, PRO, NOW).results.keys() == {"a", "c"}
    assert evaluate(known, PRO, NOW, keys=["c", "b", "z"]).results.keys() == {"a", "c"}
    assert evaluate(known, PRO, NOW, keys=["c"]).results["c"].enabled
    assert evaluate(known, PRO, NOW, keys=["a"]).results.keys() == {"a"}


def test_payloads() -> None:
    """Of the variant, else of `true`; none for who gets nothing. A text is the JSON itself."""
    assert (
        one(PRO, flag("f", EVERYONE, payloads={"true": '{"a": 1}', "b": "2"})).payload == '{"a": 1}'
    )
    assert (
        one(
            PRO, flag("f", only(variant="b"), multivariate=HALVES, payloads={"true": "1", "b": [2]})
        ).payload
        == "[2]"
    )
    assert (
        one(PRO, flag("f", only(variant="a"), multivariate=HALVES, payloads={"true": "1"})).payload
        is None
    )
    assert one(Subject("u1"), flag("f", only(PERSON), payloads={"true": "1"})).payload is None


def test_a_variant_that_does_not_exist_gives_way_to_the_hash() -> None:
    """A condition's variant counts only if the flag has it."""
    expected = one(PRO, flag("f", EVERYONE, multivariate=HALVES)).variant
    assert expected in ("a", "b")
    assert one(PRO, flag("f", only(variant="z"), multivariate=HALVES)).variant == expected


def test_groups() -> None:
    """A group's key is hashed, its properties are compared, and a request
    without the group gets nothing.
    """
    gold = {
        "key": "tier",
        "operator": "exact",
        "value": "gold",
        "type": "group",
        "group_type_index": 0,
    }
    own_key = {
        "key": "$group_key",
        "operator": "exact",
        "value": "7",
        "type": "group",
        "group_type_index": 0,
    }
    acme = Subject("u1", {"plan": "pro"}, {"company": "acme"}, {"company": {"tier": "Gold"}})
    assert one(acme, flag("f", only(gold), aggregation_group_type_index=0)).enabled
    assert not one(
        Subject("u1", {"tier": "gold"}, {"project": "x"}),
        flag("f", only(gold), aggregation_group_type_index=0),
    ).enabled
    assert one(
        Subject("u1", {}, {"company": 7}), flag("f", only(own_key), aggregation_group_type_index=0)
    ).enabled
    # a condition on a group in a set for persons
    assert one(acme, flag("f", only(gold, PERSON))).enabled
    assert not one(Subject("u1", {"tier": "gold"}), flag("f", only(gold))).enabled
    # and the other way round
    assert one(acme, flag("f", only(PERSON, gold), aggregation_group_type_index=0)).enabled
    for groups in ({"company": ""}, {"company": None}, {"company": True}, {"company": ["a"]}, {}):
        assert (
            one(
                Subject("u1", {}, groups), flag("f", EVERYONE, aggregation_group_type_index=0)
            ).reason.code
            == "no_group_type"
        )
    assert (
        one(acme, flag("f", EVERYONE, aggregation_group_type_index=5)).reason.code
        == "no_group_type"
    )
    half = flag("f", only(rollout_percentage=50), aggregation_group_type_index=0)
    same = {
        one(Subject(f"u{number}", {}, {"company": "acme"}), half).enabled for number in range(20)
    }
    assert same == {bucket("f", "acme") <= 0.5}


def test_condition_sets_for_persons_and_groups_in_one_flag() -> None:
    """Each set has its own aggregation, or the flag's. One that can't apply leaves the others."""
    mixed = flag("f", {"properties": [], "aggregation_group_type_index": 1}, only(PERSON))
    assert one(PRO, mixed).reason.condition_index == 1
    assert one(Subject("u1", {}, {"project": "x"}), mixed).reason.condition_index == 0
    assert one(Subject("u1"), mixed).reason == FlagReason(
        "no_condition_match",
        1,
        "No matching condition set (group conditions were not evaluated because no group type was "
        "provided)",
    )
    person_in_group = flag(
        "f",
        {"properties": [PERSON], "aggregation_group_type_index": None},
        aggregation_group_type_index=0,
    )
    assert one(PRO, person_in_group).enabled


def test_holdouts_come_before_the_conditions() -> None:
    """Who is held out gets `holdout-ID`, the same persons for all flags."""
    for key in ("f", "g"):
        for number in range(30):
            result = one(
                Subject(f"u{number}"),
                flag(
                    key,
                    EVERYONE,
                    holdout={"id": 4, "exclusion_percentage": 40},
                    payloads={"holdout-4": "1"},
                ),
            )
            held_out = bucket("holdout", f"u{number}", separator="-") <= 0.4
            assert result.value == ("holdout-4" if held_out else True)
            if held_out:
                assert (result.reason, result.payload) == (
                    FlagReason("holdout_condition_value", None, "Holdout condition value"),
                    "1",
                )


def test_enrollment_in_an_early_access_feature() -> None:
    """It decides for who enrolled or opted out; the conditions for everyone else."""
    feature = flag("f", only(PERSON), feature_enrollment=True)
    for value, expected in ((True, True), ("true", True), (False, False), ("no", False)):
        result = one(Subject("u1", {"plan": "pro", "$feature_enrollment/f": value}), feature)
        assert (result.enabled, result.reason) == (
            expected,
            FlagReason("super_condition_value", 0, "Super condition value"),
        )
    assert one(PRO, feature).reason.code == "condition_match"
    assert not one(Subject("u1"), feature).enabled


def test_continuity_and_devices() -> None:
    """The hash is of the kept identifier, or of the device; holdouts have the one that the request
    names.
    """
    half = {**flag("f", only(rollout_percentage=50)), "ensure_experience_continuity": True}
    for number in range(20):
        subject = Subject(
            "u1", hash_keys={"f": f"anonymous-{number}", "g": "x"}, device_id=f"device-{number}"
        )
        assert one(subject, half).enabled is (bucket("f", f"anonymous-{number}") <= 0.5)
        assert one(subject, {**half, "bucketing_identifier": "device_id"}).enabled is (
            bucket("f", f"device-{number}") <= 0.5
        )
        held = {**half, "filters": {"holdout": {"id": 1, "exclusion_percentage": 50}}}
        for hash_key, hashed in ((None, "u1"), (f"now-{number}", f"now-{number}")):
            result = one(replace(subject, request_hash_key=hash_key), held)
            assert result.enabled is (bucket("holdout", hashed, separator="-") <= 0.5)


def test_an_early_exit() -> None:
    """A set of which only the roll-out doesn't match ends the search, if the flag says so."""
    sets = (only(PERSON, rollout_percentage=0), EVERYONE)
    assert one(PRO, flag("f", *sets)).enabled
    assert not one(PRO, flag("f", *sets, early_exit=True)).enabled
    assert one(Subject("u1"), flag("f", *sets, early_exit=True)).enabled


@cases(
    ("expected", "on", "off", "variant"),
    [
        (True, True, False, True),
        (False, False, True, False),
        ("a", False, False, True),
        ("A", False, False, False),
        (1, False, False, False),
    ],
)
def test_dependencies(expected: object, on: bool, off: bool, variant: bool) -> None:
    """True is any variant, a variant is compared with its case, anything else never matches. A
    flag is named by key or id.
    """
    others = [
        flag("on", EVERYONE),
        flag("off", only(rollout_percentage=0)),
        {**flag("3", EVERYONE), "active": False},
        {**flag("variant", only(variant="a"), multivariate=HALVES), "id": 12},
    ]
    asked = {"on": on, "off": off, "3": off, "variant": variant, "12": variant}
    assert {
        key: one(PRO, flag("f", only(depends(key, expected))), *others).enabled for key in asked
    } == asked


UNKNOWN: Final = {"key": "plan", "operator": "telepathy", "value": 1}
WHY_UNKNOWN: Final = 'plan has the operator "telepathy", which is unknown for a property'


def test_what_cannot_be_computed_leaves_the_rest_right() -> None:
    """Unknown cohorts and operators fail their flags alone."""
    evaluation = evaluate(
        definitions(
            flag("fine", only(PERSON)),
            flag("cohort", only(in_cohort(99)), EVERYONE),
            flag("deleted-cohort", only(in_cohort(3))),
            flag("cohorts", only(in_cohort(1, "not_in"))),
            flag("operator", only(UNKNOWN)),
            flag("behind", only(depends("operator"))),
            flag("ruled-out", only(UNKNOWN, {**PERSON, "value": "free"})),
            flag("ruled-out-cohort", only(in_cohort(99), {**PERSON, "value": "free"})),
            cohorts=(
                cohort(1, in_cohort(2)),
                cohort(2, in_cohort(1)),
                cohort(3, PERSON, deleted=True),
            ),
        ),
        PRO,
        NOW,
    )
    assert {key: result.enabled for key, result in evaluation.results.items()} == {
        "fine": True,
        "ruled-out": False,
        "ruled-out-cohort": False,
    }
    assert evaluation.failed == {
        "cohort": "the cohort 99 is unknown",
        "deleted-cohort": "the cohort 3 is unknown",
        "cohorts": "the cohort 1 refers to itself",
        "operator": WHY_UNKNOWN,
        "behind": WHY_UNKNOWN,
    }
    assert evaluation.has_errors


@cases(
    ("sets", "expected"),
    [
        # what the flag would be if the condition matched, and what the others say
        ((only(UNKNOWN), EVERYONE), True),
        ((only(UNKNOWN), only(rollout_percentage=0)), None),
        ((only(UNKNOWN, rollout_percentage=0), only(rollout_percentage=0)), False),
        ((only(UNKNOWN, variant="a"), only(variant="a")), "a"),
        ((only(UNKNOWN, variant="a"), only(variant="b")), None),
        ((EVERYONE, only(UNKNOWN)), True),
    ],
)
def test_a_doubt_fails_a_flag_only_if_it_matters(
    sets: tuple[dict[str, Any], ...], expected: object
) -> None:
    """If the answer is the same whether or not the condition matches, it is the answer."""
    multivariate = HALVES if any("variant" in condition_set for condition_set in sets) else None
    evaluation = evaluate(definitions(flag("f", *sets, multivariate=multivariate)), PRO, NOW)
    values = {key: result.value for key, result in evaluation.results.items()}
    assert values == ({} if expected is None else {"f": expected})


def test_a_doubt_and_an_early_exit() -> None:
    """A set that would end the search if its condition matched is a doubt about those after it."""
    sets = (only(UNKNOWN, rollout_percentage=0), EVERYONE)
    assert one(PRO, flag("f", *sets)).enabled
    assert "f" in evaluate(definitions(flag("f", *sets, early_exit=True)), PRO, NOW).failed


def test_an_inactive_flag_in_a_circle_is_no_error() -> None:
    """No one would be answered about it."""
    known = definitions({**flag("itself", only(depends("itself"))), "active": False})
    assert not evaluate(known, PRO, NOW).has_errors


def test_cohorts() -> None:
    """And, or, negation, nesting, cohorts in cohorts, static ones."""
    adult = {"key": "age", "operator": "gte", "value": 18, "type": "person"}
    cohorts = (
        cohort(
            1,
            {"type": "OR", "values": [PERSON, adult]},
            {"type": "AND", "values": [{**PERSON, "value": "free", "negation": True}]},
        ),
        cohort(2, in_cohort(1), {**in_cohort(3), "negation": True}),
        {"id": 3, "name": "Listed", "is_static": True},
        {"id": 4, "name": "Everyone", "filters": {"properties": {"type": "AND", "values": []}}},
        {"id": 5, "name": "No one"},
        cohort(6, {"type": "OR", "values": [{"key": "x", "operator": "telepathy"}, PERSON]}),
    )

    def members(subject: Subject) -> set[int]:
        flags = [flag(str(number), only(in_cohort(number))) for number in range(1, 7)]
        evaluation = evaluate(definitions(*flags, cohorts=cohorts), subject, NOW)
        return {int(key) for key, result in evaluation.results.items() if result.enabled}

    assert members(PRO) == {1, 2, 4, 6}
    assert members(Subject("u1", {"plan": "pro"}, static_cohorts=frozenset({3}))) == {1, 3, 4, 6}
    assert members(Subject("u1", {"plan": "free", "age": "40"})) == {4}
    assert members(Subject("u1", {"age": 40})) == {1, 2, 4}
    assert one(PRO, flag("f", only(in_cohort(1, "not_in"))), cohorts=cohorts).enabled is False


def test_explanations() -> None:
    """Each set says what it required and what is there, also those after the one that decided."""
    subject = Subject("u1", {"plan": "pro"}, {"company": "acme"})
    sets = (
        only(in_cohort(1), in_cohort(3, "not_in")),
        only(depends("other", "b")),
        only(in_cohort(9)),
        only({"key": "x", "operator": "telepathy"}),
        only(PERSON, rollout_percentage=0.5),
        {"properties": [], "aggregation_group_type_index": 1},
        {"properties": [], "aggregation_group_type_index": 0, "rollout_percentage": 100},
    )
    result = one(
        subject,
        flag("f", *sets),
        flag("other", only(variant="a"), multivariate=HALVES),
        cohorts=(cohort(1, PERSON), {"id": 3, "is_static": True}),
    )
    assert [(condition.matched, condition.why) for condition in result.conditions] == [
        (True, 'in cohort 1 "C1": yes; not in cohort 3: yes'),
        (False, 'flag other is "b": no, it is "a"'),
        (False, "can't be computed: the cohort 9 is unknown"),
        (
            False,
            'can\'t be computed: x has the operator "telepathy", which is unknown for a property',
        ),
        (
            False,
            (
                'plan exact ["pro"]: yes, it is "pro"; roll-out to 0.5%: no, u1 is at '
                f"{bucket('f', 'u1') * 100:.2f}%"
            ),
        ),
        (False, "it applies to a group of the type project: no, the request has none"),
        (True, "it applies to everyone"),
    ]


def test_rules_are_explained() -> None:
    """Of each rule by itself; a value that makes no sense for a condition is named."""

    def rule(number: int, **more: Any) -> dict[str, Any]:
        return {
            "id": f"0190a0a0-1111-7222-8333-44445555666{number}",
            "rule_type": "percentage_rollout",
            "targeting": {"properties": []},
            "value": True,
            "rollout_percentage": 0,
            "on_rollout_miss": "continue",
            "assignment_algorithm": "sha1_60_v1",
            "seed": "s",
            **more,
        }

    seats = {"key": "seats", "type": "person", "operator": "gt", "value": 3}
    rules = [
        rule(1),
        rule(2, targeting={"properties": [PERSON, {**PERSON, "negation": True}]}),
        rule(3, rollout_percentage=100),
        rule(4, targeting={"properties": [seats]}),
    ]
    document = {"version": 2, "return_type": "boolean", "default_value": False, "rules": rules}
    result = one(Subject("u1", {"plan": "pro", "seats": "many"}), {"key": "f", "filters": document})
    assert (result.value, result.reason) == (
        True,
        FlagReason("condition_match", 2, "Matched condition set 3"),
    )
    place = f"{bucket('s', 'u1') * 100:.2f}%"
    plan = 'plan exact ["pro"]: yes, it is "pro"'
    assert [(condition.matched, condition.why) for condition in result.conditions] == [
        (False, f"roll-out to 0%: u1 is at {place}"),
        (False, f"{plan}; not ({plan}); roll-out to 0%: u1 is at {place}"),
        (True, "it applies to everyone"),
        (False, 'can\'t be computed: seats: "many" is not a number'),
    ]


def test_long_chains() -> None:
    """Of 3,000 flags in a row each is computed; so many cohorts fail, and the stack is fine."""
    count = 3_000
    chain = [flag(f"f{number}", only(depends(f"f{number + 1}"))) for number in range(count)]
    cohorts = [cohort(number, in_cohort(number + 1)) for number in range(count)]
    deepest = cohort(count, PERSON)
    last = [flag(f"f{count}", EVERYONE), flag("members", only(in_cohort(0)))]
    evaluation = evaluate(definitions(*chain, *last, cohorts=(*cohorts, deepest)), PRO, NOW)
    assert evaluation.results["f0"].enabled
    assert "in a row" in evaluation.failed["members"]


def test_the_python_sdk_decides_alike() -> None:
    """Generated flags of every kind and 40 visitors a seed: the value is the SDK's, wherever it
    decides by itself.
    """
    decided = 0
    different = []
    for seed in range(3):
        project = FlagMaker(seed).project()
        known = definitions(*project.flags, cohorts=tuple(project.cohorts))
        sdk = Posthog("phc_key", host="http://127.0.0.1:1", sync_mode=True, send=False)
        sdk.feature_flags = [_for_sdks(known.flags[key], project.by_key) for key in project.by_key]
        sdk.group_type_mapping = {
            str(index): name for index, name in enumerate(project.group_types)
        }
        sdk.cohorts = {
            str(number): known_cohort.property_group
            for number, known_cohort in known.cohorts.items()
        }
        for visitor in visitors(40, seed):
            subject = Subject(
                visitor.distinct_id,
                visitor.person_properties,
                visitor.groups,
                visitor.group_properties,
            )
            evaluation = evaluate(
                replace(known, group_types=project.group_types), subject, datetime.now(UTC)
            )
            local, _, _ = sdk._get_all_flags_and_payloads_locally(  # it asks no one about the rest
                visitor.distinct_id,
                groups=visitor.groups,
                person_properties={"distinct_id": visitor.distinct_id, **visitor.person_properties},
                group_properties=visitor.group_properties,
            )
            for key, value in (local["featureFlags"] or {}).items():
                decided += 1
                result = evaluation.results.get(key)
                payload = (local["featureFlagPayloads"] or {}).get(key)
                if result is None or (result.value, result.payload) != (value, payload):
                    different.append(
                        (
                            key,
                            visitor.distinct_id,
                            value,
                            result and result.value,
                            payload,
                            result and result.payload,
                        )
                    )
    assert different == []
    assert decided > 10_000


def _for_sdks(flag: Flag, flags: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A flag as SDKs get it: a condition on another names the flags to evaluate before, and
    payloads are texts.
    """

    def chain(key: str) -> list[str]:
        groups = flags[key]["filters"]["groups"]
        return [
            *(
                name
                for group in groups
                for condition in group["properties"]
                if condition.get("type") == "flag"
                for name in chain(condition["key"])
            ),
            key,
        ]

    def chained(condition: dict[str, Any]) -> dict[str, Any]:
        return (
            {**condition, "dependency_chain": chain(condition["key"])}
            if condition.get("type") == "flag"
            else condition
        )

    filters = flag.content["filters"]
    groups = [
        {**group, "properties": [chained(condition) for condition in group["properties"]]}
        for group in filters["groups"]
    ]
    return {**flag.content, "filters": {**filters, "groups": groups, "payloads": flag.payloads}}


AWKWARD: Final[list[Any]] = [
    None,
    True,
    False,
    0,
    -1,
    2.5,
    float("inf"),
    float("nan"),
    10**400,
    "",
    "x",
    "\ud800",
    "1" * 5_000,
    [],
    {},
    [[]],
    [{}],
    {"a": 1},
    "-30d",
    "2024",
    "(",
    "(?=a)",
    {"values": []},
    {"type": "OR", "values": [None]},
    *sorted(OPERATORS),
]


def _spoiled(random: Random, content: dict[str, Any]) -> dict[str, Any]:
    """A copy of a definition in which something, somewhere, is something else."""
    copy = json.loads(json.dumps(content))
    parent = copy
    key = random.choice([*copy])
    while isinstance(parent[key], dict | list) and parent[key] and random.random() < 0.97:
        parent = parent[key]
        key = random.choice([*parent] if isinstance(parent, dict) else range(len(parent)))
    parent[key] = json.loads(json.dumps(random.choice(AWKWARD)))
    return dict(copy)


def test_no_definition_ends_an_evaluation() -> None:
    """Whatever stands in a definition or a property: it is rejected, or its flag is decided or
    fails, and the next one is right.
    """
    random = Random(7)
    project = FlagMaker(1).project()
    fine = flag("fine", EVERYONE)
    rejected = 0
    failed = 0
    decided = 0
    for visitor in visitors(1_500, 1):
        content = random.choice(project.flags)["filters"]
        try:
            spoiled = definitions(
                {"key": "f", "filters": _spoiled(random, content)},
                fine,
                cohorts=tuple(project.cohorts),
            )
        except InvalidDefinition:
            rejected += 1
            continue
        subject = Subject(
            visitor.distinct_id,
            _spoiled(random, visitor.person_properties),
            visitor.groups,
            visitor.group_properties,
        )
        evaluation = evaluate(spoiled, subject, NOW)
        assert evaluation.results["fine"].enabled
        failed += "f" in evaluation.failed
        decided += bool(
            "f" in evaluation.results
            and [condition.why for condition in evaluation.results["f"].conditions]
        )
    assert min(rejected, decided) > 300
    assert failed


def test_200_flags_take_little_time() -> None:
    """Five conditions each: prepared once, evaluated in a few milliseconds. The bound leaves room
    for a busy machine.
    """
    conditions = [
        only(
            {"key": "email", "operator": "icontains", "value": f"@{n}.com"},
            PERSON,
            rollout_percentage=50,
        )
        for n in range(5)
    ]
    known = definitions(
        *[flag(f"f{number}", *conditions, multivariate=HALVES) for number in range(200)]
    )
    subject = Subject("u1", {"email": "joe@4.com", "plan": "pro"})
    best = 1.0
    for _ in range(10):
        started = time.process_time()
        evaluate(known, subject, NOW)
        best = min(best, time.process_time() - started)
    assert best < 0.02
