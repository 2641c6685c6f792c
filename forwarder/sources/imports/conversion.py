"""From records to finished events: converted, finished, filtered, deduplicated per day. Every
event of an import passes through here.

Which events are selected depends only on the source, read from its start. So a resumed import
shows the records that were settled before again (`skip`), because they count for repeats and for
the limit. Events are finished a few at a time, and only columns of them are kept: each is JSON
bytes with the properties that every imported event gets. What finishing refuses is selected all
the same, and then counted as refused.

Invariants: the same event and the same policy give the same bytes. Values that are `Raw` keep
their bytes, and the properties of a native event keep theirs apart from what is inserted at their
beginning, unless the person's properties change. Half a surrogate pair, what is nested too deep
and numbers that overflow a double are refused. Only the policy `history` lets events overwrite or
remove a person's properties. With `newest`, `persons` changes what finishing by `none` has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from io import BytesIO
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw, Struct

from forwarder.core.errors import drop_frames
from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock, RecordLocation
from forwarder.sources.imports.columns import MERGES, EventColumns, FinishedEvent
from forwarder.sources.imports.format import (
    Converter,
    ImportedEvent,
    NativeEvents,
    PersonProperties,
    RecordRefused,
)
from forwarder.sources.imports.import_books import FateKind, RecordFate, RefusalExample
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.times import EPOCH
from forwarder.sources.imports.values import is_deep, may_be_deep, refused_merge
from forwarder.wire.identity import ABSENT, first_byte, id_text, ids_of
from forwarder.wire.splice import Locator
from forwarder.wire.strict import may_overflow, overflow_of

if TYPE_CHECKING:
    from forwarder.rules.event_rules import EventRules

SOURCE: Final = "import"
"""The source of imported events, as rules match it."""

_TOO_DEEP: Final = "it is nested too deep"
_encode: Final = msgspec.json.Encoder().encode
_encode_lines: Final = msgspec.json.Encoder().encode_lines
_decode: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_NULL: Final = Raw(b"null")


@dataclass(frozen=True, slots=True)
class FinishPolicy:
    """What every imported event gets."""

    person_properties: PersonProperties
    geoip: bool
    """Whether the service may look up where an event's `$ip` is. If not, `$geoip_disable` says so:
    else it gets the importer's place.
    """
    job_id: str
    """`$import_job_id` on each event (`job.job_id`)."""


class _SentEvent(Struct, gc=False):
    """An event's members in the order in which they are written. The encoder writes a time with
    microseconds if it has any.
    """

    event: str
    distinct_id: str
    uuid: str
    timestamp: datetime
    properties: dict[str, Any]


def _encode_all(events: Sequence[_SentEvent]) -> list[bytes] | None:
    """The JSON of events, all at once; None if one of them can't be encoded, or has a line feed
    between two values.
    """
    try:
        lines = [*BytesIO(_encode_lines(events))]
    except (UnicodeError, RecursionError):
        return None
    return [line[:-1] for line in lines] if len(lines) == len(events) else None


def _encode_one(event: _SentEvent) -> bytes:
    """The JSON of an event. Raises `RecordRefused`."""
    try:
        data = _encode(event)
    except UnicodeError:
        raise RecordRefused(
            Reason.UNDECODABLE, "a string in it holds half a surrogate pair"
        ) from None
    except RecursionError:
        raise RecordRefused(Reason.UNDECODABLE, _TOO_DEEP) from None
    if is_deep(data):
        raise RecordRefused(Reason.UNDECODABLE, _TOO_DEEP)
    return data


class EventFinisher:
    """Makes the bytes of events by one policy. `max_bytes` is what an event may have
    (`upstream.max_event`); None: any size.
    """

    def __init__(self, policy: FinishPolicy, max_bytes: int | None = None) -> None:
        self._add: dict[str, Any] = {} if policy.geoip else {"$geoip_disable": True}
        self._add["$import_job_id"] = policy.job_id
        self._add_raw = {name: Raw(_encode(value)) for name, value in self._add.items()}
        self._inlay = _encode(self._add)[1:-1] + b","
        self._change_person, self._change_native_person = _PERSON_POLICIES[policy.person_properties]
        self._max_bytes = max_bytes

    def finish(
        self, events: Sequence[ImportedEvent]
    ) -> tuple[list[bytes], dict[int, RecordRefused]]:
        """The JSON of events, and which of them are refused, by index. What is added takes the
        place of a property of that name.
        """
        refused: dict[int, RecordRefused] = {}
        for at, event in enumerate(events):
            properties = event.properties
            properties.update(self._add)
            if "$set" in properties or "$set_once" in properties or "$unset" in properties:
                try:
                    self._change_person(properties)
                except RecordRefused as why:
                    refused[at] = why.with_traceback(None)
        sent = [
            _SentEvent(
                e.event,
                e.distinct_id,
                e.uuid,
                e.moment or EPOCH + timedelta(0, 0, e.time),
                e.properties,
            )
            for e in events
        ]
        finished = _encode_all(sent)
        if finished is None or may_be_deep(finished):
            finished = [b""] * len(sent)
            for at, inner in enumerate(sent):
                try:
                    finished[at] = _encode_one(inner)
                except RecordRefused as why:
                    refused.setdefault(at, why)
        for at in refused:
            finished[at] = b""
        return finished, self._refusals(finished) | refused

    def finish_texts(
        self, texts: Sequence[bytes], gaps: Sequence[int]
    ) -> tuple[list[bytes], dict[int, RecordRefused]]:
        """The same of native events (`NativeEvents`)."""
        inlay = self._inlay
        finished = [
            text[:gap] + inlay + text[gap:] if gap else self._rebuilt(text)
            for text, gap in zip(texts, gaps, strict=True)
        ]
        return finished, self._refusals(finished)

    def _refusals(self, finished: Sequence[bytes]) -> dict[int, RecordRefused]:
        """Which finished events are refused for their size, or for numbers that overflow, by
        index. All are checked at once.
        """
        limit = self._max_bytes
        if not finished or (
            (limit is None or max(map(len, finished)) <= limit)
            and not may_overflow(b",".join(finished))
        ):
            return {}
        refused: dict[int, RecordRefused] = {}
        for index, data in enumerate(finished):
            if (overflow := overflow_of(data)) is not None:
                refused[index] = RecordRefused(Reason.UNDECODABLE, f"it has {overflow}")
            elif limit is not None and len(data) > limit:
                refused[index] = RecordRefused(
                    Reason.TOO_LARGE,
                    f"the event has {len(data):,} bytes, {limit:,} are allowed",
                )
        return refused

    def _rebuilt(self, text: bytes) -> bytes:
        """An event whose properties are put together anew; what is added takes the place of a
        property of that name.
        """
        head = _decode_head(text)
        properties = _decode(head.properties) if _is_object(head.properties) else {}
        is_alone = _is_object(head.properties) and head.set is head.set_once is head.unset is ABSENT
        members = {} if is_alone else _decode(text)
        self._change_native_person(members, properties)
        written = _encode({**self._add_raw, **properties, **self._add_raw})
        if is_alone:  # nothing about persons stands beside the properties
            start, end = Locator(text).span(head.properties)
            return text[:start] + written + text[end:]
        members["properties"] = Raw(written)
        return _encode(members)


def _drop_person_changes(*objects: dict[str, Any]) -> None:
    """Policy `none`: of an event's properties, and of what stands beside them."""
    for members in objects:
        members.pop("$set", None)
        members.pop("$set_once", None)
        members.pop("$unset", None)


