"""The groups of the log: what was offered, settled, tallied and moved since the last one, written together.

A part of the committer: `prepare` puts a group together on the loop, the commit thread writes and syncs it, `finish` tells everybody. If
that fails, what somebody waits for is refused and forgotten, all else waits for the next group, which is tried after a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, Protocol

import msgspec
import structlog

from forwarder.buffer.disk.books import LogBooks
from forwarder.buffer.disk.compaction import MovedPiece, still_unsettled
from forwarder.buffer.disk.format import RecordKind
from forwarder.buffer.disk.log import Log, Placement
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
from forwarder.core.clock import Clock
from forwarder.core.errors import BufferFull, DiskRefuses
from forwarder.core.event import Lane
from forwarder.core.ports import DropReason
from forwarder.storage import failpoints
from forwarder.storage.committer import CommitJob, Committer

MAX_PENDING: Final = 32 << 20
"""Bytes that may wait for their fsync: past it the senders are faster than the disk."""

MARKS_SECONDS: Final = 0.01
"""How long marks wait for others to go with, when nothing is offered."""

RECOVERED: Final = "recovered"
"""The source of events that were found on disk without anything to say where they came from."""

RECORD_OVERHEAD: Final = 512
"""More than a record's header and meta."""

_HINT: Final = "free some space at buffer.path, or mend what is wrong there; it is tried again each second"

_log = structlog.get_logger()


class Owner(Protocol):
    """Who offers, settles and moves."""

    def kept(self, record: NewRecord) -> None:
        """A record is durable: its events can be taken now."""

    def given_up(self, offer: Offer) -> None:
        """An offer isn't taken: its room is free again."""

    def moved(self, segment: Segment, moved: Sequence[tuple[MovedPiece, Placement]]) -> None:
        """What was left of a segment is durable elsewhere."""

    def not_moved(self, segment: Segment) -> None:
        """There is no room for what is left of a segment."""

    def group_ended(self) -> None:
        """A group is over, well or not."""


