"""CSV: a row is an event, four columns say which, whose and when, and the other columns are its properties.

Sources give a row as a JSON object of texts by column. A cell is a text unless an option says what its column holds; an empty cell isn't
there. JSON and numbers stay as they are written (`1.50` is not `1.5`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from msgspec import Raw

from forwarder.sources.files.records import Framing, RecordBlock
from forwarder.sources.imports.format import (
    ImportedEvent,
    ImportFormat,
    RecordConverter,
    RecordRefused,
    RefusalReason,
    key_uuid,
    option,
    place_uuid,
)
from forwarder.sources.imports.times import parse_time
from forwarder.sources.imports.values import check_id

FORMAT: Final = "csv"

BOOLEANS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
"""How a yes or no is written, in any case."""

_is_number: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
_is_uuid: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}").fullmatch

_decode_row = msgspec.json.Decoder(dict[str, str | None]).decode
_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw] | None).decode


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """What the columns are called, and what is in them."""

    event: str = option("event", "The column of the event's name.", flag="event-column")
    distinct_id: str = option("distinct_id", "The column of whose event it is.", flag="distinct-id-column")
    timestamp: str = option("timestamp", "The column of when it happened.", flag="timestamp-column")
    uuid: str = option("uuid", "The column of the row's own id: a UUID, or any other text. It may be missing.", flag="uuid-column")
    properties: str = option(
        "properties",
        "A column of a JSON object with further properties; a cell of a column of the same name wins. It may be missing.",
        flag="properties-column",
    )
    json: Set[str] = option(frozenset(), "A column of JSON values.", flag="json-column")
    numbers: Set[str] = option(frozenset(), "A column of numbers, written as in JSON.", flag="number-column")
    booleans: Set[str] = option(frozenset(), "A column of true, t, yes, y, 1 and false, f, no, n, 0.", flag="boolean-column")
    offset_minutes: int = 0
    """How far ahead of UTC the clock of times without a zone is."""

    def __post_init__(self) -> None:
        """Raises `ValueError` if a column is to be two things."""
        meant = [*self.roles, *self.json, *self.numbers, *self.booleans]
        twice = sorted({name for name in meant if meant.count(name) > 1})
        if twice:
            raise ValueError(f"columns that are to be two things: {', '.join(twice)}")

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that aren't properties themselves."""
        return (self.event, self.distinct_id, self.timestamp, self.uuid, self.properties)


class CsvConverter(RecordConverter):
    """The format at work on one source."""

    def __init__(self, options: CsvOptions | None = None) -> None:
        self._options = options = options or CsvOptions()
        self._roles = frozenset(options.roles)
        self._readers: list[tuple[str, Callable[[str], Any]]] = [
            *((name, _json) for name in sorted(options.json)),
            *((name, _number) for name in sorted(options.numbers)),
            *((name, _boolean) for name in sorted(options.booleans)),
        ]

    def convert(self, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The event of one row. Raises `RecordRefused`."""
        options, row = self._options, _row(block.records[index])
        event = _needed(row, options.event, RefusalReason.NO_EVENT)
        distinct_id = check_id(_needed(row, options.distinct_id, RefusalReason.NO_ID))
        time = parse_time(_needed(row, options.timestamp, RefusalReason.NO_TIME), options.offset_minutes)
        cell = (row.get(options.uuid) or "").strip()
        properties = self._properties(row)
        if not cell:
            uuid = place_uuid(FORMAT, block, index)
        elif _is_uuid(uuid := cell.lower()) is None:
            uuid = key_uuid(FORMAT, event, time, distinct_id, cell)
        return (ImportedEvent(event, distinct_id, time, uuid, properties),)

    def _properties(self, row: dict[str, str | None]) -> dict[str, Any]:
        """What is left of a row: it becomes them."""
        inner = row.get(self._options.properties)
        for name in self._roles:
            row.pop(name, None)
        properties: dict[str, Any] = row if all(row.values()) else {name: cell for name, cell in row.items() if cell}
        for name, read in self._readers:
            if name in properties:
                _put(properties, name, read)
        return {**_object(self._options.properties, inner), **properties} if inner else properties


def _row(record: bytes) -> dict[str, str | None]:
    try:
        return _decode_row(record)
    except msgspec.ValidationError as error:
        why = RefusalReason.WRONG_TYPE if record.lstrip().startswith(b"{") else RefusalReason.NOT_JSON
        raise RecordRefused(why, f"the row isn't an object of texts: {error}") from error
    except ValueError as error:
        if record.lstrip().startswith(b"{"):
            raise RecordRefused(RefusalReason.NOT_JSON, f"the row can't be read: {error}") from error
        raise RecordRefused(
            RefusalReason.NOT_JSON, "the row has more or fewer cells than the header, a quote without an end, or isn't UTF-8"
        ) from error


def _needed(row: dict[str, str | None], name: str, why: RefusalReason) -> str:
    cell = row.get(name)
    if not cell or cell.isspace():
        raise RecordRefused(why, f"column {name} is {'empty' if name in row else 'not there'}")
    return cell


def _put(properties: dict[str, Any], name: str, read: Callable[[str], Any]) -> None:
    """A cell's value, from its text. One of only white space holds none."""
    cell = properties[name].strip()
    if not cell:
        del properties[name]
        return
    try:
        properties[name] = read(cell)
    except (ValueError, KeyError, RecursionError) as error:
        raise _wrong(name, cell, read.__name__.removeprefix("_")) from error


def _json(cell: str) -> Raw:
    return _decode_raw(_one_line(cell))


def _number(cell: str) -> Raw:
    if not _is_number(cell) or math.isinf(float(cell)):
        raise ValueError(cell)
    return Raw(cell.encode())


def _boolean(cell: str) -> bool:
    return BOOLEANS[cell.lower()]


def _object(name: str, cell: str) -> dict[str, Raw]:
    if cell.isspace():
        return {}
    try:
        return _decode_object(_one_line(cell)) or {}
    except (ValueError, RecursionError) as error:
        raise _wrong(name, cell, "object of JSON") from error


def _one_line(cell: str) -> str | bytes:
    """JSON of several lines on one, because events are kept a line each."""
    return msgspec.json.format(cell.encode(), indent=-1) if "\n" in cell or "\r" in cell else cell


def _wrong(name: str, cell: str, wanted: str) -> RecordRefused:
    shown = repr(cell if len(cell) <= 80 else cell[:80] + "…")
    return RecordRefused(RefusalReason.WRONG_TYPE, f"column {name} holds {shown}, which is no {wanted}")


DESCRIPTION: Final = ImportFormat(
    name="csv",
    summary="Tables with a header: a row is an event, its columns are properties.",
    example="orders.csv --event-column kind --timestamp-column created_at --number-column amount",
    options=CsvOptions,
    make=lambda options, given: CsvConverter(replace(options, offset_minutes=given.minutes)),
    times=lambda options, _: (options.timestamp,),
    framings=(Framing.CSV,),
)
