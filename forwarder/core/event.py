"""Events in the pipeline: raw JSON bytes, in chunks of one lane each, and batches of chunks; and
what counts them down as they are settled.

An event is never a Python object here. A chunk holds the events of one request (or a part of them)
as they will stand in the upstream's `batch` array, so that a batch is made by joining chunks,
without looking at an event again.

Invariant: an `Ack` calls back once, whatever becomes of its events: cutting chunks and settling
parts only count down what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from forwarder.core.ack import AckCallback
from forwarder.core.errors import Backpressure

CHUNK_OVERHEAD: Final = 640
"""Bytes that a chunk costs beside its events: the objects that hold it, and its entry in a queue.
"""

EVENT_OVERHEAD: Final = 160
"""Bytes that an event costs beside its JSON: what ordering and settling keep of it."""

NO_IDS: Final[frozenset[str]] = frozenset()
"""The ordering keys of events that need none."""

split_events: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""The elements of a JSON array, each a view into its text. Raises `msgspec.DecodeError` if it
isn't one.
"""


class Lane(NamedTuple):
    """Events that may share an upstream request: one project key, live or historical."""

    api_key: str
    historical: bool = False


class Where(NamedTuple):
    """Where in its source an event was: what its dead letter says of it (`ports.DeadLetter`)."""

    coordinates: str = ""
    place: tuple[int, int] | None = None
    attributes: str = ""


class Ack:
    """Counts a request's events down to the last that is settled.

    `at`: when they were received, if they can be found by that. `of_request`: whether they are
    treated as a request's: if one is dropped to make room, the sender is asked to repeat all of
    them, and at a stop those that are only in memory become dead letters. Otherwise a dropped one
    counts as settled, and at a stop they are dropped: their source reads them again.
    """

    __slots__ = ("_callback", "at", "left", "of_request", "watch")

    def __init__(
        self, events: int, callback: AckCallback, at: float = math.inf, *, of_request: bool = True
    ) -> None:
        self.left = events
        self.at = at
        self.of_request = of_request
        self.watch: Callable[[bytes, str], None] | None = None
        """Called with events as they are settled, as they stand in their chunk, and their fate;
        for senders that get a result per event.
        """
        self._callback: AckCallback | None = callback

    @property
    def settled(self) -> bool:
        """Whether the callback was called."""
        return self._callback is None

    def settle(self, events: int, data: bytes = b"", fate: str = "") -> None:
        """So many more of the events, which are `data` in their chunk, are delivered, or durable
        dead letters, or dropped and counted.
        """
        if self.watch is not None:
            self.watch(data, fate)
        self.left -= events
        if self.left <= 0:
            self.end(None)

    def end(self, error: Backpressure | None) -> None:
        """Call back, unless that was done before."""
        callback = self._callback
        self._callback = None
        if callback is not None:
            callback(error)


class Chunk:
    """Some events of one lane, accepted together.

    `data` is the events' JSON joined by commas (white space around them allowed), without
    brackets; `ids` are the ordering keys of all its events (empty where the lane keeps no order);
    `received_at` is wall-clock time in seconds; `source` is where they came from, and `origin` the
    number of the dead letter that they were, if they are replayed (else 0); `cost` is what the
    chunk counts for against a limit of memory in bytes: its own, and what holding it takes; `ack`
    counts its events down as they are settled, if their sender waits for that; `to` is the number
    of the destination that it is for, where that is known before it is divided among them.
    """

    __slots__ = (
        "ack",
        "cost",
        "count",
        "data",
        "ids",
        "lane",
        "origin",
        "received_at",
        "source",
        "to",
    )

    def __init__(  # noqa: PLR0917 - one for each request: keywords would cost
        self,
        lane: Lane,
        data: bytes,
        count: int,
        ids: frozenset[str],
        received_at: float,
        source: str = "http",
        ack: Ack | None = None,
    ) -> None:
        self.lane = lane
        self.data = data
        self.count = count
        self.ids = ids
        self.received_at = received_at
        self.source = source
        self.ack = ack
        self.origin = 0
        self.to: Sequence[int] | None = None
        self.cost = len(data) + CHUNK_OVERHEAD + EVENT_OVERHEAD * count

    @property
    def place(self) -> tuple[int, int] | None:
        """The sequence number of the record on disk that holds the events, and the index in it of
        the first; None if there is none.
        """
        return None

    @property
    def day(self) -> int | None:
        """The UTC day of all its events, counted from 1970, where a batch must not mix days; None
        where it may.
        """
        return None

    def where(self, index: int) -> Where:
        """Where the event with this index was. Called for events that become dead letters; sources
        with positions say more.
        """
        place = self.place
        return Where(place=place and (place[0], place[1] + index))

    # Only chunks on disk need `at`, for their positions.
    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> Chunk:  # noqa: ARG002
        """A chunk of `count` neighbouring events of this one, `at` being the index of the first."""
        return Chunk(self.lane, data, count, ids, self.received_at, self.source, self.ack)

    def events(self) -> list[bytes]:
        """The events one by one, each exactly as it was received (white space
        between them is not theirs).
        """
        if self.count == 1:
            return [self.data]
        return [bytes(raw) for raw in split_events(b"[%b]" % self.data)]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Chunks of one lane, in order of receipt, that go in one request of exactly `size` bytes
    before compression.
    """

    lane: Lane
    chunks: tuple[Chunk, ...]
    size: int

    @property
    def count(self) -> int:
        """How many events there are in it."""
        return sum([chunk.count for chunk in self.chunks])

    @property
    def received_at(self) -> float:
        """When its oldest event was received, wall-clock seconds."""
        return min([chunk.received_at for chunk in self.chunks])

    def ids(self) -> frozenset[str]:
        """The ordering keys of all its events."""
        return frozenset().union(*[chunk.ids for chunk in self.chunks])
