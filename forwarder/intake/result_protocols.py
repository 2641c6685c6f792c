"""Protocols whose requests name their project in the head, and whose answers say what became of
the events: v1, and OTLP (`otlp.py`).
"""

from __future__ import annotations

from typing import Protocol

from forwarder.core.ports import EventResults, Incoming, V1Head
from forwarder.intake.requests import RequestContent
from forwarder.wire.effort import Effort
from forwarder.wire.shapes import Request
from forwarder.wire.v1 import bearer_token, decode_v1_body, read_v1


class ResultProtocol(Protocol):
    """How one request of such a protocol is read."""

    def key(self) -> str:
        """Its project key. Raises `InvalidToken`."""

    def decode(self, incoming: Incoming, limit: int) -> bytes:
        """Its body, not compressed. Raises `InvalidRequest`, `UnsupportedMedia`, and
        `RequestTooLarge` over `limit` bytes.
        """

    def read(self, text: bytes, max_events: int, effort: Effort) -> Request:
        """Its events. Raises `InvalidRequest`, `RequestTooLarge` for over `max_events` events, and
        `TooMuchWork` beyond `effort`.
        """

    def results(self, content: RequestContent) -> EventResults | None:
        """What is answered if the content is accepted."""


class V1Protocol:
    """See `ResultProtocol`; docs/reference/v1.md."""

    def __init__(self, head: V1Head) -> None:
        self._head = head

    def key(self) -> str:
        """See `ResultProtocol`."""
        return bearer_token(self._head.authorization)

    def decode(self, incoming: Incoming, limit: int) -> bytes:
        """See `ResultProtocol`."""
        return decode_v1_body(incoming, limit)

    def read(self, text: bytes, max_events: int, effort: Effort) -> Request:
        """See `ResultProtocol`."""
        return read_v1(text, self._head, max_events, effort)

    def results(self, content: RequestContent) -> EventResults | None:
        """See `ResultProtocol`: those of each event."""
        return content.results
