"""What compiled rules do with the events of a lane: against a plain model, and byte by byte."""

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.config.rule_settings import RuleSettings
from forwarder.core.errors import ConfigurationError
from forwarder.rules.event_rules import EventRules, RuleOutcome, compile_rules
from forwarder.rules.id_files import IdFiles
from tests.support.cases import cases
from tests.support.clock import FakeClock
from tests.support.intakes import KEY, compiled_rules

SALT = b"a long secret"


@pytest.fixture
def salt(tmp_path: Path) -> str:
    """A file with a salt."""
    path = tmp_path / "salt"
    path.write_bytes(SALT + b"\n")
    return str(path)


def rules_of(*rules: Mapping[str, Any], max_event: int = 1_000_000) -> EventRules:
    """Compiled rules."""
    compiled = compiled_rules(*rules, max_event=max_event)
    assert compiled is not None
    return compiled


def ruled(rules: EventRules, *events: bytes) -> list[bytes] | None:
    """The events that are left; None if all are as they were."""
    result = rules.apply(b",".join(events), len(events), KEY, "http")
    if result is None:
        return None
    result.count()
    return split(result.data) if result.remaining_events else []


def split(data: bytes) -> list[bytes]:
    """The events of a chunk."""
    decoder = json.JSONDecoder()
    text = data.decode()
    at = 0
    events = []
    while at < len(text):
        _, end = decoder.raw_decode(text, at)
        events.append(text[at:end].encode())
        at = end + 1
    return events


def one(rule: Mapping[str, Any], event: bytes) -> bytes:
    """The event that a rule makes of one."""
    left = ruled(rules_of(rule), event)
    if left is None:
        return event
    (made,) = left
    return made


EVENT = (
    rb'{ "event":"e" , "distinct_id":"p","properties":{"a" : '
    rb'1.10,"b":"x\u00e9\/","c":{"d":[1E2,{"e":null}]}} }'
)


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        ({"remove": ".properties.a"}, b'{"a" : 1.10,"b"', b'{"b"'),
        ({"remove": ".properties.c.d[].e"}, rb'{"e":null}', rb"{}"),
        (
            {"remove": [".properties.b", ".properties.c"]},
            rb',"b":"x\u00e9\/","c":{"d":[1E2,{"e":null}]}',
            b"",
        ),
        ({"remove": ".properties.password"}, b"", b""),
        ({"set": {".properties.a": "é"}}, b"1.10", '"é"'.encode()),
        ({"set": {".properties.c.f.g": [1, None]}}, b'"c":{', b'"c":{"f":{"g":[1,null]},'),
        ({"set": {".properties.c.d": False}}, b'[1E2,{"e":null}]', b"false"),
        ({"rename": {".properties.a": ".properties.z"}}, b'"a" :', b'"z" :'),
        (
            {"rename": {".properties.a": ".properties.b"}},
            rb'"a" : 1.10,"b":"x\u00e9\/"',
            b'"b" : 1.10',
        ),
        ({"rename": {".properties.missing": ".properties.b"}}, b"", b""),
        ({"rename_event": {"e": 'f " g'}}, b'"event":"e"', rb'"event":"f \" g"'),
        ({"rename_event": {"other": "x"}}, b"", b""),
    ],
)
def test_only_what_a_rule_names_differs(
    rule: Mapping[str, Any], before: bytes, after: bytes
) -> None:
    """White space, order, escapes and spellings of numbers stay."""
    assert before in EVENT
    assert one(rule, EVENT) == (EVENT.replace(before, after, 1) if before else EVENT)


def test_a_field_that_is_moved_keeps_its_value() -> None:
    """To another object, in front of its members."""
    made = one({"rename": {".properties.a": ".properties.c.a"}}, EVENT)
    assert made == EVENT.replace(b'"a" : 1.10,', b"").replace(b'"c":{', b'"c":{"a":1.10,')


def test_a_name_that_is_escaped_or_there_twice_is_found() -> None:
    """However a name is spelled, each time."""
    event = rb'{"event":"e","distinct_id":"p","properties":{"pass\u0077ord":1,"x":2,"password":3}}'
    assert json.loads(one({"remove": ".properties.password"}, event))["properties"] == {"x": 2}


def test_hashes_are_hmac_sha256_in_hex(salt: str) -> None:
    """Of a text its characters, of anything else its JSON; null and blank texts stay."""
    event = (
        rb'{"event":"e","distinct_id":"p","properties":{"email":"J\u00f6rg@x","n":1.50,"none":'
        rb"null}}"
    )
    made = one(
        {
            "hash": {
                "field": [".properties.email", ".properties.n", ".properties.none"],
                "salt_file": salt,
            }
        },
        event,
    )
    digests = [
        hmac.new(SALT, text, hashlib.sha256).hexdigest().encode()
        for text in ("Jörg@x".encode(), b"1.50")
    ]
    assert made == event.replace(rb'"J\u00f6rg@x"', b'"%b"' % digests[0]).replace(
        b"1.50", b'"%b"' % digests[1]
    )


