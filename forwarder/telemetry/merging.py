"""How figures of several processes become one: each field of a snapshot says it in its type,
`Annotated[int, SUM]`, and nowhere else does.

A rule sees the values of a field with whether their process runs. What was counted stays counted
when a worker is away, so that no figure goes back; `running(rule)` is for what only a process that
runs can say.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MergeRule:
    """Makes one value of several. Those that are None aren't known, and don't count."""

    merge: Callable[[Sequence[Any]], Any]
    running_only: bool = False
    running_first: bool = False


def running(rule: MergeRule) -> MergeRule:
    """The rule, for the values of processes that run."""
    return MergeRule(rule.merge, running_only=True)


def _known(merge: Callable[[Iterable[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    return lambda values: (
        merge([value for value in values if value is not None])
        if any(value is not None for value in values)
        else None
    )


def _sum_by_key(values: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
    total: Counter[Any] = Counter()
    for value in values:
        total.update(value)
    return dict(total)


def _common_path(values: Sequence[str]) -> str:
    paths = {value for value in values if value}
    return os.path.commonpath(paths) if paths else ""


FIRST: Final = MergeRule(lambda values: values[0], running_first=True)
"""The first one's, of those that run if any does."""
SUM: Final = MergeRule(sum)
SUM_BY_KEY: Final = MergeRule(_sum_by_key)
MINIMUM: Final = MergeRule(_known(min))
MAXIMUM: Final = MergeRule(_known(max))
ANY: Final = MergeRule(any)
UNION: Final = MergeRule(
    lambda values: tuple(dict.fromkeys([item for value in values for item in value]))
)
FIRST_TEXT: Final = MergeRule(lambda values: next(filter(None, values), ""))
COMMON_PATH: Final = MergeRule(_common_path)
"""The directory that all are under."""
OF_THE_WHOLE: Final = FIRST
"""Follows from more than one field, or from more than figures: the caller of the merge sets it."""


def worst(gravity: Sequence[Any], of: Callable[[Any], Any]) -> MergeRule:
    """The value that is the gravest, `gravity` naming the gravest first."""
    return MergeRule(
        lambda values: min(values, key=lambda value: gravity.index(of(value))), running_first=True
    )


def merge_figures(parts: Sequence[tuple[T, bool]]) -> T:
    """One dataclass of at least one, each with whether its process runs; field by field, as the
    field says.
    """
    kind = type(parts[0][0])
    alive = [part for part, runs in parts if runs]
    merged = {}
    for name, rule in _rules(kind).items():
        counted = (
            alive
            if rule.running_only or (rule.running_first and alive)
            else [part for part, _ in parts]
        )
        merged[name] = rule.merge([getattr(part, name) for part in counted])
    return kind(**merged)


_known_rules: Final[dict[type[Any], Mapping[str, MergeRule]]] = {}


def _rules(kind: type[Any]) -> Mapping[str, MergeRule]:
    if kind not in _known_rules:
        types = get_type_hints(kind, include_extras=True)
        rules: dict[str, MergeRule] = {}
        for field in fields(kind):
            marks = types[field.name].__metadata__
            rules[field.name] = next(mark for mark in marks if isinstance(mark, MergeRule))
        _known_rules[kind] = rules
    return _known_rules[kind]
