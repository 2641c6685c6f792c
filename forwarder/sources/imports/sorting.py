"""Events sorted by time, of one time in the order in which they came, whatever their number (`--sort`).

Invariants: what comes out is what came in, and equal inputs come out equally. Memory holds about `memory` bytes of events; more go to
sorted runs in a folder (`entries`), which are merged, a bounded number at a time, and each is removed once it is read. However a sorting
ends, none of its files is left; a process that dies leaves them in the folder, and the next one removes them.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Final, Self

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.entries import BlockWriter, DamagedBlocks, SharedRecord, SortedEvent, read_blocks
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.storage.private import open_file
from forwarder.telemetry.readable import size

FILES: Final = "sort-*.run"

_ROOM: Final = (
    "`--sort` needs room for all events there, compressed, and while it sorts for twice that. Make room, or name a folder on a larger disk "
    "with `--state`, and run the command again: nothing of what is sorted was sent."
)


@dataclass(frozen=True, slots=True)
class SortLimits:
    """How much is held at once."""

    memory: int = 24 << 20
    """Bytes of events."""
    runs: int = 64
    """How many runs are merged at once, at least two; each takes up to half a MiB while it is."""


class EventSorter:
    """Takes events, and gives them in order: `add` all, then `merge`, then read `ordered`. Used as a context.

    `folder` is there already, and nobody else sorts in it. All raise `ConfigurationError` if it can't be written in.
    """

    def __init__(self, folder: Path, limits: SortLimits | None = None) -> None:
        self._folder = folder
        self._limits = limits or SortLimits()
        self._held: list[SortedEvent] = []
        self._size = 0
        self._paths: list[Path] = []
        """The runs that weren't read, the oldest first."""
        self._begun = 0
        self.taken = 0
        """Events so far."""

    def __enter__(self) -> Self:
        self._remove_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove_all()

    def add(self, event: FinishedEvent, shared: SharedRecord | None = None) -> None:
        """Take an event."""
        entry = SortedEvent.of(event, self.taken, shared)
        taken = entry.size
        if self._held and self._size + taken > self._limits.memory:
            self._spill()
        self._held.append(entry)
        self._size += taken
        self.taken += 1

    def merge(self) -> Iterator[int]:
        """Make so few runs that they can be read together, as the caller asks on; how many events were written again so far."""
        if not self._paths:
            return
        if self._held:
            self._spill()
        written = 0
        while (count := len(self._paths)) > self._limits.runs:
            together, self._paths = self._split(min(self._limits.runs, count - self._limits.runs + 1))
            with closing(_merged(together)) as entries:
                last = 0
                for last in self._written(entries):
                    yield written + last
                written += last

    def ordered(self) -> Generator[SortedEvent]:
        """All events in order, once."""
        if self._paths:
            together, self._paths = self._split(len(self._paths))
            with closing(_merged(together)) as entries:
                yield from entries
        else:
            self._held.sort()
            held, self._held = self._held, []
            yield from held

    def _split(self, count: int) -> tuple[list[Path], list[Path]]:
        """The oldest runs, which whoever reads them removes, and the others."""
        return self._paths[:count], self._paths[count:]

    def _spill(self) -> None:
        self._held.sort()
        for _ in self._written(self._held):
            """All of it at once."""
        self._held, self._size = [], 0

    def _written(self, entries: Iterable[SortedEvent]) -> Iterator[int]:
        """Write a run of entries that are in order; how many so far."""
        path = self._folder / f"sort-{self._begun:06}.run"
        self._begun += 1
        try:
            with os.fdopen(open_file(path, os.O_WRONLY | os.O_EXCL), "wb") as file:  # it holds records of people
                yield from BlockWriter(file).write(entries)
        except OSError as error:
            raise cannot_sort(self._folder, error) from error
        self._paths.append(path)

    def _remove_all(self) -> None:
        """Remove the files, also those of a process that died."""
        self._held, self._paths = [], []
        for path in self._folder.glob(FILES):
            path.unlink(missing_ok=True)


def cannot_sort(folder: Path, error: OSError) -> ConfigurationError:
    """The error for a folder that can't be sorted in."""
    return ConfigurationError(f"{folder} can't be sorted in: {error.strerror or error}", hint=_ROOM)


def check_room(folder: Path, least: int) -> None:
    """Raises `ConfigurationError` if there is less room for files than these bytes."""
    free = disk_usage(folder).free
    if free < least:
        raise ConfigurationError(f"{folder} can't be sorted in: that takes {size(least)} at least, there are {size(free)}", hint=_ROOM)


def _merged(paths: list[Path]) -> Generator[SortedEvent]:
    """The entries of several runs in order."""
    with ExitStack() as stack:
        yield from heapq.merge(*[stack.enter_context(closing(_read(path))) for path in paths])


def _read(path: Path) -> Generator[SortedEvent]:
    """The entries of a run, which is removed then."""
    try:
        with path.open("rb") as file:
            for _, entries in read_blocks(file):
                yield from entries
    except DamagedBlocks as error:
        raise ConfigurationError(
            f"{path} was written a moment ago, and {error}", hint="The disk isn't to be relied on: name a folder on another with `--state`."
        ) from error
    path.unlink()
