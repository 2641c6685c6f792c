"""A destination's project keys in calls that are passed through to it."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from urllib.parse import quote, unquote_to_bytes

import pytest

from forwarder.core.errors import RequestTooLarge
from forwarder.sources.http.passthrough.own_keys import LARGEST_BODY, OwnKeys
from tests.support.cases import cases

MINE = "phc_us_shop1234567"
OWN = "phc_eu_shop7654321"
keys = OwnKeys({MINE: OWN})


@cases(
    ("sent", "passed"),
    [
        (f"/array/{MINE}/config.js", f"/array/{OWN}/config.js"),
        (
            f"/flags/definitions?token={MINE}&send_cohorts",
            f"/flags/definitions?token={OWN}&send_cohorts",
        ),
        (f"/array/{MINE}x/config?a={MINE}x", f"/array/{MINE}x/config?a={MINE}x"),
        ("/flags/?v=2", "/flags/?v=2"),
    ],
)
def test_a_target(sent: str, passed: str) -> None:
    """A whole segment of the path or value of the query."""
    assert keys.in_target(sent.encode()) == passed.encode()


def test_header_lines() -> None:
    """Only what authenticates by a project key."""
    lines = [
        (b"authorization", b"Bearer " + MINE.encode()),
        (b"Authorization", b"Bearer phx_personal"),
        (b"X-Key", MINE.encode()),
    ]
    assert keys.in_lines(lines) == [(b"authorization", b"Bearer " + OWN.encode()), *lines[1:]]


SHAPES = [
    '{ "token" : "KEY", "distinct_id":"KEY","groups":{"token":"KEY"}}',
    '{"api_key":"KEY","distinct_id":"é"}',
    '{"$token":"KEY"}',
    '\n[{"event":"$snapshot","properties":{"token":"KEY","n":1e400}},{"token":"KEY"}, 5]',
    '{"api_key":"KEY","batch":[{"event":"x","properties":{"token":"KEY","$x":[]}}]}',
]
PLACES = [
    '"token" : "KEY"',
    '"api_key":"KEY"',
    '"$token":"KEY"',
    '"properties":{"token":"KEY"',
    '{"token":"KEY"}',
]


def encoded_plain(text: bytes) -> bytes:
    return text


def encoded_base64(text: bytes) -> bytes:
    return base64.b64encode(text)


def encoded_form(text: bytes) -> bytes:
    return b"data=" + quote(base64.b64encode(text), safe="").encode() + b"&ver=1.2"


def encoded_form_of_gzip(text: bytes) -> bytes:
    return encoded_form(gzip.compress(text))


def decoded(body: bytes) -> bytes:
    """What the service reads."""
    if body.startswith(b"data="):
        body = base64.b64decode(unquote_to_bytes(body[5:].partition(b"&")[0]))
    if body.startswith(b"\x1f\x8b"):
        body = gzip.decompress(body)
    return body if body.lstrip()[:1] in b"{[" else base64.b64decode(body)


@pytest.mark.parametrize("text", SHAPES)
@pytest.mark.parametrize(
    "encode",
    [encoded_plain, gzip.compress, encoded_base64, encoded_form, encoded_form_of_gzip],
    ids=["plain", "gzip", "base64", "form", "form of gzip"],
)
def test_a_body_in_each_encoding(text: str, encode: Callable[[bytes], bytes]) -> None:
    """The key changes where the service reads it, no other byte does; a body without it stays."""
    sent = text.replace("KEY", MINE).encode()
    expected = text
    for place in PLACES:
        expected = expected.replace(place, place.replace("KEY", OWN))
    if text.startswith('{ "token"'):
        expected = text.replace("KEY", OWN, 1)
    expected = expected.replace("KEY", MINE)
    assert decoded(keys.in_body(encode(sent))) == expected.encode()
    other = encode(text.replace("KEY", "phc_other").encode())
    assert keys.in_body(other) is other


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\x1f\x8bcut",
        b"data=%",
        b'{"token":"\xff"}',
        b"[" * 3000,
        json.dumps(MINE).encode(),
    ],
)
def test_an_undecodable_body_is_passed_unchanged(body: bytes) -> None:
    """The service says what is wrong with it."""
    assert keys.in_body(body) is body


def test_a_body_that_grows_too_large_is_rejected() -> None:
    """It would be lost without a word at a service that doesn't know its key."""
    with pytest.raises(RequestTooLarge):
        keys.in_body(gzip.compress(b" " * (LARGEST_BODY + 1)))
