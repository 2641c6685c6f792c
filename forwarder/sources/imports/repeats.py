"""What the source has twice within a UTC day: it is sent once, and counted (`duplicate_in_source`).

A repeat has the natural key, the name and the day of an earlier event; without a natural key, everything by which the service deduplicates:
uuid, event, timestamp and distinct_id (wire facts: What the service does not tell). The name is part of it so that several events of one
record never count as repeats of each other. `Repeats` takes events one by one, `RawRepeats` whole blocks without natural keys; both move
what memory can't hold to a `SeenFile`.

Invariants: exact in both directions. Digests of 128 bits are compared, all of them kept: of a billion events two share one by chance once
in 10^20 imports. In blocks uuids are compared as they are, and time, name and id by a hash of 64 bits. Memory holds at most `in_memory` of
them; then days that weren't seen for longest go to a file, which is searched only for events of such days, and of these only where one bit
in memory doesn't rule the digest out.

Nothing is kept from run to run: a resumed run reads its source from the start anyway, to verify that it is the same, and passes every event
here again. So the files need no care when the process dies; the next run removes them.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Collection, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple, Self

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.format import ImportedEvent, RawEvents
from forwarder.sources.imports.times import DAY
from forwarder.storage.private import make_file, open_file

DIGESTS_FILE: Final = "repeats.sqlite"
MAX_DIGESTS: Final = 150_000
"""Digests, about 100 bytes each."""
_DAY_COST: Final = 4
"""What a day's set costs beside its digests, in digests: years of a few events a day are bounded too."""
_HALF: Final = (1 << 64) - 1
_BYTES: Final = 16
BLOCKS_FILE: Final = "repeats.blocks"
BLOCKS_INDEX: Final = "repeats-blocks.sqlite"
MAX_BLOCK_EVENTS: Final = 300_000
"""Events that aren't searchable, 24 bytes each; of those that are, a quarter as many, 130 bytes each."""
_UUID: Final = 16
_HASH: Final = 8
_EVENT: Final = _UUID + _HASH
_SPELLED: Final = 36
_ALL: Final = 0
"""The one day of the file of what is searchable: times aren't days."""
_FILTER: Final = 1 << 26
"""Bits, eight MiB: with a million digests in the file one search in seventy is in vain, with ten million one in seven."""
_CACHE_KIB: Final = 4_096
_SETTINGS: Final = ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "temp_store=MEMORY", f"cache_size=-{_CACHE_KIB}")
_TABLE: Final = "CREATE TABLE seen (day INTEGER, digest BLOB, PRIMARY KEY (day, digest)) WITHOUT ROWID"


class Repeats:
    """Knows the events of one run; to be closed. One caller at a time.

    `folder` is the import's own, for the file; it is there already.
    """

    def __init__(self, folder: Path, in_memory: int = MAX_DIGESTS) -> None:
        self._limit = in_memory
        self._days: dict[int, set[int]] = {}  # days in memory, the one seen last at the end
        self._held = 0  # what they cost
        self._now = -1  # the day at the end
        self._on_disk: set[int] = set()  # days that have digests in the file; they may have newer ones in memory too
        self._file = SeenFile(folder / DIGESTS_FILE)
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


class _KeptBlock(NamedTuple):
    """A block."""

    first: int
    last: int
    """The earliest and the latest time in it."""
    size: int
    """How many events it has."""
    data: bytes
    """Its uuids, and then its hashes; empty: they are in the file."""
    begin: int = -1
    """Where in the file they are."""

    def reaches(self, first: int, last: int) -> bool:
        return self.first <= last and first <= self.last


