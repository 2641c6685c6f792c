"""What the store keeps and returns, and the filters of its listings.

Every value of a filter is bound; the columns come from fixed tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from forwarder.sandbox.protocol.event_times import why_now
from forwarder.sandbox.store.meaning import groups_of, read_mapping

T = TypeVar("T")

LIMIT: Final = 100
MAXIMUM_LIMIT: Final = 10_000
_OF_PERSON: Final = """(events.api_key, events.distinct_id) IN (
    SELECT ids.api_key, ids.distinct_id
    FROM persons JOIN distinct_ids AS ids ON ids.person = persons.id
    WHERE persons.uuid = ?
)"""
_NEW: Final = " AND events.kind = 'new'"
_NO_DUPLICATE: Final = " AND events.kind <> 'duplicate'"
"""Lets the index of uuids be used, which has no duplicates: said only with a uuid, since all of a
table is read faster without an index.
"""
_GROUPED: Final = " AND events.id IN (SELECT event FROM marks WHERE mark = 'group' AND {})"
_MARKED: Final = "events.id IN (SELECT event FROM marks WHERE {} = ?)"


class NotIngested(StrEnum):
    """Why an event of a request that was answered 200 is not among the ingested ones (closed set;
    see docs/reference/sandbox.md).
    """

    NOT_AN_OBJECT = "not_an_object"
    NO_NAME = "no_name"
    NO_DISTINCT_ID = "no_distinct_id"
    NO_SURVEY_ID = "no_survey_id"
    UNKNOWN_KEY = "unknown_key"
    NAME_TOO_LONG = "event_name_too_long"
    DISTINCT_ID_TOO_LARGE = "distinct_id_too_large"
    INVALID_TIMESTAMP = "invalid_event_timestamp"
    MALFORMED_PROPERTIES = "malformed_event_properties"
    INVALID_OPTIONS = "invalid_options"
    PERFORMANCE_EVENT = "dropped_performance_event"
    TOO_BIG = "event_too_big"
    """From `NAME_TOO_LONG` on: of the v1 protocol alone."""


class IngestedEvent(NamedTuple):
    """An event as it is ingested. `raw` is its bytes exactly as they stood in the decoded body."""

    position: int
    """Its place among the events of its request."""
    uuid: str | None
    event: str
    distinct_id: str
    timestamp_sent: str | None
    """The JSON text of the timestamp, as sent."""
    timestamp: str
    properties: str
    """The JSON text of the properties, as sent."""
    raw: bytes
    import_job: str | None = None
    """The import that it says it is from."""


class NotIngestedEvent(NamedTuple):
    """An event that is not ingested, and why."""

    position: int
    reason: NotIngested
    raw: bytes


class ArrivalKind(StrEnum):
    """What an arrival was, beside those before it."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """Every byte equal to an event of the same uuid and project key that is here already."""
    CONFLICT = "conflict"
    """A uuid that is here already, with at least one byte different."""


@dataclass(slots=True)
class RequestRecord:
    """A request with its answer and its events, ready to be kept."""

    received_at: str
    path: str
    query: str
    headers: Mapping[str, str]
    status: int
    answer: str
    error: str | None = None
    api_key: str | None = None
    historical: bool = False
    encoding: str | None = None
    size: int = 0
    events: Sequence[IngestedEvent] = ()
    not_ingested: Sequence[NotIngestedEvent] = ()
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One arrival of an event. `raw` is its bytes exactly as they stood in the decoded body; times
    are ISO 8601 in UTC.
    """

    arrival: int
    """Counts up in the order of arrival."""
    request: int
    index: int
    """Its place among the events of its request."""
    kind: ArrivalKind
    first: int | None
    """The arrival that it repeats or contradicts."""
    api_key: str
    historical: bool
    received_at: str
    uuid: str
    event: str
    distinct_id: str
    timestamp_sent: str | None
    timestamp: str
    properties: str
    raw: bytes
    person: str | None = None
    """The id of the person whose distinct id it carries; None for an anonymous event that no
    identification has followed.
    """
    person_properties: str | None = None
    """The JSON text of the person's properties as the event was ingested with them, with all that
    it set itself; None for an event without a person, a repeat, and one that isn't computed yet.
    """
    warnings: tuple[str, ...] = ()
    """The types of the service's warnings about it."""

    @property
    def groups(self) -> dict[str, str]:
        """The groups that it says it belongs to, type to key; they need not exist."""
        return groups_of(read_mapping(self.properties))

    @property
    def timestamp_note(self) -> str | None:
        """Why the service took its own now instead of `timestamp_sent`; None if it didn't."""
        if self.timestamp_sent is None or self.timestamp != self.received_at:
            return None
        if read_mapping(self.raw.decode()).get("offset") is not None:
            return None
        return why_now(json.loads(self.timestamp_sent), datetime.fromisoformat(self.received_at))


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """One request, with the events of it that were not ingested."""

    request: int
    received_at: str
    path: str
    query: str
    headers: Mapping[str, str]
    api_key: str | None
    historical: bool
    encoding: str | None
    size: int
    """Bytes of the body on the wire."""
    status: int
    answer: str
    error: str | None
    arrivals: int
    """Events of it that were ingested, repeats included."""
    duplicates: int = 0
    conflicts: int = 0
    method: str = "POST"
    not_ingested: Sequence[NotIngestedEvent] = field(default=())


@dataclass(frozen=True, slots=True)
class StoredConflict:
    """A uuid that came a second time with other bytes, beside the first event of that uuid."""

    first: StoredEvent
    second: StoredEvent


