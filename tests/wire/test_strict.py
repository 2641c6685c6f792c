"""What strict parsers may reject: found in any event that has it, and in no other."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forwarder.wire.strict import (
    Inspection,
    Oddity,
    Suspicion,
    may_overflow,
    overflow_of,
    suspicion_of,
)
from tests.support.cases import cases


def event(value: bytes, more: bytes = b"") -> bytes:
    """An event with this value somewhere in its properties."""
    return b'{"event":"e","distinct_id":"d"%b,"properties":{"n":[1,%b,{"x":"y"}]}}' % (more, value)


ODD = [
    (b"1e999", Oddity.NUMBER_OVERFLOW),
    (b"-1E+309", Oddity.NUMBER_OVERFLOW),
    (b"1234567890e300", Oddity.NUMBER_OVERFLOW),
    (b"1" * 400 + b".5", Oddity.NUMBER_OVERFLOW),
    (b"-" + b"9" * 309, Oddity.LONG_INTEGER),
    (b"1" * 400, Oddity.LONG_INTEGER),
    (b"1" * 308, Oddity.WIDE_INTEGER),
    (b"18446744073709551616", Oddity.WIDE_INTEGER),
    (b"-9223372036854775809", Oddity.WIDE_INTEGER),
    (b"18446744073709551615", Oddity.UNSIGNED_INTEGER),
    (b"0." + b"1" * 1001, Oddity.LONG_NUMBER),
    (b"0." + b"1" * 4300, Oddity.NUMBER_OVERFLOW),
    (b"[" * 58 + b"]" * 58, Oddity.NESTED_60),
    (b'{"a":' * 126 + b"1" + b"}" * 126, Oddity.NESTED_120),
    (b"[" * 600 + b"]" * 600, Oddity.NESTED_500),
    (rb'"a\u0000b"', Oddity.NUL),
    (rb'"\\\u0000"', Oddity.NUL),
    (rb'"\u0007"', Oddity.CONTROL_CHARACTER),
    (rb'"\u009f"', Oddity.CONTROL_CHARACTER),
    (b'"\x7f"', Oddity.CONTROL_CHARACTER),
    ('"\x85"'.encode(), Oddity.CONTROL_CHARACTER),
    (rb'"\ud800"', Oddity.LONE_SURROGATE),
    (rb'"\udc00\ud800"', Oddity.LONE_SURROGATE),
    (b'"\xff"', Oddity.NOT_UTF8),
    (b'"\xed\xa0\x80"', Oddity.NOT_UTF8),
    (b"01", Oddity.NOT_JSON),
]


@cases(("value", "oddity"), ODD, ids=[str(value[:12]) for value, _ in ODD])
def test_what_strict_parsers_reject_is_found(value: bytes, oddity: Oddity) -> None:
    """Each oddity in some value is found."""
    suspicion = suspicion_of(event(value))
    assert suspicion is not None
    assert oddity in suspicion.oddities


@cases(
    "value",
    [
        b"1e308",
        b"9007199254740993",
        b"9223372036854775807",
        b"-9223372036854775808",
        b"0.1",
        b"1e-999",
        b"0e999",
        b"[" * 50 + b"]" * 50,
        b'"1e999"',
        b'"12345678901234567890123"',
        rb'"\\u0000"',
        rb'"\ud83d\ude00"',
        rb'"\t\n\""',
        b'"[[[[{{{{"',
        b"[],[],[]" * 1,
        b'"' + b"[" * 100 + b'"',
        '"ü€😀"'.encode(),
        rb'"\u00e9"',
    ],
)
def test_what_every_parser_accepts_is_not_suspected(value: bytes) -> None:
    """What only looks odd is no suspicion."""
    assert suspicion_of(event(value)) is None


def test_the_event_itself_is_looked_at() -> None:
    """A key that comes twice at the top, however it is spaced, and properties that are
    no object.
    """
    for more in (b',"event":"f"', b' , "event" : "f"', b',\n"event":"f"'):
        suspicion = suspicion_of(event(b"1", more))
        assert suspicion is not None
        assert suspicion.oddities == (Oddity.DUPLICATE_KEY,)
    assert suspicion_of(event(b'{"event":1,"event":2}')) is None
    assert suspicion_of(b'{"event":"e","properties":[]}') == Suspicion(
        (Oddity.ODD_PROPERTIES,), (0,)
    )


def test_degrees_tell_how_odd_events_are() -> None:
    """A parser that rejects 130 levels rejects 200, and says nothing of 125."""
    shallow, middle, deep = (
        suspicion_of(event(b"[" * depth + b"]" * depth)) for depth in (125, 130, 200)
    )
    assert shallow is not None
    assert middle is not None
    assert deep is not None
    assert shallow < middle < deep
    assert deep.is_as_odd_as(middle)
    assert not shallow.is_as_odd_as(middle)
    both = suspicion_of(event(b"1e999," + b"[" * 200 + b"]" * 200))
    assert both is not None
    assert both.oddities == (Oddity.NUMBER_OVERFLOW, Oddity.NESTED_120)
    assert not both.is_as_odd_as(deep)
    assert both.words == "a number too large for a double and more than 120 levels of nesting"


@cases(
    ("number", "overflows"),
    [
        (b"1e400", True),
        (b"1e+0400", True),
        (b"9" * 309, True),
        (b"9" * 250 + b"e99", True),
        (b"1E" + b"9" * 60, True),
        (b"9" * 308, False),
        (b"1e308", False),
        (b"1e-400", False),
        (b'"1e400"', False),
        (b'"0198a81e-1234-7e12-81e1-0e123e123456"', False),
        (b'"a 1e999, b"', False),
    ],
)
def test_numbers_that_overflow_a_double(number: bytes, overflows: bool) -> None:
    """They are found wherever they stand and however they end, and nothing else is."""
    for end in (b"", b" ", b"\n", b",2"):
        assert (overflow_of(event(number + end)) is not None) == overflows
        assert may_overflow(event(number + end)) >= overflows
    assert not may_overflow(event(b'"0198a81e-1234-7e12-81e1-0e123e123456"'))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


def holds(value: Any) -> bool:
    """Whether there is anything to suspect in a value."""
    if isinstance(value, str):
        return any(
            (ord(character) < 0x20 and character not in "\t\n\r\f\b")
            or 0x7F <= ord(character) < 0xA0
            for character in value
        )
    if isinstance(value, float):
        return math.isinf(value)
    if isinstance(value, int):
        return not -(2**63) <= value < 2**63
    if isinstance(value, list):
        return any(map(holds, value))
    return isinstance(value, dict) and any(map(holds, [*value, *value.values()]))


@given(
    VALUES, st.booleans(), st.sampled_from([None, 1]), st.sampled_from([(",", ":"), (", ", ": ")])
)
def test_nothing_else_is_suspected(
    value: Any, ascii_only: bool, indent: int | None, separators: tuple[str, str]
) -> None:
    """Whatever Python writes, in any style, is suspected if and only if it holds something odd."""
    text = json.dumps(
        {"event": "e", "properties": {"v": value}},
        ensure_ascii=ascii_only,
        indent=indent,
        separators=separators,
    )
    expected = holds(json.loads(text.replace("Infinity", "1e999")))
    assert (suspicion_of(text.replace("Infinity", "1e999").encode()) is not None) == expected


@cases(
    "value",
    [b"1e9," * 50_000 + b"1e999", b'"' + rb"\u0001" * 50_000 + b'"', b"[" * 50_000 + b"]" * 50_000],
)
def test_a_large_event_is_inspected_in_steps(value: bytes) -> None:
    """However much an event holds, others have their turn in between."""
    inspection = Inspection(event(value))
    steps = 0
    while inspection.step():
        steps += 1
    assert steps > 20
    assert inspection.result() is not None
