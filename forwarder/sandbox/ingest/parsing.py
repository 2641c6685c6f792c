"""From the JSON text of a body to events that keep their exact text (wire facts: "How the service
decodes a body", Time).

A body is an array, a batch object or one event. An envelope has what the body says for all its
events: key, `sent_at`, `historical_migration`. An event gets its name, its distinct id, its uuid
and its time by the service's rules.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from forwarder.core.error_text import error_text
from forwarder.sandbox.protocol.event_times import happened_at, read_sent_at
from forwarder.sandbox.protocol.http import RequestRejected
from forwarder.sandbox.protocol.json_scanner import InvalidJson, JsonMember, JsonScanner
from forwarder.sandbox.protocol.times import format_time
from forwarder.sandbox.store.meaning import LONGEST_DISTINCT_ID, SURVEY_EVENTS, storable
from forwarder.sandbox.store.stored_records import IngestedEvent, NotIngested, NotIngestedEvent

TOKEN_NAMES: Final = ("token", "$token", "api_key")
IMPORT_JOB: Final = "$import_job_id"
"""The property of an import's events that names it."""
_HYPHENATED: Final = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_UUID: Final = re.compile(
    rf"{_HYPHENATED}|[0-9a-fA-F]{{32}}|\{{{_HYPHENATED}\}}|urn:uuid:{_HYPHENATED}"
).fullmatch


class EventElement:
    """One event in the body: `raw` is its text, `members` are those of its top level, in order,
    repeated keys included.
    """

    __slots__ = ("_values", "infinite", "is_object", "members", "raw", "text")

    def __init__(
        self,
        text: str,
        start: int,
        end: int,
        members: list[JsonMember],
        *,
        infinite: bool,
        is_object: bool = True,
    ) -> None:
        self.text = text
        self.raw = text[start:end]
        self.members = members
        self.infinite = infinite
        """Whether a number in it is too large for a double."""
        self.is_object = is_object
        """Whether it can be an event at all; else it has no members."""
        self._values = {member.key: member.value for member in members}

    def get(self, key: str) -> Any:
        """The value of a key of the top level, None if it is absent; of a repeated key the last,
        as JSON readers do.
        """
        return self._values.get(key)

    def property(self, key: str) -> Any:
        """The value of one of its properties, None if it is absent."""
        properties = self._values.get("properties")
        return properties.get(key) if isinstance(properties, dict) else None

    def source(self, key: str) -> str | None:
        """The text of a value of the top level, exactly as sent; None if the key is
        absent or null.
        """
        for member in reversed(self.members):
            if member.key == key:
                return None if member.value is None else self.text[member.start : member.end]
        return None

    def token(self) -> object:
        """The key that the event itself names, else None."""
        for name in TOKEN_NAMES:
            if self._values.get(name) is not None:
                return self._values[name]
        return self.property("token")


@dataclass(slots=True)
class EventEnvelope:
    """A body's events, and what it says for all of them."""

    elements: list[EventElement] = field(default_factory=list)
    token: object = None
    historical: bool = False
    odd_historical: bool = False
    """Whether one event says `historical_migration` beside it, and not as a boolean: the real
    service doesn't look there.
    """
    sent_at: datetime | None = None
    """Of a batch alone: beside a single event the service doesn't read it."""


def read_envelope(text: str) -> EventEnvelope:
    """Cut a body into its events. Raises `RequestRejected` (400) if it is not JSON, or has none of
    the shapes.
    """
    scanner = JsonScanner(text)
    envelope = EventEnvelope()
    try:
        start = scanner.first()
        if text[start] == "[":
            end = read_array(scanner, start, envelope)
        elif text[start] == "{":
            end = _read_object(scanner, start, envelope)
        else:
            raise RequestRejected(400, "the body is neither an object nor an array")
        scanner.finish(end)
    except InvalidJson as error:
        raise RequestRejected(400, f"the body is not JSON: {error_text(error)}") from None
    return envelope


def read_object(text: str, *, lenient: bool = False) -> dict[str, Any]:
    """A body that must be one JSON object. With `lenient` NaN, Infinity and numbers that no double
    can hold are null. Raises `RequestRejected` (400).
    """
    scanner = JsonScanner(text, lenient=lenient)
    try:
        value, end = scanner.value(scanner.first())
        scanner.finish(end)
    except InvalidJson as error:
        raise RequestRejected(400, f"the body is not JSON: {error_text(error)}") from None
    if not isinstance(value, dict):
        raise RequestRejected(400, "the body is not an object")
    return value


