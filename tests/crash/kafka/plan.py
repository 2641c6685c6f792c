"""What the Kafka crash test writes to its topic: every record, and what must arrive of it, follows
from a seed and the record's number.

A record's Kafka key is the distinct_id of its events, so all of one person's are in one partition,
in the order of their numbers. An event is known by its record's number and its place in the
record, which stand in its properties.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

HEADER: Final = "project"
"""The header that names the project key of the records of one lane: `api_key_header`."""
IN_RECORD = "phc_inTheRecord00000001"
IN_HEADER = "phc_inAHeader0000000001"
CONFIGURED = "phc_inTheSettings000001"
LANES: Final = (IN_RECORD, IN_HEADER, CONFIGURED)
"""Where a person's project key comes from, by the person's number."""

EventId: TypeAlias = tuple[int, int]
"""A record's number, and the event's place in it."""


class RecordShape(Enum):
    """What a record looks like."""

    COMPLETE = "an event with uuid and timestamp"
    BARE = "an event with neither"
    NO_ID = "an event whose distinct_id is the record's key"
    ARRAY = "several events"
    BATCH = "several events in an envelope with sent_at"
    GZIP = "a compressed event"
    TOMBSTONE = "nothing"


WEIGHTS: Final = {
    RecordShape.COMPLETE: 50,
    RecordShape.BARE: 24,
    RecordShape.NO_ID: 8,
    RecordShape.ARRAY: 7,
    RecordShape.BATCH: 7,
    RecordShape.GZIP: 3,
    RecordShape.TOMBSTONE: 1,
}
SEVERAL: Final = 3
"""Events in a record of several."""


@dataclass(frozen=True, slots=True)
class PlannedRecord:
    """A record to be written."""

    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class RecordPlan:
    """The records of a run."""

    def __init__(self, seed: int, count: int, persons: int = 400, padding: int = 150) -> None:
        chance = random.Random(seed)
        self.count = count
        self._seed = seed
        self._padding = "x" * padding
        self._persons = [chance.randrange(persons) for _ in range(count)]
        self._shapes = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)

    def end_at(self, count: int) -> None:
        """Only so many records were written: nothing else is expected."""
        self.count = count

    def shape(self, number: int) -> RecordShape:
        """What a record looks like."""
        return self._shapes[number]

    def person(self, number: int) -> str:
        """Whose record it is."""
        return f"person-{self._persons[number]}"

    def lane(self, number: int) -> str:
        """The project key of its events."""
        return LANES[self._persons[number] % len(LANES)]

    def size(self, number: int) -> int:
        """How many events it holds."""
        return {
            RecordShape.TOMBSTONE: 0,
            RecordShape.ARRAY: SEVERAL,
            RecordShape.BATCH: SEVERAL,
        }.get(self._shapes[number], 1)

    def events(self) -> set[EventId]:
        """All that must arrive."""
        return {
            (number, place) for number in range(self.count) for place in range(self.size(number))
        }

    def properties(self, event: EventId) -> bytes:
        """The bytes of an event's properties, which no one may change."""
        return b'{"n": %d, "place":%d , "text": "%b \\u00e9"}' % (*event, self._padding.encode())

    def record(self, number: int) -> PlannedRecord:
        """A record."""
        lane = self.lane(number)
        headers = ((HEADER, lane.encode()),) if lane == IN_HEADER else ()
        return PlannedRecord(self.person(number).encode(), self._value(number), headers)

    def _value(self, number: int) -> bytes | None:
        shape = self._shapes[number]
        if shape is RecordShape.TOMBSTONE:
            return None
        named: dict[str, Any] = {"api_key": IN_RECORD} if self.lane(number) == IN_RECORD else {}
        if shape is RecordShape.BATCH:
            return _with(
                named | {"sent_at": "2026-01-01T00:00:05Z"},
                b"batch",
                b"[%b]" % self._several(number, {}),
            )
        if shape is RecordShape.ARRAY:
            return b"[%b]" % self._several(number, named)
        event = self._event((number, 0), named)
        return gzip.compress(event, 1, mtime=0) if shape is RecordShape.GZIP else event

    def _several(self, number: int, named: dict[str, Any]) -> bytes:
        return b",".join(self._event((number, place), named) for place in range(SEVERAL))

    def _event(self, event: EventId, named: dict[str, Any]) -> bytes:
        number, place = event
        fields = {**named, "event": f"e{number % 7}"}
        if self._shapes[number] is not RecordShape.NO_ID:
            fields["distinct_id"] = self.person(number)
        if self._shapes[number] not in (RecordShape.BARE, RecordShape.ARRAY):
            fields["uuid"] = str(UUID(int=(self._seed << 64) + (number << 8) + place, version=4))
            fields["timestamp"] = f"2026-01-01T00:00:{number % 60:02}Z"
        return _with(fields, b"properties", self.properties(event))


def _with(fields: dict[str, Any], name: bytes, value: bytes) -> bytes:
    """A JSON object of the fields, and one more whose text is given."""
    start = json.dumps(fields).encode()[:-1]
    return b'%b%b"%b":%b}' % (start, b", " if fields else b"", name, value)
