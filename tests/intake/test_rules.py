"""Rules at receipt: in every encoding and protocol, for records of sources, for large bodies and
replays; and the books balance.
"""

import base64
import gzip
import json
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from forwarder.core.ack import AckLevel
from forwarder.core.errors import InvalidRequest, StillDecoding, TogetherTooLarge
from forwarder.core.event import Lane
from forwarder.core.ports import Fate, Ordering, OtlpHead, Reason, ReplayedDeadLetter, V1Head
from forwarder.intake.otlp import OtlpMapping, OtlpSource
from forwarder.mapping import MappingRules
from forwarder.rules.event_rules import RuleOutcome
from forwarder.wire.effort import INLINE
from forwarder.wire.identity import ids_of
from tests.support.cases import cases
from tests.support.decoders import NO_EFFORT, InProcessDecoder, Patient
from tests.support.intakes import KEY, UUID, IntakeRig, batch, compiled_rules, stamped_event
from tests.support.lz64 import compress
from tests.support.otlp import JSON, export, record
from tests.support.records import RecordsRig, record_list
from tests.support.waiters import IntakeCallback

LANE = Lane(KEY)
FORM = b"application/x-www-form-urlencoded"
DROP = {"name": "noise", "match": {"event": "$autocapture*"}, "drop": True}
REMOVE = {"name": "secrets", "remove": ".properties.password"}
FAILING = {
    "name": "strict",
    "match": {"where": '.properties.n | startswith("a")'},
    "remove": ".properties.x",
}
RULES = (DROP, REMOVE, {"rename_event": {"Signed Up": "user signed up"}})
BODY = [
    {"event": "$autocapture", "distinct_id": "p", "properties": {"token": KEY}},
    {
        "event": "Signed Up",
        "distinct_id": "p",
        "properties": {"token": KEY, "password": "x", "n": 1.5},
    },
    {"event": "other", "distinct_id": "p", "properties": {"token": KEY}},
]
TEXT = json.dumps(BODY).encode()


UUIDS = [UUID[:-2] + f"{number:02}" for number in range(99)]


def drop_time(event: dict[str, Any]) -> dict[str, Any]:
    """What a v1 event has of an event."""
    return {name: event[name] for name in ("distinct_id", "properties")}


def names(rig: IntakeRig) -> list[str]:
    """The names of the events in the buffer."""
    return [json.loads(event)["event"] for event in rig.events()]


@cases(
    ("body", "hints"),
    [
        pytest.param(TEXT, {}, id="plain"),
        pytest.param(gzip.compress(TEXT), {"content_encoding": b"gzip"}, id="gzip"),
        pytest.param(zstandard.compress(TEXT), {}, id="zstd"),
        pytest.param(brotli.compress(TEXT), {"content_encoding": b"br"}, id="brotli"),
        pytest.param(base64.b64encode(TEXT), {}, id="base64"),
        pytest.param(
            b"data=" + quote(base64.b64encode(TEXT)).encode(), {"content_type": FORM}, id="a form"
        ),
        pytest.param(compress(TEXT.decode()), {"query": b"compression=lz64"}, id="lz64"),
        pytest.param(json.dumps(batch(*BODY)).encode(), {}, id="a batch"),
        pytest.param(
            json.dumps({**batch(*BODY), "x": "y" * 3000}).encode(), {}, id="an outlined batch"
        ),
    ],
)
def test_rules_hold_in_every_encoding(body: bytes, hints: dict[str, Any]) -> None:
    """Dropped events are counted, changed ones keep all else."""
    rig = IntakeRig(rules=RULES)
    assert rig.offer(body, IntakeCallback(), **hints)
    assert names(rig) == ["user signed up", "other"]
    assert json.loads(rig.events()[0])["properties"] == {"token": KEY, "n": 1.5}
    assert rig.figures(LANE) == (3, 2, {}, {"rule:noise": 1})
    assert rig.balanced()


