"""Counts over events: use of surveys and flags, and the result of each import.

Only new events count for surveys and flags, so a duplicate counts once. A response is
`$survey_response` or `$feature_flag_response` as it was sent; an event without one is counted
under no response.

The events of an import have its name in the property `$import_job_id`. One index holds the names,
times and uuids of imported events and little else, so that a million of them are counted in about
a second, and listed without an offset: a page begins after the time and uuid at which the previous
one ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.stored_records import ArrivalKind, ImportFilter, ListingPage

_COUNTS: Final = """
    SELECT events.api_key, marks.name, events.event, marks.value, count(*)
    FROM marks JOIN events ON events.id = marks.event
    WHERE marks.mark = ? AND (? IS NULL OR events.api_key = ?)
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 5 DESC, 4
"""
_DAYS: Final = """
    SELECT import_job, api_key, substr(timestamp, 1, 10) AS day, kind, count(*)
    FROM events WHERE import_job IS NOT NULL AND {}
    GROUP BY import_job, api_key, day, kind ORDER BY import_job, api_key, day
"""
_EVENTS: Final = """
    SELECT timestamp, uuid FROM events
    WHERE import_job IS NOT NULL AND {} AND kind = 'new' AND (timestamp, uuid) > (?, ?)
    ORDER BY timestamp, uuid LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class ResponseCount:
    """A response, and how often it was given."""

    response: Any
    count: int


@dataclass(frozen=True, slots=True)
class SurveyUse:
    """A survey's events."""

    survey_id: str
    api_key: str
    shown: int
    dismissed: int
    sent: int
    responses: Sequence[ResponseCount]
    """The most frequent first."""


@dataclass(frozen=True, slots=True)
class FlagUse:
    """A flag's checks."""

    flag: str
    api_key: str
    calls: int
    responses: Sequence[ResponseCount]
    """The most frequent first."""


def surveys(store: Store, api_key: str | None = None) -> list[SurveyUse]:
    """Use of the surveys of a project (None: of all), by project and id."""
    uses = []
    for (project, survey_id), rows in _marked(store, "survey", api_key):
        shown, dismissed, sent = (
            sum(row[4] for row in rows if row[2] == f"survey {what}")
            for what in ("shown", "dismissed", "sent")
        )
        uses.append(
            SurveyUse(
                survey_id,
                project,
                shown,
                dismissed,
                sent,
                _responses(row for row in rows if row[2] == "survey sent"),
            )
        )
    return uses


def flag_calls(store: Store, api_key: str | None = None) -> list[FlagUse]:
    """Use of the flags of a project (None: of all), by project and key."""
    return [
        FlagUse(flag, project, sum(row[4] for row in rows), _responses(rows))
        for (project, flag), rows in _marked(store, "called", api_key)
    ]


def _marked(
    store: Store, mark: str, api_key: str | None
) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    """The counts of each project and name that events are marked with."""
    store.effects.finish()
    for key, rows in groupby(
        store.select(_COUNTS, [mark, api_key, api_key]), lambda row: (row[0], row[1])
    ):
        yield key, list(rows)


def _responses(rows: Iterable[Sequence[Any]]) -> list[ResponseCount]:
    return [
        ResponseCount(json.loads(value), count) for _, _, _, value, count in rows if value != "null"
    ]


@dataclass(frozen=True, slots=True)
class ImportDay:
    """What came of an import for one UTC day, by the times of the events."""

    day: str
    events: int = 0
    duplicates: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class StoredImport:
    """What came of one import in one project."""

    job: str
    api_key: str
    events: int
    duplicates: int
    conflicts: int
    days: Sequence[ImportDay]


@dataclass(frozen=True, slots=True)
class ImportedEventKey:
    """What tells an imported event from the others of its import."""

    timestamp: str
    uuid: str


def imports(
    store: Store, wanted: ImportFilter, page: ListingPage
) -> tuple[int, list[StoredImport]]:
    """The number of imports that match the filter, and a page of them, by name."""
    condition, parameters = wanted.condition()
    rows = store.select(_DAYS.format(condition), parameters)
    imported = [
        _import(*key, list(group)) for key, group in groupby(rows, key=lambda row: (row[0], row[1]))
    ]
    if page.newest_first:
        imported.reverse()
    return len(imported), page.slice_of(imported)


def imported(
    store: Store, wanted: ImportFilter, after: ImportedEventKey, limit: int
) -> list[ImportedEventKey]:
    """The next events of an import, each once, in the order of their times, and of their uuids
    where these are equal.
    """
    condition, parameters = wanted.condition()
    rows = store.select(
        _EVENTS.format(condition), [*parameters, after.timestamp, after.uuid, limit]
    )
    return [ImportedEventKey(*row) for row in rows]


def _import(job: str, api_key: str, rows: Sequence[Any]) -> StoredImport:
    days = list(_days(rows))
    counts = (
        sum(day.events for day in days),
        sum(day.duplicates for day in days),
        sum(day.conflicts for day in days),
    )
    return StoredImport(job, api_key, *counts, days)


def _days(rows: Sequence[Any]) -> Iterator[ImportDay]:
    for day, group in groupby(rows, key=lambda row: row[2]):
        counts = {row[3]: row[4] for row in group}
        yield ImportDay(
            day,
            counts.get(ArrivalKind.NEW, 0),
            counts.get(ArrivalKind.DUPLICATE, 0),
            counts.get(ArrivalKind.CONFLICT, 0),
        )
