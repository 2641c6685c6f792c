"""Whose event it is, wherever the id stands and whatever its type."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from forwarder.wire.identity import MAX_ID_CHARACTERS, canonical_id, ids_of


@pytest.mark.parametrize(
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
        ({"distinct_id": ["a", 1]}, {'["a", 1]'}),
        ({"distinct_id": "a\0b"}, {"a\ufffdb"}),
        ({"distinct_id": "😀" * 201}, {"😀" * 200}),
        ({"distinct_id": ["y" * 300]}, {'["' + "y" * 198}),
        ({"distinct_id": "a", "properties": {"alias": "b"}}, {"a", "b"}),
        ({"distinct_id": "a", "properties": {"$anon_distinct_id": "c", "alias": "b"}}, {"a", "b", "c"}),
        ({"distinct_id": "a", "properties": {"alias": None, "$anon_distinct_id": " "}}, {"a"}),
        ({"distinct_id": "a", "properties": {"alias": "a"}}, {"a"}),
        ({"properties": {"distinct_id": "a", "alias": 7}}, {"a", "7"}),
        ({"distinct_id": "a", "properties": [{"alias": "b"}]}, {"a"}),
        ({"distinct_id": "a", "properties": None}, {"a"}),
        ({}, set()),
    ],
)
def test_ids(event: dict[str, Any], ids: set[str]) -> None:
    """Top level beats `properties`; non-strings are JSON text; NUL is replaced, 200 characters count, white space is missing."""
    assert ids_of(json.dumps(event).encode()) == ids


def test_escapes_do_not_hide_an_id() -> None:
    """Keys and values are compared as text, not as they are spelled."""
    assert ids_of(b'{"\\u0064istinct_id":"\\u0061nn","properties":{"\\u0024anon_distinct_id":"\\u0078"}}') == {"ann", "x"}


@pytest.mark.parametrize("event", [b"[]", b"5", b'"x"', b"{"])
def test_only_objects_have_ids(event: bytes) -> None:
    """Anything else is an error that callers know."""
    with pytest.raises(msgspec.DecodeError):
        ids_of(event)


def test_canonical_ids_are_stable() -> None:
    """Making an id canonical twice changes nothing more."""
    text = canonical_id("\0x" * 300)
    assert len(text) == MAX_ID_CHARACTERS
    assert canonical_id(text) == text
