"""What a record has to be, and what may stand in its place."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.mapping import Mapping, MappingRules, NotJson, TimestampRule, Unmappable
from forwarder.wire.repair import null_non_finite_numbers
from tests.mapping.mapped import mapping
from tests.support.cases import cases
from tests.support.spelled import VALUES, spelled_object

RULES: dict[str, Any] = {"distinct_id": ".d", "properties": {}}


@cases(
    ("record", "why"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"nope", "malformed"),
        (b'{"a":1', "truncated"),
        (b'{"a":1}{"a":2}', "trailing"),
        (b'{"a":1}\n{"a":2}', "trailing"),
        (b'{"a":NaN}', "malformed"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
        (b"\xff", "UTF-8"),
        (b"\x1f\x8b", "UTF-8"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'\xef\xbb\xbf{"a":1}', "malformed"),
        (b'{"a":' + b"[" * 900, "nested"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested"),
        (b'[{"d":1},{"d":"\xff"}]', "UTF-8"),
        (b"[1,", "truncated"),
    ],
)
def test_what_is_no_json(record: bytes, why: str) -> None:
    """It is distinguished from what the rules can't use."""
    for mapper in (
        mapping(**RULES),
        mapping(**RULES, where=".x | . == null"),
        mapping(**RULES, drop=(".x", ".a.b")),
    ):
        with pytest.raises(NotJson, match=why):
            mapper.map_record(record)


@cases("record", [b"5", b'"text"', b"null", b"true", b"[1]", b'[{"d":1},[]]'])
def test_what_is_no_object(record: bytes) -> None:
    """JSON of another kind is for the rules to refuse."""
    for mapper in (mapping(**RULES), mapping(**RULES, drop=(".x",))):
        with pytest.raises(Unmappable, match="the rules need an object"):
            mapper.map_record(record)
    with pytest.raises(Unmappable, match="the record is an array; the rules need an object"):
        mapping().map(b"[]")


def test_an_array_of_objects() -> None:
    """Each becomes an event of its own; those that `where` leaves out are left out."""
    mapper = mapping(**RULES, where=".go")
    record = b' [{"go":true,"d":"a"}, {"go":false}, {"d":"b","go":1}] '
    assert mapper.map_record(record) == (
        b'[{"event":"e","distinct_id":"a","properties":{}},{"event":"e","distinct_id":"b",'
        b'"properties":{}}]'
    )
    assert (
        mapper.map_record(b'{"go":true,"d":"a"}')
        == b'{"event":"e","distinct_id":"a","properties":{}}'
    )
    assert mapper.map_record(b'[{"go":false}]') is None
    assert mapper.map_record(b"[ ]") is None


def test_an_array_is_mapped_whole_or_not_at_all() -> None:
    """One element that can't be mapped makes the record a dead letter, with all that was in it."""
    with pytest.raises(Unmappable, match="distinct_id"):
        mapping(**RULES).map_record(b'[{"d":"a"},{"d":{}}]')


def test_repair() -> None:
    """What some producers write that isn't JSON is repaired first, if the caller has a way, in
    arrays too; the rest stays as it is.
    """

    def mend(data: bytes) -> bytes:
        return null_non_finite_numbers(data)[0]

    mapper = Mapping.compile(MappingRules(event='"e"', drop=(".x",)), "src", repair=mend)
    assert (
        mapper.map_record(b'{"a":NaN,"b":"NaN"}')
        == b'{"event":"e","properties":{"a":null,"b":"NaN"}}'
    )
    assert mapper.map_record(b'[{"a":-Infinity}]') == b'[{"event":"e","properties":{"a":null}}]'
    for record in (b'{"a":NaN', b"nope"):
        with pytest.raises(NotJson):
            mapper.map_record(record)


def test_values_that_only_look_like_others() -> None:
    """Braces and quotes within strings, and members whose names hold them, mislead no one."""
    record = b'{"a\\"b":"},{","c":"[\\\\","d":"x","e":{"}":"]"}}'
    made = mapping(distinct_id=".d", drop=(".e", '.["a\\"b"]')).map(record)
    assert made == b'{"event":"e","distinct_id":"x","properties":{"c":"[\\\\","d":"x"}}'


def test_nesting_that_can_be_read_can_be_redacted() -> None:
    """Arrays around a field may be as deep as the decoder takes them, or the record is refused:
    nothing else is raised.
    """
    mapper = mapping(drop=(".a.x",))
    for depth in (10, 100, 200, 400, 800, 1600):
        record = b'{"a":' + b"[" * depth + b'{"x":1}' + b"]" * depth + b"}"
        try:
            assert b"x" not in (mapper.map(record) or b"x")
        except NotJson:
            assert depth > 100


PIECES = st.sampled_from(
    [
        b'{"a":',
        b'"d":',
        b"[",
        b"]",
        b"}",
        b",",
        b'"',
        b"\\",
        b"\\u",
        b"d800",
        b"1",
        b"e9",
        b"NaN",
        b"\xc3",
        b"\xa9",
        b" ",
        b"\0",
    ]
)
HOSTILE = st.one_of(
    st.binary(max_size=30),
    st.lists(PIECES, max_size=20).map(b"".join),
    spelled_object(VALUES).map(str.encode),
)


SOME_RULES: list[dict[str, Any]] = [
    {"drop": (".a", ".d[0]", ".uuid.a")},
    {"where": '.a | . != "x"'},
    {"properties": ". + {}"},
    {"set": ".a", "uuid": ".uuid"},
]


@pytest.mark.slow
@given(HOSTILE, st.sampled_from(SOME_RULES))
def test_nothing_else_is_ever_raised(record: bytes, rules: dict[str, Any]) -> None:
    """Whatever a record holds, it gives JSON, or nothing, or one of the two errors."""
    mapper = mapping(
        event='.event // "e"', distinct_id=".a", timestamp=TimestampRule(".timestamp"), **rules
    )
    made = None
    with contextlib.suppress(NotJson, Unmappable):
        made = mapper.map_record(record)
    # whose numbers may be out of range, as the record's may
    assert made is None or json.loads(made, parse_constant=pytest.fail)
