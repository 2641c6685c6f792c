"""Events sorted by time, of one time in the order in which they came, whatever their number (`--sort`).

Invariants: what comes out is what came in, and equal inputs come out equally. Memory holds about `memory` bytes of events; more go to
sorted runs in a folder, which are merged, a bounded number at a time, and each is removed once it is read. However the block ends, none of
its files is left; a process that dies leaves them in the folder, and the next one removes them.

A run is one zstd frame of blocks: four bytes of length (little-endian), then that many of MessagePack, an array of events.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import zstandard

from forwarder.core.errors import ConfigurationError
from forwarder.migration.finishing import Finished
from forwarder.migration.records import Place

FILES: Final = "sort-*.run"

_OVERHEAD: Final = 500
"""Bytes of an event in memory beside its texts."""
_BLOCK: Final = 1 << 18
"""Bytes of events after which a block of a run ends."""
_LENGTH: Final = 4


class _Entry(NamedTuple):
    """An event, so that comparing two compares their times and then their turns, which differ."""

    time: int
    turn: int
    """Counts events as they came."""
    distinct_id: str
    data: bytes
    file: str
    line: int
    number: int

    @property
    def size(self) -> int:
        """About what it takes in memory."""
        return len(self.data) + len(self.distinct_id) + _OVERHEAD


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[_Entry]).decode


@dataclass(frozen=True, slots=True)
class SortLimits:
    """How much is held at once."""

    memory: int = 64 << 20
    """Bytes of events."""
    runs: int = 32
    """How many runs are merged at once, at least two; each takes about two MiB while it is."""


@contextlib.contextmanager
def sorted_by_time(events: Iterable[Finished], folder: Path, limits: SortLimits | None = None) -> Iterator[Iterator[Finished]]:
    """Some events sorted, to be read within the block. All are taken before the first is given.

    `folder` is there already, and nobody else sorts in it. Raises `ConfigurationError` if it can't be written in.
    """
    runs = _Runs(folder, limits or SortLimits())
    runs.remove_all()
    try:
        with contextlib.closing(runs.sorted(events)) as entries:
            yield map(_event, entries)
    finally:
        runs.remove_all()


class _Runs:
    """The sorted runs of one sorting, in the order in which they were written."""

    def __init__(self, folder: Path, limits: SortLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._paths: list[Path] = []
        self._written = 0

    def sorted(self, events: Iterable[Finished]) -> Generator[_Entry, None, None]:
        """All events in order."""
        held: list[_Entry] = []
        size = 0
        for turn, event in enumerate(events):
            entry = _Entry(event.time, turn, event.distinct_id, event.data, event.place.file, event.place.line, event.number)
            if held and size + entry.size > self._limits.memory:
                held.sort()
                self._write(held)
                held, size = [], 0
            held.append(entry)
            size += entry.size
        held.sort()
        while len(self._paths) >= self._limits.runs:  # what is held counts as one
            self._write(_merged(self._take(self._limits.runs)))
        yield from heapq.merge(_merged(self._take(len(self._paths))), held)

    def remove_all(self) -> None:
        """Remove the files, also those of a process that died."""
        for path in self._folder.glob(FILES):
            path.unlink(missing_ok=True)

    def _take(self, count: int) -> list[Path]:
        """The oldest runs, no longer of this list: whoever reads them removes them."""
        taken, self._paths = self._paths[:count], self._paths[count:]
        return taken

    def _write(self, entries: Iterable[_Entry]) -> None:
        """Add a run of entries in order."""
        path = self._folder / f"sort-{self._written:06}.run"
        self._written += 1
        try:
            with path.open("xb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file, closefd=False) as compressed:
                for block in _blocks(entries):
                    compressed.write(len(block).to_bytes(_LENGTH, "little") + block)
        except OSError as error:
            raise ConfigurationError(
                f"{self._folder} can't be sorted in: {error.strerror or error}", hint="It needs room for all events, compressed."
            ) from error
        self._paths.append(path)


def _blocks(entries: Iterable[_Entry]) -> Iterator[bytes]:
    block: list[_Entry] = []
    size = 0
    for entry in entries:
        block.append(entry)
        size += entry.size
        if size >= _BLOCK:
            yield _encode(block)
            block, size = [], 0
    if block:
        yield _encode(block)


def _merged(paths: list[Path]) -> Iterator[_Entry]:
    return heapq.merge(*[_read(path) for path in paths])


def _read(path: Path) -> Iterator[_Entry]:
    """The entries of a run, which is removed then."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as plain:
        while length := plain.read(_LENGTH):
            yield from _decode(plain.read(int.from_bytes(length, "little")))
    path.unlink()


def _event(entry: _Entry) -> Finished:
    return Finished(entry.time, entry.distinct_id, entry.data, Place(entry.file, entry.line), entry.number)
