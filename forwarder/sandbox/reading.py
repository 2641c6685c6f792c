"""What the service makes of one event: its name, its id, its uuid, its time (wire facts: "How the service decodes a body", Time)."""

from __future__ import annotations

import json
import re
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from forwarder.sandbox.shapes import Element
from forwarder.sandbox.timing import format_time, happened_at

LONGEST_DISTINCT_ID: Final = 200
IMPORT_JOB: Final = "$import_job_id"
"""The property of an import's events that names it."""
SURVEY_EVENTS: Final = frozenset({"survey sent", "survey shown", "survey dismissed"})
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_HYPHENATED: Final = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_UUID: Final = re.compile(rf"{_HYPHENATED}|[0-9a-fA-F]{{32}}|\{{{_HYPHENATED}\}}|urn:uuid:{_HYPHENATED}").fullmatch


class NotIngested(StrEnum):
    """Why an event of a request that was answered 200 is not among the ingested ones (closed set; documented in docs/sandbox.md)."""

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


class Event(NamedTuple):
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


class Unnamed(NamedTuple):
    """An event that is not ingested, and why."""

    position: int
    reason: NotIngested
    raw: bytes


def read_event(element: Element, index: int, *, path: str, sent_at: datetime | None, now: datetime) -> Event | Unnamed:
    """Read one event that was received on `path` at `now`; one that can't be ingested comes back with its reason."""
    raw = element.raw.encode()
    if not element.is_object:
        return Unnamed(index, NotIngested.NOT_AN_OBJECT, raw)
    name = event_name(element, path)
    if name is None:
        return Unnamed(index, NotIngested.NO_NAME, raw)
    distinct_id = distinct_id_of(element)
    if distinct_id is None:
        return Unnamed(index, NotIngested.NO_DISTINCT_ID, raw)
    corrected_by = None if element.property("$ignore_sent_at") else sent_at
    time = happened_at(element.get("timestamp") or None, element.get("offset"), corrected_by, now)
    return Event(
        position=index,
        uuid=uuid_of(element),
        event=storable(name),
        distinct_id=storable(distinct_id),
        timestamp_sent=element.source("timestamp"),
        timestamp=format_time(time),
        properties=element.source("properties") or "{}",
        raw=raw,
        import_job=import_job_of(element),
    )


def lacks_survey(event: str, element: Element) -> bool:
    """Whether it is an event of a survey that doesn't name its survey (interface document, Events: `$survey_id` is required)."""
    if event not in SURVEY_EVENTS:
        return False
    survey = element.property("$survey_id")
    return survey is None or (isinstance(survey, str) and not survey.strip())


def event_name(element: Element, path: str) -> str | None:
    """The event's name; None if it has none. On `/engage` the name is understood to be `$identify`."""
    name = element.get("event")
    if name is None and path == "/engage":
        return "$identify"
    return name if isinstance(name, str) and name else None


def distinct_id_of(element: Element) -> str | None:
    """Whose event it is. The top level beats the properties, what is not text is taken as JSON, white space alone is no id."""
    value = element.get("distinct_id")
    if value is None:
        value = element.get("$distinct_id")
    if value is None:
        value = element.property("distinct_id")
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("\0", "\ufffd")[:LONGEST_DISTINCT_ID] if text.strip() else None


def uuid_of(element: Element) -> str | None:
    """The event's uuid in its usual spelling; None if it has none, or what stands there is no uuid."""
    text = element.get("uuid")
    return parse_uuid(text) if isinstance(text, str) else None


def import_job_of(element: Element) -> str | None:
    """The import that an event says it is from; None if it isn't text."""
    job = element.property(IMPORT_JOB)
    return storable(job) if isinstance(job, str) else None


def parse_uuid(text: str) -> str | None:
    """A uuid in its usual spelling, from any of those the service reads: with or without hyphens, in braces, as a URN."""
    return str(UUID(text)) if _UUID(text) else None


def storable(text: str) -> str:
    """A text that SQLite can keep. Half a surrogate pair can't be written as UTF-8: it becomes U+FFFD. The event's own bytes keep it."""
    return text if text.isascii() else _HALF_PAIR.sub("\ufffd", text)
