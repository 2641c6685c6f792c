"""What senders write at each entrance, and what an answer says became of each event: the usual
requests in their shapes and encodings, the v1 protocol, log records of OpenTelemetry; and requests
that are rejected, with the statuses that they may get.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

import brotli  # type: ignore[import-untyped]
import zstandard
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from tests.simulation.plan import (
    KEYS,
    LEFT_OUT,
    LZ64,
    OPTIONS,
    OTLP,
    TOO_LARGE,
    V1,
    Event,
    OddAct,
    Send,
)
from tests.support.lz64 import compress
from tests.support.otlp import JSON, PROTOBUF, SECOND, export

MUCH: Final = 150_000
"""Bytes that an odd request has at most."""
CHUNK: Final = 700
"""Bytes of a chunk, where a body is sent in chunks."""

MAPPING: Final[Mapping[str, Any]] = {
    "where": '.severity != "DEBUG"',
    "event": ".event_name",
    "distinct_id": '.attributes["user.id"]',
    "uuid": ".attributes.uuid",
    "properties": ".attributes.properties",
}
"""How the daemon makes events of log records."""

DETAILS: Final[Mapping[str, str]] = {
    "no name": "missing_event_name",
    "no id": "missing_distinct_id",
    "a number for a name": "malformed_event",
    "half a character": "lone_surrogate",
    OPTIONS: "invalid_options",
    TOO_LARGE: "event_too_big",
}
"""What the answer of the v1 protocol says of an event with a flaw."""


class Wrong(Exception):
    """An answer says something else than the plan."""


# Requests


def request_of(send: Send, events: Sequence[Event]) -> bytes:
    """The whole request with these of its events."""
    body = body_of(send, events)
    headers = dict(_headers(send))
    path = _PATHS.get(send.shape, send.path)
    if send.encoding:
        named, encode = ENCODERS[send.encoding]
        headers |= named
        body = encode(body)
    if send.ack:
        headers["Forwarder-Ack"] = send.ack
    if send.chunked:
        headers["Transfer-Encoding"] = "chunked"
        body = _in_chunks(body)
    else:
        headers["Content-Length"] = str(len(body))
    return _head("POST", path, headers) + body


def _head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode("latin-1")


def _in_chunks(body: bytes) -> bytes:
    parts = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


_PATHS: Final = {V1: "/i/v1/analytics/events", **dict.fromkeys(OTLP, "/v1/logs")}
_TYPES: Final = dict(zip(OTLP, (JSON, PROTOBUF), strict=True))


def _headers(send: Send) -> Iterable[tuple[str, str]]:
    if send.shape == V1:
        yield "Authorization", f"Bearer {send.events[0].key}"
        yield "PostHog-Sdk-Info", "simulated/1.0"
    elif send.shape in OTLP:
        yield "Content-Type", _TYPES[send.shape]


def body_of(send: Send, events: Sequence[Event]) -> bytes:
    """The body with these events, before it is encoded."""
    if send.shape in OTLP:
        records = [_log_record(event) for event in events]
        return export(*records, protobuf=send.shape == OTLP[1])
    if send.shape == V1:
        texts = [_text(event, _v1_event(event)) for event in events]
        return b'{"created_at": "2025-12-31T12:00:00Z", "batch": [%b]}' % b", ".join(texts)
    texts = [_text(event, event.data) for event in events]
    if send.shape == "single":
        return texts[0]
    array = b"[%b]" % b", ".join(texts)
    if send.shape == "array":
        return array
    return b'{"api_key": "%b", "batch": %b}' % (events[0].key.encode(), array)


def record_of(event: Event) -> bytes:
    """The event as a record of a topic."""
    if event.flaw == "no JSON":
        return b'no JSON, "n": %d' % event.number
    data = event.data
    if event.flaw == "no key":
        del data["api_key"]
    return _text(event, data)


def _text(event: Event, data: dict[str, Any]) -> bytes:
    """An event with its flaw, if it has one."""
    if event.flaw == "no object":
        return b'[{"n": %d}]' % event.number
    if event.flaw == "no name":
        del data["event"]
    elif event.flaw == "no id":
        del data["distinct_id"]
    elif event.flaw == "a number for a name":
        data["event"] = 17
    elif event.flaw == "half a character":
        data["properties"]["half"] = "\ud800"
    elif event.flaw == OPTIONS:
        data["options"] = {"cookieless_mode": "perhaps"}
    return json.dumps(data).encode()


def _v1_event(event: Event) -> dict[str, Any]:
    """As the protocol wants it: some properties are members."""
    data = event.data
    properties = data["properties"]
    for name in ("$lib", "$lib_version"):
        del properties[name]
    data["session_id"] = properties.pop("$session_id")
    if "$process_person_profile" in properties:
        data["options"] = {"process_person_profile": str(event.number % 2)}
        del properties["$process_person_profile"]
    return data


def _log_record(event: Event) -> dict[str, Any]:
    data = event.data
    attributes = {"properties": data["properties"]}
    if event.flaw != "no id":
        attributes["user.id"] = data["distinct_id"]
    if event.uuid:
        attributes["uuid"] = event.uuid
    record: dict[str, Any] = {"attributes": attributes}
    if event.flaw != "no name":
        record["event_name"] = data["event"]
    if event.flaw == LEFT_OUT:
        record["severity_text"] = "DEBUG"
    if event.time:
        record["time_unix_nano"] = round(datetime.fromisoformat(event.time).timestamp()) * SECOND
    return record


def _deflated(data: bytes) -> bytes:
    return zlib.compress(data)


_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}

ENCODERS: Final[Mapping[str, tuple[Mapping[str, str], Callable[[bytes], bytes]]]] = {
    "gzip": ({"Content-Encoding": "gzip"}, lambda data: gzip.compress(data, mtime=0)),
    "gzip, unsaid": ({}, lambda data: gzip.compress(data, mtime=0)),
    "deflate": ({"Content-Encoding": "deflate"}, _deflated),
    "br": ({"Content-Encoding": "br"}, lambda data: bytes(brotli.compress(data, quality=1))),
    "zstd": (
        {"Content-Encoding": "zstd"},
        lambda data: zstandard.ZstdCompressor(level=1).compress(data),
    ),
    "base64": ({}, base64.b64encode),
    LZ64: (
        _FORM,
        lambda data: b"data=%b&compression=lz64" % quote_plus(compress(data.decode())).encode(),
    ),
    "gzip in base64": ({}, lambda data: base64.b64encode(gzip.compress(data, mtime=0))),
    "form": (_FORM, lambda data: b"data=" + quote_plus(data).encode()),
    "base64 in a form": (
        _FORM,
        lambda data: b"data=" + quote_plus(base64.b64encode(data)).encode(),
    ),
}


# Answers


def to_repeat(send: Send, events: Sequence[Event], body: bytes) -> list[Event]:
    """The events that a request answered 200 with this body has to bring again. Raises `Wrong` if
    it says of an event what isn't so.
    """
    if send.shape == V1:
        return _results(send, events, body)
    if send.shape in OTLP:
        rejected = sum(bool(event.flaw) and event.flaw != LEFT_OUT for event in events)
        said = _rejected_records(body, protobuf=send.shape == OTLP[1])
        if said != rejected:
            raise Wrong(f"{said} log records are said to be no events, wanted are {rejected}")
    return []


def _results(send: Send, events: Sequence[Event], body: bytes) -> list[Event]:
    results = json.loads(body)["results"]
    unknown = results.keys() - {event.uuid for event in events}
    if unknown:
        raise Wrong(f"there are results of {unknown}, which weren't sent")
    again = []
    for event in events:
        result = results.get(event.uuid)
        if event.uuid is None:
            continue
        if result is None:
            raise Wrong(f"there is no result of event {event.number}")
        if result["result"] == "retry":
            if send.ack != "delivered" or event.flaw:
                raise Wrong(f"event {event.number} is to come again: {result}")
            again.append(event)
        elif not _is_result_of(event, result["result"], result.get("details", "")):
            raise Wrong(f"event {event.number} has the result {result}")
    return again


def _is_result_of(event: Event, result: str, details: str) -> bool:
    if event.flaw:
        return result == "drop" and details == DETAILS[event.flaw]
    if result == "drop":  # whether that is so is seen elsewhere
        return details in ("dead_letter", "buffer_full")
    wanted = "" if event.time else "timestamp_replaced"
    return result == ("warning" if wanted else "ok") and details == wanted


def _rejected_records(body: bytes, *, protobuf: bool) -> int:
    if not protobuf:
        return int(json.loads(body).get("partialSuccess", {}).get("rejectedLogRecords", 0))
    response = ExportLogsServiceResponse.FromString(body)
    return int(response.partial_success.rejected_log_records)


# Requests that are rejected


class OddRequest(NamedTuple):
    """What is written, and what it is answered; the daemon may be too busy for it, too (503)."""

    text: bytes
    statuses: tuple[int, ...]


def odd_request(odd: OddAct, max_body: int) -> OddRequest:
    """As `ODDITIES` of the plan says."""
    return _ODD[odd.what](max_body)


_EVENT: Final = {"event": "odd", "distinct_id": "nobody"}


def _posted(body: object, path: str = "/batch/", **headers: str) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return _head("POST", path, {**names, "Content-Length": str(len(text))}) + text


def _too_long(max_body: int) -> OddRequest:
    head = _head("POST", "/batch/", {"Content-Length": str(max_body)})
    return OddRequest(head + b"[" * 2000, (413,))


def _too_long_in_chunks(max_body: int) -> OddRequest:
    """As long as that is little; else it just never ends."""
    head = _head("POST", "/batch/", {"Transfer-Encoding": "chunked"})
    chunks = _in_chunks(b" " * min(max_body, MUCH))[: -len(b"0\r\n\r\n")]
    return OddRequest(head + chunks, (413,) if max_body < MUCH else (408,))


def _bomb(max_body: int) -> OddRequest:
    """As far as that is little; else it is merely blank."""
    packed = gzip.compress(b" " * min(max_body + 1, MUCH), compresslevel=1, mtime=0)
    return OddRequest(
        _posted(packed, Content_Encoding="gzip"), (413,) if max_body < MUCH else (400,)
    )


def _keyed(**more: object) -> dict[str, object]:
    return {"api_key": KEYS[0], **more}


def _fixed(text: bytes, *statuses: int) -> Callable[[int], OddRequest]:
    return lambda _: OddRequest(text, statuses)


_ODD: Final[Mapping[str, Callable[[int], OddRequest]]] = {
    "no JSON": _fixed(_posted(b'{"batch": ['), 400),
    "empty": _fixed(_posted(b""), 400),
    "no events": _fixed(_posted(_keyed(batch=[])), 400),
    "a scalar": _fixed(_posted(17), 400),
    "a batch that is no list": _fixed(_posted(_keyed(batch={})), 400),
    "nested too deep": _fixed(_posted(b"[" * 900 + b"]" * 900), 400),
    "broken gzip": _fixed(_posted(b"\x1f\x8b\x08\0" + b"x" * 40, Content_Encoding="gzip"), 400),
    "no key": _fixed(_posted(_EVENT), 401),
    "a personal key": _fixed(_posted({**_EVENT, "api_key": "phx_personal"}), 401),
    "another acknowledgement": _fixed(_posted(_keyed(**_EVENT), Forwarder_Ack="soon"), 400),
    "too long": _too_long,
    "too long, in chunks": _too_long_in_chunks,
    "too long once unpacked": _bomb,
    "another path": _fixed(_posted(_keyed(**_EVENT), "/api/other"), 404),
    "another method": _fixed(_head("PUT", "/batch/", {"Content-Length": "0"}), 405),
    "v1 of another type": _fixed(
        _posted(
            {"batch": []},
            "/i/v1/analytics/events",
            Content_Type="text/csv",
            Authorization=f"Bearer {KEYS[0]}",
        ),
        415,
    ),
    "v1 without a key": _fixed(_posted({"batch": [_EVENT]}, "/i/v1/analytics/events"), 401),
    "logs with another key": _fixed(
        _posted(
            {"resourceLogs": []},
            "/v1/logs",
            Content_Type=JSON,
            Authorization=f"Bearer {KEYS[1]}",
        ),
        401,
    ),
    "logs that are none": _fixed(_posted({"spans": []}, "/v1/logs", Content_Type=JSON), 400),
    "two lengths": _fixed(
        b"POST /batch/ HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        400,
    ),
    "no host": _fixed(b"POST /batch/ HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 400),
    "another version": _fixed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a long target": _fixed(_head("POST", "/" + "x" * 17_000, {}), 414),
    "many headers": _fixed(_head("POST", "/e/", {f"X-{n}": "y" for n in range(120)}), 431),
    "another expectation": _fixed(
        _head("POST", "/e/", {"Expect": "the best", "Content-Length": "2"}), 417
    ),
    "garbage": _fixed(bytes(range(256)) * 3, 400),
    "a head that never ends": _fixed(b"POST /e/ HTTP/1.1\r\nHost: a\r\nX-Slow: ", 408),
    "a body that never ends": _fixed(
        _head("POST", "/e/", {"Content-Length": "500"}) + b'{"event": "odd"', 408
    ),
}
