"""What each rule makes of a record: the golden table, to the byte."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid5

import pytest

from forwarder.mapping import TimestampRule, Unmappable
from forwarder.mapping.mapping import NATURAL_KEYS
from tests.mapping.mapped import mapped, mapping, properties
from tests.support.cases import cases

ID = "0190a0a0-1111-7222-8333-444455556666"
RECORD = """{"type":"paid","user":{"id":42,"plan":"pro"},"odd name":{"x \
y":1.0},"items":[{"sku":"a"},{"sku":"b"}],
 "on":true,"off":false,"nil":null,"big":123456789012345678901234567890.10, "esc":"\\u00e9\\/"}"""


def member(name: str, value: str | None) -> str:
    """The event with one member beside its name."""
    return (
        '{"event":"e",' + (f'"{name}":{value},' if value is not None else "") + '"properties":{}}'
    )


@cases(
    ("expression", "name"),
    [
        (".type", '"paid"'),
        (' ."type" ', '"paid"'),
        ('"signed up"', '"signed up"'),
        (r'"\u0073igned"', r'"\u0073igned"'),
        (".esc", r'"\u00e9\/"'),
        (".items[1].sku", '"b"'),
        ('.["odd name"] | tojson', r'"{\"x y\":1.0}"'),
        ('.type + " " + .user.plan', '"paid pro"'),
        ('"\\(.type)!"', '"paid!"'),
        ('.missing // "none" # a comment \\', '"none"'),
    ],
)
def test_event(expression: str, name: str) -> None:
    """The event's name is a fixed text, a field as it is spelled, or what jq makes."""
    assert (
        mapped(RECORD, event=expression, properties={}) == f'{{"event":{name},"properties":{{}}}}'
    )


@cases(
    ("expression", "expected"),
    [
        (".user.plan", '"pro"'),
        (".esc", r'"\u00e9\/"'),
        (".user.id", '"42"'),
        (".user.id | . + 1", '"43"'),
        (".big", '"123456789012345678901234567890.10"'),
        ('.["odd name"]["x y"]', '"1.0"'),
        (".missing", None),
        (".nil", None),
        (".nil.below[3].that", None),
        (".items[2]", None),
        (".items[7]", None),
        ("null", None),
        ('""', None),
        (r'" \t\u2003"', None),
    ],
)
def test_distinct_id(expression: str, expected: str | None) -> None:
    """A string stays as it is spelled, a number becomes the string of its text; what says nothing
    is left out.
    """
    assert mapped(RECORD, distinct_id=expression, properties={}) == member("distinct_id", expected)


@cases(
    ("expression", "expected"),
    [
        (f'"{ID}"', ID),
        (f'"{ID.upper()}"', ID.upper()),
        (f'"{ID.replace("-", "")}"', ID.replace("-", "")),
        (f'" {ID} "', ID),
        ('"order-7"', str(uuid5(NATURAL_KEYS, "src/order-7"))),
        (r'"order\u002d7"', str(uuid5(NATURAL_KEYS, "src/order-7"))),
        (".user.id", str(uuid5(NATURAL_KEYS, "src/42"))),
        ('"é"', str(uuid5(NATURAL_KEYS, "src/é"))),
        (f'"{ID}0"', str(uuid5(NATURAL_KEYS, f"src/{ID}0"))),
        (".missing", None),
        ('""', None),
    ],
)
def test_uuid(expression: str, expected: str | None) -> None:
    """A UUID stays what it is; any other text is a natural key of its source; without one the
    intake derives one.
    """
    assert mapped(RECORD, uuid=expression, properties={}) == member(
        "uuid", None if expected is None else json.dumps(expected)
    )


def test_natural_keys_never_change() -> None:
    """A record that is read again by a later version gives the same event."""
    assert str(NATURAL_KEYS) == "3f0d6f0e-6a55-4bb0-9c7e-6a1c2f1f5d83"
    assert (
        mapped("{}", uuid='"order-7"')
        == '{"event":"e","uuid":"83a1071d-a01c-5dc0-8aa6-787289558b38","properties":{}}'
    )


