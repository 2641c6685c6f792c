"""CSV: a row is an event, four columns say which, whose and when, and the other columns are its
properties.

Sources give a row as a JSON object of texts by column. A cell is a text unless an option says what
its column holds; an empty cell isn't there. JSON and numbers stay as they are written (`1.50` is
not `1.5`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import tzinfo
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import Framing, RecordBlock, RowRecords
from forwarder.sources.imports.format import (
    ImportedEvent,
    ImportFormat,
    RecordConverter,
    RecordRefused,
    key_uuid,
    option,
    place_uuid,
)
from forwarder.sources.imports.formats.cells import (
    check_row,
    one_line,
    read_boolean,
    read_json,
    read_number,
)
from forwarder.sources.imports.times import parse_moment
from forwarder.sources.imports.values import (
    ELEMENTS,
    EXPORTED_ELEMENTS,
    decode_record,
)

_is_uuid: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}"
).fullmatch

_SYNONYMS: Final = {
    "event": ("eventname", "eventtype", "name", "action", "kind", "type", "activity"),
    "distinct_id": (
        "userid",
        "user",
        "personid",
        "customerid",
        "visitorid",
        "anonymousid",
        "email",
        "uid",
        "id",
    ),
    "timestamp": (
        "time",
        "eventtime",
        "createdat",
        "occurredat",
        "datetime",
        "date",
        "ts",
        "at",
        "when",
    ),
}
"""What columns are often called, by what they are for; without case and signs."""
_Row = dict[str, str | None]
_decode_row: Final = msgspec.json.Decoder(_Row).decode
_decode_object: Final = msgspec.json.Decoder(dict[str, Raw] | None).decode


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """What the columns are called, and what is in them.

    `event`, `distinct_id`, `timestamp` and `uuid` may name several, separated by commas: the
    first that isn't blank in a row counts. The others stay properties.
    """

    event: str = option(
        "event",
        "The column of the event's name; of several (a,b) the first that isn't blank.",
        flag="event-column",
    )
    distinct_id: str = option(
        "distinct_id",
        "The column of whose event it is, or several: user_id,anonymous_id.",
        flag="distinct-id-column",
    )
    timestamp: str = option(
        "timestamp", "The column of when it happened, or several.", flag="timestamp-column"
    )
    uuid: str = option(
        "uuid",
        "The column of the row's own id: a UUID, or any other text. It may be missing.",
        flag="uuid-column",
    )
    properties: str = option(
        "properties",
        (
            "A column of a JSON object with further properties; a cell of a column of the same "
            "name wins. It may be missing."
        ),
        flag="properties-column",
    )
    json: Set[str] = option(frozenset(), "A column of JSON values.", flag="json-column")
    numbers: Set[str] = option(
        frozenset(), "A column of numbers, written as in JSON.", flag="number-column"
    )
    booleans: Set[str] = option(
        frozenset(), "A column of true, t, yes, y, 1 and false, f, no, n, 0.", flag="boolean-column"
    )
    drop: Set[str] = option(frozenset(), "A column that is left out.", flag="drop-column")

    def __post_init__(self) -> None:
        """Raises `ValueError` if a column is to be two things."""
        meant = [
            *(name for role in self.roles for name in alternatives(role)),
            *(
                name
                for names in (self.json, self.numbers, self.booleans, self.drop)
                for name in names
            ),
        ]
        twice = sorted({name for name in meant if meant.count(name) > 1})
        if twice:
            raise ValueError(f"columns that are to be two things: {', '.join(twice)}")

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that aren't properties themselves."""
        return (self.event, self.distinct_id, self.timestamp, self.uuid, self.properties)


def alternatives(columns: str) -> Sequence[str]:
    """The columns that an option names, in the order in which they are looked into."""
    return [*filter(None, map(str.strip, columns.split(",")))] or [columns]


