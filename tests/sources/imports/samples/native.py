"""Our own JSON lines as files of them look: the same records for the same seed, every shape and
strange ones among them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile

_START: Final = datetime(2024, 5, 1, tzinfo=UTC)
_NAMES: Final = (
    "$pageview",
    "signed up",
    "Warenkorb geöffnet",
    "登録完了",
    "$identify",
    'order "placed"',
    "{braces}",
)
_WHERE: Final = ("Łódź", "São Paulo", "Київ", "Paris")

STRANGE: Final[tuple[tuple[bytes, Reason | None], ...]] = (
    (b'{"event":"cut","distinct_id":"u1","timestamp":"2024-05-0', Reason.UNDECODABLE),
    (
        (
            b'{"event":"caf\xe9","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z","properties'
            b'":{}}'
        ),
        Reason.UNDECODABLE,
    ),
    (
        (
            b'{"event":"e","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z","properties":{"ha'
            b'lf":"\\ud83d"}}'
        ),
        Reason.UNDECODABLE,
    ),
    (b'"a text"', Reason.UNDECODABLE),
    (b"12", Reason.UNDECODABLE),
    (
        b'{"event":"e","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"} {}',
        Reason.UNDECODABLE,
    ),
    (
        b'{"event":"e","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z","properties":{"deep":'
        + b"[" * 600
        + b"]" * 600
        + b"}}",
        Reason.UNDECODABLE,
    ),
    (
        b'{"event":7,"distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"}',
        Reason.INVALID_EVENT,
    ),
    (
        b'{"event":"e","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z","properties":[1]}',
        Reason.INVALID_EVENT,
    ),
    (b'{"distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"}', Reason.MISSING_EVENT),
    (b'{"event":"","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"}', Reason.MISSING_EVENT),
    (
        b'{"event":null,"distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"}',
        Reason.MISSING_EVENT,
    ),
    (
        b'{"event":"e","timestamp":"2024-05-01T00:00:00Z","properties":{"a":1}}',
        Reason.MISSING_DISTINCT_ID,
    ),
    (
        b'{"event":"e","distinct_id":" ","timestamp":"2024-05-01T00:00:00Z","properties":{"a":1}}',
        Reason.MISSING_DISTINCT_ID,
    ),
    (b'{"event":"e","distinct_id":"u1","properties":{"a":1}}', Reason.MISSING_TIMESTAMP),
    (
        b'{"event":"e","distinct_id":"u1","timestamp":"","properties":{"a":1}}',
        Reason.MISSING_TIMESTAMP,
    ),
    (
        b'{"event":"e","distinct_id":"u1","timestamp":"yesterday","properties":{"a":1}}',
        Reason.MISSING_TIMESTAMP,
    ),
    (
        (
            b'{"event":"e","distinct_id":"u1","timestamp":"1969-12-31T23:59:59.999Z","properties":'
            b'{"a":1}}'
        ),
        Reason.MISSING_TIMESTAMP,
    ),
    (
        b'{"event":"e","distinct_id":"u1","uuid":"0f8fad5b-d9cb-469f-a165-70867728950e","timestamp'
        b'":"9999-12-31T23:59:59-05:00",'
        b'"properties":{"a":1}}',
        Reason.MISSING_TIMESTAMP,
    ),
    (
        b'{"event":"e","distinct_id":"u1","timestamp":1e400,"properties":{"a":1}}',
        Reason.MISSING_TIMESTAMP,
    ),
    (
        b'{"event":"e","distinct_id":"u1","timestamp":{"a":1},"properties":{"a":1}}',
        Reason.MISSING_TIMESTAMP,
    ),
    (b'{"event":"e","distinct_id":"u1","offset":5,"properties":{"a":1}}', Reason.MISSING_TIMESTAMP),
    (
        (
            b' {"event": "spaces" , "distinct_id" : "u1", "timestamp" : "2024-05-01T00:00:00Z" , '
            b'"properties" : { "a" : 1.10 } } '
        ),
        None,
    ),
    (
        (
            b'{"event":"e","distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z","properties":{"ba'
            b'd":NaN,"big":12345678901234567890123}}'
        ),
        None,
    ),
    (b'{"event":"e","distinct_id":12345678901234567890,"timestamp":"2024-05-01T00:00:00Z"}', None),
    (
        (
            b'{"event":"e","distinct_id":"u1","timestamp":"Wed, 01 May 2024 00:00:00 '
            b'GMT","properties":null}'
        ),
        None,
    ),
)
"""Records as bad files have them, and why each is refused; None: it isn't."""


