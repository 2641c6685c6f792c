"""Whether the events of an import are there: a manifest compared per UTC day with what a sandbox or an export of the service holds.

Counts say how many events are missing or extra, digests whether those that are there are the same. Only uuids are compared: they follow
from the source's records, and the service keeps them. Memory doesn't grow with the number of events: what was seen goes to a file
(`repeats`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec import Struct, field

from forwarder.sources.imports.books import DayTally
from forwarder.sources.imports.format import ImportedEvent
from forwarder.sources.imports.manifest import ImportManifest
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.times import DAY
from forwarder.sources.imports.uuid_digest import digest_hex, uuid_hash

JOB_PROPERTY: Final = "$import_job_id"
_NONE: Final = msgspec.Raw(b"null")
_COUNTS: Final = ("complete", "repeats", "conflicts")
_EPOCH: Final = date(1970, 1, 1).toordinal()


class InvalidRow(Exception):
    """A row isn't an event with a uuid and a time."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line, self.why = line, why


class StoredRow(Struct, frozen=True):
    """An event as the service has it."""

    uuid: str
    timestamp: str
    """ISO 8601; UTC where it names no zone."""
    properties: msgspec.Raw = _NONE
    """An object, or one as text, as exports of the service's tables have it."""

    def job(self) -> str | None:
        """The import that it says it is from."""
        raw = bytes(self.properties)
        if raw.startswith(b'"'):
            raw = msgspec.json.decode(raw, type=str).encode()
        found = msgspec.json.decode(raw, type=_RowProperties | None)
        return None if found is None else found.job_id


class _RowProperties(Struct, frozen=True):
    job_id: str | None = field(default=None, name=JOB_PROPERTY)


class StoredPage(Struct, frozen=True):
    """A page of the sandbox's `/sandbox/import-events`."""

    results: list[StoredRow]
    next: str | None
    """What the next page comes after; None: this is the last."""


class ArrivedEvents(Struct, frozen=True):
    """What the sandbox counts of an import in one project."""

    api_key: str
    events: int
    conflicts: int


class _Imports(Struct, frozen=True):
    results: list[ArrivedEvents]


class StoredDays:
    """What the service holds of an import, by day.

    Each uuid counts once a day: the service removes repeats some time after it has accepted them, and shows them until then. To be closed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is for what was seen, where memory isn't enough; None: rows are known to be of different events, and only counted."""
        self.conflicts = 0
        """Events that came with the uuid of another one, as far as that is known."""
        self._seen = None if folder is None else Repeats(folder)
        self._sums: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._seen is not None:
            self._seen.close()

    @property
    def repeats(self) -> int:
        """Rows with a uuid that had been there on that day."""
        return 0 if self._seen is None else self._seen.repeats

    def add(self, uuid: str, timestamp: str) -> None:
        """Count an event. Raises ValueError if either isn't what it should be, and ConfigurationError if the file can't be written."""
        at, number = _date(timestamp), uuid_hash(uuid)
        if self._seen is not None and self._seen.is_repeat(_known_by(number, at.toordinal())):
            return
        day = at.isoformat()
        self._sums[day] = self._sums.get(day, 0) + number
        self._counts[day] = self._counts.get(day, 0) + 1

    def days(self) -> dict[str, DayTally]:
        """Counts and digests by day."""
        return {day: DayTally(0, count, digest_hex(self._sums[day])) for day, count in sorted(self._counts.items())}


def decode_rows(records: Iterable[bytes], lines: Iterable[int]) -> Iterator[tuple[int, StoredRow]]:
    """The events of JSON objects, with the lines where they stand. Raises `InvalidRow`."""
    decode = msgspec.json.Decoder(StoredRow).decode
    for number, record in zip(lines, records, strict=False):
        try:
            row = decode(record)
        except ValueError as error:  # msgspec's errors are, too
            raise InvalidRow(number, str(error)) from error
        yield number, row


def decode_page(body: bytes) -> StoredPage:
    """A page of the sandbox's `/sandbox/import-events`. Raises ValueError."""
    return msgspec.json.decode(body, type=StoredPage)


def decode_arrived(body: bytes) -> list[ArrivedEvents]:
    """What the sandbox's `/sandbox/imports` says, by project. Raises ValueError."""
    return msgspec.json.decode(body, type=_Imports).results