def test_rules_apply_to_a_single_event_body() -> None:
    """Its own body: changed, dropped, or as it was."""
    rig = IntakeRig(rules=RULES)
    for name in ("$autocapture", "Signed Up", "other"):
        rig.take({"api_key": KEY, **stamped_event(), "event": name})
    assert names(rig) == ["user signed up", "other"]
    assert rig.figures(LANE) == (3, 2, {}, {"rule:noise": 1})
    plain = IntakeRig()
    plain.take({"api_key": KEY, **stamped_event(), "event": "other"})
    assert rig.events()[1] == plain.events()[0]


def test_nothing_differs_where_no_rule_matches() -> None:
    """The same bytes as without rules."""
    with_rules = IntakeRig(rules=RULES)
    without = IntakeRig()
    for rig in (with_rules, without):
        rig.take(batch(*[stamped_event()] * 3))
    assert with_rules.events() == without.events()


def test_an_event_that_can_not_be_protected_is_a_dead_letter() -> None:
    """It is never sent, and comes back through the rules."""
    rig = IntakeRig(rules=[FAILING])
    bad = {**stamped_event(), "properties": {"n": 1}}
    good = {**stamped_event(), "properties": {"n": "a"}}
    assert rig.ask(bad, good).code == "accepted"
    assert [json.loads(event)["properties"] for event in rig.events()] == [{"n": "a"}]
    assert rig.figures(LANE) == (2, 1, {Reason.RULE_FAILED: 1}, {})
    with pytest.raises(InvalidRequest, match="rule strict"):
        rig.ask(bad, replayed=ReplayedDeadLetter(1, Reason.RULE_FAILED))
    rig.conditions.rules = compiled_rules(REMOVE)
    rig.ask(
        {**bad, "properties": {"password": 1}},
        source="replay",
        replayed=ReplayedDeadLetter(1, Reason.RULE_FAILED),
    )
    assert json.loads(rig.events()[-1])["properties"] == {}


def test_a_dead_letter_that_rules_saw_before_is_replayed_as_it_is() -> None:
    """A hash isn't hashed again; one that a rule would drop now stays."""
    rig = IntakeRig(rules=RULES)
    rig.ask(*[stamped_event()] * 3)
    rig.ask(
        {**stamped_event(), "properties": {"password": 1}},
        source="replay",
        replayed=ReplayedDeadLetter(1, Reason.REFUSED, ruled=True),
    )
    assert json.loads(rig.events()[-1])["properties"] == {"password": 1}
    with pytest.raises(InvalidRequest, match="rule noise drops it"):
        rig.ask(
            {**stamped_event(), "event": "$autocapture"},
            source="replay",
            replayed=ReplayedDeadLetter(1, Reason.MISSING_TIMESTAMP),
        )


def v1_event(name: str, uuid: str) -> dict[str, Any]:
    """An event of a v1 request."""
    return {
        "event": name,
        "uuid": uuid,
        "distinct_id": "p",
        "timestamp": "2025-12-31T12:00:00Z",
        "options": {},
        "properties": {"n": 1},
    }


@pytest.mark.parametrize("ack", [AckLevel.MEMORY, AckLevel.DELIVERED])
def test_rules_apply_to_v1_requests(ack: AckLevel) -> None:
    """A dropped event is accepted for its sender, and isn't waited for."""
    rig = IntakeRig(rules=RULES, ack=ack)
    other = UUID.replace("0190", "0191")
    head = V1Head(b"Bearer " + KEY.encode(), b"sdk/1")
    callback = IntakeCallback()
    body = {
        "created_at": "2026-01-01T00:00:00Z",
        "batch": [v1_event("$autocapture", UUID), v1_event("Signed Up", other)],
    }
    reached = rig.offer(body, callback, head=head)
    assert reached is (ack is AckLevel.MEMORY)
    (chunk,) = rig.chunks()
    if not reached:
        rig.buffer.queue(LANE).popleft()
        rig.books.deliver(LANE, 1)
        rig.buffer.settle([chunk], Fate.DELIVERED)
        assert callback.code == "accepted"
    assert head.results is not None
    assert json.loads(head.results.body())["results"] == {
        UUID: {"result": "ok"},
        other: {"result": "ok"},
    }
    assert json.loads(chunk.data)["event"] == "user signed up"
    assert rig.balanced()