def block(*records: bytes | object, first: int = 0) -> RecordBlock:
    """Records of one file; what isn't bytes is written as JSON."""
    written = [record if isinstance(record, bytes) else as_json(record) for record in records]
    return RecordBlock(
        SourceFile("events.jsonl", "5eed" * 16),
        first,
        written,
        range(first + 1, first + len(written) + 1),
    )


def as_json(record: object) -> bytes:
    """A record as most SDKs write it."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def complete_events(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Events with all that they need, a few in a row of one person."""
    dice = random.Random(seed)
    time = _START
    for number in range(count):
        time += timedelta(milliseconds=dice.randrange(1, 90_000))
        yield {
            "event": dice.choice(_NAMES),
            "distinct_id": f"user-{number // 4}",
            "uuid": str(UUID(int=dice.getrandbits(128), version=4)),
            "timestamp": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "properties": {
                "city": dice.choice(_WHERE),
                "price": dice.randrange(1, 9999) / 100,
                "text": 'a "properties":{"quoted"} text',
                "items": [{"sku": f"s{dice.randrange(99)}", "properties": {"nested": True}}],
            },
        }


def sample(count: int = 2_400, seed: int = 1) -> tuple[list[bytes], list[Reason]]:
    """Lines that hold at least `count` events, and why lines among them are
    refused, in their order.
    """
    dice = random.Random(seed)
    lines: list[bytes] = []
    refusals: list[Reason] = []
    waiting: list[dict[str, Any]] = []
    for number, event in enumerate(complete_events(count, seed)):
        waiting.append(_varied(event, dice))
        if number % 80 == 0:
            text, why = STRANGE[number // 80 % len(STRANGE)]
            lines.append(text)
            refusals += [] if why is None else [why]
        if len(waiting) == 5 or dice.random() < 0.8 or number == count - 1:
            lines += _lines(waiting, dice)
            waiting = []
    return lines, refusals


def _varied(event: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """The event in one of the shapes that events have."""
    shape = dice.randrange(12)
    if shape == 0:
        event["properties"]["distinct_id"] = event.pop("distinct_id")
    elif shape == 1:
        event["$distinct_id"] = event.pop("distinct_id")
    elif shape == 2:
        del event["uuid"]
    elif shape == 3:
        event["uuid"] = event["uuid"].upper()
    elif shape == 4:
        event["timestamp"] = event["timestamp"].rstrip("Z")
    elif shape == 5:
        event["$set"] = {"plan": "team"}
    elif shape == 6:
        event["properties"] |= {"$set": {"plan": "team"}, "$set_once": {"plan": "free", "first": 1}}
    elif shape == 7:
        event |= {"api_key": "key-of-another-project", "offset": 250}
    return event


def _lines(events: Sequence[dict[str, Any]], dice: random.Random) -> Iterator[bytes]:
    """Events as lines: each by itself, as an array, or as the body of a batch."""
    shape = dice.randrange(8)
    if shape == 0:
        yield as_json(
            {
                "api_key": "key-of-another-project",
                "batch": events,
                "sent_at": "2024-05-02T00:00:00Z",
            }
        )
    elif shape == 1:
        yield as_json(events)
    elif shape == 2:
        yield from (json.dumps(event).encode() for event in events)
    else:
        yield from map(as_json, events)
