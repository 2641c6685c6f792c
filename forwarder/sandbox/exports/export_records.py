"""What a run of a batch export selects: events or persons, in pages, as values of fixed columns.

The columns are those of the service's own exports. Events are the distinct ones of the project, in
the order of arrival: neither duplicates nor conflicts, since one uuid is one event. An event's
properties are the text that was sent, and so is what it says about its person beside them;
`person_id` is the person of its distinct id when the page is read, `person_properties` what that
one's person had when the event was ingested, as in the service. Persons have one record for
each distinct id. A person's time is the receipt of the arrival that changed it last, and its
arrival is that one: so a person that changes while a run reads is left to the next run. That
arrival's number is also the version of a person and of its distinct ids: of two records of one
distinct id the higher one is newer.

Each page is one unit of work on the store's thread and looks at `WINDOW` rows at most, so that
ingestion waits for milliseconds; memory holds one page. Reading in the order of arrival needs no
index, which would slow ingestion down for all who export nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from forwarder.sandbox.conditions.matching import PropertyCondition, prepare_condition
from forwarder.sandbox.conditions.values import CannotDecide
from forwarder.sandbox.exports.jobs import ExportJob, ExportMisconfigured, Selection
from forwarder.sandbox.protocol.json_scanner import JsonScanner
from forwarder.sandbox.protocol.times import parse_time
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.meaning import ingested_properties, read_mapping
from forwarder.sandbox.store.persons import INGESTED_PROPERTIES, INGESTED_PROPERTIES_JOINS
from forwarder.sandbox.store.thread import StoreThread

PAGE: Final = 1_000
"""Records of a page at most."""
PAGE_BYTES: Final = 4_000_000
"""Bytes after which a page ends early: an event can have a megabyte."""
WINDOW: Final = 10_000
"""Rows that one unit of work looks at, selected or not."""
NAMED_EVENTS: Final[Mapping[str, str]] = {
    "include_events": " AND events.event IN (SELECT value FROM json_each(:include_events))",
    "exclude_events": " AND events.event NOT IN (SELECT value FROM json_each(:exclude_events))",
}
"""Names of events that a destination's config may have, as the service's do."""
_PERSON_MEMBERS: Final = ("$set", "$set_once", "$unset")
_HAS_PERSON_MEMBER: Final = re.compile(rb"\$(?:set|unset)|\\u00").search
"""As in `meaning`: a key may hide a letter behind an escape."""
_LINE_ENDS: Final = str.maketrans("\n\r", "  ")


class ColumnKind(Enum):
    """How a column's values are kept: all are text but for numbers and truth
    values; None is no value.
    """

    TEXT = auto()
    JSON = auto()
    """JSON text on one line."""
    OPTIONAL_JSON = auto()
    """The same; a record without a value doesn't have the column where records can differ."""
    TIME = auto()
    """ISO 8601 in UTC, with microseconds."""
    INTEGER = auto()
    BOOLEAN = auto()


EVENT_COLUMNS: Final[Mapping[str, ColumnKind]] = {
    "uuid": ColumnKind.TEXT,
    "event": ColumnKind.TEXT,
    "distinct_id": ColumnKind.TEXT,
    "timestamp": ColumnKind.TIME,
    "properties": ColumnKind.JSON,
    **dict.fromkeys(_PERSON_MEMBERS, ColumnKind.OPTIONAL_JSON),
    "person_id": ColumnKind.TEXT,
    "person_properties": ColumnKind.JSON,
    "team_id": ColumnKind.INTEGER,
    "created_at": ColumnKind.TIME,
}
"""`created_at` is the time of receipt."""
PERSON_COLUMNS: Final[Mapping[str, ColumnKind]] = {
    "team_id": ColumnKind.INTEGER,
    "distinct_id": ColumnKind.TEXT,
    "person_id": ColumnKind.TEXT,
    "properties": ColumnKind.JSON,
    "person_version": ColumnKind.INTEGER,
    "person_distinct_id_version": ColumnKind.INTEGER,
    "created_at": ColumnKind.TIME,
    "is_identified": ColumnKind.BOOLEAN,
    "is_deleted": ColumnKind.BOOLEAN,
}
"""`is_deleted` is always false: a sandbox deletes no person."""


class ExportRecord(NamedTuple):
    """One record: the values of its model's columns."""

    number: int
    """Counts up in the order of records; what reading resumes after."""
    size: int
    """Bytes, about; the same whenever it is read."""
    values: Sequence[Any]
    person_properties: str
    """The JSON text of its person's properties, which filters compare: of an event those that it
    was ingested with.
    """


@dataclass(frozen=True, slots=True)
class _Model:
    """How the records of a model are read, in SQL: `number` orders them,
    `time` and `arrival` select.
    """

    columns: Mapping[str, ColumnKind]
    fields: str
    source: str
    joined: str
    """What else `fields` need, and selecting doesn't."""
    number: str
    time: str
    arrival: str
    condition: str


