"""One file of an archive while it is made: events as JSON lines, compressed as they come, in a
file without a name.

A line is an event exactly as it would stand in a batch, but that line breaks between its tokens
are blanks. The file is one zstd frame with a checksum, so that any reader reads all of it, and a
cut or damaged one is noticed. It has no name until it is published: whatever ends the process, the
system frees it.

Invariant: what was added is in the compressor, in `_unwritten`, or in the file, in this order; a
write that fails loses nothing, and `flush` may be called again.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Final

import zstandard

from forwarder.core.event import Chunk, Lane
from forwarder.storage import failpoints

SUFFIX: Final = ".jsonl.zst"
_LEVEL: Final = 3
_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]")
_KEY_CHARACTERS: Final = 100
"""Of a project key in a file's name; of a longer one the first of them and a digest."""


class Partition(StrEnum):
    """The span of time that a folder of the archive is for; by when an event was
    received, in UTC.
    """

    DAY = "day"
    HOUR = "hour"

    def number(self, received_at: float) -> int:
        """Partitions counted from 1970."""
        return int(received_at // (86_400 if self is Partition.DAY else 3_600))

    def folder(self, received_at: float) -> str:
        """The folder of an event that was received at this wall-clock second, as tools for such
        files read it.
        """
        moment = datetime.fromtimestamp(received_at, UTC)
        return (
            f"date={moment:%Y-%m-%d}"
            if self is Partition.DAY
            else f"date={moment:%Y-%m-%d}/hour={moment:%H}"
        )


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of one process's files. `identity` is the archive's, `run` the process's: no other
    has both.

    A name is never used twice: `number` counts the files of the process.
    """

    identity: str
    run: str

    def name(self, lane: Lane, folder: str, received_at: float, number: int) -> str:
        """The path of a file in the archive:
        `date=2026-03-01/phc_shop-20260301T102030Z-IDENTITYRUN-000001.jsonl.zst`.
        """
        kind = "-historical" if lane.historical else ""
        time = datetime.fromtimestamp(received_at, UTC)
        return (
            f"{folder}/{safe_name(lane.api_key)}{kind}-{time:%Y%m%dT%H%M%SZ}-{self.identity}"
            f"{self.run}-{number:06}{SUFFIX}"
        )


def safe_name(api_key: str) -> str:
    """A project key as part of a file's name: every other character than letters, digits and `_`
    as its code in hex, as in `_2d_`.
    """
    safe = _UNSAFE.sub(lambda found: f"_{ord(found[0]):x}_", api_key)
    if len(safe) <= _KEY_CHARACTERS:
        return safe
    return f"{safe[:_KEY_CHARACTERS]}_{blake2b(api_key.encode(), digest_size=8).hexdigest()}"


class SpooledFile:
    """One file while it grows. Its methods block, and are for one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Raises `OSError` if there can't be a file in this directory."""
        # `close` closes the file.
        self.content = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        self.size = 0
        """Bytes of lines, before compression."""
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
        self._unwritten = b""

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Add the events of chunks. Call `flush` next."""
        text = b"\n".join([event for chunk in chunks for event in _lines(chunk)]) + b"\n"
        self.size += len(text)
        self._unwritten += self._compressor.compress(text)

    def end(self) -> None:
        """Add nothing more. Call `flush` next."""
        self._unwritten += self._compressor.flush()

    def flush(self) -> None:
        """Write what is compressed. Raises `OSError` if that fails, and can be called again."""
        while self._unwritten:
            if failpoints.ARMED:
                failpoints.hit("archive.spooling")
            written = self.content.write(self._unwritten) or 0
            self._unwritten = self._unwritten[written:]

    def close(self) -> None:
        """Free the file's space."""
        self.content.close()


def _lines(chunk: Chunk) -> list[bytes]:
    data = chunk.data
    # white space between tokens: within a string JSON has neither
    if b"\n" in data or b"\r" in data:
        data = data.translate(_BREAKS)
        return (
            [data]
            if chunk.count == 1
            else Chunk(chunk.lane, data, chunk.count, chunk.ids, chunk.received_at).events()
        )
    return chunk.events()
