"""The checker of the Kafka crash test: says what is wrong with what arrived at the sandbox, given
the plan of what was written to the topic.

In order means: of each person, the first arrivals of the events are in the order of the records.
An event that arrives again may do so at any time; but it must be the same event, byte for byte.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from tests.crash.kafka.plan import LANES, EventId, RecordPlan

SHOWN: Final = 8
"""How many problems of one kind are told."""


@dataclass(frozen=True, slots=True)
class KafkaArrival:
    """An event as it arrived."""

    api_key: str
    raw: bytes


@dataclass
class KafkaVerdict:
    """What was found."""

    distinct: int = 0
    repeats: int = 0
    repeated_bare: int = 0
    """Repeats of events that were written without a uuid and a timestamp."""
    problems: list[str] = field(default_factory=list)


class _Properties(msgspec.Struct):
    n: int
    place: int


class _Event(msgspec.Struct):
    distinct_id: str
    uuid: str
    timestamp: str
    properties: _Properties


class _Seen(msgspec.Struct):
    """The first arrival of an event."""

    raw: bytes
    uuid: str


_events: Final = msgspec.json.Decoder(_Event)


def arrivals(database: Path) -> Iterator[KafkaArrival]:
    """What a sandbox keeps in its file of this plan's project keys, in the order of arrival."""
    chosen = (
        f"SELECT api_key, raw FROM events WHERE api_key IN ({', '.join('?' * len(LANES))}) "
        "ORDER BY id"
    )
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for api_key, raw in connection.execute(chosen, LANES):
            yield KafkaArrival(api_key, raw)


def judge(plan: RecordPlan, arrived: Iterable[KafkaArrival], *, ordered: bool) -> KafkaVerdict:
    """What is wrong with these arrivals, once there will be no more."""
    judging = _Judging(plan, ordered=ordered)
    for arrival in arrived:
        judging.look_at(arrival)
    return judging.verdict()


class _Judging:
    def __init__(self, plan: RecordPlan, *, ordered: bool) -> None:
        self._plan = plan
        self._ordered = ordered
        self._expected = plan.events()
        self._seen: dict[EventId, _Seen] = {}
        self._last: dict[str, EventId] = {}
        """Of each person, the last event that arrived for the first time."""
        self._found = KafkaVerdict()
        self._counts: dict[str, int] = {}

    def look_at(self, arrival: KafkaArrival) -> None:
        """Check one arrival."""
        try:
            event = _events.decode(arrival.raw)
        except msgspec.MsgspecError as error:
            self._tell("was never written", f"{arrival.raw[:300]!r}: {error}")
            return
        known = (event.properties.n, event.properties.place)
        before = self._seen.get(known)
        if known not in self._expected:
            self._tell("was never written", f"{known}")
        elif before is None:
            self._seen[known] = _Seen(arrival.raw, event.uuid)
            self._judge_first(known, event, arrival)
        else:
            self._judge_repeat(known, before, arrival)

    def _judge_first(self, known: EventId, event: _Event, arrival: KafkaArrival) -> None:
        number = known[0]
        person = self._plan.person(known[0])
        if (
            b'"properties":' + self._plan.properties(known) not in arrival.raw
            or event.distinct_id != person
        ):
            self._tell("was changed", f"{known}: {arrival.raw[:300]!r}")
        if arrival.api_key != self._plan.lane(number):
            self._tell("came with the wrong project key", f"{known}")
        last = self._last.get(person, (-1, 0))
        if self._ordered and last > known:
            self._tell("came out of order", f"{known} of {person} came after {last}")
        self._last[person] = max(last, known)

    def _judge_repeat(self, known: EventId, before: _Seen, arrival: KafkaArrival) -> None:
        self._found.repeats += 1
        self._found.repeated_bare += b'"uuid"' not in (
            self._plan.record(known[0]).value or b'"uuid"'
        )
        if before.raw != arrival.raw:
            self._tell(
                "came again with other bytes",
                f"{known}: {before.raw[:300]!r} and {arrival.raw[:300]!r}",
            )

    def _tell(self, what: str, which: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1
        if self._counts[what] <= SHOWN:
            self._found.problems.append(f"{what}: {which}")

    def verdict(self) -> KafkaVerdict:
        """All that was found."""
        for known in sorted(self._expected - self._seen.keys()):
            self._tell("never came", f"{known}, {self._plan.shape(known[0]).value}")
        if len({seen.uuid for seen in self._seen.values()}) != len(self._seen):
            self._tell("have one uuid", "some events that differ")
        self._found.problems += [
            f"{what}: {count} in all" for what, count in self._counts.items() if count > SHOWN
        ]
        self._found.distinct = len(self._seen)
        return self._found
