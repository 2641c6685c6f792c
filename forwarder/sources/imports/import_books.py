"""What is counted of an import: books of records, and per UTC day of events, with a digest of
uuids by which both sides are compared.

Invariants: books balance at every moment (read = delivered + refused + left out + repeats). Counts
cover only what is settled, so a run that resumes from them counts nothing twice. A dead letter
that was repaired and replayed stays among the refused records, by its reason, because that is what
the source has, and is counted once: its number is saved with the counts, so a letter that is still
there after a kill is removed and not sent again. The digest of uuids is the sum of their hashes
modulo 2^128, so it doesn't depend on their order; it is that of the uuids as numbers, however they
are spelled, and it never changes, for manifests hold it for years.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.times import date_of

EXAMPLES: Final = 5
"""Places that are kept of each reason."""
NAMES: Final = 1000
"""Names of events that are counted one by one."""
OTHER_NAMES: Final = "(other names)"
LONGEST: Final = 200
"""Characters that are kept of a name, or of a reason's detail: all of this is
written with each checkpoint.
"""
_DIGEST: Final = re.compile("[0-9a-f]{32}")
_A: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835
_B: Final = 0xD6E8FEB86659FD93C2B2AE3D27D4EB4F
_MASK: Final = (1 << 128) - 1
_SLOT: Final = 256
_TOGETHER: Final = 1024 * 16
"""Bytes of the uuids in one number."""


def uuid_hash(uuid: str) -> int:
    """128 bits that follow from a uuid, however it is spelled. Raises ValueError if it is none."""
    return _mixed(UUID(uuid).int, _MASK)


def uuid_hashes(uuids: Sequence[str]) -> int:
    """The sum of the hashes of these. Raises ValueError if one is no uuid."""
    digits = "".join(uuids).replace("-", "")
    packed = bytes.fromhex(digits) if len(digits) == 32 * len(uuids) else b""
    if len(packed) != 16 * len(uuids):  # some are spelled otherwise; no spelling is shorter
        return sum(map(uuid_hash, uuids))
    return sum(
        _packed_hashes(packed[start : start + _TOGETHER])
        for start in range(0, len(packed), _TOGETHER)
    )


def digest_hex(total: int) -> str:
    """A sum of hashes, as it is written."""
    return f"{total & _MASK:032x}"


def _packed_hashes(packed: bytes) -> int:
    """The same of uuids of sixteen bytes each: every second of them is hashed, and
    then the others.
    """
    slots = 1 << ((len(packed) + 16) // 32 - 1).bit_length()
    numbers = int.from_bytes(packed)
    masks = _masks(slots)
    return _folded(_mixed(numbers & masks, masks), slots) + _folded(
        _mixed(numbers >> _SLOT // 2 & masks, masks), slots
    )


def _mixed(numbers: int, mask: int) -> int:
    """Each of the numbers that stand `_SLOT` bits apart is hashed; `mask` has the low 128 bits of
    each slot.

    The hash of x is m(m(x, A), B) with m(x, k) = the low 128 bits of p ^ (p >> 64), where p = x *
    k. Hashed, because uuids may be numbered through, and sums of such numbers are soon the same;
    not by a cryptographic hash, because a collision here is of no use to anyone, and a batch costs
    a sixth of what it would then: what is done to one large number is done to each in it.
    """
    numbers *= _A
    numbers = (numbers ^ (numbers >> 64)) & mask
    numbers *= _B
    return (numbers ^ (numbers >> 64)) & mask


def _folded(numbers: int, slots: int) -> int:
    """The sum of all slots: half of them are added to the other half, until there is one."""
    while slots > 1:
        slots //= 2
        half = slots * _SLOT
        numbers = (numbers >> half) + (numbers & ((1 << half) - 1))
    return numbers


@cache
def _masks(slots: int) -> int:
    return int.from_bytes((bytes(16) + b"\xff" * 16) * slots)


_FORMER: Final = {
    "not_json": "undecodable",
    "wrong_type": "invalid_event",
    "no_event": "missing_event",
    "no_id": "missing_distinct_id",
    "no_time": "missing_timestamp",
    "illegal_id": "illegal_distinct_id",
}
"""Reasons as checkpoints and manifests of version 1 of earlier forwarders have them, by those that
dead letters have (`Reason`).
"""
_Counted = TypeVar("_Counted")


def renamed(by_reason: dict[str, _Counted]) -> dict[str, _Counted]:
    """The same with the reasons of today, in their order."""
    if _FORMER.keys().isdisjoint(by_reason):
        return by_reason
    return {_FORMER.get(reason, reason): value for reason, value in by_reason.items()}


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
    repaired: int = field(default=0, name="mended")
    """Of those refused: records whose events have all arrived since, by a
    replay of their dead letters.
    """

    def __post_init__(self) -> None:
        self.refused = renamed(self.refused)

    @property
    def difference(self) -> int:
        """Records of which it isn't known what became of them; below zero: counted more than once.
        0 in every right book.
        """
        return (
            self.read
            - self.delivered
            - sum(self.refused.values())
            - sum(self.left_out.values())
            - self.repeats
        )

    @property
    def unrepaired(self) -> int:
        """Records that were refused, and are still not there; below zero in no right book."""
        return sum(self.refused.values()) - self.repaired

    def add(self, other: RecordBooks) -> None:
        """Count what another book counts, too."""
        self.repaired += other.repaired
        self.read += other.read
        self.delivered += other.delivered
        self.repeats += other.repeats
        _add(self.refused, other.refused)
        _add(self.left_out, other.left_out)


class DayTally(Struct, forbid_unknown_fields=True):
    """The events of one UTC day."""

    source: int = 0
    """That the source has: repeats, and what was left out, not among them."""
    delivered: int = 0
    uuids: str = "0" * 32
    """Of those delivered, the digest, in hex."""

    def add(self, source: int, delivered: int, uuids: int) -> None:
        """Count events; `uuids` is the sum of the hashes of those delivered."""
        self.source += source
        self.delivered += delivered
        self.uuids = digest_hex(int(self.uuids, 16) + uuids)


class RefusalExample(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of the records that a reason was given for."""

    file: str
    line: int
    detail: str
    repaired: bool = False
    """Whether all of its events have arrived since, by a replay of its dead letters."""


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
    """Dead letters that are counted as replayed here, and may still be among the dead letters:
    each leaves once this is saved.
    """

    def __post_init__(self) -> None:
        self.examples = renamed(self.examples)

    def example(self, reason: str, example: RefusalExample) -> None:
        """Keep it, unless there are enough."""
        known = self.examples.setdefault(reason, [])
        if len(known) < EXAMPLES:
            known.append(RefusalExample(example.file, example.line, _shortened(example.detail)))

    def mark_repaired(self, file: str, line: int) -> None:
        """The examples of this record, if it is one, are of a repaired one."""
        for examples in self.examples.values():
            for at, example in enumerate(examples):
                if (example.file, example.line) == (file, line):
                    examples[at] = replace(example, repaired=True)

    def day(self, number: int) -> DayTally:
        """That of a day, counted from 1970."""
        return self.days.setdefault(date_of(number), DayTally())

    def named(self, names: Mapping[str, int]) -> None:
        """Count events that were delivered, by name."""
        counts = self.names
        for whole, count in names.items():
            name = _shortened(whole)
            listed = name if name in counts or len(counts) < NAMES else OTHER_NAMES
            counts[listed] = counts.get(listed, 0) + count

    def spans(self, first: int, last: int) -> None:
        """Events between these times were delivered."""
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
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
    """Empty for repeats."""
    example: RefusalExample | None = None
    """Its position, if it is refused."""


def count_kind(books: RecordBooks, fate: RecordFate) -> None:
    """Count a record that isn't delivered, beside `RecordBooks.read`."""
    if fate.kind is FateKind.REPEAT:
        books.repeats += 1
    else:
        _add(books.refused if fate.kind is FateKind.REFUSED else books.left_out, {fate.reason: 1})


def count_replayed(
    totals: ImportTotals,
    arrived: Sequence[FinishedEvent],
    refused: Sequence[FinishedEvent],
    day: str,
) -> None:
    """Count a replayed dead letter, of which these events have arrived, and the service has
    refused those: they are letters of their own.

    `day`: if it held an event, the UTC day under which the source has it. Empty if it held a
    record, of which no event was counted.
    """
    if day:
        # The event was counted when it was refused; edited, it may be of another day.
        totals.days.setdefault(day, DayTally()).source -= 1
    for event in arrived:
        totals.day(event.day).add(1, 1, uuid_hash(event.uuid))
        totals.named({event.event: 1})
        totals.spans(event.time, event.time)
    for event in refused:
        totals.day(event.day).source += 1
