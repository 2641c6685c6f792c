"""The traps for a forwarder that belong to receipt (wire facts: Twenty traps), each by its number.

The others are of the way upstream (6, in part; 9 to 12, 19, 20 in part) and have their tests with
delivery, listener and batching.
"""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
from typing import Any
from urllib.parse import quote_plus

import pytest

from forwarder.core.errors import RequestTooLarge
from forwarder.core.event import Lane
from forwarder.core.ports import Ordering, Reason
from forwarder.core.stamps import is_uuid
from forwarder.wire.envelope import envelope_head
from tests.support.cases import cases
from tests.support.intakes import KEY, NOW, UUID, IntakeRig, batch, stamped_event
from tests.support.lz64 import compress

LANE = Lane(KEY)
FORM = b"application/x-www-form-urlencoded"


@cases(
    "bad",
    [
        {"distinct_id": "d"},
        {"event": "e"},
        {"event": "", "distinct_id": "d"},
        {"event": "e", "distinct_id": " "},
        5,
        None,
        [],
    ],
)
def test_trap_1_one_bad_element_does_not_reach_the_merged_batch(bad: Any) -> None:
    """Events are checked one by one before those of several senders are merged:
    the good ones continue alone.
    """
    rig = IntakeRig()
    rig.take(batch(stamped_event(n=1), bad, stamped_event(n=2)))
    assert [json.loads(event)["n"] for event in rig.events()] == [1, 2]
    assert len(rig.dead_letters.dead_letters) == 1


def test_trap_2_an_event_without_name_or_id_is_answered_200() -> None:
    """By the contract it is taken without an error, by the service refused: it is taken, and kept
    as a dead letter.
    """
    rig = IntakeRig()
    rig.take({"api_key": KEY, "event": "e"})
    rig.take({"api_key": KEY, "distinct_id": "d"})
    assert [letter.reason for letter in rig.dead_letters.dead_letters] == [
        Reason.MISSING_DISTINCT_ID,
        Reason.MISSING_EVENT,
    ]
    assert rig.events() == []


@pytest.mark.parametrize(
    ("sent_at", "timestamp"),
    [
        ("2026-01-01T01:00:00Z", "2025-12-31T11:00:00.000Z"),
        ("2026-01-01T00:00:00.9Z", "2025-12-31T12:00:00Z"),
    ],
)
def test_trap_3_sent_at_is_resolved_at_receipt(sent_at: str, timestamp: str) -> None:
    """A sender's clock that is an hour ahead is corrected now; under a second is the network's;
    `sent_at` is never sent on.
    """
    rig = IntakeRig()
    rig.take(batch(stamped_event(), sent_at=sent_at))
    assert rig.one()["timestamp"] == timestamp
    assert b"sent_at" not in rig.events()[0] + envelope_head(LANE)


def test_trap_4_an_event_without_a_timestamp_gets_the_time_of_receipt() -> None:
    """Absent, null, empty or unreadable: else the service would take its own time, hours later."""
    for timestamp in (
        {},
        {"timestamp": None},
        {"timestamp": ""},
        {"timestamp": "soon"},
        {"timestamp": 5},
    ):
        rig = IntakeRig()
        rig.take({"api_key": KEY, "event": "e", "distinct_id": "d", **timestamp})
        assert rig.one()["timestamp"] == NOW


@pytest.mark.parametrize(
    ("envelope", "timestamp"),
    [
        ({}, "2025-12-31T23:58:20.000Z"),
        ({"sent_at": "2026-01-01T00:00:00Z"}, "2025-12-31T12:00:00Z"),
    ],
)
def test_trap_5_offset_is_resolved_and_removed(envelope: dict[str, str], timestamp: str) -> None:
    """Milliseconds ago, counted from now; it wins over a timestamp, but not where `sent_at` is
    there; afterwards it is gone.
    """
    rig = IntakeRig()
    rig.take(batch(stamped_event(offset=100_000), **envelope))
    assert rig.one()["timestamp"] == timestamp
    assert "offset" not in rig.one()
    alone = IntakeRig()
    alone.take(batch({"event": "e", "distinct_id": "d", "offset": 100_000}, **envelope))
    assert alone.one()["timestamp"] == "2025-12-31T23:58:20.000Z"


