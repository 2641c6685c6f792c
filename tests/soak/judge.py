"""The checker of a soak: whether each event that was accepted over HTTP arrived or is a dead
letter, and how long it took; and whether the daemon grew. Topics and imports are checked by their
crash tests' checks.

A request that was answered 200 is accepted; one without an answer may have been. Of an accepted
request each event is at the sandbox as it was sent, with the sender's address, or, if it has no
name, among the dead letters; what was rejected is nowhere.
"""

from __future__ import annotations

import contextlib
import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from tests.crash.journal import PROMISED, UNKNOWN
from tests.crash.oracle import StoredLetter
from tests.soak.plan import MAX_EVENTS, SdkPlan
from tests.soak.sender import AnswerEntry

SHOWN: Final = 8
"""How many problems of one kind are told."""
MEMORY: Final = (1.1, 16_000_000)
"""What a daemon's memory may be in the last quarter of the load: so many times what it was in the
second, and bytes more.
"""
DESCRIPTORS: Final = (1.0, 8)
KEPT: Final = 16
"""Descriptors that may be open at rest after a load, and weren't before it: connections that are
kept for the next request upstream, and files that were opened when they were first needed.
"""
_ARRIVALS: Final = """
SELECT events.kind, events.uuid, events.raw, requests.received_at FROM events JOIN requests ON \
requests.id = events.request
WHERE events.api_key = ? ORDER BY events.id
"""


class SoakArrival(NamedTuple):
    """An event at the sandbox."""

    kind: str
    """`new`, `duplicate` or `conflict`."""
    uuid: str
    raw: bytes
    received_at: str


@dataclass
class SoakVerdict:
    """What was found."""

    sent: int = 0
    accepted: int = 0
    uncertain: int = 0
    """In requests without an answer."""
    distinct: int = 0
    repeats: int = 0
    dead: int = 0
    deliveries: list[tuple[float, float]] = field(default_factory=list)
    """When each event's request was due, and the seconds until the event arrived first."""
    problems: list[str] = field(default_factory=list)


def soak_arrivals(database: Path, api_key: str) -> Iterator[SoakArrival]:
    """What a sandbox keeps of a project key, in the order of arrival."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        yield from map(SoakArrival._make, connection.execute(_ARRIVALS, [api_key]))


def judge_http(
    plan: SdkPlan,
    entries: Iterable[AnswerEntry],
    arrived: Iterable[SoakArrival],
    letters: Iterable[StoredLetter],
) -> SoakVerdict:
    """What is wrong, once there will be no more arrivals. `entries` is the whole journal."""
    judging = _Judging(plan, entries)
    for arrival in arrived:
        judging.look_at(arrival)
    for letter in letters:
        judging.look_at_letter(letter)
    return judging.verdict()


class _Judging:
    def __init__(self, plan: SdkPlan, entries: Iterable[AnswerEntry]) -> None:
        self._plan = plan
        self._found = SoakVerdict()
        self._counts: Counter[str] = Counter()
        self._entries = {entry.number: entry for entry in entries}
        self._came = array("b", bytes(MAX_EVENTS * (max(self._entries, default=-1) + 1)))
        """1 for each event that is at the sandbox or among the dead letters."""

    def look_at(self, arrival: SoakArrival) -> None:
        """Check one arrival."""
        event = self._plan.number(arrival.uuid)
        entry = None if event is None else self._entries.get(event // MAX_EVENTS)
        if event is None or entry is None or entry.status not in (PROMISED, UNKNOWN):
            self._tell("came and wasn't accepted", f"{arrival.uuid}")
        elif arrival.kind == "duplicate":
            self._found.repeats += 1
        elif arrival.kind != "new":
            self._tell("came again with other bytes", f"{event}: {arrival.raw[:300]!r}")
        else:
            self._came[event] = 1
            self._found.distinct += 1
            self._found.deliveries.append(
                (entry.due, datetime.fromisoformat(arrival.received_at).timestamp() - entry.due)
            )
            if msgspec.json.decode(arrival.raw) != self._plan.expected(event):
                self._tell("was changed", f"{event}: {arrival.raw[:300]!r}")

    def look_at_letter(self, letter: StoredLetter) -> None:
        """Check a dead letter: this load's are those without a name."""
        try:
            decoded: Any = msgspec.json.decode(letter.data)
        except msgspec.DecodeError:
            decoded = None
        event = self._plan.number(str(decoded.get("uuid"))) if isinstance(decoded, dict) else None
        if event is None or not self._plan.is_nameless(event):
            self._tell("is a dead letter without a reason", f"{letter.data[:300]!r}")
        elif self._came[event]:
            self._tell("is there twice", f"{event}")
        else:
            self._came[event] = 1
            self._found.dead += 1

    def verdict(self) -> SoakVerdict:
        """All that was found."""
        verdict = self._found
        for entry in self._entries.values():
            events = self._plan.request(entry.number).events
            verdict.sent += events
            verdict.uncertain += events if entry.status == UNKNOWN else 0
            if entry.status == PROMISED:
                verdict.accepted += events
                first = entry.number * MAX_EVENTS
                for event in range(first, first + events):
                    if not self._came[event]:
                        self._tell("was accepted and is lost", f"{event}, due at {entry.due:.3f}")
        verdict.problems += [
            f"{what}: {count} in all" for what, count in self._counts.items() if count > SHOWN
        ]
        return verdict

    def _tell(self, what: str, which: str) -> None:
        self._counts[what] += 1
        if self._counts[what] <= SHOWN:
            self._found.problems.append(f"{what}: {which}")


@dataclass(frozen=True, slots=True)
class Growth:
    """A figure of the daemon in the second quarter of the load, and in the last: medians."""

    early: float
    late: float
    allowed: float

    @property
    def has_grown(self) -> bool:
        """Whether it is above what is allowed."""
        return self.late > self.allowed


def growth(values: Sequence[float], allowed: tuple[float, float]) -> Growth:
    """Of figures that were taken at equal distances; the first quarter is the warm-up."""
    quarter = max(1, len(values) // 4)
    early = median(values[quarter : 2 * quarter] or values)
    late = median(values[-quarter:])
    return Growth(early, late, early * allowed[0] + allowed[1])