def _turn_into_set_once(properties: dict[str, Any]) -> None:
    """Policy `oldest`: what would be set is only set where nothing is; what is in `$set_once`
    already wins. No object, no effect.
    """
    properties.pop("$unset", None)
    values = properties.pop("$set", None)
    if not _is_object(values):
        return
    once = properties.get("$set_once")
    if _is_object(once):
        members = _members_of(once)
        values = {**members, **_members_of(values), **members}
    properties["$set_once"] = values


def _is_object(value: Any) -> bool:
    return first_byte(value) == b"{" if isinstance(value, Raw) else isinstance(value, dict)


def _members_of(value: Any) -> dict[str, Any]:
    """The members of an object; their values keep their bytes. Raises `RecordRefused`."""
    if isinstance(value, dict):
        return value
    try:
        return _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RecordRefused(Reason.UNDECODABLE, "$set or $set_once can't be read") from None


class _PersonFields(Struct, gc=False):
    """Where an event's properties stand, and what about persons stands beside them."""

    properties: Raw = ABSENT
    set: Raw = msgspec.field(name="$set", default=ABSENT)
    set_once: Raw = msgspec.field(name="$set_once", default=ABSENT)
    unset: Raw = msgspec.field(name="$unset", default=ABSENT)


_decode_head: Final = msgspec.json.Decoder(_PersonFields).decode


