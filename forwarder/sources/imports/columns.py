"""Finished events in columns: what is done with every event is done with a whole column at once; single events are built on request.

Where events come one by one (`--sort`, dead letters) they are a list, and the functions at the end accept either.

Invariant: all columns have the same length, except `data`, which is empty once it is no longer needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, repeat
from operator import attrgetter
from typing import Final, NamedTuple, overload

from forwarder.sources.imports.format import PACKED, EventBounds
from forwarder.sources.imports.times import DAY
from forwarder.wire.identity import ids_of

MERGES: Final = frozenset({"$identify", "$create_alias", "$merge_dangerously"})
"""Events that make one person of two: each has a second id, whose order is kept too."""
_file_of: Final = attrgetter("file")


class FinishedEvent(NamedTuple):
    """An event as it is sent, and where it came from."""

    time: int
    """Microseconds since 1970, UTC."""
    distinct_id: str
    event: str
    uuid: str
    data: bytes
    """Its JSON, as it stands in a request's `batch`."""
    file: int
    """The number of its file, in the order of the source."""
    line: int
    number: int
    """Of its record in its file, from 0: what a checkpoint counts in."""
    part: int = 0
    """Which of the events of its record this is."""
    turn: int = -1
    """Of events that are sorted: the number in the order of time, over all files, from 0."""

    @property
    def day(self) -> int:
        """The UTC day, counted from 1970."""
        return self.time // DAY

    @property
    def second_ids(self) -> frozenset[str]:
        """Of one of `MERGES`: the ids that it is ordered with, beside its own. To be asked while it has its `data`."""
        return ids_of(self.data) - {self.distinct_id}


