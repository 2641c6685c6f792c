"""Writes the log: where the next record goes, which segments are in use, and which are free.

Invariants: groups are written one at a time, in sequence; a group's bytes are one write a segment
and one fdatasync a file, and a group counts only when that has returned. After a write or a sync
that failed nothing more is written into that segment, for its content on disk is unknown. Segments
are freed oldest first; the last `RESERVE` of them are never given to new events, so that marks can
always be written and compaction can always continue.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from isal.isal_zlib import crc32

from forwarder.buffer.disk.format import (
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    RecordKind,
    encode_record_header,
)
from forwarder.buffer.disk.log_books import LogBooks
from forwarder.buffer.disk.segment import Segment, write_vectors
from forwarder.core.errors import BufferFull
from forwarder.storage import failpoints

RESERVE: Final = 1
MAX_RECORD_OVERHEAD: Final = 4096
"""More than what a segment needs beside a record that fills it: header, checkpoint, end."""

CHECKPOINT_SHARE: Final = 64
LANE_BYTES: Final = 128
"""A checkpoint's lanes may take a 64th of a segment, at about so many bytes each; idle lanes
beyond that are merged.
"""

KEEP_FREE: Final = 4
"""Free segments that are kept for reuse; more are deleted."""


class Placement(NamedTuple):
    """Where a record is written."""

    segment: Segment
    offset: int
    length: int


class MarksRecord(NamedTuple):
    """Marks that are written last."""

    meta: bytes
    body: bytes
    flags: int
    events: int


class _Write(NamedTuple):
    segment: Segment
    at: int
    vectors: list[bytes]


class LogGroup:
    """One commit: a job of the committer. Records are added on the loop, `run` writes them on the
    commit thread.
    """

    def __init__(self, log: Log, number: int) -> None:
        self._log = log
        self.number = number
        self.writes: list[_Write] = []
        self.tail = log.tail
        self.end = log.tail.end if log.tail else 0
        self.delta = LogBooks()
        """The changes of the group's records to the books."""
        self.taken: list[Segment] = []
        """Segments that the group begins."""
        self.held_back: list[_Write] = []
        """The marks of dead-lettered events: written last, and only if the jobs before this one
        succeeded.
        """
        self.end_before_last = 0
        self.alone = False
        self.began = False
        """Whether anything of the group may be in the files."""

    def add(
        self,
        kind: RecordKind,
        body: Sequence[bytes] = (),
        *,
        meta: bytes = b"",
        fresh: bool = False,
        **fields: int | float,
    ) -> Placement:
        """Add a record; `fresh`: of new events, which may not use the
        reserve. Raises `BufferFull`.
        """
        size = sum(map(len, body))
        self.make_room(RECORD_HEADER_SIZE + len(meta) + size, RESERVE if fresh else 0)
        return self._put(self.writes, kind, body, size, meta, fields)

    def add_last(self, records: Sequence[MarksRecord]) -> None:
        """Add marks that are written only if the jobs before this one succeed; nothing can be
        added behind them. Raises `BufferFull`.
        """
        self.make_room(
            sum([RECORD_HEADER_SIZE + len(record.meta) + len(record.body) for record in records]), 0
        )
        self.end_before_last = self.end
        for record in records:
            fields: dict[str, int | float] = {"flags": record.flags, "events": record.events}
            self._put(
                self.held_back,
                RecordKind.MARKS,
                (record.body,),
                len(record.body),
                record.meta,
                fields,
            )

    @property
    def left(self) -> int:
        """Bytes of records that the tail has room for."""
        return max(0, self.tail.size - self.end - RECORD_HEADER_SIZE) if self.tail else 0

    def make_room(self, length: int, reserve: int) -> None:
        """Begin the next segment if the tail has no room for so many bytes and its
        end. Raises `BufferFull`.
        """
        if length > self.left:
            if length + SEGMENT_HEADER_SIZE > self._log.size:
                raise BufferFull("a record is larger than a segment")
            self._roll(reserve)
            if length > self.left:
                raise BufferFull("a record is larger than a segment")

    def rolls(self, sizes: Sequence[int]) -> int:
        """How many segments more it would take to add records of these sizes, in order, each with
        what belongs to it in one segment.
        """
        size = self._log.size
        left = self.left
        count = 0
        for needed in sizes:
            if needed > left:
                count += 1
                left = size - MAX_RECORD_OVERHEAD
            left -= needed
        return count

    def _put(  # noqa: PLR0917 - it is called for each record
        self,
        writes: list[_Write],
        kind: RecordKind,
        body: Sequence[bytes],
        size: int,
        meta: bytes,
        fields: dict[str, int | float],
    ) -> Placement:
        segment = self.tail
        if segment is None:
            raise AssertionError("a record needs a segment")
        checksum = 0
        for piece in body:
            checksum = crc32(piece, checksum)
        header = encode_record_header(
            segment.generation,
            kind,
            size=size,
            body_crc=checksum,
            meta=meta,
            **fields,  # type: ignore[arg-type]
        )
        if not writes or writes[-1].segment is not segment:
            writes.append(_Write(segment, self.end, []))
        writes[-1].vectors.append(header)
        writes[-1].vectors.extend(body)
        placement = Placement(segment, self.end, len(header) + size)
        self.end += placement.length
        return placement

    def _roll(self, reserve: int) -> None:
        """Begin the next segment with a checkpoint."""
        log = self._log
        following = log.next_segment(reserve, planned=len(self.taken))
        if self.tail is not None:
            self._put(self.writes, RecordKind.END, (), 0, b"", {})
        self.taken.append(following)
        following.begin(log.next_generation + len(self.taken) - 1)
        self.tail = following
        self.end = SEGMENT_HEADER_SIZE
        self.writes.append(_Write(following, 0, [following.header(log.now())]))
        checkpoint = log.checkpoint(self.delta)
        self._put(self.writes, RecordKind.CHECKPOINT, (checkpoint,), len(checkpoint), b"", {})

    def run(self, *, alone: bool) -> None:
        """Each file is synced before the next one is written: a
        checkpoint counts what is before it.
        """
        self.alone = alone
        if failpoints.ARMED:
            failpoints.hit("commit.begin")
        for segment in self.taken:
            segment.create()
        self.began = True
        for segment, writes in groupby(
            self.writes if alone else self.writes + self.held_back, key=attrgetter("segment")
        ):
            for write in writes:
                write_vectors(segment.fd, write.vectors, write.at)
            segment.check_name()
            if failpoints.ARMED:
                failpoints.hit("checkpoint.written" if self.taken else "commit.written")
            self._log.sync({segment.fd})
        if self._log.sync_found is not None:
            self._log.sync_found()
        if failpoints.ARMED:
            failpoints.hit("commit.synced")

    @property
    def without_last(self) -> bool:
        """Whether the last marks were not written."""
        return self.alone and bool(self.held_back)


