"""Which fields a record needs, format by format: a wrong value in any other one
doesn't reject it.
"""

from __future__ import annotations

import copy
import json
from typing import Any, Final

import pytest

from forwarder.sources.files.record_blocks import RecordBlock, SourceFile
from forwarder.sources.imports.conversion import EventFinisher, FinishedBlock, FinishPolicy
from forwarder.sources.imports.format import FormatContext
from forwarder.sources.imports.formats.amplitude import KEPT, RENAMED, _WholeRecord
from forwarder.sources.imports.formats.catalog import BY_NAME
from forwarder.sources.imports.formats.segment import (
    _CallContext,
    _LibraryContext,
    _PageContext,
    _SegmentCall,
)
from tests.support.cases import cases

WRONG: Final = {
    "list": ["x"],
    "object": {"a": 1},
    "number": 7,
    "huge number": 10**300,
    "decimal": -1.5,
    "boolean": True,
    "huge text": "x" * 100_000,
    "empty text": "",
    "null": None,
    "null in a list": [None],
}
TIME: Final = "2024-05-01T10:00:00.000Z"
PAGE: Final = dict.fromkeys(_PageContext.__struct_fields__, "p")
PARTS: Final = ("campaign", "os", "device", "screen", "app", "network", "traits")
SEGMENT: Final[dict[str, Any]] = {
    "userId": "u1",
    "anonymousId": "a1",
    "messageId": "m1",
    "timestamp": TIME,
    "originalTimestamp": TIME,
    "context": {
        "ip": "::1",
        "userAgent": "x",
        "library": {"name": "l", "version": "1"},
        "page": dict.fromkeys(_PageContext.__struct_fields__, "p"),
        **{name: {"name": "x"} for name in PARTS},
    },
    "properties": {"a": 1},
    "traits": {"plan": "x"},
    "integrations": {"All": True},
    "receivedAt": TIME,
}
CONTEXT: Final = (
    "context",
    *(
        f"context.{name}"
        for name in ("ip", "userAgent", "library", "library.name", "library.version", "page")
    ),
    *(f"context.page.{name}" for name in _PageContext.__struct_fields__),
    *(f"context.{name}" for name in (*PARTS, "timezone", "locale", "groupId", "sessionId")),
    *(f"context.{name}.name" for name in PARTS),
)
OF_SEGMENT: Final = (
    "messageId",
    "originalTimestamp",
    *CONTEXT,
    "name",
    "category",
    "integrations",
    "request_ip",
    "receivedAt",
    "version",
    "channel",
)
"""Of any call whose user has an id."""
AMPLITUDE: Final[dict[str, Any]] = {
    "event_type": "e",
    "user_id": "u1",
    "event_time": "2024-05-01 10:00:00.000000",
    "event_properties": {"a": 1},
}
RECORDS: Final[dict[str, tuple[str, dict[str, Any], tuple[str, ...], tuple[str, ...]]]] = {
    "native": (
        "native",
        {"event": "e", "distinct_id": "u1", "timestamp": TIME, "properties": {"a": 1}},
        ("event", "timestamp", "properties"),
        (
            *(
                "uuid",
                "$distinct_id",
                "properties.distinct_id",
                "offset",
                "api_key",
                "token",
                "sent_at",
                "type",
                "site_url",
            ),
            *(
                "$set",
                "$set_once",
                "$unset",
                *(
                    f"properties.{name}"
                    for name in ("$set", "$set_once", "$unset", "$groups", "$ip")
                ),
            ),
        ),
    ),
    "amplitude": (
        "amplitude",
        AMPLITUDE,
        ("event_type", "user_id", "event_time", "event_properties", "user_properties", "groups"),
        (
            "device_id",
            "client_event_time",
            "server_received_time",
            "uuid",
            "group_properties",
            "$schema",
            "data",
            *("os_name", "os_version", "device_type"),
            *RENAMED,
            *KEPT,
        ),
    ),
    "amplitude, of a device": (
        "amplitude",
        {key: value for key, value in AMPLITUDE.items() if key not in {"user_id", "event_time"}}
        | {"device_id": "d1", "server_received_time": TIME},
        ("device_id", "server_received_time"),
        ("uuid",),
    ),
    "mixpanel": (
        "mixpanel",
        {"event": "e", "properties": {"distinct_id": "u1", "time": 1_714_557_600, "a": 1}},
        ("event", "properties", "properties.distinct_id", "properties.time"),
        (
            *(
                "properties.$distinct_id_before_identity",
                "properties.$insert_id",
                "properties.$city",
                "properties.$region",
            ),
            *(
                "properties.token",
                "properties.mp_country_code",
                "properties.$geo_source",
                "properties.$mp_api_endpoint",
            ),
            *("$distinct_id", "other"),
        ),
    ),
    "mixpanel-profiles": (
        "mixpanel-profiles",
        {
            "$distinct_id": "u1",
            "$properties": {"$last_seen": "2024-05-01T10:00:00", "$email": "a@example.org"},
        },
        ("$distinct_id", "$properties", "$properties.$last_seen"),
        (
            "$properties.$city",
            "$properties.$country_code",
            "$properties.$email",
            "$properties.$geo_source",
            "other",
        ),
    ),
    "segment, track": (
        "segment",
        {**SEGMENT, "type": "track", "event": "e"},
        ("type", "event", "userId", "timestamp", "properties"),
        (*OF_SEGMENT, "anonymousId", "groupId", "previousId", "traits"),
    ),
    "segment, page": (
        "segment",
        {**SEGMENT, "type": "page"},
        ("properties",),
        (*OF_SEGMENT, "event", "anonymousId", "traits", "groupId"),
    ),
    "segment, screen": (
        "segment",
        {**SEGMENT, "type": "screen"},
        (),
        (*OF_SEGMENT, "event", "anonymousId", "traits", "previousId"),
    ),
    "segment, identify": (
        "segment",
        {**SEGMENT, "type": "identify"},
        ("traits",),
        (*OF_SEGMENT, "event", "anonymousId", "groupId"),
    ),
    "segment, group": (
        "segment",
        {**SEGMENT, "type": "group", "groupId": "g1"},
        ("groupId", "traits"),
        (*OF_SEGMENT, "event", "anonymousId", "previousId"),
    ),
    "segment, alias": (
        "segment",
        {**SEGMENT, "type": "alias", "previousId": "p1"},
        ("previousId",),
        (*OF_SEGMENT, "event", "anonymousId", "groupId", "traits"),
    ),
    "segment, anonymous": (
        "segment",
        {
            **{key: value for key, value in SEGMENT.items() if key not in {"userId", "timestamp"}},
            "type": "track",
            "event": "e",
        },
        ("anonymousId", "originalTimestamp"),
        ("messageId",),
    ),
}
"""Of each kind of record: its format, a good one, the fields that it needs, and the others that
something is read of.
"""