def test_all_events_of_a_request_dropped() -> None:
    """It is accepted at any level, at once."""
    for level in AckLevel:
        rig = IntakeRig(rules=[DROP], ack=level, durable=level is AckLevel.DISK)
        assert rig.ask({**stamped_event(), "event": "$autocapture"}).reached
        assert rig.figures(LANE) == (1, 0, {}, {"rule:noise": 1})


def test_log_records_of_opentelemetry() -> None:
    """Their source is otlp."""
    mapping = MappingRules(
        event=".event_name", distinct_id=".attributes.user", properties={"password": ".body"}
    )
    rules: list[dict[str, Any]] = [{**DROP, "match": {"source": "otlp", "event": "noise"}}, REMOVE]
    rig = IntakeRig(otlp=OtlpMapping(OtlpSource(mapping, KEY)), rules=rules)
    records = [
        record(event_name=name, attributes={"user": "p"}, body="x") for name in ("noise", "order")
    ]
    assert rig.offer(
        export(*records, protobuf=False),
        IntakeCallback(),
        head=OtlpHead(b"", protobuf=False),
        content_type=JSON.encode(),
    )
    assert names(rig) == ["order"]
    assert json.loads(rig.events()[0])["properties"] == {}


def test_rules_apply_to_records() -> None:
    """Uuids are derived before rules; a record of which nothing is left is settled at once."""
    plain = RecordsRig()
    rig = RecordsRig(rules=RULES)
    for records_rig in (plain, rig):
        records_rig.records.accept(record_list(*BODY), IntakeCallback(), AckLevel.DELIVERED)
    assert names(rig) == ["user signed up", "other"]
    assert [json.loads(event)["uuid"] for event in rig.events()] == [
        json.loads(event)["uuid"] for event in plain.events()[1:]
    ]
    assert rig.events()[1] == plain.events()[2]
    assert (
        rig.records.accept(record_list(BODY[0], offset=3), IntakeCallback(), AckLevel.DELIVERED)
        is None
    )
    assert rig.figures(LANE) == (4, 2, {}, {"rule:noise": 2})
    assert rig.balanced()


@pytest.mark.parametrize("source", ["a request", "records"])
def test_an_event_with_two_names_has_the_last(source: str) -> None:
    """Also if the first is no text: rules drop it by the name that the service reads."""
    rig = RecordsRig(rules=[{"name": "drop", "match": {"event": "last"}, "drop": True}])
    twice = b'{"event":1,"event":"last","distinct_id":"d"}'
    other = b'{"event":2,"event":"other","distinct_id":"d"}'
    if source == "records":
        rig.records.accept(
            record_list(twice, other, api_key=KEY), IntakeCallback(), AckLevel.DELIVERED
        )
    else:
        rig.take(b'{"api_key":"%b","batch":[%b,%b]}' % (KEY.encode(), twice, other))
    (left,) = rig.events()
    assert json.loads(left)["event"] == "other"
    assert rig.figures(LANE).dropped == {"rule:drop": 1}


def test_project_keys_of_a_record_count_as_rules_leave_them() -> None:
    """A record with more of them than are accepted at once, of which rules leave few."""
    rig = RecordsRig(max_lanes=10, rules=[{"name": "d", "match": {"event": "b"}, "drop": True}])
    events = [stamped_event(event="b", api_key=f"phc_key_number_{at}") for at in range(5)]
    one = [*events, stamped_event(event="a", api_key=KEY)]
    rig.records.accept(record_list(one), IntakeCallback(), AckLevel.DELIVERED)
    (left,) = rig.events()
    assert json.loads(left)["event"] == "a"
    assert not rig.dead_letters.dead_letters


