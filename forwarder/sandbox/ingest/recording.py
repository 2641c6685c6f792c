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
    """How the sandbox answers: which keys exist, as the real service or by the contract, and below how many bytes a body must stay."""

    keys: ProjectKeys
    strict: bool
    max_body: int
    max_replay: int = 64_000_001
    """The same for parts of a session's replay: those of 64 MB are accepted."""


def request_record(received: ReceivedRequest, now: datetime) -> RequestRecord:
    """A request that was received at `now`, without an answer yet."""
    headers = {name: "hidden" if name in HIDDEN_HEADERS else value for name, value in received.headers.items()}
    size = len(received.body)
    return RequestRecord(
        format_time(now), received.full_path, received.query, headers, status=0, answer="", size=size, method=received.method
    )


def decode_body(received: ReceivedRequest, rules: IngestPolicy, record: RequestRecord) -> DecodedBody:
    """The text of a request; its record says how it was encoded. Raises `RequestRejected`."""
    decoded = decode(received, rules.max_body)
    record.encoding = decoded.encoding
    return decoded


def record_response(store: Store, record: RequestRecord, answer: ServiceResponse, api_key: str | None) -> ServiceResponse:
    """Keep a request with its answer, and return that."""
    record.status, record.answer, record.error, record.api_key = answer.status, answer.body, answer.error, api_key
    store.add(record)
    return answer


def record_rejection(store: Store, record: RequestRecord, refusal: RequestRejected) -> ServiceResponse:
    """Keep a request that is refused, and return the answer that says so."""
    return record_response(store, record, rejection_response(refusal), refusal.api_key)
