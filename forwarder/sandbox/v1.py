"""`POST /i/v1/analytics/events`: one request of the newer protocol, from its bytes to its per-event results and its record.

The contract doesn't have it, so the rules are the real service's, as its published source and its SDKs have them: the key is a Bearer
token; headers say which SDK sends, and when; `{created_at, batch, historical_migration}` is refused whole if it doesn't have that form, or
if an event has no uuid of its own or one that another has; what else is wrong with an event is its own result. By the contract a key that
doesn't exist is refused, and an event of a survey needs `$survey_id`; `--strict` asks neither. Nothing here fails only for a while, so no
event is ever to be sent again (`retry`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from forwarder.sandbox.answers import Answer, Refusal, refused
from forwarder.sandbox.compression import ENCODINGS, decompress
from forwarder.sandbox.decoding import Received
from forwarder.sandbox.judging import checked_token
from forwarder.sandbox.reading import Event, NotIngested, Unnamed, parse_uuid
from forwarder.sandbox.recording import Rules, keep, record_of
from forwarder.sandbox.scanning import Member, NotJson, Scanner
from forwarder.sandbox.shapes import Envelope, read_array
from forwarder.sandbox.store import Store
from forwarder.sandbox.timing import parse_rfc3339
from forwarder.sandbox.v1_event import Sender, has_form, read_v1_event, uuid_text

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
_DETAILS: Final = {NotIngested.NO_NAME: "missing_event_name", NotIngested.NO_DISTINCT_ID: "missing_distinct_id"}


class V1Refusal(Refusal):
    """A v1 request is refused; `tag` names the reason for programs."""

    def __init__(self, tag: str, message: str, status: int = 400) -> None:
        super().__init__(status, message)
        self.tag = tag


def take_v1(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Take a v1 request that was received at wall-clock second `at`."""
    now = datetime.fromtimestamp(at, UTC)
    record = record_of(received, now)
    api_key: str | None = None
    try:
        api_key = _bearer(received)
        sent_at = _read_headers(received.headers)
        if not rules.keys.knows(api_key) and not rules.strict:
            raise V1Refusal("invalid_api_token", "no project has this key", 401)
        record.encoding = received.headers.get("content-encoding", "plain").lower()
        envelope = _read_body(_decompressed(received.body, record.encoding, rules.max_body))
        uuids = _uuids(envelope)
    except Refusal as refusal:
        return keep(store, record, _failure(refusal), api_key)
    sender = Sender(received.headers["posthog-sdk-info"], sent_at, now, strict=rules.strict)
    events = [read_v1_event(element, index, uuids[index], sender) for index, element in enumerate(envelope.elements)]
    if not rules.keys.knows(api_key):
        events = [Unnamed(event.position, NotIngested.UNKNOWN_KEY, event.raw) for event in events]
    record.events = [event for event in events if isinstance(event, Event)]
    record.unnamed = [event for event in events if isinstance(event, Unnamed)]
    record.historical = envelope.historical
    return keep(store, record, _results(uuids, events), api_key)


def refuse(received: Received, at: float, refusal: Refusal, store: Store) -> Answer:
    """Keep a request of any protocol whose body was not even read to its end."""
    answer = _failure(refusal) if received.path == V1_PATH else refused(refusal)
    return keep(store, record_of(received, datetime.fromtimestamp(at, UTC)), answer, None)


def _bearer(received: Received) -> str:
    authorization = received.headers.get("authorization")
    if authorization is None:
        raise V1Refusal("missing_authorization", "the Authorization header is missing", 401)
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise V1Refusal("invalid_header_value", "Authorization is not a Bearer token")
    return checked_token(token.strip())


def _read_headers(headers: Mapping[str, str]) -> datetime:
    """The sender's clock. Raises `Refusal` for headers that are missing or wrong."""
    if missing := [name for name in REQUIRED if name not in headers]:
        raise V1Refusal("missing_required_headers", f"missing headers: {', '.join(missing)}")
    if headers["content-type"].split(";")[0].strip().lower() != "application/json":
        raise V1Refusal("unsupported_content_type", "the content type is not application/json", 415)
    if headers.get("content-encoding", "gzip").lower() not in ENCODINGS:
        raise V1Refusal("unsupported_encoding", f"the content encoding is none of {', '.join(ENCODINGS)}", 415)
    if parse_uuid(headers["posthog-request-id"]) is None:
        raise V1Refusal("invalid_header_value", "PostHog-Request-Id is not a UUID")
    if not _POSITIVE(headers["posthog-attempt"]):
        raise V1Refusal("invalid_header_value", "PostHog-Attempt is not a positive integer")
    sent_at = parse_rfc3339(headers["posthog-request-timestamp"])
    if sent_at is None:
        raise V1Refusal("invalid_header_value", "PostHog-Request-Timestamp is not a time by RFC 3339")
    return sent_at


