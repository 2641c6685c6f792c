"""The group commits of the log: what was offered, settled, counted and moved since the last one is
written together.

Takes part in the committer: `prepare` builds a group on the loop, the commit thread writes and
syncs it, `finish` acknowledges. If a commit fails, offers that are awaited are rejected;
everything else is kept for the next group, which is tried after a second.

Files can be full before the buffer's limit is reached: a segment that has no room for the next
large record is left as it is. That is `BufferFull`, like the limit. Where events were dropped to
make room, an offer waits for it: the first group writes the marks, which free segments, and the
next one has their room, unless older events have to be copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, Protocol

import msgspec
import structlog

from forwarder.buffer.disk.backlog import cost
from forwarder.buffer.disk.compaction import MovedPiece, still_unsettled
from forwarder.buffer.disk.format import RecordKind
from forwarder.buffer.disk.log import Log, Placement
from forwarder.buffer.disk.log_books import LogBooks
from forwarder.buffer.disk.pending import (
    MARK_BYTES,
    MERGED_BYTES,
    LaneMarks,
    Marks,
    NewRecord,
    Offer,
    OffersDontFitError,
    PendingGroup,
    add_piece,
    add_record,
    merge,
)
from forwarder.buffer.disk.segment import Segment
from forwarder.core.error_text import error_text
from forwarder.core.errors import BUFFER_FULL_HINT, BufferFull, DiskRefuses, RequestTooLarge
from forwarder.core.event import Lane
from forwarder.core.ports import DropCause, DropReason
from forwarder.storage import failpoints
from forwarder.storage.committer import CommitJob, Committer

MAX_PENDING: Final = 32 << 20
"""Bytes that may wait for their fsync: beyond, the senders are faster than the disk."""

MARKS_SECONDS: Final = 0.01
"""Seconds that marks wait to be grouped when nothing is offered."""

RECOVERED: Final = "recovered"
"""The source of events on disk that the books don't have."""

RECORD_OVERHEAD: Final = 512
"""More than a record's header and meta."""

_HINT: Final = "free space at buffer.path, or repair the disk; writing is tried again each second"

_log = structlog.get_logger()


class CommittedBuffer(Protocol):
    """The part of the disk buffer that commits call."""

    def record_written(self, record: NewRecord) -> None:
        """A record is durable: its events can be taken now."""

    def offer_rejected(self, offer: Offer) -> None:
        """An offer is rejected: release its room."""

    def moved(self, segment: Segment, moved: Sequence[tuple[MovedPiece, Placement]]) -> None:
        """The rest of a segment is durable elsewhere."""

    def not_moved(self, segment: Segment) -> None:
        """There is no room for the rest of a segment."""

    def group_ended(self) -> None:
        """A group succeeded or failed."""


