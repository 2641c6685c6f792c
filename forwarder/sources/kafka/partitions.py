"""What is known of one assigned partition, and of each of its units that isn't settled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from forwarder.core.errors import Backpressure
from forwarder.core.event import Lane
from forwarder.core.records import AcceptedBatch
from forwarder.sources.kafka.units import Unit
from forwarder.sources.kafka.watermark import Span, Watermark

Key: TypeAlias = tuple[str, int]
"""Topic and number."""


class Passage:
    """A unit from when it is read until it is settled; its `acknowledged` is the callback of its acknowledgement."""

    __slots__ = ("_told", "buried", "mark", "partition", "span", "taken", "unit", "weight")

    def __init__(
        self, partition: Partition, mark: Watermark, unit: Unit, span: Span, told: Callable[[Passage, Backpressure | None], None]
    ) -> None:
        self.partition = partition
        self.mark = mark
        self.unit = unit
        self.span = span
        self.taken: AcceptedBatch | None = None
        self.weight = unit.cost
        """Bytes that it counts for now."""
        self.buried: dict[Lane, float] = {}
        """Lanes whose events in it have become dead letters, all that weren't in flight, and when (wall-clock time)."""
        self._told = told

    def acknowledged(self, error: Backpressure | None) -> None:
        """See `core.ack.AckCallback`."""
        self._told(self, error)


class Partition:
    """One assigned partition."""

    __slots__ = ("committed", "end", "held_until", "key", "mark", "narrow", "taken", "waiting", "why")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.mark: Watermark | None = None
        """None until it is known where reading begins."""
        self.waiting: deque[Passage] = deque()
        """What was read and couldn't be taken, in order."""
        self.taken: dict[Passage, None] = {}
        """What was taken and isn't settled, in the order of taking."""
        self.committed: int | None = None
        """What the brokers have, as far as it is known."""
        self.end: int | None = None
        """Where the partition ended when somebody looked."""
        self.held_until = 0.0
        """Nothing is tried again before, on the monotonic clock."""
        self.narrow = False
        """Whether it waits for its first unsettled record: too much was read past that one."""
        self.why = ""
        """Why what waits wasn't taken."""

    @property
    def position(self) -> int | None:
        """What is committed or could be; None if that isn't known."""
        return self.committed if self.mark is None else self.mark.position

    def lag_to(self, highwater: int | None) -> int | None:
        """Records that the group still has to deal with, gaps included, if the partition ended there when it was read last.

        None if that isn't known.
        """
        end = max((each for each in (self.end, highwater) if each is not None), default=None)
        return None if end is None or self.position is None else max(0, end - self.position)

    def begin(self, offset: int) -> Watermark:
        """The first offset that is read."""
        self.mark = Watermark(offset)
        return self.mark
