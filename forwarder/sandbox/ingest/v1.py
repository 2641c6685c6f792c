"""`POST /i/v1/analytics/events`: one request of the v1 protocol, from its bytes to its per-event
results and its record.

The contract does not have it, so the rules are the real service's, as its published source and its
SDKs have them: the key is a Bearer token; headers name the SDK and the time of sending;
`{created_at, batch, historical_migration}` is rejected whole if it does not have that form, or if
an event has no uuid or the uuid of another; any other fault of an event is its own result. By the
contract an unknown key is rejected, and a survey event needs `$survey_id`; `--strict` checks
neither. No failure here is temporary, so no result is `retry`.

An event is stored in the classic shape. Fields that v1 has beside the properties are appended to
them, under the service's names: `session_id` becomes `$session_id`,
`options.disable_skew_correction` becomes `$ignore_sent_at`, and the SDK's name and version in the
header become `$lib` and `$lib_version`. The properties themselves stay as they were sent; the last
of a repeated key counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from forwarder.core.error_text import error_text
from forwarder.sandbox.ingest.decoding import ENCODINGS, ReceivedRequest, decompress
from forwarder.sandbox.ingest.parsing import (
    EventElement,
    EventEnvelope,
    import_job_of,
    lacks_survey,
    parse_uuid,
    read_array,
)
from forwarder.sandbox.ingest.recording import Exchange
from forwarder.sandbox.ingest.validation import LARGEST_EVENT, check_token
from forwarder.sandbox.protocol.event_times import FUTURE
from forwarder.sandbox.protocol.http import RequestRejected, ServiceResponse
from forwarder.sandbox.protocol.json_scanner import InvalidJson, JsonMember, JsonScanner
from forwarder.sandbox.protocol.times import format_time, parse_rfc3339
from forwarder.sandbox.store.meaning import storable
from forwarder.sandbox.store.stored_records import IngestedEvent, NotIngested, NotIngestedEvent

V1_PATH: Final = "/i/v1/analytics/events"
REQUIRED: Final = (
    "posthog-sdk-info",
    "posthog-attempt",
    "posthog-request-id",
    "posthog-request-timestamp",
    "content-type",
    "user-agent",
)
_POSITIVE: Final = re.compile(r"\+?0*[1-9]\d{0,9}", re.ASCII).fullmatch
_TAGS: Final = {401: "invalid_api_token", 413: "payload_too_large"}
_DETAILS: Final = {
    NotIngested.NO_NAME: "missing_event_name",
    NotIngested.NO_DISTINCT_ID: "missing_distinct_id",
}
LONGEST_NAME: Final = 200
LONGEST_ID: Final = 200
LONGEST_SDK_INFO: Final = 200
"""Bytes."""
_TEXTS: Final = ("event", "uuid", "distinct_id", "timestamp")
_MAYBE_TEXTS: Final = ("session_id", "window_id")
_OPTIONS: Final = {
    "cookieless_mode": "$cookieless_mode",
    "disable_skew_correction": "$ignore_sent_at",
    "product_tour_id": "$product_tour_id",
    "process_person_profile": "$process_person_profile",
}
_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}


def accept_v1(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a v1 request; a rejection has the protocol's own form."""
    received = exchange.received
    policy = exchange.policy
    record = exchange.record
    api_key: str | None = None
    try:
        api_key = _bearer(received)
        sent_at = _read_headers(received.headers)
        if not policy.keys.knows(api_key) and not policy.strict:
            raise V1Rejected("invalid_api_token", "no project has this key", 401)
        record.encoding = received.headers.get("content-encoding", "plain").lower()
        envelope = _read_body(_decompressed(received.body, record.encoding, policy.max_body))
        uuids = _uuids(envelope)
    except RequestRejected as rejection:
        return v1_rejection_response(rejection), api_key
    sender = V1Sender(
        received.headers["posthog-sdk-info"], sent_at, exchange.now, strict=policy.strict
    )
    events = [
        read_v1_event(element, index, uuids[index], sender)
        for index, element in enumerate(envelope.elements)
    ]
    if not policy.keys.knows(api_key):
        events = [
            NotIngestedEvent(event.position, NotIngested.UNKNOWN_KEY, event.raw) for event in events
        ]
    record.events = [event for event in events if isinstance(event, IngestedEvent)]
    record.not_ingested = [event for event in events if isinstance(event, NotIngestedEvent)]
    record.historical = envelope.historical
    return _results(uuids, events), api_key


