"""The contract of import formats: what a format is, what it knows of an import, and the events
that it makes of records.

Each file of `formats` ends with an `ImportFormat`; `catalog` lists them. The command line is
generated from these descriptions, so a new format is one file and one line of the catalog. Most
are a `RecordConverter`, which makes events of one record at a time.

Invariant: neither the clock nor a random value gets into an event. The same record gives the same
events, byte for byte, at any time.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Raw, Struct

from forwarder.core.nesting import MAX_FLAT, any_deeper
from forwarder.core.ports import Reason
from forwarder.core.stamps import as_uuid5, uuid_texts5
from forwarder.sources.files.record_blocks import Framing, LineRecords, RecordBlock
from forwarder.wire.shapes import is_utf8

if TYPE_CHECKING:
    from forwarder.mapping import EventMapping, MappingRules

_AT_ONCE: Final = 64
"""Records of which events are made before those are finished."""
Record = TypeVar("Record")
Options = TypeVar("Options")
_encode: Final = msgspec.json.Encoder().encode
_decode_text: Final = msgspec.json.Decoder(str).decode
NAMESPACE: Final = UUID("6f1c1d5e-6f0e-5f8f-9f0a-7b1d7f7d6b02")
"""Of the uuids that follow from natural keys; it never changes, or a second run would double what
the first brought.
"""


class RecordRefused(Exception):
    """A record can't become an event. Nothing of it is sent. `why` is that of its dead letter."""

    def __init__(self, why: Reason, detail: str) -> None:
        super().__init__(detail)
        self.why = why
        self.detail = detail


class ImportedEvent(Struct, gc=False):
    """One event of a record."""

    event: str
    distinct_id: str
    time: int
    """Microseconds since 1970, UTC."""
    uuid: str
    """The record's own, or derived: never random. Empty until it is made where it
    follows from `natural_key`.
    """
    properties: dict[str, Any]
    """Values are JSON values, or `msgspec.Raw` where the record's bytes are kept. Finishing
    changes them in place.
    """
    keyed: bool = False
    """Whether its uuid stands for its vendor's own key: what has its uuid and name is the same
    event, whatever else differs.
    """
    moment: datetime | None = None
    """Its time once more, with the zone UTC, where its format has it: else finishing makes it."""
    natural_key: bytes = b""
    """What its uuid follows from (`derived_uuid`), where that is made together with
    those of its neighbours.
    """


class NativeEvents(NamedTuple):
    """Neighbouring events whose bytes are kept, in columns."""

    names: Sequence[str]
    distinct_ids: Sequence[str]
    times: Sequence[int]
    uuids: Sequence[str]
    texts: Sequence[bytes]
    """JSON objects with all these, but for what every imported event gets (`conversion`)."""
    gaps: Sequence[int]
    """Where members can be put into the properties, which have some; 0: finishing has to look,
    because it may have to change others.
    """
    found: Sequence[bytes]
    """How each stood in its record."""


class EventSink(Protocol):
    """Takes what a format makes of the records of a block, in their order. A record is known by
    its index in the block.
    """

    def add(self, records: Sequence[int], events: Sequence[ImportedEvent]) -> None:
        """Events of these records, in their order. They aren't used afterwards."""

    def extend(self, records: Sequence[int], events: NativeEvents) -> None:
        """Events of these records."""

    def refuse(
        self,
        record: int,
        why: RecordRefused,
        text: bytes | None = None,
        member: int | None = None,
        /,
    ) -> None:
        """A record is refused; with `text`, only that of its events that stands at the index
        `member` in it.
        """


class Converter(Protocol):
    """A format at work on one source, from its start and in its order.

    Everything that it puts into events was decoded from JSON, or is text, and is UTF-8: a
    converter that keeps bytes as `Raw` checks them.
    """

    def convert_block(self, block: RecordBlock, events: EventSink) -> None:
        """Put the events of a block's records, and what is refused, into `events`."""


