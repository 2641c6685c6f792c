"""Property conditions `{key, operator, value, type}`, as flags, cohorts and batch exports have
them, against properties.

The rules are the service's (rust/feature-flags/src/properties/property_matching.rs and
relative_date.rs in PostHog/posthog, commits 02469d424c85 and 3c537647633e); the official SDKs
follow them where they decide by themselves, with a few exceptions
(docs/reference/sdks.md, "Deciding flags from definitions"):

- A property that is missing matches only the negative operators. One that is null is there, and
  its text is `null`.
- `exact` and `is_not` compare texts, in lower case; a list means any of its members. A value that
  is `true` or `false` (or `"True"`, or a list of those) compares truth instead: true is only what
  says so. An empty list stands for true.
- `icontains`, `starts_with`, `ends_with` ignore the case of ASCII letters alone, and see a list as
  its JSON text; `icontains_multi` means any of.
- Regexes have Rust's syntax and run in linear time. An invalid one matches nothing, not even as
  `not_regex`.
- `gt`, `gte`, `lt`, `lte`, `between` compare decimal numbers, also in texts, which can be `inf`
  too; anything else doesn't match.
- Dates without a zone are in the project's, which is the zone of `now`. `-30d` (h, d, w, m, y;
  less than 10,000) is that long ago by the project's clocks, with or without the sign. Other forms
  are those of the crate `dateparser`, as for events. A property that is a number is a time in
  seconds since 1970; a condition's value is always a text.
- Versions are those of `versions`.
- A condition that needs a value and has none (or null) doesn't match, nor does one whose value
  makes no sense for its operator. An operator that no one knows raises `CannotDecide`.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Final, TypeAlias

from pydantic_core import SchemaError, SchemaValidator, core_schema

from forwarder.sandbox.conditions.values import (
    CannotDecide,
    ascii_lower,
    cut,
    date_of,
    is_true,
    json_text,
    number_of,
    says_truth,
    shown,
    time_of,
)
from forwarder.sandbox.conditions.versions import (
    Version,
    Within,
    caret_range,
    tilde_range,
    version_of,
    wildcard_range,
)

_Test: TypeAlias = Callable[[object, datetime], bool]
"""Whether a property's value matches, at a time."""

MAX_PATTERN: Final = 10_000
"""The longest regex, in characters."""
_BACKTRACKING_STEPS: Final = 2_000_000
"""About 50 ms: the most that a regex with look-around or back-references may cost, which
linear-time matching doesn't know.
"""
_MISSING: Final = object()
_CLASS_OR_ESCAPE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEATED_GROUP: Final = re.compile(r"\)(?:[*+]|\{[0-9,])|\(\?(?:#|[a-z]*x)")
"""As in `(a+)+`; or a comment, which can stand between group and repeat."""
_OPTIONAL: Final = re.compile(r"(?<![(*+?}])\?")
"""As in `a?`; not that of `(?=`, and not that of a lazy repeat."""
_REPEATED_REPEAT: Final = re.compile(r"[*+?}](?:\*|\?\?)")
"""As in `a**`: invalid for the SDKs."""


@dataclass(frozen=True, slots=True)
class PropertyCondition:
    """A condition, prepared: regexes, lists, dates and versions are parsed."""

    key: str
    operator: str
    value: object
    test: _Test
    if_missing: bool
    """Whether a missing property matches."""

    def matches(self, properties: Mapping[str, object], now: datetime) -> bool:
        """Whether the properties match. Raise `CannotDecide`."""
        actual = properties.get(self.key, _MISSING)
        return self.if_missing if actual is _MISSING else self.test(actual, now)

    def explain(self, properties: Mapping[str, object], now: datetime) -> str:
        """What the condition requires, whether the properties match it, and what they have."""
        actual = properties.get(self.key, _MISSING)
        requirement = (
            f"{self.key} {self.operator}"
            if self.operator in _UNARY
            else f"{self.key} {self.operator} {shown(self.value)}"
        )
        answer = "yes" if self.matches(properties, now) else "no"
        return (
            f"{requirement}: {answer}, it is {'not set' if actual is _MISSING else shown(actual)}"
        )


def matches(
    condition: Mapping[str, object], properties: Mapping[str, object], now: datetime
) -> bool:
    """Whether the properties match a condition. `now`: with a zone, for relative
    dates. Raise `CannotDecide`.
    """
    return prepare_condition(condition).matches(properties, now)