class V1Rejected(RequestRejected):
    """A v1 request is rejected; `tag` names the reason for programs."""

    def __init__(self, tag: str, message: str, status: int = 400) -> None:
        super().__init__(status, message)
        self.tag = tag


def _bearer(received: ReceivedRequest) -> str:
    authorization = received.headers.get("authorization")
    if authorization is None:
        raise V1Rejected("missing_authorization", "the Authorization header is missing", 401)
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise V1Rejected("invalid_header_value", "Authorization is not a Bearer token")
    return check_token(token.strip())


def _read_headers(headers: Mapping[str, str]) -> datetime:
    """The sender's clock. Raises `RequestRejected` for headers that are missing or wrong."""
    if missing := [name for name in REQUIRED if name not in headers]:
        raise V1Rejected("missing_required_headers", f"missing headers: {', '.join(missing)}")
    if headers["content-type"].split(";")[0].strip().lower() != "application/json":
        raise V1Rejected(
            "unsupported_content_type", "the content type is not application/json", 415
        )
    if headers.get("content-encoding", "gzip").lower() not in ENCODINGS:
        raise V1Rejected(
            "unsupported_encoding", f"the content encoding is none of {', '.join(ENCODINGS)}", 415
        )
    if parse_uuid(headers["posthog-request-id"]) is None:
        raise V1Rejected("invalid_header_value", "PostHog-Request-Id is not a UUID")
    if not _POSITIVE(headers["posthog-attempt"]):
        raise V1Rejected("invalid_header_value", "PostHog-Attempt is not a positive integer")
    sent_at = parse_rfc3339(headers["posthog-request-timestamp"])
    if sent_at is None:
        raise V1Rejected(
            "invalid_header_value", "PostHog-Request-Timestamp is not a time by RFC 3339"
        )
    return sent_at


def _decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    try:
        return decompress(body, encoding, limit)
    except RequestRejected as rejection:
        raise V1Rejected(
            _TAGS.get(rejection.status, "request_decoding_error"),
            rejection.message,
            rejection.status,
        ) from None


def _read_body(body: bytes) -> EventEnvelope:
    """The events, cut out of the text. Raises `RequestRejected` (400) if the
    body doesn't have the form.
    """
    if not body:
        raise V1Rejected("empty_body", "the body is empty")
    try:
        return _read_text(body.decode())
    except UnicodeDecodeError:
        raise V1Rejected("request_parsing_error", "the body is not UTF-8") from None
    except InvalidJson as error:
        raise V1Rejected(
            "request_parsing_error", f"the body is not JSON: {error_text(error)}"
        ) from None


def _read_text(text: str) -> EventEnvelope:
    scanner = JsonScanner(text)
    start = scanner.first()
    if text[start] != "{":
        raise V1Rejected("request_parsing_error", "the body is not an object")
    members, end = scanner.members(start)
    scanner.finish(end)
    values = unique_members(
        members, {"created_at", "batch", "historical_migration", "capture_internal"}
    )
    envelope = EventEnvelope(historical=_historical(values))
    created_at = values.get("created_at")
    if created_at is None or not isinstance(created_at.value, str):
        raise V1Rejected("request_parsing_error", "created_at is missing, or no text")
    if "batch" not in values or not isinstance(values["batch"].value, list):
        raise V1Rejected("request_parsing_error", "batch is missing, or no array")
    read_array(scanner, values["batch"].start, envelope)
    for index, element in enumerate(envelope.elements):
        if not element.is_object or not has_form(element):
            raise V1Rejected(
                "request_parsing_error", f"event {index} does not have the form of one"
            )
    if not envelope.elements:
        raise V1Rejected("empty_batch", "the batch is empty")
    if parse_rfc3339(created_at.value) is None:
        raise V1Rejected("invalid_batch", "created_at is not a time by RFC 3339")
    return envelope


