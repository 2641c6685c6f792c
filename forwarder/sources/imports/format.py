"""The contract of import formats: what a format is, what it knows of an import, and the events that it makes of records.

Each file of `formats` ends with an `ImportFormat`; `catalog` lists them. The command line is generated from these descriptions, so a new
format is one file and one line of the catalog. A format implements one of two interfaces: `Converter` makes events of one record at a time;
`RawConverter` is for formats whose records are events already, works on whole blocks in columns, and keeps the bytes of each event.

Invariant: neither the clock nor a random value gets into an event. The same record gives the same events, byte for byte, at any time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable
from uuid import UUID

from msgspec import Struct

from forwarder.sources.files.records import Framing, LineRecords, RecordBlock

if TYPE_CHECKING:
    from forwarder.mapping import Mapping as EventMapping
    from forwarder.mapping import MappingRules

PACKED: Final = 16
"""Bytes of a packed uuid."""
NAMESPACE: Final = UUID("6f1c1d5e-6f0e-5f8f-9f0a-7b1d7f7d6b02")
"""Of the uuids that follow from natural keys; it never changes, or a second run would double what the first brought."""


class RefusalReason(StrEnum):
    """Why a record is refused."""

    NOT_JSON = "not_json"
    """Cut off, not UTF-8, or something else than an object."""
    WRONG_TYPE = "wrong_type"
    """A field that is needed has a value of another type."""
    NO_EVENT = "no_event"
    NO_ID = "no_id"
    NO_TIME = "no_time"
    """There is no time, or it can't be read."""
    ILLEGAL_ID = "illegal_id"
    """`null`, `undefined`, `anonymous` …: an id that many share."""
    TOO_LARGE = "too_large"
    UNMAPPABLE = "unmappable"
    """The mapping says no."""


class RecordRefused(Exception):
    """A record can't become an event. Nothing of it is sent."""

    def __init__(self, why: RefusalReason, detail: str) -> None:
        super().__init__(detail)
        self.why, self.detail = why, detail


class ImportedEvent(Struct, gc=False):
    """One event of a record."""

    event: str
    distinct_id: str
    time: int
    """Microseconds since 1970, UTC."""
    uuid: str
    """The record's own, or derived: never random."""
    properties: dict[str, Any]
    """Values are JSON values, or `msgspec.Raw` where the record's bytes are kept."""
    natural_key: str | None = None
    """What identifies this event in its vendor's system; repeats of it within a day are sent once. None: nothing does."""


class Converter(Protocol):
    """A format at work on one source.

    Everything that it puts into events was decoded from JSON, or is text, and is UTF-8: a converter that keeps bytes as `Raw` checks them.
    """

    def convert(self, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The events of one record; none if the vendor's record stands for no event (a session's start).

        Raises `RecordRefused`.
        """


_OF_NAMESPACE: Final = sha1(NAMESPACE.bytes, usedforsecurity=False)
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def derived_uuid(natural_key: str) -> str:
    """The uuid that follows from a natural key: `uuid5` (RFC 9562, section 5.5), made without an object: a quarter of the time."""
    digest = _OF_NAMESPACE.copy()
    digest.update(natural_key.encode())
    text = digest.hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


@dataclass(frozen=True, slots=True)
class RefusedPart:
    """A refused record; of a record with several events, the refused one."""

    record: int
    """Its index in the block."""
    text: bytes
    why: RecordRefused
    member: int | None = None
    """Its index in a record with several events; None: it is the record."""


class EventBounds(NamedTuple):
    """What some events are within: most questions about each of them are answered by it for all at once."""

    names: dict[str, int]
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

    What distinguishes an event from its repeats is its uuid, name, time and id together, as it does for the service.
    """

    records: list[int] = field(default_factory=list)
    """Of which record each is: its index in the block."""
    texts: list[bytes] = field(default_factory=list)
    """JSON objects with uuid, time, name and id, but for what every imported event gets (`finishing`)."""
    gaps: list[int] = field(default_factory=list)
    """Where members can be put into the properties, which have some; 0: finishing has to look, because it may have to change others."""
    names: list[str] = field(default_factory=list)
    distinct_ids: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """Microseconds since 1970, UTC."""
    uuids: list[str] = field(default_factory=list)
    as_found: dict[int, bytes] = field(default_factory=dict)
    """Of repaired events, by index: how they stood in their records."""
    refused: list[RefusedPart] = field(default_factory=list)
    """In the block's order."""
    packed: bytes = b""
    """The sixteen bytes of each uuid, if they are known."""
    whole: WholeLines | None = None
    """The texts and gaps of all of them, if no event needs a check of its own."""
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


