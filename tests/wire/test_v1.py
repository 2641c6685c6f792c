"""The body of a v1 request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forwarder.core.errors import InvalidRequest, InvalidToken, RequestTooLarge
from forwarder.core.ports import Reason, V1Head
from forwarder.wire.v1 import MAX_EVENTS, V1Request, read_v1

GOOD = '{"event":"e","uuid":"u-1","distinct_id":"d","timestamp":"2026-01-01T00:00:00Z","options":{},"properties":{"a":1}}'


def read(text: str, max_events: int = 1000, sdk_info: bytes = b"", request_timestamp: bytes = b"") -> V1Request:
    """The request of a text, with a good key."""
    return read_v1(text.encode(), V1Head(b"Bearer phc_a", sdk_info, request_timestamp), max_events)


def batch(*events: str, more: str = "") -> str:
    """A body."""
    return f'{{"created_at":"2026-01-01T00:00:00Z",{more}"batch":[{",".join(events)}]}}'


def told(request: V1Request) -> dict[str, Any]:
    """The results so far."""
    found: dict[str, Any] = json.loads(request.results.body())["results"]
    return found


def test_envelope() -> None:
    """Key and time are the head's; whether it is historical is said in the body."""
    request = read(batch(GOOD), request_timestamp=b"1970-01-01T00:01:00Z", sdk_info=b"a/1")
    assert (request.token, request.historical, request.sent_at, list(request.kept)) == ("phc_a", False, 60.0, [0])
    (event,) = json.loads(bytes(request.events))
    assert event["properties"] == {"a": 1, "$lib": "a", "$lib_version": "1"}
    assert read(batch(GOOD, more='"historical_migration":true,')).historical
    assert read(batch()).events == b"[]"


@pytest.mark.parametrize(
    "text", ["[]", "5", '"x"', "{", "", "{}", '{"batch":null}', '{"batch":{}}', '{"batch":[}', '{"batch":[1,]}', f"[{GOOD}]", GOOD]
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


def test_keys_are_looked_at_first() -> None:
    """Without a good key nothing is read."""
    with pytest.raises(InvalidToken):
        read_v1(b"\xff", V1Head(b""), 10)


def test_too_many_events() -> None:
    """More than could ever be held are refused before anything is made of one."""
    with pytest.raises(RequestTooLarge):
        read(batch(*["{}"] * 11), max_events=10)
    with pytest.raises(RequestTooLarge, match="at most 50000"):
        read(batch(*["5"] * (MAX_EVENTS + 1)), max_events=10 * MAX_EVENTS)


def test_each_event_is_judged_by_itself() -> None:
    """Those that can't be events, or no text, stand aside; the others keep their places."""
    request = read(batch(GOOD, "5", '{"uuid":"u-2","options":7}', '{"uuid":"u-3","event":"\\ud800"}', GOOD.replace("u-1", "u-4")))
    assert list(request.kept) == [0, 4]
    assert [json.loads(bytes(request.events))[at]["uuid"] for at in range(2)] == ["u-1", "u-4"]
    assert request.refused == [
        (Reason.INVALID_EVENT, b"5", "malformed_event"),
        (Reason.INVALID_EVENT, b'{"uuid":"u-2","options":7}', "invalid_options"),
        (Reason.LONE_SURROGATE, b'{"event":"\\ud800","uuid":"u-3","properties":{}}', "lone_surrogate"),
    ]
    assert told(request) == {
        "u-1": {"result": "ok"},
        "u-2": {"result": "drop", "details": "invalid_options"},
        "u-3": {"result": "drop", "details": "lone_surrogate"},
        "u-4": {"result": "ok"},
    }


def test_numbers_that_are_none() -> None:
    """NaN and Infinity become null, and exactly the events that had some are said to have had them."""
    with_nan = GOOD.replace("u-1", "u-2").replace('"a":1', '"a":NaN,"b":"NaN"')
    with_infinity = GOOD.replace("u-1", "u-3").replace('"a":1', '"a":[-Infinity,Infinity]')
    request = read(batch(GOOD, with_nan, with_infinity, GOOD.replace("u-1", "u-4")))
    assert request.nulled == 3
    assert [each["properties"]["a"] for each in json.loads(bytes(request.events))] == [1, None, [None, None], 1]
    warning = {"result": "warning", "details": "non_finite_numbers_nulled"}
    assert told(request) == {"u-1": {"result": "ok"}, "u-2": warning, "u-3": warning, "u-4": {"result": "ok"}}


def test_ids_that_are_cut() -> None:
    """The sender is told of an id that is too long to be kept whole."""
    request = read(batch(GOOD.replace('"d"', f'"{"d" * 201}"')))
    assert told(request) == {"u-1": {"result": "warning", "details": "distinct_id_cut"}}
