"""Export requests become plain records: the same in both encodings, whatever is in them, and in
bounded work.
"""

from __future__ import annotations

import base64
import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from forwarder.core.errors import InvalidRequest, RequestTooLarge, UnsupportedMedia
from forwarder.core.ports import Incoming
from forwarder.wire.effort import INLINE, TooMuchWork
from forwarder.wire.otlp import (
    MAX_DEPTH,
    decode_otlp_body,
    export_response,
    read_logs,
    status_message,
)
from tests.support.cases import cases
from tests.support.otlp import AT, JSON, PROTOBUF, SECOND, export, in_json, in_protobuf, record
from tests.support.whole import gzipped

BOTH = pytest.mark.parametrize("protobuf", [False, True], ids=["json", "protobuf"])
NOTHING: dict[str, Any] = {"name": None, "version": None, "attributes": {}}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
integers = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.none() | st.booleans() | integers | st.floats() | texts | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
attributes = st.lists(st.tuples(texts, values), max_size=4)
records = st.fixed_dictionaries(
    {},
    optional={
        "time_unix_nano": st.integers(0, 2**64 - 1),
        "observed_time_unix_nano": st.integers(0, 2**64 - 1),
        "severity_number": st.integers(-(2**31), 2**31 - 1),
        "severity_text": texts,
        "body": values,
        "attributes": attributes,
        "flags": st.integers(0, 2**32 - 1),
        "trace_id": st.binary(max_size=16),
        "span_id": st.binary(max_size=8),
        "event_name": texts,
    },
)
scopes = st.none() | st.fixed_dictionaries(
    {}, optional={"name": texts, "version": texts, "attributes": attributes}
)


def read(body: bytes, *, protobuf: bool) -> list[dict[str, Any]]:
    """The records of a body."""
    return [json.loads(log_record.data) for log_record in read_logs(body, protobuf=protobuf)]


