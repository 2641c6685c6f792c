"""The cases of the service's frozen corpus for condition sets, by HTTP.

The corpus is tests/fixtures/rules_v2_contract/1.2.0/corpus/v1_evaluation.json of
rust/feature-flags in PostHog/posthog (commit df189ec75ca9). The names are its own; the definitions,
persons and groups are made up here so that each case has what its name says: ids are sought whose
hashes, computed here, stand where the case needs them. All 31 can be produced from the outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.sandbox.client import KEY, talking
from tests.sandbox.defining import define, person_is, put
from tests.support.cases import cases

Answer = tuple[Any, str, int | None, str | None]
"""The value, the reason's code and condition, and the payload."""


@dataclass(frozen=True, slots=True)
class CorpusCase:
    """Flags, who asks, and what each flag is."""

    name: str
    flags: Mapping[str, Any]
    expected: Mapping[str, Answer]
    distinct_id: str = "guest"
    person: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def place(text: str) -> float:
    """Where a text is hashed to."""
    return int(hashlib.sha1(text.encode()).hexdigest()[:15], 16) / 0xFFFFFFFFFFFFFFF


def between(prefix: str, low: float, high: float, salt: str = "") -> str:
    """An id whose hash is within these bounds."""
    ids = (f"guest-{number}" for number in range(100_000))
    return next(guest for guest in ids if low < place(prefix + guest + salt) < high)


def sets(*groups: Any, **filters: Any) -> dict[str, Any]:
    """A flag of condition sets."""
    return {"filters": {"groups": list(groups), **filters}}


def share(percentage: float | None, *properties: Any, **group: Any) -> dict[str, Any]:
    """A condition set."""
    return {"properties": list(properties), "rollout_percentage": percentage, **group}


def variants(**shares: float) -> dict[str, Any]:
    """Variants with their shares."""
    return {
        "variants": [
            {"key": key, "rollout_percentage": percentage} for key, percentage in shares.items()
        ]
    }


def other_is(key: str, value: Any) -> dict[str, Any]:
    """A condition on another flag."""
    return {"key": key, "type": "flag", "operator": "flag_evaluates_to", "value": value}


MATCH: Final = "condition_match"
MISS: Final = "no_condition_match"
OUT: Final = "out_of_rollout_bound"
STAFF: Final = person_is("team", "kitchen")
COOK: Final = {"team": "kitchen"}
WAITER: Final = {"team": "hall"}
MENU: Final = sets(share(100, STAFF), payloads={"true": '{"pages": 3}'})
STAGED: Final = (share(20), share(100, STAFF))
THIRDS: Final = variants(soup=40, pasta=30, salad=30)
TABLES: Final = sets(
    share(100, STAFF, variant="salad"),
    share(100),
    multivariate=THIRDS,
    payloads={"pasta": '{"sauce": true}'},
)
HALVES: Final = variants(red=50, white=50)
WINE: Final = sets(share(45), multivariate=HALVES)
ROOM: Final = sets(
    share(70, {**person_is("stars", 5, kind="group"), "group_type_index": 0}),
    aggregation_group_type_index=0,
)
HELD: Final = sets(
    share(100),
    multivariate=HALVES,
    payloads={"white": "[1]"},
    holdout={"id": 12, "exclusion_percentage": 30},
)
DRINKER: Final = next(
    guest
    for guest in (f"guest-{number}" for number in range(1_000))
    if place(f"wine.{guest}") < 0.45 and place(f"wine.{guest}variant") > 0.5
)
UNHELD: Final = next(
    guest
    for guest in (f"guest-{number}" for number in range(1_000))
    if place(f"holdout-{guest}") > 0.3 and place(f"dinner.{guest}variant") > 0.5
)


def of_hotel(key: Any) -> dict[str, Any]:
    """A request of a hotel with five stars."""
    return {"groups": {"hotel": key}, "group_properties": {"hotel": {"stars": 5}}}


def hotel(low: float, high: float) -> str:
    """The key of a hotel that stands there for the flag `room`."""
    return between("room.", low, high)


HOTEL_NUMBER: Final = next(number for number in range(100) if place(f"room.{number}") < 0.7)

