"""Finished events in columns: what is done with every event is done with a whole column at once;
single events are built on request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import Any, Final, NamedTuple, overload

from forwarder.sources.imports.times import DAY
from forwarder.wire.identity import ids_of

MERGES: Final = frozenset({"$identify", "$create_alias", "$merge_dangerously"})
"""Events that make one person of two: each has a second id, whose order is kept too."""


EventKey = tuple[int, int, int]
"""An event of an import: the numbers of its file and of its record, and which of the record's
events it is.
"""


class FinishedEvent(NamedTuple):
    """An event as it is sent, and where it came from."""

    time: int
    """Microseconds since 1970, UTC."""
    distinct_id: str
    event: str
    uuid: str
    data: bytes
    """Its JSON, as it stands in a request's `batch`; empty once it is no longer needed."""
    file: int
    """The number of its file, in the order of the source."""
    line: int
    number: int
    """Of its record in its file, from 0: what a checkpoint counts in."""
    part: int = 0
    """Which of the events of its record this is."""

    @property
    def day(self) -> int:
        """The UTC day, counted from 1970."""
        return self.time // DAY

    @property
    def key(self) -> EventKey:
        """What distinguishes it from all other events of the import."""
        return self.file, self.number, self.part


@dataclass(eq=False)
class EventColumns(Sequence[FinishedEvent]):
    """Neighbouring events: columns of one length, for the fields of `FinishedEvent` in
    their order.
    """

    times: Sequence[int]
    distinct_ids: Sequence[str]
    names: Sequence[str]
    uuids: Sequence[str]
    data: Sequence[bytes]
    files: Sequence[int]
    lines: Sequence[int]
    numbers: Sequence[int]
    parts: Sequence[int]

    @classmethod
    def of(cls, events: Sequence[FinishedEvent]) -> EventColumns:
        """The columns of some events."""
        return cls(*(zip(*events, strict=True) if events else [()] * len(FinishedEvent._fields)))

    @cached_property
    def bounds(self) -> tuple[Counter[str], int, int]:
        """How many have each name, and the earliest and the latest time: most questions about all
        of them are answered by it.
        """
        return Counter(self.names), min(self.times), max(self.times)

    def ids(self) -> frozenset[str]:
        """All ids that the events are ordered with: their own, and the second ids of those that
        merge persons (while there is `data`).
        """
        own = frozenset(self.distinct_ids)
        if MERGES.isdisjoint(self.bounds[0]):
            return own
        return own.union(
            *[
                ids_of(data)
                for data, name in zip(self.data, self.names, strict=True)
                if name in MERGES
            ]
        )

    def only(self, indexes: Sequence[int]) -> EventColumns:
        """Some of the events, in that order."""
        return EventColumns(*([column[at] for at in indexes] for column in self._columns))

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, index: int) -> FinishedEvent: ...
    @overload
    def __getitem__(self, index: slice) -> EventColumns: ...
    def __getitem__(self, index: int | slice) -> FinishedEvent | EventColumns:
        """One event, or some neighbours."""
        return (EventColumns if isinstance(index, slice) else FinishedEvent)(
            *(column[index] for column in self._columns)
        )

    def __iter__(self) -> Iterator[FinishedEvent]:
        return starmap(FinishedEvent, zip(*self._columns, strict=True))

    @property
    def _columns(self) -> tuple[Any, ...]:
        return (
            self.times,
            self.distinct_ids,
            self.names,
            self.uuids,
            self.data,
            self.files,
            self.lines,
            self.numbers,
            self.parts,
        )