def changed(record: dict[str, Any], path: str, value: Any) -> bytes:
    """The record with a value in a field; `a.b` is one level down."""
    whole: dict[str, Any] = copy.deepcopy(record)
    *outer, name = path.split(".")
    inside = whole
    for key in outer:
        inside = inside[key]
    inside[name] = value
    return json.dumps(whole).encode()


def made(name: str, record: bytes) -> FinishedBlock:
    """What a format makes of one record."""
    form = BY_NAME[name]
    sink = FinishedBlock(EventFinisher(FinishPolicy("oldest", geoip=False, job_id="j")))
    block = RecordBlock(SourceFile("f", "5eed" * 16), 0, [record], range(1, 2))
    form.make(form.options(), FormatContext()).convert_block(block, sink)
    return sink


@cases(
    ("kind", "path"),
    [
        pytest.param(kind, path, id=f"{kind}: {path}")
        for kind, (*_, optional) in RECORDS.items()
        for path in optional
    ],
)
def test_a_field_that_a_record_does_not_need_does_not_reject_it(kind: str, path: str) -> None:
    """Whatever it holds: the event has the name, the id and the time that it has without it."""
    name, record, _, _ = RECORDS[kind]
    usual = made(name, json.dumps(record).encode())
    assert usual.names
    for what, value in WRONG.items():
        sink = made(name, changed(record, path, value))
        assert [str(why) for _, why, *_ in sink.refused] + [
            str(why) for why in sink.unfinished.values()
        ] == [], what
        assert (sink.names[-1], sink.distinct_ids[-1], sink.times[-1]) == (
            usual.names[-1],
            usual.distinct_ids[-1],
            usual.times[-1],
        ), what
        json.loads(sink.data[-1])


@cases(
    ("kind", "path"),
    [
        pytest.param(kind, path, id=f"{kind}: {path}")
        for kind, (_, _, needed, _) in RECORDS.items()
        for path in needed
    ],
)
def test_a_field_that_a_record_needs_rejects_it_by_its_name(kind: str, path: str) -> None:
    """It would be lost, or someone else's event, or at another time."""
    name, record, _, _ = RECORDS[kind]
    (refused,) = made(name, changed(record, path, [["x"]])).refused
    said = {
        "timestamp": "as a time",
        "$last_seen": "as a time",
        "time": "as a time",
        "event": "isn't a string",
    }
    field = path.rpartition(".")[2]
    assert any(word in str(refused[1]) for word in (field, said.get(field, field))), str(refused[1])


def test_every_field_that_is_read_is_classified() -> None:
    """A new one has to be put into the table above."""
    named = {
        path.rpartition(".")[2]
        for *_, needed, optional in RECORDS.values()
        for path in (*needed, *optional)
    }
    read = {
        *_SegmentCall.__struct_encode_fields__,
        *_CallContext.__struct_encode_fields__,
        *_LibraryContext.__struct_encode_fields__,
    }
    # those are values of any type
    amplitude = set(_WholeRecord.__struct_encode_fields__) - {*RENAMED, *KEPT, "$insert_id"}
    assert (read | amplitude) - named == set()
