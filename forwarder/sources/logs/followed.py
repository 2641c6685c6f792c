"""A followed file, and what is read of it.

A `FollowedFile` is a content: it keeps its identity, its generation and its offsets when its file
is renamed, and when a copy of the file, compressed or not, takes its place. A file whose content
is replaced (copy-truncate) gets another `FollowedFile`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from forwarder.sources.hand_over import Span, Watermark
from forwarder.sources.logs.contents import NOTHING
from forwarder.sources.logs.positions import (
    CUT,
    DONE,
    GONE,
    LEFT,
    PACKED,
    RENAMED,
    REPLACED,
    ReadTime,
    StoredPosition,
)
from forwarder.sources.logs.reading import FileReader, cut_records
from forwarder.telemetry.readable import line_excerpt, plain
from forwarder.telemetry.snapshot import LogFile

if TYPE_CHECKING:
    from forwarder.sources.logs.splitting import LogRecords

FileKey = tuple[int, int]
"""Device and inode."""

EARLIER: Final = 32
"""Anchors that are remembered: one for each time that positions were stored."""
SKIPPED: Final = 2**62
"""The position of a compressed file that was there before the source, where that reads from the
ends of files.
"""


@dataclass(slots=True, eq=False, repr=False)
class FollowedFile:
    """One content. Its identity and generation never change once they are known."""

    key: FileKey
    path: str
    size: int = 0
    modified: int = 0
    """When it was written last, nanoseconds since 1970."""
    changed_at: float = 0.0
    """When its size, time or path changed last, monotonic seconds."""
    identity: str = ""
    """Empty as long as it isn't known; then nothing is read."""
    generation: int = 0
    fingerprint: str = ""
    """Of the first line; empty as long as it isn't complete."""
    head: bytes | None = None
    """The first bytes after the first line, as far as it had them when it
    was found; None: not known.
    """
    original: FollowedFile | None = None
    """What it may be a copy of; as long as that is followed, nothing is read of the copy."""
    before: str = ""
    """The identity of the content that was replaced by this one."""
    size_at_start: int = 0
    """Its size when the source was started for the first time, where that
    reads from the ends of files.
    """
    recalled: bool = False
    """Whether it is known what was stored for the file."""
    packed: bool = False
    """Whether it is compressed."""
    position: int = 0
    """All before it is settled; an offset in the decompressed content."""
    position_check: bytes = NOTHING
    check: bytes = NOTHING
    """The digest of what is before `boundary`; that before `position` is `position_check`."""
    anchor: int = 0
    anchor_check: bytes = NOTHING
    """The digest of what is before `anchor`: so far the content was known when it was recognized
    or stored.
    """
    earlier: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=EARLIER))
    """Former anchors: a copy may end between one of them and `boundary`."""
    times: Sequence[ReadTime] = ()
    """When records that aren't settled were read for the first time, if that is kept."""
    reader: FileReader | None = None
    record_due: float | None = None
    """When a record will have waited long enough for more that was waiting when the file was
    closed, monotonic seconds: only an open file notices that.
    """
    read_status: tuple[int, int] | None = None
    """Size and time when there was nothing more to be read; None: there may be something."""
    queued: bool = False
    done: bool = False
    """Whether it was read to its end, and is compressed or a copy."""
    cut: bool = False
    """Whether it is a copy that ends at `anchor`, before `boundary`: more was read of the original,
    before that was truncated.
    """
    renamed: bool = False
    """Whether it was renamed or copied: then no more is written to it, as a rule."""
    last_line_complete: bool = False
    """Whether its last line counts as complete, with or without a line feed, and was read."""
    unmatched_since: float | None = None
    """When it ceased to match, monotonic seconds: it was renamed or removed. None: it matches."""
    replaced: bool = False
    """Whether this content is no longer in its file."""
    gone: bool = False
    """Whether nothing more is to be read of it, because it was removed or doesn't match any more.
    """
    seen: float = 0.0
    """What its row says of when it was there, wall-clock seconds; 0 as long as it has no row: then
    nothing is read.
    """
    last_line: bytes = b""
    last_read: float | None = None
    _watermark: Watermark | None = None
    """None while nothing is outstanding and the file isn't open."""
    _checks: deque[tuple[int, bytes]] | None = None
    """The digests at the ends of what isn't settled."""

    @classmethod
    def from_row(cls, row: StoredPosition, now: float) -> FollowedFile:
        """What is stored of it."""
        file = cls((row.device, row.inode), row.path, row.size, row.modified, now)
        file.adopt(row)
        file.replaced = bool(row.state & REPLACED)
        file.gone = bool(row.state & GONE)
        file.unmatched_since = now if row.state & LEFT else None
        return file

    def adopt(self, row: StoredPosition) -> None:
        """This is the stored content, at the path and with the size that were found."""
        self.identity = row.identity
        self.generation = row.generation
        self.fingerprint = row.fingerprint
        self.position = row.position
        self.position_check = row.tail
        self.check = row.tail
        self.anchor = row.anchor
        self.anchor_check = row.anchor_tail
        self.done = bool(row.state & DONE)
        self.cut = bool(row.state & CUT)
        self.renamed = bool(row.state & RENAMED)
        self.packed = bool(row.state & PACKED)
        self.seen = row.seen

    def row(self, now: float) -> StoredPosition:
        """What is to be stored of it."""
        # what isn't settled has to be read again after a kill
        done = self.done and not self.outstanding
        state = (
            DONE * done
            | RENAMED * self.renamed
            | REPLACED * self.replaced
            | GONE * self.gone
            | PACKED * self.packed
            | CUT * self.cut
        )
        if self.unmatched_since is not None:
            state |= LEFT
        if self.boundary >= self.anchor and self.check and not self.cut:
            if 0 < self.anchor < self.boundary:
                self.earlier.append((self.anchor, self.anchor_check))
            self.anchor = self.boundary
            self.anchor_check = self.check
        known = self.position, self.position_check, self.anchor, self.anchor_check
        name = self.identity, self.generation, self.fingerprint, *self.key, self.path
        return StoredPosition(*name, *known, self.size, self.modified, state, now)

    @property
    def boundary(self) -> int:
        """Where the next block begins."""
        return self.position if self._watermark is None else self._watermark.read

    @property
    def may_hold_records(self) -> bool:
        """Whether records of it may wait for more: it is open, or was closed while one did."""
        return self.reader is not None or self.record_due is not None

    @property
    def outstanding(self) -> bool:
        """Whether a block of it is not settled."""
        return self._watermark is not None and self._watermark.outstanding

    @property
    def unread(self) -> bool:
        """Whether there may be something to be read."""
        return (self.size, self.modified) != self.read_status

    @property
    def has_row(self) -> bool:
        """Whether its identity is stored."""
        return self.seen > 0

    @property
    def lag(self) -> int:
        """Bytes that aren't settled; of compressed ones those of the file that weren't read, and
        none of what may be a copy.
        """
        if self.original is not None:
            return 0
        if self.packed:
            read = 0 if self.reader is None else self.reader.content.consumed
            return 0 if self.done else max(0, self.size - read)
        return max(0, self.size - self.position)

    def split_by_time(
        self, records: LogRecords, now: float
    ) -> tuple[list[tuple[float, LogRecords]], list[ReadTime]]:
        """The records, which begin at `boundary`, by the time when they were read first; and the
        new times, which aren't stored yet.
        """
        parts: list[tuple[float, LogRecords]] = []
        new: list[ReadTime] = []
        first = self.boundary
        for time in self.times:
            if time.first <= first < min(time.end, records.end):
                part, rest = (
                    cut_records(records, time.end) if time.end < records.end else (records, records)
                )
                parts.append((time.at, part))
                first = part.end
                records = rest
        if first < records.end:
            new.append(ReadTime(first, records.end, now))
            self.times = [*self.times, *new]
            parts.append((now, records))
        return parts, new

    def mark_read(self) -> None:
        """There is nothing more to be read until its size or time changes."""
        self.read_status = self.size, self.modified

    def mark_unread(self) -> None:
        """There may be something to be read although the file hasn't changed."""
        self.read_status = None

    def add_block(self, records: LogRecords, at: float, check: bytes) -> Block:
        """These records begin at `boundary`; `check`: the digest of what is before their end."""
        if self._watermark is None or self._checks is None:
            self._watermark = Watermark(self.position)
            self._checks = deque()
        first = self._watermark.read
        span = self._watermark.open(first, records.end, len(records.values) + len(records.overlong))
        self._checks.append((records.end, check))
        self.check = check
        place = self.identity, self.generation, first
        return Block(
            self,
            *place,
            records,
            self.modified / 1e9,
            at,
            span,
            self._watermark,
            records.end - first,
        )

    def settle(self, span: Span) -> None:
        """The records of the span are settled."""
        if self._watermark is None or self._checks is None:
            return
        self._watermark.settle(span)
        while self._checks and self._checks[0][0] <= self._watermark.position:
            self.position, self.position_check = self._checks.popleft()
        if self.times and self.times[0].end <= self.position:
            self.times = [time for time in self.times if time.end > self.position]
        if self.reader is None:
            self.release()

    def rewind(self, span: Span, first: int) -> set[Span]:
        """What was read from there on is read again; the spans that count no more."""
        if self._watermark is None or self._checks is None:
            return set()
        gone = self._watermark.rewind(span, first)
        while self._checks and self._checks[-1][0] > first:
            self._checks.pop()
        self.check = self._checks[-1][1] if self._checks else self.position_check
        self.mark_unread()
        self.done = False
        self.last_line_complete = False
        return set(gone)

    def release(self) -> None:
        """Keep less, if nothing is outstanding: it isn't open."""
        if not self.outstanding:
            self._watermark = self._checks = None

    def statistics(self) -> LogFile:
        """How far it is."""
        position = 0 if self.position == SKIPPED else self.position
        excerpt = line_excerpt(self.last_line)
        return LogFile(
            plain(self.path),
            self.identity,
            position,
            self.size,
            self.lag,
            excerpt,
            self.last_read,
            self.reader is not None,
        )


@dataclass(slots=True, eq=False)
class Block:
    """Neighbouring records of one file."""

    file: FollowedFile
    identity: str
    generation: int
    first: int
    """The offset at which it begins."""
    records: LogRecords
    reference: float
    """A time, in seconds since 1970, before which its lines were written: the file's last change.
    """
    at: float
    """When its records were read for the first time, wall-clock seconds; the same after a restart
    where the policy stores times.
    """
    span: Span
    watermark: Watermark
    size: int
    """Bytes of the file from `first` to the end of the last record."""