def add_stored(found: Iterable[tuple[int, StoredRow]], job: str | None, holding: StoredDays) -> int:
    """Add what is there of a job, or with None all events; how many these are. Raises `InvalidRow`."""
    count = 0
    for number, row in found:
        try:
            if job is None or row.job() == job:
                holding.add(row.uuid, row.timestamp)
                count += 1
        except ValueError as error:
            raise InvalidRow(number, str(error)) from error
    return count


class DayComparison(Struct, frozen=True):
    """One day on both sides."""

    day: str
    expected: int
    found: int
    same: bool
    """As many, and the same uuids."""

    @property
    def missing(self) -> int:
        """At least so many aren't there."""
        return max(0, self.expected - self.found)

    @property
    def extra(self) -> int:
        """At least so many are there that the import didn't bring."""
        return max(0, self.found - self.expected)

    def words(self) -> str:
        """What is to be said of the day."""
        if self.same:
            return f"{self.day}: {_number(self.expected, 'event')}, the same"
        if self.missing:
            return f"{self.day}: {self.missing:,} of {self.expected:,} events are missing"
        if self.extra:
            return f"{self.day}: {_number(self.extra, 'event')} more than the {self.expected:,} that were delivered"
        return f"{self.day}: {_number(self.expected, 'event')}, as many as were delivered, but not the same ones"


class Verification(Struct, frozen=True):
    """How an import compares with what is there."""

    job: str
    days: list[DayComparison]
    repeats: int = 0
    conflicts: int = 0
    complete: bool = True
    """Whether the import has come to its end."""

    @property
    def same(self) -> bool:
        """Whether every event is there, once, and no other."""
        return not self.conflicts and all(each.same for each in self.days)

    def words(self) -> list[str]:
        """The verdict, and a line for each day that isn't the same."""
        expected, found = sum(each.expected for each in self.days), sum(each.found for each in self.days)
        days = _number(len(self.days), "day")
        different = [each for each in self.days if not each.same]
        if different:
            differ = "differs" if len(different) == 1 else "differ"
            verdict = f"{len(different):,} of {days} {differ}: {expected:,} events were delivered, {found:,} are there"
        else:
            verdict = f"All {expected:,} events of {days} are there, by count and by digest of their uuids"
        return [verdict, *(each.words() for each in different), *self._notes()]

    def _notes(self) -> Iterator[str]:
        if self.conflicts:
            number = _number(self.conflicts, "conflict")
            yield f"{number}: an event came with the uuid of another, so the service has both, or one instead of the other"
        if self.repeats:
            yield f"{self.repeats:,} rows repeat a uuid of their day: the service removes them some time later"
        if not self.complete:
            yield "The import isn't complete: what it had in flight when it ended may be there and isn't counted as delivered"

    def json(self) -> bytes:
        """All of it, for machines."""
        days = [{**msgspec.structs.asdict(each), "missing": each.missing, "extra": each.extra} for each in self.days]
        return msgspec.json.encode({"job": self.job, "same": self.same, **{name: getattr(self, name) for name in _COUNTS}, "days": days})


def verify(manifest: ImportManifest, holding: StoredDays) -> Verification:
    """Compare what was delivered with what is there, by day."""
    there: Mapping[str, DayTally] = holding.days()
    empty = DayTally()
    days = []
    for day in sorted(manifest.days.keys() | there.keys()):
        expected, found = manifest.days.get(day, empty), there.get(day, empty)
        if expected.delivered or found.delivered:
            same = (expected.delivered, expected.uuids) == (found.delivered, found.uuids)
            days.append(DayComparison(day, expected.delivered, found.delivered, same))
    return Verification(manifest.job.id, days, holding.repeats, holding.conflicts, manifest.complete)


def _number(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def _known_by(number: int, day: int) -> ImportedEvent:
    """What stands for a uuid on its day."""
    return ImportedEvent("", "", (day - _EPOCH) * DAY, "", {}, natural_key=f"{number:x}")


def _date(timestamp: str) -> date:
    time = datetime.fromisoformat(timestamp)
    try:
        return (time if time.tzinfo in (None, UTC) else time.astimezone(UTC)).date()
    except OverflowError as error:
        raise ValueError(f"{timestamp} is outside the calendar") from error
