"""The fast ways of stamping leave the bytes that the loose one leaves, whatever they are given.

Events in the usual forms and their mutants go both ways. `MUTANTS=1000000 pytest
tests/intake/test_ways_agree.py` tries as many.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

from forwarder.stamping import stamp as stamping
from forwarder.stamping.stamp import StampedEvents, read_single, stamp
from forwarder.stamping.stamp_event import StampContext
from forwarder.wire.shapes import is_utf8
from tests.support.clock import MIDNIGHT
from tests.support.intakes import KEY, stamped_event

MUTANTS: Final = int(os.environ.get("MUTANTS", "3000"))
CONTEXTS: Final = [
    StampContext(MIDNIGHT + 0.25),
    StampContext(MIDNIGHT, ordered=True),
    StampContext(MIDNIGHT, ip=b'"8.8.8.8"', ordered=True),
    StampContext(MIDNIGHT, has_sent_at=True, skew=-7.5),
    StampContext(MIDNIGHT, has_sent_at=True, skew=3e11, ordered=True),
    StampContext(MIDNIGHT, has_sent_at=True, skew=90.001, ip=b'"2001:db8::1"'),
    StampContext(MIDNIGHT, timeless=True),
    StampContext(MIDNIGHT, max_event=420, ip=b'"8.8.8.8"'),
    StampContext(MIDNIGHT, reports_changes=True),
]
PIECES: Final = [
    *[
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b" ",
        b"\\",
        b"null",
        b"true",
        b"1e999",
        b"{}",
        b"NaN",
        "é".encode(),
        b"\\u0024",
    ],
    *[
        b'"uuid":null,',
        b'"timestamp":"",',
        b'"offset":5,',
        b'"offset":null,',
        b'"distinct_id":"",',
        b'"event":"",',
        b'"properties":{}',
    ],
    *[
        b'"$ip":"x",',
        b'"$geoip_disable":true,',
        b'"$ignore_sent_at":true,',
        b'"alias":"b",',
        b'"uuid":"x",',
        b'"batch":[],',
        b'"api_key":"p",',
    ],
]


def seeds() -> list[list[dict[str, Any]]]:
    """Arrays of events that lack nothing, a uuid, a time, or both."""
    whole = stamped_event(properties={"a": 1, "$set": {"é": "😀"}})
    bare = {name: value for name, value in whole.items() if name not in ("uuid", "timestamp")}
    times = [
        "2026-01-01T00:00:00.123456789Z",
        "2026-01-01",
        "2026-01-01 00:00:00+03",
        "2026-01-01T00:00:00.9999999+05:30",
        "9999-12-31T23:59:59Z",
    ]
    timed = [{**bare, "timestamp": time} for time in times]
    named = {**bare, "uuid": whole["uuid"]}
    opted = [
        stamped_event(properties={name: value, "b": 2})
        for name in ("$ip", "$geoip_disable", "$ignore_sent_at")
        for value in (True, False)
    ]
    alone = [[event] for event in (whole, bare, named, *timed, *opted)]
    return [
        *alone,
        [bare] * 3,
        [whole, bare, named, whole],
        [*timed, bare],
        opted,
        [bare, whole],
        [{**bare, "properties": {}}, whole],
        [],
    ]


def texts() -> list[bytes]:
    """The seeds as several SDKs write them."""
    compact = [
        json.dumps(seed, ensure_ascii=False, separators=(",", ":")).encode() for seed in seeds()
    ]
    return (
        compact
        + [json.dumps(seed).encode() for seed in seeds()]
        + [json.dumps(seed, indent=1).encode() for seed in seeds()]
    )


def mutant(text: bytes, dice: random.Random) -> bytes:
    """The text with a few changes: pieces put in, bytes taken out, members that move."""
    for _ in range(dice.randint(0, 3)):
        at = dice.randrange(len(text) + 1)
        if dice.random() < 0.3:
            text = text[:at] + text[at + dice.randint(1, 12) :]
        else:
            comma = text.find(dice.choice((b",", b"{")), at) + 1
            at = comma if comma and dice.random() < 0.8 else at
            text = text[:at] + dice.choice(PIECES) + text[at + dice.choice((0, 0, 0, 1)) :]
    return text


def outcome(events: bytes, context: StampContext) -> object:
    """What is made of an array: its events one by one, ids, and what is rejected or raised."""
    try:
        return _seen(stamp(events, context))
    except msgspec.DecodeError:
        return "not an array"
    except RecursionError:
        return "too deep"


def _seen(stamped: StampedEvents) -> object:
    parts = [
        bytes(raw) for raw in msgspec.json.decode(b"[%b]" % stamped.data, type=list[msgspec.Raw])
    ]
    assert len(parts) == stamped.count
    return parts, stamped.ids, list(stamped.rejected), list(stamped.replaced)


def test_all_ways_leave_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of arrays: what is stamped together and what is stamped one by one; and the fast way is
    taken often.
    """
    dice = random.Random(20)
    corpus = texts()
    together = stamping.stamp_together
    fast_count = 0
    for _ in range(MUTANTS):
        events = mutant(dice.choice(corpus), dice)
        if not (events.startswith(b"[") and events.endswith(b"]") and is_utf8(events)):
            # a request's events always are an array without white space around it, and UTF-8
            continue
        context = replace(
            dice.choice(CONTEXTS), uuid_of=lambda at: b"01900000-0000-7000-8000-%012d" % at
        )
        fast = outcome(events, context)
        fast_count += (
            isinstance(fast, tuple) and together(events, context) is not None
            if b"NaN" not in events
            else 0
        )
        with monkeypatch.context() as patch:
            patch.setattr(stamping, "stamp_together", lambda *_: None)
            assert fast == outcome(events, context), (events, context)
    assert fast_count > MUTANTS / 20


def test_a_single_event_is_stamped_like_one_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests that are one event: the same bytes, key and ids as when it
    is read as a batch of one.
    """
    monkeypatch.setattr(stamping, "new_uuid7", lambda _: b"01900000-0000-7000-8000-000000000000")
    dice = random.Random(21)
    single_count = 0
    corpus = [
        b'{"api_key":"%b",%b' % (KEY.encode(), text.strip(b"[] \n")[1:])
        for text in texts()
        if text.count(b'"event"') == 1
    ]
    for _ in range(MUTANTS // 2):
        text = mutant(dice.choice(corpus), dice)
        ordered = dice.random() < 0.5
        single = read_single(text, MIDNIGHT, 100_000, ordered=ordered)
        if single is None:
            continue
        single_count += 1
        stamped = stamp(
            b"[%b]" % text,
            StampContext(
                MIDNIGHT, ordered=ordered, uuid_of=lambda _: b"01900000-0000-7000-8000-000000000000"
            ),
        )
        assert (single.data.strip(), single.ids, 1) == (
            stamped.data.strip(),
            stamped.ids,
            stamped.count,
        ), text
    assert single_count > MUTANTS / 20
