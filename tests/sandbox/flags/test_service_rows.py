"""Where a sandbox for flags is most easily another than the service: one case for each rule, by
HTTP.

The rules are read in the service's own code (rust/feature-flags in PostHog/posthog; the modules of
`forwarder.sandbox.flags` name file and commit), the definitions and persons are made up here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, SandboxClient, batch, event, talking
from tests.sandbox.defining import define, flag, person_is, put
from tests.support.cases import cases

MOMENT: Final = 1_774_000_000
"""20 March 2026, 09:46:40 UTC: New York has had summer time for twelve days."""
Answer = tuple[Any, str, int | None]
"""What a flag is (a variant, true or false), the reason's code and the index of its condition."""
MATCH: Final = "condition_match"
NO_MATCH: Final = "no_condition_match"
OUT: Final = "out_of_rollout_bound"
NO_GROUP: Final = "no_group_type"
MISSING: Final = "missing_dependency"
HALVES: Final = {
    "variants": [{"key": "a", "rollout_percentage": 50}, {"key": "b", "rollout_percentage": 50}]
}
EVERYBODY: Final[dict[str, Any]] = {"properties": [], "rollout_percentage": 100}


@dataclass(frozen=True, slots=True)
class Rule:
    """Definitions, a request, and what is answered."""

    name: str
    flags: Mapping[str, Any]
    expected: Mapping[str, Answer]
    """Of each flag that is in the answer."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    cohorts: Mapping[int, Any] = field(default_factory=dict)
    errors: bool = False
    """Whether the answer says that it isn't complete."""
    payloads: Mapping[str, str] = field(default_factory=dict)
    project: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the project."""
    failed: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name


def sets(*groups: Any, **filters: Any) -> dict[str, Any]:
    """A flag of condition sets."""
    return {"filters": {"groups": list(groups), **filters}}


def share(percentage: float, **group: Any) -> dict[str, Any]:
    """A condition set for a share of all."""
    return {"properties": [], "rollout_percentage": percentage, **group}


def other_is(key: str, *, value: Any = True) -> dict[str, Any]:
    """A condition on another flag."""
    return {"key": key, "type": "flag", "operator": "flag_evaluates_to", "value": value}


def in_cohort(number: int, operator: str | None = "in") -> dict[str, Any]:
    """A condition on a cohort."""
    return {"key": "id", "type": "cohort", "value": number, "operator": operator}


def tree(kind: str, *values: Any) -> dict[str, Any]:
    """A cohort of conditions."""
    return {"filters": {"properties": {"type": kind, "values": list(values)}}}


def by_device(content: Mapping[str, Any]) -> dict[str, Any]:
    """A flag that hashes devices."""
    return {**content, "bucketing_identifier": "device_id"}


def lasting(content: Mapping[str, Any]) -> dict[str, Any]:
    """A flag that persons keep when they are identified."""
    return {**content, "ensure_experience_continuity": True}


def place(text: str) -> float:
    """Where a text is hashed to."""
    return int(hashlib.sha1(text.encode()).hexdigest()[:15], 16) / 0xFFFFFFFFFFFFFFF


def named(key: str, *, below: float = 1, above: float = 0, salt: str = "") -> str:
    """An id whose hash for a flag is in these bounds."""
    names = (f"somebody-{number}" for number in range(10_000))
    return next(name for name in names if above < place(f"{key}.{name}{salt}") < below)


IN: Final = named("half", below=0.4)
"""An id that is in half of all for the flag `half`."""
LEFT_OUT: Final = named("half", above=0.6)
HALF: Final = sets(share(50))
DID: Final = {"type": "behavioral", "key": "$pageview", "value": "performed_event"}


def rules(**changes: Any) -> dict[str, Any]:
    """Filters of version 2 with one rule for those who pay."""
    rule = {
        "id": "0190a0a0-1111-7222-8333-444455556666",
        "rule_type": "targeted_release",
        "targeting": {"properties": [person_is("plan", "pro")]},
        "value": "large",
        **changes,
    }
    rule = {name: value for name, value in rule.items() if value is not ...}
    document = {"version": 2, "return_type": "string", "default_value": None, "rules": [rule]}
    return {"filters": document}


def rollout(percentage: float, seed: str = "s", miss: str = "return_default") -> dict[str, Any]:
    """What a rule with a roll-out has."""
    return {
        "rule_type": "percentage_rollout",
        "rollout_percentage": percentage,
        "on_rollout_miss": miss,
        "assignment_algorithm": "sha1_60_v1",
        "seed": seed,
    }


_NO_KEYS: Final[tuple[Any, ...]] = (True, ["acme"], {}, None, "")
PRO: Final = {"person_properties": {"plan": "pro"}}
TRIAL: Final = {
    **rollout(100),
    "rule_type": "experiment",
    "value": ...,
    "experiment_id": None,
    "paused": False,
    "variants": [
        {"key": "a", "weight": 0, "value": "first"},
        {"key": "b", "weight": 100, "value": "second"},
    ],
}

TABLE: Final = [
    *[
        Rule(
            f"a device is sent as {' '.join(sent)}",
            {"half": by_device(HALF)},
            {"half": (on, MATCH if on else OUT, 0)},
            {"distinct_id": IN if not on else LEFT_OUT, **sent},
        )
        for device, on in ((IN, True), (LEFT_OUT, False))
        for sent in (
            {"device_id": device},
            {"$device_id": device},
            {"person_properties": {"$device_id": device}},
        )
    ],
    Rule(
        "a requested flag brings those on which it depends, directly or not",
        {
            "a": flag(),
            "b": flag(other_is("a")),
            "c": flag(other_is("b")),
            "d": flag(),
        },
        {"a": (True, MATCH, 0), "b": (True, MATCH, 0), "c": (True, MATCH, 0)},
        {"flag_keys_to_evaluate": ["c"]},
    ),
    Rule(
        "a cohort by behavior has nobody, which is no error",
        {
            "did": flag(in_cohort(5)),
            "did-not": flag(in_cohort(5, "not_in")),
            "did-or-pays": flag(in_cohort(6)),
        },
        {
            "did": (False, NO_MATCH, 0),
            "did-not": (True, MATCH, 0),
            "did-or-pays": (True, MATCH, 0),
        },
        PRO,
        cohorts={
            5: tree("AND", person_is("plan", "pro"), DID),
            6: tree("OR", DID, person_is("plan", "pro")),
        },
    ),
    Rule(
        "filters of version 2 are rules",
        {"size": rules(), "other": rules(targeting={"properties": [person_is("plan", "free")]})},
        {"size": ("large", MATCH, 0), "other": (False, NO_MATCH, None)},
        PRO,
    ),
    Rule(
        "rules give values of their type",
        {
            "number": {"filters": {**rules(value=7)["filters"], "return_type": "number"}},
            "object": {
                "filters": {**rules(value={"b": 1, "a": []})["filters"], "return_type": "object"}
            },
            "off": {"filters": {**rules(value=False)["filters"], "return_type": "boolean"}},
        },
        {"number": (True, MATCH, 0), "object": (True, MATCH, 0), "off": (False, MATCH, 0)},
        PRO,
        payloads={"number": "7", "object": '{"a":[],"b":1}'},
    ),
    Rule(
        "rules have roll-outs by their seeds, and experiments variants and holdouts",
        {
            "in": rules(**rollout(50, "half")),
            "miss": rules(**rollout(0)),
            "trial": rules(**TRIAL),
            "paused": rules(**{**TRIAL, "paused": True}),
            "held-out": rules(
                **TRIAL, holdout={"id": None, "seed": "h", "exclusion_percentage": 100}
            ),
        },
        {
            "in": ("large", MATCH, 0),
            "miss": (False, OUT, 0),
            "trial": ("second", MATCH, 0),
            "paused": (False, NO_MATCH, 0),
            "held-out": (False, "holdout_condition_value", 0),
        },
        {"distinct_id": IN, **PRO},
    ),
    Rule(
        "a roll-out of rules includes no empty id, and may go on to the next rule",
        {"all": rules(**rollout(100, miss="continue"))},
        {"all": (False, NO_MATCH, None)},
        {"distinct_id": "", **PRO},
    ),
    Rule(
        "rules that can't be evaluated fail, and never count as conditions",
        {
            "cohorts": rules(targeting={"properties": [in_cohort(1)]}),
            "linked": rules(**{**TRIAL, "experiment_id": 4}),
            "third": {"filters": {"version": 3, "groups": [EVERYBODY]}},
            "nonsense": rules(targeting={"properties": [person_is("plan", 3, "gt")]}),
            "fine": flag(),
        },
        {"fine": (True, MATCH, 0)},
        PRO,
        errors=True,
        failed=frozenset({"cohorts", "linked", "third", "nonsense"}),
    ),
    Rule(
        "an empty id is in every roll-out, and gets the first variant",
        {"none": sets(share(0)), "first": sets(share(0), multivariate=HALVES)},
        {"none": (True, MATCH, 0), "first": ("a", MATCH, 0)},
        {"distinct_id": ""},
    ),
    Rule(
        "what a person has of the first visit is known by its other name",
        {
            "source": flag(person_is("$initial_utm_source", "news")),
            "browser": flag(person_is("$initial_browser", "Firefox")),
            "kept": flag(person_is("$initial_referrer", "a")),
            "own": flag(person_is("$initial_plan", "pro")),
        },
        {
            "source": (True, MATCH, 0),
            "browser": (True, MATCH, 0),
            "kept": (True, MATCH, 0),
            "own": (False, NO_MATCH, 0),
        },
        {
            "person_properties": {
                "utm_source": "news",
                "$browser": "Firefox",
                "$referrer": "b",
                "$initial_referrer": "a",
                "plan": "pro",
            }
        },
    ),
    *[
        Rule(
            f"the system is known by both names, here {name}",
            {
                "short": flag(person_is("$os", "iOS")),
                "long": flag(person_is("$os_name", "iOS")),
                "initial": flag(person_is("$initial_os", "iOS")),
            },
            dict.fromkeys(("short", "long", "initial"), (True, MATCH, 0)),
            {"person_properties": {name: "iOS"}},
        )
        for name in ("$os", "$os_name")
    ],
    Rule(
        "a flag on one that doesn't exist is off, whatever else it says",
        {
            "orphan": sets({"properties": [other_is("gone")]}, EVERYBODY),
            "enrolled": sets({"properties": [other_is("gone")]}, feature_enrollment=True),
            "behind": sets({"properties": [other_is("orphan", value=False)]}, EVERYBODY),
        },
        dict.fromkeys(("orphan", "enrolled", "behind"), (False, MISSING, None)),
        {"person_properties": {"$feature_enrollment/enrolled": True}},
    ),
    Rule(
        "without a device a flag of devices is what no hash can change",
        {
            "all": by_device(sets(EVERYBODY)),
            "named": by_device(sets(share(100, variant="b"), multivariate=HALVES)),
            "variants": by_device(sets(EVERYBODY, multivariate=HALVES)),
            "some": by_device(sets(share(99.9))),
            "group": by_device(sets(share(99.9, aggregation_group_type_index=0), EVERYBODY)),
        },
        {
            "all": (True, MATCH, 0),
            "named": ("b", MATCH, 0),
            "variants": (False, OUT, 0),
            "some": (False, OUT, 0),
            "group": (True, MATCH, 1),
        },
    ),
    Rule(
        "who opted out of an early access feature gets its payload",
        {"feature": sets(EVERYBODY, feature_enrollment=True, payloads={"true": "[1]"})},
        {"feature": (False, "super_condition_value", 0)},
        {"person_properties": {"$feature_enrollment/feature": False}},
        payloads={"feature": "[1]"},
    ),
    *[
        Rule(
            f"an earlier id is sent as {' '.join(sent)}",
            {"half": lasting(HALF)},
            {"half": (True, MATCH, 0)},
            {"distinct_id": LEFT_OUT, **sent},
        )
        for sent in (
            {"anon_distinct_id": IN},
            {"$anon_distinct_id": IN},
            {"person_properties": {"$anon_distinct_id": IN}},
        )
    ],
    Rule(
        "a client without cookies has no earlier id",
        {"f": lasting(sets(share(50)))},
        {"f": (True, MATCH, 0)},
        {
            "distinct_id": named("f", below=0.5),
            "$anon_distinct_id": "$posthog_cookieless",
        },
    ),
    Rule(
        "times without a zone are of the project's",
        {
            "before": flag(person_is("joined", "2026-01-02", "is_date_before")),
            "after": flag(person_is("joined", "2026-01-01 23:00", "is_date_after")),
            "zoned": flag(person_is("joined", "2026-01-01T15:00:00Z", "is_date_exact")),
        },
        {"before": (False, NO_MATCH, 0), "after": (True, MATCH, 0), "zoned": (True, MATCH, 0)},
        {"person_properties": {"joined": "2026-01-02T00:00:00"}},
        project={"timezone": "Asia/Tokyo"},
    ),
    Rule(
        "versions sort with their pre-releases, and have three numbers",
        {
            "beta": flag(person_is("beta", "1.2.0", "semver_gte")),
            "below": flag(person_is("beta", "1.2.0", "semver_lt")),
            "range": flag(person_is("beta", "1.1.0", "semver_caret")),
            "four": flag(person_is("four", "1.2.0", "semver_gte")),
            "zeros": flag(person_is("zeros", "1.2.0", "semver_eq")),
        },
        {
            "beta": (False, NO_MATCH, 0),
            "below": (True, MATCH, 0),
            "range": (False, NO_MATCH, 0),
            "four": (False, NO_MATCH, 0),
            "zeros": (True, MATCH, 0),
        },
        {"person_properties": {"beta": "1.2.0-beta", "four": "v1.2.0.9", "zeros": "v1.02"}},
    ),
    Rule(
        "a flag without conditions is off for want of a group",
        {"bare": sets()},
        {"bare": (False, NO_GROUP, None)},
    ),
    Rule(
        "the older forms of enrollment and holdout don't count",
        {
            "enrolled": sets(
                share(0),
                super_groups=[
                    {"properties": [person_is("$feature_enrollment/enrolled", ["true"])]}
                ],
            ),
            "held-out": sets(
                EVERYBODY, holdout_groups=[share(100, variant="holdout-1")], multivariate=HALVES
            ),
        },
        {
            "enrolled": (False, OUT, 0),
            "held-out": ("a" if place("held-out.annvariant") < 0.5 else "b", MATCH, 0),
        },
        {"person_properties": {"$feature_enrollment/enrolled": "true"}},
    ),
    Rule(
        "a cohort of any of nothing has nobody, one of all of nothing everybody",
        {"any": flag(in_cohort(1)), "all": flag(in_cohort(2))},
        {"any": (False, NO_MATCH, 0), "all": (True, MATCH, 0)},
        cohorts={1: tree("OR"), 2: tree("AND")},
    ),
    Rule(
        "a cohort is in or not in, and no other operator matches",
        {"exact": flag(in_cohort(2, "exact")), "usual": flag(in_cohort(2, None))},
        {"exact": (False, NO_MATCH, 0), "usual": (True, MATCH, 0)},
        cohorts={2: tree("AND")},
    ),
    *[
        Rule(
            f"a group whose key is {json.dumps(key)} is none",
            {"f": sets(EVERYBODY, aggregation_group_type_index=0)},
            {"f": (False, NO_GROUP, 0)},
            {"groups": {"org": key}},
        )
        for key in _NO_KEYS
    ],
    Rule(
        "a group's key may be a number",
        {"f": flag(person_is("$group_key", "7", kind="group"), aggregation_group_type_index=0)},
        {"f": (True, MATCH, 0)},
        {"groups": {"org": 7}},
    ),
    Rule(
        "flags in a circle, and those behind them, aren't answered, but said to be missing",
        {
            "egg": sets({"properties": [other_is("hen")]}, EVERYBODY),
            "hen": flag(other_is("egg")),
            "chick": sets({"properties": [other_is("egg")]}, EVERYBODY),
            "fine": flag(),
        },
        {"fine": (True, MATCH, 0)},
        errors=True,
    ),
    Rule(
        "a circle makes every answer incomplete, also about other flags",
        {"egg": flag(other_is("egg")), "fine": flag()},
        {"fine": (True, MATCH, 0)},
        {"flag_keys_to_evaluate": ["fine"]},
        errors=True,
    ),
    Rule(
        "a condition without a value matches nobody, whatever its operator",
        {
            "equal": flag(person_is("plan", None)),
            "other": flag(person_is("plan", None, "is_not")),
            "gone": flag({"key": "gone", "type": "person", "operator": "is_not"}),
            "pattern": flag(person_is("gone", None, "not_regex")),
            "unset": flag(person_is("gone", None, "is_not_set")),
            "negated": flag(in_cohort(1)),
        },
        {
            **dict.fromkeys(("equal", "other", "gone", "pattern"), (False, NO_MATCH, 0)),
            **dict.fromkeys(("unset", "negated"), (True, MATCH, 0)),
        },
        {"person_properties": {"plan": None}},
        cohorts={1: tree("AND", {**person_is("plan", None, "is_not"), "negation": True})},
    ),
    Rule(
        "numbers in texts may be infinite, or none",
        {
            "above": flag(person_is("most", 10, "gt")),
            "outside": flag(person_is("most", [1, 2], "not_between")),
            "within": flag(person_is("few", ["-inf", 5], "between")),
            "below": flag(person_is("none", 10, "lt")),
            "none-outside": flag(person_is("none", [1, 2], "not_between")),
        },
        {
            **dict.fromkeys(("above", "outside", "within"), (True, MATCH, 0)),
            **dict.fromkeys(("below", "none-outside"), (False, NO_MATCH, 0)),
        },
        {"person_properties": {"most": "Infinity", "few": "3", "none": "NaN"}},
    ),
    Rule(
        "whole numbers beyond 64 bits are fractions",
        {
            "exact": flag(person_is("n", str(2**64))),
            "about": flag(person_is("n", "^1.8.*e[+]19$", "regex")),
        },
        {"exact": (False, NO_MATCH, 0), "about": (True, MATCH, 0)},
        {"person_properties": {"n": 2**64}},
    ),
    Rule(
        "a time in milliseconds is one of a late century, one in microseconds none",
        {
            "after": flag(person_is("ms", "2024-01-01", "is_date_after")),
            "before": flag(person_is("ms", "2024-01-01", "is_date_before")),
            "small-after": flag(person_is("us", "2024-01-01", "is_date_after")),
            "small-before": flag(person_is("us", "2024-01-01", "is_date_before")),
            "no-number": flag(person_is("nan", "1970-01-01T00:00:00Z", "is_date_exact")),
        },
        {
            **dict.fromkeys(("after", "no-number"), (True, MATCH, 0)),
            **dict.fromkeys(("before", "small-after", "small-before"), (False, NO_MATCH, 0)),
        },
        {
            "person_properties": {
                "ms": 1_700_000_000_000,
                "us": 1_700_000_000_000_000,
                "nan": "NaN",
            }
        },
    ),
    Rule(
        "what is said of a group counts for persons without the group's key",
        {
            "gold": flag({**person_is("tier", "gold", kind="group"), "group_type_index": 0}),
            "of-groups": flag(
                person_is("tier", "gold", kind="group"), aggregation_group_type_index=0
            ),
        },
        {"gold": (True, MATCH, 0), "of-groups": (False, NO_GROUP, 0)},
        {"group_properties": {"org": {"tier": "gold"}}},
        project={"group_types": ["org"]},
    ),
    *[
        Rule(
            f"of a group of an unknown type nothing is known, here with {json.dumps(sent)}",
            {"f": flag({**person_is("tier", "gold", "is_not", "group"), "group_type_index": 4})},
            {"f": (on, MATCH if on else NO_MATCH, 0)},
            sent,
        )
        for sent, on in (
            ({}, True),
            ({"groups": {"org": None}}, True),
            ({"groups": {"org": "acme"}}, False),
            ({"group_properties": {"org": {"tier": "none"}}}, False),
        )
    ],
    Rule(
        "conditions on the person, and cohorts, see the person also in a set for groups",
        {
            "person": flag(person_is("plan", "pro"), aggregation_group_type_index=0),
            "cohort": flag(in_cohort(1), aggregation_group_type_index=0),
            "group": flag(person_is("plan", "pro", kind="group"), aggregation_group_type_index=0),
        },
        {
            "person": (False, NO_MATCH, 0),
            "cohort": (False, NO_MATCH, 0),
            "group": (True, MATCH, 0),
        },
        {
            "groups": {"org": "acme"},
            "group_properties": {"org": {"plan": "pro"}},
            "person_properties": {"plan": "free"},
        },
        cohorts={1: tree("AND", person_is("plan", "pro"))},
    ),
    Rule(
        "the older form of cohorts has conditions on persons, and nobody by events",
        {f"c{number}": flag(in_cohort(number)) for number in range(1, 7)},
        {
            **dict.fromkeys(("c1", "c2", "c3"), (True, MATCH, 0)),
            **dict.fromkeys(("c4", "c5", "c6"), (False, NO_MATCH, 0)),
        },
        PRO,
        cohorts={
            1: {"groups": [{"properties": [person_is("plan", "pro", kind="event")]}]},
            2: {"groups": [{"days": 7, "event_id": "seen"}, {"properties": {"plan": "pro"}}]},
            3: {"groups": [{"properties": {"type": "OR", "values": [person_is("plan", "pro")]}}]},
            4: {"groups": [{"action_id": 7, "days": 30}]},
            5: {"groups": [{"name": "without any"}, {"properties": []}]},
            6: {"groups": [{"properties": {"type": "OR"}}]},
        },
    ),
    Rule(
        "a cohort that needs itself or a missing one fails its flag, whatever else it says",
        {f"c{number}": flag(in_cohort(number)) for number in range(1, 5)},
        {"c4": (True, MATCH, 0)},
        PRO,
        cohorts={
            1: tree("OR", person_is("plan", "pro"), in_cohort(99)),
            2: tree("OR", person_is("plan", "pro"), in_cohort(2)),
            3: tree("OR", person_is("plan", "pro"), in_cohort(1)),
            4: tree("OR", person_is("plan", "pro"), person_is("a", 1, kind="no-such-type")),
        },
        errors=True,
        failed=frozenset({"c1", "c2", "c3"}),
    ),
    Rule(
        "operators of other types match nobody, which is no error",
        {
            "in": flag(person_is("plan", "pro", "in")),
            "not-in": flag(person_is("gone", "pro", "not_in")),
            "flag": flag(person_is("plan", "pro", "flag_evaluates_to")),
        },
        dict.fromkeys(("in", "not-in", "flag"), (False, NO_MATCH, 0)),
        PRO,
    ),
    Rule(
        "a flag whose rules aren't evaluated is off for those that depend on it",
        {
            "linked": rules(**{**TRIAL, "experiment_id": 4}),
            "on": flag(other_is("linked")),
            "off": flag(other_is("linked", value=False)),
        },
        {"on": (False, NO_MATCH, 0), "off": (True, MATCH, 0)},
        errors=True,
        failed=frozenset({"linked"}),
    ),
    Rule(
        "a condition on a failed flag that could never match doesn't fail another",
        {
            "broken": flag(in_cohort(9)),
            "needs": flag(other_is("broken")),
            "number": flag(other_is("broken", value=7)),
            "null": flag(other_is("broken", value=None)),
        },
        {"number": (False, NO_MATCH, 0), "null": (False, NO_MATCH, 0)},
        errors=True,
        failed=frozenset({"broken", "needs"}),
    ),
]


async def answered(client: SandboxClient, asked: Mapping[str, Any]) -> Any:
    """What `/flags/?v=2` answers."""
    reply = await client.post("/flags/?v=2", {"api_key": KEY, "distinct_id": "ann", **asked})
    assert reply.status == 200, reply.text
    return reply.json


def options(folder: Path, **settings: Any) -> SandboxOptions:
    """A sandbox of one project with these settings."""
    owner = {"email": "olga@example.com", "first_name": "Olga", "level": "owner"}
    organization = {
        "name": "Makers",
        "members": [owner],
        "projects": [{"api_key": KEY, **settings}],
    }
    seed = folder / "seed.yaml"
    seed.write_text(yaml.safe_dump({"organizations": [organization]}))
    return SandboxOptions(seed=seed, now=lambda: MOMENT)


@cases("rule", TABLE, ids=str)
async def test_rule(rule: Rule, tmp_path: Path) -> None:
    """Each rule of the table."""
    async with talking(options(tmp_path, **rule.project)) as client:
        for number, cohort in rule.cohorts.items():
            assert (await put(client, f"cohorts/{number}", cohort)).status == 200
        await define(client, **rule.flags)
        body = await answered(client, rule.asked)
        answers = {
            key: (
                answer["variant"] or answer["enabled"],
                answer["reason"]["code"],
                answer["reason"]["condition_index"],
            )
            for key, answer in body["flags"].items()
            if not answer.get("failed")
        }
        assert answers == rule.expected
        assert {key for key, answer in body["flags"].items() if answer.get("failed")} == rule.failed
        assert body["errorsWhileComputingFlags"] is rule.errors
        payloads = {
            key: answer["metadata"]["payload"]
            for key, answer in body["flags"].items()
            if answer["metadata"]["payload"] is not None
        }
        assert payloads == rule.payloads
        older = await client.post(
            "/decide/?v=3", {"api_key": KEY, "distinct_id": "ann", **rule.asked}
        )
        values = {key: value for key, (value, *_) in rule.expected.items()}
        assert {
            key: value
            for key, value in older.json["featureFlags"].items()
            if key not in rule.failed
        } == values


async def test_relative_times_count_from_the_projects_clock(tmp_path: Path) -> None:
    """A month ago is the same hour of the day there, whatever became of summer time between."""
    condition = person_is("seen", "-1m", "is_date_before")
    async with talking(options(tmp_path, timezone="America/New_York")) as client:
        await define(client, old=flag(condition))
        for seen, old in (("2026-02-20T10:46:39Z", True), ("2026-02-20T10:46:41Z", False)):
            body = await answered(client, {"person_properties": {"seen": seen}})
            assert body["flags"]["old"]["enabled"] is old


async def test_when_a_person_was_created_is_not_a_property() -> None:
    """A condition of type `person_metadata` compares the service's own record of the person;
    neither what is stored as `created_at` nor what a request says counts.
    """
    recent = person_is("created_at", "-1h", "is_date_after", "person_metadata")
    flags = {
        "recent": flag(recent),
        "unknown": flag(person_is("created_at", "", "is_not_set", "person_metadata")),
        "said": flag(person_is("created_at", "long ago")),
    }
    async with talking() as client:
        await define(client, **flags)
        sent = event(event="$set", properties={"$set": {"created_at": "long ago"}})
        assert (await client.post("/batch/", batch(sent))).status == 200
        for who, expected in (
            ("ann", {"recent": True, "unknown": False, "said": True}),
            ("bob", {"recent": False, "unknown": True, "said": False}),
        ):
            body = await answered(client, {"distinct_id": who})
            assert {key: answer["enabled"] for key, answer in body["flags"].items()} == expected
        asked = {"distinct_id": "bob", "person_properties": {"created_at": "2999-01-01"}}
        assert not (await answered(client, asked))["flags"]["recent"]["enabled"]


@cases(
    ("content", "attr"),
    [
        (rules(colour="red"), "filters.rules[0].colour"),
        (rules(value=7), "filters.rules[0].value"),
        (rules(id="one"), "filters.rules[0].id"),
        (rules(**{**rollout(50), "seed": ""}), "filters.rules[0].seed"),
        (rules(**rollout(12.345)), "filters.rules[0].rollout_percentage"),
        (rules(**{**TRIAL, "variants": TRIAL["variants"][:1]}), "filters.rules[0].variants"),
        (
            rules(targeting={"properties": [person_is("seats", [1, 2], "between")]}),
            "filters.rules[0].targeting.properties[0].operator",
        ),
        (
            rules(targeting={"properties": [person_is("joined", "soon", "is_date_after")]}),
            "filters.rules[0].targeting.properties[0].value",
        ),
        ({"filters": {"version": 2, "groups": [EVERYBODY]}}, "filters.groups"),
        (flag(person_is("plan", "pro", kind="persn")), "filters.groups[0].properties[0].type"),
        (sets(EVERYBODY, payloads={"true": "large"}), "filters.payloads.true"),
        (sets(EVERYBODY, bucketing_identifier="device_id"), "filters.bucketing_identifier"),
    ],
)
async def test_flags_that_the_service_rejects(content: dict[str, Any], attr: str) -> None:
    """They are 400, with their place."""
    async with talking() as client:
        reply = await put(client, "flags/f", content)
        assert (reply.status, reply.json["attr"]) == (400, attr)
