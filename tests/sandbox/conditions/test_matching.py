"""Each operator answers as the service does, and the SDKs where they follow it, whatever the types
of the condition's value and the property.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from posthog.feature_flags import PROPERTY_OPERATORS, InconclusiveMatchError, match_property

from forwarder.sandbox.conditions.matching import OPERATORS, matches, prepare_condition
from forwarder.sandbox.conditions.values import CannotDecide
from tests.support.cases import cases

NOW: Final = datetime(2026, 3, 31, 12, tzinfo=UTC)
MISSING: Final = object()
MISSING_ALLOWED: Final = {
    "is_not",
    "is_not_set",
    "not_icontains",
    "not_icontains_multi",
    "not_starts_with",
    "not_ends_with",
    "not_regex",
    "not_between",
}

TABLE: Final[list[tuple[str, Any, Any, bool]]] = [
    # operator, the condition's value, the property, expected
    ("exact", "Pro", "pRO", True),
    ("exact", ["free", "Pro"], "PRO", True),
    ("exact", ["free", "pro"], "team", False),
    ("exact", "1", 1, True),
    ("exact", 1, "1.0", False),
    ("exact", 1.0, "1.0", True),
    ("exact", "true", True, True),
    ("exact", True, "True", True),
    ("exact", False, "no", True),
    ("exact", ["true"], "TRUE", True),
    ("exact", ["true", "pro"], True, True),
    ("exact", [], True, True),
    ("exact", [], "us", False),
    ("exact", "null", None, True),
    ("exact", None, None, False),
    ("is_not", None, "pro", False),
    ("not_icontains", None, "pro", False),
    ("exact", "1e+30", 10**30, True),
    ("exact", '{"a":1,"b":[null]}', {"b": [None], "a": 1}, True),
    ("exact", "1e+16", 1e16, True),
    ("exact", "0.00001", 1e-5, True),
    ("exact", "GRÖSSE", "größe", False),
    ("exact", "GRÖßE", "größe", True),
    ("is_not", "pro", "PRO", False),
    ("is_not", ["a", "b"], "c", True),
    ("is_not", "pro", None, True),
    ("is_set", None, None, True),
    ("is_set", "is_set", "", True),
    ("is_not_set", "is_not_set", "", False),
    ("icontains", "@EXAMPLE.com", "joe@example.COM", True),
    ("icontains", 3, 1234, True),
    ("icontains", "ul", None, True),
    ("icontains", "É", "é", False),
    ("icontains", ["a"], "a", False),
    ("icontains", ["a"], ["a"], True),
    ("not_icontains", "x", "abc", True),
    ("not_icontains", "B", "abc", False),
    ("icontains_multi", ["x", "B"], "abc", True),
    ("icontains_multi", "B", "abc", True),
    ("icontains_multi", [], "abc", False),
    ("not_icontains_multi", ["x", "B"], "abc", False),
    ("not_icontains_multi", ["x", "y"], "abc", True),
    ("starts_with", "AB", "abc", True),
    ("not_starts_with", "AB", "abc", False),
    ("ends_with", "BC", "abc", True),
    ("not_ends_with", "BC", "abd", True),
    ("regex", r"^\d{3}$", 123, True),
    ("regex", "^a$", "a\n", False),
    ("regex", r"^\p{Greek}+$", "αβγ", True),
    ("regex", "", "x", True),
    ("regex", "(", "(", False),
    ("regex", "a**", "a", False),
    ("regex", "[*+]*x", "**x", True),
    ("regex", r"^(?!.*@test\.com$)", "joe@example.com", True),
    ("regex", r"^(?!.*@test\.com$)", "joe@test.com", False),
    ("regex", r"(.)\1", "hello", True),
    ("regex", r"(?=(", "(", False),
    ("regex", r"^(?!(?:test|demo|internal)\b)[a-z]+(?:\.com|\.org)?$", "shop.com", True),
    ("not_regex", "^a", "b", True),
    ("not_regex", "^a", "a", False),
    ("not_regex", "(", "a", False),
    ("gt", 5, "5.5", True),
    ("gt", "5", 5, False),
    ("gte", 5, 5.0, True),
    ("gt", "five", 6, False),
    ("gt", 5, "six", False),
    ("gt", 0, True, False),
    ("gt", 0, None, False),
    ("gt", 0, "inf", True),
    ("gt", 0, "nan", False),
    ("gt", 0, float("nan"), False),
    ("gt", 0, float("inf"), False),
    ("gt", 0, 10**400, False),
    ("gt", 0, "1e400", True),
    ("gt", "-Infinity", 0, True),
    ("lt", 0, "-1e3", True),
    ("lte", 7, 7, True),
    ("lt", 7, [1], False),
    ("min", 7, 7, True),
    ("max", 7, 8, False),
    ("between", [1, "5"], 5, True),
    ("between", [1, 5], "1", True),
    ("between", [1, 5], 6, False),
    ("between", [5, 1], 3, False),
    ("between", [1], 1, False),
    ("between", 1, 1, False),
    ("not_between", [1, 5], 6, True),
    ("not_between", [1, 5], 5, False),
    ("not_between", [1, 5], "NaN", False),
    ("not_between", [1, 5], "inf", True),
    ("not_between", [1, "nan"], 9, False),
    ("not_between", [5, 1], 9, False),
    ("is_date_before", "2026-01-02", "2026-01-01", True),
    ("is_date_before", "2026-01-02", "2026-01-02T00:00:00+01:00", True),
    ("is_date_after", "2026-01-01T00:00:00-02:00", "2026-01-01 01:59:59", False),
    ("is_date_after", "2026-01-01 00:00:00 +02:00", "2025-12-31T22:00:01Z", True),
    ("is_date_after", "-30d", "2026-03-02", True),
    ("is_date_after", "-30d", "2026-03-01T11:59:59", False),
    ("is_date_after", "24h", "2026-03-30T12:00:01Z", True),
    ("is_date_before", "-1m", "2026-02-28T11:59:59Z", True),
    ("is_date_before", "-1m", "2026-02-28T12:00:01Z", False),
    ("is_date_before", "-2m", "2026-01-28T12:00:01Z", False),
    ("is_date_after", "-2w", "2026-03-17T12:00:01Z", True),
    ("is_date_before", "-1y", "2025-03-31T11:00:00Z", True),
    ("is_date_before", "-10000d", "1900-01-01", False),
    ("is_date_before", "-9999y", "1900-01-01", False),
    ("is_date_before", "-5x", "1900-01-01", False),
    ("is_date_before", "2024", "2023-03-30", False),
    ("is_date_before", 1_700_000_000, "2023-01-01", False),
    ("is_date_after", "1970-01-01", "2024", True),
    ("is_date_before", "2025-01-01", 1_700_000_000, True),
    ("is_date_after", "2025-01-01", "1700000000.5", False),
    ("is_date_before", "2025-01-01", "Fri, 13 Dec 2024 10:00:00 GMT", True),
    ("is_date_before", "2025-01-01", "soon", False),
    ("is_date_before", "soon", "2024-01-01", False),
    ("is_date_before", ["2025-01-01"], "2024-01-01", False),
    ("is_date_before", "2025-01-01", None, False),
    ("is_date_before", "2025-01-01", 1e300, False),
    ("is_date_after", "2025-01-01", 1_700_000_000_000, True),
    ("is_date_after", "2025-01-01", 1_700_000_000_000_000, False),
    ("is_date_before", "2025-01-01", "nan", True),
    ("is_date_before", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", True),
    ("is_date_exact", "2025-01-01", "2025-01-01T01:00:00+01:00", True),
    ("is_date_exact", "2025-01-01", "2025-01-01T01:00:00", False),
    ("semver_eq", "v1.2", "1.2.0", True),
    ("semver_eq", "1.2.3", "1.2.3-beta.1", False),
    ("semver_gte", "1.2.0", "1.2.0-beta", False),
    ("semver_gte", "1.2.0", "v1.2.0.9", False),
    ("semver_eq", "3.8", "3.08", True),
    ("semver_neq", "1.2.3", "1.2.4", True),
    ("semver_neq", "1.2.3", "abc", False),
    ("semver_neq", "1.2.3", None, False),
    ("semver_gt", "1.9.0", "1.10.0", True),
    ("semver_gte", "2", 2, True),
    ("semver_lt", "1.2.3", "1.2.10", False),
    ("semver_lte", "1.2.3", "1.2.3", True),
    ("semver_gt", "latest", "1.0.0", False),
    ("semver_gt", "1.0.0", "9" * 5000, False),
    ("semver_tilde", "1.2.3", "1.2.99", True),
    ("semver_tilde", "1.2.3", "1.3.0", False),
    ("semver_caret", "1.2.3", "1.99.0", True),
    ("semver_caret", "0.2.3", "0.3.0", False),
    ("semver_caret", "0.0.3", "0.0.4", False),
    ("semver_wildcard", "1.*", "1.99.1", True),
    ("semver_wildcard", "1.2.*", "1.3.0", False),
    ("semver_wildcard", "*", "77.1.2", True),
    ("semver_wildcard", "x", "1.0.0", True),
    ("semver_wildcard", "1.*.3", "1.0.3", False),
]

AWKWARD: Final[list[Any]] = [
    None,
    True,
    False,
    "true",
    "False",
    [],
    [True],
    ["true", "a"],
    "a",
    "aB",
    "É",
    "ß",
    "SS",
    "İ",
    "",
    " ",
    "null",
    "[]",
    "1",
    "1.0",
    1,
    1.0,
    -0.0,
    2.5,
    "2.5",
    "1e3",
    " 3 ",
    "٣",
    "inf",
    "nan",
    1e16,
    1e21,
    1e-5,
    1e-7,
    10**30,
    {"a": 1},
    {"b": [1, None], "a": "é"},
    ["1", 1],
    "1.2.3",
    "v1.2",
    "1.2.4-beta",
    "1.2.3.4",
    "1..2",
    "1.*",
    "1.2.*",
    "*",
    "1.*.3",
    "0.0.3",
    "-1.0",
    ".1",
    "2024-01-01",
    "2024-01-01T00:00:00Z",
    "2024-01-01 00:00:00 +02:00",
    "2024-01-01 UTC",
    "20240101",
    "2024-W05-1",
    "2024-02-30",
    "-30d",
    "6m",
    "-1y",
    "-9999y",
    "1700000000",
    "9999-12-31T23:59:59-14:00",
    "^a",
    "a$",
    "[",
    "(",
    "a**",
    "*a",
    r"\d+",
    "a{2}",
    r"\w+",
    "a?*",
    "a\n",
    "(a+)+$",
]


@cases(("operator", "value", "actual", "expected"), TABLE)
def test_operator(operator: str, value: Any, actual: Any, expected: bool) -> None:
    """Each operator, with odd types on either side."""
    assert (
        matches(
            {"key": "key", "operator": operator, "value": value, "type": "person"},
            {"key": actual},
            NOW,
        )
        is expected
    )


def test_every_operator_stands_in_the_table() -> None:
    """The table leaves none out, and the sandbox knows all that the Python SDK knows."""
    assert {operator for operator, *_ in TABLE} == OPERATORS >= set(PROPERTY_OPERATORS)


@cases("operator", sorted(OPERATORS))
def test_a_missing_property_matches_only_negative_operators(operator: str) -> None:
    """As in the service; an SDK would ask it."""
    value = [1, 2] if "between" in operator else "1"
    assert matches({"key": "key", "operator": operator, "value": value}, {"other": 1}, NOW) is (
        operator in MISSING_ALLOWED
    )


OTHERWISE: Final[list[tuple[str, Any, Any]]] = [
    ("semver_eq", "1.2.0", "1.2.0-beta"),
    ("semver_gte", "1.2.0", "v1.2.0.9"),
    ("semver_eq", "1.0.2", "1..2"),
    ("semver_caret", "1.0.0", "1.2.4-beta"),
    ("semver_wildcard", "1.0", "1.2.3"),
    ("is_date_after", "2024-01-01", "2024-W05-1"),
    ("exact", None, None),
    ("is_not", None, "pro"),
    ("gt", 1, "inf"),
    ("regex", "00", 10**30),
    ("is_date_before", "2024-01-01 00:00:00 +02:00", "20240101"),
]
"""What posthog 7.91 decides otherwise than the service."""
_PLAIN_VERSION: Final = re.compile(r"\s*v?[0-9]{1,9}(\.[0-9]{1,9}){0,2}\s*", re.ASCII)
_WILDCARD: Final = re.compile(r"([0-9]+\.){0,2}\*", re.ASCII)
_ODD_TIME: Final = re.compile(r"[0-9]{8}|.*(W| UTC).*", re.ASCII)


def reads_alike(operator: str, value: object, actual: object) -> bool:
    """Whether the SDK reads these values as the service does."""
    if operator in ("is_set", "is_not_set"):
        return True
    if value is None or 10**30 in (value, actual):
        return False
    if operator in ("gt", "gte", "lt", "lte"):
        return not {"inf", "nan"} & {str(value), str(actual)}
    if operator.startswith("semver_"):
        bound = _WILDCARD if operator == "semver_wildcard" else _PLAIN_VERSION
        return bool(bound.fullmatch(str(value)) and _PLAIN_VERSION.fullmatch(str(actual)))
    is_date = operator.startswith("is_date_")
    return not is_date or not any(_ODD_TIME.fullmatch(str(operand)) for operand in (value, actual))


@cases(("operator", "value", "actual"), OTHERWISE)
def test_what_the_python_sdk_decides_otherwise(operator: str, value: Any, actual: Any) -> None:
    """A new version of it that decides as the service does is no longer an exception."""
    condition = {"key": "key", "operator": operator, "value": value, "type": "person"}
    assert not reads_alike(operator, value, actual)
    assert match_property(condition, {"key": actual}) is not matches(
        condition, {"key": actual}, NOW
    )


@cases("operator", sorted(PROPERTY_OPERATORS))
def test_what_the_python_sdk_decides_is_decided_alike(operator: str) -> None:
    """Each awkward value against each: the answer is that of posthog's local evaluation, wherever
    it has one and reads both as the service does.
    """
    decided = 0
    different = []
    for value in AWKWARD:
        if "regex" in operator and not isinstance(value, str):
            continue  # the SDK takes Python's text of it for a pattern, the service its JSON
        condition = {"key": "key", "operator": operator, "value": value, "type": "person"}
        prepared = prepare_condition(condition)
        for actual in AWKWARD:
            try:
                expected = match_property(condition, {"key": actual})
            except InconclusiveMatchError:
                continue
            if not reads_alike(operator, value, actual):
                continue
            decided += 1
            if prepared.matches({"key": actual}, datetime.now(UTC)) is not expected:
                different.append((value, actual, expected))
    assert different == []
    assert decided >= (10 if operator == "semver_wildcard" else 50)


@cases(
    "condition",
    [
        {},
        {"key": 1},
        {"key": "a", "operator": "near"},
        {"key": "a", "operator": "in"},
        {"key": "a", "operator": 1},
    ],
)
def test_a_condition_that_no_one_can_decide(condition: dict[str, Any]) -> None:
    """An unknown operator, or one of cohorts, and a condition without a key are errors, not a
    silent false.
    """
    with pytest.raises(CannotDecide):
        matches(condition, {"a": 1}, NOW)


def test_without_an_operator_it_is_exact() -> None:
    """As in definitions of 2021."""
    assert matches({"key": "a", "value": "x"}, {"a": "X"}, NOW)


def test_a_hostile_regex_takes_no_time() -> None:
    """Patterns that explode when they backtrack are searched in linear time; those that only
    backtracking can search are given up.
    """
    text = "a" * 50_000 + "!"
    started = time.process_time()
    for pattern in (r"(a+)+$", r"^(a|a)*$", r"^(.*)*x$", r"^(([a-z])+.)+[A-Z]([a-z])+$"):
        assert not matches(
            {"key": "key", "operator": "regex", "value": pattern}, {"key": text}, NOW
        )
    for pattern in (r"(a+)+\1$", r"(?=a)(a|aa)+$", r"(?=x)a*a*a*a*a*b", "(?!" + "(a*)*" * 9 + ")b"):
        with pytest.raises(CannotDecide, match="too long"):
            matches({"key": "key", "operator": "regex", "value": pattern}, {"key": text}, NOW)
    for pattern in (
        "(?=y)|^" + "(a|.)" * 40 + "c",
        "^(?!x)" + "(a|aa)?" * 30 + "c",
        "(?x)(?!x)(a+) +c",
        "(?!x)(a+)(?#)+c",
        "(?!x)(a+){,30}c",
    ):
        with pytest.raises(CannotDecide, match="too long"):
            matches({"key": "key", "operator": "regex", "value": pattern}, {"key": "a" * 40}, NOW)
    for pattern in (
        "a" * 20_000,
        "(" * 5_000 + "a" + ")" * 5_000,
        "(?=a)" + "(" * 3_000 + ")" * 3_000,
        "((a{1000}){1000}){1000}",
    ):
        assert not matches({"key": "key", "operator": "regex", "value": pattern}, {"key": "b"}, NOW)
    assert time.process_time() - started < 2


def test_hostile_values() -> None:
    """Deep nesting is an error, huge lists and texts cost no more than their size."""
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    for operator in ("exact", "icontains", "regex"):
        with pytest.raises(CannotDecide, match="deeper"):
            matches({"key": "key", "operator": operator, "value": "x"}, {"key": deep}, NOW)
    with pytest.raises(CannotDecide, match="deeper"):
        prepare_condition({"key": "key", "operator": "exact", "value": deep})
    many = prepare_condition(
        {"key": "key", "operator": "exact", "value": [str(number) for number in range(100_000)]}
    )
    started = time.process_time()
    assert all(many.matches({"key": number}, NOW) for number in range(5_000))
    assert time.process_time() - started < 1


def test_an_explanation_says_what_was_required_and_what_is_there() -> None:
    """For people; long values are cut."""
    condition = prepare_condition(
        {"key": "email", "operator": "icontains", "value": "@example.com"}
    )
    assert (
        condition.explain({"email": "joe@x.org"}, NOW)
        == 'email icontains "@example.com": no, it is "joe@x.org"'
    )
    assert condition.explain({}, NOW) == 'email icontains "@example.com": no, it is not set'
    assert (
        prepare_condition({"key": "plan", "operator": "is_set", "value": "x"}).explain(
            {"plan": 1}, NOW
        )
        == "plan is_set: yes, it is 1"
    )
    assert len(condition.explain({"email": "x" * 10_000}, NOW)) < 200
