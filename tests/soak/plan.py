"""What a soak sends over HTTP, and which faults the upstream has when: all of it follows from a
seed.

Bodies are those of the official Python SDK (`benchmarks.bodies`), of different sizes,
round and round; each event gets a uuid that names the request and the event's place in it,
so that nothing that was sent has to be kept. Now and then a body's last event has no name:
it becomes a dead letter.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from benchmarks.bodies import SENDER, Request, Variant, ring

SIZES: Final = ((1, 64), (10, 40), (50, 24))
"""Events in a body, and how many different bodies have so many."""
NAMELESS: Final = 16
"""One body of so many has an event without a name at its end."""
MAX_EVENTS: Final = 64
"""Numbers that each request has for its events."""
_UUID: Final = re.compile(rb'"uuid": "([0-9a-f-]{36})"')
_WRITTEN: Final = re.compile(r"([0-9a-f]{8})-0000-4000-8000-([0-9a-f]{12})")
_NAME: Final = b'"event": '
_NO_NAME: Final = b'"evenX": '
"""As long: the body's length stays."""


@dataclass(slots=True)
class SdkRequest(Request):
    """A body, and the places of its events' uuids."""

    uuids: list[int] = field(default_factory=list)
    nameless: bool = False
    """Whether its last event has no name."""


class SdkPlan:
    """Everything that a seed leads to, and when it began, in seconds since
    1970: the time of the events.
    """

    def __init__(self, seed: int, began: float) -> None:
        self._seed = seed & 0xFFFFFFFF
        chance = random.Random(seed)
        beginning = datetime.fromtimestamp(began, UTC)
        made = [
            request
            for events, count in SIZES
            for request in ring(
                Variant.SDK, events, limit=events * count * 700, beginning=beginning
            )[:count]
        ]
        chance.shuffle(made)
        self.requests = [
            _prepared(request, nameless=number % NAMELESS == 0)
            for number, request in enumerate(made)
        ]
        self._events: dict[int, list[dict[str, Any]]] = {}

    @property
    def request_events(self) -> float:
        """Events in a request, on average."""
        return sum(request.events for request in self.requests) / len(self.requests)

    def request(self, number: int) -> SdkRequest:
        """The request of that number."""
        return self.requests[number % len(self.requests)]

    def prepare(self, request: Request, number: int) -> None:
        """Give the events of a request their uuids."""
        assert isinstance(request, SdkRequest)
        for index, place in enumerate(request.uuids):
            request.data[place : place + 36] = self.uuid(number * MAX_EVENTS + index).encode()

    def uuid(self, event: int) -> str:
        """The uuid of the event of that number."""
        return f"{self._seed:08x}-0000-4000-8000-{event:012x}"

    def number(self, uuid: str) -> int | None:
        """The number of the event that has a uuid; None if it is none of this plan."""
        match = _WRITTEN.fullmatch(uuid)
        return int(match[2], 16) if match and int(match[1], 16) == self._seed else None

    def is_nameless(self, event: int) -> bool:
        """Whether an event has no name."""
        request = self.request(event // MAX_EVENTS)
        return request.nameless and event % MAX_EVENTS == request.events - 1

    def expected(self, event: int) -> dict[str, Any]:
        """What must arrive of an event, as an object: the SDK's, with its sender's address."""
        template = event // MAX_EVENTS % len(self.requests)
        if template not in self._events:
            self._events[template] = msgspec.json.decode(self.requests[template].body())["batch"]
        sdk_event = self._events[template][event % MAX_EVENTS]
        return {
            **sdk_event,
            "uuid": self.uuid(event),
            "properties": {**sdk_event["properties"], "$ip": SENDER},
        }


def _prepared(request: Request, *, nameless: bool) -> SdkRequest:
    data = request.data
    if nameless:
        place = data.rfind(_NAME)
        data[place : place + len(_NAME)] = _NO_NAME
    head = data.find(b"\r\n\r\n")
    uuids = [match.start(1) for match in _UUID.finditer(data, head)]
    assert len(uuids) == request.events
    return SdkRequest(data, request.events, request.sent_at, uuids=uuids, nameless=nameless)


EVERY: Final = (8.0, 150.0)
"""Seconds from one fault to the next, at least and at most; a tenth of the whole in between."""
LASTS: Final = 0.2
"""Of those, how long it lasts."""
FAULTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("503 with Retry-After", {"status": 503, "retry_after": 1}),
    ("answers after 2 s", {"delay": 2}),
    ("stored, then reset", {"reset": True, "when": "after"}),
    ("429 with Retry-After", {"status": 429, "retry_after": 2}),
    ("stored, then 500", {"status": 500, "when": "after"}),
    ("connections reset", {"reset": True}),
    ("flags answered 500", {"status": 500, "path": ["/flags", "/flags/"]}),
)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of the sandbox: what it is called, when it begins, in seconds from the soak's
    beginning, and when it ends.
    """

    name: str
    begins: float
    ends: float
    request: dict[str, Any]
    """What `/sandbox/faults` is asked for."""


def planned_faults(seed: int, seconds: float) -> list[PlannedFault]:
    """The faults of a soak, each kind in turn, from a kind that the seed chooses; the last one
    ends before the load does.
    """
    every = min(EVERY[1], max(EVERY[0], seconds / 10))
    first = seed % len(FAULTS)
    faults = []
    for number in range(int(seconds / every)):
        name, request = FAULTS[(first + number) % len(FAULTS)]
        begins = every * (number + 0.5)
        faults.append(
            PlannedFault(
                name, begins, begins + every * LASTS, {**request, "seconds": every * LASTS}
            )
        )
    return faults
