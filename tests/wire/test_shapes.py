"""Arrays, batches and single events; every place of a token; what is garbled and what is no
request at all.
"""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.errors import ForwarderError, InvalidRequest, InvalidToken, RequestTooLarge
from forwarder.wire.shapes import Request, check_count, is_utf8, read_request, split_by_token
from tests.support.cases import cases

EVENT = {"event": "e", "distinct_id": "d"}


def read(value: Any) -> Request:
    """The request of a JSON value."""
    return read_request(json.dumps(value).encode())


def events_of(request: Request) -> Any:
    """The events of a request, read."""
    return json.loads(bytes(request.events))


@cases("space", ["", " ", "\n", "\r\n\t "])
def test_the_three_shapes(space: str) -> None:
    """An array, a batch and one event are the same array of events, whatever
    white space is around them.
    """
    for value in ([EVENT], {"api_key": "k", "batch": [EVENT]}, EVENT):
        request = read_request((space + json.dumps(value) + space).encode())
        assert events_of(request) == [EVENT]
        assert bytes(request.events)[:1] + bytes(request.events)[-1:] == b"[]"


def test_a_batch_that_is_null_is_none() -> None:
    """Then the object is one event."""
    assert events_of(read({"batch": None, **EVENT})) == [{"batch": None, **EVENT}]


@cases("key", ["token", "$token", "api_key"])
@cases("shape", [{}, {"batch": [EVENT]}, EVENT])
def test_places_of_the_token(key: str, shape: dict[str, Any]) -> None:
    """At the request's own level, under three names, in a batch and in one event."""
    assert read({**shape, key: "phc_a"}).token == "phc_a"
    assert read({key: None, **shape, "properties": {"token": "phc_p"}}).token == "phc_p"


def test_which_token_wins() -> None:
    """`token` before `$token` before `api_key` before `properties.token`; the batch level before
    its events.
    """
    event = {**EVENT, "api_key": "3", "$token": "2", "token": "1", "properties": {"token": "4"}}
    assert read(event).token == "1"
    del event["token"]
    assert read(event).token == "2"
    del event["$token"]
    assert read(event).token == "3"
    del event["api_key"]
    assert read(event).token == "4"
    assert read({"api_key": "batch", "batch": [event]}).token == "batch"


def test_events_bring_their_own_tokens() -> None:
    """Without a token of their batch, events are parted by their own, in the order of receipt and
    byte for byte.
    """
    text = b'[{"token":"a","n":1} , {"n":2.0,"properties":{"token":"b"}},{ "api_key":"a", "n":3e0}]'
    request = read_request(text)
    assert request.token is None
    assert split_by_token(request.events) == {
        "a": b'[{"token":"a","n":1},{ "api_key":"a", "n":3e0}]',
        "b": b'[{"n":2.0,"properties":{"token":"b"}}]',
    }
    assert list(split_by_token(read_request(b'{"batch":%b}' % text).events)) == ["a", "b"]


def test_one_token_for_all_events_keeps_the_array() -> None:
    """Where all events have the same, their array continues as it is."""
    text = b'[{"token":"a"} , {"$token":"a"}]'
    assert split_by_token(text) == {"a": text}
    assert split_by_token(b"[]") == {}


@cases("token", ['""', "5", "true", "[]", '{"a":1}', '"phx_secret"', '"é"', '"' + "a" * 65 + '"'])
def test_bad_tokens(token: str) -> None:
    """A token that can't be one refuses the request, whether it is the batch's or an event's."""
    with pytest.raises(InvalidToken):
        read_request(f'{{"api_key":{token},"batch":[]}}'.encode())
    with pytest.raises(InvalidToken):
        split_by_token(f'[{{"token":"good"}},{{"token":{token}}}]'.encode())


@cases(
    "events",
    [
        b"[{}]",
        b'[{"token":"a"},{"event":"x"}]',
        b'[{"properties":{"token":5}}]',
        b'[{"token":null}]',
    ],
)
def test_an_event_without_a_token(events: bytes) -> None:
    """One event without any refuses them all."""
    with pytest.raises(InvalidToken):
        split_by_token(events)