@cases(
    ("rule", "expected"),
    [
        (None, RECORD),
        (".", RECORD),
        (".user", '{"id":42,"plan":"pro"}'),
        ('.["odd name"]', '{"x y":1.0}'),
        ("{plan: .user.plan}", '{"plan":"pro"}'),
        ("{}", "{}"),
        ('{"a": 1.0 }', '{"a": 1.0 }'),
        (".missing", "{}"),
        ({}, "{}"),
        (
            {
                "$big": ".big",
                'q"': ".esc",
                "none": ".nil",
                "all": "[.items[].sku]",
                "fixed": "3.10",
                "on": ".on",
                "off": ".off",
            },
            (
                r'{"$big":123456789012345678901234567890.10,"q\"":"\u00e9\/","all":["a","b"],"fixe'
                r'd":3.10,"on":true,"off":false}'
            ),
        ),
    ],
)
def test_properties(rule: Any, expected: str) -> None:
    """The whole record, an object in it, one that jq makes, or names with an expression each;
    nulls are left out.
    """
    assert properties(RECORD, properties=rule) == expected


@cases(
    ("rules", "expected"),
    [
        ({"set": {"plan": ".user.plan"}, "properties": {}}, '{"$set":{"plan":"pro"}}'),
        (
            {
                "set": ".user",
                "set_once": "{a: 1}",
                "groups": {"company": '"acme"'},
                "properties": {"n": "1"},
            },
            (
                '{"$set":{"id":42,"plan":"pro"},"$set_once":{"a":1},"$groups":{"company":"acme"},"'
                'n":1}'
            ),
        ),
        ({"set": {"plan": ".missing"}, "groups": ".nil", "properties": {"n": "1"}}, '{"n":1}'),
        (
            {"set": {"a": "1"}, "properties": '{"$set": {"old": 1}, "b" : 2}'},
            '{"$set":{"a":1},"b" : 2}',
        ),
        (
            {"set": {"a": "1"}, "properties": r'{"b" : 2 ,"\u0024set":{}, "$set":[]}'},
            '{"$set":{"a":1},"b" : 2}',
        ),
        ({"set": {"a": "1"}, "properties": r'{"$set":{}}'}, '{"$set":{"a":1}}'),
        ({"set": {"a": "1"}, "properties": r'{"\u0024set":{}, "b":2}'}, '{"$set":{"a":1},"b":2}'),
        (
            {"set": {"a": "1"}, "properties": r'{"x":{"$set":{}}}'},
            '{"$set":{"a":1},"x":{"$set":{}}}',
        ),
    ],
)
def test_person_and_groups(rules: dict[str, Any], expected: str) -> None:
    """They are properties of their own, which come first, and replace those that the
    record has.
    """
    assert properties(RECORD, **rules) == expected


@cases(
    ("condition", "goes"),
    [
        (".on", True),
        (".off", False),
        (".nil", False),
        (".missing", False),
        (".user.id", True),
        ("true", True),
        ("false", False),
        ("null", False),
        ('.type == "paid"', True),
        ('.type == "open"', False),
        ("null | values // null", False),
        ('.user.id > 40 and (.type | test("^pa"))', True),
    ],
)
def test_where(condition: str, goes: bool) -> None:
    """A record for which the condition is false or null is no event."""
    assert (mapped(RECORD, where=condition) is not None) is goes


def test_other_rules_are_not_asked_when_where_says_no() -> None:
    """What a record of another kind holds is no one's mistake."""
    rules = {"distinct_id": ".user.id", "uuid": ".type | error", "event": ".kind"}
    assert mapped('{"type":"x","user":"none"}', where='.type == "y"', **rules) is None
    assert mapped('{"type":"x","user":"none","ok":false}', where=".ok", **rules) is None


