"""Expressions that are compiled mean what they mean in jq, and copy what they find."""

from __future__ import annotations

import json

import pytest

from forwarder.mapping import Unmappable
from tests.mapping.mapped import mapped, properties
from tests.support.cases import cases

RECORD = json.dumps(
    {
        "none": None,
        "no": False,
        "user": "u1",
        "name": "page_view",
        "deep": {"a": {"b": 2}},
        "list": [1, "two"],
        "params": [
            {"key": "page", "value": {"string_value": "/tea"}},
            {"key": "count", "value": {"int_value": "12"}},
            {"key": "zero", "value": {"int_value": 0}},
            {"key": "share", "value": {"double_value": 0.5, "int_value": None}},
            {"key": "text", "value": {"int_value": "many"}},
            {"key": "nothing", "value": {}},
            {"key": "page", "value": {"string_value": "/cake"}},
        ],
        "mixed": [{"key": "a", "value": 1}, {"key": "b", "value": {"string_value": "x"}}],
    }
)


@cases(
    "expression",
    [
        ".none // .user",
        ".no // .missing // .user",
        ".no // .none",
        ".none // false",
        ".none.name // .list[1] // .user",
        '{"page_view": "$pageview"}[.name] // .name',
        '{"other": 1}[.name] // .name',
        '{"other": 1}[.none // ""] // "none"',
        "entries(.params)",
        "entries(.params).page",
        "entries(.params).missing // .user",
        "entries(.mixed)",
        "entries(.none)",
        "[.user, .none, .deep.a, .no // .name]",
        ".user // .name.name",
    ],
)
def test_compiled_expression_is_what_jq_makes_of_it(expression: str) -> None:
    """The same expression, and one that only jq can read."""
    compiled, expected = (
        json.loads(properties(RECORD, properties={"x": spelling}))
        for spelling in (expression, f"({expression}) | .")
    )
    assert compiled == expected


def test_values_keep_their_bytes() -> None:
    """Also numbers that jq would write anew."""
    record = '{"a":null,"b":1.50e2,"p":[{"key":"n","value":{"float_value":1.10}}]}'
    assert properties(record, properties={"x": ".a // .b"}) == '{"x":1.50e2}'
    assert properties(record, properties="entries(.p)") == '{"n":1.10}'


@cases(
    ("expression", "why"),
    [
        (".none // .user.name", 'properties.x: .user is the string "u1", which has no .name'),
        (".user.name // .name", 'properties.x: .user is the string "u1", which has no .name'),
        ('{"a": 1}[.none]', "properties.x: nothing is no text, which names in an object are"),
        ("entries(.user)", 'properties.x: entries: the string "u1" is no array of keys and values'),
    ],
)
def test_what_cant_be_evaluated_names_its_rule(expression: str, why: str) -> None:
    """As for plain paths."""
    with pytest.raises(Unmappable) as caught:
        mapped(RECORD, properties={"x": expression})
    assert caught.value.message == why


def test_all_members_and_some_names() -> None:
    """Named properties take the places of members, also where they are null; a prefix leaves out
    many.
    """
    record = '{"a":1,"b":2,"x_a":3,"x_b":4,"c":{"d":5},"m":null}'
    rules = {"*": ". + .c", "a": "null", "b": ".c.d", "c": ".missing", "new": ".b", "x_*": "null"}
    assert json.loads(properties(record, properties=rules)) == {
        "b": 5,
        "d": 5,
        "m": None,
        "new": 2,
    }
    assert json.loads(mapped(record, properties={"*": "."}, set={"*": ".c"}) or "")[
        "properties"
    ] == {"$set": {"d": 5}, **json.loads(record)}


def test_a_sum_needs_objects() -> None:
    """Of numbers it is jq's."""
    assert properties('{"a":1,"b":2}', properties={"x": ".a + .b"}) == '{"x":3}'
    with pytest.raises(Unmappable, match=r"properties\.\*: the number 1 has no members"):
        mapped('{"a":1,"b":2}', properties={"*": ".a + .b"})


def test_a_natural_key_of_several_parts() -> None:
    """The same parts give the same uuid; none at all gives none."""
    first, same, other, none = (
        json.loads(mapped(record, uuid="[.a, .b]", properties={}) or "").get("uuid")
        for record in ('{"a":1,"b":"x"}', '{"b":"x","a":1}', '{"a":1}', "{}")
    )
    assert first == same != other
    assert none is None


def test_a_condition_of_several() -> None:
    """It holds for the first that is there."""
    assert mapped('{"a":null,"b":"x"}', where=".a // .b") is not None
    assert mapped('{"a":null,"b":false}', where=".a // .b") is None