def person_members(text: bytes) -> dict[str, bytes]:
    """What a finished event says of its person: the JSON of `$set`, `$set_once` and `$unset`, as
    far as they are there and have an effect. The event's top level wins over its properties.
    """
    head = _decode_head(text)
    properties = _decode(head.properties) if _is_object(head.properties) else {}
    changes = {}
    for name, top in (("$set", head.set), ("$set_once", head.set_once)):
        objects = [members for members in (properties.get(name, _NULL), top) if _is_object(members)]
        if len(objects) > 1:
            changes[name] = _encode({**_decode(objects[0]), **_decode(objects[1])})
        elif objects:
            changes[name] = bytes(objects[0])
    if "$unset" in properties:
        changes["$unset"] = bytes(properties["$unset"])
    return changes


def replace_person_members(text: bytes, once: bytes = b"") -> bytes:
    """A finished event that says nothing else of its person than `once`, the JSON of its
    `$set_once`; empty: nothing.
    """
    head = _decode_head(text)
    properties = _decode(head.properties)
    is_alone = head.set is head.set_once is head.unset is ABSENT
    members = {} if is_alone else _decode(text)
    _drop_person_changes(members, properties)
    if once:
        properties["$set_once"] = Raw(once)
    written = _encode(properties)
    if is_alone:
        start, end = Locator(text).span(head.properties)
        return text[:start] + written + text[end:]
    members["properties"] = Raw(written)
    return _encode(members)


def _turn_native_into_set_once(members: dict[str, Raw], properties: dict[str, Raw]) -> None:
    """Policy `oldest`: what would be set is only set where nothing is; what is in `$set_once`
    already wins. No object, no effect.

    The event's top level wins over its properties, and all comes to stand in the properties.
    Without a `$set`, all stays where it is.
    """
    properties.pop("$unset", None)
    members.pop("$unset", None)
    objects = [
        value
        for value in (properties.pop("$set", _NULL), members.pop("$set", _NULL))
        if _is_object(value)
    ]
    if not objects:
        return
    objects += [
        value
        for value in (properties.pop("$set_once", _NULL), members.pop("$set_once", _NULL))
        if _is_object(value)
    ]
    merged: dict[str, Raw] = {}
    for member in objects:
        merged.update(_decode(member))
    properties["$set_once"] = objects[0] if len(objects) == 1 else Raw(_encode(merged))


_PERSON_POLICIES: Final[dict[str, tuple[Callable[..., None], Callable[..., None]]]] = {
    "none": (_drop_person_changes, _drop_person_changes),
    "newest": (_drop_person_changes, _drop_person_changes),
    "oldest": (_turn_into_set_once, _turn_native_into_set_once),
    "history": (lambda *_: None, lambda *_: None),  # all of it stays
}
"""What changes the properties of an event; and the members and the properties of a native one."""


OF_EVENTS: Final = 1 << 40
"""See `ImportDeadLetter.part`."""
OF_PERSONS: Final = 1 << 24
"""The parts of its record (`FinishedEvent.part`) from here on are events that `persons` adds."""
RefusedPart = tuple[int, RecordRefused, bytes | None, int]
"""The index of a record, why it is refused, the text and the number of what is refused
of it (`ImportDeadLetter.part`).
"""
NO_EVENT = RecordFate(FateKind.LEFT_OUT, "no_event_of_it")
"""The vendor's record stands for no event."""
REPEATED = RecordFate(FateKind.REPEAT)


@dataclass(frozen=True, slots=True)
class EventFilters:
    """Which events are selected."""

    since: int | None = None
    """Microseconds since 1970, UTC: events from then on."""
    until: int | None = None
    """Events before then."""
    events: Set[str] = frozenset()
    """Only events with these names; empty: all."""
    exclude_events: Set[str] = frozenset()
    """These are left out, even if `events` has them."""
    limit: int | None = None
    """How many events are selected at most, in the order in which they come."""


class FilterReason(StrEnum):
    """Why an event is left out. If several apply, the first in this order counts."""

    BEFORE_SINCE = "before_since"
    FROM_UNTIL_ON = "from_until_on"
    """At `until`, or after it."""
    OTHER_EVENT = "other_event"
    """Names are given, and this isn't one of them."""
    EXCLUDED_EVENT = "excluded_event"
    OVER_LIMIT = "over_limit"


