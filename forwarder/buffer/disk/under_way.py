"""What one group of the log is made of, while it is under way."""

from __future__ import annotations

from forwarder.buffer.disk.accounts import LogAccounts
from forwarder.buffer.disk.format import Kind, encode_meta
from forwarder.buffer.disk.log import Group, Placement
from forwarder.buffer.disk.moving import MovedPiece
from forwarder.buffer.disk.pending import LaneMarks, NewRecord, Offer


def add_piece(group: Group, piece: MovedPiece) -> Placement:
    """Put a copy of what is left of an old record into the group. Raises `BufferFull`."""
    return group.add(
        Kind.DATA,
        (piece.data,),
        meta=piece.meta,
        flags=piece.flags,
        events=piece.count,
        sequence=piece.sequence,
        first=piece.first,
        received_at=piece.received_at,
        origin=piece.origin,
        moved_from=piece.segment.generation,
    )


def add_record(group: Group, record: NewRecord) -> Placement:
    """Put new events into the group. Raises `BufferFull`."""
    return group.add(
        Kind.DATA,
        record.data,
        meta=encode_meta(record.source, record.lane.api_key),
        fresh=True,
        flags=record.flags,
        events=record.count,
        sequence=record.sequence,
        received_at=record.received_at,
        origin=record.origin,
    )


class OffersDontFitError(Exception):
    """What is offered takes more room than was thought: none of it goes into the group."""


class UnderWay:
    """A group that is under way, and what is in it."""

    __slots__ = ("buried", "group", "incomplete", "marks", "moved", "moving", "offers", "records", "refused", "size", "tally")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.offers: list[Offer] = []
        self.refused: list[Offer] = []
        self.records: list[NewRecord] = []
        self.marks: list[LaneMarks] = []
        self.buried: list[LaneMarks] = []
        self.moved: list[tuple[MovedPiece, Placement]] = []
        self.incomplete = False
        """Whether marks had no room in it."""
        self.moving = False
        """Whether what was to be moved is in it."""
        self.tally: LogAccounts | None = None
        self.size = 0
