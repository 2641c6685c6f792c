"""Which rows a listing wants. Every value is bound; the columns come from fixed tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LIMIT: Final = 100
MAXIMUM_LIMIT: Final = 10_000
_OF_PERSON: Final = """(events.api_key, events.distinct_id) IN (
    SELECT ids.api_key, ids.distinct_id FROM persons JOIN distinct_ids AS ids ON ids.person = persons.id WHERE persons.uuid = ?)"""
_NEW: Final = " AND events.kind = 'new'"
_NO_DUPLICATE: Final = " AND events.kind <> 'duplicate'"
"""Lets the index of uuids be used, which has no duplicates: said only with a uuid, since all of a table is read faster without an index."""
_GROUPED: Final = " AND events.id IN (SELECT event FROM marks WHERE mark = 'group' AND {})"
_MARKED: Final = "events.id IN (SELECT event FROM marks WHERE {} = ?)"


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing; `limit` None is everything."""

    limit: int | None = LIMIT
    offset: int = 0
    newest_first: bool = False

    def bounds(self) -> tuple[int, int]:
        """What SQL's `LIMIT ? OFFSET ?` take."""
        return (-1 if self.limit is None else self.limit, self.offset)

    def ordered(self, column: str) -> str:
        """The SQL that puts rows in the order of `column`, and takes the page."""
        return f" ORDER BY {column}{' DESC' if self.newest_first else ''} LIMIT ? OFFSET ?"


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events. Times are ISO 8601 in UTC with microseconds, `since` inclusive, `until` exclusive, of the resolved timestamp."""

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
    """A text that stands in the event as it was sent, in any case (of ASCII)."""

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `events` and its parameters."""
        text, parameters = _condition(
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
                "CAST(events.raw AS TEXT) LIKE ? ESCAPE '!'": None if self.text is None else containing(self.text),
            }
        )
        grouped, names = self._group_condition()
        text, parameters = text + grouped, [*parameters, *names]
        return text + self._kind_condition(), parameters

    def _kind_condition(self) -> str:
        if self.arrivals:
            return ""
        return _NEW if self.uuid is None else _NEW + _NO_DUPLICATE

    def _group_condition(self) -> tuple[str, list[object]]:
        """Type and key are of the same group."""
        wanted = {"name = ?": self.group_type, "value = ?": self.group_key}
        text, parameters = _condition(wanted)
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
        return _condition({"api_key = ?": self.api_key, by_id: self.distinct_id, "uuid = ?": self.person})


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Which groups."""

    api_key: str | None = None
    group_type: str | None = None
    group_key: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `groups` and its parameters."""
        return _condition({"api_key = ?": self.api_key, "group_type = ?": self.group_type, "group_key = ?": self.group_key})


@dataclass(frozen=True, slots=True)
class ImportFilter:
    """Which imports; `job` is what they say as `$import_job_id`."""

    job: str | None = None
    api_key: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `events` and its parameters."""
        return _condition({"import_job = ?": self.job, "api_key = ?": self.api_key})


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests; `path` with or without the slash at its end."""

    path: str | None = None
    status: int | None = None
    api_key: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition over `requests` and its parameters."""
        path = None if self.path is None else self.path.rstrip("/")
        return _condition({"rtrim(path, '/') = ?": path, "status = ?": self.status, "api_key = ?": self.api_key})


def containing(text: str) -> str:
    """A pattern for `LIKE … ESCAPE '!'`: texts that hold this one."""
    for character in "!%_":
        text = text.replace(character, f"!{character}")
    return f"%{text}%"


def _condition(wanted: Mapping[str, object]) -> tuple[str, list[object]]:
    chosen = {clause: value for clause, value in wanted.items() if value is not None}
    return " AND ".join(["1", *chosen]), list(chosen.values())
