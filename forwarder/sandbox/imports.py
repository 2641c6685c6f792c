"""What came of each import: how many events, repeats and conflicts, by UTC day, and the uuids that they have: `/sandbox/imports`.

An import says its name in each of its events, as the property `$import_job_id`. All of this is read from one index that has the names,
times and uuids of imported events and little else, so that a million of them are counted in about a second, and listed without an offset:
a page begins after the time and the uuid where the one before ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from forwarder.sandbox.records import Kind
from forwarder.sandbox.selection import ImportFilter, Page
from forwarder.sandbox.store import Store

_DAYS: Final = """
SELECT import_job, api_key, substr(timestamp, 1, 10) AS day, kind, count(*)
FROM events WHERE import_job IS NOT NULL AND {} GROUP BY import_job, api_key, day, kind ORDER BY import_job, api_key, day"""
_EVENTS: Final = """
SELECT timestamp, uuid FROM events WHERE import_job IS NOT NULL AND {} AND kind = 'new' AND (timestamp, uuid) > (?, ?)
ORDER BY timestamp, uuid LIMIT ?"""


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
class ImportedEvent:
    """What tells an imported event from the others of its import."""

    timestamp: str
    uuid: str


def imports(store: Store, wanted: ImportFilter, page: Page) -> tuple[int, list[StoredImport]]:
    """How many imports the filter lets through, and a page of them, by name."""
    condition, parameters = wanted.condition()
    rows = store.select(_DAYS.format(condition), parameters)
    found = [_import(*key, list(group)) for key, group in groupby(rows, key=lambda row: (row[0], row[1]))]
    if page.newest_first:
        found.reverse()
    end = None if page.limit is None else page.offset + page.limit
    return len(found), found[page.offset : end]


def imported(store: Store, wanted: ImportFilter, after: ImportedEvent, limit: int) -> list[ImportedEvent]:
    """The next events of an import, each once, in the order of their times, and of their uuids where these are equal."""
    condition, parameters = wanted.condition()
    rows = store.select(_EVENTS.format(condition), [*parameters, after.timestamp, after.uuid, limit])
    return [ImportedEvent(*row) for row in rows]


def _import(job: str, api_key: str, rows: Sequence[Any]) -> StoredImport:
    days = list(_days(rows))
    counts = (sum(day.events for day in days), sum(day.duplicates for day in days), sum(day.conflicts for day in days))
    return StoredImport(job, api_key, *counts, days)


def _days(rows: Sequence[Any]) -> Iterator[ImportDay]:
    for day, group in groupby(rows, key=lambda row: row[2]):
        counts = {row[3]: row[4] for row in group}
        yield ImportDay(day, counts.get(Kind.NEW, 0), counts.get(Kind.DUPLICATE, 0), counts.get(Kind.CONFLICT, 0))