@dataclass(frozen=True, slots=True)
class SandboxSummary:
    """Figures of everything that is kept. `arrivals` = `events` + `duplicates` + `conflicts`."""

    requests: int = 0
    arrivals: int = 0
    events: int = 0
    duplicates: int = 0
    conflicts: int = 0
    not_ingested: int = 0
    persons: int = 0
    groups: int = 0
    refused: int = 0
    """Requests that were answered 4xx or 5xx."""


@dataclass(frozen=True, slots=True)
class ListingPage:
    """A part of a listing; `limit` None is everything."""

    limit: int | None = LIMIT
    offset: int = 0
    newest_first: bool = False

    def bounds(self) -> tuple[int, int]:
        """The parameters of SQL's `LIMIT ? OFFSET ?`."""
        return (-1 if self.limit is None else self.limit, self.offset)

    def slice_of(self, items: list[T]) -> list[T]:
        """The page of a whole list, in the order of the list."""
        return items[self.offset : None if self.limit is None else self.offset + self.limit]

    def ordered(self, column: str) -> str:
        """The SQL that orders rows by `column` and selects the page."""
        return f" ORDER BY {column}{' DESC' if self.newest_first else ''} LIMIT ? OFFSET ?"


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events. Times are ISO 8601 in UTC with microseconds, `since` inclusive, `until`
    exclusive, of the resolved timestamp.
    """

    event: str | None = None
    distinct_id: str | None = None
    uuid: str | None = None
    api_key: str | None = None
    since: str | None = None
    until: str | None = None
    historical: bool | None = None
    request: int | None = None
    arrivals: bool = False
    """Every arrival; else only the first of each uuid."""
    person: str | None = None
    """A person's id: the events of all its distinct ids."""
    group_type: str | None = None
    group_key: str | None = None
    feature: str | None = None
    """A flag's key: events attributed to it by `$feature/KEY`, and checks of it."""
    survey_id: str | None = None
    import_job: str | None = None
    """An import's name: the events that say `$import_job_id` so."""
    text: str | None = None
    """A part of the event as it was sent, ignoring the case of ASCII letters."""

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `events` and its parameters."""
        text, parameters = where(
            {
                "events.event = ?": self.event,
                "events.distinct_id = ?": self.distinct_id,
                "events.uuid = ?": self.uuid,
                "events.api_key = ?": self.api_key,
                "events.timestamp >= ?": self.since,
                "events.timestamp < ?": self.until,
                "events.historical = ?": self.historical,
                "events.request = ?": self.request,
                "events.import_job = ?": self.import_job,
                _OF_PERSON: self.person,
                _MARKED.format("mark = 'survey' AND name"): self.survey_id,
                _MARKED.format("mark IN ('feature', 'called') AND name"): self.feature,
                "CAST(events.raw AS TEXT) LIKE ? ESCAPE '!'": None
                if self.text is None
                else like_pattern(self.text),
            }
        )
        grouped, names = self._group_condition()
        text = text + grouped
        parameters = [*parameters, *names]
        return text + self._kind_condition(), parameters

    def _kind_condition(self) -> str:
        if self.arrivals:
            return ""
        return _NEW if self.uuid is None else _NEW + _NO_DUPLICATE

    def _group_condition(self) -> tuple[str, list[object]]:
        """Type and key are of the same group."""
        wanted = {"name = ?": self.group_type, "value = ?": self.group_key}
        text, parameters = where(wanted)
        return (_GROUPED.format(text) if parameters else ""), parameters


@dataclass(frozen=True, slots=True)
class PersonFilter:
    """Which persons; `distinct_id` is any of a person's ids."""

    api_key: str | None = None
    distinct_id: str | None = None
    person: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `persons` and its parameters."""
        by_id = "id IN (SELECT person FROM distinct_ids WHERE distinct_id = ?)"
        return where(
            {"api_key = ?": self.api_key, by_id: self.distinct_id, "uuid = ?": self.person}
        )


@dataclass(frozen=True, slots=True)
class WarningFilter:
    """Which warnings; `person` is the id of the event's person, the others are of the event."""

    type: str | None = None
    person: str | None = None
    distinct_id: str | None = None
    uuid: str | None = None
    api_key: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `warnings` and `events`, and its parameters."""
        return where(
            {
                "warnings.type = ?": self.type,
                "warnings.person IN (SELECT id FROM persons WHERE uuid = ?)": self.person,
                "events.distinct_id = ?": self.distinct_id,
                "events.uuid = ?": self.uuid,
                "events.api_key = ?": self.api_key,
            }
        )


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Which groups."""

    api_key: str | None = None
    group_type: str | None = None
    group_key: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `groups` and its parameters."""
        return where(
            {
                "api_key = ?": self.api_key,
                "group_type = ?": self.group_type,
                "group_key = ?": self.group_key,
            }
        )


@dataclass(frozen=True, slots=True)
class ImportFilter:
    """Which imports; `job` is what they say as `$import_job_id`."""

    job: str | None = None
    api_key: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `events` and its parameters."""
        return where({"import_job = ?": self.job, "api_key = ?": self.api_key})


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests; `path` with or without the slash at its end."""

    path: str | None = None
    status: int | None = None
    api_key: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `requests` and its parameters."""
        path = None if self.path is None else self.path.rstrip("/")
        return where(
            {"rtrim(path, '/') = ?": path, "status = ?": self.status, "api_key = ?": self.api_key}
        )


def like_pattern(text: str) -> str:
    """A pattern for `LIKE … ESCAPE '!'`: texts that hold this one."""
    for character in "!%_":
        text = text.replace(character, f"!{character}")
    return f"%{text}%"


def where(wanted: Mapping[str, object]) -> tuple[str, list[object]]:
    """The SQL condition of these clauses, with its parameters; a clause without a
    value is omitted.
    """
    chosen = {clause: value for clause, value in wanted.items() if value is not None}
    return " AND ".join(["1", *chosen]), list(chosen.values())
