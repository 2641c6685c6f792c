"""The service's own exports, of events and of persons, for the way back into a project.

The columns are those of its batch exports, of dumps of its tables and of tables in warehouses
(PostHog/posthog: `s3_default_fields` in
products/batch_exports/backend/temporal/destinations/s3_batch_export.py, commit 0173ef5, and
products/batch_exports/backend/temporal/sql/events.py, 0a9745a, and sql/persons.py, 42257ad). Of an
event only what ingestion reads is sent. The elements of an autocaptured event go back to the
property that ingestion takes them from, as the service's own export over HTTP puts them
(destinations/http_batch_export.py, 0032783). Everything else follows in the target project: its
persons, their ids, the time of receipt.

A record of a person becomes a `$set`, or an `$identify` if the person is known to be identified,
at the time at which the person was created. Several distinct ids of a person are merged into the
first one by an `$identify` each, whether they come as a list or as one record each.
"""

from __future__ import annotations

import re
import sqlite3
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from functools import partial
from hashlib import blake2b, sha256
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from forwarder.core.error_text import error_text
from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import Framing, RecordBlock
from forwarder.sources.imports.format import (
    OF_JSON,
    EventSink,
    ImportedEvent,
    ImportFormat,
    NoOptions,
    RecordConverter,
    RecordRefused,
    key_uuid,
    natural_key,
    place_uuid,
)
from forwarder.sources.imports.times import parse_moment
from forwarder.sources.imports.values import (
    ELEMENTS,
    EXPORT_MARKS,
    check_utf8,
    decode_record,
)

_NOT_SENT: Final = re.compile(
    r"team_id|project_id|site_url|ip|id|name|version|created_at|last_seen_at|captured_at"
    r"|person|person_.*|poe_.*|is_deleted|is_identified|group\d.*|\$group_\d"
    r"|\$session_id.*|\$window_id|elements|elements_hash|elements_chain_.*"
    r"|.*inserted_at|.*(?:inserted|ingested)_timestamp|[dp]?mat_.*|_.*"
    r"|historical_migration|event_issue_id|consumer_breadcrumbs"
).fullmatch
"""Columns that the service has beside those that are read, in its tables, exports and warehouses:
what they hold follows from the others, or is of the project that was exported.
"""
_MOST_UNKNOWN: Final = 100
_is_uuid: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}"
).fullmatch
_NOTHING: Final = frozenset(("", "null", r"\N"))
"""How a table writes that there is no value, `\\N` ClickHouse."""
_TRUE: Final = frozenset((True, 1, "true", "True", "1"))
_Object = dict[str, Raw] | str | None
"""An object, or its JSON text: Parquet, tables and ClickHouse have texts."""
_Time = str | int | float | None
_Id = str | int | None


class _ExportedRecord(Struct, gc=False):
    """What is read of a row of events, or of persons: those have no `event`."""

    event: str | UnsetType | None = UNSET
    uuid: str | None = None
    distinct_id: _Id = None
    timestamp: _Time = None
    properties: _Object = None
    elements_chain: str | None = None
    set: _Object = None
    set_once: _Object = None
    people_set: _Object = None
    people_set_once: _Object = None
    set_beside: _Object = field(name="$set", default=None)
    set_once_beside: _Object = field(name="$set_once", default=None)
    distinct_ids: list[str] | str | None = None
    person_id: str | None = None
    created_at: _Time = None
    is_identified: bool | int | str | None = None
    is_deleted: bool | int | str | None = None


_READ: Final = frozenset(_ExportedRecord.__struct_encode_fields__)
_decode: Final = msgspec.json.Decoder(_ExportedRecord).decode
_decode_object: Final = msgspec.json.Decoder(dict[str, Raw] | None).decode
_decode_texts: Final = msgspec.json.Decoder(list[str]).decode