def test_a_record_that_can_not_be_protected_is_a_dead_letter() -> None:
    """Its source waits until that is durable, as for others. It says which record it was, also
    where records are read one by one, or hold several events.
    """
    good, bad = [{**stamped_event(), "properties": {"n": n}} for n in ("a", 1)]
    for records, failing in (
        ([good, bad, bad], [1, 2]),
        ([good, batch(bad, good, bad), good, bad, {**bad, "uuid": None}], [1, 1, 3, 4]),
    ):
        rig = RecordsRig(rules=[FAILING])
        received = record_list(*records, offset=7, at=5.0)
        rig.records.accept(received, IntakeCallback(), AckLevel.DELIVERED)
        assert rig.figures(LANE).dead_lettered == {Reason.RULE_FAILED: len(failing)}
        assert rig.balanced()
        assert [
            (letter.coordinates, letter.attributes, letter.at)
            for letter in rig.dead_letters.dead_letters
        ] == [(received.facts(at).name, received.attributes(at), 5.0) for at in failing]


def test_what_a_rejected_batch_of_records_would_drop_is_not_counted() -> None:
    """The buffer is full: nothing happened."""
    rig = RecordsRig(rules=RULES, max_bytes=2000)
    with pytest.raises(Exception, match=r"full|room|lane"):
        rig.records.accept(
            record_list(*BODY, {**stamped_event(), "properties": {"x": "y" * 3000}}),
            IntakeCallback(),
            AckLevel.DELIVERED,
        )
    assert rig.figures(LANE) == (0, 0, {}, {})
    assert rig.conditions.rules is not None
    assert not rig.conditions.rules.counts


async def test_conditions_on_many_events_do_not_hold_the_loop() -> None:
    """They are evaluated piece by piece behind the decoder process; records
    come in smaller batches.
    """
    rules = [
        {"match": {"where": ".properties.n == 1"}, "drop": True, "name": "ones"},
        {"match": {"where": ".properties.n == 2"}, "drop": True, "name": "twos"},
    ]
    events = [{**stamped_event(), "properties": {"n": number % 3}} for number in range(900)]
    here = InProcessDecoder()
    rig = IntakeRig(rules=rules, decoder=here)
    waiter = Patient()
    assert not rig.offer(json.dumps(batch(*events)).encode(), waiter)
    await waiter.called.wait()
    await rig.conditions.drain(10.0)
    assert not waiter.failures
    assert rig.figures(LANE) == (900, 300, {}, {"rule:ones": 300, "rule:twos": 300})
    assert rig.balanced()
    await rig.conditions.close()
    records = RecordsRig(rules=rules, decoder=here)
    with pytest.raises(TogetherTooLarge):
        records.records.accept(record_list(*events), IntakeCallback(), AckLevel.DELIVERED)


def worst_events(salt: str) -> list[Any]:
    """Rules of each kind, each with an event that it would take long for."""
    members = ",".join(['"":0'] * 30_000)
    names = ",".join([f'"b{number}":0' for number in range(20_000)])
    deep = "[" * 300 + '"b",' + ",".join(["[]"] * 10_000) + "]" * 300
    nested = {"where": "[.properties.a[] as $x | .properties.a[] | . == $x] | length > 1"}
    regular = {"event": "click", "where": '.properties.a | tostring | test("(0+)+1")'}
    flat = f"[{','.join(['0'] * 25_000)}]"
    return [
        pytest.param({"hash": {"field": ".properties.a", "salt_file": salt}}, flat, id="hash"),
        pytest.param({"remove": ".properties.a.b"}, deep, id="remove"),
        pytest.param({"remove": ".properties.a.b"}, f'{{{members},"b":1}}', id="members"),
        pytest.param({"set": {".properties.a.b": 1}}, f"{{{members}}}", id="set"),
        pytest.param(
            {"rename": {".properties.a.b1": ".properties.a.c"}}, f"{{{names}}}", id="rename"
        ),
        pytest.param({"rename_event": {"click": "x"}}, f"{{{members}}}", id="rename_event"),
        pytest.param({"match": {"where": ".properties.b == 1"}, "drop": True}, flat, id="where"),
        pytest.param({"match": nested, "drop": True}, f"[{'0,' * 400}0]", id="nested where"),
        pytest.param({"match": regular, "drop": True}, f'"{"0" * 30}"', id="regular where"),
    ]