def test_rules_see_what_those_before_them_left() -> None:
    """A renamed event matches by its new name, a hashed or set value is seen by conditions."""
    rules = rules_of(
        {"rename_event": {"old": "new"}},
        {"match": {"event": "new"}, "set": {".properties.seen": True}},
        {"match": {"where": ".properties.seen"}, "drop": True, "name": "gone"},
    )
    assert ruled(
        rules, b'{"event":"old","distinct_id":"p"}', b'{"event":"e","distinct_id":"p"}'
    ) == [b'{"event":"e","distinct_id":"p"}']
    assert rules.counts == {
        ("rule-1", RuleOutcome.CHANGED): 1,
        ("rule-2", RuleOutcome.CHANGED): 1,
        ("gone", RuleOutcome.DROPPED): 1,
    }


def test_nothing_is_copied_where_no_rule_matches() -> None:
    """Neither by names, nor by fields that don't occur."""
    rules = rules_of(
        {"match": {"event": "$autocapture"}, "drop": True},
        {"remove": ".properties.password"},
        {"rename_event": {"x": "y"}},
    )
    assert ruled(rules, EVENT, EVENT) is None


def test_an_event_that_can_not_be_protected_fails(salt: str) -> None:
    """What can't be looked into isn't sent; other rules leave the event as it is,
    unless they say otherwise.
    """
    event = b'{"event":"e","distinct_id":"p","properties":{"n":1}}'
    fails = {"where": '.properties.n | startswith("a")'}
    for rule in (
        {"remove": ".properties.x"},
        {"hash": {"field": ".properties.x", "salt_file": salt}},
        {"drop": True, "on_error": "dead_letter"},
    ):
        rules = rules_of(
            {"name": "first", "set": {".properties.n": 2}},
            {"name": "strict", "match": fails, **rule},
        )
        result = rules.apply(event, 1, KEY, "http")
        assert result is not None
        assert (result.remaining_events, [failure.data for failure in result.failed]) == (
            0,
            [event],
        ), "as it was before all rules"
        assert result.failed[0].why.startswith("rule strict: where: jq: startswith")
        assert result.outcomes["strict", RuleOutcome.FAILED] == 1
    rules = rules_of({"match": fails, "drop": True})
    assert ruled(rules, event) == [event]
    assert rules.counts == {("rule-1", RuleOutcome.FAILED): 1}
    assert ruled(rules_of({"set": {".properties.n.x": 1}}), event) == [event]


def test_an_event_that_would_become_too_large_is_not_made() -> None:
    """It stays as it is."""
    rules = rules_of({"set": {".properties.long": "x" * 200}}, max_event=150)
    assert ruled(rules, b'{"event":"e","distinct_id":"p"}') == [b'{"event":"e","distinct_id":"p"}']
    assert rules.counts == {("rule-1", RuleOutcome.FAILED): 1}


def test_people_in_a_file_are_dropped(tmp_path: Path) -> None:
    """By id."""
    people = tmp_path / "people"
    people.write_text("a\nb\n")
    rules = rules_of(
        {"name": "forgotten", "match": {"distinct_id_file": str(people)}, "drop": True}
    )
    events = [
        b'{"event":"e","distinct_id":"%b"}' % distinct_id for distinct_id in (b"a", b"c", b"b")
    ]
    assert ruled(rules, *events) == [events[1]]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, r"rules\[0\]: does nothing"),
        ({"drop": True, "sample": 0.1}, r"rules\[0\]: does several things: drop, sample"),
        ({"set": {".event": "x"}}, r"rules\[0\]\.set: \.event can't be changed"),
        ({"set": {".properties.a[0]": 1}}, r"is not the path of one field"),
        ({"remove": "uuid"}, r"'uuid' is no path"),
        ({"remove": ".distinct_id"}, r"\.distinct_id can't be changed"),
        ({"remove": ".[]"}, r"\.\[\] can't be changed"),
        ({"hash": {"field": ".[]", "salt_file": "/dev/null"}}, r"field: \.\[\] can't be changed"),
        ({"rename": {".properties.a": ".timestamp"}}, r"\.timestamp can't be changed"),
        ({"rename": {".properties.a": ".properties.a.b"}}, r"can't be moved into itself"),
        ({"rename_event": {"a": ""}}, r"an event needs a name"),
        ({"hash": {"field": ".properties.email"}}, r"hash\.salt_file: is missing"),
        ({"hash": {"salt_file": "/dev/null"}}, r"hash\.field: is missing"),
        ({"hash": {"field": ".properties.email", "salt_file": "/dev/null"}}, r"/dev/null is empty"),
        ({"remove": ".properties.a", "on_error": "keep"}, r"on_error: keep isn't possible"),
        (
            {"match": {"distinct_id_file": "/nowhere/ids"}, "drop": True},
            r"match\.distinct_id_file: /nowhere/ids can't be read",
        ),
        ({"match": {"salt_file": "/dev/null"}, "drop": True}, r"match\.salt_file"),
        ({"match": {"where": "until(false; .)"}, "drop": True}, r"match\.where.*may never end"),
    ],
)
def test_a_rule_that_can_not_be_used_is_rejected(rule: Mapping[str, Any], message: str) -> None:
    """With its key, and what to do."""
    with pytest.raises(ConfigurationError, match=message):
        rules_of(rule)