class CsvConverter(RecordConverter[_Row]):
    """The format at work on one source. Times without a zone are what `clock` shows (None: UTC)."""

    def __init__(self, options: CsvOptions | None = None, clock: tzinfo | None = None) -> None:
        super().__init__(_decode_row, _read_row)
        self._options = options = options or CsvOptions()
        self._clock = clock
        self._no_properties = frozenset((*options.roles, *options.drop))
        readers = (
            (options.json, read_json, "json"),
            (options.numbers, read_number, "number"),
            (options.booleans, read_boolean, "boolean"),
        )
        self._readers = [
            (name, read, wanted) for names, read, wanted in readers for name in sorted(names)
        ]

    def events_of(self, row: _Row, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The event of one row. Raises `RecordRefused`."""
        options = self._options
        event = row.get(options.event)
        distinct_id = row.get(options.distinct_id)
        written = row.get(options.timestamp)
        if not event or event.isspace():
            event = _other_cell(row, options, "event", Reason.MISSING_EVENT)
        if not distinct_id or distinct_id.isspace():
            distinct_id = _other_cell(row, options, "distinct_id", Reason.MISSING_DISTINCT_ID)
        if not written or written.isspace():
            written = _other_cell(row, options, "timestamp", Reason.MISSING_TIMESTAMP)
        time, moment = parse_moment(written, self._clock)
        cell = (row.get(options.uuid) or "").strip()
        if not cell and "," in options.uuid:
            cell = _first_cell(row, options.uuid).strip()
        properties = self._properties(row)
        if not cell:
            uuid = place_uuid("csv", block, index)
        elif _is_uuid(uuid := cell.lower()) is None:
            uuid = key_uuid("csv", event, time, distinct_id, cell)
        return (ImportedEvent(event, distinct_id, time, uuid, properties, moment=moment),)

    def _decoded(self, records: Sequence[bytes], few: slice) -> Sequence[_Row | RecordRefused]:
        """The rows, which needn't be read again from their JSON."""
        if isinstance(records, RowRecords):
            return [dict(zip(records.names, row, strict=True)) for row in records.rows[few]]
        return super()._decoded(records, few)

    def _properties(self, row: _Row) -> dict[str, Any]:
        """What is left of a row: it becomes them."""
        inner = row.get(self._options.properties)
        for name in self._no_properties:
            if name in row:
                del row[name]
        properties: dict[str, Any] = (
            row if all(row.values()) else {name: cell for name, cell in row.items() if cell}
        )
        for name, read, wanted in self._readers:
            if name in properties:
                properties[name] = value = _value(name, properties[name], read, wanted)
                if value is None:
                    del properties[name]
        if EXPORTED_ELEMENTS in properties:  # as ingestion takes them from an event
            properties.setdefault(ELEMENTS, properties.pop(EXPORTED_ELEMENTS))
        return (
            {
                **(_value(self._options.properties, inner, _object, "object of JSON") or {}),
                **properties,
            }
            if inner
            else properties
        )


def _read_row(record: bytes) -> _Row:
    check_row(record)
    return decode_record(record, _decode_row, "the row isn't an object of texts: ")


def _first_cell(row: _Row, columns: str) -> str:
    """The first cell of some columns that isn't blank, which isn't in the row any more; empty if
    there is none.
    """
    for name in alternatives(columns):
        cell = row.pop(name, None)
        if cell and not cell.isspace():
            return cell
    return ""


def _other_cell(row: _Row, options: CsvOptions, role: str, why: Reason) -> str:
    """The cell of a role where the column of the option's whole name has none. Raises
    `RecordRefused`, if none of the option's columns has one.
    """
    columns: str = getattr(options, role)
    present = tuple(row)
    if cell := _first_cell(row, columns):
        return cell
    names = alternatives(columns)
    known = [name for name in names if name in present]
    if not known:
        raise RecordRefused(why, _missing(role, names[0], present))
    empty = f"column {known[0]} is" if len(known) == 1 else f"columns {', '.join(known)} are"
    raise RecordRefused(why, f"{empty} empty")


@lru_cache(maxsize=16)
def _missing(role: str, name: str, columns: tuple[str, ...]) -> str:
    """Why a row has no cell for a role: which columns there are, and the option that names one.
    Each row of a file has the same.
    """
    flag = f"--{role.replace('_', '-')}-column"
    by_name = {_bare(column): column for column in reversed(columns)}
    nearest = by_name.get(_bare(name)) or next(
        (by_name[synonym] for synonym in _SYNONYMS[role] if synonym in by_name), ""
    )
    if not nearest:
        nearest = next(
            (by_name[match] for match in get_close_matches(_bare(name), by_name, n=1, cutoff=0.6)),
            "",
        )
    near = (
        f"there is no column {name}: name it by "
        f"{flag}{f', perhaps {flag} {shlex.quote(nearest)}' if nearest else ''}"
    )
    return f"{near}; the columns are {', '.join(columns)}"


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _value(name: str, cell: str, read: Callable[[str], Any], wanted: str) -> Any:
    """A cell's value, from its text; None for one of only white space. Raises `RecordRefused`."""
    cell = cell.strip()
    try:
        return read(cell) if cell else None
    except (ValueError, KeyError, RecursionError) as error:
        shown = repr(cell if len(cell) <= 80 else cell[:80] + "…")
        raise RecordRefused(
            Reason.INVALID_EVENT, f"column {name} holds {shown}, which is no {wanted}"
        ) from error


def _object(cell: str) -> dict[str, Raw]:
    return _decode_object(one_line(cell)) or {}


DESCRIPTION: Final = ImportFormat(
    name="csv",
    summary="Tables with a header: a row is an event, its columns are properties.",
    example="orders.csv --event-column kind --timestamp-column created_at --number-column amount",
    options=CsvOptions,
    make=lambda options, given: CsvConverter(options, given.clock),
    looks_like="a table (CSV)",
    times=lambda options, _: alternatives(options.timestamp),
    framings=(Framing.CSV,),
)
