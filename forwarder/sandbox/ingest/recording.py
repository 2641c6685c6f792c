"""The record of each request with its response, rejected ones included. The response is sent after the commit that keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from forwarder.sandbox.http import RequestRejected, ServiceResponse, rejection_response
from forwarder.sandbox.ingest.decoding import DecodedBody, ReceivedRequest, decode
from forwarder.sandbox.ingest.validation import ProjectKeys
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.records import RequestRecord
from forwarder.sandbox.times import format_time

HIDDEN_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})


@dataclass(frozen=True, slots=True)
class IngestPolicy:
    """Which keys exist, whether to answer as the real service, and the limit of a body in bytes (exclusive)."""

    keys: ProjectKeys
    strict: bool
    max_body: int
    max_replay: int = 64_000_001
    """The same for session replays: 64 MB are accepted."""


def request_record(received: ReceivedRequest, now: datetime) -> RequestRecord:
    """The record of a request that was received at `now`, without its response."""
    headers = {name: "hidden" if name in HIDDEN_HEADERS else value for name, value in received.headers.items()}
    size = len(received.body)
    return RequestRecord(
        format_time(now), received.full_path, received.query, headers, status=0, answer="", size=size, method=received.method
    )


def decode_body(received: ReceivedRequest, policy: IngestPolicy, record: RequestRecord) -> DecodedBody:
    """The text of a request; its encoding is recorded. Raises `RequestRejected`."""
    decoded = decode(received, policy.max_body)
    record.encoding = decoded.encoding
    return decoded


def record_response(store: Store, record: RequestRecord, answer: ServiceResponse, api_key: str | None) -> ServiceResponse:
    """Record a request with its response, and return the response."""
    record.status, record.answer, record.error, record.api_key = answer.status, answer.body, answer.error, api_key
    store.add(record)
    return answer


def record_rejection(store: Store, record: RequestRecord, rejection: RequestRejected) -> ServiceResponse:
    """Record a rejected request, and return its response."""
    return record_response(store, record, rejection_response(rejection), rejection.api_key)
