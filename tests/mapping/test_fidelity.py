"""The bytes of values that no rule touches stay what they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from tests.mapping.mapped import mapped, properties
from tests.support.spelled import SPACE, VALUES, spelled_object

RECORDS = spelled_object(VALUES)
WHITE = " \t\r\n"
ODD = (
    '{"big":123456789012345678901234567890,"exact":0.10000000000000000000001,"one":1.0,"exp":1e2,"'
    'huge":1e999,"zero":-0.0,'
    '"esc":"\\u00e9\\/\\ud83d\\ude00","dup":1,"dup":2}'
)


@given(RECORDS, SPACE, SPACE)
def test_a_whole_record_is_its_properties(record: str, before: str, after: str) -> None:
    """White space, escapes, the digits of numbers, names that come twice: all of it."""
    assert properties(before + record + after) == record


@given(VALUES, SPACE, SPACE)
def test_a_plain_value_keeps_its_bytes(value: str, before: str, after: str) -> None:
    """Wherever a field stands, its value is passed on as it is spelled."""
    text = f'{{{before}"x":[0,{{"odd name"{before}:{after}{value}{after}}}]{before}}}'
    expected = "{}" if value == "null" else f'{{"p":{value}}}'
    assert properties(text, properties={"p": '.x[1]["odd name"]'}) == expected
    whole = f'"odd name"{before}:{after}{value}{after}}}'
    added = "{" if value == "null" else f'{{"$set":{{"p":{value}}},'
    assert properties(text, properties=".x[1]", set={"p": '.x[1]["odd name"]'}) == added + whole


@given(RECORDS, VALUES, SPACE)
def test_what_is_beside_a_dropped_field_keeps_its_bytes(
    record: str, value: str, space: str
) -> None:
    """Only the field goes, and one comma with it, and the white space around that."""
    inner = record[1:-1]
    gone = f'"gone"{space}:{space}{value}'
    if not inner.strip(WHITE):
        assert properties(f"{{{space}{gone}}}", drop=(".gone",)) == "{}"
        return
    assert (
        properties(f"{{{space}{gone}{space},{inner}}}", drop=(".gone",))
        == f"{{{inner.lstrip(WHITE)}}}"
    )
    assert properties(f"{{{inner},{space}{gone}}}", drop=(".gone",)) == f"{{{inner.rstrip(WHITE)}}}"


@given(RECORDS)
def test_rules_for_fields_that_arent_there_change_nothing(record: str) -> None:
    """A record without the field is passed on whole."""
    assert properties(record, drop=(".gone", ".a.gone[].gone", ".gone[0]", ".b[].gone")) == record


@pytest.mark.parametrize("through_jq", [False, True])
def test_jq_keeps_the_digits_of_numbers_it_doesnt_compute_with(through_jq: bool) -> None:
    """What jq does to a value that it passes on: it is written anew, with all digits."""
    expected: Any = (
        ODD
        if not through_jq
        else '{"big":123456789012345678901234567890,"exact":0.10000000000000000000001,"one":1.0'
        ',"exp":1E+2,"huge":1E+999,"zero":-0.0,'
        '"esc":"é/😀","dup":2}'
    )
    assert properties(ODD, properties=". + {}" if through_jq else ".") == expected


def test_jq_computes_with_doubles() -> None:
    """A number that an expression computes has seventeen digits."""
    made = mapped(ODD, properties={"sum": ".big + 0", "same": ".big"})
    assert made == (
        '{"event":"e","properties":{"sum":123456789012345680000000000000,"same":1234567890'
        "12345678901234567890}}"
    )


def test_other_rules_may_need_jq() -> None:
    """One rule in jq doesn't take the plain ones through jq."""
    made = mapped(ODD, event='"e" + ""', where=".one == 1", distinct_id=".exact")
    assert made == f'{{"event":"e","distinct_id":"0.10000000000000000000001","properties":{ODD}}}'


def test_no_text_is_made_anew() -> None:
    """Characters beyond ASCII stay as they are, in names too."""
    record = '{"é":"ü\u2028","\U0001f600":["\x7f"]}'
    assert json.loads(properties(record, drop=(".x",))) == json.loads(record)
    assert properties(record, drop=(".x",)) == record
