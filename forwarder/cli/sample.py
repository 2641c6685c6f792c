"""A sample of records: a file, compressed or not, its last lines, and what is written to it while
it is followed; or standard input.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.record_blocks import DamagedContent
from forwarder.sources.files.unpacking import Decompress, PeekedStream, find_decompressor

FOLLOWED_LINES: Final = 10
"""Lines from which on a file is followed, unless another number is given."""
_PART: Final = 64 << 10
_POLL_SECONDS: Final = 0.2


class Sample:
    """An open sample, which is read once."""

    def __init__(
        self, file: io.BufferedReader, path: Path | None, lines: int | None, *, follow: bool
    ) -> None:
        """`path`: None for standard input."""
        self._file = file
        self._path = path
        self._lines = lines
        self._follow = follow
        status = None if path is None else os.fstat(file.fileno())
        self._is_file = status is not None and stat.S_ISREG(status.st_mode)
        self.written = status.st_mtime if status is not None and self._is_file else time.time()
        """A time before which it was written, seconds since 1970."""

    def parts(self) -> Iterator[bytes]:
        """Its bytes, from the lines on that were asked for. An empty part: nothing was written for
        a while. Raises `ConfigurationError`.
        """
        try:
            decompress = find_decompressor(self._file.peek(4))
            if decompress is None and self._is_file:
                self._file.seek(0 if self._lines is None else self._last_lines(self._lines))
            elif self._lines is not None:
                yield _tail(self._all(decompress), self._lines)
                return
            yield from self._all(decompress)
            if self._follow and self._is_file and decompress is None:
                yield from self._growth()
        except (OSError, DamagedContent) as error:
            why = error_text(error)
            raise ConfigurationError(
                f"{self._path or 'standard input'} can't be read: {why}",
                hint="See what came before.",
            ) from error

    def _all(self, decompress: Decompress | None) -> Iterator[bytes]:
        if decompress is None:
            while data := self._file.read1(_PART):
                yield data
            return
        unpacked = decompress(PeekedStream(self._file.read1))
        stream = PeekedStream(lambda _: next(unpacked, b""))  # which says of damage what it is
        while data := stream.read(_PART, 1):
            yield data

    def _last_lines(self, count: int) -> int:
        """Where the last lines begin; a last one that hasn't ended is one of them."""
        end = self._file.seek(0, os.SEEK_END)
        begin = end
        left = count
        while begin and left:
            size = min(_PART, begin)
            self._file.seek(begin - size)
            data = self._file.read(size)
            # the line feed at the end doesn't begin a line
            at = len(data) - 1 if begin == end else len(data)
            while left and (at := data.rfind(b"\n", 0, at)) >= 0:
                left -= 1
            if not left:
                return begin - size + at + 1
            begin -= size
        return begin

    def _growth(self) -> Iterator[bytes]:
        """What is written to it from now on, for good. A file that takes its place is read from
        its beginning, as is a truncated one.
        """
        while True:
            if data := self._file.read1(_PART):
                yield data
                continue
            yield b""
            time.sleep(_POLL_SECONDS)
            if self._is_truncated() or self._is_replaced():
                yield b"\n"

    def _is_truncated(self) -> bool:
        if os.fstat(self._file.fileno()).st_size >= self._file.tell():
            return False
        self._file.seek(0)
        return True

    def _is_replaced(self) -> bool:
        try:
            if self._path is None or os.path.samestat(
                self._path.stat(), os.fstat(self._file.fileno())
            ):
                return False
            if self._file.peek(1):  # it was written to before it was replaced
                return False
            replacement = self._path.open("rb")
        except FileNotFoundError:  # between a rename and what follows
            return False
        self._file.close()
        self._file = replacement
        return True

    def close(self) -> None:
        """Close the file, unless it is standard input."""
        if self._path is not None:
            self._file.close()


@contextmanager
def opened(sample: str, lines: int | None, *, follow: bool) -> Iterator[Sample]:
    """The sample: a path, or `-` for standard input. `lines`: only so many at its end. Raises
    `ConfigurationError` if it can't be read.
    """
    if sample == "-":
        buffer: Any = sys.stdin.buffer  # tests put something else in its place
        yield Sample(
            buffer if isinstance(buffer, io.BufferedReader) else io.BufferedReader(buffer),
            None,
            lines,
            follow=False,
        )
        return
    path = Path(sample)
    try:
        file = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        why = error_text(error)
        raise ConfigurationError(
            f"{sample} can't be read: {why}", hint="Name a file of records."
        ) from error
    with closing(
        Sample(file, path, FOLLOWED_LINES if follow and lines is None else lines, follow=follow)
    ) as made:
        yield made


def _tail(parts: Iterator[bytes], count: int) -> bytes:
    """The last lines of what can only be read forwards."""
    lines: deque[bytes] = deque(maxlen=count)
    rest = b""
    for part in parts:
        *ended, rest = (rest + part).split(b"\n")
        lines.extend(line + b"\n" for line in ended)
    if rest:
        lines.append(rest)
    return b"".join(lines)
