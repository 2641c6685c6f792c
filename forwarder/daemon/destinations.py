"""A destination of events: what it has to itself behind the one intake, so that one that is down
or halted affects no other. `pipeline.build` makes one for each destination that the settings name;
of `upstream:` alone there is one, without a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from forwarder.config.settings import Settings
from forwarder.core.event import Chunk
from forwarder.core.lane_queue import LaneQueue
from forwarder.core.ports import DeadLetter, DropReason, Fate, Reason, dead_letters_of
from forwarder.core.taps import TapOutcome, TapPoint
from forwarder.daemon.key_memory import KeyMemory
from forwarder.daemon.stores import Stores
from forwarder.delivery.batching import Batcher
from forwarder.delivery.delivery import EventDelivery
from forwarder.delivery.sink import HttpSink
from forwarder.intake.admission import Admission
from forwarder.intake.fan_out import Branch
from forwarder.intake.lane_registry import KnownKeys
from forwarder.telemetry.books import Books


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDestination:
    """The parts of one destination. None: what isn't configured."""

    settings: Settings
    """Those that hold for it: `upstream` is its own."""
    sink: HttpSink | None
    """None: of an archive."""
    known: KnownKeys
    key_memory: KeyMemory | None
    books: Books
    stores: Stores
    batcher: Batcher
    delivery: EventDelivery
    admission: Admission
    taps: TapPoint
    branch: Branch

    @property
    def name(self) -> str:
        """Empty for the one of `upstream:`."""
        return self.settings.destination.name

    @property
    def required(self) -> bool:
        """Whether it rejects events that it has no room for, and acknowledgements wait for it."""
        return self.branch.required

    def settle_the_rest(self) -> list[DeadLetter]:
        """Settle events that weren't delivered, at the end: records are read again; other events,
        if they are in memory, become dead letters, which are returned.
        """
        stores = self.stores
        left = self.delivery.undelivered()
        if stores.disk_buffer is None:
            left += [
                chunk
                for lane in stores.buffer.waiting_lanes()
                for chunk in _emptied(stores.buffer.queue(lane))
            ]
        returned = {
            chunk: None for chunk in left if chunk.ack is not None and not chunk.ack.of_request
        }
        for chunk in returned:
            self.books.drop(chunk.lane, DropReason.RETURNED_TO_BROKER, chunk.count)
            if (tap := self.taps.tap) is not None:
                tap.chunks(TapOutcome.DROPPED, (chunk,), DropReason.RETURNED_TO_BROKER)
            stores.buffer.settle([chunk], DropReason.RETURNED_TO_BROKER)
        if stores.disk_buffer is not None:
            return []
        return [
            dead_letter
            for chunk in left
            if chunk not in returned
            for dead_letter in self._dead_letter(chunk)
        ]

    def _dead_letter(self, chunk: Chunk) -> list[DeadLetter]:
        reason = Reason.UNDELIVERED_AT_EXIT
        why = "forwarder ended before the upstream accepted it"
        dead_letters = dead_letters_of(chunk, reason, why, chunk.received_at)
        self.stores.dead_letters.add_at_exit(dead_letters)
        self.books.dead_letter(chunk.lane, reason, len(dead_letters))
        if self.taps.tap is not None:
            self.taps.tap.dead_letters(TapOutcome.DEAD_LETTERED, dead_letters)
        self.stores.buffer.settle([chunk], Fate.DEAD_LETTERED)
        return dead_letters


def own_keys(api_keys: Collection[str], settings: Settings) -> list[str]:
    """The destination's project keys for those of senders."""
    mapped = settings.destination.api_keys
    return [mapped.get(key, key) for key in api_keys]


def _emptied(queue: LaneQueue) -> Iterator[Chunk]:
    while queue:
        yield queue.popleft()