def prepare_condition(condition: Mapping[str, object]) -> PropertyCondition:
    """Prepare a condition for many evaluations. Raise `CannotDecide` if it has no key, or an
    operator that properties don't have.
    """
    key = condition.get("key")
    operator = condition.get("operator") or "exact"
    if not isinstance(key, str):
        raise CannotDecide("a condition has no key")
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise CannotDecide(
            f"{cut(key)} has the operator {shown(operator)}, which is unknown for a property"
        )
    value = condition.get("value")
    if value is None and operator not in _UNARY:
        return PropertyCondition(key, operator, None, _never, if_missing=False)
    prepare, if_missing = _OPERATORS[operator]
    return PropertyCondition(key, operator, value, prepare(value), if_missing)


def _prepare_set(_value: object, *, expected: bool) -> _Test:
    return lambda _actual, _now: expected


def _prepare_equal(value: object) -> _Test:
    if says_truth(value):
        truth = is_true(value)
        return lambda actual, _now: is_true(actual) == truth
    if isinstance(value, list):
        texts = frozenset([json_text(item).lower() for item in value])
        return lambda actual, _now: json_text(actual).lower() in texts
    text = json_text(value).lower()
    return lambda actual, _now: json_text(actual).lower() == text


def _prepare_text(value: object, *, holds: Callable[[str, str], bool]) -> _Test:
    text = ascii_lower(value)
    return lambda actual, _now: holds(ascii_lower(actual), text)


def _prepare_contains_any(value: object) -> _Test:
    texts = [ascii_lower(item) for item in (value if isinstance(value, list) else [value])]

    def test(actual: object, _now: datetime) -> bool:
        lowered = ascii_lower(actual)
        return any(text in lowered for text in texts)

    return test


def _prepare_regex(value: object, *, expected: bool) -> _Test:
    search = _search(json_text(value))
    return _never if search is None else lambda actual, _now: search(json_text(actual)) is expected


@lru_cache(maxsize=128)
def _search(pattern: str) -> Callable[[str], bool] | None:
    """Search for a regex; None if it is invalid. Some compile for a quarter of a second, and
    definitions are prepared at each change.
    """
    skeleton = _CLASS_OR_ESCAPE.sub("x", pattern)
    if len(pattern) > MAX_PATTERN or _REPEATED_REPEAT.search(skeleton):
        return None
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        unknown = any(feature in str(error) for feature in ("look-around", "backreferences"))
    return _backtracking_search(pattern, skeleton) if unknown else None


def _backtracking_search(pattern: str, skeleton: str) -> Callable[[str], bool] | None:
    """Search for a regex with look-around or back-references; None if it is invalid. The search
    raises `CannotDecide` if it could be slow.

    The number of its steps is at most the length of the text to the power of the repeats, times
    the ways to choose among alternatives, and unbounded if a repeat is within another.
    """
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    repeats = len(re.findall(r"[*+]|\{[0-9]*,[0-9]*\}", skeleton))
    nested = _REPEATED_GROUP.search(skeleton) is not None
    choices = _choices(skeleton)

    def search(text: str) -> bool:
        if nested or choices * len(text) ** (repeats + 1) > _BACKTRACKING_STEPS:
            raise CannotDecide(
                f"the regex {shown(pattern)} has look-around or back-references, and could take "
                "too long"
            )
        return compiled.search(text) is not None

    return search


def _choices(skeleton: str) -> int:
    """The ways to choose in a regex, at most: the product of the alternatives of its groups, and 2
    for each `?`.
    """
    ways = 1 << len(_OPTIONAL.findall(skeleton))
    open_groups = [1]
    for char in skeleton:
        if char == "|":
            open_groups[-1] += 1
        elif char == "(":
            open_groups.append(1)
        elif char == ")" and len(open_groups) > 1:
            ways *= open_groups.pop()
    return ways * math.prod(open_groups)


def is_regex(pattern: str) -> bool:
    """Whether a regex is valid."""
    return _search(pattern) is not None


def _never(_actual: object, _now: datetime) -> bool:
    return False


def _prepare_comparison(value: object, *, holds: Callable[[float, float], bool]) -> _Test:
    bound = number_of(value)
    if bound is None:
        return _never

    def test(actual: object, _now: datetime) -> bool:
        number = number_of(actual)
        return number is not None and holds(number, bound)

    return test


