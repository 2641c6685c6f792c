"""Records of any kind by the mapping that Kafka, logs and imports share (`forwarder.mapping`).

The rules say what an event's name, id, time, uuid and properties are. What they leave out
is not guessed: an event without time or id is refused; only a missing uuid follows from
where its record stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import Reason
from forwarder.mapping import EventMapping, NotJson, Unmappable
from forwarder.sources.files.record_blocks import Framing, RecordBlock
from forwarder.sources.imports.format import (
    ChosenMapping,
    EventSink,
    FormatContext,
    ImportedEvent,
    ImportFormat,
    NoOptions,
    RecordConverter,
    RecordRefused,
    place_uuid,
)
from forwarder.sources.imports.times import parse_time
from forwarder.sources.imports.values import check_utf8, is_blank


class _MappedEvent(Struct, gc=False):
    """An event as a mapping makes it."""

    event: str
    properties: dict[str, Raw]
    distinct_id: str = ""
    timestamp: str = ""
    uuid: str = ""


_decode: Final = msgspec.json.Decoder(_MappedEvent).decode
_decode_all: Final = msgspec.json.Decoder(list[_MappedEvent]).decode


class MappedConverter(RecordConverter[_MappedEvent | list[_MappedEvent] | None]):
    """The mapping format. A record is an object, or an array of them: if one of them can't be
    mapped, none is.
    """

    def __init__(
        self, mapping: EventMapping, prepare: Callable[[bytes, str], bytes] | None = None
    ) -> None:
        """`prepare`: see `ChosenMapping`."""
        super().__init__(self._mapped, self._mapped)
        self._map = mapping.map_record
        self._prepare = prepare
        self._file = ""

    def convert(self, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        self._file = block.file.name
        return super().convert(block, index)

    def convert_block(self, block: RecordBlock, events: EventSink) -> None:
        self._file = block.file.name
        super().convert_block(block, events)

    def events_of(
        self, record: _MappedEvent | list[_MappedEvent] | None, block: RecordBlock, index: int
    ) -> Sequence[ImportedEvent]:
        """The events of one record; none if `where` says so. Raises `RecordRefused`."""
        if isinstance(record, list):
            return [_event(event, block, index, member) for member, event in enumerate(record)]
        return () if record is None else (_event(record, block, index),)

    def _mapped(self, record: bytes) -> _MappedEvent | list[_MappedEvent] | None:
        record = record.removesuffix(b"\n")
        try:
            text = self._map(record if self._prepare is None else self._prepare(record, self._file))
            if text is None:
                return None
            return _decode_all(text) if text[:1] == b"[" else _decode(text)
        except Unmappable as error:
            raise RecordRefused(Reason.UNMAPPABLE, str(error)) from error
        except (NotJson, msgspec.DecodeError, UnicodeDecodeError) as error:
            # what the rules passed over, only decoding sees
            check_utf8(record)
            raise RecordRefused(Reason.UNDECODABLE, error_text(error)) from error


def _event(mapped: _MappedEvent, block: RecordBlock, index: int, *member: int) -> ImportedEvent:
    """An event with what it must have; `member`: its index, if its record holds
    several. Raises `RecordRefused`.
    """
    if is_blank(mapped.distinct_id):
        raise RecordRefused(Reason.MISSING_DISTINCT_ID, "the rules give it no distinct_id")
    if not mapped.timestamp:
        raise RecordRefused(Reason.MISSING_TIMESTAMP, "the rules give it no timestamp")
    uuid = mapped.uuid.lower() or place_uuid("mapping", block, index, *member)
    return ImportedEvent(
        mapped.event, mapped.distinct_id, parse_time(mapped.timestamp), uuid, mapped.properties
    )


_CHOICE: Final = re.compile(r"\s*//\s*")
_PLAIN: Final = re.compile(r"^\.([A-Za-z_$][\w$-]*(?:\.[A-Za-z_$][\w$-]*)?)\Z", re.ASCII)


def _rules(given: FormatContext) -> ChosenMapping:
    if given.mapping is None:
        hint = (
            "Write the rules into `import.mapping` of the configuration, or into a file of "
            "their own: --mapping FILE."
        )
        raise ConfigurationError("the format mapping has no rules", hint=hint)
    return given.mapping


def times(_: NoOptions, given: FormatContext) -> Sequence[str]:
    """The fields of the time, where the rule is the path of one, or a choice of several."""
    rule = _rules(given).rules.timestamp
    fields = [] if rule is None else [_PLAIN.findall(choice) for choice in _choices(rule.source)]
    return tuple(field for names in fields for field in names) if all(fields) else ()


def _choices(expression: str) -> Sequence[str]:
    return _CHOICE.split(expression.strip())


def make(_: NoOptions, given: FormatContext) -> MappedConverter:
    """The converter. Raises `ConfigurationError` if there are no rules, or unusable ones."""
    chosen = _rules(given)
    return MappedConverter(chosen.compile(), chosen.prepare)


def zone_said(_: NoOptions, given: FormatContext) -> bool:
    """Whether the rules name the zone of times without one."""
    return _rules(given).zone_said


DESCRIPTION: Final = ImportFormat(
    name="mapping",
    summary="Records of any kind, as JSON lines, CSV or Parquet, by rules of your own.",
    example="records.parquet --mapping rules.yaml --dry-run",
    options=NoOptions,
    make=make,
    times=times,
    zone_said=zone_said,
    framings=tuple(Framing),
    takes_zone=False,
    takes_mapping=True,
)
