"""Whole requests: taken or refused as one, split by key, counted in the books, and never anything
but an answer to hostile ones.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from forwarder.core.ack import AckLevel
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    DeadLettersFull,
    Draining,
    ForwarderError,
    InvalidRequest,
    InvalidToken,
    LaneFull,
    RequestTooLarge,
    TooManyLanes,
)
from forwarder.core.event import Lane
from forwarder.core.ports import DropReason, Ordering, Reason
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT
from tests.support.intakes import KEY, NOW, IntakeRig, batch, stamped_event

LANE = Lane(KEY)
BARE = {"event": "e", "distinct_id": "d"}


def keyed(key: str, **changes: Any) -> dict[str, Any]:
    """A bare event with a key of its own."""
    return {**BARE, "token": key, **changes}


def test_a_batch_is_accepted() -> None:
    """Stamped, as one chunk of its lane, counted, and the deliverer is notified once."""
    rig = IntakeRig()
    rig.take(batch(BARE, stamped_event()))
    (chunk,) = rig.chunks()
    assert (chunk.lane, chunk.count, chunk.received_at, chunk.ids) == (
        LANE,
        2,
        MIDNIGHT,
        frozenset(),
    )
    assert [json.loads(event)["timestamp"] for event in rig.events()] == [
        NOW,
        "2025-12-31T12:00:00Z",
    ]
    assert rig.figures(LANE) == (2, 2, {}, {})
    assert rig.books.accounts[LANE].received == {"http": 2}
    assert rig.woken == 1
    assert rig.balanced()


@cases("ip", [None, "8.8.8.8"])
@cases("space", [b"", b"\n", b" \r\n"])
def test_every_shape_is_accepted_with_white_space_around_it(ip: str | None, space: bytes) -> None:
    """A batch, an array and one event, with white space before and after, complete or not, stay
    valid JSON.
    """
    for event in (
        keyed(KEY),
        {**stamped_event(), "token": KEY},
        {**stamped_event(), "api_key": KEY},
    ):
        for body in (event, [event], [event, event], {"batch": [event]}, batch(event)):
            rig = IntakeRig()
            rig.take(space + json.dumps(body).encode() + space, client=ip)
            stamped_events = [json.loads(raw) for raw in rig.events()]
            assert [stamped["event"] for stamped in stamped_events] == [event["event"]] * (
                2 if isinstance(body, list) and len(body) == 2 else 1
            )
            assert all(stamped.get("properties", {}).get("$ip") == ip for stamped in stamped_events)
            assert json.loads(b"[" + rig.chunks()[0].data + b"]") == stamped_events


def test_historical_events_dont_get_the_senders_address() -> None:
    """An import from elsewhere continues as it came; the same events sent live
    get their sender's address.
    """
    sent = [{**stamped_event(), "properties": {"n": 1}}]
    for historical, ip in ((True, None), (False, "8.8.8.8")):
        rig = IntakeRig()
        rig.take(
            json.dumps(
                {"api_key": KEY, "historical_migration": historical, "batch": sent}
            ).encode(),
            client="8.8.8.8",
        )
        assert [json.loads(raw)["properties"].get("$ip") for raw in rig.events()] == [ip]


def test_several_keys_in_one_request() -> None:
    """Each key's events go to its own lane, in order, with the request's
    historical mark; all are counted.
    """
    rig = IntakeRig()
    rig.take(
        {
            "historical_migration": True,
            "batch": [keyed("phc_a", n=1), keyed("phc_b", n=2), keyed("phc_a", n=3)],
        }
    )
    by_lane = {
        chunk.lane: [json.loads(event)["n"] for event in chunk.events()] for chunk in rig.chunks()
    }
    assert by_lane == {Lane("phc_a", historical=True): [1, 3], Lane("phc_b", historical=True): [2]}
    assert rig.woken == 1
    assert rig.balanced()


@cases("ordering", list(Ordering))
def test_ids_are_collected_where_order_needs_them(ordering: Ordering) -> None:
    """For per_distinct_id, the ids of all events; else none."""
    rig = IntakeRig(ordering=ordering)
    rig.take(batch(BARE, stamped_event(properties={"alias": "z"})))
    rig.take({**stamped_event(), "api_key": KEY})
    ordered = ordering is Ordering.PER_DISTINCT_ID
    assert [chunk.ids for chunk in rig.chunks()] == (
        [{"d", "ann", "z"}, {"ann"}] if ordered else [set(), set()]
    )


@cases(
    "body",
    [
        b"",
        b" ",
        b"5",
        b"null",
        b"{}x",
        b"[]",
        b" [ ] ",
        b"nonsense",
        b"\xff\xfe",
        b'{"api_key":"k","batch":[]}',
        b'{"api_key":"k","batch":5}',
        b"[" * 2000,
        b'{"api_key":"k","batch":[' + b"[" * 2000 + b"]" * 2000 + b"]}",
        b'[{"token":"k"},5]',
        b"[5]",
        gzip.compress(b"", mtime=0),
        b'{"api_key":"k","event":"e","distinct_id":"\xed\xa0\x80"}',
        b'{"api_key":"k","event":"e","distinct_id":"d","x":"\xc3"}',
    ],
)
def test_invalid_requests_are_rejected(body: bytes) -> None:
    """Refused with 400, and nothing was counted."""
    rig = IntakeRig()
    with pytest.raises(InvalidRequest):
        rig.take(body)
    assert rig.untouched()


@cases(
    "body",
    [
        BARE,
        [BARE],
        {"batch": [BARE]},
        [keyed("a"), BARE],
        {**BARE, "api_key": "phx_x"},
        {**stamped_event(), "api_key": "é"},
        [keyed("")],
    ],
)
def test_requests_without_a_good_key(body: Any) -> None:
    """Refused with 401, and nothing was counted."""
    rig = IntakeRig()
    with pytest.raises(InvalidToken):
        rig.take(body)
    assert rig.untouched()


def test_keys_that_are_not_configured() -> None:
    """Any event with one refuses its request, whichever way it takes."""
    rig = IntakeRig(api_keys=[KEY])
    surrogate = (
        b'[{"token":"phc_good","event":"e","distinct_id":"d"},{"token":"other","event":"e","di'
        b'stinct_id":"\\ud800"}]'
    )
    for body in (
        [keyed(KEY), keyed("other")],
        {**stamped_event(), "api_key": "other"},
        [keyed("other", event="")],
        surrogate,
    ):
        with pytest.raises(InvalidToken):
            rig.take(body)
    assert rig.untouched()
    rig.take(batch(BARE))


def test_bad_events_become_dead_letters_and_the_others_are_accepted() -> None:
    """Each with its reason, its lane and its own bytes."""
    rig = IntakeRig(max_event=500)
    bad = [
        b'{ "event" : "" }',
        b'{"event":"e"}',
        b"5",
        b'{"event":"e","distinct_id":"d","x":"' + b"y" * 500 + b'"}',
        b'{"event":"e","distinct_id":"\\ud800"}',
    ]
    good = json.dumps(BARE).encode()
    rig.take(b'{"api_key":"%b","batch":[%b]}' % (KEY.encode(), b" , ".join([good, *bad, good])))
    assert len(rig.events()) == 2
    letters = {letter.reason: letter for letter in rig.dead_letters.dead_letters}
    assert {reason: letter.data for reason, letter in letters.items()} == dict(
        zip(
            [
                Reason.MISSING_EVENT,
                Reason.MISSING_DISTINCT_ID,
                Reason.INVALID_EVENT,
                Reason.TOO_LARGE,
                Reason.LONE_SURROGATE,
            ],
            bad,
            strict=True,
        )
    )
    assert {
        (letter.lane, letter.at, letter.source, bool(letter.why)) for letter in letters.values()
    } == {(LANE, MIDNIGHT, "http", True)}
    assert rig.figures(LANE) == (7, 2, dict.fromkeys(letters, 1), {})
    assert rig.balanced()


def test_a_request_of_bad_events_alone_is_accepted() -> None:
    """The contract says 200; no one is woken for it, and no lane is opened."""
    rig = IntakeRig(max_lanes=1)
    rig.take({"api_key": KEY, "distinct_id": "d"})
    rig.take(batch({"event": "e"}, {"event": "e"}, api_key="phc_other"))
    assert (rig.woken, rig.events()) == (0, [])
    assert rig.figures(Lane("phc_other")) == (2, 0, {Reason.MISSING_DISTINCT_ID: 2}, {})


def test_dead_letters_past_their_share_are_dropped_and_counted() -> None:
    """Receipt has a tenth of the room; the rest of the events is dropped, and
    the books still balance.
    """
    rig = IntakeRig(dead_letter_bytes=50_000)
    rig.take(batch(*[{"event": "e", "n": number} for number in range(100)], BARE))
    received, buffered, buried, dropped = rig.figures(LANE)
    letter_count = len(rig.dead_letters.dead_letters)
    assert 0 < letter_count < 100
    assert (received, buffered, buried, dropped) == (
        101,
        1,
        {Reason.MISSING_DISTINCT_ID: letter_count},
        {DropReason.INVALID_OVERFLOW: 100 - letter_count},
    )
    assert rig.balanced()
    assert rig.dead_letters.statistics().bytes <= 5_000


LARGE = {**BARE, "x": "y" * 3000}


def test_what_the_service_would_ingest_is_never_dropped_at_receipt() -> None:
    """An event that is too large is kept; when there is no room for it its request is rejected,
    and nothing of it is accepted.
    """
    rig = IntakeRig(dead_letter_bytes=60_000, max_event=2_000, max_body=5_000)
    rig.take(batch(LARGE, BARE))
    assert rig.figures(LANE) == (2, 1, {Reason.TOO_LARGE: 1}, {})
    for body in (batch(LARGE, BARE), batch({**LARGE, "n": 1}), {**LARGE, "api_key": KEY}):
        with pytest.raises(DeadLettersFull) as caught:
            rig.take(body)
        assert caught.value.retry_after > 0
    assert rig.figures(LANE) == (2, 1, {Reason.TOO_LARGE: 1}, {})
    assert len(rig.dead_letters.dead_letters) == 1
    assert rig.balanced()
    rig.take(batch({"event": "no id"}, BARE))
    assert rig.figures(LANE)[:2] == (4, 2)


def test_an_event_larger_than_all_dead_letters_is_too_large() -> None:
    """Its sender would come again indefinitely."""
    rig = IntakeRig(dead_letter_bytes=3_000, max_event=2_000)
    with pytest.raises(RequestTooLarge):
        rig.take(batch(LARGE, BARE))
    assert rig.untouched()


def test_invalid_events_of_one_key_leave_room_for_other_senders() -> None:
    """They fill what they may, are dropped beyond it, and leave room for what
    has to be kept of others.
    """
    rig = IntakeRig(dead_letter_bytes=400_000, max_event=2_000)
    for _ in range(20):
        rig.take(batch(*[{"distinct_id": "d", "n": number} for number in range(20)], BARE))
    assert rig.figures(LANE).dropped[DropReason.INVALID_OVERFLOW] > 0
    rig.take(batch(LARGE, BARE, api_key="phc_other"))
    assert rig.figures(Lane("phc_other")) == (2, 1, {Reason.TOO_LARGE: 1}, {})
    assert rig.balanced()


@cases("level", [AckLevel.MEMORY, AckLevel.DISK, AckLevel.DELIVERED])
def test_room_among_the_dead_letters_is_free_again_when_the_buffer_has_none(
    level: AckLevel,
) -> None:
    """At once or later."""
    rig = IntakeRig(max_event=2_000, ack=level, durable=True, max_bytes=3_000)
    rig.take(batch(BARE, BARE, BARE))
    rig.slow.finish_writes()
    before = rig.dead_letters.statistics()
    for full in (False, True):
        if full:
            rig.buffer.max_bytes = rig.buffer.used + 500
            with pytest.raises(Backpressure):
                rig.take(batch(LARGE, BARE))
        elif level is not AckLevel.MEMORY:
            rig.take(batch(LARGE, BARE))
            assert rig.dead_letters.statistics() != before
            rig.slow.fail_writes()
        assert rig.dead_letters.statistics() == before
    rig.admission.end_waiting()
    assert rig.balanced()


LONE = b'{"token":"%b" , "event":"e","distinct_id":"d","x":"\\uD83D half","n":1e0}'


@cases(
    "wrap",
    [b"%b", b" %b\n", b"[%b]", b'[%b , {"token":"phc_good","event":"ok","distinct_id":"d"}]'],
)
def test_a_lone_surrogate_dead_letters_its_event_alone(wrap: bytes) -> None:
    """In any shape, with the bytes that were sent; its neighbours continue, also those of
    another key.
    """
    rig = IntakeRig()
    lone = LONE % b"phc_other"
    rig.take(wrap % lone)
    assert [
        (letter.reason, letter.lane, letter.data) for letter in rig.dead_letters.dead_letters
    ] == [(Reason.LONE_SURROGATE, Lane("phc_other"), lone)]
    assert [json.loads(event)["event"] for event in rig.events()] == (
        ["ok"] if b"ok" in wrap else []
    )
    assert rig.balanced()


def test_surrogate_pairs_are_kept_as_they_are() -> None:
    """An escaped character outside the basic plane stays escaped."""
    rig = IntakeRig()
    rig.take(
        b'{"api_key":"%b","event":"\\ud83d\\ude00","distinct_id":"d","batch":null}' % KEY.encode()
    )
    assert b'"\\ud83d\\ude00"' in rig.events()[0]
    assert not rig.dead_letters.dead_letters


def test_nan_becomes_null_and_is_counted() -> None:
    """Outside strings; and only where the request is taken."""
    rig = IntakeRig()
    rig.take(
        b'{"api_key":"phc_good","batch":[{"event":"NaN","distinct_id":"d","properties":{"a":NaN,"b'
        b'":[-Infinity,"Infinity"]}}]}'
    )
    assert rig.one()["properties"] == {"a": None, "b": [None, "Infinity"]}
    assert rig.one()["event"] == "NaN"
    assert rig.intake.statistics().nulled_numbers == 2
    rig.conditions.draining = True
    with pytest.raises(Draining):
        rig.take(b'{"api_key":"phc_good","event":"e","distinct_id":"d","a":NaN}')
    assert rig.intake.statistics().nulled_numbers == 2


BIG = {**BARE, "x": "y" * 20_000}


def refused_rig(why: str) -> IntakeRig:
    """An intake that has no room for what comes next, for one reason."""
    rig = IntakeRig(max_bytes=100_000, max_lanes=2 if why == "lanes" else 10)
    for size, key in {
        "lane": [(70_000, "phc_full")],
        "buffer": [(60_000, "phc_full"), (25_000, "phc_b")],
        "lanes": [(10, "phc_a"), (10, "phc_b")],
        "halted": [(5_000, "phc_full")],
    }.get(why, []):
        rig.take({**BARE, "api_key": key, "x": "y" * size})
    rig.halted |= {Lane("phc_full")} if why == "halted" else set()
    rig.conditions.draining = why == "draining"
    return rig


@cases(
    ("why", "error"),
    [
        ("lane", LaneFull),
        ("buffer", BufferFull),
        ("lanes", TooManyLanes),
        ("halted", LaneFull),
        ("draining", Draining),
    ],
)
@cases("first", [True, False])
def test_a_request_is_accepted_whole_or_rejected(
    why: str, error: type[ForwarderError], first: bool
) -> None:
    """Where one lane of a request has no room, no other lane takes anything, nothing is buried and
    nothing is counted.
    """
    rig = refused_rig(why)
    before = (
        rig.events(),
        rig.buffer.used,
        {lane: rig.figures(lane) for lane in rig.books.accounts},
        rig.woken,
    )
    full = keyed("phc_full", x=BIG["x"])
    other = keyed("phc_other")
    events = [full, other] if first else [other, full]
    with pytest.raises(error):
        rig.take([*events, keyed("phc_other", event="")])
    with pytest.raises(error):
        rig.take(
            {
                **stamped_event(),
                "api_key": "phc_new" if why == "lanes" else "phc_full",
                "x": BIG["x"],
            }
        )
    assert (
        rig.events(),
        rig.buffer.used,
        {lane: rig.figures(lane) for lane in rig.books.accounts},
        rig.woken,
    ) == before
    assert not rig.dead_letters.dead_letters
    assert rig.balanced()


def test_what_can_never_fit_is_too_large() -> None:
    """413, not 503: coming again would not help; and nothing was taken."""
    rig = IntakeRig(max_bytes=100_000)
    single = {**stamped_event(), "api_key": KEY, "x": "y" * 90_000}
    for body in (
        single,
        batch(*[BIG] * 5),
        batch(*[{}] * 1000),
        [keyed("a", x="y" * 45_000), keyed("b", x="y" * 45_000), keyed("c", x="y" * 45_000)],
    ):
        with pytest.raises(RequestTooLarge):
            rig.take(body)
    assert rig.untouched()


@pytest.mark.parametrize("event", [keyed("{}"), keyed("{}", event="")])
def test_more_keys_than_can_be_held_are_too_large(event: dict[str, Any]) -> None:
    """Coming again would not help, whether the events are good or not; as many
    as there may be are taken.
    """
    rig = IntakeRig(max_lanes=10)
    with pytest.raises(RequestTooLarge):
        rig.take([{**event, "token": f"phc_{number}"} for number in range(11)])
    assert rig.untouched()
    rig.take([{**event, "token": f"phc_{number}"} for number in range(10)])
    assert rig.balanced()