@cases("uuid", [{}, {"uuid": None}, {"uuid": ""}, {"uuid": "nonsense"}, {"uuid": 7}])
def test_trap_6_a_uuid_is_there_before_the_first_attempt(uuid: dict[str, Any]) -> None:
    """What is buffered has its uuid; every attempt reads the same bytes."""
    rig = IntakeRig()
    rig.take(batch({"event": "e", "distinct_id": "d", **uuid}))
    first = rig.one()["uuid"]
    assert is_uuid(first.encode())
    assert rig.one()["uuid"] == first


def test_trap_7_keys_and_historical_values_do_not_mix() -> None:
    """Each pair of key and historical value is a lane of its own."""
    rig = IntakeRig()
    event = {"event": "e", "distinct_id": "d"}
    rig.take([{**event, "token": "phc_a"}, {**event, "token": "phc_b"}])
    rig.take({"api_key": "phc_a", "historical_migration": True, "batch": [event]})
    assert {chunk.lane: chunk.count for chunk in rig.chunks()} == {
        Lane("phc_a"): 1,
        Lane("phc_b"): 1,
        Lane("phc_a", historical=True): 1,
    }


def test_trap_8_the_address_of_the_sender_is_kept() -> None:
    """As `$ip`, where the listener says whose it is; not over one that is there,
    nor with `$geoip_disable`.
    """
    rig = IntakeRig()
    rig.take(batch(stamped_event()), client="2001:db8::1")
    rig.take(batch(stamped_event(properties={"$ip": "1.1.1.1"})), client="8.8.8.8")
    rig.take(batch(stamped_event(properties={"$geoip_disable": True})), client="8.8.8.8")
    rig.take(batch(stamped_event()))
    assert [json.loads(event)["properties"].get("$ip") for event in rig.events()] == [
        "2001:db8::1",
        "1.1.1.1",
        None,
        None,
    ]


BODY = json.dumps(batch(stamped_event(text="a+b ÿ😀?>"))).encode()


@cases(
    "hints",
    [
        {},
        {"content_encoding": b"gzip"},
        {"query": b"compression=gzip-js"},
        {"query": b"compression=lz64"},
    ],
)
def test_trap_13_gzip_without_a_hint_and_hints_on_plain_bodies(hints: dict[str, Any]) -> None:
    """The bytes decide: gzip is known by its first two, whatever is said."""
    for body in (BODY, gzip.compress(BODY)):
        rig = IntakeRig()
        rig.take(body, content_type=b"text/plain", **hints)
        assert rig.one()["text"] == "a+b ÿ😀?>"


def test_trap_14_a_plus_in_a_form_is_not_a_space() -> None:
    """Base64 in a form may come with its `+` turned to spaces; JSON in a form has real ones."""
    text = next(
        body
        for pad in range(99)
        if b"+" in base64.b64encode(body := BODY.replace(b'"click"', b'"%b>>"' % (b"c" * pad)))
    )
    encoded = base64.b64encode(text)
    for body in (
        encoded,
        encoded.replace(b"+", b" "),
        encoded.replace(b"+", b"%2B"),
        quote_plus(text).encode(),
    ):
        rig = IntakeRig()
        rig.take(b"data=" + body, content_type=FORM)
        assert rig.one()["text"] == "a+b ÿ😀?>"


@pytest.mark.slow
@cases("kind", ["gzip", "lz64", "base64 of gzip"])
def test_trap_15_bombs_are_cut_off(kind: str) -> None:
    """A small body that stands for a very large one is refused while it is decompressed."""
    bomb = "[" + " " * 1_500_000 + "]"
    packed = compress(bomb) if kind == "lz64" else gzip.compress(bomb.encode())
    body = base64.b64encode(packed) if kind == "base64 of gzip" else packed
    rig = IntakeRig(max_body=100_000)
    tracemalloc.start()
    with pytest.raises(RequestTooLarge):
        rig.take(body, query=b"compression=lz64" if kind == "lz64" else b"")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_200_000
    assert rig.untouched()


