"""What the sandbox keeps: requests and the events that came in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from forwarder.sandbox.meaning import groups_of, read_mapping
from forwarder.sandbox.reading import Event, Unnamed


class Kind(StrEnum):
    """What an arrival was, beside those before it."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """Every byte equal to an event of the same uuid and project key that is here already."""
    CONFLICT = "conflict"
    """A uuid that is here already, with at least one byte different."""


@dataclass(slots=True)
class Arrival:
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
    events: Sequence[Event] = ()
    unnamed: Sequence[Unnamed] = ()
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One arrival of an event. `raw` is its bytes exactly as they stood in the decoded body; times are ISO 8601 in UTC."""

    arrival: int
    """Counts up in the order of arrival."""
    request: int
    index: int
    """Its place among the events of its request."""
    kind: Kind
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
    """The id of the person whose distinct id it carries; None if nobody's (an anonymous event's, as long as nobody identifies)."""

    @property
    def groups(self) -> dict[str, str]:
        """The groups that it says it belongs to, type to key; they need not exist."""
        return groups_of(read_mapping(self.properties))


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
    not_ingested: Sequence[Unnamed] = field(default=())


@dataclass(frozen=True, slots=True)
class Conflict:
    """A uuid that came a second time with other bytes, beside the first event of that uuid."""

    first: StoredEvent
    second: StoredEvent


@dataclass(frozen=True, slots=True)
class Summary:
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