class Commits:
    """See the module."""

    def __init__(self, log: Log, committer: Committer, clock: Clock, owner: Owner) -> None:
        self.log = log
        self._merged = min(MERGED_BYTES, log.size // 4)
        self.marks = Marks()
        self.moving: tuple[Segment, list[MovedPiece]] | None = None
        self.offered = 0
        """What the offers that wait count for."""
        self.refusing = ""
        """Why the disk refuses, while it does."""
        self.closing = False
        """Whether the next group is the last, and says that the end was in good order."""
        self.held_back = False
        """Whether marks wait for longer than a group: for their dead letters to be written, or for room."""
        self._committer = committer
        self._clock = clock
        self._owner = owner
        self._offers: list[Offer] = []
        self._room = 0
        self._tally = LogBooks()
        self._due = self._first = self._stuck = False
        self._under: PendingGroup | None = None
        committer.add(self)

    def offer(self, offer: Offer) -> None:
        """Write it with the next group. Raises `BufferFull` when the disk refuses, or is too slow, or its files are full."""
        offered = self.offered + offer[2]
        if offered > self._room:
            self._refuse_now(offered)
        self.offered = offered
        if not self._offers:
            self._committer.request()
        self._offers.append(offer)

    def _refuse_now(self, offered: int) -> None:
        """Raise why no more is taken, if that is so."""
        if self.refusing:
            raise DiskRefuses(f"the disk refuses to write: {self.refusing}", retry_after=5.0, hint=_HINT)
        if self.offered and offered > MAX_PENDING:
            raise DiskRefuses("too much waits to be written: the disk is slower than the senders", hint="a faster disk, or fewer senders")
        if offered > self.log.room():
            hint = "the upstream is slower than the senders, or down; see `forwarder status`"
            raise DiskRefuses("the buffer's files are full", hint=hint)

    def _set_room(self) -> None:
        """How much may be offered without a closer look: less than there is room for, and nothing while the disk refuses."""
        self._room = 0 if self.refusing else min(MAX_PENDING, self.log.room())

    def mark_soon(self) -> None:
        """There are marks to be written: with the next group, or soon."""
        if not self._due:
            self._due = True
            self._clock.call_later(MARKS_SECONDS, self._committer.request)

    def tally(self, lane: Lane | None, source: str, reason: DropReason, count: int) -> None:
        """Events were received and dropped at once: the books have to know."""
        self._tally.receive(lane, source, count)
        self._tally.drop(lane, reason, count)
        self.mark_soon()

    def move(self, segment: Segment, pieces: list[MovedPiece]) -> None:
        """Write what is left of a segment again."""
        self.moving = segment, pieces
        self._committer.request()

    def lose(self, lane: Lane, count: int) -> None:
        """Events of the buffer can't be read any more: the books have to know."""
        self._tally.drop(lane, DropReason.DAMAGED, count)
        self._committer.request()

    def find(self, lane: Lane, count: int) -> None:
        """There are events in the buffer that the books don't know: they have to."""
        self._tally.receive(lane, RECOVERED, count)
        self._committer.request()

    def begin(self) -> None:
        """Begin a segment as soon as the committer is started, so that it shows whether the disk takes anything."""
        self._first = True
        self._committer.request()

    def books(self) -> LogBooks:
        """The books as the log has them, what waits to be written included."""
        books = self.log.accounts.copy()
        books.merge(self._tally)
        return books

    # The committer's part

    @property
    def awaited(self) -> int:
        """See `storage.committer.CommitParticipant.awaited`."""
        return len(self._offers)

    def prepare(self) -> CommitJob | None:
        """See `storage.committer.CommitParticipant`."""
        self._due = False
        if not (self._offers or self.marks or self.moving or self._tally.lanes or self.closing or self._first or self.refusing):
            return None
        if failpoints.ARMED and self.marks:
            failpoints.hit("settle.marked")
        try:
            under = self._build()
        except OffersDontFitError:
            under = self._build(refuses=True)
        if not under.group.writes and not under.group.held_back and not under.refused:
            if under.incomplete:
                self._committer.retry()
            return None
        self._under = under
        return under.group

    def _build(self, *, refuses: bool = False) -> PendingGroup:
        """A group of all that there is; `refuses`: without what is offered, which is refused."""
        under = PendingGroup(self.log.begin())
        try:
            self._add_settled(under)
            self._add_moved(under)
            if refuses:
                under.refused, self._offers, self.offered = self._offers, [], 0
            else:
                self._add_offered(under)
            self._add_last(under)
        except OffersDontFitError:
            self._undo(under)
            raise
        except BufferFull:  # not even the reserve is left: only what is in the group already can go
            under.incomplete = True
            if self.moving is not None and not under.moving:
                segment, self.moving = self.moving[0], None
                self._owner.not_moved(segment)
            if not self._stuck:
                _log.error("the buffer's files are full beyond their reserve; what is settled can't be marked before more of it is")
            self._stuck = True
        else:
            self._stuck = False
        return under

    def _undo(self, under: PendingGroup) -> None:
        """Everything is as it was before the group was begun."""
        self.log.discard(under.group)
        self._keep_for_later(under)
        self._offers = [*under.offers, *under.refused]
        self.offered = sum([counts_for for _, _, counts_for in self._offers])

    def _keep_for_later(self, under: PendingGroup) -> None:
        """What is settled in a group that isn't written goes into the next one."""
        self.marks.put_back(under.marks)
        self.marks.put_back(under.buried)
        if under.tally is not None:
            self._tally.merge(under.tally)

    def _add_moved(self, under: PendingGroup) -> None:
        if self.moving is None:
            return
        segment, found = self.moving
        records = [list(pieces) for _, pieces in groupby(still_unsettled(found), key=lambda piece: piece.sequence)]
        sizes = [sum([len(piece.data) + RECORD_OVERHEAD for piece in pieces]) for pieces in records]
        if under.group.rolls(sizes) > self.log.available() - len(under.group.taken):
            self.moving = None
            self._owner.not_moved(segment)
            return
        for pieces, size in zip(records, sizes, strict=True):
            under.group.make_room(size, 0)  # they stay in one segment
            for piece in pieces:
                under.moved.append((piece, add_piece(under.group, piece)))
        under.moving = True

    def _add_settled(self, under: PendingGroup) -> None:
        group = under.group
        for marks in [part for taken in self.marks.take(buried=False) for part in taken.parts(self._merged)]:
            record = marks.record()
            try:
                group.add(RecordKind.MARKS, (record.body,), meta=record.meta, flags=record.flags, events=record.events)
            except BufferFull:
                self.marks.put_back([marks])
                under.incomplete = True
                continue
            group.delta.settle(marks.lane, marks.fate, marks.events)
            under.marks.append(marks)
        if self._tally.lanes or self._first or self.refusing:  # while the disk refuses, an empty one tells when it doesn't any more
            group.add(RecordKind.TALLY, (msgspec.json.encode(self._tally.plain()),))
            under.tally, self._tally = self._tally, LogBooks()
            group.delta.merge(under.tally)

    def _add_offered(self, under: PendingGroup) -> None:
        offers, self._offers = self._offers, []
        offered, self.offered = self.offered, 0
        group = under.group
        if offered + RECORD_OVERHEAD * len(offers) <= self.log.room(group):
            under.offers = offers
        else:
            for offer in offers:
                self._choose(offer, under)
        for record in merge(under.offers, self._merged):
            record.sequence = self.log.next_sequence
            self.log.next_sequence += 1
            try:
                record.placement = add_record(group, record)
            except BufferFull as error:
                raise OffersDontFitError from error
            if not record.origin:
                group.delta.receive(record.lane, record.source, record.count)
            under.records.append(record)

    def _choose(self, offer: Offer, under: PendingGroup) -> None:
        """Take an offer into the group if the files have room for it; else it is refused when the group is over."""
        chunks, _, counts_for = offer
        size = counts_for + RECORD_OVERHEAD * len(chunks)
        if under.refused or under.size + size > self.log.room(under.group):
            under.refused.append(offer)  # and all that came later: a lane's events keep their order
        else:
            under.size += size
            under.offers.append(offer)

    def _as_many_as_fit(self, under: PendingGroup, taken: list[LaneMarks]) -> list[LaneMarks]:
        """The first of the marks that together fit a segment; the others go into the next group."""
        size = 0
        for at, marks in enumerate(taken):
            size += MARK_BYTES * len(marks.marks) // 2 + RECORD_OVERHEAD
            if at and size > self.log.size // 2:
                self.marks.put_back(taken[at:])
                under.incomplete = True
                return taken[:at]
        return taken

    def _add_last(self, under: PendingGroup) -> None:
        buried = self._as_many_as_fit(under, [part for taken in self.marks.take(buried=True) for part in taken.parts(self._merged)])
        if buried:
            try:
                under.group.add_last([marks.record() for marks in buried])
            except BufferFull:
                self.marks.put_back(buried)
                under.incomplete = True
                raise
            under.buried = buried
        if self.closing and not under.buried:
            under.group.add(RecordKind.CLOSED)

    def finish(self, job: CommitJob, error: Exception | None) -> None:  # noqa: ARG002 - there is one group at a time
        """See `storage.committer.CommitParticipant`."""
        under, self._under = self._under, None
        if under is None:
            raise AssertionError("a group ended that wasn't begun")
        if error is None:
            self._written(under)
        else:
            self._failed(under, error)
        self._owner.group_ended()
        self._set_room()

    def _written(self, under: PendingGroup) -> None:
        self.log.commit(under.group)
        if under.group.without_last:
            self.marks.put_back(under.buried)
        self.held_back = under.group.without_last or under.incomplete
        if self.held_back:
            self._committer.retry()
        if self._first:
            self._first = False
            if failpoints.ARMED:
                failpoints.hit("opening.written")
        if self.refusing and under.group.writes:
            _log.info("the disk takes what is written again")
            self.refusing = ""
        for record in under.records:
            self._owner.kept(record)
        if under.moving and self.moving is not None:
            segment, self.moving = self.moving[0], None
            self._owner.moved(segment, under.moved)
        self._refuse(under.refused, DiskRefuses("the buffer's files are full", hint="the upstream is slower than the senders, or down"))
        for _, held, _ in under.offers:
            if held is not None:
                held(None)

    def _failed(self, under: PendingGroup, error: Exception) -> None:
        """Nothing of the group counts. Who waits is told; the rest is kept for the next group."""
        why = getattr(error, "strerror", None) or str(error)
        if self.refusing != why:
            where = str(self.log.directory)
            _log.error("the disk refuses to write; senders get 503 until it takes it again", why=why, directory=where, hint=_HINT)
        self.refusing = why
        self.held_back = True
        self.log.abandon(under.group)
        self._keep_for_later(under)
        error = DiskRefuses(f"the disk refuses to write: {why}", retry_after=5.0, hint=_HINT)
        self._refuse([*under.offers, *under.refused], error)
        self._committer.retry()

    def _refuse(self, offers: Sequence[Offer], error: BufferFull) -> None:
        """Tell those who wait; what was answered for already goes first into the next group."""
        kept = [offer for offer in offers if offer[1] is None]
        if kept:
            self._offers[:0] = kept
            self.offered += sum([counts_for for _, _, counts_for in kept])
            self._committer.retry()
        for offer in offers:
            held = offer[1]
            if held is not None:
                self._owner.given_up(offer)
                held(error)
