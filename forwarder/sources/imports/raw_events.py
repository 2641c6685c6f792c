"""Events that are taken as they stand: their own bytes go on, and nothing of their properties becomes a Python object.

A second interface beside `Converter`, for formats whose records are events already. It works on whole blocks, in columns: what is asked
of every event is asked in one pass over a column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from forwarder.sources.files.records import LineRecords, RecordBlock
from forwarder.sources.imports.events import RecordRefused


@dataclass(frozen=True, slots=True)
class RefusedPart:
    """A record that isn't taken; of a record with several events, the one that isn't."""

    record: int
    """Its index in the block."""
    text: bytes
    why: RecordRefused
    member: int | None = None
    """Its index in a record with several events; None: it is the record."""


class EventBounds(NamedTuple):
    """What some events are within: most questions about each of them are answered by it for all at once."""

    names: Mapping[str, int]
    """How many have each name."""
    first: int
    last: int
    """The earliest and the latest time."""

    @classmethod
    def of(cls, names: Sequence[str], times: Sequence[int]) -> EventBounds:
        """The bounds of events with these names and times, at least one."""
        return cls(Counter(names), min(times), max(times))


class WholeLines(NamedTuple):
    """Lines that are an event each, cut where members can be put into the properties. What is done with them is done with all at once."""

    lines: LineRecords
    heads: Sequence[bytes]
    """Of each event what stands between its brace and that of its properties."""
    rests: Sequence[bytes]
    """What stands after that, to the end of the line."""
    sizes: Sequence[int]
    """Of each line, with its end."""


@dataclass(slots=True)
class RawEvents:
    """The events of a block, in its order: columns of one length. Where they are `whole`, `texts` and `gaps` are empty (`apart`).

    What tells an event from its repeats is its uuid, name, time and id together, as it does for the service.
    """

    records: list[int] = field(default_factory=list)
    """Of which record each is: its index in the block."""
    texts: list[bytes] = field(default_factory=list)
    """JSON objects with uuid, time, name and id, but for what every imported event gets (`raw_finishing`)."""
    gaps: list[int] = field(default_factory=list)
    """Where members can be put into the properties, which have some; 0: finishing has to look, because it may have to change others."""
    names: list[str] = field(default_factory=list)
    distinct_ids: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """Microseconds since 1970, UTC."""
    uuids: list[str] = field(default_factory=list)
    as_found: dict[int, bytes] = field(default_factory=dict)
    """Of events that were mended, by index: how they stood in their records."""
    refused: list[RefusedPart] = field(default_factory=list)
    """In the block's order."""
    packed: bytes = b""
    """The sixteen bytes of each uuid, if they are known."""
    whole: WholeLines | None = None
    """The texts and gaps of all of them, if no event needs a look of its own."""
    _bounds: EventBounds | None = field(default=None, repr=False, compare=False)

    @property
    def bounds(self) -> EventBounds:
        """What all of them are within; there is at least one. To be asked once all are there."""
        if self._bounds is None:
            self._bounds = EventBounds.of(self.names, self.times)
        return self._bounds

    def __len__(self) -> int:
        """How many events there are."""
        return len(self.names)

    def apart(self) -> None:
        """Give each event its own text and gap."""
        if self.whole is not None:
            self.texts, self.gaps = [*self.whole.lines], [len(head) + 2 for head in self.whole.heads]
            self.whole = None

    def are_records(self, count: int) -> bool:
        """Whether these are just the events of so many records, one each."""
        return len(self.records) == count and self.records == [*range(count)]

    def only(self, indexes: Sequence[int]) -> RawEvents:
        """Some of the events, in that order: what filters, repeats and days leave. Refusals aren't among them."""
        self.apart()
        columns = (self.records, self.texts, self.gaps, self.names, self.distinct_ids, self.times, self.uuids)
        some = RawEvents(*([column[index] for index in indexes] for column in columns))  # type: ignore[arg-type]  # of one length, of many types
        if self.as_found:
            some.as_found = {place: self.as_found[index] for place, index in enumerate(indexes) if index in self.as_found}
        return some


@runtime_checkable
class RawConverter(Protocol):
    """A format at work on one source, whose records are events already."""

    def convert_block(self, block: RecordBlock) -> RawEvents:
        """The events of a block's records, and what was refused."""