def left_out(name: str, time: int, filters: EventFilters) -> FilterReason | None:
    """Why an event is left out whatever came before it; None if it isn't."""
    if filters.since is not None and time < filters.since:
        return FilterReason.BEFORE_SINCE
    if filters.until is not None and time >= filters.until:
        return FilterReason.FROM_UNTIL_ON
    if filters.events and name not in filters.events:
        return FilterReason.OTHER_EVENT
    if name in filters.exclude_events:
        return FilterReason.EXCLUDED_EVENT
    return None


class ImportDeadLetter(NamedTuple):
    """A record, or one event of several in a record, that isn't sent: a dead letter."""

    place: RecordLocation
    file_number: int
    """Of its file, in the order of the source."""
    number: int
    """Of the record in its file, from 0."""
    part: int
    """Tells what is refused of one record: 0 is all of it, n + 1 what it holds at index n,
    `OF_EVENTS` + n the n-th event made of it.
    """
    data: bytes
    """As it was read."""
    why: Reason
    detail: str


@dataclass(slots=True)
class ConvertedRecords:
    """What some neighbouring records of a file became; indexes count from
    the first of these records.
    """

    counts: list[int]
    """Of each record: how many events it sends."""
    fates: dict[int, RecordFate] = field(default_factory=dict)
    """Of those that send none: why."""
    partly: dict[int, RecordFate] = field(default_factory=dict)
    """Of those that send some, and of which an event was refused."""
    refused: list[ImportDeadLetter] = field(default_factory=list)
    events: EventColumns = field(default_factory=lambda: EventColumns.of(()))
    """In the order of the source."""
    first: int = 0
    """The number in its file of the first of these records."""

    def insert(self, added: Sequence[tuple[int, FinishedEvent]]) -> None:
        """Add events behind those with these indexes, each to its record."""
        events = [*self.events]
        for at, event in reversed(added):
            index = event.number - self.first
            part = OF_PERSONS + self.counts[index]
            self.counts[index] += 1
            events.insert(at + 1, event._replace(part=part))
        self.events = EventColumns.of(events)

    def after(self, skip: int) -> ConvertedRecords:
        """The same of the records from this index on."""
        if not skip:
            return self
        first = self.first + skip
        events = [at for at, number in enumerate(self.events.numbers) if number >= first]
        return ConvertedRecords(
            self.counts[skip:],
            {at - skip: fate for at, fate in self.fates.items() if at >= skip},
            {at - skip: fate for at, fate in self.partly.items() if at >= skip},
            [refusal for refusal in self.refused if refusal.number >= first],
            self.events.only(events),
            first,
        )


class PersonStage(Protocol):
    """What is done with the properties of persons once it is known which events are sent."""

    def place(self, made: ConvertedRecords) -> None:
        """Change what became of the next records of the source."""


LEFT_OUT: Final = {why: RecordFate(FateKind.LEFT_OUT, why) for why in FilterReason}
"""One of each: of a source of which little is wanted, there are very many."""


