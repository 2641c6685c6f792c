"""What a preflight reports, complete, as it is written to JSON; and its counters: frequent and repeated keys, days, the order of time, and
how times are written.

Invariants: no counter grows past its bound, whatever comes; results are the same in every process (no salted hash); totals are always
exact. At most `MOST_DAYS` days are distinguished, and of each file only the latest time so far is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.sources.imports.books import RefusalExample
from forwarder.sources.imports.format import PersonProperties
from forwarder.sources.imports.times import DAY, SECOND, date_of

RECENT: Final = 48 * 3600 * SECOND
"""Historical events should be older than this (wire facts: What the service does not tell)."""
LONGEST: Final = 200
"""Characters that are kept of a key; what differs only after them counts as one."""
MOST_DAYS: Final = 36_600
"""A century. A source that has more days is no history of events; those past it are counted together."""
_ABSENT: Final = Raw(b"null")
_ZONE: Final = re.compile(rb"(?:UTC|GMT|[0-9 ][+-][0-9]{2}(?::?[0-9]{2})?(?::?[0-9]{2})?)$", re.IGNORECASE)
_DATE: Final = len("2026-01-31")
_EPOCH: Final = re.compile(rb"[0-9]{1,19}(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?")
_MAIL: Final = re.compile(rb"(?:[A-Za-z]{3},? )?[0-9]{1,2} [A-Za-z]{3} [0-9]{4} [0-9:]+(?P<zone> .+)?")
_DATE_WITHOUT_HYPHENS: Final = len("20260131")
decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class PreflightTerms:
    """The settings of an import, and the time of its preflight."""

    now: int
    """Microseconds since 1970."""
    max_event: int
    """`upstream.max_event`."""
    batch_events: int
    batch_bytes: int
    rate: float
    """Events per second."""
    until: int | None = None
    """Events from then on are left out; None: `RECENT` before now."""
    person_properties: PersonProperties = "set_once"
    sort: bool = False
    """Events are sorted before they are sent."""
    zone_said: bool = False
    """Times without a zone are known for what they are: the format says so, or `--time-offset`."""

    @property
    def recent(self) -> int:
        """Events from then on are too young for a historical import."""
        return self.now - RECENT

    @property
    def end(self) -> int:
        """Events from then on are left out."""
        return self.recent if self.until is None else self.until


class KeyCount(Struct, frozen=True):
    """A key, and how often it came."""

    key: str
    count: int
    missed: int = 0
    """At most so many more: it was left out once, when too many others came."""


class KeyEstimate(Struct, frozen=True):
    """What is known of many keys."""

    keys: int = 0
    """How many different ones came."""
    repeats: int = 0
    """How many came that had come before."""
    differing: int = 0
    """How many keys came with more than one mark."""
    scale: int = 1
    """1: exact. Otherwise one key in so many was sampled, and the figures are multiplied by it."""


class PreflightDay(Struct):
    """A UTC day of what would be sent."""

    day: str
    events: int = 0
    bytes: int = 0


class TimeKind(StrEnum):
    """How a time is written."""

    ZONE = "with_zone"
    NO_ZONE = "without_zone"
    SECONDS = "epoch_seconds"
    MILLISECONDS = "epoch_milliseconds"
    MICROSECONDS = "epoch_microseconds"


class EventTimes(Struct):
    """When events are. Of all that records make, also those that would be left out."""

    now: str
    until: str
    first: str | None = None
    last: str | None = None
    future: int = 0
    """Later than now."""
    recent: int = 0
    """Would be sent, though they are younger than 48 h."""
    after_until: int = 0
    january_1970: int = 0
    """In the first days that computers count: an epoch of the wrong unit, or a zero."""
    kinds: dict[TimeKind, int] = field(default_factory=dict)
    """How records write them, as far as that is seen."""


class OutOfOrder(Struct):
    """How far what would be sent is from the order of time."""

    late: int = 0
    """Older than one before it; `--sort` puts all of them in order."""
    late_in_file: int = 0
    """The same within one file; naming the files in the order of time fixes the others."""
    furthest_seconds: float = 0.0
    """How much older at most."""


class RefusedForReason(Struct):
    """Records that would be refused for one reason."""

    reason: str
    records: int = 0
    first: tuple[RefusalExample, ...] = ()


class PersonImpact(Struct):
    """Whose events they are, and what they do to them."""

    policy: PersonProperties
    distinct_ids: KeyEstimate = KeyEstimate()
    with_set: int = 0
    """Events that have `$set`."""
    with_set_once: int = 0
    with_unset: int = 0
    merging: int = 0
    """Events that merge two persons."""
    upper_case_ids: int = 0
    """Events that Mixpanel's option `replace_upper_case_ids` gives the id from before, or would give."""
    with_group_set: int = 0
    """Events that have `$group_set`."""