class EventColumns(Sequence[FinishedEvent]):
    """Events of one file, in its order; none of them is of a sorted import."""

    __slots__ = ("_bounds", "data", "distinct_ids", "file", "lines", "names", "numbers", "packed", "parts", "times", "uuids")

    def __init__(  # noqa: PLR0917 - one for each column
        self,
        file: int,
        times: Sequence[int],
        distinct_ids: Sequence[str],
        names: Sequence[str],
        uuids: Sequence[str],
        data: Sequence[bytes],
        lines: Sequence[int],
        numbers: Sequence[int],
        parts: Sequence[int] = (),
        bounds: EventBounds | None = None,
        packed: bytes = b"",
    ) -> None:
        """See `FinishedEvent`; without `parts` each event is the first of its record. `bounds`, and `packed` uuids, if they are known."""
        self.file = file
        self.times = times
        self.distinct_ids = distinct_ids
        self.names = names
        self.uuids = uuids
        self.data = data
        self.lines = lines
        self.numbers = numbers
        self.parts = parts
        self._bounds = bounds
        self.packed = packed

    @classmethod
    def of(cls, events: Sequence[FinishedEvent]) -> EventColumns:
        """Some events of one file."""
        if not events:
            return cls(0, (), (), (), (), (), (), ())
        times, distinct_ids, names, uuids, data, files, lines, numbers, parts, _ = zip(*events, strict=True)
        return cls(files[0], times, distinct_ids, names, uuids, data, lines, as_range(numbers), parts)

    @property
    def bounds(self) -> EventBounds:
        """What all of them are within; there is at least one."""
        if self._bounds is None:
            self._bounds = EventBounds.of(self.names, self.times)
        return self._bounds

    @property
    def size(self) -> int:
        """Bytes of `data`, without commas."""
        return size_of(self.data)

    def joined(self) -> bytes:
        """The events' JSON joined by commas."""
        return bytes(self.data.text) if isinstance(self.data, JoinedTexts) else b",".join(self.data)

    def ids(self) -> frozenset[str]:
        """All ids that the events are ordered with: their own, and the second ids of those that merge persons (while there is `data`)."""
        own = frozenset(self.distinct_ids)
        if not len(self) or MERGES.isdisjoint(self.bounds.names):
            return own
        return own.union(*[self[at].second_ids for at, name in enumerate(self.names) if name in MERGES])

    def only(self, indexes: Sequence[int]) -> EventColumns:
        """Some of the events, in that order."""
        texts = self.distinct_ids, self.names, self.uuids, self.data
        columns = (self.times, *texts, self.lines, self.numbers, self.parts)
        return EventColumns(self.file, *([column[at] for at in indexes] if column else () for column in columns))  # type: ignore[arg-type]  # of many types

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, index: int) -> FinishedEvent: ...
    @overload
    def __getitem__(self, index: slice) -> EventColumns: ...
    def __getitem__(self, index: int | slice) -> FinishedEvent | EventColumns:
        """One event, or some neighbours."""
        if isinstance(index, slice):
            texts = self.distinct_ids[index], self.names[index], self.uuids[index], self.data[index]
            columns = self.times[index], *texts, self.lines[index], self.numbers[index], self.parts[index]
            start, stop, step = index.indices(len(self))
            return EventColumns(self.file, *columns, packed=self.packed[start * PACKED : stop * PACKED] if step == 1 else b"")
        texts_of_one = self.distinct_ids[index], self.names[index], self.uuids[index], self.data[index] if self.data else b""
        part = self.parts[index] if self.parts else 0
        return FinishedEvent(self.times[index], *texts_of_one, self.file, self.lines[index], self.numbers[index], part)

    def __iter__(self) -> Iterator[FinishedEvent]:
        data, parts = self.data or repeat(b""), self.parts or repeat(0)
        rows = zip(self.times, self.distinct_ids, self.names, self.uuids, data, repeat(self.file), self.lines, self.numbers, parts)
        return (FinishedEvent(*row) for row in rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def without_data(self) -> EventColumns:
        """All but the bytes."""
        columns = self.times, self.distinct_ids, self.names, self.uuids, (), self.lines, self.numbers, self.parts
        return EventColumns(self.file, *columns, self._bounds, self.packed)


class JoinedColumns(Sequence[FinishedEvent]):
    """Events of any files, in stretches of neighbours."""

    __slots__ = ("_count", "stretches")

    def __init__(self, stretches: Sequence[EventColumns]) -> None:
        self.stretches = stretches
        self._count = sum(map(len, stretches))

    @classmethod
    def of(cls, events: Iterable[FinishedEvent]) -> JoinedColumns:
        """Some events."""
        return (
            events
            if isinstance(events, JoinedColumns)
            else cls([EventColumns.of(list(group)) for _, group in groupby(events, key=_file_of)])
        )

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> FinishedEvent: ...
    @overload
    def __getitem__(self, index: slice) -> JoinedColumns: ...
    def __getitem__(self, index: int | slice) -> FinishedEvent | JoinedColumns:
        """One event, or some neighbours."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step != 1:
                raise ValueError("only neighbours can be sliced")
            return JoinedColumns([part for part in _cut(self.stretches, start, stop) if part])
        at = range(self._count)[index]
        return next(part[0] for part in _cut(self.stretches, at, at + 1) if part)

    def __iter__(self) -> Iterator[FinishedEvent]:
        return chain.from_iterable(self.stretches)


def joined_data(events: Sequence[FinishedEvent]) -> bytes:
    """The events' JSON joined by commas."""
    if isinstance(events, JoinedColumns):
        return b",".join([each.data.text if isinstance(each.data, JoinedTexts) else b",".join(each.data) for each in events.stretches])
    return b",".join([event.data for event in events])


def size_of(data: Sequence[bytes]) -> int:
    """How many bytes some texts have."""
    return data.size if isinstance(data, JoinedTexts) else sum(map(len, data))


def without_data(events: Sequence[FinishedEvent]) -> Sequence[FinishedEvent]:
    """The events without their JSON, which takes the most room by far."""
    if isinstance(events, JoinedColumns):
        return JoinedColumns([stretch.without_data() for stretch in events.stretches])
    return [event._replace(data=b"") for event in events]


def counted_of(events: Sequence[FinishedEvent]) -> tuple[Sequence[str], bytes, EventBounds]:
    """The uuids of events, at least one, the same packed if they are, and what the events are within."""
    if isinstance(events, EventColumns):
        return events.uuids, events.packed, events.bounds
    return [event.uuid for event in events], b"", EventBounds.of([event.event for event in events], [event.time for event in events])


def _cut(stretches: Iterable[EventColumns], start: int, stop: int) -> Iterator[EventColumns]:
    for each in stretches:
        yield each[max(0, start) : max(0, stop)]
        start -= len(each)
        stop -= len(each)


def as_range(numbers: Sequence[int]) -> Sequence[int]:
    """Neighbouring numbers as a range, by which they are settled faster."""
    if not numbers:
        return numbers
    whole = range(numbers[0], numbers[0] + len(numbers))
    return whole if numbers[-1] == whole[-1] and list(whole) == list(numbers) else numbers


class JoinedTexts(Sequence[bytes]):
    """Texts joined by commas."""

    __slots__ = ("_ended", "_longer", "_sizes")

    def __init__(self, ended: bytes, sizes: Sequence[int], longer: int = 0) -> None:
        """`ended`: the texts, each with a comma after it. One has `longer` bytes more than its size says, which counts the comma."""
        self._ended = ended
        self._sizes = sizes
        self._longer = longer

    @property
    def text(self) -> memoryview:
        """The texts, with commas between them."""
        return memoryview(self._ended)[:-1]

    @property
    def size(self) -> int:
        """How many bytes they have, without the commas."""
        return len(self._ended) - len(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> JoinedTexts: ...
    def __getitem__(self, index: int | slice) -> bytes | JoinedTexts:
        """One text, or some neighbours."""
        if not isinstance(index, slice):
            at = range(len(self))[index]
            start = self._start(at)
            return self._ended[start : start + self._sizes[at] + self._longer - 1]
        first, last, step = index.indices(len(self))
        if step != 1:
            raise ValueError("only neighbours can be sliced")
        return JoinedTexts(self._ended[self._start(first) : self._start(last)], self._sizes[first:last], self._longer)

    def __iter__(self) -> Iterator[bytes]:
        starts = accumulate([size + self._longer for size in self._sizes], initial=0)
        return (self._ended[start : start + size + self._longer - 1] for start, size in zip(starts, self._sizes, strict=False))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _start(self, index: int) -> int:
        return sum(self._sizes[:index]) + index * self._longer
