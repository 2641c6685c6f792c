"""`POST /i/v0/ai`: one event of a language model as a form of several parts: the event, its properties, and large values beside them.

The rules are the real service's, as its published source has them: the key is a Bearer token; the first part is `event`, a JSON object; its
properties stand in it or in a part `event.properties`, not in both; other parts `event.properties.NAME` are values of their own, each name
once. What such a part holds is counted in the answer and not kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.parser import BytesParser
from typing import Final

from forwarder.sandbox.answers import Answer, Refusal
from forwarder.sandbox.decoding import Received, gunzip
from forwarder.sandbox.judging import checked_token, judge
from forwarder.sandbox.recording import Rules, keep, keep_refusal, record_of
from forwarder.sandbox.shapes import Envelope, read_envelope, read_object
from forwarder.sandbox.store import Store

AI_PATH: Final = "/i/v0/ai"
EVENT: Final = "event"
PROPERTIES: Final = "event.properties"


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the form."""

    name: str
    content: bytes
    content_type: str | None
    content_encoding: str | None

    def text(self) -> str:
        """Its content as JSON text of an object. Raises `Refusal` (400)."""
        try:
            text = self.content.decode()
        except UnicodeDecodeError:
            raise Refusal(400, f"part {self.name} is not UTF-8") from None
        read_object(text)
        return text.strip()


def take_ai(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Take one event of a language model that was received at wall-clock second `at`."""
    now = datetime.fromtimestamp(at, UTC)
    record = record_of(received, now)
    try:
        parts = _parts(received, rules.max_body)
        record.encoding = received.headers.get("content-encoding", "plain").lower()
        judgment = judge(_envelope(received, parts), rules.keys, received.path, now, strict=rules.strict)
    except Refusal as refusal:
        return keep_refusal(store, record, refusal)
    record.events, record.unnamed = judgment.events, judgment.unnamed
    return keep(store, record, Answer(200, json.dumps({"accepted_parts": [_shown(part) for part in parts]})), judgment.api_key)


def _parts(received: Received, limit: int) -> list[_Part]:
    """The parts of the form. Raises `Refusal`."""
    content_type = received.headers.get("content-type", "")
    body = gunzip(received.body, limit) if received.headers.get("content-encoding", "").lower() == "gzip" else received.body
    message = BytesParser().parsebytes(b"Content-Type: " + content_type.encode(errors="replace") + b"\r\n\r\n" + body)
    if message.get_content_type() != "multipart/form-data" or not message.is_multipart():
        raise Refusal(400, "the body is not a form of several parts")
    parts = [_part(part) for part in message.get_payload() if isinstance(part, Message)]
    names = [part.name for part in parts]
    if not names or names[0] != EVENT:
        raise Refusal(400, "the first part is not the event")
    if len(set(names)) != len(names):
        raise Refusal(400, "a part is there twice")
    return parts


def _part(part: Message) -> _Part:
    name, payload = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
    return _Part(
        name=name if isinstance(name, str) else "unknown",
        content=payload if isinstance(payload, bytes) else b"",
        content_type=part.get("content-type"),
        content_encoding=part.get("content-encoding"),
    )


def _envelope(received: Received, parts: Sequence[_Part]) -> Envelope:
    """The event in the classic shape, with the key that the header names. Raises `Refusal`."""
    scheme, _, token = received.headers.get("authorization", "").partition(" ")
    api_key = checked_token(token.strip() if scheme.lower() == "bearer" else None)
    event = parts[0].text()
    properties = next((part.text() for part in parts if part.name == PROPERTIES), None)
    if properties is not None:
        if "properties" in read_object(event):
            raise Refusal(400, "the event has properties twice", api_key=api_key)
        event = f'{event[:-1]}{"," if read_object(event) else ""}"properties":{properties}}}'
    envelope = read_envelope(event)
    envelope.token = api_key
    return envelope


def _shown(part: _Part) -> dict[str, object]:
    described = {"content-type": part.content_type, "content-encoding": part.content_encoding}
    return {"name": part.name, "length": len(part.content), **described}