class RecordConverter(ABC, Generic[Record]):
    """A format that makes events of one record at a time, of what it decodes as."""

    def __init__(self, decode: Callable[[bytes], Record], read: Callable[[bytes], Record]) -> None:
        """`read` raises `RecordRefused` for what isn't a record. `decode` gives the same of
        records that are UTF-8, also with a line feed behind them; it may raise any error of
        msgspec in place of a refusal.
        """
        self._decode = decode
        self._read = read

    def convert(self, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The events of one record; none if the vendor's record stands for no event (a session's
        start). Raises `RecordRefused`.
        """
        return with_uuids(self.events_of(self._read(block.records[index]), block, index))

    @abstractmethod
    def events_of(self, record: Record, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The same of a record that is decoded, and has this index in its block; events with a
        natural key have no uuid yet.
        """

    def convert_block(self, block: RecordBlock, events: EventSink) -> None:
        """A few records at a time, so that all that is made of them is in a
        core's cache until its end.
        """
        for first in range(0, len(block.records), _AT_ONCE):
            records: list[int] = []
            made: list[ImportedEvent] = []
            for index, record in enumerate(
                self._decoded(block.records, slice(first, first + _AT_ONCE)), first
            ):
                if isinstance(record, RecordRefused):
                    events.refuse(index, record)
                    continue
                try:
                    made_events = self.events_of(record, block, index)
                except RecordRefused as refused:
                    events.refuse(index, refused)
                else:
                    records += (index,) * len(made_events)
                    made += made_events
            events.add(records, with_uuids(made))

    def _decoded(self, records: Sequence[bytes], few: slice) -> Sequence[Record | RecordRefused]:
        """A few of some records: all at once, unless one of them isn't good."""
        some = (records.ended if isinstance(records, LineRecords) else records)[few]
        text = b"\n".join(some)  # a line feed ends no character
        # most are shorter than any that is nested too deep
        is_flat = max(map(len, some), default=0) <= MAX_FLAT or not any_deeper(some)
        if is_flat and (text.isascii() or is_utf8(text)):
            try:
                return [*map(self._decode, some)]
            except (ValueError, RecursionError, RecordRefused):  # msgspec's errors are such
                pass
        return [*map(self._read_or_refusal, records[few])]

    def _read_or_refusal(self, record: bytes) -> Record | RecordRefused:
        try:
            return self._read(record)
        except RecordRefused as refused:
            return refused


_OF_NAMESPACE: Final = sha1(NAMESPACE.bytes, usedforsecurity=False)


def derived_uuid(natural_key: str) -> str:
    """The uuid that follows from a natural key: `uuid5` (RFC 9562, section 5.5), made without an
    object: a quarter of the time.
    """
    digest = _OF_NAMESPACE.copy()
    digest.update(natural_key.encode())
    return as_uuid5(digest.digest()).decode()


def with_uuids(events: Sequence[ImportedEvent]) -> Sequence[ImportedEvent]:
    """The same events, after those with a natural key have got their uuids."""
    keyed = [event for event in events if event.natural_key]
    for event, uuid in zip(
        keyed, uuid_texts5(NAMESPACE.bytes, [event.natural_key for event in keyed]), strict=True
    ):
        event.uuid = uuid
    return events


def natural_key(*parts: str | int | None) -> bytes:
    """A natural key of several parts, which no other parts give."""
    return _encode(parts)


def key_uuid(*parts: str | int | None) -> str:
    """The uuid that follows from a natural key of several parts."""
    return derived_uuid(_encode(parts).decode())


def place_uuid(name: str, block: RecordBlock, index: int, *member: int) -> str:
    """The uuid of an event that nothing else identifies: of its file's content, its record's
    number, and its index among several.
    """
    return key_uuid(name, block.file.identity, block.first + index, *member)


def text_in(members: Mapping[str, Raw], name: str) -> str:
    """The text that an object has under a name; empty if it has none, or something else."""
    try:
        return _decode_text(members[name])
    except (KeyError, ValueError):  # msgspec's errors are such
        return ""


_UTC: Final = (UTC, timezone(timedelta()), ZoneInfo("UTC"))
OF_JSON: Final = (Framing.AUTO, Framing.LINES, Framing.JSON, Framing.PARQUET)


# A002: `help` is what libraries for commands call it.
def option(default: Any, help: str, *, flag: str = "", metavar: str = "NAME") -> Any:  # noqa: A002
    """A field of a format's options that a user may say, by whose default it is seen how it is
    typed: a text, a switch, or a set.

    `flag`: what it is called on the command line; without it the field's name.
    """
    return dataclasses.field(
        default=default, metadata={"flag": flag, "help": help, "metavar": metavar}
    )