CASES: Final = [
    CorpusCase(
        "v1.boolean.targeted_match_with_payload",
        {"menu": MENU},
        {"menu": (True, MATCH, 0, '{"pages": 3}')},
        person=COOK,
    ),
    CorpusCase(
        "v1.boolean.targeting_miss", {"menu": MENU}, {"menu": (False, MISS, 0, None)}, person=WAITER
    ),
    CorpusCase(
        "v1.boolean.rollout_included",
        {"bell": sets(share(30.5))},
        {"bell": (True, MATCH, 0, None)},
        between("bell.", 0.2, 0.304),
    ),
    CorpusCase(
        "v1.boolean.rollout_excluded",
        {"bell": sets(share(30.5))},
        {"bell": (False, OUT, 0, None)},
        between("bell.", 0.306, 0.4),
    ),
    CorpusCase(
        "v1.boolean.rollout_miss_continues_to_lower_condition",
        {"grill": sets(*STAGED)},
        {"grill": (True, MATCH, 1, None)},
        between("grill.", 0.2, 1),
        COOK,
    ),
    CorpusCase(
        "v1.boolean.rollout_miss_early_exit",
        {"grill": sets(*STAGED, early_exit=True)},
        {"grill": (False, OUT, 0, None)},
        between("grill.", 0.2, 1),
        COOK,
    ),
    CorpusCase(
        "v1.boolean.reason_priority_keeps_earlier_rollout_miss",
        {"grill": sets(*STAGED)},
        {"grill": (False, OUT, 0, None)},
        between("grill.", 0.2, 1),
        WAITER,
    ),
    CorpusCase(
        "v1.boolean.reason_priority_prefers_later_rollout_miss",
        {"grill": sets(*reversed(STAGED))},
        {"grill": (False, OUT, 1, None)},
        between("grill.", 0.2, 1),
        WAITER,
    ),
    CorpusCase(
        "v1.boolean.null_rollout_is_100",
        {"bread": sets(share(None, STAFF))},
        {"bread": (True, MATCH, 0, None)},
        person=COOK,
    ),
    CorpusCase(
        "v1.boolean.empty_distinct_id_included_at_zero_percent",
        {"bread": sets(share(0))},
        {"bread": (True, MATCH, 0, None)},
        "",
    ),
    CorpusCase(
        "v1.boolean.empty_distinct_id_included_below_prefix_hash",
        {"bread": sets(share(int(place("bread.") * 100)))},
        {"bread": (True, MATCH, 0, None)},
        "",
    ),
    CorpusCase(
        "v1.multivariate.variant_from_hash_with_payload",
        {"tables": TABLES},
        {"tables": ("pasta", MATCH, 1, '{"sauce": true}')},
        between("tables.", 0.41, 0.69, "variant"),
        WAITER,
    ),
    CorpusCase(
        "v1.multivariate.variant_from_hash_control",
        {"tables": TABLES},
        {"tables": ("soup", MATCH, 1, None)},
        between("tables.", 0, 0.39, "variant"),
        WAITER,
    ),
    CorpusCase(
        "v1.multivariate.variant_override",
        {"tables": TABLES},
        {"tables": ("salad", MATCH, 0, None)},
        between("tables.", 0, 0.39, "variant"),
        COOK,
    ),
    CorpusCase(
        "v1.multivariate.invalid_variant_override_uses_hash",
        {"tables": sets(share(100, STAFF, variant="cake"), share(100), multivariate=THIRDS)},
        {"tables": ("pasta", MATCH, 0, None)},
        between("tables.", 0.41, 0.69, "variant"),
        COOK,
    ),
    CorpusCase(
        "v1.multivariate.partial_rollout_included",
        {"wine": WINE},
        {"wine": ("white", MATCH, 0, None)},
        DRINKER,
    ),
    CorpusCase(
        "v1.multivariate.partial_rollout_excluded",
        {"wine": WINE},
        {"wine": (False, OUT, 0, None)},
        between("wine.", 0.46, 1),
    ),
    CorpusCase(
        "v1.multivariate.empty_distinct_id_first_variant",
        {"wine": sets(share(100), multivariate=HALVES)},
        {"wine": ("red", MATCH, 0, None)},
        "",
    ),
    CorpusCase(
        "v1.group.included_by_group_key",
        {"room": ROOM},
        {"room": (True, MATCH, 0, None)},
        asked=of_hotel(hotel(0.5, 0.69)),
    ),
    CorpusCase(
        "v1.group.excluded_by_group_key",
        {"room": ROOM},
        {"room": (False, OUT, 0, None)},
        asked=of_hotel(hotel(0.71, 1)),
    ),
    CorpusCase(
        "v1.group.integer_group_key_normalized",
        {"room": ROOM},
        {"room": (True, MATCH, 0, None)},
        asked=of_hotel(HOTEL_NUMBER),
    ),
    CorpusCase(
        "v1.group.missing_group_key",
        {"room": ROOM},
        {"room": (False, "no_group_type", 0, None)},
        person=COOK,
    ),
    CorpusCase(
        "v1.dependency.satisfied",
        {"menu": MENU, "kitchen": sets(share(100, other_is("menu", True)))},
        {"menu": (True, MATCH, 0, '{"pages": 3}'), "kitchen": (True, MATCH, 0, None)},
        person=COOK,
    ),
    CorpusCase(
        "v1.dependency.unsatisfied",
        {"menu": MENU, "kitchen": sets(share(100, other_is("menu", True)))},
        {"menu": (False, MISS, 0, None), "kitchen": (False, MISS, 0, None)},
        person=WAITER,
    ),
    *[
        CorpusCase(
            f"v1.dependency.variant_{name}",
            {"tables": TABLES, "fork": sets(share(100, other_is("tables", "pasta")))},
            {
                "tables": (variant, MATCH, 1, '{"sauce": true}' if on else None),
                "fork": (on, MATCH if on else MISS, 0, None),
            },
            between("tables.", low, high, "variant"),
            WAITER,
        )
        for name, variant, low, high, on in (
            ("match", "pasta", 0.41, 0.69, True),
            ("mismatch", "soup", 0, 0.39, False),
        )
    ],
    CorpusCase(
        "v1.dependency.missing_target",
        {"fork": sets(share(100, other_is("napkin", True)))},
        {"fork": (False, "missing_dependency", None, None)},
    ),
    CorpusCase(
        "v1.holdout.member",
        {"dinner": HELD},
        {"dinner": ("holdout-12", "holdout_condition_value", None, None)},
        between("holdout-", 0, 0.29),
    ),
    CorpusCase(
        "v1.holdout.not_member", {"dinner": HELD}, {"dinner": ("white", MATCH, 0, "[1]")}, UNHELD
    ),
    CorpusCase(
        "v1.holdout.empty_distinct_id_hashes_prefix",
        {
            name: sets(share(100), holdout={"id": 12, "exclusion_percentage": percentage})
            for name, percentage in (("less", 92.5), ("more", 92.8))
        },
        {
            "less": (True, MATCH, 0, None),
            "more": ("holdout-12", "holdout_condition_value", None, None),
        },
        "",
    ),
    CorpusCase(
        "v1.omission.inactive_flag",
        {"menu": {**MENU, "active": False}, "bread": sets(share(None))},
        {"bread": (True, MATCH, 0, None)},
        person=COOK,
    ),
]


@cases("case", CASES, ids=str)
async def test_case(case: CorpusCase) -> None:
    """What the corpus says of each case."""
    async with talking() as client:
        assert (await put(client, "group-types", ["hotel"])).status == 200
        await define(client, **case.flags)
        asked = {
            "api_key": KEY,
            "distinct_id": case.distinct_id,
            "person_properties": case.person,
            **case.asked,
        }
        reply = (await client.post("/flags/?v=2", asked)).json
        answers = {
            key: (
                answer["variant"] or answer["enabled"],
                answer["reason"]["code"],
                answer["reason"]["condition_index"],
                answer["metadata"]["payload"],
            )
            for key, answer in reply["flags"].items()
        }
        assert answers == case.expected
        assert reply["errorsWhileComputingFlags"] is False


def test_the_names_are_the_corpus() -> None:
    """Each of its 31 cases is there once."""
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) == 31