def plain(value: Any) -> Any:
    """A value as the document describes it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return value


@BOTH
def test_a_whole_record(protobuf: bool) -> None:
    """Every member is there under its name, values are plain, and ids are hexadecimal digits."""
    whole = record(
        {"a": [1, {"b": None}], "c": b"\xff\x00", "d": 1.5, "e": True},
        time_unix_nano=AT + 123_456_789,
        observed_time_unix_nano=AT + SECOND,
        severity_number=9,
        severity_text="Info",
        attributes={"user": "ann", "big": 2**63 - 1, "nan": math.nan, "list": ["x", 1]},
        flags=1,
        trace_id=bytes(range(16)),
        span_id=bytes(range(8)),
    )
    scope = {"name": "app.log", "version": "1.2", "attributes": {"s": 1}}
    (log_record,) = read(
        export(whole, protobuf=protobuf, resource={"service.name": "shop", "pid": 7}, scope=scope),
        protobuf=protobuf,
    )
    assert log_record == {
        "time": "2026-01-01T00:00:00.123456789Z",
        "observed_time": "2026-01-01T00:00:01.000Z",
        "severity": "Info",
        "severity_number": 9,
        "body": {"a": [1, {"b": None}], "c": "/wA=", "d": 1.5, "e": True},
        "attributes": {"user": "ann", "big": 2**63 - 1, "nan": None, "list": ["x", 1]},
        "resource": {"service.name": "shop", "pid": 7},
        "scope": scope,
        "trace_id": "000102030405060708090a0b0c0d0e0f",
        "span_id": "0001020304050607",
        "event_name": "clicked",
        "flags": 1,
    }


@BOTH
def test_an_empty_record_has_the_same_members(protobuf: bool) -> None:
    """What is unset is null; what holds members is empty."""
    (log_record,) = read(export({}, protobuf=protobuf, resource={}), protobuf=protobuf)
    assert log_record == {
        **dict.fromkeys(
            (
                "time",
                "observed_time",
                "severity",
                "severity_number",
                "body",
                "trace_id",
                "span_id",
                "event_name",
            )
        ),
        "attributes": {},
        "resource": {},
        "scope": NOTHING,
        "flags": 0,
    }


@settings(max_examples=150)
@given(attributes, scopes, st.lists(records, max_size=3))
def test_both_encodings_give_the_same_records(
    resource: Any, scope: Any, of_scope: list[dict[str, Any]]
) -> None:
    """Byte for byte; and values are those that were put in, the last one of a name."""
    first = list(
        read_logs(export(*of_scope, protobuf=True, resource=resource, scope=scope), protobuf=True)
    )
    second = list(
        read_logs(export(*of_scope, protobuf=False, resource=resource, scope=scope), protobuf=False)
    )
    assert first == second
    for made, original in zip(first, of_scope, strict=True):
        log_record = json.loads(made.data)
        assert log_record["body"] == plain(original.get("body"))
        assert log_record["attributes"] == {
            name: plain(value) for name, value in original.get("attributes", ())
        }
        assert log_record["resource"] == {name: plain(value) for name, value in resource}


@BOTH
@pytest.mark.parametrize(
    ("nanoseconds", "time", "at"),
    [
        (AT, "2026-01-01T00:00:00.000Z", b'"2026-01-01T00:00:00.000Z"'),
        (AT + 120_000_000, "2026-01-01T00:00:00.120Z", b'"2026-01-01T00:00:00.120Z"'),
        (AT + 1_000, "2026-01-01T00:00:00.000001Z", b'"2026-01-01T00:00:00.000001Z"'),
        (AT + 999_999_999, "2026-01-01T00:00:00.999999999Z", b'"2026-01-01T00:00:00.999999Z"'),
        (1, "1970-01-01T00:00:00.000000001Z", b'"1970-01-01T00:00:00.000Z"'),
        (2**64 - 1, "2554-07-21T23:34:33.709551615Z", b'"2554-07-21T23:34:33.709551Z"'),
        (0, None, b""),
    ],
)
def test_times(protobuf: bool, nanoseconds: int, time: str | None, at: bytes) -> None:
    """A record's time keeps its digits; an event's is cut to the microsecond. 0 stands for none."""
    (made,) = read_logs(
        export({"time_unix_nano": nanoseconds}, protobuf=protobuf), protobuf=protobuf
    )
    assert (json.loads(made.data)["time"], made.at) == (time, at)


@BOTH
def test_the_observed_time_stands_in(protobuf: bool) -> None:
    """A record without its own time has the one at which it was first seen."""
    (made,) = read_logs(
        export({"observed_time_unix_nano": AT}, protobuf=protobuf), protobuf=protobuf
    )
    assert made.at == b'"2026-01-01T00:00:00.000Z"'


@BOTH
def test_groups_stay_in_their_order(protobuf: bool) -> None:
    """Each record has the resource and the scope that it stands under."""
    groups = [
        ({"r": number}, {"name": str(number)}, [record(number), record(number + 10)])
        for number in range(3)
    ]
    log_records = read(in_protobuf(groups) if protobuf else in_json(groups), protobuf=protobuf)
    assert [
        (log_record["resource"]["r"], log_record["scope"]["name"], log_record["body"])
        for log_record in log_records
    ] == [(number, str(number), number + more) for number in range(3) for more in (0, 10)]


def test_what_json_may_write_otherwise() -> None:
    """Integers as numbers, numbers as strings, null for what is unset, other names beside, and ids
    in any case.
    """
    text = """{"resourceLogs": [
      {"resource": null, "other": {"a": [1]}, "scopeLogs": [
        {"scope": null, "schemaUrl": "u", "logRecords": [
          {"timeUnixNano": 1767225600000000000, "severityNumber": "9", "flags": 1.0,
           "traceId": "ABCD", "spanId": "not hex", "x": 1, "body": {"intValue": 1.0},
           "attributes": [
             {"key": "a", "value": {"doubleValue": "1e3"}},
             {"key": "b", "value": {"intValue": 7}},
             {"key": "c", "value": null},
             {"value": {"stringValue": "nameless"}},
             {"key": "d", "value": {"laterValue": 1}},
             {"key": "e", "value": {"arrayValue": {}}},
             {"key": "f", "value": {"kvlistValue": {"values": null}}}
           ]}
        ]},
        {}
      ]},
      {}
    ]}"""
    (log_record,) = read(text.encode(), protobuf=False)
    assert (log_record["time"], log_record["severity_number"], log_record["flags"]) == (
        "2026-01-01T00:00:00.000Z",
        9,
        1,
    )
    assert (log_record["trace_id"], log_record["span_id"], log_record["body"]) == (
        "abcd",
        "not hex",
        1,
    )
    assert log_record["attributes"] == {
        "a": 1000.0,
        "b": 7,
        "c": None,
        "": "nameless",
        "d": None,
        "e": [],
        "f": {},
    }


@cases(
    "text",
    [
        b"{}",
        b'{"resourceLogs":null}',
        b'{"resourceLogs":[]}',
        b'\xef\xbb\xbf{"resourceLogs":[{}]}',
        b'{"resourceLogs":[{"resource":{"a":NaN},"schemaUrl":"u","scopeLogs":[{"scope":{},'
        b'"logRecords":[],"schemaUrl":""}]}]}',
    ],
)
def test_json_without_records(text: bytes) -> None:
    """A request may hold nothing."""
    assert read(text, protobuf=False) == []


@cases("text", [b"", export(protobuf=True), b"\x0a\x00", b"\x0a\x02\x12\x00"])
def test_protobuf_without_records(text: bytes) -> None:
    """An empty body is an empty message."""
    assert read(text, protobuf=True) == []


@cases(
    "text",
    [
        b"\x08\x01",
        b"\x0a\x00\x08\x01",
        b"\x0a\x02\x18\x01\x12\x00",
        b"\x0a\x04\x12\x02\x20\x01",
        # `instrumentation_library_logs`, as exporters wrote until 2022
        b"\x0a\x05\xc2\x3e\x02\x12\x00",
    ],
)
def test_protobuf_with_unknown_fields_alone(text: bytes) -> None:
    """It parses, as almost anything does, but anyone who sent it meant something."""
    with pytest.raises(InvalidRequest, match="no log records, but a field"):
        read(text, protobuf=True)


def test_unknown_fields_beside_records() -> None:
    """They are ignored, as the protocol has it."""
    body = export(record("a"), protobuf=True) + b"\x98\x06\x01"
    assert len(read(body, protobuf=True)) == 1
    text = export(record("a"), protobuf=False)
    assert len(read(text[:-1] + b',"added":{"later":1}}', protobuf=False)) == 1


@cases(
    "text",
    [
        b"",
        b"x",
        b"[]",
        b"null",
        b'"a"',
        b"{",
        b'{"resourceLogs":{}}',
        b'{"resourceLogs":[null]}',
        b'{"resourceLogs":[[]]}',
        b'{"event":"x"}',
        b'{"resource_logs":[{"scope_logs":[{"log_records":[{}]}]}]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{}]}]}]}',
        b'{"resourceLogs":[{"instrumentationLibraryLogs":[{"logs":[{}]}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logs":[{}]}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":5}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":["a"]}]}]}',
        *[
            b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{%b}]}]}]}' % member
            for member in (
                b'"timeUnixNano":-1',
                b'"timeUnixNano":"18446744073709551616"',
                b'"timeUnixNano":"1_0"',
                b'"timeUnixNano":1.5',
                b'"timeUnixNano":true',
                b'"severityText":5',
                b'"severityNumber":"INFO"',
                b'"severityNumber":2147483648',
                b'"flags":-1',
                b'"body":"text"',
                b'"body":{"stringValue":5}',
                b'"body":{"boolValue":"true"}',
                b'"body":{"intValue":"9223372036854775808"}',
                b'"body":{"intValue":""}',
                b'"body":{"intValue":1e30}',
                b'"body":{"doubleValue":"x"}',
                b'"body":{"doubleValue":"1_0"}',
                b'"body":{"arrayValue":[]}',
                b'"attributes":{"a":1}',
                b'"attributes":[{"key":5}]',
                b'"traceId":5',
            )
        ],
    ],
)
def test_what_is_no_request_in_json(text: bytes) -> None:
    """It is rejected whole."""
    with pytest.raises(InvalidRequest):
        read(text, protobuf=False)


def test_text_that_is_none_in_json() -> None:
    """Half a surrogate pair, NaN and bytes that are no UTF-8 cost no record: U+FFFD and null take
    their place.
    """
    text = (
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"a\\ud800b"}},{'
        b'"body":{"doubleValue":NaN}}]}]}]}'
    )
    assert [log_record["body"] for log_record in read(text, protobuf=False)] == ["a\ufffdb", None]
    assert [
        log_record["body"] for log_record in read(text.replace(b"\\ud800", b"\xff"), protobuf=False)
    ] == [
        "a\ufffdb",
        None,
    ]


def test_text_that_is_none_in_protobuf() -> None:
    """What other programs write into a field of text isn't always text; the rest of the request is
    what it was.
    """
    body = export(
        record("a?b", severity_text="s?"),
        record("c", attributes={"n?": "v?"}),
        protobuf=True,
        scope={"name": "?"},
    )
    first, second = read(body.replace(b"?", b"\xff"), protobuf=True)
    assert (first["body"], first["severity"], first["scope"]["name"]) == (
        "a\ufffdb",
        "s\ufffd",
        "\ufffd",
    )
    assert (second["body"], second["attributes"]) == ("c", {"n\ufffd": "v\ufffd"})
    assert read(body, protobuf=True)[0]["body"] == "a?b"


@settings(max_examples=200)
@given(
    st.lists(records, min_size=1, max_size=2).map(
        lambda log_records: export(*log_records, protobuf=True)
    ),
    st.data(),
)
def test_hostile_protobuf(body: bytes, data: st.DataObject) -> None:
    """A body that was cut, or in which a byte was changed, gives records or is rejected; nothing
    else happens.
    """
    at = data.draw(st.integers(0, len(body) - 1))
    hostile = data.draw(
        st.sampled_from(
            [body[:at], body[:at] + bytes([data.draw(st.integers(0, 255))]) + body[at + 1 :]]
        )
    )
    try:
        log_records = list(read_logs(hostile, protobuf=True))
    except InvalidRequest:
        return
    assert all(isinstance(json.loads(log_record.data), dict) for log_record in log_records)


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes(body: bytes) -> None:
    """Whatever a body is, it is a request or none."""
    for protobuf in (False, True):
        with suppress(InvalidRequest):
            list(read_logs(body, protobuf=protobuf))


@BOTH
def test_what_records_repeat(protobuf: bool) -> None:
    """A resource or scope that records would repeat beyond the bound is found before the first
    record is made.
    """
    large = "x" * 1_000_000
    for shared in ({"resource": {"r": large}}, {"scope": {"name": large}}):
        few, many = (export(*[record()] * count, protobuf=protobuf, **shared) for count in (2, 68))
        assert len(list(read_logs(few, protobuf=protobuf))) == 2
        with pytest.raises(RequestTooLarge, match="repeat"):
            next(read_logs(many, protobuf=protobuf))


def nested(depth: int, *, lists: bool) -> Any:
    """A value in so many lists, or maps."""
    value: Any = "x"
    for _ in range(depth):
        value = [value] if lists else {"k": value}
    return value


@BOTH
@pytest.mark.parametrize("lists", [True, False], ids=["lists", "maps"])
def test_depth(protobuf: bool, lists: bool) -> None:
    """Values nest up to a bound, which is the same in both encodings; beyond it the request is
    rejected, however deep it goes.
    """
    deepest = nested(MAX_DEPTH, lists=lists)
    assert read(export(record(deepest), protobuf=protobuf), protobuf=protobuf)[0]["body"] == deepest
    with pytest.raises(InvalidRequest):
        read(
            export(record(nested(MAX_DEPTH + 1, lists=lists)), protobuf=protobuf), protobuf=protobuf
        )


@cases("opening", [b'{"arrayValue":{"values":[', b"[", b'{"a":'])
def test_json_of_any_depth(opening: bytes) -> None:
    """Brackets without an end are no reason to fail."""
    with pytest.raises(InvalidRequest):
        read(
            b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":%b' % (opening * 100_000),
            protobuf=False,
        )


def test_protobuf_of_any_depth() -> None:
    """The same for messages in messages."""
    value = b""
    for _ in range(2000):
        inner = b"\x0a" + length(value) + value
        value = b"\x2a" + length(inner) + inner
    for field in (b"\x2a", b"\x12", b"\x12", b"\x0a"):
        value = field + length(value) + value
    with pytest.raises(InvalidRequest):
        read(value, protobuf=True)


def length(content: bytes) -> bytes:
    """A length as protobuf has it."""
    number = len(content)
    written = b""
    while number > 0x7F:
        written += bytes([number & 0x7F | 0x80])
        number >>= 7
    return written + bytes([number])


MANY = 10_000
"""Parts of a body that are too much work for now, whatever they are."""


@cases(
    ("body", "protobuf"),
    [
        (b"\x0a\x00" * MANY, True),
        (b"\x0a" + length(b"\x12\x00" * MANY) + b"\x12\x00" * MANY, True),
        (export(record([0] * MANY), protobuf=True), True),
        (export(record(attributes=[("a", 1)] * MANY), protobuf=True), True),
        (export(*[{}] * MANY, protobuf=True), True),
        (b'{"resourceLogs":[%b]}' % b",".join([b"{}"] * MANY), False),
        (export(record([[]] * MANY), protobuf=False), False),
    ],
    ids=["resources", "scopes", "values", "attributes", "records", "resources-json", "values-json"],
)
def test_what_is_too_much_for_now(body: bytes, protobuf: bool) -> None:
    """A body of many small parts ends early; where there is time for it, it is read."""
    with pytest.raises(TooMuchWork):
        list(read_logs(body, protobuf=protobuf, effort=INLINE))
    list(read_logs(body, protobuf=protobuf))


def test_repairs_are_bounded() -> None:
    """A large text with something that isn't JSON is repaired elsewhere."""
    with pytest.raises(TooMuchWork):
        list(
            read_logs(
                b'{"resourceLogs":[NaN,"%b"]}' % (b"a" * INLINE.repaired),
                protobuf=False,
                effort=INLINE,
            )
        )