class RawRepeats:
    """Knows the events of one run; to be closed. `folder` is the import's own."""

    def __init__(self, folder: Path, in_memory: int = MAX_BLOCK_EVENTS) -> None:
        self._path = folder / BLOCKS_FILE
        self._path.unlink(missing_ok=True)
        self._limit = in_memory
        self._kept: list[_KeptBlock] = []
        self._latest = -1  # the latest time of all that was ever kept
        self._held = 0  # events in memory that aren't searchable
        self._written = 0  # of `_kept`, so many have gone to the file: the oldest
        self._file: BinaryIO | None = None
        self._known: set[bytes] = set()  # searchable
        self._searched = SeenFile(folder / BLOCKS_INDEX)  # searchable too
        self._first, self._last = 0, -1  # the times of what is searchable

    def among(self, events: RawEvents) -> Sequence[int]:
        """Which of some events are repeats, by index; all have come from then on.

        Raises `ConfigurationError` if the files can't be written.
        """
        if not events:
            return ()
        _, first, last = events.bounds
        hashes = array("q", map(hash, zip(events.times, events.names, events.distinct_ids, strict=True)))
        data = (events.packed or pack_uuids(events.uuids)) + hashes.tobytes()
        if first <= self._latest:  # else it is after all that is kept, as in a source in the order of time
            for block in [block for block in self._kept if block.reaches(first, last)]:
                self._make_searchable(block)
        if (first > self._last or last < self._first) and len(set(events.uuids)) == len(events):
            self._keep(_KeptBlock(first, last, len(hashes), data))
            return ()
        self._widen(first, last)
        found = [at for at, each in enumerate(_events(data, len(hashes))) if self._came(each)]
        self._shrink()
        return found

    def close(self) -> None:
        """Forget all, and remove the files."""
        self._kept.clear()
        self._known.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
        self._path.unlink(missing_ok=True)
        self._searched.close()

    def _came(self, event: bytes) -> bool:
        if event in self._known or self._searched.has(_ALL, event):
            return True
        self._known.add(event)
        return False

    def _make_searchable(self, block: _KeptBlock) -> None:
        at = self._kept.index(block)
        del self._kept[at]
        if at < self._written:
            self._written -= 1
        else:
            self._held -= block.size
        self._widen(block.first, block.last)
        self._known.update(_events(block.data or self._read(block), block.size))
        self._shrink()

    def _widen(self, first: int, last: int) -> None:
        nothing = self._last < self._first
        self._first, self._last = (first, last) if nothing else (min(self._first, first), max(self._last, last))

    def _shrink(self) -> None:
        """What is searchable goes to a file, if it is too much."""
        if len(self._known) > self._limit // 4:
            self._searched.add(_ALL, self._known)
            self._known = set()

    def _keep(self, block: _KeptBlock) -> None:
        self._kept.append(block)
        self._latest = max(self._latest, block.last)
        self._held += block.size
        while self._held > self._limit and self._written < len(self._kept) - 1:
            oldest = self._kept[self._written]
            self._kept[self._written] = oldest._replace(data=b"", begin=self._write(oldest.data))
            self._written += 1
            self._held -= oldest.size

    def _write(self, data: bytes) -> int:
        try:
            file = self._file = self._file or os.fdopen(open_file(self._path, os.O_RDWR | os.O_TRUNC), "w+b")
            begin = file.seek(0, 2)
            file.write(data)
        except OSError as error:
            raise _unusable(self._path, error) from error
        return begin

    def _read(self, block: _KeptBlock) -> bytes:
        if self._file is None:
            raise RuntimeError("a block that was written is in no file")
        try:
            self._file.seek(block.begin)
            return self._file.read(block.size * _EVENT)
        except OSError as error:
            raise _unusable(self._path, error) from error


def _events(data: bytes, count: int) -> Collection[bytes]:
    """The events of a block, each as its uuid and its hash."""
    uuids, hashes = range(0, count * _UUID, _UUID), range(count * _UUID, count * _EVENT, _HASH)
    return [data[uuid : uuid + _UUID] + data[its : its + _HASH] for uuid, its in zip(uuids, hashes, strict=True)]


def pack_uuids(uuids: Sequence[str]) -> bytes:
    """Sixteen bytes of each uuid: its own, if it is spelled as most are, else a digest of how it is spelled."""
    if [*map(len, uuids)].count(_SPELLED) == len(uuids):
        return bytes.fromhex("".join(uuids).replace("-", ""))
    return b"".join(map(_packed_one, uuids))


def _packed_one(uuid: str) -> bytes:
    return pack_uuids([uuid]) if len(uuid) == _SPELLED else blake2b(uuid.encode(), digest_size=_UUID).digest()


class SeenFile:
    """Digests by day; the file is there once there are any."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.unlink(missing_ok=True)
        self._bits = bytearray()  # one is set for each digest in the file
        self._file: sqlite3.Connection | None = None

    def __bool__(self) -> bool:
        """Whether it has any."""
        return bool(self._bits)

    def has(self, day: int, digest: bytes) -> bool:
        """Whether it was added. Raises `ConfigurationError` if the file can't be read."""
        if not self._bits:
            return False
        bit = int.from_bytes(digest[:4]) % _FILTER
        if not self._bits[bit >> 3] >> (bit & 7) & 1:
            return False
        try:
            return self._opened().execute("SELECT 1 FROM seen WHERE day = ? AND digest = ?", (day, digest)).fetchone() is not None
        except (sqlite3.Error, OSError) as error:
            raise _unusable(self._path, error) from error

    def add(self, day: int, digests: Collection[bytes]) -> None:
        """Add digests that it hasn't. Raises `ConfigurationError` if the file can't be written."""
        try:
            file = self._opened()
            file.execute("BEGIN")
            file.executemany("INSERT INTO seen VALUES (?, ?)", ((day, digest) for digest in sorted(digests)))
            file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise _unusable(self._path, error) from error
        bits = self._bits = self._bits or bytearray(_FILTER >> 3)
        for digest in digests:
            bit = int.from_bytes(digest[:4]) % _FILTER
            bits[bit >> 3] |= 1 << (bit & 7)

    def close(self) -> None:
        """Forget all, and remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._path.unlink(missing_ok=True)
        self._bits.clear()

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            make_file(self._path)
            self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            for setting in _SETTINGS:
                self._file.execute(f"PRAGMA {setting}").close()
            self._file.execute(_TABLE)
        return self._file


def _unusable(path: Path, error: Exception) -> ConfigurationError:
    """What is seen can't be written down, or looked up."""
    return ConfigurationError(f"{path} can't be used: {error}", hint="It holds what was seen: 20 to 40 bytes for each event.")
