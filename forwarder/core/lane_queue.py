"""Lanes as the buffer holds them: a lane's pending chunks in order, and the limit that several
lanes share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import takewhile

from forwarder.core.event import Ack, Chunk


@dataclass(slots=True)
class LanePool:
    """How many lanes of the pool the buffer holds, and what they count for
    against its limit, in bytes.
    """

    bytes: int = 0
    lanes: int = 0


class LaneQueue:
    """First in, first out; chunks that were taken and can't be sent yet are put back at the front.

    Invariant: `size` and `events` are the sums over the waiting chunks (a comma a chunk included
    in `size`).
    """

    __slots__ = ("_chunks", "events", "size")

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self.size = 0
        self.events = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    @property
    def oldest(self) -> float | None:
        """When the first chunk was received, wall-clock seconds; None if nothing waits."""
        return self._chunks[0].received_at if self._chunks else None

    def append(self, chunk: Chunk) -> None:
        """Put a chunk behind the others."""
        self._chunks.append(chunk)
        self.size += len(chunk.data) + 1
        self.events += chunk.count

    def popleft(self) -> Chunk:
        """Take the oldest chunk. Raises `IndexError` if nothing waits."""
        chunk = self._chunks.popleft()
        self.size -= len(chunk.data) + 1
        self.events -= chunk.count
        return chunk

    def take(self, max_bytes: int, max_events: int) -> list[Chunk]:
        """Take the oldest chunks that together have less than `max_bytes` (a comma between two
        included) and at most `max_events`.
        """
        chunks = self._chunks
        if self.size <= max_bytes and self.events <= max_events:
            oldest = list(chunks)
            chunks.clear()
            self.size = self.events = 0
            return oldest
        oldest = []
        room = max_bytes
        left = max_events
        while chunks:
            size = len(chunks[0].data)
            count = chunks[0].count
            if size >= room or count > left:
                break
            oldest.append(chunks.popleft())
            room -= size + 1
            left -= count
        self.size -= max_bytes - room
        self.events -= max_events - left
        return oldest

    def put_back(self, chunks: Sequence[Chunk]) -> None:
        """Put chunks before all others, the first of them foremost."""
        self._chunks.extendleft(reversed(chunks))
        self.size += sum([len(chunk.data) + 1 for chunk in chunks])
        self.events += sum([chunk.count for chunk in chunks])

    def withdraw(self, acks: AbstractSet[Ack]) -> list[Chunk]:
        """Take out the waiting chunks that have one of these acks, the oldest first; one pass,
        however many there are.

        The search ends at what came later than all of them: senders give up in the order in which
        they came. After the clock was set back some may not be found; they stay as if they had
        been sent.
        """
        latest = max([ack.at for ack in acks], default=0.0)
        passed = list(takewhile(lambda chunk: chunk.received_at <= latest, self._chunks))
        withdrawn = [chunk for chunk in passed if chunk.ack in acks]
        if withdrawn:
            self.remove(len(passed), frozenset(withdrawn))
        return withdrawn

    def remove(self, passed: int, chosen: AbstractSet[Chunk]) -> None:
        """Take `chosen` out of the first `passed` chunks; the others keep their places."""
        chunks = self._chunks
        others = [
            chunk for chunk in [chunks.popleft() for _ in range(passed)] if chunk not in chosen
        ]
        chunks.extendleft(reversed(others))
        self.size -= sum([len(chunk.data) + 1 for chunk in chosen])
        self.events -= sum([chunk.count for chunk in chosen])


class DayTotal:
    """What waits of one day: the same sums as a queue's. `last` is `DayQueue.appended` when the
    newest of it came or was put back.
    """

    __slots__ = ("events", "last", "size")

    def __init__(self) -> None:
        self.size = 0
        self.events = 0
        self.last = 0


class DayQueue(LaneQueue):
    """A queue that also counts by `Chunk.day`, for batches that mix no days.

    Invariants: `days` has the sums over the waiting chunks of each day, and no day without one;
    `cost` is the sum of their costs.
    """

    __slots__ = ("appended", "cost", "days")

    def __init__(self) -> None:
        super().__init__()
        self.appended = 0
        """Events that ever came."""
        self.cost = 0
        self.days: dict[int | None, DayTotal] = {}

    def append(self, chunk: Chunk) -> None:
        super().append(chunk)
        self._add((chunk,))
        self.appended += chunk.count
        self.days[chunk.day].last = self.appended

    def popleft(self) -> Chunk:
        chunk = super().popleft()
        self._subtract((chunk,))
        return chunk

    def take(self, max_bytes: int, max_events: int) -> list[Chunk]:
        chunks = super().take(max_bytes, max_events)
        self._subtract(chunks)
        return chunks

    def put_back(self, chunks: Sequence[Chunk]) -> None:
        super().put_back(chunks)
        self._add(chunks)

    def remove(self, passed: int, chosen: AbstractSet[Chunk]) -> None:
        super().remove(passed, chosen)
        self._subtract(chosen)

    def _add(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            total = self.days.get(chunk.day)
            if total is None:
                total = self.days[chunk.day] = DayTotal()
                total.last = self.appended  # also of what is put back: it counts as new
            total.size += len(chunk.data) + 1
            total.events += chunk.count
            self.cost += chunk.cost

    def _subtract(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            total = self.days[chunk.day]
            total.size -= len(chunk.data) + 1
            total.events -= chunk.count
            self.cost -= chunk.cost
            if not total.size:
                del self.days[chunk.day]