def test_the_digest_is_that_of_the_settings_and_salts(salt: str) -> None:
    """Of files of ids it is only the name: people are added to them all the time."""

    def digest(*rules: Mapping[str, Any]) -> str:
        return rules_of(*rules).digest

    drop = {"match": {"event": "a"}, "drop": True}
    keep = {"hash": {"field": ".properties.x", "salt_file": salt}}
    # so a later version with more settings resumes an import that has these rules
    assert digest(drop) == "552ac11d23156ae8"
    assert digest(drop, keep) == digest(drop, keep)
    assert (
        len({digest(drop, keep), digest(keep, drop), digest(drop), digest({**drop, "name": "x"})})
        == 4
    )
    before = digest(keep)
    Path(salt).write_text("another")
    assert digest(keep) != before


# The model: events as Python objects, whose numbers are texts, so that their spelling counts.

NAMES = ("a", "b", "$pageview", "$page", "c d")
FIELDS = ("x", "y", "é", "q/r", 'w"')


@dataclass(frozen=True)
class ModelRule:
    """A rule as it is configured, and as plain Python: None drops the event."""

    settings: dict[str, Any]
    matches: Callable[[dict[str, Any]], bool]
    change: Callable[[dict[str, Any]], dict[str, Any] | None]


def _path(name: str) -> str:
    return f".properties[{json.dumps(name)}]"


def _properties(
    event: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    return {**event, "properties": change(dict(event["properties"]))}


def _removed(
    field: str,
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any] | None]]:
    def remove(properties: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in properties.items() if name != field}

    return {"remove": [_path(field)]}, lambda event: _properties(event, remove)


def _set(
    field: str, value: Any
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any] | None]]:
    return {"set": {_path(field): value}}, lambda event: _properties(
        event, lambda properties: {**properties, field: value}
    )


def _renamed(
    old: str, new: str
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any] | None]]:
    def rename(properties: dict[str, Any]) -> dict[str, Any]:
        if old == new or old not in properties:
            return properties
        value = properties.pop(old)
        return {**properties, new: value}

    return {"rename": {_path(old): _path(new)}}, lambda event: _properties(event, rename)


def _renamed_event(
    old: str, new: str
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any] | None]]:
    return {
        "rename_event": {old: new}
    }, lambda event: {**event, "event": new} if event["event"] == old else event


def _sampled(
    rate: float,
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any] | None]]:
    def sample(event: dict[str, Any]) -> dict[str, Any] | None:
        number = int(hashlib.sha256(event["distinct_id"].encode()).hexdigest()[:16], 16)
        return event if number / 2**64 < rate else None

    return {"sample": rate}, sample