def _prepare_between(value: object, *, expected: bool) -> _Test:
    """Between two numbers, both included."""
    low, high = (
        (number_of(bound) for bound in value)
        if isinstance(value, list) and len(value) == 2
        else (None, None)
    )
    if low is None or high is None or not low <= high:
        return _never

    def test(actual: object, _now: datetime) -> bool:
        number = number_of(actual)
        if number is None or math.isnan(number):
            return False
        return (low <= number <= high) is expected

    return test


def _prepare_date(value: object, *, holds: Callable[[datetime, datetime], bool]) -> _Test:
    if not isinstance(value, str):
        return _never

    def test(actual: object, now: datetime) -> bool:
        bound = time_of(value, now)
        when = date_of(actual, now) if bound else None
        return bound is not None and when is not None and holds(when, bound)

    return test


def _prepare_version(value: object, *, holds: Callable[[Version, Version], bool]) -> _Test:
    bound = version_of(value)
    return _never if bound is None else _version_test(partial(_swapped, holds, bound))


def _swapped(holds: Callable[[Version, Version], bool], bound: Version, actual: Version) -> bool:
    return holds(actual, bound)


def _prepare_version_range(value: object, *, bounds: Callable[[object], Within | None]) -> _Test:
    within = bounds(value)
    return _never if within is None else _version_test(within)


def _version_test(holds: Callable[[Version], bool]) -> _Test:
    def test(actual: object, _now: datetime) -> bool:
        version = version_of(actual)
        return version is not None and holds(version)

    return test


def _not(prepare: Callable[[object], _Test]) -> Callable[[object], _Test]:
    def prepare_opposite(value: object) -> _Test:
        test = prepare(value)
        return lambda actual, now: not test(actual, now)

    return prepare_opposite


_contains: Final = partial(_prepare_text, holds=lambda actual, text: text in actual)
_starts: Final = partial(_prepare_text, holds=str.startswith)
_ends: Final = partial(_prepare_text, holds=str.endswith)
_at_least: Final = partial(_prepare_comparison, holds=float.__ge__)
_at_most: Final = partial(_prepare_comparison, holds=float.__le__)

_OPERATORS: Final[Mapping[str, tuple[Callable[[object], _Test], bool]]] = {
    "exact": (_prepare_equal, False),
    "is_not": (_not(_prepare_equal), True),
    "is_set": (partial(_prepare_set, expected=True), False),
    "is_not_set": (partial(_prepare_set, expected=False), True),
    "icontains": (_contains, False),
    "not_icontains": (_not(_contains), True),
    "icontains_multi": (_prepare_contains_any, False),
    "not_icontains_multi": (_not(_prepare_contains_any), True),
    "starts_with": (_starts, False),
    "not_starts_with": (_not(_starts), True),
    "ends_with": (_ends, False),
    "not_ends_with": (_not(_ends), True),
    "regex": (partial(_prepare_regex, expected=True), False),
    "not_regex": (partial(_prepare_regex, expected=False), True),
    "gt": (partial(_prepare_comparison, holds=float.__gt__), False),
    "gte": (_at_least, False),
    "min": (_at_least, False),
    "lt": (partial(_prepare_comparison, holds=float.__lt__), False),
    "lte": (_at_most, False),
    "max": (_at_most, False),
    "between": (partial(_prepare_between, expected=True), False),
    "not_between": (partial(_prepare_between, expected=False), True),
    "is_date_before": (partial(_prepare_date, holds=datetime.__lt__), False),
    "is_date_after": (partial(_prepare_date, holds=datetime.__gt__), False),
    "is_date_exact": (partial(_prepare_date, holds=datetime.__eq__), False),
    "semver_eq": (partial(_prepare_version, holds=Version.__eq__), False),
    "semver_neq": (partial(_prepare_version, holds=Version.__ne__), False),
    "semver_gt": (partial(_prepare_version, holds=Version.__gt__), False),
    "semver_gte": (partial(_prepare_version, holds=Version.__ge__), False),
    "semver_lt": (partial(_prepare_version, holds=Version.__lt__), False),
    "semver_lte": (partial(_prepare_version, holds=Version.__le__), False),
    "semver_tilde": (partial(_prepare_version_range, bounds=tilde_range), False),
    "semver_caret": (partial(_prepare_version_range, bounds=caret_range), False),
    "semver_wildcard": (partial(_prepare_version_range, bounds=wildcard_range), False),
}
"""Per operator: what prepares a test of a value, and whether a missing property matches."""
OPERATORS: Final = frozenset(_OPERATORS)
_UNARY: Final = frozenset({"is_set", "is_not_set"})