def unique_members(members: Sequence[JsonMember], names: Collection[str]) -> dict[str, JsonMember]:
    """The members of these names. Raises `RequestRejected` (400) if one is there twice."""
    by_key: dict[str, JsonMember] = {}
    for member in members:
        if member.key in names and by_key.setdefault(member.key, member) is not member:
            raise V1Rejected("request_parsing_error", f"{member.key} stands there twice")
    return by_key


def _historical(values: Mapping[str, JsonMember]) -> bool:
    historical: Any = (
        values["historical_migration"].value if "historical_migration" in values else False
    )
    if not isinstance(historical, bool):
        raise V1Rejected("request_parsing_error", "historical_migration is neither true nor false")
    return historical


def _uuids(envelope: EventEnvelope) -> list[str]:
    """Each event's uuid. Raises `RequestRejected` (400) if one has none, or one that
    another has.
    """
    seen: dict[str, int] = {}
    for index, element in enumerate(envelope.elements):
        text = uuid_text(element)
        uuid = parse_uuid(text)
        if uuid is None:
            raise V1Rejected(
                "invalid_event_uuid" if text else "missing_event_uuid", f"event {index} has no uuid"
            )
        if seen.setdefault(uuid, index) != index:
            raise V1Rejected(
                "duplicate_event_uuid", f"event {index} has the uuid of event {seen[uuid]}"
            )
    return list(seen)


def _results(
    uuids: Sequence[str], events: Sequence[IngestedEvent | NotIngestedEvent]
) -> ServiceResponse:
    return ServiceResponse(
        200,
        json.dumps(
            {"results": {uuid: _result(event) for uuid, event in zip(uuids, events, strict=True)}}
        ),
    )


def _result(event: IngestedEvent | NotIngestedEvent) -> dict[str, str]:
    if isinstance(event, IngestedEvent) or event.reason is NotIngested.UNKNOWN_KEY:
        return {"result": "ok"}
    return {"result": "drop", "details": _DETAILS.get(event.reason, str(event.reason))}


def v1_rejection_response(rejection: RequestRejected) -> ServiceResponse:
    """The response to a rejected v1 request."""
    tag = (
        rejection.tag
        if isinstance(rejection, V1Rejected)
        else _TAGS.get(rejection.status, "request_parsing_error")
    )
    body = json.dumps({"error": tag, "error_description": rejection.message})
    return ServiceResponse(rejection.status, body, error=f"{tag}: {rejection.message}")


@dataclass(frozen=True, slots=True)
class V1Sender:
    """What a request says of all its events: by which SDK, and at what time of its clock it was
    sent; `now` is ours.
    """

    sdk_info: str
    sent_at: datetime
    now: datetime
    strict: bool = False

    def library(self) -> dict[str, str]:
        """`$lib` and `$lib_version`; nothing if the header doesn't name them."""
        name, slash, version = self.sdk_info.rpartition("/")
        if (
            not (slash and name.strip() and version.strip())
            or len(self.sdk_info) > LONGEST_SDK_INFO
        ):
            return {}
        return {"$lib": name.strip(), "$lib_version": version.strip()}

    def time(self, stated: datetime, *, corrected: bool) -> str:
        """When an event happened, by the difference between the two clocks."""
        if not corrected:
            return format_time(stated)
        try:
            time = stated - (self.sent_at - self.now)
        except OverflowError:
            return format_time(self.now)
        return format_time(time if time <= self.now + FUTURE else self.now)


class _InvalidOptions(ValueError):
    """An option that can't be read as what it is."""


def has_form(element: EventElement) -> bool:
    """Whether an element can be read as an event of this protocol at all: each of its own keys
    once, and of its type.
    """
    known = [
        member.key
        for member in element.members
        if member.key in (*_TEXTS, *_MAYBE_TEXTS, "options", "properties")
    ]
    return (
        len(set(known)) == len(known)
        and all(isinstance(element.get(name), str) for name in _TEXTS)
        and all(isinstance(element.get(name), str | None) for name in _MAYBE_TEXTS)
    )


def uuid_text(element: EventElement) -> str:
    """Its uuid as it was sent, without the white space around it."""
    text: str = element.get("uuid")
    return text.strip()