@cases(
    "events",
    [b"[5]", b'[{"token":"a"},null]', b'[{"token":"a"},"x"]', b'[{"token":1e999}]', b"[[]]"],
)
def test_events_that_are_no_objects(events: bytes) -> None:
    """They have no token: refused."""
    with pytest.raises(InvalidRequest):
        split_by_token(events)


@cases(
    "text",
    [
        b"5",
        b"null",
        b"true",
        b'"x"',
        b"",
        b" ",
        b"{",
        b"[",
        b"[1",
        b'{"a"}',
        b"nonsense",
        b"{}x",
        b"[1,]",
        b'{"a":01}',
        b"{'a':1}",
        b'["\n"]',
        b'{"batch":5}',
        b'{"batch":{}}',
        b'["\\x"]',
        b"\xff",
        b'["\xed\xa0\x80"]',
        b'["\xc0\x80"]',
        b'[{"a":"\x80"}]',
    ],
)
def test_no_requests(text: bytes) -> None:
    """Scalars, broken JSON, a batch that is no array and text that is no UTF-8 are refused."""
    with pytest.raises(InvalidRequest):
        read_request(text)


@cases("depth", [995, 2000, 100_000])
@cases("opening", [b"[", b'{"a":', b'{"batch":['])
def test_deep_nesting(depth: int, opening: bytes) -> None:
    """What is nested too deep is refused, without a crash."""
    with pytest.raises(InvalidRequest):
        read_request(opening * depth)
    closing = {b"[": b"]", b'{"a":': b"}", b'{"batch":[': b"]}"}[opening]
    with pytest.raises(InvalidRequest):
        read_request(b"[" + opening * depth + b"1" + closing * depth + b"]")


@cases(("value", "historical"), [("true", True), ("false", False), ("null", False)])
def test_historical(value: str, historical: bool) -> None:
    """Only `true` makes a request historical."""
    assert (
        read_request(
            f'{{"api_key":"k","historical_migration": {value} ,"batch":[]}}'.encode()
        ).historical
        is historical
    )


@cases("value", ['"true"', "1", "0", "[true]", "{}", '""'])
@cases("rest", ['"batch":[{"event":"a"}]', '"event":"a"'])
def test_historical_is_a_boolean(value: str, rest: str) -> None:
    """Anything else is rejected: a migration's events would continue as live ones."""
    with pytest.raises(InvalidRequest, match="historical_migration"):
        read_request(f'{{"api_key":"k","historical_migration":{value},{rest}}}'.encode())


@cases(
    ("value", "seconds"),
    [
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T03:00:00+03", 1767225600.0),
        ("2026-01-01", 1767225600.0),
        ("soon", None),
        (1767225600, None),
        (None, None),
        ("", None),
        ([], None),
        ("0001-01-01T00:00:00+14:00", -62135647200.0),
    ],
)
def test_sent_at(value: Any, seconds: float | None) -> None:
    """The sender's clock, if it is a time."""
    assert read({"api_key": "k", "sent_at": value, "batch": []}).sent_at == seconds


def test_numbers_that_are_none() -> None:
    """NaN and Infinity become null and are counted; in strings they stay."""
    request = read_request(
        b'{"api_key":"k","batch":[{"a":NaN,"b":[-Infinity,Infinity],"NaN":"NaN,Infinity"}]}'
    )
    assert events_of(request) == [{"a": None, "b": [None, None], "NaN": "NaN,Infinity"}]
    assert request.nulled == 3


LONE = rb'{"event":"e","distinct_id":"d","token":"t","x":"\ud83d"}'
PAIR = rb'{"event":"e","distinct_id":"d","token":"t","x":"\ud83d\ude00"}'


