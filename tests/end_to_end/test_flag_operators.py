"""Flags that an SDK doesn't decide by itself: conditions on what a person doesn't have, further
operators, what only the service has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import pytest

from forwarder.sandbox import Sandbox
from tests.support.flag_answers import FLAGS, FlagAnswers, ask, define, set_flag
from tests.support.flags import SURE, FlagProject
from tests.support.whole import KEY

NOTHING: Final[dict[str, Any]] = {}
NEGATIVE: Final = frozenset(
    (
        "is_not",
        "is_not_set",
        "not_icontains",
        "not_starts_with",
        "not_ends_with",
        "not_regex",
        "not_icontains_multi",
        "not_between",
    )
)
"""The operators that a missing property matches."""
VALUES: Final[dict[str, Any]] = {
    "regex": "^a",
    "not_regex": "^a",
    **dict.fromkeys(("gt", "gte", "lt", "lte"), 7),
    **dict.fromkeys(("is_date_before", "is_date_after", "is_date_exact"), "2024-01-01"),
    **dict.fromkeys((name for name in SURE if name.startswith("semver_")), "1.2.3"),
    **dict.fromkeys(("between", "not_between"), (1, 5)),
    **dict.fromkeys(("icontains_multi", "not_icontains_multi"), ("tea",)),
}
"""A value that makes sense for each operator; `tea` for all others."""
OPERATORS: Final = sorted({*SURE, *VALUES})

TABLE: Final[list[tuple[str, Any, Any, bool]]] = [
    ("icontains_multi", ["tea", "milk"], "Green TEA", True),
    ("icontains_multi", ["tea", "milk"], "coffee", False),
    ("not_icontains_multi", ["tea", "milk"], "coffee", True),
    ("not_icontains_multi", ["tea", "milk"], "milkshake", False),
    ("between", [1, 5], 5, True),
    ("between", [1, 5], "1.0", True),
    ("between", [1, 5], 5.5, False),
    ("between", [1, 5], "many", False),
    ("not_between", [1, 5], 6, True),
    ("not_between", [1, 5], 3, False),
    ("is_date_exact", "2024-01-01", "2024-01-01T00:00:00Z", True),
    ("is_date_exact", "2024-01-01", "2024-01-01T01:00:00+01:00", True),
    ("is_date_exact", "2024-01-01", "2024-01-02", False),
    ("is_date_before", "2024-01-01", "soon", False),
    ("is_date_after", "2024-01-01", None, False),
    ("is_date_before", "tomorrow", "2023-01-01", False),
    ("is_date_after", "-20000d", "2024-01-01", False),
    ("is_date_before", "-1d", "2024-01-01", True),
    ("semver_gt", "1.0.0", "not a version", False),
    ("semver_neq", "1.0.0", "not a version", False),
    ("semver_eq", "not a version", "1.0.0", False),
    ("regex", r"\bann\b", "hello ann!", True),
    ("regex", r"\bann\b", "hanna", False),
    ("regex", r"(?i)^ANN", "ann@example.com", True),
    ("regex", r"^(?!test)", "testing", False),
    ("regex", r"^(?!test)", "ann", True),
    ("not_regex", r"(?=a)", "bbb", True),
    ("regex", r"\p{Lu}", "É", True),
    ("regex", "(", "(", False),
    ("not_regex", "(", "a", False),
    ("gt", "many", 7, False),
    ("exact", ["7"], 7, True),
    ("is_not", "TRUE", True, False),
]
"""Operator, the condition's value, the person's value, and whether it matches."""


def flag(key: str, *properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A flag with one condition, for everyone who meets it."""
    return {
        "key": key,
        "active": True,
        "filters": {"groups": [{"properties": list(properties), "rollout_percentage": 100}]},
        **more,
    }


def condition(
    operator: str, value: Any, key: str = "drink", kind: str = "person"
) -> dict[str, Any]:
    """A condition on a property."""
    return {"key": key, "operator": operator, "value": value, "type": kind}


class FlagTable:
    """A sandbox whose flags are set one by one."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def set(self, *flags: dict[str, Any]) -> None:
        """Set flags."""
        for definition in flags:
            await set_flag(self.session, self.url, KEY, definition)

    async def ask(
        self, properties: dict[str, Any], distinct_id: str = "ann", **more: Any
    ) -> FlagAnswers:
        """All flags of a person."""
        request = {"distinct_id": distinct_id, "person_properties": properties, **more}
        return await ask(self.session, self.url, KEY, FLAGS, request)

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event."""
        async with self.session.post(
            f"{self.url}/capture/", json={"api_key": KEY, **event}
        ) as response:
            assert response.status == 200


@asynccontextmanager
async def flag_table() -> AsyncIterator[FlagTable]:
    """A sandbox without flags."""
    async with Sandbox() as sandbox, aiohttp.ClientSession() as session:
        yield FlagTable(sandbox.url, session)


