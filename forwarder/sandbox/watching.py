"""What has arrived since a reader last looked: the newest events and requests that its view wants. Runs on the store's thread.

Nothing is kept for a reader: it says how far it is, and what came since is asked of the database. So a slow reader costs no memory, and
one that comes back after a pause goes on where it was. Invariants: a look returns at most `limit` events and requests, the newest, in the
order of arrival; what it leaves out is counted; it never searches more than `REACH` arrivals back; an event of more than `LARGE` bytes is
shown without its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from forwarder.sandbox.records import Kind, StoredEvent, StoredRequest
from forwarder.sandbox.store import Store

REACH: Final = 100_000
"""Arrivals, and requests, that are searched for what a view wants."""
LARGE: Final = 65_536
"""Bytes of an event from which on it is shown without them; `/sandbox/events` has them."""
MANY: Final = 1000
"""Events that were not ingested that a request with large ones is shown with."""
TEXT: Final = 200
"""Characters of a text to look for that count."""
_ARRIVED: Final = "SELECT id FROM events WHERE id > ? AND id <= ?"
_REQUESTED: Final = "SELECT id FROM requests WHERE id > ? AND id <= ?"
_PROBLEM: Final = "(status >= 400 OR conflicts > 0 OR not_ingested > 0)"

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reader is: the last arrival and the last request that it knows, in the history that it knows them of."""

    arrival: int = 0
    request: int = 0
    history: str = ""

    def __str__(self) -> str:
        return f"{self.arrival}.{self.request}.{self.history}"

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """What `str` made of a place; None if it is nothing of the kind."""
        numbers, _, history = text.rpartition(".")
        arrival, _, request = numbers.partition(".")
        if not (_is_number(arrival) and _is_number(request)):
            return None
        return cls(int(arrival), int(request), history)


@dataclass(frozen=True, slots=True)
class View:
    """What a reader wants to see. A project key may be given in full or as it is shown (`phc_…last4`)."""

    event: str | None = None
    distinct_id: str | None = None
    api_key: str | None = None
    text: str | None = None
    """Somewhere in the event's bytes; of a request, in its path, query, answer or error. Case doesn't count in ASCII."""
    problems: bool = False
    """Only conflicts; of requests those that were refused, or held a conflict or what was not ingested."""

    def of_events(self) -> tuple[str, list[object]]:
        """The condition over `events`, with its parameters."""
        wanted = {"event = ?": self.event, "distinct_id = ?": self.distinct_id, **self._of_both()}
        if self.text:
            wanted["CAST(raw AS TEXT) LIKE ? ESCAPE '\\'"] = _like(self.text)
        if self.problems:
            wanted["kind = ?"] = Kind.CONFLICT
        return _conditions(wanted)

    def of_requests(self, after: int, last: int) -> tuple[str, list[object]]:
        """The condition over `requests`, with its parameters; what events they held is looked up among the arrivals up to `last`."""
        wanted = self._of_both()
        if self.text:
            wanted["path || '?' || query || ' ' || answer || ' ' || ifnull(error, '') LIKE ? ESCAPE '\\'"] = _like(self.text)
        condition, parameters = _conditions(wanted)
        held, more = _conditions({"event = ?": self.event, "distinct_id = ?": self.distinct_id})
        if more:
            condition += f" AND id IN (SELECT request FROM events WHERE id > ? AND id <= ? AND {held})"  # noqa: S608 - constants
            parameters += [max(after, last - REACH), last, *more]
        return (f"{condition} AND {_PROBLEM}" if self.problems else condition), parameters

    def _of_both(self) -> dict[str, str | None]:
        if self.api_key is None or "…" not in self.api_key:
            return {"api_key = ?": self.api_key}
        return {"api_key LIKE ? ESCAPE '\\'": _like(self.api_key.rpartition("…")[2])[:-1]}


@dataclass(frozen=True, slots=True)
class Part(Generic[Shown]):
    """The newest of what a view wants, oldest first, and how much of it was left out before them."""

    shown: list[Shown]
    left_out: int


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found, and where the reader is after it."""

    place: Place
    anew: bool
    """The reader's history is not (any more) the one that is kept: what it knows is gone."""
    events: Part[StoredEvent]
    requests: Part[StoredRequest]


def look(store: Store, view: View, place: Place, limit: int) -> Look:
    """What came after `place` that `view` wants: at most `limit` events and as many requests."""
    history = _history(store)
    end = Place(_newest(store, "events"), _newest(store, "requests"), history)
    anew = place.history not in ("", history) or place.arrival > end.arrival or place.request > end.request
    start = Place() if anew else place
    events = _matching(store, _ARRIVED, view.of_events(), start.arrival, end.arrival)
    requests = _matching(store, _REQUESTED, view.of_requests(start.arrival, end.arrival), start.request, end.request)
    return Look(
        end,
        anew,
        _newest_part(events, limit, lambda number: _light(store.arrival(number))),
        _newest_part(requests, limit, lambda number: _light_request(store.request(number))),
    )


def _history(store: Store) -> str:
    """What tells this history from one that was forgotten, or was of another process: when its first request came."""
    rows = store.select("SELECT received_at FROM requests ORDER BY id LIMIT 1", [])
    return hashlib.sha256(rows[0][0].encode()).hexdigest()[:12] if rows else ""


def _newest(store: Store, table: str) -> int:
    return int(store.select(f"SELECT coalesce(max(id), 0) FROM {table}", [])[0][0])  # noqa: S608 - one of two names, both above


def _matching(store: Store, statement: str, wanted: tuple[str, list[object]], after: int, last: int) -> list[int]:
    condition, parameters = wanted
    rows = store.select(f"{statement} AND {condition} ORDER BY id", [max(after, last - REACH), last, *parameters])
    return [number for (number,) in rows]


def _newest_part(numbers: list[int], limit: int, read: Callable[[int], Shown]) -> Part[Shown]:
    chosen = numbers[-limit:]
    return Part([read(number) for number in chosen], len(numbers) - len(chosen))


def _light(event: StoredEvent) -> StoredEvent:
    return event if len(event.raw) <= LARGE else replace(event, raw=b"", properties="null")


def _light_request(request: StoredRequest) -> StoredRequest:
    """Without the bytes of what was not ingested, if they are many; index and reason stay."""
    if sum(len(each.raw) for each in request.not_ingested) <= LARGE:
        return request
    return replace(request, not_ingested=[each._replace(raw=b"") for each in request.not_ingested[:MANY]])


def _conditions(wanted: Mapping[str, str | None]) -> tuple[str, list[object]]:
    chosen = {clause: value for clause, value in wanted.items() if value}
    return " AND ".join(["1", *chosen]), list(chosen.values())


def _like(text: str) -> str:
    """A pattern for text that holds `text`, whatever is in it."""
    escaped = "".join(f"\\{each}" if each in "\\%_" else each for each in text[:TEXT])
    return f"%{escaped}%"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