_MODELS: Final[Mapping[str, _Model]] = {
    "events": _Model(
        columns=EVENT_COLUMNS,
        fields=f"""
            events.uuid, events.event, events.distinct_id, events.timestamp, events.properties,
            events.raw, persons.uuid, {INGESTED_PROPERTIES}, requests.received_at
        """,
        source="events NOT INDEXED",
        joined=f"""
            JOIN requests ON requests.id = events.request
            LEFT JOIN distinct_ids AS ids
                ON ids.api_key = events.api_key AND ids.distinct_id = events.distinct_id
            LEFT JOIN persons ON persons.id = ids.person
            {INGESTED_PROPERTIES_JOINS}
        """,
        number="events.id",
        time="events.timestamp",
        arrival="events.id",
        condition="events.kind = 'new' AND events.api_key = :api_key",
    ),
    "persons": _Model(
        columns=PERSON_COLUMNS,
        fields="""
            ids.distinct_id, persons.uuid, persons.properties, persons.changed,
            persons.created_at, persons.is_identified
        """,
        source="""
            distinct_ids AS ids NOT INDEXED
            CROSS JOIN persons ON persons.id = ids.person
            CROSS JOIN events ON events.id = persons.changed
            CROSS JOIN requests ON requests.id = events.request
        """,
        joined="",
        number="ids.id",
        time="requests.received_at",
        arrival="persons.changed",
        condition="ids.api_key = :api_key",
    ),
}


class RecordReader:
    """Reads what a job selects. Raises `ExportMisconfigured` for another model, and for filters
    that are no list of conditions.

    `executor` applies filters.
    """

    def __init__(self, job: ExportJob, thread: StoreThread, executor: Executor) -> None:
        if job.model not in _MODELS:
            raise ExportMisconfigured(
                f"The model {job.model!r} can't be exported. Models are: {', '.join(_MODELS)}."
            )
        self._job = job
        self._thread = thread
        self._executor = executor
        self._model = _MODELS[job.model]
        self._filters = _RecordFilters(job)
        self._selected, self._parameters = _condition(self._model, job.selection)
        self._parameters["api_key"] = job.api_key
        for name, clause in NAMED_EVENTS.items() if job.model == "events" else ():
            if names := _names(job.destination.get("config") or {}, name):
                self._selected += clause
                self._parameters[name] = names
        self._end: int | None = None

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """What a record's values are, in their order."""
        return self._model.columns

    async def count(self) -> int:
        """The number of records in all. The same cancellation and errors as `pages`."""
        if self._filters:
            return sum([len(page) async for page in self.pages(0)])
        after = 0
        count = 0
        more = True
        end = await self._last_number()
        while more:
            count += await self._thread.run(
                # mypy has no type for a default that binds the loop's value.
                lambda store, after=after: self._count(store, after, end)  # type: ignore[misc]
            )
            after += WINDOW
            more = after < end
        return count

    async def pages(self, after: int) -> AsyncGenerator[list[ExportRecord], None]:
        """The records behind the number `after`, in pages, empty ones left out. Cancellation ends
        the wait for the current one.
        """
        end = await self._last_number()
        while after < end:
            page, after = await self._thread.run(
                lambda store, after=after: self._page(store, after, end)  # type: ignore[misc]
            )
            if self._filters:
                page = await asyncio.get_running_loop().run_in_executor(
                    self._executor, self._filters.choose, page
                )
            if page:
                yield page

    async def _last_number(self) -> int:
        """The number of the last record there is, with all arrivals folded in: no
        later one can be selected.
        """
        if self._end is None:
            table = "distinct_ids" if self._job.model == "persons" else "events"
            statement = f"SELECT coalesce(max(id), 0) FROM {table}"  # noqa: S608 - one of two names
            self._end = int(
                (await self._thread.ask(lambda store: store.select(statement, [])))[0][0]
            )
        return self._end

    def _bounds(self, after: int, end: int) -> dict[str, object]:
        return {**self._parameters, "after": after, "end": min(after + WINDOW, end)}

    def _count(self, store: Store, after: int, end: int) -> int:
        # S608: the statement is built of this module's constants.
        source = self._model.source
        statement = f"SELECT count(*) FROM {source} WHERE {self._selected}"  # noqa: S608
        return int(store.connection.execute(statement, self._bounds(after, end)).fetchone()[0])

    def _page(self, store: Store, after: int, end: int) -> tuple[list[ExportRecord], int]:
        """A page of what the next window has, and the number behind which the next page begins."""
        model = self._model
        bounds = self._bounds(after, end)
        # S608: the statement is built of this module's constants.
        statement = f"""
            SELECT {model.number}, {model.fields}
            FROM {model.source} {model.joined}
            WHERE {self._selected} ORDER BY {model.number}
        """  # noqa: S608
        read = self._event if model is _MODELS["events"] else self._person
        page = list[ExportRecord]()
        size = 0
        with closing(store.connection.execute(statement, bounds)) as rows:
            for row in rows:
                number, *columns = row
                weight, values, person_properties = read(columns)
                page.append(ExportRecord(number, weight, values, person_properties))
                size += weight
                if len(page) == PAGE or size >= PAGE_BYTES:
                    return page, number
        return page, min(after + WINDOW, end)

    def _event(self, row: Sequence[Any]) -> tuple[int, Sequence[Any], str]:
        """The size, the values and the person's properties of an event."""
        uuid, event, distinct_id, timestamp, properties, raw, person, *rest = row
        had, differs, received_at = rest
        content = _one_line(properties) if properties.startswith("{") else "{}"
        beside = _person_members(raw)
        if differs:
            had = ingested_properties(had, event, raw, (timestamp, received_at))
        of_person = had or "{}"
        values = (
            *(uuid, event, distinct_id, timestamp, content, *beside),
            *(person, of_person, self._job.project, received_at),
        )
        return len(raw) + len(of_person), values, of_person

    def _person(self, row: Sequence[Any]) -> tuple[int, Sequence[Any], str]:
        """The same of a person's distinct id."""
        distinct_id, uuid, properties, changed, created_at, identified = row
        values = (
            self._job.project,
            distinct_id,
            uuid,
            properties,
            changed,
            changed,
            created_at,
            bool(identified),
            False,
        )
        return len(properties), values, properties


