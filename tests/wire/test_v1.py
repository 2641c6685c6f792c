"""Bodies of v1 requests: what surrounds the events, and the events in the classic shape."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from forwarder.core.errors import InvalidRequest, InvalidToken, RequestTooLarge, UnsupportedMedia
from forwarder.core.ports import Incoming, Reason, V1Head
from forwarder.wire.v1 import MAX_EVENTS, V1Request, bearer_token, decode_v1_body, read_v1, sent_at
from forwarder.wire.v1_event import MAX_SDK_INFO, library
from tests.support.cases import cases

GOOD = (
    '{"event":"e","uuid":"u-1","distinct_id":"d","timestamp":"2026-01-01T00:00:00Z","options":'
    '{},"properties":{"a":1}}'
)


def read(
    text: str, max_events: int = 1000, sdk_info: bytes = b"", request_timestamp: bytes = b""
) -> V1Request:
    """The request of a text, with a good key."""
    return read_v1(text.encode(), V1Head(b"Bearer phc_a", sdk_info, request_timestamp), max_events)


def batch(*events: str, more: str = "") -> str:
    """A body."""
    return f'{{"created_at":"2026-01-01T00:00:00Z",{more}"batch":[{",".join(events)}]}}'


def answer_of(request: V1Request) -> dict[str, Any]:
    """The results so far."""
    results: dict[str, Any] = json.loads(request.results.body())["results"]
    return results


def test_envelope() -> None:
    """Key and time are the head's; whether it is historical is said in the body."""
    request = read(batch(GOOD), request_timestamp=b"1970-01-01T00:01:00Z", sdk_info=b"a/1")
    assert (request.token, request.historical, request.sent_at, list(request.indexes)) == (
        "phc_a",
        False,
        60.0,
        [0],
    )
    (event,) = json.loads(bytes(request.events))
    assert event["properties"] == {"a": 1, "$lib": "a", "$lib_version": "1"}
    assert read(batch(GOOD, more='"historical_migration":true,')).historical
    assert read(batch()).events == b"[]"


@cases(
    "text",
    [
        "[]",
        "5",
        '"x"',
        "{",
        "",
        "{}",
        '{"batch":null}',
        '{"batch":{}}',
        '{"batch":[}',
        '{"batch":[1,]}',
        f"[{GOOD}]",
        GOOD,
    ],
)
def test_other_bodies(text: str) -> None:
    """What has no array of events in `batch` is none of this protocol, a classic body neither."""
    with pytest.raises(InvalidRequest):
        read(text)


def test_no_text() -> None:
    """Bytes that aren't UTF-8 are refused whole, and so is what is nested too deep."""
    with pytest.raises(InvalidRequest, match="UTF-8"):
        read_v1(b'{"batch":["\xff"]}', V1Head(b"Bearer phc_a"), 10)
    with pytest.raises(InvalidRequest):
        read(batch("[" * 5000 + "]" * 5000))


def test_keys_are_checked_before_events() -> None:
    """Without a good key nothing is read."""
    with pytest.raises(InvalidToken):
        read_v1(b"\xff", V1Head(b""), 10)


def test_too_many_events() -> None:
    """More than could ever be held are refused before anything is made of one."""
    with pytest.raises(RequestTooLarge):
        read(batch(*["{}"] * 11), max_events=10)
    with pytest.raises(RequestTooLarge, match="at most 50000"):
        read(batch(*["5"] * (MAX_EVENTS + 1)), max_events=10 * MAX_EVENTS)


def test_each_event_is_validated_by_itself() -> None:
    """Those that can't be events, or no text, stand aside; the others keep their places."""
    request = read(
        batch(
            GOOD,
            "5",
            '{"uuid":"u-2","options":7}',
            '{"uuid":"u-3","event":"\\ud800"}',
            GOOD.replace("u-1", "u-4"),
        )
    )
    assert list(request.indexes) == [0, 4]
    assert [json.loads(bytes(request.events))[at]["uuid"] for at in range(2)] == ["u-1", "u-4"]
    assert request.refused == [
        (Reason.INVALID_EVENT, b"5", "malformed_event"),
        (Reason.INVALID_EVENT, b'{"uuid":"u-2","options":7}', "invalid_options"),
        (
            Reason.LONE_SURROGATE,
            b'{"event":"\\ud800","uuid":"u-3","properties":{}}',
            "lone_surrogate",
        ),
    ]
    assert answer_of(request) == {
        "u-1": {"result": "ok"},
        "u-2": {"result": "drop", "details": "invalid_options"},
        "u-3": {"result": "drop", "details": "lone_surrogate"},
        "u-4": {"result": "ok"},
    }


def test_numbers_that_are_none() -> None:
    """NaN and Infinity become null, and exactly the events that had some are said to
    have had them.
    """
    with_nan = GOOD.replace("u-1", "u-2").replace('"a":1', '"a":NaN,"b":"NaN"')
    with_infinity = GOOD.replace("u-1", "u-3").replace('"a":1', '"a":[-Infinity,Infinity]')
    request = read(batch(GOOD, with_nan, with_infinity, GOOD.replace("u-1", "u-4")))
    assert request.nulled == 3
    assert [event["properties"]["a"] for event in json.loads(bytes(request.events))] == [
        1,
        None,
        [None, None],
        1,
    ]
    warning = {"result": "warning", "details": "non_finite_numbers_nulled"}
    assert answer_of(request) == {
        "u-1": {"result": "ok"},
        "u-2": warning,
        "u-3": warning,
        "u-4": {"result": "ok"},
    }


