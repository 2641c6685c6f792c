"""The checker of the crash test of imports: says what is wrong with what a sandbox has, given the
plan of what was to be brought to it.

Right is: each record's event is there once, with the record's uuid or one that follows from it,
its time to the millisecond, its id, its name and its properties, unchanged; what came again is the
same bytes, of records that weren't settled; all of it came as history, no request holds events of
two days, and of each person the first arrivals are in the order of the records, those of a shard
by themselves.
"""

from __future__ import annotations

import contextlib
import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from tests.crash.imports.plan import Division, EventPlan

SHOWN: Final = 8
"""How many problems of one kind are told."""
_NEW = "new"
_REPEAT = "duplicate"
_DAY: Final = len("2024-05-01")
_ARRIVALS: Final = (
    "SELECT request, kind, historical, uuid, event, distinct_id, timestamp, raw FROM events"
)


class ImportArrival(NamedTuple):
    """An event as it arrived."""

    request: int
    kind: str
    historical: int
    uuid: str
    event: str
    distinct_id: str
    timestamp: str
    raw: bytes


class Settled(NamedTuple):
    """What a checkpoint knew when its process was killed: so many records of a shard, the first,
    so that none of them may come again.
    """

    request: int
    """The last request that had arrived."""
    records: int
    shard: int = 0


@dataclass
class ImportVerdict:
    """What was found."""

    distinct: int = 0
    repeats: int = 0
    requests: int = 0
    days: int = 0
    derived: int = 0
    """Events whose uuid isn't the record's own."""
    repeated: set[int] = field(default_factory=set)
    """Shards of which an event came again."""
    problems: list[str] = field(default_factory=list)


class _Properties(msgspec.Struct):
    n: int


class _Event(msgspec.Struct):
    properties: _Properties


_read: Final = msgspec.json.Decoder(_Event).decode


def arrivals(database: Path, api_key: str | None = None) -> Iterator[ImportArrival]:
    """All that a sandbox keeps in its file, or what has a project key, in the order of arrival."""
    chosen, values = ("", []) if api_key is None else (" WHERE api_key = ?", [api_key])
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        yield from map(
            ImportArrival._make, connection.execute(f"{_ARRIVALS}{chosen} ORDER BY id", values)
        )


def judge(
    plan: EventPlan,
    arrived: Iterable[ImportArrival],
    settled: Sequence[Settled] = (),
    division: Division | None = None,
) -> ImportVerdict:
    """What is wrong with these arrivals, once there will be no more.
    `division`: of an import in shards.
    """
    judging = _Judging(plan, settled, division or Division(plan.count))
    for arrival in arrived:
        judging.look_at(arrival)
    return judging.verdict()


class _Judging:
    def __init__(self, plan: EventPlan, settled: Sequence[Settled], division: Division) -> None:
        self._plan = plan
        self._settled = settled
        self._division = division
        self._came = array("b", bytes(plan.count))
        self._last: dict[tuple[int, str], int] = {}
        """Of each person, the last record whose event arrived for the first time, by shard."""
        self._request = 0
        self._of_request = ""
        self._days: set[str] = set()
        self._found = ImportVerdict()
        self._counts: Counter[str] = Counter()

    def look_at(self, arrival: ImportArrival) -> None:
        """Check one arrival."""
        self._judge_request(arrival)
        try:
            number = _read(arrival.raw).properties.n
        except msgspec.MsgspecError as error:
            self._tell("was in no record", f"{arrival.raw[:300]!r}: {error}")
            return
        if not 0 <= number < self._plan.count:
            self._tell("was in no record", f"{number}")
        elif arrival.kind == _REPEAT:
            self._judge_repeat(number, arrival)
        elif arrival.kind != _NEW:
            self._tell("came again with other bytes", f"{number}: {arrival.raw[:300]!r}")
        elif self._came[number]:
            self._tell("came twice with two uuids", f"{number}: {arrival.uuid}")
        else:
            self._came[number] = 1
            self._judge_first(number, arrival)

    def _judge_request(self, arrival: ImportArrival) -> None:
        day = arrival.timestamp[:_DAY]
        if arrival.request != self._request:
            self._found.requests += 1
            self._request = arrival.request
            self._of_request = day
            self._days.add(day)
        elif day != self._of_request:
            self._tell(
                "were in one request",
                f"events of {self._of_request} and {day}, number {arrival.request}",
            )
        if not arrival.historical:
            self._tell("came as if they were live", f"the events of request {arrival.request}")

    def _judge_repeat(self, number: int, arrival: ImportArrival) -> None:
        self._found.repeats += 1
        shard, place = self._division.place(number)
        self._found.repeated.add(shard)
        done = max(
            (
                settled.records
                for settled in self._settled
                if settled.shard == shard and arrival.request > settled.request
            ),
            default=0,
        )
        if place < done:
            self._tell("was settled and came again", f"{number}, when the first {done:,} were")

    def _judge_first(self, number: int, arrival: ImportArrival) -> None:
        self._found.distinct += 1
        expected = self._plan.expected(number)
        time = expected.timestamp.removesuffix("Z") + "000Z"
        is_right = (arrival.event, arrival.distinct_id, arrival.timestamp) == (
            expected.event,
            expected.distinct_id,
            time,
        )
        if not is_right or expected.properties not in arrival.raw:
            self._tell("was changed", f"{number}: {arrival.raw[:300]!r}")
        if expected.uuid is None:
            self._found.derived += 1
        if arrival.uuid != expected.uuid if expected.uuid else UUID(arrival.uuid).version != 5:
            self._tell(
                "came with another uuid",
                (
                    f"{number}: {arrival.uuid}, not "
                    f"{expected.uuid or 'one that follows from its source'}"
                ),
            )
        person = self._division.place(number)[0], arrival.distinct_id
        last = self._last.get(person, -1)
        if last > number:
            self._tell("came out of order", f"{number} of {arrival.distinct_id} came after {last}")
        self._last[person] = max(last, number)

    def _tell(self, what: str, which: str) -> None:
        self._counts[what] += 1
        if self._counts[what] <= SHOWN:
            self._found.problems.append(f"{what}: {which}")

    def verdict(self) -> ImportVerdict:
        """All that was found."""
        missing = (number for number, came in enumerate(self._came) if not came)
        for number in missing:
            self._tell("never came", f"{number}")
        self._found.problems += [
            f"{what}: {count} in all" for what, count in self._counts.items() if count > SHOWN
        ]
        self._found.days = len(self._days)
        return self._found