def _decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    try:
        return decompress(body, encoding, limit)
    except Refusal as refusal:
        raise V1Refusal(_TAGS.get(refusal.status, "request_decoding_error"), refusal.message, refusal.status) from None


def _read_body(body: bytes) -> Envelope:
    """The events, cut out of the text. Raises `Refusal` (400) if the body doesn't have the form."""
    if not body:
        raise V1Refusal("empty_body", "the body is empty")
    try:
        return _read_text(body.decode())
    except UnicodeDecodeError:
        raise V1Refusal("request_parsing_error", "the body is not UTF-8") from None
    except NotJson as error:
        raise V1Refusal("request_parsing_error", f"the body is not JSON: {error}") from None


def _read_text(text: str) -> Envelope:
    scanner = Scanner(text)
    start = scanner.first()
    if text[start] != "{":
        raise V1Refusal("request_parsing_error", "the body is not an object")
    members, end = scanner.members(start)
    scanner.finish(end)
    values = once(members, {"created_at", "batch", "historical_migration", "capture_internal"})
    envelope = Envelope(historical=_historical(values))
    created_at = values.get("created_at")
    if created_at is None or not isinstance(created_at.value, str):
        raise V1Refusal("request_parsing_error", "created_at is missing, or no text")
    if "batch" not in values or not isinstance(values["batch"].value, list):
        raise V1Refusal("request_parsing_error", "batch is missing, or no array")
    read_array(scanner, values["batch"].start, envelope)
    for index, element in enumerate(envelope.elements):
        if not element.is_object or not has_form(element):
            raise V1Refusal("request_parsing_error", f"event {index} does not have the form of one")
    if not envelope.elements:
        raise V1Refusal("empty_batch", "the batch is empty")
    if parse_rfc3339(created_at.value) is None:
        raise V1Refusal("invalid_batch", "created_at is not a time by RFC 3339")
    return envelope


def once(members: Sequence[Member], names: Collection[str]) -> dict[str, Member]:
    """The members of these names. Raises `Refusal` (400) if one is there twice."""
    found: dict[str, Member] = {}
    for member in members:
        if member.key in names and found.setdefault(member.key, member) is not member:
            raise V1Refusal("request_parsing_error", f"{member.key} stands there twice")
    return found


def _historical(values: Mapping[str, Member]) -> bool:
    historical: Any = values["historical_migration"].value if "historical_migration" in values else False
    if not isinstance(historical, bool):
        raise V1Refusal("request_parsing_error", "historical_migration is neither true nor false")
    return historical


def _uuids(envelope: Envelope) -> list[str]:
    """Each event's uuid. Raises `Refusal` (400) if one has none, or one that another has."""
    seen: dict[str, int] = {}
    for index, element in enumerate(envelope.elements):
        text = uuid_text(element)
        uuid = parse_uuid(text)
        if uuid is None:
            raise V1Refusal("invalid_event_uuid" if text else "missing_event_uuid", f"event {index} has no uuid")
        if seen.setdefault(uuid, index) != index:
            raise V1Refusal("duplicate_event_uuid", f"event {index} has the uuid of event {seen[uuid]}")
    return list(seen)


def _results(uuids: Sequence[str], events: Sequence[Event | Unnamed]) -> Answer:
    return Answer(200, json.dumps({"results": {uuid: _result(event) for uuid, event in zip(uuids, events, strict=True)}}))


def _result(event: Event | Unnamed) -> dict[str, str]:
    if isinstance(event, Event) or event.reason is NotIngested.UNKNOWN_KEY:
        return {"result": "ok"}
    return {"result": "drop", "details": _DETAILS.get(event.reason, str(event.reason))}


def _failure(refusal: Refusal) -> Answer:
    tag = refusal.tag if isinstance(refusal, V1Refusal) else _TAGS.get(refusal.status, "request_parsing_error")
    body = json.dumps({"error": tag, "error_description": refusal.message})
    return Answer(refusal.status, body, error=f"{tag}: {refusal.message}")