def test_ids_that_are_cut() -> None:
    """The sender learns of an id that is too long to be kept whole."""
    request = read(batch(GOOD.replace('"d"', f'"{"d" * 201}"')))
    assert answer_of(request) == {"u-1": {"result": "warning", "details": "distinct_id_cut"}}


JSON = b'{"created_at":"2026-01-01T00:00:00Z","batch":[]}'
LIMIT = 1000


@cases("value", [b"Bearer phc_a", b"bearer phc_a", b"BEARER \t phc_a ", b"Bearer   phc_a"])
def test_bearer(value: bytes) -> None:
    """The scheme in any case, white space around the key."""
    assert bearer_token(value) == "phc_a"


@cases(
    "value",
    [
        b"",
        b"phc_a",
        b"Bearer",
        b"Bearer ",
        b"Basic phc_a",
        b"Bearer a b",
        b"Bearer phc_a, Bearer phc_b",
        b"Bearerphc_a",
        b"Bearer phx_secret",
        b"Bearer " + b"x" * 65,
        "Bearer ü".encode(),
    ],
)
def test_no_key(value: bytes) -> None:
    """No header, another scheme, two keys, or one that can't be a project's; a
    personal key isn't quoted.
    """
    with pytest.raises(InvalidToken) as raised:
        bearer_token(value)
    assert "secret" not in raised.value.message.replace("stay secret", "")


def test_large_heads_are_not_remembered() -> None:
    """Neither a key nor an SDK that a sender pads with whatever fits a head stays in memory."""
    tracemalloc.start()
    try:
        for size in range(5000, 5200):
            with pytest.raises(InvalidToken):
                bearer_token(b"Bearer" + b" " * size + b"phc_a")
            assert library(b"x" * size + b"/1") is None
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


@cases(
    ("value", "expected"),
    [
        (b"posthog-python/7.1", (b'"posthog-python"', b'"7.1"')),
        (b" a/b / 1 ", (b'"a/b"', b'"1"')),
        (b'q"\\/1', (b'"q\\"\\\\"', b'"1"')),
        (b"x" * (MAX_SDK_INFO - 2) + b"/1", (b'"%b"' % (b"x" * (MAX_SDK_INFO - 2)), b'"1"')),
        (b"", None),
        (b"posthog", None),
        (b"/1", None),
        (b"a/", None),
        (b" / ", None),
        ("ü/1".encode(), None),
        (b"x" * MAX_SDK_INFO + b"/1", None),
    ],
)
def test_library(value: bytes, expected: tuple[bytes, bytes] | None) -> None:
    """Name and version are parted at the last slash; what isn't both, or is too long,
    is ignored.
    """
    assert library(value) == expected


@cases(
    ("value", "expected"),
    [
        (b"1970-01-01T00:01:00Z", 60.0),
        (b"1970-01-01T02:01:00.500+02:00", 60.5),
        (b"", None),
        (b"yesterday", None),
        (b"\xff", None),
    ],
)
def test_sent_at(value: bytes, expected: float | None) -> None:
    """The sender's clock, if it can be read."""
    assert sent_at(value) == expected


@cases(
    ("body", "encoding"),
    [
        (JSON, b""),
        (JSON, b"identity"),
        (JSON, b"gzip"),
        (b"\xef\xbb\xbf" + JSON, b""),
        (gzip.compress(JSON, mtime=0), b"gzip"),
        (gzip.compress(JSON, mtime=0), b" GZIP "),
        (gzip.compress(JSON, mtime=0), b""),
        (gzip.compress(JSON, mtime=0), b"deflate"),
        (zlib.compress(JSON), b"deflate"),
        (zlib.compress(JSON, wbits=-15), b"deflate"),
        (zstandard.compress(JSON), b"zstd"),
        (zstandard.compress(JSON), b""),
        (brotli.compress(JSON), b"br"),
    ],
)
def test_bodies(body: bytes, encoding: bytes) -> None:
    """Each encoding of the protocol by its header, and where the bytes tell it, without one."""
    assert (
        decode_v1_body(
            Incoming(
                body, content_encoding=encoding, content_type=b"Application/JSON; charset=utf-8"
            ),
            LIMIT,
        )
        == JSON
    )


@cases(
    ("field", "value"),
    [
        ("content_encoding", b"lz4"),
        ("content_encoding", b"gzip, br"),
        ("content_type", b"text/plain"),
    ],
)
def test_media_of_others(field: str, value: bytes) -> None:
    """A compression or type that the protocol doesn't have is said to be so."""
    incoming = Incoming(JSON, content_type=b"application/json")
    setattr(incoming, field, value)
    with pytest.raises(UnsupportedMedia):
        decode_v1_body(incoming, LIMIT)


@cases("body", [b"", b" \n", b"\xef\xbb\xbf"])
def test_empty_bodies(body: bytes) -> None:
    """Nothing is no request."""
    with pytest.raises(InvalidRequest, match="empty"):
        decode_v1_body(Incoming(body), LIMIT)


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [(gzip.compress(b" " * 5000, mtime=0), b"gzip"), (brotli.compress(b" " * 5000), b"br")],
)
def test_too_much(packed: bytes, encoding: bytes) -> None:
    """The limit holds for what is decompressed."""
    with pytest.raises(RequestTooLarge):
        decode_v1_body(Incoming(packed, content_encoding=encoding), LIMIT)
