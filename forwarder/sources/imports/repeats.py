"""What the source has twice within a UTC day: it is sent once, and counted (`duplicate_in_source`).

A repeat has everything by which the service deduplicates in common with an earlier event: uuid, event, timestamp and distinct_id (wire
facts: What the service does not tell). Where the uuid stands for the vendor's own key (`ImportedEvent.keyed`), uuid, event and day are
enough; with the name, several events of one record are no repeats of each other.

Invariants: exact in both directions. Uuids are compared as they are, and what else counts by a hash of 64 bits: of a billion events of one
uuid two share one by chance once in forty imports. Memory holds at most `in_memory` of them; then days that weren't seen for longest go to
a file, which is searched only for events of such days, and of these only where one bit in memory doesn't rule the event out. A block of
events without keys whose times are apart from all others (as in a source in the order of time) can have no repeats: it is only kept, and
made searchable once others reach into its times. Without that native imports are slower by more than a quarter. Nothing is kept from run
to run: a resumed run reads its source from the start anyway, and passes every event here again.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Final, NamedTuple, Self

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.times import DAY
from forwarder.storage.private import make_file

DIGESTS_FILE: Final = "repeats.sqlite"
MAX_DIGESTS: Final = 150_000
"""Digests, about 100 bytes each."""
_DAY_COST: Final = 4
"""What a day's set costs beside its digests, in digests: years of a few events a day are bounded too."""
_UUID: Final = 16
_DIGEST: Final = 24
_SPOOLED: Final = 2 << 20
"""Bytes of kept blocks in memory."""
_SPELLED: Final = 36
_FILTER: Final = 1 << 26
"""Bits, eight MiB: with a million digests in the file one search in seventy is in vain, with ten million one in seven."""
_TABLE: Final = (
    "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-4096;"
    "CREATE TABLE seen (day INTEGER, digest BLOB, PRIMARY KEY (day, digest)) WITHOUT ROWID"
)


