"""Values are found by their place, and only what is edited changes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import Raw

from forwarder.wire.splice import Edits, Locator
from tests.support.cases import cases

SPACE = st.text(alphabet=" \t\r\n", max_size=70).map(str.encode)
KEYS = ["a", "offset", "c", 'quo"te', "col:on", "brace}"]


def members_of(text: bytes) -> dict[str, Raw]:
    """The members of an object, as they stand in it."""
    return msgspec.json.decode(text, type=dict[str, Raw])


def test_equal_bytes_are_distinguished() -> None:
    """A value's place is where it was decoded, even where the same bytes stand elsewhere too."""
    text = b'{"a":"x","b":{"b":"x"},"c":"x"}'
    assert Locator(text).span(members_of(text)["c"]) == (27, 30)


def test_a_value_of_another_text_is_refused() -> None:
    """A copy has no place here."""
    text = b'{"a":[1,2,3]}'
    with pytest.raises(ValueError, match="another text"):
        Locator(text).offset(Raw(b"[1,2,3]"))


def test_a_raw_is_a_text_too() -> None:
    """Places can be found within a value that is itself a view."""
    outer = members_of(b'{"zzz":  {"a": 5} }')["zzz"]
    inner = msgspec.json.decode(outer, type=dict[str, Raw])["a"]
    assert Locator(outer).span(inner) == (6, 7)


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, str]:
    """An object with odd spacing, and one of its keys."""
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, min_size=1))
    pieces = [
        draw(SPACE)
        + json.dumps(key).encode()
        + draw(SPACE)
        + b":"
        + draw(SPACE)
        + json.dumps(draw(VALUE)).encode()
        + draw(SPACE)
        for key in keys
    ]
    return b"{" + b",".join(pieces) + b"}", draw(
        st.sampled_from([key for key in keys if '"' not in key] or keys)
    )


VALUE: st.SearchStrategy[Any] = st.sampled_from(
    [1, -0.5, "", '","offset":1', "}", {}, {"offset": [1, {}]}, [], None, "é\\"]
)


@given(objects())
def test_removing_a_member_leaves_the_others(case: tuple[bytes, str]) -> None:
    """First, middle, last or only one: key, value and one comma go, and the
    rest is valid and in order.
    """
    text, key = case
    assume('"' not in key)
    members = members_of(text)
    edits = Edits(text)
    edits.remove_member(Locator(text).span(members[key]))
    left = json.loads(edits.made(), object_pairs_hook=list)
    assert left == [pair for pair in json.loads(text, object_pairs_hook=list) if pair[0] != key]


@given(objects(), st.booleans())
def test_edits_together(case: tuple[bytes, str], remove: bool) -> None:
    """Inserting at the beginning, replacing every other value and removing one work together."""
    text, key = case
    assume('"' not in key)
    locator = Locator(text)
    edits = Edits(text)
    for member, raw in members_of(text).items():
        if member == key and remove:
            edits.remove_member(locator.span(raw))
        elif member != key:
            edits.replace(locator.span(raw), b'"new"')
    edits.insert_members(0, b'"first":1,"second":2')
    left = [
        pair for pair in json.loads(text, object_pairs_hook=list) if not (remove and pair[0] == key)
    ]
    expected = [
        ["first", 1],
        ["second", 2],
        *[[name, old if name == key else "new"] for name, old in left],
    ]
    assume(left)  # an event always keeps its name
    pairs = json.loads(edits.made(), object_pairs_hook=list)
    assert [list(pair) for pair in pairs] == expected


@pytest.mark.slow
def test_a_key_spelled_with_escapes_is_removed() -> None:
    """The whole key goes, whatever its spelling."""
    text = b'{"a":1,"\\u006fffset" : 5 ,"b":2}'
    edits = Edits(text)
    edits.remove_member(Locator(text).span(members_of(text)["offset"]))
    assert edits.made() == b'{"a":1,"b":2}'


@cases("space", [b"", b" ", b"\n" * 200])
def test_an_empty_object_gains_no_comma(space: bytes) -> None:
    """However much white space is in it."""
    edits = Edits(b"{" + space + b"}")
    edits.insert_members(0, b'"a":1')
    assert json.loads(edits.made()) == {"a": 1}
