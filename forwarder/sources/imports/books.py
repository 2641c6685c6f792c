"""What is counted of an import: books of records, and per UTC day of events, with a digest of uuids by which both sides are compared.

A dead letter that was repaired and sent again stays among the refused records, by its reason, because that is what the source has;
`RecordBooks.mended` counts those that have arrived since.

Invariants: books balance at every moment (read = delivered + refused + left out + repeats; mended is a part of refused). Counts cover only
what is settled, in the order of the files' records, so a run that resumes from them counts nothing twice. A digest doesn't depend on the
order of its uuids. A replayed dead letter is counted once: its number is in `ImportTotals.replayed`, which is saved with the counts, so a
letter that is still there after a kill is removed and not sent again. `DayTally.source` never counts an event twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct, field

from forwarder.sources.files.records import RecordLocation
from forwarder.sources.imports.columns import EventBounds, EventColumns, FinishedEvent
from forwarder.sources.imports.times import day_of
from forwarder.sources.imports.uuid_digest import digest_hex, packed_hashes, uuid_hashes

EXAMPLES: Final = 5
"""Places that are kept of each reason."""
NAMES: Final = 1000
"""Names of events that are counted one by one."""
OTHER_NAMES: Final = "(other names)"
LONGEST: Final = 200
"""Characters that are kept of a name, or of a reason's detail: all of this is written with each checkpoint."""
_DIGEST: Final = re.compile("[0-9a-f]{32}")


def check_days(days: Mapping[str, DayTally]) -> None:
    """Raises ValueError if a day is none, or its digest."""
    for day, counted in days.items():
        if date.fromisoformat(day).isoformat() != day or not _DIGEST.fullmatch(counted.uuids):
            raise ValueError(f"{day!r} is no day with a digest")


class RecordBooks(Struct, forbid_unknown_fields=True):
    """What became of records."""

    read: int = 0
    delivered: int = 0
    """Records whose events have all arrived."""
    refused: dict[str, int] = field(default_factory=dict)
    """By reason: by the format, or by the service. These are dead letters."""
    left_out: dict[str, int] = field(default_factory=dict)
    """By reason: a filter, or a record that stands for no event."""
    repeats: int = 0
    """Records that came before with the same natural key, on the same day."""
    mended: int = 0
    """Of those refused: records whose events have all arrived since, by a replay of their dead letters."""

    @property
    def difference(self) -> int:
        """Records of which it isn't known what became of them; below zero: counted more than once. 0 in every right book."""
        return self.read - self.delivered - sum(self.refused.values()) - sum(self.left_out.values()) - self.repeats

    @property
    def unmended(self) -> int:
        """Records that were refused, and are still not there; below zero in no right book."""
        return sum(self.refused.values()) - self.mended

    def add(self, other: RecordBooks) -> None:
        """Count what another book counts, too."""
        self.mended += other.mended
        self.read += other.read
        self.delivered += other.delivered
        self.repeats += other.repeats
        add_counts(self.refused, other.refused)
        add_counts(self.left_out, other.left_out)


class DayTally(Struct, forbid_unknown_fields=True):
    """The events of one UTC day."""

    source: int = 0
    """That the source has: repeats, and what was left out, not among them."""
    delivered: int = 0
    uuids: str = "0" * 32
    """Of those delivered, the digest of `uuid_digest`: the sum of their hashes modulo 2^128, in hex."""

    def arrived(self, uuids: Sequence[str], packed: bytes = b"") -> None:
        """Count events that the source has, and that were delivered. `packed`: the sixteen bytes of each uuid, if they are known."""
        self.source += len(uuids)
        self.delivered += len(uuids)
        self.uuids = digest_hex(int(self.uuids, 16) + (packed_hashes(packed) if packed else uuid_hashes(uuids)))