@cases("content_type", [JSON, PROTOBUF, "Application/JSON; charset=utf-8", PROTOBUF + " "])
def test_content_types(content_type: str) -> None:
    """The two of the protocol, with or without compression."""
    for body, encoding in ((b"abc", b""), (gzipped(b"abc"), b"gzip"), (b"", b"identity")):
        decoded = decode_otlp_body(
            Incoming(body, content_type=content_type.encode(), content_encoding=encoding), 100
        )
        assert decoded == (body if encoding != b"gzip" else b"abc")


@cases(
    "content_type",
    [b"", b"text/plain", b"application/protobuf", b"application/x-www-form-urlencoded"],
)
def test_other_content_types(content_type: bytes) -> None:
    """Anything else is unsupported, and so is another compression."""
    with pytest.raises(UnsupportedMedia, match="content type"):
        decode_otlp_body(Incoming(b"{}", content_type=content_type), 100)
    with pytest.raises(UnsupportedMedia, match="content encoding"):
        decode_otlp_body(
            Incoming(b"{}", content_type=JSON.encode(), content_encoding=b"snappy"), 100
        )


def test_bombs() -> None:
    """What would be too large stops there; what is broken is invalid."""
    bomb = gzipped(b"a" * 1_000_000)
    with pytest.raises(RequestTooLarge):
        decode_otlp_body(
            Incoming(bomb, content_type=PROTOBUF.encode(), content_encoding=b"gzip"), 999_999
        )
    with pytest.raises(InvalidRequest):
        decode_otlp_body(
            Incoming(bomb[:-4], content_type=PROTOBUF.encode(), content_encoding=b"gzip"), 1_000_000
        )


def test_responses() -> None:
    """As the schema has them, empty where everything was accepted."""
    assert export_response(0, "", protobuf=True) == b""
    assert export_response(0, "", protobuf=False) == b"{}"
    why = "é" * 200
    response = ExportLogsServiceResponse.FromString(export_response(300, why, protobuf=True))
    assert (
        response.partial_success.rejected_log_records,
        response.partial_success.error_message,
    ) == (300, why)
    assert json.loads(export_response(3, why, protobuf=False)) == {
        "partialSuccess": {"rejectedLogRecords": "3", "errorMessage": why}
    }


def test_statuses() -> None:
    """`google.rpc.Status`: its second field is the message."""
    assert status_message("full", protobuf=True) == b"\x12\x04full"
    assert status_message("x" * 200, protobuf=True) == b"\x12\xc8\x01" + b"x" * 200
    assert json.loads(status_message("full", protobuf=False)) == {"message": "full"}