class PostHogConverter(RecordConverter[_ExportedRecord]):
    """The format at work on one source. Times without a zone are what `clock` shows (None: UTC, as
    the service's tables have them).
    """

    def __init__(self, clock: tzinfo | None = None) -> None:
        super().__init__(_decode, partial(_read, decode=_decode))
        self._clock = clock
        self._persons: _FirstIds | None = None
        self.unknown_columns: dict[str, None] = {}
        """The first columns that aren't read and that the service doesn't have, as far as the first
        record of each block shows them.
        """

    def convert_block(self, block: RecordBlock, events: EventSink) -> None:
        for record in block.records[:1]:
            self._note_columns(record)
        super().convert_block(block, events)

    def _note_columns(self, record: bytes) -> None:
        try:
            names = _decode_object(record) or {}
        except (ValueError, RecursionError):  # it is refused elsewhere
            return
        for name in names:
            if (
                name not in _READ
                and _NOT_SENT(name) is None
                and len(self.unknown_columns) < _MOST_UNKNOWN
            ):
                self.unknown_columns[name] = None

    def events_of(
        self, record: _ExportedRecord, block: RecordBlock, index: int
    ) -> Sequence[ImportedEvent]:
        """The event of one row, or the events of a person's. Raises `RecordRefused`."""
        if record.event is UNSET:
            return self._person(record, block.records[index])
        event = record.event
        if not event or event.isspace():
            raise RecordRefused(Reason.MISSING_EVENT, "the row has no event")
        distinct_id = _own_id(record.distinct_id)
        time, moment = self._time(record.timestamp, "timestamp")
        properties = _object(record.properties, "properties")
        if record.elements_chain and ELEMENTS not in properties:
            properties[ELEMENTS] = record.elements_chain
        _add_person(properties, "$set", (record.people_set, record.set, record.set_beside))
        _add_person(
            properties,
            "$set_once",
            (record.people_set_once, record.set_once, record.set_once_beside),
        )
        uuid = (record.uuid or "").strip().lower()
        if not uuid:
            uuid = place_uuid("posthog", block, index)
        elif _is_uuid(uuid) is None:
            uuid = key_uuid("posthog", event, time, distinct_id, uuid)
        return (ImportedEvent(event, distinct_id, time, uuid, properties, moment=moment),)

    def _person(self, record: _ExportedRecord, written: bytes) -> Sequence[ImportedEvent]:
        """The events of a person: one with its properties, and one for each further id."""
        if record.is_deleted in _TRUE:
            return ()
        if record.distinct_ids is None and record.person_id is None:
            raise RecordRefused(
                Reason.MISSING_EVENT,
                "the row has no event, and is no person: it has no person_id",
            )
        own, others = self._ids(record)
        time, moment = self._time(record.created_at, "created_at")
        person = _object(record.properties, "properties")
        is_identified = record.is_identified in _TRUE or bool(others)
        # What was exported twice, unchanged, is one event; once it changed, it is another.
        digest = sha256(written).hexdigest()
        events = []
        if not others or record.distinct_ids is not None:
            events.append(
                ImportedEvent(
                    "$identify" if is_identified else "$set",
                    own,
                    time,
                    "",
                    {"$set": person},
                    keyed=True,
                    moment=moment,
                    natural_key=natural_key("posthog_person", own, digest),
                )
            )
        events += [
            ImportedEvent(
                "$identify",
                own,
                time,
                "",
                {"$anon_distinct_id": other, "$set": person.copy()},
                keyed=True,
                moment=moment,
                natural_key=natural_key("posthog_person", own, other, digest),
            )
            for other in others
        ]
        return events

    def _ids(self, record: _ExportedRecord) -> tuple[str, Sequence[str]]:
        """The id that the person keeps, and those that are merged into it."""
        if record.distinct_ids is None:
            own = _own_id(record.distinct_id)
            if self._persons is None:
                self._persons = _FirstIds()
            first = self._persons.first(record.person_id or "", own)
            return first, () if first == own else (own,)
        listed = record.distinct_ids
        if isinstance(listed, str):
            try:
                listed = _decode_texts(listed)
            except (ValueError, RecursionError) as error:
                raise RecordRefused(
                    Reason.INVALID_EVENT,
                    f"distinct_ids isn't a list of texts: {error_text(error)}",
                ) from error
        ids = [*dict.fromkeys(map(_own_id, listed))]
        if not ids:
            raise RecordRefused(Reason.MISSING_DISTINCT_ID, "distinct_ids is empty")
        return ids[0], ids[1:]

    def _time(self, written: _Time, name: str) -> tuple[int, datetime]:
        if written is None or (isinstance(written, str) and written.strip() in _NOTHING):
            raise RecordRefused(Reason.MISSING_TIMESTAMP, f"the row has no {name}")
        return parse_moment(written, self._clock)