class SendVolume(Struct):
    """What would be sent, and how long it takes."""

    events: int = 0
    bytes: int = 0
    requests: int = 0
    seconds: float = 0.0
    rate: float = 0.0


class PreflightExample(Struct, frozen=True):
    """A record, and what becomes of it."""

    file: str
    line: int
    record: str
    events: tuple[Raw, ...]


class PreflightReport(Struct, frozen=True):
    """Everything."""

    records: int
    record_bytes: int
    silent: int
    """Records that stand for no event."""
    events: int
    volume: SendVolume
    names: tuple[KeyCount, ...]
    other_names: int
    """Events with any other name."""
    days: tuple[PreflightDay, ...]
    other_days: int
    times: EventTimes
    order: OutOfOrder
    refused: tuple[RefusedForReason, ...]
    max_event: int
    illegal_ids: tuple[KeyCount, ...]
    other_illegal_ids: int
    repeats: KeyEstimate
    """Events that came before on the same day: they are sent once."""
    uuids: KeyEstimate
    """A differing one stands for events that aren't the same: the service keeps each of them."""
    persons: PersonImpact
    zone_said: bool
    examples: tuple[PreflightExample, ...]
    sort: bool = False
    """Whether events are sorted before they are sent."""
    broken: tuple[str, ...] = ()
    """Of each file that can't be read to its end: which, where, and why."""

    @property
    def to_send(self) -> int:
        """Events to send, without repeats."""
        return max(0, self.volume.events - self.repeats.repeats)

    @property
    def refused_records(self) -> int:
        """Records that would be refused for any reason."""
        return sum(each.records for each in self.refused)

    @property
    def refused_share(self) -> float:
        """Of all records, from 0 to 1."""
        return share(self.refused_records, self.records)

    def refused_for(self, reason: str) -> int:
        """Records that would be refused for this reason."""
        return sum(each.records for each in self.refused if each.reason == reason)


