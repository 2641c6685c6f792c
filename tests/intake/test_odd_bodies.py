"""Odd bodies and their answers, in one table: the same on every Python, and wherever it is called
from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import pytest

from forwarder.core.errors import ForwarderError
from forwarder.core.event import Lane
from forwarder.core.nesting import MAX_NESTING
from tests.support.cases import cases
from tests.support.intakes import KEY, NOW, IntakeRig

ACCEPTED: Final = "accepted"
INVALID: Final = "InvalidRequest"
FRAMES: Final = 60
"""Calls deeper than a test's own stack, which is deeper than the daemon's."""


def single(properties: bytes) -> bytes:
    """A body that is one event with these properties."""
    return (
        b'{"api_key":"%b","event":"e","distinct_id":"d",'
        b'"uuid":"01900000-0000-7000-8000-000000000001",'
        b'"timestamp":"2026-01-01T00:00:00Z","properties":%b}'
    ) % (KEY.encode(), properties)


def batch(*properties: bytes) -> bytes:
    """A batch of events with these properties, in their usual form."""
    events = [
        b'{"event":"e","distinct_id":"d","uuid":"01900000-0000-7000-8000-%012d",'
        b'"timestamp":"2026-01-01T00:00:00Z","properties":%b}' % (number, raw_properties)
        for number, raw_properties in enumerate(properties)
    ]
    return b'{"api_key":"%b","batch":[%b]}' % (KEY.encode(), b",".join(events))


def loose_batch(*properties: bytes) -> bytes:
    """The same with one event that has to be stamped by itself."""
    return batch(*properties).replace(b'"distinct_id":"d"', b'"distinct_id":5', 1)


def array(*properties: bytes) -> bytes:
    """An array of events, each with its project key."""
    return b"[%b]" % b",".join(map(single, properties))


def deep(levels: int, kind: bytes = b"[") -> bytes:
    """A value with so many levels."""
    return kind * levels + b"1" + {b"[": b"]", b'{"a":': b"}"}[kind] * levels


FLAT: Final = b'{"list":[{"a":1},"]"],"text":"\\"[[[{{{\\\\"}'
MANY: Final = [FLAT] * 2000
SHAPES: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "single": (2, single),
    "batch": (4, batch),
    "batch of 30": (4, lambda value: batch(*[FLAT] * 29, value)),
    "batch of 2001": (4, lambda value: batch(*MANY[:1000], value, *MANY[:1000])),
    "loose batch": (4, lambda value: loose_batch(*[FLAT] * 29, value)),
    "array": (3, lambda value: array(*[FLAT] * 29, value)),
}
"""How many levels a body has around a value in an event's properties, and the body."""


def answer(body: bytes, frames: int = 0) -> str:
    """What becomes of a body: accepted, the name of the error, or the reason of its dead letter."""
    if frames:
        return answer(body, frames - 1)
    rig = IntakeRig()
    try:
        rig.take(body)
    except ForwarderError as error:
        return type(error).__name__
    reasons = rig.figures(Lane(KEY))[2]
    return ", ".join(map(str, reasons)) or ACCEPTED


@cases("frames", [0, FRAMES])
@cases("shape", SHAPES)
@cases("kind", [b"[", b'{"a":'])
@cases(
    ("beyond", "expected"),
    [(-1, ACCEPTED), (0, ACCEPTED), (1, INVALID), (700, INVALID), (100_000, INVALID)],
)
def test_nesting_has_one_limit(
    beyond: int, expected: str, kind: bytes, shape: str, frames: int
) -> None:
    """Up to `MAX_NESTING` levels are accepted, whatever the body's shape; more are not, however
    many an interpreter could read.
    """
    around, body = SHAPES[shape]
    value = deep(MAX_NESTING - around + beyond, kind)
    assert answer(body(b'{"a":%b}' % value), frames) == expected


@cases("text", [b"[" * 900, b'{"a":' * 900, b"[" * 5000, b'{"batch":[' * 900])
def test_truncated_deep_nesting_is_reported_as_too_deep(text: bytes) -> None:
    """A text that is cut off is reported as too deep on every Python."""
    with pytest.raises(ForwarderError, match=f"at most {MAX_NESTING} levels"):
        IntakeRig().take(text)


@cases(
    ("body", "expected"),
    [
        (b"", INVALID),
        (b" \n\t", INVALID),
        (b"{}", "NoKey"),
        (b"\xff", INVALID),
        (single(b'{"a":"\xff"}'), INVALID),
        (single(b'{"a":"\xc0\x80"}'), INVALID),
        (single(b'{"a":1e999}'), ACCEPTED),
        (single(b'{"a":-1e-999}'), ACCEPTED),
        (single(b'{"a":%b}' % (b"9" * 5000)), ACCEPTED),
        (single(b'{"a":%b.5}' % (b"9" * 5000)), ACCEPTED),
        (single(b'{"a":NaN}'), ACCEPTED),
        (single(b'{"a":-Infinity}'), ACCEPTED),
        (single(b'{"a":01}'), INVALID),
        (single(b'{"a":1,"a":2}'), ACCEPTED),
        (single(b'{"a":"\\ud800"}'), "lone_surrogate"),
        (single(b'{"a":"\\ud83d\\ude00"}'), ACCEPTED),
        (single(b'{"a":"\\u0000"}'), ACCEPTED),
        (single(b'{"a":"\\x"}'), INVALID),
        (single(b"[]"), ACCEPTED),
        *[
            (single(b"{}").replace(b'"2026-01-01T00:00:00Z"', time), ACCEPTED)
            for time in (
                b'"2026-01-01T24:00:00Z"',
                b'"2026-01-01T00:00:60Z"',
                b'"2026-W01-1"',
                b'"20260101T000000,123456789+0130"',
                b'"2026-01-01 00:00"',
                b'"10000-01-01T00:00:00Z"',
                b'"0000-00-00"',
                b'"Thu, 01 Jan 2026 00:00:00 GMT"',
                b"1767225600",
                b"9" * 5000,
                b"[]",
                b"null",
            )
        ],
    ],
)
def test_odd_values_have_one_answer(body: bytes, expected: str) -> None:
    """Numbers, texts, keys and times that decoders of several versions could read differently."""
    assert answer(body) == expected


@cases(
    ("time", "expected"),
    [
        ("2026-01-01T24:00:00Z", NOW),
        ("2026-01-01T00:00:60Z", "2025-12-31T23:01:00.000Z"),
        ("0000-00-00", NOW),
        ("2026-W01-1", "2025-12-28T23:00:00.000Z"),
        ("20260102T030405,123456789+0130", "2026-01-02T02:04:05.123456Z"),
        ("2026-01-02 03:04", "2026-01-02T02:04:00.000Z"),
        ("2026-01-01T00:00:00+00:00:01.5", "2025-12-31T23:00:00.000Z"),
        ("Thu, 01 Jan 2026 00:00:00 GMT", "2025-12-31T23:00:00.000Z"),
    ],
)
def test_odd_times_are_read_the_same(time: str, expected: str) -> None:
    """What is read of a time of a sender whose clock is an hour ahead, as the service reads it,
    which ignores some offsets; what is none becomes the time of receipt.
    """
    rig = IntakeRig()
    event = json.loads(single(b"{}")) | {"timestamp": time}
    rig.take({"api_key": KEY, "sent_at": "2026-01-01T01:00:00Z", "batch": [event]})
    assert rig.one()["timestamp"] == expected
