"""Logs of a disk buffer, written record by record: what a daemon leaves behind, without one."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from isal.isal_zlib import crc32

from forwarder.buffer.disk.format import (
    ALL,
    HISTORICAL,
    SEGMENT_HEADER_SIZE,
    VERSION,
    RecordKind,
    SegmentHeader,
    encode_meta,
    encode_record_header,
    encode_segment_header,
)
from forwarder.buffer.disk.log_books import LogBooks
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Fate
from forwarder.deadletter.schema import DeadLetterDatabase
from forwarder.deadletter.table import DeadLetterCommit, NumberedDeadLetter
from forwarder.storage.directory import DEAD_LETTERS, LOG, LockedDirectory, worker_directory

SEGMENT: int = 256 * 1024


class LogWriter:
    """Writes into one segment of the log of a worker under `root`."""

    def __init__(self, root: Path, worker: int = 0, *, version: int = VERSION) -> None:
        self.directory = worker_directory(root, worker)
        (self.directory / LOG).mkdir(parents=True)
        self.path = self.directory / LOG / "00000001.segment"
        self.path.write_bytes(
            encode_segment_header(SegmentHeader(version, SEGMENT, 1, 1000.0)).ljust(SEGMENT, b"\0")
        )
        self.at = SEGMENT_HEADER_SIZE
        self.sequence = 0
        self._put(
            RecordKind.CHECKPOINT,
            msgspec.json.encode({"oldest": 1, "next": 1, "books": LogBooks().plain()}),
        )

    def events(
        self,
        lane: Lane,
        events: Sequence[bytes],
        *,
        received_at: float = 1_767_225_600.0,
        source: str = "http",
    ) -> int:
        """A record of these events; where in the file it begins."""
        self.sequence += 1
        return self._put(
            RecordKind.DATA,
            b",".join(events),
            meta=encode_meta(source, lane.api_key),
            flags=HISTORICAL if lane.historical else 0,
            count=len(events),
            sequence=self.sequence,
            received_at=received_at,
        )

    def settle(self, lane: Lane, sequence: int, count: int, fate: str = Fate.DELIVERED) -> None:
        """Marks that settle a whole record of `count` events."""
        body = struct.pack("<QQ", sequence, ALL)
        self._put(
            RecordKind.MARKS,
            body,
            meta=encode_meta(fate, lane.api_key),
            flags=HISTORICAL if lane.historical else 0,
            count=count,
        )

    def flip(self, at: int) -> None:
        """Turn a bit of the file."""
        self._write(at, bytes([self.path.read_bytes()[at] ^ 1]))

    def _put(
        self,
        kind: RecordKind,
        body: bytes,
        *,
        meta: bytes = b"",
        flags: int = 0,
        count: int = 0,
        sequence: int = 0,
        received_at: float = 0.0,
    ) -> int:
        begin = self.at
        head = encode_record_header(
            1,
            kind,
            size=len(body),
            body_crc=crc32(body),
            meta=meta,
            flags=flags,
            events=count,
            sequence=sequence,
            received_at=received_at,
        )
        self._write(begin, head + body)
        self.at += len(head) + len(body)
        return begin

    def _write(self, at: int, data: bytes) -> None:
        fd = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(fd, data, at)
        finally:
            os.close(fd)


def write_letters(directory: Path, letters: Sequence[DeadLetter]) -> None:
    """Dead letters in a worker's directory, numbered from 1."""
    file = DeadLetterDatabase(directory / DEAD_LETTERS)
    try:
        numbered = [
            NumberedDeadLetter(number, letter, receipt=False)
            for number, letter in enumerate(letters, 1)
        ]
        DeadLetterCommit(file, logged=True, dead_letters=numbered).run(alone=False)
    finally:
        file.close()


@contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """The directory as if a daemon had it."""
    lock = LockedDirectory.acquire(directory, "buffer.path")
    try:
        yield
    finally:
        lock.release()