Options = TypeVar("Options")
_HELP: Final = "help"
_FLAG: Final = "flag"
_METAVAR: Final = "metavar"
OF_JSON: Final = (Framing.AUTO, Framing.LINES, Framing.JSON, Framing.PARQUET)


def option(default: Any, help: str, *, flag: str = "", metavar: str = "NAME") -> Any:  # noqa: A002 - as it is called everywhere
    """A field of a format's options that a user may say, by whose default it is seen how it is typed: a text, a switch, or a set.

    `flag`: what it is called on the command line; without it the field's name.
    """
    return dataclasses.field(default=default, metadata={_HELP: help, _FLAG: flag, _METAVAR: metavar})


@dataclass(frozen=True, slots=True)
class FormatOption:
    """One thing that a user may say about an export."""

    field: str
    flag: str
    """Without its hyphens in front: `group-type`."""
    help: str
    metavar: str
    default: Any

    @property
    def name(self) -> str:
        """The flag as a parameter's name: `group_type`."""
        return self.flag.replace("-", "_")

    def of(self, options: object) -> Any:
        """What was said, as a JSON value; None if it is the default."""
        value = getattr(options, self.field)
        if value == self.default:
            return None
        return sorted(value) if isinstance(value, frozenset) else value


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A format of which nothing needs to be said."""


@dataclass(frozen=True, slots=True)
class ChosenMapping:
    """A mapping: its rules as they were written, and what compiles them."""

    rules: MappingRules
    compile: Callable[[], EventMapping]
    zone_said: bool = False
    """Whether the rules name the zone of times without one."""


@dataclass(frozen=True, slots=True)
class FormatContext:
    """What is said of any import, as far as formats need it."""

    person_properties: PersonProperties = "set_once"
    time_offset: int | None = None
    """Minutes that the clock of times without a zone is ahead of UTC; None: not given."""
    since: int | None = None
    """Microseconds since 1970: earlier events are left out, so what a format says only once is to be said of the first from then on."""
    mapping: ChosenMapping | None = None
    """For formats that `takes_mapping`."""

    @property
    def minutes(self) -> int:
        """The offset; without one, UTC."""
        return self.time_offset or 0


def offset_is_said(_: object, given: FormatContext) -> bool:
    """Whether it is known what a time without a zone means: only if the offset is given."""
    return given.time_offset is not None


@dataclass(frozen=True)
class ImportFormat(Generic[Options]):
    """One format."""

    name: str
    """As it is typed."""
    summary: str
    """One line."""
    example: str
    """What may stand behind its name on the command line."""
    options: type[Options]
    make: Callable[[Options, FormatContext], Converter | RawConverter]
    """A new converter, for one pass over a source from its start. Raises `ConfigurationError` for options that don't fit together."""
    times: Callable[[Options, FormatContext], Sequence[str]]
    """Where its records have their times: the first of these that is there; `name.name` one level down. For the preflight's look."""
    zone_said: Callable[[Options, FormatContext], bool] = offset_is_said
    """Whether it is known what a time without a zone means."""
    framings: tuple[Framing, ...] = OF_JSON
    """How its records may be separated; the first is the default."""
    takes_time_offset: bool = True
    takes_mapping: bool = False
    is_unsorted: bool = False
    """Whether its exports are in no order of time: they are always sorted, or each event would be a request of its own."""

    @property
    def said(self) -> Iterator[FormatOption]:
        """What a user may say about an export, beside what holds for every format."""
        for each in dataclasses.fields(self.options):  # type: ignore[arg-type]  # a dataclass, each of them
            named = each.metadata
            if named:
                flag = named[_FLAG] or each.name.replace("_", "-")
                yield FormatOption(each.name, flag, named[_HELP], named[_METAVAR], each.default)


@dataclass(frozen=True, slots=True)
class ChosenFormat:
    """A format with its options said."""

    name: str
    options: Mapping[str, Any]
    """Those that change what is sent, as JSON values by their names on the command line; None stands for one that isn't set."""
    make: Callable[[], Converter | RawConverter]
    """A new one, for one pass over the source from its start."""
    time_fields: Sequence[str] = ()
    """Where its records have their times."""
    zone_said: bool = False
    """Whether it is known what a time without a zone means."""


PersonProperties = Literal["none", "set_once", "set"]
"""`set` overwrites what live events set since: the service ignores an event's time there (wire facts: What the service does not tell)."""
