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

import sqlite3
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from forwarder.core.errors import ConfigurationError
from forwarder.migration.events import Event
from forwarder.migration.moments import DAY

FILE: Final = "repeats.sqlite"

IN_MEMORY: Final = 250_000
"""Digests, about 100 bytes each."""

_DAY_COST: Final = 4
"""What a day's set costs beside its digests, in digests: years of a few events a day are bounded too."""

_FILTER: Final = 1 << 26
"""Bits, eight MiB: with a million digests in the file one search in seventy is in vain, with ten million one in seven."""

_CACHE_KIB: Final = 16_384
_SETTINGS: Final = ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "temp_store=MEMORY", f"cache_size=-{_CACHE_KIB}")
_TABLE: Final = "CREATE TABLE seen (day INTEGER, digest BLOB, PRIMARY KEY (day, digest)) WITHOUT ROWID"


class Repeats:
    """Knows the events of one run; to be closed. One caller at a time.

    `folder` is the import's own, for the file; it is there already.
    """

    def __init__(self, folder: Path, in_memory: int = IN_MEMORY) -> None:
        self._path = folder / FILE
        self._path.unlink(missing_ok=True)
        self._limit = in_memory
        self._days: dict[int, set[bytes]] = {}  # days in memory, the one seen last at the end
        self._held = 0  # what they cost
        self._now = -1  # the day at the end
        self._on_disk: set[int] = set()  # days that have digests in the file; they may have newer ones in memory too
        self._bits = bytearray()  # one is set for each digest in the file
        self._file: sqlite3.Connection | None = None
        self.repeats = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def is_repeat(self, event: Event) -> bool:
        """Whether an equal event came before, on the same day; this one has come from then on.

        When memory is full, this takes up to a second. Raises `ConfigurationError` if the file can't be written.
        """
        day, digest = event.time // DAY, _digest(event)
        seen = self._days[day] if day == self._now else self._turn_to(day)
        if digest in seen or (day in self._on_disk and self._is_in_file(day, digest)):
            self.repeats += 1
            return True
        seen.add(digest)
        self._held += 1
        if self._held > self._limit:
            self._spill()
        return False

    def close(self) -> None:
        """Forget all, and remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._path.unlink(missing_ok=True)
        self._days.clear()
        self._on_disk.clear()
        self._bits.clear()

    def _turn_to(self, day: int) -> set[bytes]:
        seen = self._days.pop(day, None)
        if seen is None:
            seen = set()
            self._held += _DAY_COST
        self._days[day] = seen
        self._now = day
        return seen

    def _is_in_file(self, day: int, digest: bytes) -> bool:
        bit = int.from_bytes(digest[:4]) % _FILTER
        if not self._bits[bit >> 3] >> (bit & 7) & 1:
            return False
        try:
            return self._opened().execute("SELECT 1 FROM seen WHERE day = ? AND digest = ?", (day, digest)).fetchone() is not None
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _spill(self) -> None:
        """Move days to the file, those seen longest ago first, until memory is half empty."""
        try:
            file = self._opened()
            file.execute("BEGIN")
            while self._held > self._limit // 2:
                day = next(iter(self._days))
                digests = self._days.pop(day)
                file.executemany("INSERT INTO seen VALUES (?, ?)", ((day, digest) for digest in sorted(digests)))
                self._mark(digests)
                self._on_disk.add(day)
                self._held -= len(digests) + _DAY_COST
            file.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        if not self._days:
            self._now = -1

    def _mark(self, digests: set[bytes]) -> None:
        bits = self._bits = self._bits or bytearray(_FILTER >> 3)
        for digest in digests:
            bit = int.from_bytes(digest[:4]) % _FILTER
            bits[bit >> 3] |= 1 << (bit & 7)

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            for setting in _SETTINGS:
                self._file.execute(f"PRAGMA {setting}").close()
            self._file.execute(_TABLE)
        return self._file

    def _unusable(self, error: sqlite3.Error) -> ConfigurationError:
        return ConfigurationError(f"{self._path} can't be used: {error}", hint="It holds what was seen: 20 to 40 bytes for each event.")


def _digest(event: Event) -> bytes:
    """The 128 bits that stand for what makes a repeat. Lengths part the texts, which may hold any character."""
    if event.natural_key is not None:
        text = f"{len(event.event)} {event.event}{event.natural_key}"
    else:
        text = f"{event.uuid} {event.time} {len(event.event)} {event.event}{event.distinct_id}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
