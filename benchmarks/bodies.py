"""Requests as senders make them, ready to be written to a socket: the three variants that a case
can choose from, and tiny events.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from benchmarks.events import MARKER, EventMaker

API_KEY: Final = "phc_benchmark0000000000000000000000000000000000"
SENDER: Final = "81.2.69.142"
"""A globally routable address, as a proxy in front of forwarder would report it."""

RING_BYTES: Final = 24_000_000
"""Bytes of different requests that a load goes round in, so that a person's events come from one
request at a time.
"""


LIVE: Final = b"~lv~"
"""In the name of an event that has a number: the number follows."""
NUMBER: Final = 7
"""Its digits."""

LEFT_OUT_OF_SDK: Final = frozenset({"$browser", "$screen_width", "session", "experiment", "city"})
"""Properties that make way for the SDK's own, so that its events are of the same size."""


class Variant(StrEnum):
    """What an event brings along."""

    STAMPED = "stamped"
    """uuid and timestamp: nothing is left to add."""
    SDK = "sdk"
    """The body of the official Python SDK: `sent_at`, ASCII escapes, spaces, and the sender's
    address in a proxy's header.
    """
    BARE = "bare"
    """Neither uuid nor timestamp."""
    TINY = "tiny"
    """An event of 60 bytes, bare."""


class Shape(StrEnum):
    """How events are wrapped."""

    ENVELOPE = "envelope"
    """`{"api_key": …, "batch": [ … ]}`; a single event alone, with its `api_key`."""
    ARRAY = "array"
    """A JSON array; a single event alone. For programs that know nothing of the envelope."""


@dataclass(slots=True)
class Request:
    """One HTTP request. `sent_at` and `number` are the places in `data` of what changes while
    sending, -1 if it isn't there: the body's `sent_at`, to be kept fresh, and the number in the
    name of its last event.
    """

    data: bytearray
    events: int
    sent_at: int = -1
    number: int = -1

    def body(self) -> bytes:
        """The body alone."""
        return bytes(self.data).partition(b"\r\n\r\n")[2]


def sent_at_now() -> bytes:
    """The current time as the SDK writes it: always 32 bytes."""
    return datetime.now(UTC).isoformat(timespec="microseconds").encode()


def ring(
    variant: Variant,
    count: int,
    shape: Shape = Shape.ENVELOPE,
    path: str = "",
    limit: int = RING_BYTES,
    *,
    numbered: bool = False,
    rare: bool = False,
    beginning: datetime | None = None,
) -> list[Request]:
    """Different requests of `count` events each, about `limit` bytes in all; at least one.
    `numbered`: the last event of each has a place for a number. `rare`: one event in twenty has a
    name of its own (`RARE`). `beginning`: of the events' timestamps, by default now; the same
    makes the same events.
    """
    maker = EventMaker(seed=count, beginning=beginning or datetime.now(UTC), rare=rare)
    path = path or ("/capture/" if count == 1 and variant is not Variant.SDK else "/batch/")
    requests = [_request(maker, variant, count, shape, path, numbered=numbered)]
    while len(requests) * len(requests[0].data) < limit:
        requests.append(_request(maker, variant, count, shape, path, numbered=numbered))
    return requests


def _request(
    maker: EventMaker, variant: Variant, count: int, shape: Shape, path: str, *, numbered: bool
) -> Request:
    events = [_event(maker, variant, number) for number in range(count)]
    if numbered:
        events[-1]["event"] += LIVE.decode() + "0" * NUMBER
    body = _sdk_body(events) if variant is Variant.SDK else _plain_body(events, shape)
    forwarded = f"X-Forwarded-For: {SENDER}\r\n" if variant is Variant.SDK else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"{forwarded}Content-Length: {len(body)}\r\n\r\n"
    )
    data = bytearray(head.encode() + body)
    key = data.rfind(b'"sent_at": "') if variant is Variant.SDK else -1
    number = data.rfind(LIVE) if numbered else -1
    return Request(
        data,
        count,
        key + len(b'"sent_at": "') if key >= 0 else -1,
        number + len(LIVE) if number >= 0 else -1,
    )


def _event(maker: EventMaker, variant: Variant, number: int) -> dict[str, Any]:
    if variant is Variant.TINY:
        return {"event": MARKER.decode(), "distinct_id": f"u{number:08}", "properties": {}}
    event = maker.event()
    if variant is Variant.SDK:
        return _sdk_event(event)
    if variant is Variant.BARE:
        del event["uuid"], event["timestamp"]
    return event


def _sdk_event(event: dict[str, Any]) -> dict[str, Any]:
    own = {
        "$python_runtime": "CPython",
        "$python_version": "3.11.7",
        "$os": "Linux",
        "$lib": "posthog-python",
        "$lib_version": "7.91.1",
    }
    properties = {
        name: value for name, value in event["properties"].items() if name not in LEFT_OUT_OF_SDK
    }
    timestamp = event["timestamp"].replace("Z", "127+00:00")
    event = {**event, "properties": {**properties, **own}, "timestamp": timestamp}
    return {
        name: event[name] for name in ("properties", "timestamp", "distinct_id", "event", "uuid")
    }


def _sdk_body(events: list[dict[str, Any]]) -> bytes:
    envelope = {
        "batch": events,
        "historical_migration": False,
        "sent_at": sent_at_now().decode(),
        "api_key": API_KEY,
    }
    return json.dumps(envelope).encode()


def _plain_body(events: list[dict[str, Any]], shape: Shape) -> bytes:
    whole: Any = events
    if len(events) == 1:
        whole = {"api_key": API_KEY, **events[0]} if shape is Shape.ENVELOPE else events[0]
    elif shape is Shape.ENVELOPE:
        whole = {"api_key": API_KEY, "batch": events}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
