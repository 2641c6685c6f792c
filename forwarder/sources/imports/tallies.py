"""What is counted of an import: books of records, and per UTC day of events, with a digest of uuids by which both sides can be compared.

Invariants: books balance at every moment (read = delivered + refused + left out + repeats; mended is a part of refused); counts are of what
is settled, in the order of the files' records, so that a run that goes on from them counts nothing twice; a digest doesn't depend on the
order of its uuids.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Final, Protocol

from msgspec import Struct, field

from forwarder.sources.files.records import RecordLocation
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


class CountableEvent(Protocol):
    """What is counted of an event."""

    @property
    def time(self) -> int:
        """Microseconds since 1970, UTC."""

    @property
    def event(self) -> str:
        """Its name."""

    @property
    def uuid(self) -> str:
        """As it is sent."""


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
    """Events delivered, by name: the first `NAMES` names, and the rest together."""
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
