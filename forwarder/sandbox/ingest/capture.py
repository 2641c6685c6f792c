"""The classic capture endpoints: one request from its bytes to its response and its record. Runs
on the store's thread.

`POST /i/v0/ai` sends one event of a language model as a multipart form: the event, its properties,
and large values beside them. Its rules are the real service's, as its published source has them:
the key is a Bearer token; the first part is `event`, a JSON object; its properties are in it or in
a part `event.properties`, not in both; other parts `event.properties.NAME` are values, each name
once. The content of such a part is counted in the response and not kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from typing import Final

from forwarder.sandbox.ingest.decoding import ReceivedRequest, gunzip
from forwarder.sandbox.ingest.parsing import EventEnvelope, read_envelope, read_object
from forwarder.sandbox.ingest.recording import Exchange
from forwarder.sandbox.ingest.validation import (
    check_key,
    check_token,
    request_token,
    validate_request,
)
from forwarder.sandbox.protocol.event_times import sent_at_of_query
from forwarder.sandbox.protocol.http import (
    ACCEPTED,
    ACCEPTED_BEACON,
    RequestRejected,
    ServiceResponse,
)

AI_PATH: Final = "/i/v0/ai"
EVENT: Final = "event"
PROPERTIES: Final = "event.properties"


def accept_events(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a request of events."""
    received = exchange.received
    policy = exchange.policy
    record = exchange.record
    envelope = read_envelope(exchange.decoded_text(policy.max_body))
    envelope.sent_at = envelope.sent_at or sent_at_of_query(
        received.parameter("_") or received.parameter("sent_at")
    )
    validated = validate_request(
        envelope, policy.keys, received.path, exchange.now, strict=policy.strict
    )
    record.events = validated.events
    record.not_ingested = validated.not_ingested
    record.historical = validated.historical
    return _accepted(received), validated.api_key


def accept_replay(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a part of a session's replay (`/s/`): validated as a request of events, recorded, and
    its content discarded.
    """
    policy = exchange.policy
    api_key = request_token(read_envelope(exchange.decoded_text(policy.max_replay)))
    if not policy.strict:
        check_key(api_key, policy.keys)
    return _accepted(exchange.received), api_key


def accept_ai_event(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a request with one event of a language model."""
    received = exchange.received
    policy = exchange.policy
    record = exchange.record
    parts = _parts(received, policy.max_body)
    record.encoding = received.headers.get("content-encoding", "plain").lower()
    validated = validate_request(
        _envelope(received, parts), policy.keys, received.path, exchange.now, strict=policy.strict
    )
    record.events = validated.events
    record.not_ingested = validated.not_ingested
    return ServiceResponse(
        200, json.dumps({"accepted_parts": [_describe(part) for part in parts]})
    ), validated.api_key


def _accepted(received: ReceivedRequest) -> ServiceResponse:
    return ACCEPTED_BEACON if received.parameter("beacon") == "1" else ACCEPTED


@dataclass(frozen=True, slots=True)
class _FormPart:
    """One part of the form."""

    name: str
    content: bytes
    content_type: str | None
    content_encoding: str | None

    def text(self) -> str:
        """Its content as JSON text of an object. Raises `RequestRejected` (400)."""
        try:
            text = self.content.decode()
        except UnicodeDecodeError:
            raise RequestRejected(400, f"part {self.name} is not UTF-8") from None
        read_object(text)
        return text.strip()


def _parts(received: ReceivedRequest, limit: int) -> list[_FormPart]:
    """The parts of the form. Raises `RequestRejected`."""
    content_type = received.headers.get("content-type", "")
    body = (
        gunzip(received.body, limit)
        if received.headers.get("content-encoding", "").lower() == "gzip"
        else received.body
    )
    message = BytesParser().parsebytes(
        b"Content-Type: " + content_type.encode(errors="replace") + b"\r\n\r\n" + body
    )
    if message.get_content_type() != "multipart/form-data" or not message.is_multipart():
        raise RequestRejected(400, "the body is not a form of several parts")
    parts = [_part(part) for part in message.get_payload() if isinstance(part, Message)]
    names = [part.name for part in parts]
    if not names or names[0] != EVENT:
        raise RequestRejected(400, "the first part is not the event")
    if len(set(names)) != len(names):
        raise RequestRejected(400, "a part is there twice")
    return parts


def _part(part: Message) -> _FormPart:
    name = part.get_param("name", header="content-disposition")
    payload = part.get_payload(decode=True)
    return _FormPart(
        name=name if isinstance(name, str) else "unknown",
        content=payload if isinstance(payload, bytes) else b"",
        content_type=part.get("content-type"),
        content_encoding=part.get("content-encoding"),
    )


def _envelope(received: ReceivedRequest, parts: Sequence[_FormPart]) -> EventEnvelope:
    """The event in the classic shape, with the key that the header
    names. Raises `RequestRejected`.
    """
    scheme, _, token = received.headers.get("authorization", "").partition(" ")
    api_key = check_token(token.strip() if scheme.lower() == "bearer" else None)
    event = parts[0].text()
    properties = next((part.text() for part in parts if part.name == PROPERTIES), None)
    if properties is not None:
        if "properties" in read_object(event):
            raise RequestRejected(400, "the event has properties twice", api_key=api_key)
        event = f'{event[:-1]}{"," if read_object(event) else ""}"properties":{properties}}}'
    envelope = read_envelope(event)
    envelope.token = api_key
    return envelope


def _describe(part: _FormPart) -> dict[str, object]:
    described = {"content-type": part.content_type, "content-encoding": part.content_encoding}
    return {"name": part.name, "length": len(part.content), **described}
