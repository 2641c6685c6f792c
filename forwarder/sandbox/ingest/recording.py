"""The record of each request with its response, rejected ones included. The response is sent after
the commit that keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from forwarder.sandbox.ingest.decoding import ReceivedRequest, decode
from forwarder.sandbox.ingest.validation import ProjectKeys
from forwarder.sandbox.protocol.http import RequestRejected, ServiceResponse, rejection_response
from forwarder.sandbox.protocol.times import format_time
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.stored_records import RequestRecord

HIDDEN_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})


@dataclass(frozen=True, slots=True)
class IngestPolicy:
    """Which keys exist, whether to answer as the real service, and the limit of a
    body in bytes (exclusive).
    """

    keys: ProjectKeys
    strict: bool
    max_body: int
    max_replay: int = 64_000_001
    """The same for session replays: 64 MB are accepted."""
    locate: Callable[[str], Mapping[str, str]] = lambda _address: {}
    """The GeoIP properties of an address."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request on the store's thread, with what its handler uses. The handler adds the content
    of the request to `record`.
    """

    received: ReceivedRequest
    at: float
    """Wall-clock second at which it was received."""
    policy: IngestPolicy
    store: Store
    record: RequestRecord

    @property
    def now(self) -> datetime:
        """The time at which it was received."""
        return datetime.fromtimestamp(self.at, UTC)

    def decoded_text(self, limit: int) -> str:
        """The text of the body, shorter than `limit` bytes; its encoding is
        recorded. Raises `RequestRejected`.
        """
        decoded = decode(self.received, limit)
        self.record.encoding = decoded.encoding
        return decoded.text


RequestHandler: TypeAlias = Callable[[Exchange], tuple[ServiceResponse, str | None]]
"""Returns the response and the project key of the request, if it has one. Raises `RequestRejected`.
"""


def answer_request(
    handler: RequestHandler,
    received: ReceivedRequest,
    at: float,
    policy: IngestPolicy,
    store: Store,
) -> ServiceResponse:
    """Run a handler, and record the request with its response."""
    record = _new_record(received, datetime.fromtimestamp(at, UTC))
    try:
        response, api_key = handler(Exchange(received, at, policy, store, record))
    except RequestRejected as rejection:
        response = rejection_response(rejection)
        api_key = rejection.api_key
    record.status = response.status
    record.answer = response.body
    record.error = response.error
    record.api_key = api_key
    store.add(record)
    return response


def _new_record(received: ReceivedRequest, now: datetime) -> RequestRecord:
    headers = {
        name: "hidden" if name in HIDDEN_HEADERS else value
        for name, value in received.headers.items()
    }
    return RequestRecord(
        format_time(now),
        received.full_path,
        received.query,
        headers,
        0,
        "",
        size=len(received.body),
        method=received.method,
    )
