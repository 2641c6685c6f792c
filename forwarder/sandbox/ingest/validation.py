"""Whether a request is accepted, and which of its events are ingested: by the contract, or as the
real service does (`--strict`).

By the contract an event without name or distinct_id is answered 200 and not ingested, alone or
among others (interface document, Errors 2); the same applies to elements that are not objects, and
to survey events that do not name their survey (Events); an unknown key fails validation (Errors
1). The real service rejects the whole request for one invalid event, does not check surveys, and
answers events of an unknown key with 200, to drop them later (wire facts: "Where contract and
service disagree").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from forwarder.sandbox.ingest.parsing import (
    EventElement,
    EventEnvelope,
    event_name,
    lacks_survey,
    parse_uuid,
    read_event,
)
from forwarder.sandbox.protocol.http import RequestRejected
from forwarder.sandbox.store.stored_records import IngestedEvent, NotIngested, NotIngestedEvent

LONGEST_TOKEN: Final = 64
LARGEST_EVENT: Final = 1_048_576
"""Bytes; in strict mode a larger event fails its request with 413 (wire facts: "a 413 or 400 can
come from one event").
"""

_SYNONYMS: Final = {"$token": "token", "api_key": "token", "$distinct_id": "distinct_id"}
_FIELDS: Final = frozenset(
    {
        "token",
        "distinct_id",
        "uuid",
        "event",
        "properties",
        "timestamp",
        "offset",
        "$set",
        "$set_once",
    }
)
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "token": str,
    "timestamp": str,
    "offset": int,
    "$set": dict,
    "$set_once": dict,
}
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPES: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F])|.)"
)


@dataclass(slots=True)
class ValidatedRequest:
    """What becomes of a request that is answered 200."""

    api_key: str
    historical: bool
    events: list[IngestedEvent] = field(default_factory=list)
    not_ingested: list[NotIngestedEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProjectKeys:
    """The project keys that exist: those named, and those of the projects in the database; without
    any of either every well-formed one.
    """

    known: Collection[str] = ()
    of_a_project: Callable[[str], bool | None] = lambda _: None
    """Whether a project in the database has a key; None if the database doesn't restrict keys."""

    def knows(self, api_key: str) -> bool:
        """Whether the key belongs to a project. On the store's thread."""
        if api_key in self.known:
            return True
        known_here = self.of_a_project(api_key)
        return not self.known if known_here is None else known_here


def validate_request(
    envelope: EventEnvelope, keys: ProjectKeys, path: str, now: datetime, *, strict: bool
) -> ValidatedRequest:
    """Decide over one request that was received on `path` at `now`. Raises `RequestRejected` when
    nothing of it is taken.
    """
    if strict:
        _check_as_the_service(envelope, path)
    elif envelope.odd_historical:
        raise RequestRejected(400, "historical_migration is neither true nor false")
    api_key = request_token(envelope)
    validated = ValidatedRequest(api_key, envelope.historical)
    known = keys.knows(api_key)
    if not known and not strict:
        raise RequestRejected(401, "no project has this key", api_key=api_key)
    if not envelope.elements:
        raise RequestRejected(400, "no events", api_key=api_key)
    for index, element in enumerate(envelope.elements):
        event = read_event(element, index, path=path, sent_at=envelope.sent_at, now=now)
        if not strict and isinstance(event, IngestedEvent) and lacks_survey(event.event, element):
            event = NotIngestedEvent(index, NotIngested.NO_SURVEY_ID, event.raw)
        _add_event(event, validated, known=known, strict=strict)
    return validated


def _add_event(
    event: IngestedEvent | NotIngestedEvent,
    validated: ValidatedRequest,
    *,
    known: bool,
    strict: bool,
) -> None:
    if isinstance(event, NotIngestedEvent):
        if strict:
            raise RequestRejected(
                400, f"event {event.position}: {event.reason}", api_key=validated.api_key
            )
        validated.not_ingested.append(event)
    elif known:
        validated.events.append(event)
    else:
        validated.not_ingested.append(
            NotIngestedEvent(event.position, NotIngested.UNKNOWN_KEY, event.raw)
        )


def request_token(envelope: EventEnvelope) -> str:
    """The only key of a request. Raises `RequestRejected`: 401 for no key, a malformed one or
    several, 400 without events to name one.
    """
    if envelope.token is not None:
        return check_token(envelope.token)
    if not envelope.elements:
        raise RequestRejected(400, "no events")
    if not all(element.is_object for element in envelope.elements):
        raise RequestRejected(400, "an event is not an object, and names no project key")
    tokens = [element.token() for element in envelope.elements]
    first = check_token(tokens[0])
    if any(token != first for token in tokens):
        raise RequestRejected(401, "the events name different project keys", api_key=first)
    return first


def check_token(token: object) -> str:
    """A key that could be one: text of 1 to 64 ASCII characters, no NUL, no personal key. Raises
    `RequestRejected` (401).
    """
    if token is None or token == "":
        raise RequestRejected(401, "no project key")
    if (
        not isinstance(token, str)
        or len(token) > LONGEST_TOKEN
        or not token.isascii()
        or "\0" in token
    ):
        raise RequestRejected(401, "a malformed project key")
    if token.startswith("phx_"):
        raise RequestRejected(401, "a personal key, not a project key")
    return token


def check_key(token: object, keys: ProjectKeys) -> str:
    """A key of a project that exists. Raises `RequestRejected` (401)."""
    api_key = check_token(token)
    if not keys.knows(api_key):
        raise RequestRejected(401, "no project has this key", api_key=api_key)
    return api_key


def _check_as_the_service(envelope: EventEnvelope, path: str) -> None:
    if not envelope.elements:
        raise RequestRejected(400, "no events")
    for index, element in enumerate(envelope.elements):
        if fault := _fault(element, path):
            raise RequestRejected(400, f"event {index}: {fault}")
        if len(element.raw) * 4 > LARGEST_EVENT and len(element.raw.encode()) > LARGEST_EVENT:
            raise RequestRejected(413, f"event {index} is larger than {LARGEST_EVENT} bytes")


def _fault(element: EventElement, path: str) -> str | None:
    """Why the real service can't read an event at all, in a few words that quote nothing of it."""
    if element.infinite:
        return "a number out of range"
    if _SURROGATE.search(element.raw) and any(
        match.group(1) for match in _ESCAPES.finditer(element.raw)
    ):
        return "half a surrogate pair"
    if not element.is_object:
        return str(NotIngested.NOT_AN_OBJECT)
    seen: set[str] = set()
    for member in element.members:
        name = _SYNONYMS.get(member.key, member.key)
        if name not in _FIELDS:
            continue
        if name in seen:
            return f"{name} stands there twice"
        seen.add(name)
        if not _fits(name, member.value):
            return f"{name} has the wrong type"
    return None if event_name(element, path) is not None else str(NotIngested.NO_NAME)


def _fits(name: str, value: Any) -> bool:
    if name == "properties":
        return isinstance(value, dict)
    if name == "uuid":
        return (
            value is None
            or value == ""
            or (isinstance(value, str) and parse_uuid(value) is not None)
        )
    if name not in _TYPES or value is None:
        return True
    return isinstance(value, _TYPES[name]) and not isinstance(value, bool)
