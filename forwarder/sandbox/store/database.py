"""The sandbox's database: requests, every arrival of every event, the events that were not
ingested, and what is derived from them.

Invariants: rows are append-only (until `clear`), in the order of arrival; an event's `raw` is its
bytes as they were in the decoded body; `first` of a duplicate names the arrival that it repeats,
of a conflict the first arrival of its uuid; for one project key and uuid the arrivals that are not
duplicates differ from each other in at least one byte. No value of an Authorization header or a
cookie is kept. Everything here blocks and belongs to one thread (see `thread`); transactions are
the caller's.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.sandbox.store.effects import Effects, StoredGroup
from forwarder.sandbox.store.meaning import ingested_properties
from forwarder.sandbox.store.persons import (
    INGESTED_PROPERTIES,
    INGESTED_PROPERTIES_JOINS,
    PersonDetails,
    StoredPerson,
    StoredWarning,
)
from forwarder.sandbox.store.schema import prepare
from forwarder.sandbox.store.stored_records import (
    ArrivalKind,
    EventFilter,
    GroupFilter,
    IngestedEvent,
    ListingPage,
    NotIngested,
    NotIngestedEvent,
    PersonFilter,
    RequestFilter,
    RequestRecord,
    SandboxSummary,
    StoredConflict,
    StoredEvent,
    StoredRequest,
    WarningFilter,
)
from forwarder.storage.private import make_file

_EVENT: Final = f"""
    SELECT
        events.id, events.request, events.position, events.kind, events.first, events.api_key,
        events.historical, requests.received_at, events.uuid, events.event, events.distinct_id,
        events.timestamp_sent, events.timestamp, events.properties, events.raw, persons.uuid,
        {INGESTED_PROPERTIES},
        (SELECT group_concat(type) FROM warnings WHERE warnings.event = events.id)
    FROM events
    JOIN requests ON requests.id = events.request
    LEFT JOIN distinct_ids AS ids
        ON ids.api_key = events.api_key AND ids.distinct_id = events.distinct_id
    LEFT JOIN persons ON persons.id = ids.person
    {INGESTED_PROPERTIES_JOINS}
    WHERE """  # noqa: S608 - constants
_REQUEST: Final = """
    SELECT
        id, received_at, path, query, headers, api_key, historical_migration, encoding, size,
        status, answer, error, events + duplicates + conflicts, duplicates, conflicts, method
    FROM requests WHERE """
_FORGET_SELECTED: Final = (
    "UPDATE batch_export_runs SET selection = json_set(selection, '$.arrival', 0, "
    "'$.done_arrival', 0) WHERE selection <> ''"
)


class Store:
    """One open database. Raises `ConfigurationError` if `path` holds something else; None is a
    database in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connection = _connect(path)
        self.effects = Effects(self._connection)
        self.derived: dict[tuple[str, str], tuple[str, Any]] = {}
        """What other rooms compute of rows and keep, by kind and project, with the revision of the
        rows that it is computed of.
        """
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._connection.close()
            raise ConfigurationError(
                f"{path} can't be used as a sandbox database: {error_text(error)}",
                hint="Name another file.",
            ) from None
        except ConfigurationError:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the database; a file keeps everything."""
        self._connection.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The open database, for the management API."""
        return self._connection

    @property
    def changes(self) -> int:
        """Grows with every row that is written."""
        return self._connection.total_changes

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._connection.in_transaction

    def execute(self, statement: str) -> None:
        """Run a statement that controls a transaction."""
        self._connection.execute(statement)

    def add(self, arrival: RequestRecord) -> None:
        """Keep a request and what came in it."""
        request = self._add_request(arrival)
        counts = dict.fromkeys(ArrivalKind, 0)
        for event in arrival.events:
            counts[self._add_event(request, arrival, event)] += 1
        self._connection.executemany(
            "INSERT INTO not_ingested (request, position, reason, raw) VALUES (?, ?, ?, ?)",
            [(request, event.position, event.reason, event.raw) for event in arrival.not_ingested],
        )
        self._connection.execute(
            "UPDATE requests SET events = ?, duplicates = ?, conflicts = ? WHERE id = ?",
            (
                counts[ArrivalKind.NEW],
                counts[ArrivalKind.DUPLICATE],
                counts[ArrivalKind.CONFLICT],
                request,
            ),
        )

    def holds(self, api_key: str, uuid: str) -> bool:
        """Whether an event of this uuid has arrived."""
        return bool(
            self._rows(
                (
                    "SELECT 1 FROM events WHERE uuid = ? AND api_key = ? AND kind <> 'duplicate' "
                    "LIMIT 1"
                ),
                [uuid, api_key],
            )
        )

    def clear(self) -> None:
        """Delete everything that arrived; the management tables and the definitions of flags stay.

        Numbers of arrivals begin anew, so the runs of batch exports forget
        which ones they selected.
        """
        self.effects.forget()
        self._connection.execute(_FORGET_SELECTED)
        for table in ("events", "not_ingested", "requests", "hash_keys"):
            # S608: the names of the tables are in the line above.
            self._connection.execute(f"DELETE FROM {table}")  # noqa: S608

    def select(self, statement: str, parameters: Sequence[object]) -> list[Any]:
        """The rows of a query of this package."""
        return self._rows(statement, parameters)

    def arrival(self, number: int) -> StoredEvent:
        """One arrival of an event, with the person as far as arrivals are folded in. There must be
        one of that number.
        """
        return _event(self._rows(_EVENT + "events.id = ?", [number])[0])

    def request(self, number: int) -> StoredRequest:
        """One request. There must be one of that number."""
        return _request(self._rows(_REQUEST + "id = ?", [number])[0], self._not_ingested(number))

    def summary(self) -> SandboxSummary:
        """Counts of everything that is stored, with all arrivals folded in."""
        self.effects.finish()
        return self.figures()

    def figures(self) -> SandboxSummary:
        """Counts of everything that is stored; of persons and groups, as far as arrivals are
        folded in.
        """
        row = self._connection.execute(
            "SELECT count(*), total(events), total(duplicates), total(conflicts), "
            "total(not_ingested), total(status >= 400) FROM requests"
        ).fetchone()
        requests, events, duplicates, conflicts, not_ingested, refused = map(int, row)
        return SandboxSummary(
            requests=requests,
            arrivals=events + duplicates + conflicts,
            events=events,
            duplicates=duplicates,
            conflicts=conflicts,
            not_ingested=not_ingested,
            persons=self.effects.persons.count(),
            groups=self.effects.groups.count(),
            refused=refused,
        )

    def last_arrival(self) -> int:
        """The number of the last arrival of an event; 0 if there is none."""
        return int(self._rows("SELECT coalesce(max(id), 0) FROM events", [])[0][0])

    def arrivals_left(self) -> int:
        """How many arrivals are not folded into persons and groups yet, at most."""
        return self.last_arrival() - self.effects.folded()

    def persons(self, wanted: PersonFilter, page: ListingPage) -> tuple[int, list[StoredPerson]]:
        """The number of persons that match the filter, and a page of them."""
        self.effects.finish()
        return self.effects.persons.listing(wanted, page)

    def person(self, uuid: str) -> PersonDetails | None:
        """A person with where everything of it comes from; None if there is none of that id."""
        self.effects.finish()
        return self.effects.persons.details(uuid)

    def warnings(self, wanted: WarningFilter, page: ListingPage) -> tuple[int, list[StoredWarning]]:
        """The number of warnings that match the filter, and a page of them."""
        self.effects.finish()
        return self.effects.persons.warnings(wanted, page)

    def group_types(self, api_key: str) -> list[str]:
        """The types of a project's groups, in the order in which they came."""
        self.effects.finish()
        return self.effects.groups.types(api_key)

    def groups(self, wanted: GroupFilter, page: ListingPage) -> tuple[int, list[StoredGroup]]:
        """The number of groups that match the filter, and a page of them."""
        self.effects.finish()
        return self.effects.groups.listing(wanted, page)

    def events(self, wanted: EventFilter, page: ListingPage) -> tuple[int, list[StoredEvent]]:
        """The number of events that match the filter, and a page of them, in the order
        of arrival.
        """
        self.effects.finish()
        condition, parameters = wanted.condition()
        count = (
            self.figures().events
            if wanted == EventFilter()
            else self._count("events", condition, parameters)
        )
        rows = self._rows(
            _EVENT + condition + page.ordered("events.id"), [*parameters, *page.bounds()]
        )
        return count, [_event(row) for row in rows]

    def requests(self, wanted: RequestFilter, page: ListingPage) -> tuple[int, list[StoredRequest]]:
        """The number of requests that match the filter, and a page of them,
        in the order of arrival.
        """
        condition, parameters = wanted.condition()
        count = self._count("requests", condition, parameters)
        rows = self._rows(_REQUEST + condition + page.ordered("id"), [*parameters, *page.bounds()])
        return count, [_request(row, self._not_ingested(row[0])) for row in rows]

    def conflicts(self, page: ListingPage) -> tuple[int, list[StoredConflict]]:
        """How many conflicts there are, and a page of them, in the order of arrival."""
        self.effects.finish()
        seconds = self._rows(
            _EVENT + "events.kind = 'conflict'" + page.ordered("events.id"), page.bounds()
        )
        pairs = [
            StoredConflict(_event(self._rows(_EVENT + "events.id = ?", [row[4]])[0]), _event(row))
            for row in seconds
        ]
        return self._count("events", "kind = 'conflict'", []), pairs

    def _prepare(self) -> None:
        prepare(self._connection, self._path)
        if self._path is not None:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def _add_request(self, arrival: RequestRecord) -> int:
        cursor = self._connection.execute(
            "INSERT INTO requests VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?)",
            (
                *(
                    arrival.received_at,
                    arrival.path,
                    arrival.query,
                    json.dumps(dict(arrival.headers)),
                    arrival.api_key,
                ),
                *(
                    arrival.historical,
                    arrival.encoding,
                    arrival.size,
                    arrival.status,
                    arrival.answer,
                    arrival.error,
                ),
                *(len(arrival.not_ingested), arrival.method),
            ),
        )
        return cursor.lastrowid or 0

    def _add_event(self, request: int, arrival: RequestRecord, event: IngestedEvent) -> ArrivalKind:
        kind, first = (
            (ArrivalKind.NEW, None) if event.uuid is None else self._compare(arrival.api_key, event)
        )
        self._connection.execute(
            "INSERT INTO events VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(
                    request,
                    event.position,
                    kind,
                    first,
                    arrival.api_key,
                    arrival.historical,
                    event.uuid or str(uuid4()),
                    event.event,
                ),
                *(
                    event.distinct_id,
                    event.timestamp_sent,
                    event.timestamp,
                    event.properties,
                    event.raw,
                    event.import_job,
                ),
            ),
        )
        return kind

    def _compare(self, api_key: str | None, event: IngestedEvent) -> tuple[ArrivalKind, int | None]:
        versions = self._rows(
            (
                "SELECT id, raw FROM events WHERE uuid = ? AND api_key = ? AND kind <> "
                "'duplicate' ORDER BY id"
            ),
            [event.uuid, api_key],
        )
        if not versions:
            return ArrivalKind.NEW, None
        same = next((row[0] for row in versions if row[1] == event.raw), None)
        return (
            (ArrivalKind.CONFLICT, versions[0][0])
            if same is None
            else (ArrivalKind.DUPLICATE, same)
        )

    def _not_ingested(self, request: int) -> list[NotIngestedEvent]:
        rows = self._rows(
            "SELECT position, reason, raw FROM not_ingested WHERE request = ? ORDER BY id",
            [request],
        )
        return [
            NotIngestedEvent(position, NotIngested(reason), raw) for position, reason, raw in rows
        ]

    def _count(self, table: str, condition: str, parameters: Sequence[object]) -> int:
        # S608: the table and the condition are constants of this package.
        statement = f"SELECT count(*) FROM {table} WHERE {condition}"  # noqa: S608
        return int(self._rows(statement, parameters)[0][0])

    def _rows(self, statement: str, parameters: Sequence[object]) -> list[Any]:
        return self._connection.execute(statement, parameters).fetchall()


