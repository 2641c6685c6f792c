"""What the source has twice within a UTC day: it is sent once, and counted (`duplicate_in_source`).

A repeat has the natural key, the name and the day of an earlier event; where there is no natural key, all that the service collapses
on: uuid, event, timestamp and distinct_id (wire facts: What the service does not tell). The name is part of it so that several events of
one record are never taken for repeats of each other.

Invariants: exact in both directions, for what is compared are digests of 128 bits, all of them kept: of a billion events two share one by
chance once in 10^20 imports. Memory holds at most `in_memory` of them; then days that weren't seen for longest go to a file, which is
searched only for events of such days, and of these only where one bit in memory doesn't say that the digest can't be there.

Nothing is kept from run to run: a run that resumes reads its source from the start anyway, to see that it is the same, and shows every
event to `is_repeat` again. So the file needs no care when the process dies; the next run removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from forwarder.sources.imports.events import ImportedEvent
from forwarder.sources.imports.moments import DAY
from forwarder.sources.imports.raw_events import RawEvents
from forwarder.sources.imports.raw_repeats import RawRepeats
from forwarder.sources.imports.repeats_file import SeenFile

FILE: Final = "repeats.sqlite"

IN_MEMORY: Final = 150_000
"""Digests, about 100 bytes each."""

_DAY_COST: Final = 4
"""What a day's set costs beside its digests, in digests: years of a few events a day are bounded too."""

_HALF: Final = (1 << 64) - 1
_BYTES: Final = 16


class Repeats:
    """Knows the events of one run; to be closed. One caller at a time.

    `folder` is the import's own, for the file; it is there already.
    """

    def __init__(self, folder: Path, in_memory: int = IN_MEMORY) -> None:
        self._limit = in_memory
        self._days: dict[int, set[int]] = {}  # days in memory, the one seen last at the end
        self._held = 0  # what they cost
        self._now = -1  # the day at the end
        self._on_disk: set[int] = set()  # days that have digests in the file; they may have newer ones in memory too
        self._file = SeenFile(folder / FILE)
        self._raw = RawRepeats(folder)
        self.repeats = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def is_repeat(self, event: ImportedEvent) -> bool:
        """Whether an equal event came before, on the same day; this one has come from then on.

        When memory is full, this takes up to a second. Raises `ConfigurationError` if the file can't be written.
        """
        day, digest = event.time // DAY, _digest(event)
        seen = self._days[day] if day == self._now else self._turn_to(day)
        if digest in seen or (day in self._on_disk and self._file.has(day, digest.to_bytes(_BYTES))):
            self.repeats += 1
            return True
        seen.add(digest)
        self._held += 1
        if self._held > self._limit:
            self._spill()
        return False

    def among(self, events: RawEvents) -> Sequence[int]:
        """Which of some events without a natural key are repeats, by index: see `RawRepeats.among`."""
        found = self._raw.among(events)
        self.repeats += len(found)
        return found

    def close(self) -> None:
        """Forget all, and remove the files."""
        self._file.close()
        self._raw.close()
        self._days.clear()
        self._on_disk.clear()

    def _turn_to(self, day: int) -> set[int]:
        seen = self._days.pop(day, None)
        if seen is None:
            seen = set()
            self._held += _DAY_COST
        self._days[day] = seen
        self._now = day
        return seen

    def _spill(self) -> None:
        """Move days to the file, those seen longest ago first, until memory is half empty."""
        while self._held > self._limit // 2:
            day = next(iter(self._days))
            digests = self._days.pop(day)
            self._file.add(day, [digest.to_bytes(_BYTES) for digest in digests])
            self._on_disk.add(day)
            self._held -= len(digests) + _DAY_COST
        if not self._days:
            self._now = -1


def _digest(event: ImportedEvent) -> int:
    """The 128 bits that stand for what makes a repeat: two hashes of texts that differ. Lengths part them, for they may hold any character.

    The hashes are Python's own (SipHash, with a secret of the process): good for a run, and a fifth of the cost of others.
    """
    name, key = event.event, event.natural_key
    if key is None:
        key = f"{event.uuid} {event.time} {event.distinct_id}"
        return hash(f"{len(name)} {name}{key}") & _HALF | (hash((key, name, None)) & _HALF) << 64
    return hash(f"{len(name)} {name}{key}") & _HALF | (hash((key, name)) & _HALF) << 64
