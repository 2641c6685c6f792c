"""Which rows a listing wants. Every value is bound; the columns come from fixed tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LIMIT: Final = 100
MAXIMUM_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing; `limit` None is everything."""

    limit: int | None = LIMIT
    offset: int = 0


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
            }
        )
        return (text if self.arrivals else f"{text} AND events.kind = 'new'"), parameters


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


def _condition(wanted: Mapping[str, object]) -> tuple[str, list[object]]:
    chosen = {clause: value for clause, value in wanted.items() if value is not None}
    return " AND ".join(["1", *chosen]), list(chosen.values())
