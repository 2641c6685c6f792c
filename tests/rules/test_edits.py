"""Edits of events: the same as plain recursion makes, in work that grows with the text alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.mapping import redaction
from forwarder.mapping.ordered_edits import OrderedEdits, TooLong
from forwarder.mapping.paths import Path
from forwarder.mapping.problems import Unmappable
from forwarder.mapping.redaction import Redaction
from forwarder.rules import edits as edits_module
from forwarder.rules.edits import EventEdit, Names, Redact, RenameFields, SetValues, with_value
from tests.rules.plain_edits import CannotSet, PlainRedaction, plain_rename, plain_set
from tests.support.cases import cases

KEY = b"a long secret"
NAMES = ("a", "b", "c")
SPELLED = ('"a"', r'"\u0061"', '"b"', '"c"', '"d"')
SCALARS = (
    "1",
    "-1.50E+2",
    "null",
    "true",
    '""',
    '" "',
    '"x"',
    r'"[{\"a\":1},]"',
    r'"\\"',
    '"é"',
)
SPACE = ("", "", "", " ", "\n", "\t ")


def spelled_value(random: Random, depth: int) -> str:
    """A value, spelled in any way, whose objects have few names, and those often."""
    kind = random.random() if depth else 0
    if kind < 0.3:
        return random.choice(SCALARS)
    return spelled_object(random, depth) if kind < 0.7 else spelled_array(random, depth)


def spelled_object(random: Random, depth: int = 4) -> str:
    """Such an object."""

    def member() -> str:
        value = spelled_value(random, depth - 1)
        before, after = random.choices(SPACE, k=2)
        return f"{random.choice(SPELLED)}{before}:{after}{value}"

    space = random.choice(SPACE)
    members = [member() for _ in range(random.randrange(5))]
    return "{" + space + f"{space},{space}".join(members) + space + "}"


def spelled_array(random: Random, depth: int) -> str:
    """Such an array."""
    space = random.choice(SPACE)
    values = [spelled_value(random, depth - 1) for _ in range(random.randrange(5))]
    return "[" + space + f"{space},{space}".join(values) + space + "]"


def objects(depth: int = 4) -> st.SearchStrategy[str]:
    """Objects, spelled in any way."""
    return st.integers(0, 2**32).map(lambda seed: spelled_object(Random(seed), depth))


def paths(*, plain: bool = False) -> st.SearchStrategy[Any]:
    """Paths of such objects; `plain`: of names alone."""
    step = st.sampled_from(NAMES)
    others = st.sampled_from([None, 0, 1])
    rest = st.lists(step if plain else step | others, max_size=3)
    return st.builds(lambda first, more: (first, *more), step, rest)


@given(objects(), st.lists(paths(), max_size=3), st.lists(paths(), max_size=3))
def test_a_redaction_is_that_of_plain_recursion(
    text: str, drop: list[Path], hashed: list[Path]
) -> None:
    """Byte by byte."""
    record = text.encode()
    expected = PlainRedaction(drop, hashed).apply(record, KEY)
    assert Redaction(drop, hashed).apply(record, KEY) == expected


@given(objects(), paths(plain=True), objects(1) | st.sampled_from(SCALARS))
def test_a_value_is_set_as_plain_recursion_sets_it(text: str, path: Names, value: str) -> None:
    """Byte by byte, or both fail."""
    try:
        expected = plain_set(text.encode(), path, value.encode())
    except CannotSet:
        with pytest.raises(Unmappable):
            with_value(text.encode(), path, value.encode(), sys.maxsize)
    else:
        assert with_value(text.encode(), path, value.encode(), sys.maxsize) == expected


@given(objects(), paths(plain=True), paths(plain=True))
def test_a_field_is_moved_as_plain_recursion_moves_it(text: str, old: Names, new: Names) -> None:
    """Byte by byte, or both fail."""
    if old == new[: len(old)] or new == old[: len(new)]:
        return  # rejected in the configuration
    rename = RenameFields([(old, new)])
    try:
        expected = plain_rename(text.encode(), old, new)
    except CannotSet:
        with pytest.raises(Unmappable):
            rename.apply(text.encode(), sys.maxsize)
    else:
        assert rename.apply(text.encode(), sys.maxsize) == expected


@given(objects(), st.integers(0, 400), paths(), paths(plain=True))
def test_no_edit_makes_more_than_the_limit(
    text: str, limit: int, hashed: Path, path: Names
) -> None:
    """The edited event if it fits, else `TooLong`."""
    event = text.encode()
    edits: list[EventEdit] = [
        Redact((), [hashed], KEY),
        SetValues([(path, b'"0123456789"')]),
        RenameFields([(path, (*path[:-1], "a longer name"))]),
    ]
    for edit in edits:
        try:
            whole = edit.apply(event, sys.maxsize)
        except Unmappable:
            continue
        if len(whole) <= limit:
            assert edit.apply(event, limit) == whole
        else:
            with pytest.raises(TooLong):
                edit.apply(event, limit)


DEEP = b'{"a":' + b"[" * 400 + b",".join([b"[]"] * 2000) + b"]" * 400 + b"}"
BALANCED = b'{"a":[' + b",".join([b"[" * 50 + b"0" + b"]" * 50] * 50) + b"]}"
FLAT = b'{"a":[' + b",".join([b"0"] * 4000) + b"]}"


@cases("event", [DEEP, BALANCED, FLAT])
def test_arrays_are_searched_once(event: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep they are: no byte is looked at twice."""
    searched = 0

    class Pattern:
        def finditer(self, text: bytes, start: int) -> Iterator[Any]:
            nonlocal searched
            for token in token_pattern.finditer(text, start):
                searched += len(token[0])
                yield token

    token_pattern = redaction._TOKEN
    monkeypatch.setattr(redaction, "_TOKEN", Pattern())
    assert Redaction([("a", "b")]).apply(event) == event
    assert len(event) // 3 < searched <= len(event)


OFTEN = b'{"a":{' + b",".join([b'"b":0'] * 5000) + b'},"long":"' + b"x" * 5000 + b'"}'


@cases(
    ("edit", "event"),
    [
        pytest.param(Redact((), [("a",)], KEY), FLAT, id="hash"),
        pytest.param(SetValues([(("a", "b"), b"1" * 5000)]), OFTEN, id="set"),
        pytest.param(RenameFields([(("a", "b"), ("a", "x" * 5000))]), OFTEN, id="rename"),
        pytest.param(RenameFields([(("long",), ("a", "b"))]), OFTEN, id="move"),
    ],
)
def test_an_edit_ends_where_the_event_would_be_too_long(
    edit: EventEdit, event: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few more bytes than the limit are made, not all of them."""
    made = 0

    class CountedEdits(OrderedEdits):
        def replace(self, start: int, end: int, new: bytes) -> None:
            nonlocal made
            made += len(new)
            super().replace(start, end, new)

    for module in (redaction, edits_module):
        monkeypatch.setattr(module, "OrderedEdits", CountedEdits)
    with pytest.raises(TooLong):
        edit.apply(event, 40_000)
    assert made < 50_000
