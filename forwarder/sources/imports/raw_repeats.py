"""Which events without a natural key came before, asked of whole blocks: those that are all the same to the service.

That is uuid, time, name and distinct_id (wire facts: What the service does not tell). Two events that are the same have one time, so a
block is only compared with the blocks that its own times reach back to: in a source in the order of time, with none, or with the one
before. Each block is kept as 24 bytes an event, for long in memory and then in a file, and becomes searchable once another reaches back to
it.

Invariants: exact. Uuids are compared as they are; time, name and id by a hash of 64 bits, so that two events that differ are taken for one
only if they have one uuid and, by a chance of one in 10^19, one hash. Memory holds at most `in_memory` events, searchable or not.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from forwarder.sources.imports.raw_events import RawEvents
from forwarder.sources.imports.repeats_file import SeenFile, unusable
from forwarder.storage.private import open_file

FILE: Final = "repeats.blocks"
INDEX: Final = "repeats-blocks.sqlite"

IN_MEMORY: Final = 300_000
"""Events that aren't searchable, 24 bytes each; of those that are, a quarter as many, 130 bytes each."""

_UUID: Final = 16
_HASH: Final = 8
_EVENT: Final = _UUID + _HASH
_SPELLED: Final = 36
_ALL: Final = 0
"""The one day of the file of what is searchable: times aren't days."""


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

    def __init__(self, folder: Path, in_memory: int = IN_MEMORY) -> None:
        self._path = folder / FILE
        self._path.unlink(missing_ok=True)
        self._limit = in_memory
        self._kept: list[_KeptBlock] = []
        self._latest = -1  # the latest time of all that was ever kept
        self._held = 0  # events in memory that aren't searchable
        self._written = 0  # of `_kept`, so many have gone to the file: the oldest
        self._file: BinaryIO | None = None
        self._known: set[bytes] = set()  # searchable
        self._searched = SeenFile(folder / INDEX)  # searchable too
        self._first, self._last = 0, -1  # the times of what is searchable

    def among(self, events: RawEvents) -> Sequence[int]:
        """Which of some events are repeats, by index; all have come from then on.

        Raises `ConfigurationError` if the files can't be written.
        """
        if not events:
            return ()
        _, first, last = events.bounds
        hashes = array("q", map(hash, zip(events.times, events.names, events.distinct_ids, strict=True)))
        data = (events.packed or packed(events.uuids)) + hashes.tobytes()
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
            raise unusable(self._path, error) from error
        return begin

    def _read(self, block: _KeptBlock) -> bytes:
        if self._file is None:
            raise RuntimeError("a block that was written is in no file")
        try:
            self._file.seek(block.begin)
            return self._file.read(block.size * _EVENT)
        except OSError as error:
            raise unusable(self._path, error) from error


def _events(data: bytes, count: int) -> Collection[bytes]:
    """The events of a block, each as its uuid and its hash."""
    uuids, hashes = range(0, count * _UUID, _UUID), range(count * _UUID, count * _EVENT, _HASH)
    return [data[uuid : uuid + _UUID] + data[its : its + _HASH] for uuid, its in zip(uuids, hashes, strict=True)]


def packed(uuids: Sequence[str]) -> bytes:
    """Sixteen bytes of each uuid: its own, if it is spelled as most are, else a digest of how it is spelled."""
    if [*map(len, uuids)].count(_SPELLED) == len(uuids):
        return bytes.fromhex("".join(uuids).replace("-", ""))
    return b"".join(map(_packed_one, uuids))


def _packed_one(uuid: str) -> bytes:
    return packed([uuid]) if len(uuid) == _SPELLED else blake2b(uuid.encode(), digest_size=_UUID).digest()