class TopCounts:
    """How often each key came. Past `capacity` keys the rarer half of them is merged into `other`, so the frequent ones stay."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: dict[str, int] = {}
        self._missed: dict[str, int] = {}
        self._left_out = 0
        self._left_out_at_most = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: str) -> None:
        """Count a key once."""
        key = key if len(key) <= LONGEST else f"{key[: LONGEST - 1]}…"
        if key not in self._counts:
            if len(self._counts) >= self._capacity:
                self._prune()
            if self._left_out_at_most:
                self._missed[key] = self._left_out_at_most
        self._counts[key] = self._counts.get(key, 0) + 1

    def top(self, most: int) -> tuple[KeyCount, ...]:
        """The most frequent keys, the most frequent first."""
        return tuple(KeyCount(key, self._counts[key], self._missed.get(key, 0)) for key in self._ranked()[:most])

    def other(self, most: int) -> int:
        """How often any other than those came."""
        return self._left_out + sum(self._counts[key] for key in self._ranked()[most:])

    def _ranked(self) -> list[str]:
        return sorted(self._counts, key=lambda key: (-self._counts[key], key))

    def _prune(self) -> None:
        leaving = self._ranked()[self._capacity // 2 :]
        # Any one key may have been left out each time, with as many as the most frequent of those that left.
        self._left_out_at_most += self._counts[leaving[0]]
        for key in leaving:
            self._left_out += self._counts.pop(key)
            self._missed.pop(key, None)


class SampledKeys:
    """Which keys came again. Past `limit` keys only those count whose digest ends in a zero bit, then in two, and so on.

    A key that still counts has counted from the first: so the figures don't depend on the order in which keys come.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mask = 0
        self._times: dict[int, int] = {}
        self._marks: dict[int, int] = {}
        self._differing: set[int] = set()

    def __len__(self) -> int:
        return len(self._times)

    def add(self, key: str, mark: int = 0) -> None:
        """Count a key; `mark` is what should be the same whenever it comes."""
        digest = int.from_bytes(blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
        if digest & self._mask:
            return
        seen = self._times.get(digest, 0)
        self._times[digest] = seen + 1
        if not seen:
            if mark:
                self._marks[digest] = mark
            if len(self._times) > self._limit:
                self._thin_out()
        elif self._marks.get(digest, 0) != mark:
            self._differing.add(digest)

    def estimate(self) -> KeyEstimate:
        """What is known so far."""
        scale, keys = self._mask + 1, len(self._times)
        return KeyEstimate(keys * scale, (sum(self._times.values()) - keys) * scale, len(self._differing) * scale, scale)

    def _thin_out(self) -> None:
        while len(self._times) > self._limit:
            mask = self._mask = self._mask * 2 + 1
            self._times = {digest: times for digest, times in self._times.items() if not digest & mask}
        self._marks = {digest: mark for digest, mark in self._marks.items() if digest in self._times}
        self._differing &= self._times.keys()


class DayAmounts:
    """How much there is of each UTC day."""

    def __init__(self, most: int = MOST_DAYS) -> None:
        self._most = most
        self._days: dict[int, PreflightDay] = {}
        self.other = PreflightDay("other")
        """Of the days that came when there were too many."""

    def __len__(self) -> int:
        return len(self._days)

    def add(self, time: int, size: int) -> None:
        """Count an event."""
        day = time // DAY
        amount = self._days.get(day)
        if amount is None:
            amount = self.other if len(self._days) >= self._most else self._days.setdefault(day, PreflightDay(date_of(day)))
        amount.events += 1
        amount.bytes += size

    def all(self) -> tuple[PreflightDay, ...]:
        """Each day, the oldest first."""
        return tuple(copy(self._days[day]) for day in sorted(self._days))

    def requests(self, batch_events: int, batch_bytes: int) -> int:
        """How many requests it takes at least: none spans two days."""
        amounts = (*self._days.values(), self.other)
        return sum(max(-(-each.events // batch_events), -(-each.bytes // batch_bytes)) for each in amounts)


class TimeOrder:
    """Compares each event with those that came before, in the source as a whole and within its file."""

    def __init__(self) -> None:
        self.found = OutOfOrder()
        self._latest = self._latest_in_file = 0
        self._file = ""

    def add(self, file: str, time: int) -> None:
        """Look at the next event."""
        if file != self._file:
            self._file, self._latest_in_file = file, 0
        self.found.late_in_file += time < self._latest_in_file
        self._latest_in_file = max(time, self._latest_in_file)
        if time >= self._latest:
            self._latest = time
        else:
            self.found.late += 1
            self.found.furthest_seconds = max(self.found.furthest_seconds, (self._latest - time) / SECOND)


def kind_of(value: bytes) -> TimeKind | None:
    """How a time is written, from its JSON; None if it isn't one in a form that is known."""
    if value[:1] != b'"':
        return _epoch(value)
    text = value[1:-1].strip()
    if text.replace(b".", b"", 1).isdigit() and len(text) != _DATE_WITHOUT_HYPHENS:
        return _epoch(text)
    if found := _MAIL.fullmatch(text):
        return TimeKind.ZONE if found["zone"] else TimeKind.NO_ZONE
    if not text[:4].isdigit():
        return None
    named = text[-1:] in b"zZ" or _ZONE.search(text[_DATE:])
    return TimeKind.ZONE if named and len(text) > _DATE else TimeKind.NO_ZONE


def _epoch(digits: bytes) -> TimeKind | None:
    if not _EPOCH.fullmatch(digits):
        return None
    number = float(digits)  # the bounds are those of `times`
    return TimeKind.SECONDS if number <= 1e10 else TimeKind.MILLISECONDS if number <= 1e13 else TimeKind.MICROSECONDS


def time_kind(record: bytes, fields: Sequence[str]) -> TimeKind | None:
    """How a record's time is written: the first of these fields that has a value; `name.name` is one level down. None if unknown."""
    try:
        members = decode_members(record) if fields else {}
        for path in fields:
            outer, _, inner = path.partition(".")
            value = members.get(outer, _ABSENT)
            if inner and value is not _ABSENT:
                value = decode_members(value).get(inner, _ABSENT)
            if bytes(value) not in (b"null", b'""'):
                return kind_of(bytes(value))
    except (ValueError, RecursionError):  # of msgspec: what can't be read is refused elsewhere
        return None
    return None


def share(part: int, whole: int) -> float:
    """A part of a whole, from 0 to 1; 0 of nothing."""
    return part / whole if whole else 0.0