class Commits:
    """Builds the group commits of one buffer."""

    def __init__(self, log: Log, committer: Committer, owner: CommittedBuffer) -> None:
        self.log = log
        self._merged = min(MERGED_BYTES, log.size // 4)
        self.marks = Marks()
        self.moving: tuple[Segment, list[MovedPiece]] | None = None
        self.offered = 0
        """What pending offers count for."""
        self.refusing = ""
        """Why the disk refuses to write, while it does."""
        self.closing = False
        """Whether the next group is the last, and marks a clean shutdown."""
        self._lacking = 0
        """What the smallest offer counts for that the full files had no room for, since one had; 0
        if there was none.
        """
        self.held_back = False
        """Whether marks wait for the commit of their dead letters: their events may be needed
        again. Marks that wait for room hold nothing: with the file of their events they are not
        needed, and else there might never be room.
        """
        self._committer = committer
        self._owner = owner
        self._offers: list[Offer] = []
        self._room = 0
        self._dropped = 0
        """Bytes dropped to make room, which later groups than `_dropped_in` have."""
        self._dropped_in = 0
        self._tally = LogBooks()
        self._due = self._first = self._stuck = False
        self._running: PendingGroup | None = None
        committer.add(self)

    def offer(self, offer: Offer) -> None:
        """Write it with the next group. Raises `BufferFull` when the disk refuses, or is too slow,
        or its files are full.
        """
        offered = self.offered + offer[2]
        if offered > self._room:
            self._check_room(offered)
        self.offered = offered
        self._lacking = 0
        if not self._offers:
            self._committer.request()
        self._offers.append(offer)

    def check(self, size: int) -> None:
        """Raises what `offer` would raise now for an offer that counts for `size`."""
        if self.offered + size > self._room:
            self._check_room(self.offered + size)

    def _check_room(self, offered: int) -> None:
        """Raise if no more can be offered: `RequestTooLarge` for what might find no room in empty
        files either, so that its sender doesn't repeat it for ever.
        """
        if self.refusing:
            raise DiskRefuses(
                f"the disk refuses to write: {self.refusing}", retry_after=5.0, hint=_HINT
            )
        if self.offered and offered > MAX_PENDING:
            raise DiskRefuses(
                "too much waits to be written: the disk is slower than the senders",
                hint="use a faster disk",
            )
        room = self._room_left()
        if room < offered and offered - self.offered > self.log.certain_room:
            raise RequestTooLarge(
                "these events would take more than the buffer's files hold for certain "
                f"({self.log.certain_room} bytes)"
            )
        if offered > room and not (self._makes_room and offered <= room + self._dropped):
            self._note_lack(offered - self.offered)
            raise BufferFull("the buffer's files are full", hint=BUFFER_FULL_HINT)

    def drop(self, size: int) -> None:
        """Events that count for so many bytes are dropped to make room for what is offered next."""
        if not self._makes_room:
            self._dropped = 0
        self._dropped += size
        self._dropped_in = self.log.groups + 1

    @property
    def _makes_room(self) -> bool:
        """Whether a group that has the room of what was dropped is still to come."""
        return self.log.groups <= self._dropped_in

    @property
    def files_full(self) -> bool:
        """Whether the files have no room for what was rejected last."""
        return bool(self._lacking) and self.offered + self._lacking > self._room_left()

    def _note_lack(self, size: int) -> None:
        self._lacking = min(self._lacking or size, size)

    def _room_left(self) -> int:
        """The room in the files, beside the group that is being written."""
        return self.log.room(None if self._running is None else self._running.group)

    def _set_room(self) -> None:
        """How much may be offered without `_check_room`: less than the room, and nothing while the
        disk refuses.
        """
        self._room = 0 if self.refusing else min(MAX_PENDING, self._room_left())

    def mark_soon(self) -> None:
        """Marks are pending: write them with the next group, or soon."""
        if not self._due:
            self._due = True
            self._committer.request_within(MARKS_SECONDS)

    def tally(self, lane: Lane | None, source: str, reason: DropCause, count: int) -> None:
        """Count events that were received and dropped at once."""
        self._tally.receive(lane, source, count)
        self._tally.drop(lane, reason, count)
        self.mark_soon()

    def move(self, segment: Segment, pieces: list[MovedPiece]) -> None:
        """Write the rest of a segment again."""
        self.moving = segment, pieces
        self._committer.request()

    def drop_damaged(self, lane: Lane, count: int) -> None:
        """Count events of the buffer that are damaged, and dropped."""
        self._tally.drop(lane, DropReason.DAMAGED, count)
        self._committer.request()

    def receive_recovered(self, lane: Lane, count: int) -> None:
        """Count events of the buffer that the books don't have."""
        self._tally.receive(lane, RECOVERED, count)
        self._committer.request()

    def begin(self) -> None:
        """Begin a segment as soon as the committer is started, to test whether
        the disk can be written.
        """
        self._first = True
        self._committer.request()

    def books(self) -> LogBooks:
        """The books of the log, including what isn't written yet."""
        books = self.log.books.copy()
        books.merge(self._tally)
        return books

    # Called by the committer

    @property
    def awaited(self) -> int:
        return len(self._offers)

    def prepare(self) -> CommitJob | None:
        self._due = False
        if not (
            self._offers
            or self.marks
            or self.moving
            or self._tally.lanes
            or self.closing
            or self._first
            or self.refusing
        ):
            return None
        if failpoints.ARMED and self.marks:
            failpoints.hit("settle.marked")
        try:
            pending = self._build()
        except OffersDontFitError:
            pending = self._build(refuses=True)
        # all that was to be moved may be settled by now: the segment is freed all the same
        nothing = not (pending.group.writes or pending.group.held_back or pending.moving)
        if nothing and not pending.refused:
            if pending.incomplete:
                self._committer.retry()
                self._owner.group_ended()  # a segment may be freed without its last marks
            return None
        self._running = pending
        self._set_room()
        return pending.group

    def _build(self, *, refuses: bool = False) -> PendingGroup:
        """A group of everything pending; `refuses`: without offers, which are rejected."""
        pending = PendingGroup(self.log.begin())
        try:
            self._add_settled(pending)
            self._add_moved(pending)
            if refuses:
                pending.refused = self._offers
                self._offers = []
                self.offered = 0
            else:
                self._add_offered(pending)
            self._add_last(pending)
        except OffersDontFitError:
            self._undo(pending)
            raise
        except BufferFull:  # not even the reserve is left: only what is in the group already can go
            pending.incomplete = True
            if self.moving is not None and not pending.moving:
                segment = self.moving[0]
                self.moving = None
                self._owner.not_moved(segment)
            if not self._stuck:
                _log.warning(
                    "the buffer's files are full beyond their reserve; what is settled is marked "
                    "once a file is free"
                )
            self._stuck = True
        else:
            self._stuck = False
        return pending

    def _undo(self, pending: PendingGroup) -> None:
        """Restore everything as it was before the group was begun."""
        self.log.discard(pending.group)
        self._keep_for_later(pending)
        self._offers = [*pending.offers, *pending.refused]
        self.offered = sum([counts_for for _, _, counts_for in self._offers])

    def _keep_for_later(self, pending: PendingGroup) -> None:
        """Keep what is settled in a group that isn't written for the next one."""
        self.marks.put_back(pending.marks)
        self.marks.put_back(pending.dead_lettered)
        if pending.tally is not None:
            self._tally.merge(pending.tally)

    def _add_moved(self, pending: PendingGroup) -> None:
        if self.moving is None:
            return
        segment, moved = self.moving
        records = [
            list(pieces)
            for _, pieces in groupby(still_unsettled(moved), key=lambda piece: piece.sequence)
        ]
        sizes = [sum([len(piece.data) + RECORD_OVERHEAD for piece in pieces]) for pieces in records]
        if pending.group.rolls(sizes) > self.log.available() - len(pending.group.taken):
            self.moving = None
            self._owner.not_moved(segment)
            return
        for pieces, size in zip(records, sizes, strict=True):
            pending.group.make_room(size, 0)  # they stay in one segment
            for piece in pieces:
                pending.moved.append((piece, add_piece(pending.group, piece)))
        pending.moving = True

    def _add_settled(self, pending: PendingGroup) -> None:
        group = pending.group
        parts: list[LaneMarks] = []
        for lane_marks in self.marks.take(dead_lettered=False):
            parts += lane_marks.parts(self._merged)
        for marks in parts:
            record = marks.record()
            try:
                group.add(
                    RecordKind.MARKS,
                    (record.body,),
                    meta=record.meta,
                    flags=record.flags,
                    events=record.events,
                )
            except BufferFull:
                self.marks.put_back([marks])
                pending.incomplete = True
                continue
            group.delta.settle(marks.lane, marks.fate, marks.events)
            pending.marks.append(marks)
        # while the disk refuses, an empty one tests it
        if self._tally.lanes or self._first or self.refusing:
            group.add(RecordKind.TALLY, (msgspec.json.encode(self._tally.plain()),))
            pending.tally = self._tally
            self._tally = LogBooks()
            group.delta.merge(pending.tally)

    def _add_offered(self, pending: PendingGroup) -> None:
        offers = self._offers
        self._offers = []
        offered = self.offered
        self.offered = 0
        group = pending.group
        if offered + RECORD_OVERHEAD * len(offers) <= self.log.room(group):
            pending.offers = offers
        else:
            for offer in offers:
                self._choose(offer, pending)
        for record in merge(pending.offers, self._merged):
            record.sequence = self.log.next_sequence
            self.log.next_sequence += 1
            try:
                record.placement = add_record(group, record)
            except BufferFull as error:
                raise OffersDontFitError from error
            if not record.origin:
                group.delta.receive(record.lane, record.source, record.count)
            pending.records.append(record)

    def _choose(self, offer: Offer, pending: PendingGroup) -> None:
        """Add an offer to the group if the files have room for it; else
        reject it when the group ends.
        """
        chunks, _, counts_for = offer
        size = counts_for + RECORD_OVERHEAD * len(chunks)
        if pending.refused or pending.size + size > self.log.room(pending.group):
            pending.refused.append(offer)  # and all later ones: a lane's events keep their order
        else:
            pending.size += size
            pending.offers.append(offer)

    def _as_many_as_fit(
        self, pending: PendingGroup, lane_marks: list[LaneMarks]
    ) -> list[LaneMarks]:
        """The first marks that together fit a segment; the others go into the next group."""
        size = 0
        for at, marks in enumerate(lane_marks):
            size += MARK_BYTES * len(marks.marks) // 2 + RECORD_OVERHEAD
            if at and size > self.log.size // 2:
                self.marks.put_back(lane_marks[at:])
                pending.incomplete = True
                return lane_marks[:at]
        return lane_marks

    def _add_last(self, pending: PendingGroup) -> None:
        dead_lettered = self._as_many_as_fit(
            pending,
            [
                part
                for marks in self.marks.take(dead_lettered=True)
                for part in marks.parts(self._merged)
            ],
        )
        if dead_lettered:
            try:
                pending.group.add_last([marks.record() for marks in dead_lettered])
            except BufferFull:
                self.marks.put_back(dead_lettered)
                pending.incomplete = True
                raise
            pending.dead_lettered = dead_lettered
        if self.closing and not pending.dead_lettered:
            pending.group.add(RecordKind.CLOSED)

    # Only one group runs at a time, so `job` is known.
    def finish(self, job: CommitJob, error: Exception | None) -> None:  # noqa: ARG002
        pending = self._running
        self._running = None
        if pending is None:
            raise AssertionError("a group ended that wasn't begun")
        if error is None:
            self._written(pending)
        else:
            self._failed(pending, error)
        self._owner.group_ended()
        self._set_room()

    def _written(self, pending: PendingGroup) -> None:
        self.log.commit(pending.group)
        if pending.group.without_last:
            self.marks.put_back(pending.dead_lettered)
        self.held_back = pending.group.without_last
        if self.held_back or pending.incomplete:
            self._committer.retry()
        if self._first:
            self._first = False
            if failpoints.ARMED:
                failpoints.hit("opening.written")
        if self.refusing and pending.group.writes:
            _log.info("the disk can be written again")
            self.refusing = ""
        for record in pending.records:
            self._owner.record_written(record)
        if pending.moving and self.moving is not None:
            segment = self.moving[0]
            self.moving = None
            self._owner.moved(segment, pending.moved)
        self._reject_for_room(pending)
        for _, held, _ in pending.offers:
            if held is not None:
                held(None)

    def _reject_for_room(self, pending: PendingGroup) -> None:
        """Reject what the files had no room for, unless room is being made for it."""
        refused = pending.refused
        if refused and self._is_room_coming(pending):
            self._offers[:0] = refused
            self.offered += sum([counts_for for _, _, counts_for in refused])
            if self._is_compacting():
                self._committer.retry()  # what is copied is written earlier than that
            else:
                self._committer.request()
            return
        for _, _, counts_for in refused:
            self._note_lack(counts_for)
        self._refuse(refused, BufferFull("the buffer's files are full", hint=BUFFER_FULL_HINT))

    def _is_room_coming(self, pending: PendingGroup) -> bool:
        """Whether events were dropped, and what holds their segments is still being written or
        copied.
        """
        written = pending.group.number > self._dropped_in and not pending.moving
        return self._dropped > 0 and (not written or self._is_compacting())

    def _is_compacting(self) -> bool:
        return bool(self.log.in_use) and self.log.in_use[0].busy

    def _failed(self, pending: PendingGroup, error: Exception) -> None:
        """Nothing of the group counts: reject awaited offers, and keep the rest for
        the next group.
        """
        why = error_text(error)
        if self.refusing != why:
            where = str(self.log.directory)
            _log.error(
                "the disk refuses to write; senders get 503 until it can be written",
                why=why,
                directory=where,
                hint=_HINT,
            )
        self.refusing = why
        self.held_back = True
        self.log.abandon(pending.group)
        self._keep_for_later(pending)
        error = DiskRefuses(f"the disk refuses to write: {why}", retry_after=5.0, hint=_HINT)
        self._refuse([*pending.offers, *pending.refused], error)
        self._committer.retry()

    def _refuse(self, offers: Sequence[Offer], error: BufferFull) -> None:
        """Reject awaited offers; those that the buffer has accepted already come
        first in the next group.
        """
        # each chunk by itself from now on: together they might find no room in empty files either
        unawaited: list[Offer] = [
            ((chunk,), None, cost(len(chunk.data), chunk.count))
            for chunks, held, _ in offers
            if held is None
            for chunk in chunks
        ]
        if unawaited:
            self._offers[:0] = unawaited
            self.offered += sum([counts_for for _, _, counts_for in unawaited])
            self._committer.retry()
        for offer in offers:
            held = offer[1]
            if held is not None:
                self._owner.offer_rejected(offer)
                held(error)