def read_v1_event(
    element: EventElement, index: int, uuid: str, sender: V1Sender
) -> IngestedEvent | NotIngestedEvent:
    """Judge one event that has the form of one; one that isn't ingested comes back
    with its reason.
    """
    raw = element.raw.encode()
    stated = parse_rfc3339(element.get("timestamp"))
    reason = _fault(element, stated)
    try:
        options = _options(element.get("options"))
    except _InvalidOptions:
        reason = reason or NotIngested.INVALID_OPTIONS
    if reason is None and not sender.strict and lacks_survey(element.get("event"), element):
        reason = NotIngested.NO_SURVEY_ID
    if reason is None and sender.strict and len(raw) > LARGEST_EVENT:
        reason = NotIngested.TOO_BIG
    if reason is not None or stated is None:
        return NotIngestedEvent(index, reason or NotIngested.INVALID_TIMESTAMP, raw)
    texts = {
        **_texts(element),
        "properties": _with(
            _properties(element), {**_beside(element), **options, **sender.library()}
        ),
    }
    members = ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items())
    return IngestedEvent(
        position=index,
        uuid=uuid,
        event=storable(element.get("event")),
        distinct_id=storable(element.get("distinct_id").strip().replace("\0", "\ufffd")),
        timestamp_sent=element.source("timestamp"),
        timestamp=sender.time(stated, corrected=options.get("$ignore_sent_at") is not True),
        properties=texts["properties"],
        raw=f"{{{members}}}".encode(),
        import_job=import_job_of(element),
    )


def _fault(element: EventElement, stated: datetime | None) -> NotIngested | None:
    """The first thing that is wrong with an event, in the service's order."""
    name = element.get("event")
    distinct_id = element.get("distinct_id").strip()
    checks = (
        (name == "$performance_event", NotIngested.PERFORMANCE_EVENT),
        (not name, NotIngested.NO_NAME),
        (len(name.encode(errors="replace")) > LONGEST_NAME, NotIngested.NAME_TOO_LONG),
        (not distinct_id, NotIngested.NO_DISTINCT_ID),
        (len(distinct_id.encode(errors="replace")) > LONGEST_ID, NotIngested.DISTINCT_ID_TOO_LARGE),
        (stated is None, NotIngested.INVALID_TIMESTAMP),
        (not (_properties(element)).startswith("{"), NotIngested.MALFORMED_PROPERTIES),
    )
    return next((reason for wrong, reason in checks if wrong), None)


def _properties(element: EventElement) -> str:
    member = next((member for member in element.members if member.key == "properties"), None)
    return "{}" if member is None else element.text[member.start : member.end]


def _options(options: Any) -> dict[str, bool | str]:
    """The options as properties. Raises `_InvalidOptions`."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise _InvalidOptions
    given = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    return {
        _OPTIONS[name]: _as_text(value) if name == "product_tour_id" else _as_bool(value)
        for name, value in given.items()
    }


def _as_bool(value: Any) -> bool:
    if isinstance(value, bool | int | float):
        return value != 0
    if isinstance(value, str) and value.strip().lower() in _BOOLS:
        return _BOOLS[value.strip().lower()]
    raise _InvalidOptions


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise _InvalidOptions


def _beside(element: EventElement) -> dict[str, str]:
    return {f"${name}": element.get(name) for name in _MAYBE_TEXTS if element.get(name) is not None}


def _texts(element: EventElement) -> dict[str, str]:
    """The JSON texts of what an event is in both shapes, as sent but for the white space around
    its ids.
    """
    texts = {name: element.source(name) or "null" for name in _TEXTS}
    for name in ("uuid", "distinct_id"):
        value = element.get(name)
        if value != value.strip():
            texts[name] = json.dumps(value.strip())
    return texts


def _with(properties: str, more: dict[str, Any]) -> str:
    """The text of an object with members added at its end; nothing else of it changes."""
    if not more:
        return properties
    added = json.dumps(more, separators=(",", ":"))[1:]
    return f"{properties[:-1]}{'' if properties[1:].lstrip().startswith('}') else ','}{added}"