@pytest.mark.slow
async def test_an_event_that_rules_take_long_for_is_read_elsewhere(tmp_path: Path) -> None:
    """By the decoder process, while other senders are accepted; alone or in a batch, and as a
    record.
    """
    salt = tmp_path / "salt"
    salt.write_text("salt")
    for rule, value in [parameter.values for parameter in worst_events(str(salt))]:
        here = InProcessDecoder(closed=True)
        rig = IntakeRig(rules=[rule], decoder=here)
        event = json.dumps({**stamped_event(), "properties": 0})[:-2]
        waiters: list[Patient] = []
        for body in (
            f'{{"api_key":"{KEY}","batch":[{event} {{"a":{value}}}}}]}}',
            f'{{"api_key":"{KEY}",{event[1:]} {{"a":{value}}}}}',
        ):
            waiters.append(Patient(sender=len(waiters)))
            assert not rig.offer(body.encode(), waiters[-1]), rule
            assert rig.ask({**stamped_event(), "event": "other", "properties": {}}).reached
        here.open()
        for waiter in waiters:
            await waiter.called.wait()
            assert not waiter.failures
        assert len(here.bodies) == 2
        assert rig.figures(LANE).received == 4
        assert rig.balanced()
        await rig.conditions.close()
        records = RecordsRig(rules=[rule], decoder=InProcessDecoder())
        record = f'{event} {{"a":{value}}}}}'.encode()
        with pytest.raises(StillDecoding):
            records.records.accept(record_list(record), IntakeCallback(), AckLevel.DELIVERED)
        await records.conditions.close()


@pytest.mark.slow
async def test_rules_do_the_same_in_the_decoder_process(tmp_path: Path) -> None:
    """As on the loop: events, books, dead letters, counts, and results of a v1 request."""
    salt = tmp_path / "salt"
    salt.write_text("salt")
    people = tmp_path / "people"
    people.write_text("gone\n")
    rules: list[dict[str, Any]] = [
        *RULES,
        {"name": "gone", "match": {"distinct_id_file": str(people)}, "drop": True},
        {"hash": {"field": [".distinct_id", ".properties.n"], "salt_file": str(salt)}},
        {**FAILING, "match": {"api_key": KEY, "event": "bad", "where": ".properties.n.x"}},
        {"match": {"where": '.properties.plan == "b"'}, "sample": 0.5},
        {"set": {".properties.o.p": [1.0, None]}},
        {"rename": {".properties.plan": ".properties.o.plan"}},
    ]
    events = [
        {
            **stamped_event(),
            "event": name,
            "distinct_id": person,
            "properties": {"n": number, "plan": "ab"[number % 2], "password": "x"},
        }
        for number, (name, person) in enumerate(
            product(("$autocapture", "Signed Up", "bad", "e"), ("gone", "ann", "bob", "eve"))
        )
    ]
    for level in AckLevel.MEMORY, AckLevel.DELIVERED:
        rigs = [
            IntakeRig(
                rules=rules,
                ordering=Ordering.PER_DISTINCT_ID,
                ack=level,
                decoder=InProcessDecoder(),
                effort=effort,
            )
            for effort in (INLINE, NO_EFFORT)
        ]
        heads = []
        v1 = [
            {**v1_event(event["event"], str(UUIDS[at])), **drop_time(event)}
            for at, event in enumerate(events)
        ]
        for rig in rigs:
            assert rig.offer(json.dumps(batch(*events)).encode(), Patient()) is (
                level is AckLevel.MEMORY and rig.effort is INLINE
            )
            await rig.conditions.drain(10.0)
            heads.append(V1Head(b"Bearer " + KEY.encode(), b"sdk/1"))
            body = {"created_at": "2026-01-01T00:00:00Z", "batch": v1}
            rig.offer(json.dumps(body).encode(), Patient(), head=heads[-1])
            await rig.conditions.drain(10.0)
            assert rig.balanced()
            await rig.conditions.close()
        inline, elsewhere = rigs
        assert elsewhere.events() == inline.events()
        assert elsewhere.figures(LANE) == inline.figures(LANE)
        assert [letter.data for letter in elsewhere.dead_letters.dead_letters] == [
            letter.data for letter in inline.dead_letters.dead_letters
        ]
        assert elsewhere.conditions.rules is not None
        assert inline.conditions.rules is not None
        assert elsewhere.conditions.rules.counts == inline.conditions.rules.counts
        assert elsewhere.conditions.rules.errors == inline.conditions.rules.errors
        assert len({*map(frozenset, (chunk.ids for chunk in inline.chunks()))}) > 0
        results = [head.results for head in heads]
        assert results[0] is not None
        assert results[1] is not None
        assert json.loads(results[0].body()) == json.loads(results[1].body())


