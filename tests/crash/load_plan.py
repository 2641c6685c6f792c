"""What the crash test sends: every request, and every byte of every event, follows from a seed and
a number.

So nothing that was sent has to be kept: anyone who knows an event's number, which stands in its
uuid, can say what its bytes must be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forwarder.core.event import Lane

MAX_EVENTS: Final = 256
"""Numbers that each request has for its events."""

LANES: Final = (
    Lane("phc_crashtestlaneAlpha0001"),
    Lane("phc_crashtestlaneBeta0002"),
    Lane("phc_crashtestlaneAlpha0001", historical=True),
)
_WEIGHTS: Final = (47, 94, 100)
"""Of a hundred requests so many, added up, go to each lane."""
_COUNTS: Final = ((50, 1), (90, 20), (100, 200))
"""Of a hundred requests so many, added up, have so many events."""
_DELIVERED_IN_THOUSAND: Final = 8
"""Of a thousand requests so many ask to be acknowledged once they are delivered."""

_MASK: Final = (1 << 64) - 1
_UUID: Final = re.compile(r"([0-9a-f]{8})-0000-4000-8000-([0-9a-f]{12})")
_PADDING: Final = (
    "".join(chr(33 + (index * 7919) % 90) for index in range(4096))
    .replace('"', "é")
    .replace("\\", "/")
)


class EventKind(StrEnum):
    """What becomes of an event; also the beginning of its name."""

    CLEAN = "clean"
    """It is delivered."""
    POISON = "poison"
    """The upstream refuses it: it becomes a dead letter."""
    DISPOSABLE = "poison-disposable"
    """As poison, and an operator may drop it."""
    NAMELESS = "nameless"
    """It has no name: a dead letter at receipt."""


_KINDS: Final = ((6, EventKind.POISON), (9, EventKind.DISPOSABLE), (13, EventKind.NAMELESS))
"""Of ten thousand events so many, added up, are of a kind; the others are clean."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request: its events are numbered `number * MAX_EVENTS` and on."""

    number: int
    lane: Lane
    count: int
    delivered: bool
    """Whether it asks to be acknowledged only once its events are delivered."""

    @property
    def events(self) -> range:
        """The numbers of its events."""
        return range(self.number * MAX_EVENTS, self.number * MAX_EVENTS + self.count)


class LoadPlan:
    """Everything that a seed leads to."""

    def __init__(self, seed: int) -> None:
        self.seed = seed & 0xFFFFFFFF

    def request(self, number: int) -> PlannedRequest:
        """The request of that number."""
        dice = _mix(self.seed << 32 ^ number ^ 1 << 63)
        lane = next(lane for bound, lane in zip(_WEIGHTS, LANES, strict=True) if dice % 100 < bound)
        count = next(count for bound, count in _COUNTS if (dice >> 16) % 100 < bound)
        return PlannedRequest(
            number,
            lane,
            count,
            (dice >> 32) % 1000 < _DELIVERED_IN_THOUSAND and not lane.historical,
        )

    def kind(self, event: int) -> EventKind:
        """What becomes of an event."""
        dice = _mix(self.seed << 32 ^ event) % 10_000
        return next((kind for bound, kind in _KINDS if dice < bound), EventKind.CLEAN)

    def harmless(self, number: int, lane: Lane) -> bool:
        """Whether the request of that number is a single clean event of a lane."""
        request = self.request(number)
        return (
            request.lane == lane
            and request.count == 1
            and self.kind(request.events[0]) is EventKind.CLEAN
            and not request.delivered
        )

    def event(self, number: int) -> bytes:
        """The bytes of an event."""
        kind = self.kind(number)
        dice = _mix(self.seed << 32 ^ number ^ 1 << 62)
        begin = dice % 1024
        share = (dice >> 16) % 256
        size = 80 + (share * share * 2700 >> 16)
        name = "" if kind is EventKind.NAMELESS else f'"event":"{kind.value}-{number % 7}",'
        return (
            f'{{"uuid":"{self.seed:08x}-0000-4000-8000-{number:012x}",{name}"distinct_id":"person-'
            f'{number % 997}",'
            f'"timestamp":"2026-01-{1 + number % 28:02}T10:{number % 60:02}:00.123Z",'
            f'"properties":{{"n":{number}, '
            f'"big":90071992547409931{number % 10},"text":"{_PADDING[begin : begin + size]}"}}}}'
        ).encode()

    def body(self, request: PlannedRequest) -> bytes:
        """A request's body."""
        historical = b',"historical_migration":true' if request.lane.historical else b""
        return b'{"api_key":"%b"%b,"batch":[%b]}' % (
            request.lane.api_key.encode(),
            historical,
            b",".join(map(self.event, request.events)),
        )

    def number(self, uuid: str) -> int | None:
        """The number of the event that has a uuid; None if it is none of this plan."""
        match = _UUID.fullmatch(uuid)
        return int(match[2], 16) if match and int(match[1], 16) == self.seed else None


def _mix(value: int) -> int:
    """A 64-bit hash (the finalizer of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31