class RefusalExample(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the records that a reason was given for."""

    file: str
    line: int
    detail: str

    @classmethod
    def at(cls, place: RecordLocation, detail: str) -> RefusalExample:
        """The record at a place."""
        return cls(place.file, place.line, detail)


class ImportTotals(Struct, forbid_unknown_fields=True):
    """What is counted of all files together."""

    days: dict[str, DayTally] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    """Events delivered, by name: the first `REPORT_FILES` names, and the rest together."""
    first: int | None = None
    """Time of the oldest event delivered, in µs since 1970."""
    last: int | None = None
    examples: dict[str, list[RefusalExample]] = field(default_factory=dict)
    """Of each reason for a refusal the first `EXAMPLES` records."""
    replayed: list[int] = field(default_factory=list)
    """Dead letters that are counted as replayed here, and may still be among the dead letters: each leaves once this is saved."""

    def example(self, reason: str, example: RefusalExample) -> None:
        """Keep it, unless there are enough."""
        known = self.examples.setdefault(reason, [])
        if len(known) < EXAMPLES:
            known.append(RefusalExample(example.file, example.line, _shortened(example.detail)))

    def named(self, names: Iterable[str] | Mapping[str, int]) -> None:
        """Count names of events that were delivered; a mapping says of each how often."""
        counts = self.names
        for whole, count in Counter(names).items():
            name = _shortened(whole)
            listed = name if name in counts or len(counts) < NAMES else OTHER_NAMES
            counts[listed] = counts.get(listed, 0) + count

    def spans(self, first: int, last: int) -> None:
        """Events between these times were delivered."""
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def add_counts(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """Add counts to counts."""
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


class FateKind(StrEnum):
    """What becomes of a record that isn't delivered."""

    REFUSED = "refused"
    LEFT_OUT = "left_out"
    REPEAT = "repeat"


class RecordFate(NamedTuple):
    """Why a record isn't delivered."""

    kind: FateKind
    reason: str = ""
    """Of repeats there is only one."""
    example: RefusalExample | None = None
    """Where it stands, of those that are refused."""


def count_fate(books: RecordBooks, totals: ImportTotals, fate: RecordFate) -> None:
    """Count a record that isn't delivered, beside `RecordBooks.read`."""
    count_kind(books, fate)
    if fate.kind is not FateKind.REPEAT and fate.example is not None:
        totals.example(fate.reason, fate.example)


def count_kind(books: RecordBooks, fate: RecordFate) -> None:
    """Count such a record in books alone."""
    if fate.kind is FateKind.REPEAT:
        books.repeats += 1
        return
    counts = books.refused if fate.kind is FateKind.REFUSED else books.left_out
    counts[fate.reason] = counts.get(fate.reason, 0) + 1


def count_events(totals: ImportTotals, events: Sequence[FinishedEvent], *, delivered: bool) -> None:
    """Count events of one UTC day that have arrived, or were refused by the service."""
    day = totals.days.setdefault(day_of(events[0].time), DayTally())
    if not delivered:
        day.source += len(events)
        return
    if isinstance(events, EventColumns):
        uuids, bounds = events.uuids, events.bounds
    else:
        uuids, bounds = (
            [event.uuid for event in events],
            EventBounds.of([event.event for event in events], [event.time for event in events]),
        )
    day.arrived(uuids)
    totals.named(bounds.names)
    totals.spans(bounds.first, bounds.last)


@dataclass(frozen=True, slots=True)
class ReplayedLetter:
    """A letter of which every event is settled."""

    number: int
    arrived: Sequence[FinishedEvent]
    refused: Sequence[FinishedEvent] = ()
    """By the service; they are letters of their own now."""
    day: str = ""
    """If it held an event: the UTC day under which the source has it. Empty if it held a record, of which no event was counted."""
    is_last: bool = False
    """Whether no letter is left of its record."""


def count_replayed(letter: ReplayedLetter, books: Sequence[RecordBooks], totals: ImportTotals) -> None:
    """Count a letter; `books` are those of its file, and what else sums them up."""
    if letter.day:
        totals.days.setdefault(letter.day, DayTally()).source -= 1  # counted when it was refused; perhaps it is of another day now
    for event in letter.arrived:
        totals.days.setdefault(day_of(event.time), DayTally()).arrived([event.uuid])
        totals.named([event.event])
        totals.spans(event.time, event.time)
    for event in letter.refused:
        totals.days.setdefault(day_of(event.time), DayTally()).source += 1
    if letter.is_last and all(each.unmended > 0 for each in books):
        for each in books:
            each.mended += 1
    totals.replayed.append(letter.number)