@cases(
    ("rules", "why"),
    [
        ({"event": ".missing"}, "event: the expression gives nothing; the event's name is needed"),
        ({"event": '""'}, 'event: the expression gives the string ""; the event\'s name is needed'),
        ({"event": ".user"}, "event: the expression gives an object; the event's name is needed"),
        (
            {"event": ".user.id"},
            "event: the expression gives the number 42; the event's name is needed",
        ),
        ({"event": ".type.deep"}, 'event: .type is the string "paid", which has no .deep'),
        ({"event": ".items.sku"}, "event: .items is an array, which has no .sku"),
        ({"event": ".user[0]"}, "event: .user is an object, which has no .[0]"),
        ({"event": ".[0]"}, "event: . is an object, which has no .[0]"),
        ({"event": ".type | tonumber"}, "event: jq: "),
        ({"event": ".items[].sku"}, "event: the expression gives several results; one is needed"),
        ({"event": "range(9)"}, "event: the expression gives several results; one is needed"),
        ({"event": "empty"}, "event: the expression gives no result; one is needed"),
        ({"event": "error(null)"}, "event: jq: null"),
        ({"event": "error({a: 1})"}, 'event: jq: {"a":1}'),
        (
            {"event": "now | tostring"},
            "event: jq: now would differ each time that the record is read",
        ),
        ({"where": ".type | .x"}, "where: jq: "),
        ({"where": ".type.x"}, 'where: .type is the string "paid", which has no .x'),
        (
            {"where": ".items[] | .sku == 1"},
            "where: the expression gives several results; one is needed",
        ),
        ({"where": "empty"}, "where: the expression gives no result; one is needed"),
        (
            {"distinct_id": ".on"},
            "distinct_id: the expression gives the boolean true; a string or a number is needed",
        ),
        (
            {"distinct_id": ".user"},
            "distinct_id: the expression gives an object; a string or a number is needed",
        ),
        ({"uuid": ".items"}, "uuid: the expression gives an array; a string or a number is needed"),
        (
            {"properties": ".items"},
            "properties: the expression gives an array; an object is needed",
        ),
        ({"properties": {"a b": "error"}}, "properties.a b: jq: "),
        ({"set": ".type"}, 'set: the expression gives the string "paid"; an object is needed'),
        ({"set_once": "[1]"}, "set_once: the expression gives an array; an object is needed"),
        ({"groups": "1"}, "groups: the expression gives the number 1; an object is needed"),
        (
            {"timestamp": TimestampRule(".type")},
            'timestamp: the string "paid" can\'t be read as a time of the format iso',
        ),
    ],
)
def test_what_cant_be_mapped(rules: dict[str, Any], why: str) -> None:
    """The rule is named, and what it found."""
    with pytest.raises(Unmappable) as caught:
        mapped(RECORD, **rules)
    assert caught.value.message.startswith(why)


def test_errors_show_little_of_a_record_and_no_key() -> None:
    """Messages go to logs and lists: they show a glimpse, with keys masked."""
    secret = "phc_" + "s3cr3t" * 5
    for event in (".a", '.a + "" | error', "{b: .a}"):
        with pytest.raises(Unmappable) as caught:
            mapped(
                json.dumps(
                    {"a": [secret, "x" * 5000]}
                    if event == ".a"
                    else {"a": f"{secret} {'x' * 5000}"}
                ),
                event=event,
            )
        assert "s3cr3t" not in caught.value.message
        assert len(caught.value.message) < 150


def test_the_order_of_members() -> None:
    """An event is written in one order, whatever the order of the record."""
    rules: dict[str, Any] = {
        "uuid": ".i",
        "timestamp": TimestampRule(".t"),
        "distinct_id": ".d",
        "properties": {"p": ".i"},
    }
    record = f'{{"t":"2026-01-31T12:00:00Z","i":"{ID}","d":"x"}}'
    expected = (
        f'{{"event":"e","distinct_id":"x","timestamp":"2026-01-31T12:00:00.000Z","uuid":"{ID}"'
        f',"properties":{{"p":"{ID}"}}}}'
    )
    assert mapped(record, **rules) == expected


def test_one_mapping_serves_many_records() -> None:
    """Nothing of a record is left for the next one."""
    mapper = mapping(event='.e + ""', distinct_id=".d", properties={"p": ".p", "q": ".q + null"})
    first = mapper.map(b'{"e":"a","d":"x","p":1,"q":2}')
    assert mapper.map(b'{"e":"b"}') == b'{"event":"b","properties":{}}'
    with pytest.raises(Unmappable):
        mapper.map(b'{"e":1}')
    assert mapper.map(b'{"e":"a","d":"x","p":1,"q":2}') == first