def sync_files(descriptors: set[int]) -> None:
    """Return when all that was written to the files is on the disk. Raises `OSError`."""
    for fd in descriptors:
        os.fdatasync(fd)


class Log:
    """The segments of one directory, for one process."""

    def __init__(
        self,
        directory: Path,
        *,
        size: int,
        most: int,
        now: Callable[[], float],
        sync: Callable[[set[int]], None] = sync_files,
    ) -> None:
        """`size`: of a segment, in bytes; `most`: how many there may be."""
        self.directory = directory
        self.size = size
        self.most = most
        self.now = now
        self.sync = sync
        self.next_sequence = 1
        """For the next record of events."""
        self.tail: Segment | None = None
        self.in_use: deque[Segment] = deque()
        """Oldest first, the tail last."""
        self.free: deque[Segment] = deque()
        self._retired: list[Segment] = []
        """Unused ones of another size, from before the limit was changed."""
        self.books = LogBooks()
        self.next_generation = 1
        self.given_up: list[tuple[int, int]] = []
        """Generations, from and to, that a failing disk left without an end, or without content:
        recovery doesn't report them.
        """
        self._checkpoint_size = 0
        self.void: list[tuple[int, int]] = []
        """Generations, and the offset from which on a failed group may have written."""
        self.sync_found: Callable[[], None] | None = None
        """Syncs what was found at the start and couldn't be synced then: the next group that counts
        has done it.
        """
        self.next_number = 1
        self.groups = 0
        self.finished = 0

    def begin(self) -> LogGroup:
        """A new group, to be committed or abandoned before the next one begins."""
        self.groups += 1
        return LogGroup(self, self.groups)

    def next_segment(self, reserve: int, *, planned: int) -> Segment:
        """The next segment; `reserve` must stay free, `planned` are in use
        already. Raises `BufferFull`.
        """
        # what is settled must be marked, whatever the limit
        without_any = self.tail is None and not planned and not reserve
        if self.available() - planned <= reserve and not without_any:
            hint = "the upstream is slower than the senders, or down"
            raise BufferFull("the buffer's files are full; they are being compacted", hint=hint)
        can_make = self.available() - planned > len(self.free)
        # new events leave the last one to the marks: the disk may be full
        if len(self.free) > (1 if reserve and can_make else 0):
            return self.free.popleft()
        return self._plan()

    def _plan(self) -> Segment:
        """A segment whose file isn't created yet."""
        segment = Segment.planned(self.directory, self.next_number, self.size)
        self.next_number += 1
        return segment

    def largest_record(self) -> int:
        """Bytes of events that fit one record, however large its segment's checkpoint."""
        return (
            self.size - SEGMENT_HEADER_SIZE - MAX_RECORD_OVERHEAD // 2 - 2 * self._checkpoint_size
        )

    def make_spare(self) -> None:
        """Keep a free file: what is settled must be marked even when the disk
        is full. Raises `OSError`.
        """
        if not self.free and self.available() > 0:
            spare = self._plan()
            spare.create()
            self.free.append(spare)

    def available(self) -> int:
        """Segments that are free, or may be created."""
        return self.most - len(self.in_use)

    def room(self, group: LogGroup | None = None) -> int:
        """Bytes of records that new events may take, at least; `group`: beside its content."""
        if group is None:
            group = LogGroup(self, self.groups)
        return group.left + max(0, self.available() - len(group.taken) - RESERVE) * (self.size // 2)

    @property
    def certain_room(self) -> int:
        """Bytes of new events that have room once all that is here is settled, whatever the tail
        has left by then, and however many records they are.
        """
        return (self.most - 1 - RESERVE) * (self.size // 2) * 15 // 16

    def checkpoint(self, delta: LogBooks) -> bytes:
        """A segment's checkpoint: the state after everything that was committed, and `delta`."""
        self.books.fold(self.size // CHECKPOINT_SHARE // LANE_BYTES)
        books = self.books.copy()
        books.merge(delta)
        oldest = self.in_use[0].generation if self.in_use else self.next_generation
        self.given_up = [bounds for bounds in self.given_up if bounds[1] >= oldest]
        self.void = [bounds for bounds in self.void if bounds[0] >= oldest]
        state = {
            "oldest": oldest,
            "next": self.next_sequence,
            "given_up": self.given_up,
            "void": self.void,
            "books": books.plain(),
        }
        encoded = msgspec.json.encode(state)
        self._checkpoint_size = len(encoded)
        return encoded

    def commit(self, group: LogGroup) -> None:
        """The group is durable."""
        self.finished = group.number
        self.sync_found = None
        self.books.merge(group.delta)
        self.in_use.extend(group.taken)
        self.next_generation += len(group.taken)
        self._leave([self.tail, *group.taken[:-1]] if group.taken else [])
        self.tail = group.tail
        if self.tail is not None:
            self.tail.end = group.end_before_last if group.without_last else group.end

    def abandon(self, group: LogGroup) -> None:
        """The group failed. Its content on disk is unknown, so its segments are given up, each
        with a generation of its own.
        """
        self.finished = group.number
        if not group.began:
            self.discard(group)
            return
        # nothing in them was acknowledged
        self.free.extend([segment for segment in group.taken if segment.fd >= 0])
        if self.tail is not None:
            self.give_up(self.tail.generation, self.tail.generation)
            self.void.append((self.tail.generation, self.tail.end))
        self.void += [(segment.generation, 0) for segment in group.taken]
        if group.taken:
            self.give_up(self.next_generation, self.next_generation + len(group.taken) - 1)
        self.next_generation += len(group.taken)
        self._leave([self.tail])
        self.tail = None

    def discard(self, group: LogGroup) -> None:
        """The group won't be written: free the segments that it took."""
        self.free.extendleft([segment for segment in reversed(group.taken) if segment.fd >= 0])

    def give_up(self, first: int, last: int) -> None:
        """Record generations without an end, or without content."""
        if self.given_up and self.given_up[-1][1] == first - 1:
            first = self.given_up.pop()[0]
        self.given_up.append((first, last))

    def _leave(self, segments: Sequence[Segment | None]) -> None:
        """Nothing more is written into these: a record may be anywhere in them."""
        for segment in segments:
            if segment is not None:
                segment.end = segment.size

    def release(self, *, keep: bool) -> list[Segment]:
        """Free the oldest segments that hold nothing unsettled, if the marks are durable; return
        them.

        `keep`: some marks wait for longer than a group, so that nothing may be freed.
        """
        freed = []
        while not keep and self.in_use and self.in_use[0] is not self.tail:
            oldest = self.in_use[0]
            if oldest.live > 0 or oldest.readers or oldest.busy or oldest.dead_in > self.finished:
                break
            freed.append(self.in_use.popleft())
        self.free.extend([segment for segment in freed if segment.size == self.size])
        self._retired += [segment for segment in freed if segment.size != self.size]
        return freed

    def surplus(self) -> list[Segment]:
        """Take free segments off the list that need not be kept: the caller deletes them, which
        may take a while.
        """
        retired = self._retired
        self._retired = []
        return retired + [self.free.popleft() for _ in range(len(self.free) - KEEP_FREE)]

    def close(self) -> None:
        """Close all files."""
        for segment in (*self.in_use, *self.free, *self._retired):
            segment.close()