def _names(config: Mapping[str, Any], name: str) -> str:
    """The JSON text of a list of events; empty if there is none. Raises `ExportMisconfigured`."""
    names = config.get(name)
    if not names:
        return ""
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise ExportMisconfigured(
            f"{name} of the destination is not a list of names. Write the names of events."
        )
    return json.dumps(names)


class _RecordFilters:
    """Property conditions that a record matches all of. Relative dates count from the end of the
    run's interval, also in a retry.

    A record for which a condition can't be decided doesn't match it. Raises `ExportMisconfigured`.
    """

    def __init__(self, job: ExportJob) -> None:
        if job.filters and not isinstance(job.filters, list):
            raise ExportMisconfigured(
                "The filters can't be applied: write them as a list of property conditions."
            )
        types = ("event", "person") if job.model == "events" else ("person",)
        self._conditions = [
            _prepare(f"filters[{place}]", entry, types)
            for place, entry in enumerate(job.filters or ())
        ]
        self._now = parse_time(job.last) or datetime.now(UTC)
        self._properties = list(_MODELS[job.model].columns).index("properties")

    def __bool__(self) -> bool:
        return bool(self._conditions)

    def choose(self, records: Sequence[ExportRecord]) -> list[ExportRecord]:
        """The records that are exported."""
        return [record for record in records if self._match(record)]

    def _match(self, record: ExportRecord) -> bool:
        own = read_mapping(record.values[self._properties])
        person = read_mapping(record.person_properties)
        try:
            return all(
                condition.matches(person if of_person else own, self._now)
                for condition, of_person in self._conditions
            )
        except CannotDecide:
            return False


def _prepare(name: str, condition: object, types: Sequence[str]) -> tuple[PropertyCondition, bool]:
    """A condition, and whether it is about the person."""
    if not isinstance(condition, dict):
        raise ExportMisconfigured(
            f"{name} is not a property condition: write an object with key, operator and value."
        )
    kind = condition.get("type") or types[0]
    if kind not in types:
        raise ExportMisconfigured(
            f"{name} has an unknown type. Set it to one of: {', '.join(types)}."
        )
    try:
        return prepare_condition(condition), kind == "person"
    except CannotDecide as error:
        raise ExportMisconfigured(f"{name} can't be applied: {error.why}.") from None


def _condition(model: _Model, selection: Selection) -> tuple[str, dict[str, object]]:
    """The SQL condition of a window of what is selected, and its parameters but for
    the window's.
    """
    clauses = [
        model.condition,
        f"{model.number} > :after AND {model.number} <= :end",
        f"{model.arrival} <= :arrival",
    ]
    parameters: dict[str, object] = {"arrival": selection.arrival}
    for clause, value in (
        (f"{model.time} >= :since", selection.since),
        (f"{model.time} < :before", selection.before),
    ):
        if value is not None:
            clauses.append(clause)
            parameters[clause.rpartition(":")[2]] = value
    if selection.done_before is not None:
        clauses.append(f"NOT ({model.time} < :done_before AND {model.arrival} <= :done_arrival)")
        parameters |= {"done_before": selection.done_before, "done_arrival": selection.done_arrival}
    return " AND ".join(clauses), parameters


def _person_members(raw: bytes) -> Sequence[str | None]:
    """The JSON texts of what an event says about its person beside its properties, as sent; None
    where it doesn't.
    """
    if not _HAS_PERSON_MEMBER(raw):
        return (None, None, None)
    scanner = JsonScanner(raw.decode())
    members, _ = scanner.members(scanner.first())
    person = {
        member.key: _one_line(scanner.text[member.start : member.end])
        for member in members
        if member.key in _PERSON_MEMBERS
    }
    return [person.get(name) for name in _PERSON_MEMBERS]


def _one_line(text: str) -> str:
    """JSON text without line ends: in JSON they stand between values only."""
    return text.translate(_LINE_ENDS) if "\n" in text or "\r" in text else text