class FinishedBlock:
    """What a format makes of a block (`EventSink`), finished at once: columns of one length."""

    def __init__(self, finisher: EventFinisher) -> None:
        self._finisher = finisher
        self.records: list[int] = []
        """Of which record each event is: its index in the block."""
        self.names: list[str] = []
        self.distinct_ids: list[str] = []
        self.times: list[int] = []
        self.uuids: list[str] = []
        self.keyed: list[bool] = []
        self.data: list[bytes] = []
        self.texts: list[bytes] = []
        """Of native events: as they were before they were finished."""
        self.unfinished: dict[int, RecordRefused] = {}
        """Of the events that can't be finished, by index: why."""
        self.refused: list[RefusedPart] = []
        """By the format."""

    def add(self, records: Sequence[int], events: Sequence[ImportedEvent]) -> None:
        for at, event in enumerate(events, len(self.data)):
            if event.event in MERGES:
                self._check_merge(at, event.distinct_id, _second_ids(event.properties))
        self._take(*self._finisher.finish(events))
        self.records += records
        self.names += [event.event for event in events]
        self.distinct_ids += [event.distinct_id for event in events]
        self.times += [event.time for event in events]
        self.uuids += [event.uuid for event in events]
        self.keyed += [event.keyed for event in events]

    def extend(self, records: Sequence[int], events: NativeEvents) -> None:
        if not MERGES.isdisjoint(events.names):
            for at, name in enumerate(events.names):
                if name in MERGES:
                    own = events.distinct_ids[at]
                    self._check_merge(len(self.data) + at, own, ids_of(events.texts[at]) - {own})
        self._take(*self._finisher.finish_texts(events.texts, events.gaps))
        self.records += records
        self.names += events.names
        self.distinct_ids += events.distinct_ids
        self.times += events.times
        self.uuids += events.uuids
        self.keyed += [False] * len(records)
        self.texts += events.texts

    def refuse(
        self, record: int, why: RecordRefused, text: bytes | None = None, member: int | None = None
    ) -> None:
        drop_frames(why)
        self.refused.append((record, why, text, 0 if member is None else member + 1))

    def _check_merge(self, at: int, own: str, seconds: Iterable[str]) -> None:
        """Refuse an event that would merge the persons of many."""
        if (why := refused_merge(own, seconds)) is not None:
            self.unfinished[at] = why

    def _take(self, finished: list[bytes], refused: Mapping[int, RecordRefused]) -> None:
        first = len(self.data)
        for at, why in refused.items():
            self.unfinished.setdefault(first + at, why)
        self.data += finished

    def sent(
        self, left: Mapping[int, RecordFate], skip: int
    ) -> tuple[list[int], list[int], list[RefusedPart]]:
        """The events that are sent, by index; of each event which of the selected ones of its
        record it is; what is refused.

        `left`: the events that are left out, by index. A native event is refused alone, any other
        with its record, so that fixing the record brings all of it.
        """
        sent: list[int] = []
        parts = [0] * len(self.records)
        refused: list[RefusedPart] = []
        whole: set[int] = set()
        seen: dict[int, int] = {}
        for at, record in enumerate(self.records):
            if record < skip or at in left:
                continue
            parts[at] = part = seen.get(record, 0)
            seen[record] = part + 1
            why = self.unfinished.get(at)
            if why is None:
                sent.append(at)
            elif self.texts:
                refused.append((record, why, self.texts[at], OF_EVENTS + part))
            elif record not in whole:
                refused.append((record, why, None, 0))
                whole.add(record)
        refused += [refusal for refusal in self.refused if refusal[0] >= skip]
        return (
            [at for at in sent if self.records[at] not in whole],
            parts,
            sorted(refused, key=itemgetter(0)),
        )


def _second_ids(properties: Mapping[str, Any]) -> Iterator[str]:
    """The ids that an event's properties name beside its own, where the service reads them: it
    drops an event whose second id isn't text.
    """
    for name in ("$anon_distinct_id", "alias"):
        value = properties.get(name)
        if isinstance(value, Raw):
            value = id_text(value) if first_byte(value) == b'"' else None
        if isinstance(value, str):
            yield value


def _counted(records: Sequence[int], count: int) -> tuple[list[int], list[int]]:
    """How many events each of so many records has, and which of its record's events each event is;
    `records`: those of the events.
    """
    counts = [0] * count
    parts = []
    for record in records:
        parts.append(counts[record])
        counts[record] += 1
    return counts, parts


class ImportRules(NamedTuple):
    """The rules for events (`rules:`), and the project key that those are for."""

    rules: EventRules
    api_key: str

    def apply(
        self, events: EventColumns, made: FinishedBlock, left: dict[int, RecordFate], skip: int
    ) -> EventColumns:
        """The events as the rules leave them. Adds those that rules drop to `left`, and those that
        they fail on to what is unfinished.

        Events of records before `skip`, those in `left` and those that can't be finished are no
        concern of rules.
        """
        at = [
            index
            for index, record in enumerate(made.records)
            if record >= skip and index not in left and index not in made.unfinished
        ]
        if not at:
            return events
        ruled = self.rules.apply(
            b",".join([made.data[index] for index in at]), len(at), self.api_key, SOURCE
        )
        if ruled is None:
            return events
        for dropped in ruled.dropped:
            fate = RecordFate(FateKind.LEFT_OUT, dropped.rule.drop_reason)
            left.update((at[place], fate) for place in dropped.places)
        for failed in ruled.failed:
            made.unfinished[at[failed.place]] = RecordRefused(Reason.RULE_FAILED, failed.why)
        names = [*events.names]
        distinct_ids = [*events.distinct_ids]
        data = [*events.data]
        rest = ruled.left
        ids = rest.ids if ruled.new_ids and ruled.remaining_events else None
        for number, place in enumerate(ruled.places):
            index = at[place]
            names[index] = rest.names[number]
            data[index] = rest.events[number]
            if ids is not None:
                distinct_ids[index] = ids[number]
        return replace(events, names=names, distinct_ids=distinct_ids, data=data)