class Repeats:
    """Knows the events of one run; to be closed. One caller at a time.

    `folder` is the import's own, for the file; it is there already. What asks takes up to a second when memory is full, and raises
    `ConfigurationError` if the file can't be written or read.
    """

    def __init__(self, folder: Path, in_memory: int = MAX_DIGESTS) -> None:
        self._limit = in_memory
        self._days: dict[int, set[bytes]] = {}  # days in memory, the one seen last at the end
        self._held = 0  # what they cost
        self._file = SeenFile(folder / DIGESTS_FILE)
        self._folder = folder
        self._kept: list[_KeptBlock] = []
        self._latest = -1  # the latest time of all that was ever kept
        self._spool = SpooledTemporaryFile(_SPOOLED, dir=str(folder))  # noqa: SIM115 - the digests of what is kept; `close` closes it
        self._searchable = 0, -1  # the earliest and the latest time of what isn't
        self.repeats = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def among(
        self, names: Sequence[str], distinct_ids: Sequence[str], times: Sequence[int], uuids: Sequence[str], keyed: Sequence[bool]
    ) -> list[int]:
        """Which of some events are repeats, by index; all have come from then on."""
        if not times:
            return []
        any_keyed = True in keyed
        if any_keyed:
            columns = zip(names, distinct_ids, times, keyed, strict=True)
            hashes = array("q", [hash((name, None)) if key else hash((name, who, time)) for name, who, time, key in columns])
        else:
            hashes = array("q", map(hash, zip(names, distinct_ids, times, strict=True)))
        data, first, last = _digests(pack_uuids(uuids), hashes), min(times), max(times)
        day, is_one_day = first // DAY, first // DAY == last // DAY
        if first <= self._latest:  # else it is after all that is kept, as in a source in the order of time
            for block in [block for block in self._kept if block.first <= last and first <= block.last]:
                self._make_searchable(block)
        is_apart = first > self._searchable[1] or last < self._searchable[0]
        if is_apart and is_one_day and not any_keyed and len(set(uuids)) == len(uuids):
            self._keep(first, last, data)
            return []
        self._widen(first, last)
        digests = _split(data)
        if is_one_day and day not in self._file.days:
            seen, fresh = self._turn_to(day), set(digests)
            if len(fresh) == len(digests) and seen.isdisjoint(fresh):
                self._add(seen, fresh)
                return []
        return [at for at, (time, digest) in enumerate(zip(times, digests, strict=True)) if self.is_repeat(time // DAY, digest)]

    def is_repeat(self, day: int, digest: bytes) -> bool:
        """Whether a digest came before on the same day; it has come from then on."""
        seen = self._turn_to(day)
        if digest in seen or self._file.has(day, digest):
            self.repeats += 1
            return True
        self._add(seen, {digest})
        return False

    def close(self) -> None:
        """Remove the files."""
        self._file.close()
        self._spool.close()

    def _turn_to(self, day: int) -> set[bytes]:
        seen = self._days.pop(day, None)
        if seen is None:
            seen = set()
            self._held += _DAY_COST
        self._days[day] = seen
        return seen

    def _add(self, seen: set[bytes], fresh: set[bytes]) -> None:
        """Add digests to a day. If memory is full then, days go to the file, those seen longest ago first, until it is half empty."""
        seen |= fresh
        self._held += len(fresh)
        if self._held <= self._limit:
            return
        while self._held > self._limit // 2:
            day = next(iter(self._days))
            digests = self._days.pop(day)
            self._file.add(day, digests)
            self._held -= len(digests) + _DAY_COST

    def _keep(self, first: int, last: int, data: bytes) -> None:
        with _usable(self._folder):
            begin = self._spool.seek(0, os.SEEK_END)
            self._spool.write(data)
        self._kept.append(_KeptBlock(first, last, begin, len(data)))
        self._latest = max(self._latest, last)

    def _make_searchable(self, block: _KeptBlock) -> None:
        self._kept.remove(block)
        self._widen(block.first, block.last)
        with _usable(self._folder):
            self._spool.seek(block.begin)
            data = self._spool.read(block.size)
        self._add(self._turn_to(block.first // DAY), set(_split(data)))

    def _widen(self, first: int, last: int) -> None:
        begin, end = self._searchable
        self._searchable = (min(begin, first), max(end, last)) if begin <= end else (first, last)


class _KeptBlock(NamedTuple):
    """Events of one day that are known, but not searchable."""

    first: int
    last: int
    """The earliest and the latest time of them."""
    begin: int
    size: int
    """Where their digests are, in bytes."""


def _digests(uuids: bytes, hashes: array[int]) -> bytes:
    """Of each event its packed uuid and its hash."""
    words = array("q", uuids)
    whole = array("q", bytes(_DIGEST * len(hashes)))
    whole[::3], whole[1::3], whole[2::3] = words[::2], words[1::2], hashes
    return whole.tobytes()


def _split(digests: bytes) -> list[bytes]:
    return [digests[start : start + _DIGEST] for start in range(0, len(digests), _DIGEST)]


def pack_uuids(uuids: Sequence[str]) -> bytes:
    """Sixteen bytes of each uuid: its own, if it is spelled as most are, else a digest of how it is spelled."""
    if [*map(len, uuids)].count(_SPELLED) == len(uuids):
        return bytes.fromhex("".join(uuids).replace("-", ""))
    return b"".join(
        bytes.fromhex(each.replace("-", "")) if len(each) == _SPELLED else blake2b(each.encode(), digest_size=_UUID).digest()
        for each in uuids
    )


class SeenFile:
    """Digests by day; the file is there once there are any. All raise `ConfigurationError` if it can't be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.unlink(missing_ok=True)
        self._bits = bytearray()  # one is set for each digest in the file
        self._file: sqlite3.Connection | None = None
        self.days: set[int] = set()
        """The days that have any."""

    def has(self, day: int, digest: bytes) -> bool:
        """Whether it was added."""
        if self._file is None or day not in self.days:
            return False
        bit = int.from_bytes(digest[:4]) % _FILTER
        if not self._bits[bit >> 3] >> (bit & 7) & 1:
            return False
        with _usable(self._path):
            return self._file.execute("SELECT 1 FROM seen WHERE day = ? AND digest = ?", (day, digest)).fetchone() is not None

    def add(self, day: int, digests: Collection[bytes]) -> None:
        """Add digests that it hasn't."""
        with _usable(self._path):
            if self._file is None:
                make_file(self._path)
                self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
                self._file.executescript(_TABLE).close()
                self._bits = bytearray(_FILTER >> 3)
            file = self._file
            file.execute("BEGIN")
            file.executemany("INSERT INTO seen VALUES (?, ?)", ((day, digest) for digest in sorted(digests)))
            file.execute("COMMIT")
        self.days.add(day)
        for digest in digests:
            bit = int.from_bytes(digest[:4]) % _FILTER
            self._bits[bit >> 3] |= 1 << (bit & 7)

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """What is seen can be written down, and looked up; else it raises `ConfigurationError`."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        hint = "It holds what was seen: 20 to 40 bytes for each event."
        raise ConfigurationError(f"{path} can't be used: {error_text(error)}", hint=hint) from error
