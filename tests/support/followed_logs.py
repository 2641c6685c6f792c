"""A directory of logs that is followed, for tests: what is read of each file is kept, under the
identity that it was read with.
"""

from __future__ import annotations

import bz2
import gzip
import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import zstandard

from forwarder.mapping import Mapping
from forwarder.sources.logs.followed import Block
from forwarder.sources.logs.following import Follower
from forwarder.sources.logs.formats import LineFormat
from forwarder.sources.logs.policy import LogPolicy
from forwarder.sources.logs.positions import PositionStore
from forwarder.sources.logs.splitting import Splitter
from tests.support.clock import MIDNIGHT

ROTATE_WAIT = 30.0
"""Seconds without a change after which a rotated file is finished (`rotate_wait`)."""

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": zstandard.compress,
}
"""How files are compressed, by the suffix of their names."""


class LineKey(NamedTuple):
    """What a line that was read is known by."""

    identity: str
    generation: int
    offset: int


def policy_of(*paths: str, max_line: int, **settings: object) -> LogPolicy:
    """A source that follows these; `split`, `format` and `mapping` don't matter for that."""
    unused = cast("Mapping", None), cast("LineFormat", None)
    made = LogPolicy(
        name="logs",
        paths=paths,
        max_line=max_line,
        split=partial(_split, max_line),
        mapping=unused[0],
        line_format=unused[1],
    )
    return replace(made, rotate_wait=ROTATE_WAIT, **settings)  # type: ignore[arg-type]


def _split(max_line: int, offset: int) -> Splitter:
    return Splitter(offset, max_line)


class FollowedLogs:
    """One follower after the other on one store."""

    def __init__(
        self,
        root: Path,
        *globs: str,
        split: Callable[[int], Splitter] | None = None,
        max_line: int = 1000,
        **settings: object,
    ) -> None:
        self.folder = root / "log"
        self.folder.mkdir()
        self.policy = policy_of(
            *[f"{self.folder}/{glob}" for glob in globs or ("*",)], max_line=max_line, **settings
        )
        if split is not None:
            self.policy = replace(self.policy, split=split)
        self.passed = 0.0
        """Seconds since the beginning."""
        self.path = root / "logs.db"
        self.store = PositionStore(self.path)
        self.follower = self._begin()
        self.blocks: list[Block] = []
        """Those that were read and are neither settled nor given up."""
        self.lines: dict[LineKey, str] = {}
        """All that was ever read."""

    def _begin(self) -> Follower:
        return Follower(
            self.policy, self.store, lambda: MIDNIGHT + self.passed, lambda: 1000.0 + self.passed
        )

    def write(self, name: str, text: str, *, mode: str = "a") -> Path:
        """Append to a file."""
        path = self.folder / name
        with path.open(mode) as file:
            file.write(text)
        return path

    def copy_truncate(self, name: str, copy: str) -> None:
        """Copy a file, then truncate it."""
        shutil.copy(self.folder / name, self.folder / copy)
        with (self.folder / name).open("r+") as file:
            file.truncate(0)

    def read(self, changed: Collection[str] | None = None, *, budget: int = 1 << 20) -> list[str]:
        """Look at these paths, or at everything, and read all that there is; its lines."""
        self.follower.look(changed)
        lines = []
        while blocks := self.follower.read(budget):
            for block in blocks:
                lines += self._keep(block)
        return lines

    def _keep(self, block: Block) -> list[str]:
        self.blocks.append(block)
        lines = []
        for offset, value in zip(block.records.offsets, block.records.values, strict=True):
            key = LineKey(block.file.identity, block.file.generation, offset)
            line = value.decode()
            assert self.lines.setdefault(key, line) == line
            lines.append(line)
        return lines

    def read_after(self, seconds: float) -> list[str]:
        """Let so many seconds pass, then look and read twice, as polling would; the lines.

        What the first look finds out by then is often read by the second one only.
        """
        self.passed += seconds
        return self.read() + self.read()

    def settle(self, *, save: bool = True) -> None:
        """Settle all that was read, and store the positions unless `save` is false."""
        for block in self.blocks:
            self.follower.settle(block)
        self.blocks.clear()
        if save:
            self.follower.save()

    def kill_and_restart(self) -> None:
        """Start another follower, which knows nothing but what is stored."""
        for file in list(self.follower._open_files):
            self.follower._close(file)
        self.blocks.clear()
        self.store.close()
        self.store = PositionStore(self.path)
        self.follower = self._begin()

    def close(self) -> None:
        """Close everything."""
        self.follower.close()
        self.store.close()