async def test_rules_never_make_more_of_a_request_than_fits(tmp_path: Path) -> None:
    """It is rejected as soon as they do, whatever is left of it."""
    salt = tmp_path / "salt"
    salt.write_text("salt")
    rule = {"hash": {"field": ".properties.a", "salt_file": str(salt)}}
    event = {**stamped_event(), "properties": {"a": [0] * 7_000}}
    rig = IntakeRig(rules=[rule], decoder=InProcessDecoder(), max_bytes=2_000_000)
    waiter = Patient()
    assert not rig.offer(json.dumps(batch(*[event] * 40)).encode(), waiter)
    await waiter.called.wait()
    assert "rules make more of the request" in str(waiter.failures[0])
    assert rig.untouched()
    await rig.conditions.close()


async def test_rules_apply_once_to_a_large_record() -> None:
    """Its rules are applied once, when it is back from the decoder process."""
    rig = RecordsRig(rules=RULES, decoder=InProcessDecoder())
    value = record_list(
        batch(
            *[{"event": name, "distinct_id": "d", "uuid": None} for name in ("$autocapture", "e")]
            * 700
        )
    )
    with pytest.raises(Exception, match="decoded"):
        rig.records.accept(value, IntakeCallback(), AckLevel.DELIVERED)
    await rig.conditions.drain(10.0)
    rig.records.accept(value, IntakeCallback(), AckLevel.DELIVERED)
    assert rig.figures(LANE) == (1400, 700, {}, {"rule:noise": 700})
    assert rig.balanced()
    await rig.conditions.close()


@pytest.mark.parametrize(
    "rule",
    [
        {"hash": {"field": [".distinct_id", ".properties.alias"]}},
        {"hash": {"field": [".distinct_id", ".properties[]"]}},
        {"remove": ".properties.alias"},
        {"remove": ".properties[]"},
        {"remove": ".properties"},
    ],
)
def test_order_is_kept_by_the_ids_that_rules_leave(tmp_path: Path, rule: dict[str, Any]) -> None:
    """As it would be after a restart, when the ids are read from the events: no id that a rule
    hides is written beside them.
    """
    salt = tmp_path / "salt"
    salt.write_text("salt")
    if "hash" in rule:
        rule = {"hash": {**rule["hash"], "salt_file": str(salt)}}
    rig = IntakeRig(rules=[rule], ordering=Ordering.PER_DISTINCT_ID)
    rig.take(batch(*[stamped_event(properties={"alias": "ann@example.com"}) for _ in range(2)]))
    (chunk,) = rig.chunks()
    assert chunk.ids == frozenset().union(*map(ids_of, rig.events()))
    assert "ann@example.com" not in chunk.ids
    assert rig.conditions.rules is not None
    assert rig.conditions.rules.counts == {("rule-1", RuleOutcome.CHANGED): 2}


async def test_a_large_record_on_which_rules_fail_too_often_is_one_dead_letter() -> None:
    """With rejections of other kinds, none of which is lost."""
    rig = RecordsRig(rules=[FAILING], decoder=InProcessDecoder(), dead_letter_bytes=100_000_000)
    failing = {**stamped_event(), "properties": {"n": 1}}
    value = record_list(batch(*[failing, {"event": "", "distinct_id": "d"}] * 3000))
    with pytest.raises(StillDecoding):
        rig.records.accept(value, IntakeCallback(), AckLevel.DELIVERED)
    await rig.conditions.drain(10.0)
    rig.records.accept(value, IntakeCallback(), AckLevel.DELIVERED)
    (letter,) = rig.dead_letters.dead_letters
    assert (letter.reason, letter.data) == (Reason.TOO_LARGE, value.values[0])
    assert rig.balanced()
    await rig.conditions.close()