class Conversion:
    """Makes the events of one source, from its start and in its order."""

    def __init__(
        self,
        converter: Converter,
        finish: FinishPolicy,
        max_event: int,
        filters: EventFilters,
        repeats: Repeats | None,
        *,
        rules: ImportRules | None = None,
        persons: PersonStage | None = None,
    ) -> None:
        """`rules`: applied to events that are selected; None: there are none. `max_event`: the
        bytes that an event may have. `persons`: None: finishing has done all.

        `repeats`: None for single records that are converted by themselves, where what came before
        isn't known.
        """
        self._converter = converter
        self._finisher = EventFinisher(finish, max_event)
        self._filters = filters
        self._repeats = repeats
        self._rules = rules
        self._persons = persons
        self._selected = 0

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached: no later record can add an event."""
        return self._filters.limit is not None and self._selected >= self._filters.limit

    def convert(self, block: RecordBlock, file: int, skip: int) -> ConvertedRecords:
        """What becomes of a block's records from index `skip` on; those before only count for
        repeats, the limit and persons.
        """
        if self._persons is None:
            return self._convert(block, file, skip)
        made = self._convert(block, file, 0)
        self._persons.place(made)
        return made.after(skip)

    def _convert(self, block: RecordBlock, file: int, skip: int) -> ConvertedRecords:
        made = FinishedBlock(self._finisher)
        self._converter.convert_block(block, made)
        records = made.records
        count = len(block.records)
        of_file = (file,) * len(made.data)
        parts = (0,) * len(made.data)
        is_usual = records == [*range(count)]
        lines = block.lines if is_usual else [block.lines[record] for record in records]
        numbers = (
            range(block.first, block.first + count)
            if is_usual
            else [block.first + record for record in records]
        )
        events = EventColumns(
            made.times,
            made.distinct_ids,
            made.names,
            made.uuids,
            made.data,
            of_file,
            lines,
            numbers,
            parts,
        )
        left = self._left_out(events, made.keyed)
        if self._rules is not None and events:
            events = self._rules.apply(events, made, left, skip)
        if not (skip or left or made.unfinished or made.refused):
            if is_usual:
                return ConvertedRecords([1] * count, events=events, first=block.first)
            counts, events.parts = _counted(records, count)
            fates = {at: NO_EVENT for at, sends in enumerate(counts) if not sends}
            return ConvertedRecords(counts, fates, events=events, first=block.first)
        sent, events.parts, refused = made.sent(left, skip)
        converted = ConvertedRecords(
            [0] * (count - skip), events=events.only(sent), first=block.first + skip
        )
        for at in sent:
            converted.counts[records[at] - skip] += 1
        converted.fates = {
            records[at] - skip: fate
            for at, fate in left.items()
            if records[at] >= skip and not converted.counts[records[at] - skip]
        }
        for record, why, text, part in refused:
            at = record - skip
            place = block.place(record)
            fate = RecordFate(FateKind.REFUSED, why.why, RefusalExample(*place, why.detail))
            if converted.counts[at]:
                converted.partly[at] = fate
            elif converted.fates.get(at, NO_EVENT).kind is not FateKind.REFUSED:
                converted.fates[at] = fate
            data = bytes(block.records[record] if text is None else text)
            converted.refused.append(
                ImportDeadLetter(place, file, block.first + record, part, data, why.why, why.detail)
            )
        for at, sends in enumerate(converted.counts):
            if not sends:
                converted.fates.setdefault(at, NO_EVENT)
        return converted

    def _left_out(self, events: EventColumns, keyed: Sequence[bool]) -> dict[int, RecordFate]:
        """Why events of neighbouring records are left out, by index; the others are selected, and
        count from then on.
        """
        fates: dict[int, RecordFate] = {}
        if not events:
            return fates
        names, first, last = events.bounds
        if any(left_out(name, time, self._filters) for name in names for time in (first, last)):
            whys = map(left_out, events.names, events.times, repeat(self._filters))
            fates = {index: LEFT_OUT[why] for index, why in enumerate(whys) if why is not None}
        passing = [index for index in range(len(events)) if index not in fates]
        again = frozenset[int]()
        if self._repeats is not None:
            columns = events.names, events.distinct_ids, events.times, events.uuids, keyed
            repeated = self._repeats.among(
                *([column[index] for index in passing] for column in columns) if fates else columns
            )
            again = frozenset(passing[at] for at in repeated)
        for index in again if self._filters.limit is None else passing:
            if self.is_full:
                fates[index] = LEFT_OUT[FilterReason.OVER_LIMIT]
            elif index in again:
                fates[index] = REPEATED
            else:
                self._selected += 1
        return fates
