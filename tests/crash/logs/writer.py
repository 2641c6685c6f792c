"""The writer of the crash test of logs, in a process of its own: numbered lines, and a file that
is rotated in every way there is.

Rotated files are shifted as logrotate does it (`app.log.1` becomes `app.log.2`), by turns with a
new file and by copy and truncation, and some are compressed later. Nothing is ever removed, so
that every line can be read indefinitely.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import random
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tests.support.waiting import pause

START: Final = datetime(2026, 5, 1, 6, tzinfo=UTC)
AT_ONCE: Final = 50
"""Lines of one write."""
LATE: Final = 3
"""After a rename so many writes still go to the renamed file, as those of a server do until it is
told of it.
"""
COMPRESSED: Final = 5
"""Of so many rotations, one compresses an older file."""


def line(number: int) -> bytes:
    """A line without its end; what it says follows from its number."""
    at = (START + timedelta(milliseconds=number)).isoformat(timespec="milliseconds")
    return b'{"n":%d,"who":"p%d","at":"%b","text":"%b"}' % (
        number,
        number * 7919 % 5000,
        at.encode(),
        b"\xc3\xa9x" * (10 + number % 50),
    )


class OneLogWriter:
    """Writes one log."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._path = folder / "app.log"
        self._chance = random.Random(seed)
        self._rotations = 0
        self._late = 0
        """Writes that still go to the file that was renamed; 0 if none was."""
        self._file = self._path.open("ab", buffering=0)

    def write(self, numbers: range) -> None:
        """Lines, some of them in two parts."""
        text = b"".join([line(number) + b"\n" for number in numbers])
        cut = self._chance.randrange(len(text))
        self._file.write(text[:cut])
        self._file.write(text[cut:])
        if self._late:
            self._late -= 1
            if not self._late:
                self._reopen()

    def rotate(self) -> None:
        """Rotate the log in the way whose turn it is."""
        self._rotations += 1
        if self._late:
            self._reopen()
        for number, old in sorted(self._rotated(), reverse=True):
            old.rename(old.with_name(f"app.log.{number + 1}{'.gz' if old.suffix == '.gz' else ''}"))
        target = self._path.with_name("app.log.1")
        if self._rotations % 2:
            self._path.rename(target)
            self._late = LATE
        else:
            shutil.copyfile(self._path, target)
            self._file.truncate(0)
        if self._rotations % COMPRESSED == 0:
            self._compress(self._path.with_name("app.log.3"))

    def _reopen(self) -> None:
        """Write to a new file from now on."""
        self._late = 0
        self._file.close()
        self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the log."""
        self._file.close()

    def _rotated(self) -> Iterator[tuple[int, Path]]:
        for path in self._path.parent.glob("app.log.*"):
            yield int(path.name.split(".")[2]), path

    def _compress(self, path: Path) -> None:
        if path.exists():
            with (
                path.open("rb") as source,
                gzip.open(path.with_name(path.name + ".gz"), "wb", compresslevel=1) as packed,
            ):
                shutil.copyfileobj(source, packed)
            path.unlink()


async def main() -> None:
    """Write so many lines at a pace, with so many rotations spread over them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name in ("seed", "lines", "rotations", "rate"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    writer = OneLogWriter(given.folder, given.seed)
    every = given.lines / (given.rotations + 1)
    began = time.monotonic()
    rotated = 0
    for first in range(0, given.lines, AT_ONCE):
        writer.write(range(first, min(first + AT_ONCE, given.lines)))
        while rotated < given.rotations and first >= every * (rotated + 1):
            writer.rotate()
            rotated += 1
        await pause(max(0.0, began + first / given.rate - time.monotonic()))
    writer.close()


if __name__ == "__main__":
    asyncio.run(main())
