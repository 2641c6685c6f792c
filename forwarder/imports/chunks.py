"""A batch of an import as delivery carries it: one chunk, which knows its events, so that each of them can be settled by its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forwarder.core.ack import Ack
from forwarder.core.event import Chunk, Lane, Where
from forwarder.sources.imports.finishing import FinishedEvent

SOURCE = "import"

Settled = Callable[[Sequence[FinishedEvent], str], None]
"""Told of events of one day that are settled, and their fate."""


Finds = Callable[[FinishedEvent], Where]
"""Where an event is in the source."""


class ImportChunk(Chunk):
    """Neighbouring events of one batch, all of one UTC day. A part of it is another one."""

    __slots__ = ("finds", "finished", "told")

    def __init__(  # noqa: PLR0917 - as `Chunk`
        self,
        lane: Lane,
        data: bytes,
        finished: Sequence[FinishedEvent],
        ids: frozenset[str],
        received_at: float,
        told: Settled,
        finds: Finds,
    ) -> None:
        super().__init__(lane, data, len(finished), ids, received_at, SOURCE, _ChunkAck(finished, told))
        self.finished = finished
        self.told = told
        self.finds = finds

    @property
    def day(self) -> int:
        """The UTC day of its events, counted from 1970."""
        return self.finished[0].day

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> ImportChunk:
        """See `Chunk.part`."""
        return ImportChunk(self.lane, data, self.finished[at : at + count], ids, self.received_at, self.told, self.finds)

    def where(self, index: int) -> Where:
        """See `Chunk.where`."""
        return self.finds(self.finished[index])


class _ChunkAck(Ack):
    """Tells of a chunk's events when they are settled, all at once. Nobody waits for it in another way."""

    __slots__ = ("_finished", "_told")

    def __init__(self, finished: Sequence[FinishedEvent], told: Settled) -> None:
        super().__init__(len(finished), _ignore)
        self._finished, self._told = finished, told

    def settle(self, events: int, data: bytes = b"", fate: str = "") -> None:
        """See `Ack.settle`."""
        super().settle(events, data, fate)
        self._told(self._finished, fate)


def _ignore(_error: object) -> None:
    """What becomes of all of them together does not matter."""