class _FirstIds:
    """The distinct id of each person that came first. It is kept on disk, in a file without a name
    that goes with it: about 100 bytes for a person, and in memory only SQLite's cache.
    """

    def __init__(self) -> None:
        # A converter runs in one thread after the other.
        self._kept = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._kept.close)
        self._kept.execute("PRAGMA journal_mode = OFF")
        self._kept.execute(
            "CREATE TABLE first (person BLOB PRIMARY KEY, distinct_id TEXT) WITHOUT ROWID"
        )
        self._kept.execute("BEGIN")

    def first(self, person: str, distinct_id: str) -> str:
        """The first id that came with this person: this one, if none came before."""
        key = blake2b(person.encode(errors="surrogatepass"), digest_size=16).digest()
        added = self._kept.execute("INSERT OR IGNORE INTO first VALUES (?, ?)", (key, distinct_id))
        if added.rowcount:
            return distinct_id
        [(first_id,)] = self._kept.execute("SELECT distinct_id FROM first WHERE person = ?", (key,))
        return str(first_id)


def _read(record: bytes, decode: Any) -> _ExportedRecord:
    if not record.lstrip().startswith(b"{"):
        check_utf8(record)
    row: _ExportedRecord = decode_record(record, decode, "the row isn't one of an export: ")
    return row


def _own_id(distinct_id: _Id) -> str:
    text = "" if distinct_id is None else str(distinct_id)
    if not text or text.isspace():
        raise RecordRefused(Reason.MISSING_DISTINCT_ID, "the row has no distinct_id")
    return text


def _object(value: _Object, name: str) -> dict[str, Any]:
    """The members of an object, or of the JSON text of one; no members where there is no value."""
    if isinstance(value, str):
        text = value.strip()
        if text in _NOTHING:
            return {}
        if "\n" in text or "\r" in text:  # events are kept a line each
            text = msgspec.json.format(text, indent=-1)
        try:
            return _decode_object(text) or {}
        except (ValueError, RecursionError) as error:
            raise RecordRefused(
                Reason.INVALID_EVENT, f"{name} isn't an object's JSON: {error_text(error)}"
            ) from error
    return value or {}


def _add_person(properties: dict[str, Any], name: str, columns: Sequence[_Object]) -> None:
    """Add what columns say about the person, which wins over what the properties say: the service
    puts it there when it ingests an event.
    """
    if not any(columns):
        return
    members: dict[str, Any] = {}
    if bytes(properties.get(name, b""))[:1] == b"{":
        members = _decode_object(properties[name]) or {}
    for column in columns:
        members |= _object(column, name.removeprefix("$"))
    if members:
        properties[name] = members


def _recognizes(members: Mapping[str, Raw]) -> bool:
    if "distinct_ids" in members and "properties" in members:
        return True
    if "distinct_id" not in members:
        return False
    if "event" in members:
        return not EXPORT_MARKS.isdisjoint(members)
    return "person_id" in members and "properties" in members


DESCRIPTION: Final = ImportFormat(
    name="posthog",
    summary=(
        "The service's own exports of events or persons: JSON lines, Parquet, ClickHouse, CSV."
    ),
    example="'s3://exports/events/*.parquet' --dry-run",
    options=NoOptions,
    make=lambda _, given: PostHogConverter(given.clock),
    looks_like="the service's own export",
    recognizes=_recognizes,
    times=lambda *_: ("timestamp", "created_at"),
    zone_said=lambda *_: True,
    framings=(*OF_JSON, Framing.CSV),
)