async def test_a_missing_property_matches_only_what_is_negative() -> None:
    """Nothing is known of the person: each negative operator matches, and no other one."""
    async with flag_table() as table:
        await table.set(
            *(
                flag(operator, condition(operator, VALUES.get(operator, "tea")))
                for operator in OPERATORS
            )
        )
        answers = await table.ask(NOTHING)
        assert answers.values == {operator: operator in NEGATIVE for operator in OPERATORS}
        assert not answers.failed


async def test_values() -> None:
    """The table, row by row, in one request each."""
    async with flag_table() as table:
        await table.set(
            *(flag(f"row-{number}", condition(row[0], row[1])) for number, row in enumerate(TABLE))
        )
        answered = []
        for number, (operator, value, actual, _) in enumerate(TABLE):
            answers = await table.ask({"drink": actual}, flag_keys_to_evaluate=[f"row-{number}"])
            answered.append((operator, value, actual, answers.values[f"row-{number}"]))
            assert not answers.failed
    assert answered == TABLE


@pytest.mark.parametrize("path", ["/decide?v=3", "/flags/?v=2"])
async def test_an_uncomputable_flag_spoils_no_other(path: str) -> None:
    """An unknown operator, a cohort that isn't there, flags that need each other: the answer says
    so, and the other flags are right.
    """

    def needs(other: str) -> dict[str, Any]:
        return condition("flag_evaluates_to", True, other, "flag")

    async with flag_table() as table:
        await table.set(flag("on"), flag("off", condition("is_set", "is_set")))
        assert not (await ask(table.session, table.url, KEY, path, {"distinct_id": "ann"})).failed
        await table.set(
            flag("odd", condition("resembles", "tea")),
            flag("egg", needs("hen")),
            flag("hen", needs("egg")),
        )
        await table.set(
            flag("lost", {"key": "id", "type": "cohort", "value": 99, "operator": "in"})
        )
        answers = await ask(table.session, table.url, KEY, path, {"distinct_id": "ann"})
        assert answers.failed
        assert {key: value for key, value in answers.values.items() if value} == {"on": True}
        assert answers.values["off"] is False


async def test_stored_properties_count_unless_the_request_has_them() -> None:
    """A person's and a group's stored properties, each under what the request says of it."""
    drinks = flag("tea", condition("exact", "tea"))
    big = flag("big", {**condition("gt", 100, "seats", "group"), "group_type_index": 0})
    big["filters"]["aggregation_group_type_index"] = 0
    async with flag_table() as table:
        await define(table.session, table.url, KEY, FlagProject([drinks, big], []))
        await table.send(
            {
                "event": "$set",
                "distinct_id": "ann",
                "properties": {"$set": {"drink": "tea", "plan": "pro"}},
            }
        )
        group = {"$group_type": "company", "$group_key": "acme", "$group_set": {"seats": 500}}
        await table.send({"event": "$groupidentify", "distinct_id": "ann", "properties": group})
        acme: dict[str, Any] = {"groups": {"company": "acme"}}
        assert (await table.ask(NOTHING, **acme)).values == {"tea": True, "big": True}
        assert (await table.ask({"plan": "free"}, **acme)).values == {"tea": True, "big": True}
        answer = await table.ask(
            {"drink": "milk"}, **acme, group_properties={"company": {"seats": 5}}
        )
        assert answer.values == {
            "tea": False,
            "big": False,
        }
        assert (await table.ask(NOTHING, **acme)).values == {"tea": True, "big": True}
        assert (await table.ask(NOTHING)).values == {"tea": True, "big": False}
        assert (await table.ask(NOTHING, "bob", **acme)).values == {"tea": False, "big": True}


async def test_distinct_id_can_be_a_condition() -> None:
    """A condition on `distinct_id` needs nothing of the request but the id itself, as posthog-node
    decides it.
    """
    async with flag_table() as table:
        await table.set(flag("ann's", condition("exact", ["ann"], "distinct_id")))
        assert (await table.ask(NOTHING)).values == {"ann's": True}
        assert (await table.ask(NOTHING, "bob")).values == {"ann's": False}


async def test_enrollment_decides_an_early_access_feature() -> None:
    """`$feature_enrollment/KEY` decides over an early access feature; where it isn't set, the
    conditions do.
    """
    enrolled = flag("beta", condition("exact", "tea"))
    enrolled["filters"]["feature_enrollment"] = True
    async with flag_table() as table:
        await table.set(enrolled)
        for properties, expected in (
            ({"$feature_enrollment/beta": True}, True),
            ({"$feature_enrollment/beta": "true", "drink": "milk"}, True),
            ({"$feature_enrollment/beta": False, "drink": "tea"}, False),
            ({"drink": "tea"}, True),
            ({"drink": "milk"}, False),
        ):
            assert (await table.ask(properties)).values == {"beta": expected}, properties