@cases(
    ("text", "clean", "garbled"),
    [
        (LONE, b"[]", [LONE]),
        (b" " + LONE + b"\n", b"[]", [LONE]),
        (b"[" + LONE + b"]", b"[]", [LONE]),
        (
            b" [ " + PAIR + b" , " + LONE + b"," + PAIR + b"] ",
            b"[" + PAIR + b"," + PAIR + b"]",
            [LONE],
        ),
        (
            b'{"api_key":"k","batch":[' + LONE + b"," + PAIR + b"," + LONE + b"]}",
            b"[" + PAIR + b"]",
            [LONE, LONE],
        ),
        (rb'{"api_key":"k","note":"\ude00","batch":[' + PAIR + b"]}", b"[" + PAIR + b"]", []),
        (PAIR, b"[" + PAIR + b"]", []),
    ],
)
def test_lone_surrogates_part_their_event_alone(
    text: bytes, clean: bytes, garbled: list[bytes]
) -> None:
    """An event with half a character is parted from the others, as it was
    sent; pairs are no reason.
    """
    request = read_request(text)
    assert bytes(request.events) == clean
    assert [original for _, original in request.garbled] == garbled
    assert all(json.loads(masked)["x"] == "\ufffd" for masked, _ in request.garbled)


@pytest.mark.parametrize("key", [rb'"api_key":"\ud800"', rb'"token":"k\udfff"'])
def test_a_garbled_token_is_none(key: bytes) -> None:
    """A token with half a character is no token."""
    with pytest.raises(InvalidToken):
        read_request(b"{" + key + b',"batch":[]}')


@pytest.mark.parametrize(
    "events",
    [
        b"[" + b",".join([b"{}"] * 1001) + b"]",
        b"[" + b",".join([b'{"a":[1,{"b":2}]}'] * 1001) + b"]",
    ],
)
def test_too_many_events_are_refused_before_they_are_parted(events: bytes) -> None:
    """One event more than the limit is refused; exactly as many pass, and so do fewer with very
    many members.
    """
    with pytest.raises(RequestTooLarge):
        check_count(events, 1000)
    check_count(events, 1001)
    check_count(b'[{"a":[' + b"1," * 5000 + b"1]}]", 1000)


def test_very_many_scalars_are_refused() -> None:
    """An array of more elements than can be held that are no events at all."""
    with pytest.raises(InvalidRequest):
        check_count(b"[" + b"0," * 1001 + b"0]", 1000)


JSONISH = st.recursive(
    st.sampled_from(
        [
            b"1",
            b"NaN",
            b'"x"',
            rb'"\ud800"',
            b"null",
            b"1e999",
            b'"k"',
            b"-0",
            b'"2026-01-01"',
            b'"\xff"',
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: b"[" + b",".join(parts) + b"]")
        | st.lists(
            st.tuples(
                st.sampled_from(
                    [
                        b"batch",
                        b"token",
                        b"api_key",
                        b"properties",
                        b"sent_at",
                        b"event",
                        b"historical_migration",
                    ]
                ),
                inner,
            ),
            max_size=4,
        ).map(lambda pairs: b"{" + b",".join(b'"%b":%b' % pair for pair in pairs) + b"}")
    ),
    max_leaves=10,
)


@given(JSONISH | st.binary(max_size=40))
def test_no_text_makes_another_error(text: bytes) -> None:
    """Whatever comes is a request or refused."""
    try:
        request = read_request(text)
        check_count(request.events, 2)
        split_by_token(request.events)
    except ForwarderError:
        return


@given(st.binary(max_size=8), st.integers(-9, 9), st.sampled_from(["x", "é", "€", "😀"]))
def test_utf8_in_pieces(odd: bytes, shift: int, filler: str) -> None:
    """Large texts are decoded piece by piece: the answer is that for the whole, wherever a
    character or something else is cut.
    """
    raw = filler.encode()
    before = b"x" * (shift % 4) + raw * ((128 * 1024 + shift) // len(raw))
    for text in (before + odd + raw * 50_000, before + raw + odd, odd + before + raw):
        try:
            text.decode()
        except UnicodeDecodeError:
            assert not is_utf8(text)
        else:
            assert is_utf8(text)


@cases("member", ["sent_at", "token", "api_key"])
def test_what_is_no_text_is_not_decoded(member: str) -> None:
    """A clock or a key that is an array of very many arrays would take fifty
    times its size as objects.
    """
    text = b'{"%b":[%b[]],"batch":[]}' % (member.encode(), b"[]," * 200_000)
    tracemalloc.start()
    try:
        read_request(text)
    except InvalidToken:
        assert member != "sent_at"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(text)