@cases(
    "timestamp",
    [
        "2025-12-31T12:00:00",
        "2025-12-31T12:00:00+03",
        "2025-12-31T12:00:00.123456789+03",
        "2025-12-31",
    ],
)
def test_trap_16_odd_zones_are_times(timestamp: str) -> None:
    """No zone is UTC, `+03` is an offset; they are good, and keep their bytes unless the sender's
    clock is off.
    """
    rig = IntakeRig()
    rig.take(batch(stamped_event(timestamp=timestamp)))
    assert rig.one()["timestamp"] == timestamp
    rig.take(
        batch(stamped_event(timestamp="2025-12-31T12:00:00+03"), sent_at="2026-01-01T04:00:00+03")
    )
    assert json.loads(rig.events()[1])["timestamp"] == "2025-12-31T08:00:00.000Z"


def test_trap_17_properties_keep_their_bytes() -> None:
    """Large integers, `1.0`, exponents, key order, duplicate keys, escapes and spacing."""
    properties = (
        b'{ "z":12345678901234567890123, "a" : 1.0,"a":1e5 ,"e":"\\u00e9\\/", "n":-0, "f":0.10 }'
    )
    event = b'{"event":"e","distinct_id":"d","properties":%b}' % properties
    for client in (None, "8.8.8.8"):
        rig = IntakeRig()
        rig.take(b'{"api_key":"phc_good","batch":[%b]}' % event, client=client)
        assert properties in rig.events()[0].replace(b'"$ip":"8.8.8.8",', b"")


def test_trap_18_surrogates_and_nan_do_not_poison_the_batch() -> None:
    """NaN becomes null; an event with half a character is kept apart; the batch upstream is valid
    JSON for strict readers.
    """
    rig = IntakeRig()
    good = b'{"event":"e","distinct_id":"d","properties":{"n":NaN}}'
    lone = b'{"event":"e","distinct_id":"d","properties":{"s":"\\udead"}}'
    rig.take(b'{"api_key":"phc_good","batch":[%b,%b]}' % (good, lone))
    assert rig.one()["properties"] == {"n": None}
    assert [(letter.reason, letter.data) for letter in rig.dead_letters.dead_letters] == [
        (Reason.LONE_SURROGATE, lone)
    ]


@cases(
    ("event", "ids"),
    [
        (
            stamped_event(event="$identify", properties={"$anon_distinct_id": "anon"}),
            {"ann", "anon"},
        ),
        (stamped_event(event="$create_alias", properties={"alias": "other"}), {"ann", "other"}),
        (
            {"event": "$create_alias", "properties": {"distinct_id": "ann", "alias": "other"}},
            {"ann", "other"},
        ),
        (stamped_event(), {"ann"}),
    ],
)
def test_trap_19_both_ids_of_an_event_are_known(event: dict[str, Any], ids: set[str]) -> None:
    """An event that names a second id is ordered with both; anyone who delivers
    need not look into it again.
    """
    rig = IntakeRig(ordering=Ordering.PER_DISTINCT_ID)
    rig.take(batch(event))
    assert rig.chunks()[0].ids == ids


def test_trap_20_a_single_oversized_event_goes_to_the_dead_letters() -> None:
    """Alone among others, before it can make the upstream refuse them all."""
    rig = IntakeRig(max_event=1000)
    rig.take(batch(stamped_event(n=1), stamped_event(x="y" * 1000), stamped_event(n=2)))
    assert [json.loads(event)["n"] for event in rig.events()] == [1, 2]
    assert [
        (letter.reason, len(letter.data) > 1000) for letter in rig.dead_letters.dead_letters
    ] == [(Reason.TOO_LARGE, True)]
    assert UUID in rig.dead_letters.dead_letters[0].data.decode()
