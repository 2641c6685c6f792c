"""Project keys, and the ids of events."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from forwarder.core.errors import InvalidToken
from forwarder.wire.identity import MAX_ID_CHARACTERS, canonical_id, check_token, ids_of
from tests.support.cases import cases


@cases(
    ("event", "ids"),
    [
        ({"distinct_id": "a"}, {"a"}),
        ({"$distinct_id": "a"}, {"a"}),
        ({"properties": {"distinct_id": "a"}}, {"a"}),
        ({"distinct_id": "a", "$distinct_id": "b", "properties": {"distinct_id": "c"}}, {"a"}),
        ({"$distinct_id": "b", "properties": {"distinct_id": "c"}}, {"b"}),
        ({"distinct_id": None, "$distinct_id": "b"}, {"b"}),
        ({"distinct_id": " \t", "properties": {"distinct_id": "c"}}, {"c"}),
        ({"distinct_id": ""}, set()),
        ({"distinct_id": "\u2003"}, set()),
        ({"distinct_id": 5}, {"5"}),
        ({"distinct_id": True}, {"true"}),
        ({"distinct_id": ["a", 1]}, {'["a",1]'}),
        ({"distinct_id": "a\0b"}, {"a\ufffdb"}),
        ({"distinct_id": "😀" * 201}, {"😀" * 200}),
        ({"distinct_id": ["y" * 300]}, {'["' + "y" * 198}),
        ({"distinct_id": "a", "properties": {"alias": "b"}}, {"a", "b"}),
        (
            {"distinct_id": "a", "properties": {"$anon_distinct_id": "c", "alias": "b"}},
            {"a", "b", "c"},
        ),
        ({"distinct_id": "a", "properties": {"alias": None, "$anon_distinct_id": " "}}, {"a"}),
        ({"distinct_id": "a", "properties": {"alias": "a"}}, {"a"}),
        ({"properties": {"distinct_id": "a", "alias": 7}}, {"a", "7"}),
        ({"distinct_id": "a", "properties": [{"alias": "b"}]}, {"a"}),
        ({"distinct_id": "a", "properties": None}, {"a"}),
        ({}, set()),
    ],
)
def test_ids(event: dict[str, Any], ids: set[str]) -> None:
    """Top level beats `properties`; non-strings are JSON text; NUL is replaced, 200 characters
    count, white space is missing.
    """
    assert ids_of(json.dumps(event).encode()) == ids


@cases(
    ("value", "own", "second"),
    [
        ("17", "17", "17"),
        ("-3", "-3", "-3"),
        ("1e2", "100.0", "100"),
        ("1.50", "1.5", "1.5"),
        ("100.0", "100.0", "100"),
        ("-0", "-0.0", "0"),
        ("0.00001", "0.00001", "0.00001"),
        ("1E-7", "1e-7", "1e-7"),
        ("1e16", "1e16", "10000000000000000"),
        ("1e21", "1e21", "1e+21"),
        ("18446744073709551615", "18446744073709551615", "18446744073709552000"),
        ("18446744073709551616", "1.8446744073709552e19", "18446744073709552000"),
        ("-9223372036854775809", "-9.223372036854776e18", "-9223372036854776000"),
        ("false", "false", "false"),
        ('{"b": 1e2, "a": [null, "\\u00e9"]}', '{"a":[null,"é"],"b":100.0}', "[object Object]"),
        ('[1, [true, null], "x"]', '[1,[true,null],"x"]', "1,true,,x"),
    ],
)
def test_what_is_no_text_becomes_the_text_of_the_service(value: str, own: str, second: str) -> None:
    """The id of an event as its capture writes it, one that is merged as its ingestion does."""
    assert ids_of(b'{"distinct_id": %b}' % value.encode()) == {own}
    named = b'{"distinct_id": "a", "properties": {"%b": %b}}'
    for name in (b"alias", b"$anon_distinct_id"):
        assert ids_of(named % (name, value.encode())) == {"a", second}


def test_escapes_do_not_hide_an_id() -> None:
    """Keys and values are compared as text, not as they are spelled."""
    assert ids_of(
        b'{"\\u0064istinct_id":"\\u0061nn","properties":{"\\u0024anon_distinct_id":"\\u0078"}}'
    ) == {"ann", "x"}


@cases("event", [b"[]", b"5", b'"x"', b"{"])
def test_only_objects_have_ids(event: bytes) -> None:
    """Anything else is an error that callers know."""
    with pytest.raises(msgspec.DecodeError):
        ids_of(event)


@cases("value", [b"9" * 400, b"1e400", b"[1e400, -1e400]"])
def test_a_number_that_no_float_holds_is_no_error(value: bytes) -> None:
    """The service refuses such an event; here it has some id."""
    assert len(ids_of(b'{"distinct_id": %b, "properties": {"alias": %b}}' % (value, value))) == 2


def test_canonical_ids_are_stable() -> None:
    """Making an id canonical twice changes nothing more."""
    text = canonical_id("\0x" * 300)
    assert len(text) == MAX_ID_CHARACTERS
    assert canonical_id(text) == text


@cases("token", ["phc_abc", "x", "sTMFPsFhdP1Ssg", "a" * 64, "with space", '"quoted"', "PHX_upper"])
def test_a_token_is_an_id(token: str) -> None:
    """Any non-empty ASCII text of at most 64 bytes can be one."""
    assert check_token(token) == token


@cases("token", ["", "a" * 65, "phx_personal", "schlüssel", "phc_\0", "\ufffd"])
def test_a_token_is_refused(token: str) -> None:
    """Empty, long, personal, with a NUL or anything but ASCII: refused."""
    with pytest.raises(InvalidToken):
        check_token(token)


def test_a_refused_token_is_not_quoted() -> None:
    """It may be a secret that was sent to the wrong place."""
    with pytest.raises(InvalidToken) as caught:
        check_token("phx_topsecret")
    assert "topsecret" not in f"{caught.value.message}{caught.value.hint}"