@dataclass(frozen=True, slots=True)
class FormatOption:
    """One thing that a user may say about an export."""

    field: str
    default: Any
    flag: str
    """Without its hyphens in front: `group-type`."""
    help: str
    metavar: str

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
    """Of several cases, the first one's."""
    compile: Callable[[], EventMapping]
    zone_said: bool = False
    """Whether the rules name the zone of times without one."""
    prepare: Callable[[bytes, str], bytes] | None = None
    """What makes the record for the rules of one that was read, if that isn't the same, and the
    name of its file. Raises msgspec's errors.
    """


@dataclass(frozen=True, slots=True)
class FormatContext:
    """What is said of any import, as far as formats need it."""

    person_properties: PersonProperties = "oldest"
    zone: tzinfo | None = None
    """What the clock of times without a zone shows: a zone, or an offset from UTC; None: not given.
    """
    since: int | None = None
    """Microseconds since 1970: earlier events are left out, so what a format says only once is to
    be said of the first from then on.
    """
    until: int | None = None
    """Events from then on are left out, too."""
    mapping: ChosenMapping | None = None
    """For formats that `takes_mapping`."""

    @property
    def clock(self) -> tzinfo | None:
        """The clock of times without a zone; None: UTC."""
        return None if self.zone in _UTC else self.zone


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
    make: Callable[[Options, FormatContext], Converter]
    """A new converter, for one pass over a source from its start. Raises `ConfigurationError` for
    options that don't fit together.
    """
    times: Callable[[Options, FormatContext], Sequence[str]]
    """Where its records have their times: the first of these that is there; `name.name` one level
    down. For the preflight's look.
    """
    looks_like: str = ""
    """What an export of it is called, where a file of it is met in place of another:
    `Segment's logs`.
    """
    recognizes: Callable[[Mapping[str, Raw]], bool] = lambda _: False
    """Whether an object looks like one of its records and of no other format, by the fields that
    it has; it needn't be a good one.
    """
    zone_said: Callable[[Options, FormatContext], bool] = lambda _, given: given.zone is not None
    """Whether it is known what a time without a zone means: usually if a zone is given."""
    framings: tuple[Framing, ...] = OF_JSON
    """How its records may be separated; the first is the default."""
    takes_zone: bool = True
    """Whether the zone of times without one is given by `--zone` or `--time-offset`."""
    receipts: tuple[str, ...] = ()
    """Where the vendor notes when it received a record, by its own clock: the first of these that
    is there, as in `times`. For the preflight to see times that can't be.
    """
    shifts_epochs: bool = False
    """Whether numbers may be times of another zone, too: the vendor's projects had clocks."""
    takes_mapping: bool = False
    mapping_file: Path | None = None
    """The mapping that it is, if it is one by name: the format `mapping` with this file."""
    reading: Callable[[], Mapping[str, Any]] = dict
    """How its files are read, as `ReadOptions` has it, beside the first of its framings."""
    is_unsorted: bool = False
    """Whether its exports are in no order of time: they are always sorted, or each event would be
    a request of its own.
    """

    @property
    def said(self) -> Iterator[FormatOption]:
        """What a user may say about an export, beside what holds for every format."""
        # The options of each format are a dataclass, which their type doesn't say.
        for field in dataclasses.fields(self.options):  # type: ignore[arg-type]
            if named := dict(field.metadata):
                named["flag"] = named["flag"] or field.name.replace("_", "-")
                yield FormatOption(field.name, field.default, **named)


@dataclass(frozen=True, slots=True)
class ChosenFormat:
    """A format with its options said."""

    name: str
    options: Mapping[str, Any]
    """Those that change what is sent, as JSON values by their names on the command line; None
    stands for one that isn't set.
    """
    make: Callable[[int | None], Converter]
    """A new one, for one pass over the source from its start, of which events from that time on
    (microseconds since 1970; None: none) are left out.
    """
    time_fields: Sequence[str] = ()
    """Where its records have their times."""
    zone_said: bool = False
    """Whether it is known what a time without a zone means."""
    receipts: Sequence[str] = ()
    """Where its records have the times of their receipt."""
    shifts_epochs: bool = False
    """Whether numbers may be times of another zone, too."""
    clock: tzinfo | None = None
    """What times without a zone are read as; None: UTC."""


PersonProperties = Literal["history", "newest", "oldest", "none"]
"""What becomes of the properties of persons (`persons`)."""
