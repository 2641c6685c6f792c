"""Log records of OpenTelemetry become events by the rules of `sources.http.otlp.mapping`
(docs/reference/otlp.md).

Each record is mapped by itself: one that the rules leave out is counted, one of which they make no
event is rejected, and becomes a dead letter with the record as the rules see it. All events of a
request are of the one configured project.

An event's time is the mapping's, else the record's. Where it has one of them its uuid is the
mapping's, else derived from the request's bytes and the record's index: an exporter that repeats a
request sends the same bytes, so it repeats the same events. Without any time the time of receipt
counts, which a repetition doesn't share, and the uuid is a new one.

It runs on the loop, and for more than a hundred records in the decoder process, which compiles the
same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from forwarder.core.errors import RequestTooLarge, UnknownKey
from forwarder.core.ports import EventResults, Incoming, OtlpHead, Reason
from forwarder.core.stamps import derived_uuid
from forwarder.intake.content import Content
from forwarder.intake.requests import MappedRequest, RequestReader, decode_keyed
from forwarder.mapping import EventParts, Mapping, MappingRules, NotJson, Unmappable, join_parts
from forwarder.rules.costs import reading_cost
from forwarder.stamping.stamp import RejectedEvent
from forwarder.stamping.stamp_event import AT_RECEIPT
from forwarder.wire.effort import Allowance, Effort, TooMuchWork
from forwarder.wire.otlp import decode_otlp_body, export_response, read_logs
from forwarder.wire.shapes import Request
from forwarder.wire.v1 import BEARER

NAME: Final = "otlp"
"""The source of the events, in the books and for natural keys of a mapping."""

KEY: Final = "sources.http.otlp"

EVENTS_PER_RECORD: Final = 12
"""Mapping a record by expressions takes as long as to rewrite so many events one by one."""


class OtlpSource(Struct, frozen=True):
    """What is configured. It is given to the decoder process as it is."""

    rules: MappingRules
    api_key: str


def encode_source(source: OtlpSource) -> bytes:
    """What is configured, for another process."""
    return msgspec.msgpack.encode(source, enc_hook=str)


class OtlpMapping:
    """The compiled rules, and the project that the events belong to."""

    def __init__(self, source: OtlpSource) -> None:
        """Raises `ConfigurationError` for a rule that can't be used."""
        self.api_key = source.api_key
        self.encoded = encode_source(source)
        self._parts_of = Mapping.compile(source.rules, NAME, f"{KEY}.mapping").parts

    def of_request(self, head: OtlpHead) -> OtlpForm:
        """How a request with this head is read."""
        return OtlpForm(self._parts_of, self.api_key, head)


@lru_cache(maxsize=2)
def restored(encoded: bytes) -> OtlpMapping:
    """The mapping of another process, as `OtlpMapping.encoded` says it."""
    return OtlpMapping(msgspec.msgpack.decode(encoded, type=OtlpSource, dec_hook=_restore))


def _restore(kind: type, value: Any) -> Any:
    return Path(value) if kind is Path else value


class ExportResults:
    """How many log records of a request were rejected."""

    retries: Final = False

    def __init__(self, rejected: Sequence[RejectedEvent], *, protobuf: bool) -> None:
        self._count = len(rejected)
        self._first = rejected[0] if rejected else None
        self._protobuf = protobuf

    def body(self) -> bytes:
        first = self._first
        if first is None:
            return export_response(0, "", protobuf=self._protobuf)
        what = (
            "1 log record is no event"
            if self._count == 1
            else f"{self._count} log records are no events, the first"
        )
        why = f"{what}: {first.reason.value}: {first.why or AT_RECEIPT[first.reason].why}"
        return export_response(self._count, why, protobuf=self._protobuf)


class OtlpForm:
    """A request of log records."""

    def __init__(
        self,
        parts_of: Callable[[bytes, float | None], EventParts | None],
        api_key: str,
        head: OtlpHead,
    ) -> None:
        self._parts_of = parts_of
        self._api_key = api_key
        self._head = head

    def key(self) -> str:
        """The configured one; a request that names another as its bearer token was meant for
        another project.
        """
        named = BEARER.fullmatch(self._head.authorization)
        if named is not None and named[1].decode("latin-1") != self._api_key:
            raise UnknownKey(f"the request's bearer token isn't the project key of {KEY}")
        return self._api_key

    def decode(self, incoming: Incoming, limit: int, effort: Effort) -> bytes:
        return decode_keyed(decode_otlp_body, incoming, limit, effort)

    def read(
        self, reader: RequestReader, text: bytes, incoming: Incoming, now: float, effort: Effort
    ) -> Content:
        return reader.read(self._mapped(text, reader.max_events, effort), incoming, now, effort)

    def _mapped(self, text: bytes, max_events: int, effort: Effort) -> Request:
        """The request with the events that the mapping makes of the log records."""
        if len(text) > effort.encoded:
            raise TooMuchWork
        request = MappedRequest(b"", self._api_key)
        digest = blake2b(text, digest_size=16).hexdigest()
        events = list[bytes]()
        size = 0
        allowance = Allowance(effort.ruled)
        for index, record in enumerate(
            read_logs(text, protobuf=self._head.protobuf, effort=effort)
        ):
            size += len(record.data)
            if index >= effort.events // EVENTS_PER_RECORD or size > effort.text:
                raise TooMuchWork
            allowance.spend(reading_cost(record.data))
            try:
                parts = self._parts_of(record.data, record.seconds)
            except (NotJson, Unmappable) as error:
                request.rejected.append(
                    RejectedEvent(Reason.UNMAPPABLE, record.data, index, error.message)
                )
                continue
            if parts is None:
                request.filtered += 1
            elif len(events) < max_events:
                events.append(_complete(parts, record.at, f"{NAME}/{digest}/{index}"))
            else:
                raise RequestTooLarge("the request has more events than an empty lane could hold")
        request.events = b"[%b]" % b",".join(events)
        return request

    def results(self, content: Content) -> EventResults:
        return ExportResults(
            [rejection for _, rejection in content.rejected], protobuf=self._head.protobuf
        )


def _complete(parts: EventParts, at: bytes, name: str) -> bytes:
    """The event with its time and uuid, as far as they don't depend on when it is received."""
    event, distinct_id, timestamp, uuid, properties = parts
    timestamp = timestamp or at
    if timestamp and not uuid:
        uuid = b'"%b"' % derived_uuid(name)
    return join_parts((event, distinct_id, timestamp, uuid, properties))