def _connect(path: Path | None) -> sqlite3.Connection:
    try:
        if path is not None:
            # it holds people's events; what SQLite makes beside it has the same permissions
            make_file(path.resolve())
        return sqlite3.connect(
            path or ":memory:", isolation_level=None, check_same_thread=False, cached_statements=512
        )
    except (sqlite3.Error, OSError) as error:
        why = error_text(error)
        raise ConfigurationError(
            f"{path} can't be opened: {why}",
            hint="Name a file in a directory that can be written to.",
        ) from None


def _event(row: Sequence[Any]) -> StoredEvent:
    arrival, request, index, kind, first, api_key, historical, received_at, *rest = row
    *columns, raw, person, had, differs, warnings = rest
    if differs:
        had = ingested_properties(had, columns[1], raw, (columns[4], received_at))
    types = tuple(warnings.split(",")) if warnings else ()
    values: list[Any] = [received_at, *columns, raw, person, had, types]
    return StoredEvent(
        arrival, request, index, ArrivalKind(kind), first, api_key, bool(historical), *values
    )


def _request(row: Sequence[Any], not_ingested: Sequence[NotIngestedEvent]) -> StoredRequest:
    request, received_at, path, query, headers, api_key, historical, *rest = row
    values: list[Any] = [
        request,
        received_at,
        path,
        query,
        json.loads(headers),
        api_key,
        bool(historical),
        *rest,
        not_ingested,
    ]
    return StoredRequest(*values)