def _read_object(scanner: JsonScanner, start: int, envelope: EventEnvelope) -> int:
    members, end = scanner.members(start)
    values = {member.key: member for member in members}
    tokens = (values[name].value for name in TOKEN_NAMES if name in values)
    envelope.token = next((token for token in tokens if token is not None), None)
    historical = values["historical_migration"].value if "historical_migration" in values else None
    envelope.historical = historical is True
    odd = historical is not None and not isinstance(historical, bool)
    if "batch" not in values or values["batch"].value is None:
        envelope.odd_historical = odd
        envelope.elements.append(
            EventElement(scanner.text, start, end, members, infinite=scanner.infinite)
        )
        return end
    if not isinstance(values["batch"].value, list):
        raise RequestRejected(400, "batch is not an array")
    if odd:
        raise RequestRejected(400, "historical_migration is neither true nor false")
    envelope.sent_at = read_sent_at(values["sent_at"].value) if "sent_at" in values else None
    read_array(scanner, values["batch"].start, envelope)
    return end


def read_array(scanner: JsonScanner, start: int, envelope: EventEnvelope) -> int:
    """Add the events of the array at `start` to an envelope; returns where the array
    ends. Raises `InvalidJson`.
    """

    def read(at: int) -> int:
        scanner.infinite = False
        if scanner.text[at] != "{":
            _, end = scanner.value(at)
            envelope.elements.append(
                EventElement(scanner.text, at, end, [], infinite=scanner.infinite, is_object=False)
            )
            return end
        members, end = scanner.members(at)
        envelope.elements.append(
            EventElement(scanner.text, at, end, members, infinite=scanner.infinite)
        )
        return end

    return scanner.elements(start, read)


def read_event(
    element: EventElement, index: int, *, path: str, sent_at: datetime | None, now: datetime
) -> IngestedEvent | NotIngestedEvent:
    """Read one event that was received on `path` at `now`; one that can't be ingested comes back
    with its reason.
    """
    raw = element.raw.encode()
    if not element.is_object:
        return NotIngestedEvent(index, NotIngested.NOT_AN_OBJECT, raw)
    name = event_name(element, path)
    if name is None:
        return NotIngestedEvent(index, NotIngested.NO_NAME, raw)
    distinct_id = distinct_id_of(element)
    if distinct_id is None:
        return NotIngestedEvent(index, NotIngested.NO_DISTINCT_ID, raw)
    corrected_by = None if element.property("$ignore_sent_at") is True else sent_at
    time = happened_at(element.get("timestamp"), element.get("offset"), corrected_by, now)
    return IngestedEvent(
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


def lacks_survey(event: str, element: EventElement) -> bool:
    """Whether it is an event of a survey that doesn't name its survey (interface document, Events:
    `$survey_id` is required).
    """
    if event not in SURVEY_EVENTS:
        return False
    survey = element.property("$survey_id")
    return survey is None or (isinstance(survey, str) and not survey.strip())


def event_name(element: EventElement, path: str) -> str | None:
    """The event's name; None if it has none. On `/engage` the name is
    understood to be `$identify`.
    """
    name = element.get("event")
    if name is None and path == "/engage":
        return "$identify"
    return name if isinstance(name, str) and name else None


def distinct_id_of(element: EventElement) -> str | None:
    """Whose event it is. The top level beats the properties, what is not text is taken as JSON,
    white space alone is no id.
    """
    value = element.get("distinct_id")
    if value is None:
        value = element.get("$distinct_id")
    if value is None:
        value = element.property("distinct_id")
    if value is None:
        return None
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    )
    return text.replace("\0", "\ufffd")[:LONGEST_DISTINCT_ID] if text.strip() else None


def uuid_of(element: EventElement) -> str | None:
    """The event's uuid in its usual spelling; None if it is missing or invalid."""
    text = element.get("uuid")
    return parse_uuid(text) if isinstance(text, str) else None


def import_job_of(element: EventElement) -> str | None:
    """The import that an event says it is from; None if it isn't text."""
    job = element.property(IMPORT_JOB)
    return storable(job) if isinstance(job, str) else None


def parse_uuid(text: str) -> str | None:
    """A uuid in its usual spelling, from any of those the service reads: with or without hyphens,
    in braces, as a URN.
    """
    return str(UUID(text)) if _UUID(text) else None