_FIELD = st.sampled_from(FIELDS)
_CHANGES = st.one_of(
    st.just(({"drop": True}, lambda _: None)),
    st.builds(_removed, _FIELD),
    st.builds(_set, _FIELD, st.sampled_from(["staging", True, None])),
    st.tuples(_FIELD, _FIELD)
    .filter(lambda pair: pair[0] != pair[1])
    .map(lambda pair: _renamed(*pair)),
    st.builds(_renamed_event, st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.builds(_sampled, st.sampled_from([0.0, 0.3, 0.7, 1.0])),
)
_MATCHES: st.SearchStrategy[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = st.one_of(
    st.just(({}, lambda _: True)),
    st.sampled_from(NAMES).map(
        lambda name: ({"event": name}, lambda event: event["event"] == name)
    ),
    st.just(
        (
            {"event": ["$page*", "?"]},
            lambda event: event["event"].startswith("$page") or len(event["event"]) == 1,
        )
    ),
    st.just(({"where": '.properties.x == "1"'}, lambda event: event["properties"].get("x") == "1")),
    st.just(
        (
            {"where": ".properties.y | not"},
            lambda event: event["properties"].get("y") in (None, False),
        )
    ),
    st.just(({"api_key": "phc_other"}, lambda _: False)),
    st.just(({"source": ["http", "kafka"]}, lambda _: True)),
)


@st.composite
def _rule(draw: st.DrawFn) -> ModelRule:
    match, matches = draw(_MATCHES)
    settings, change = draw(_CHANGES)
    return ModelRule({"match": match, **settings}, matches, change)


_SPACE = st.sampled_from(["", "", " ", "\n\t"])
_VALUES = st.sampled_from(
    [
        '"1"',
        "1.50",
        "-0",
        "1e3",
        "null",
        "false",
        '{"x":[1, 2.0]}',
        r'"\u00e9\/"',
        "[]",
        '"é"',
        "12345678901234567890",
    ]
)


@st.composite
def _event(draw: st.DrawFn) -> str:
    """The text of an event, oddly spelled."""

    def spelled(name: str) -> str:
        return draw(
            st.sampled_from(
                [
                    json.dumps(name),
                    json.dumps(name, ensure_ascii=False),
                    json.dumps(name).replace("/", r"\/"),
                ]
            )
        )

    def members(pairs: list[tuple[str, str]]) -> str:
        return ",".join(
            f"{draw(_SPACE)}{name}{draw(_SPACE)}:{draw(_SPACE)}{value}{draw(_SPACE)}"
            for name, value in pairs
        )

    fields = draw(
        st.lists(
            st.tuples(st.sampled_from(FIELDS).map(spelled), _VALUES),
            max_size=5,
            unique_by=lambda pair: json.loads(pair[0]),
        )
    )
    pairs = [
        ('"event"', json.dumps(draw(st.sampled_from(NAMES)))),
        ('"distinct_id"', json.dumps(draw(st.sampled_from(["p", "q", "ü", "r s"])))),
        ('"properties"', "{" + members(fields) + "}"),
    ]
    return "{" + members(draw(st.permutations(pairs))) + "}"


def _read(text: str | bytes) -> Any:
    return json.loads(
        text,
        parse_float=lambda number: ("number", number),
        parse_int=lambda number: ("number", number),
    )


@given(st.lists(_rule(), min_size=1, max_size=5), st.lists(_event(), min_size=1, max_size=6))
def test_rules_do_what_the_model_does(rules: list[ModelRule], texts: list[str]) -> None:
    """The events that are left are the model's, in order; those that no rule changes keep their
    bytes; the counts balance.
    """
    expected: list[tuple[Any, str | None]] = []
    for text in texts:
        event: dict[str, Any] | None = _read(text)
        same = True
        for rule in rules:
            if event is not None and rule.matches(event):
                changed = rule.change(event)
                same = same and changed == event
                event = changed
        if event is not None:
            expected.append((event, text if same else None))
    compiled = compile_rules(
        [RuleSettings.parse(rule.settings) for rule in rules], IdFiles(FakeClock()), 1_000_000
    )
    assert compiled is not None
    events = [text.encode() for text in texts]
    left = ruled(compiled, *events)
    left = events if left is None else left
    assert [_read(raw) for raw in left] == [event for event, _ in expected]
    assert [same for _, same in expected if same is not None] == [
        raw.decode() for raw, (_, same) in zip(left, expected, strict=True) if same is not None
    ]
    dropped = sum(
        [count for (_, outcome), count in compiled.counts.items() if outcome is RuleOutcome.DROPPED]
    )
    assert dropped == len(texts) - len(left)


@cases(
    "rule",
    [
        {"set": {".properties.a": 2}},
        {"rename": {".properties.a": ".properties.z"}},
        {"rename_event": {"e": "f"}},
        {"remove": ".properties.a"},
    ],
)
def test_white_space_around_one_event_changes_nothing(rule: Mapping[str, Any]) -> None:
    """As between several."""
    made = one(rule, EVENT)
    assert made != EVENT
    assert ruled(rules_of(rule), b"\n  " + EVENT + b"\n") == [made]


@cases("value", [2**70, "\ud800", {"\ud800": 1}])
def test_a_value_that_json_cannot_have_names_its_key(value: Any) -> None:
    """A configuration that can't be used, not a failure of the daemon."""
    with pytest.raises(ConfigurationError, match=r"^rules\[0\]\.set\.properties\.a"):
        rules_of({"set": {".properties.a": value}})
