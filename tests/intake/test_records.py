"""Batches of records from a source: what each record becomes, in which order, and when the batch is
acknowledged.
"""

from __future__ import annotations

import base64
import gzip
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from forwarder.core.ack import AckLevel
from forwarder.core.errors import (
    BufferFull,
    DeadLettersFull,
    Draining,
    LaneFull,
    MemoryShort,
    TogetherTooLarge,
    TooManyLanes,
)
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DropReason, Fate, Incoming, Ordering, Reason, WhenFull
from forwarder.core.record_intake import RecordFacts, RejectedRecord
from forwarder.core.stamps import RECORD_NAMESPACE
from tests.support.cases import cases
from tests.support.intakes import KEY, UUID, LaneFigures, batch, stamped_event, unique
from tests.support.records import AT, PLACE, RecordList, RecordsRig, record_list
from tests.support.waiters import IntakeCallback

LANE = Lane(KEY)
OTHER = Lane("phc_other")
NOW = "2026-01-01T00:00:00.123Z"
"""`AT`, as a stamp."""


def accept(
    rig: RecordsRig, records: RecordList, level: AckLevel = AckLevel.DELIVERED
) -> IntakeCallback:
    """Have a batch accepted; return its callback."""
    callback = IntakeCallback()
    callback.reached = rig.records.accept(records, callback, level) is None
    assert rig.balanced()
    return callback


def deliver(rig: RecordsRig, lane: Lane = LANE) -> list[Chunk]:
    """Deliver all pending events of a lane."""
    queue = rig.buffer.queue(lane)
    chunks = [queue.popleft() for _ in range(len(queue))]
    for chunk in chunks:
        rig.books.deliver(lane, chunk.count)
        rig.buffer.settle([chunk], Fate.DELIVERED)
    return chunks


def derived_uuid(offset: int, index: int = 0) -> str:
    """The uuid of an event without one: number `index` in the record at this offset."""
    return str(uuid.uuid5(uuid.UUID(bytes=RECORD_NAMESPACE), f"{PLACE}/{offset}/{index}"))


def dead_letters(rig: RecordsRig) -> list[tuple[Reason, Lane | None, bytes]]:
    """Reason, lane and data of each dead letter."""
    return [
        (dead_letter.reason, dead_letter.lane, dead_letter.data)
        for dead_letter in rig.dead_letters.dead_letters
    ]


# Complete records


def test_complete_records_are_joined_unchanged_in_one_chunk() -> None:
    """Their order is that of the records. The facts of the records aren't even read."""
    rig = RecordsRig()
    records = record_list(*[stamped_event(n=n) for n in range(5)])
    callback = accept(rig, records)
    (chunk,) = rig.chunks()
    assert chunk.events() == list(records.values)
    assert (chunk.lane, chunk.source, chunk.ids, chunk.received_at) == (
        LANE,
        "kafka",
        frozenset(),
        rig.clock.now(),
    )
    assert (records.facts_read, callback.code, rig.woken) == ([], "waiting", 1)
    assert rig.figures(LANE) == LaneFigures(received=5, buffered=5)
    deliver(rig)
    assert callback.code == "accepted"


def test_a_records_own_project_key_wins_over_the_configured_one() -> None:
    """Each lane has its events in the order of the records."""
    rig = RecordsRig()
    own = [stamped_event(n=n, api_key="phc_other") for n in range(2)]
    records = record_list(own[0], stamped_event(n=9), own[1], stamped_event(n=8))
    accept(rig, records)
    by_lane = {
        chunk.lane: [json.loads(event)["n"] for event in chunk.events()] for chunk in rig.chunks()
    }
    assert by_lane == {OTHER: [0, 1], LANE: [9, 8]}


@cases("where", ["token", "$token", "properties"])
def test_a_project_key_is_also_read_from_token_fields(where: str) -> None:
    """Such a key wins over the configured one, too."""
    rig = RecordsRig()
    with_key = (
        {"properties": {"token": "phc_other"}} if where == "properties" else {where: "phc_other"}
    )
    accept(rig, record_list(stamped_event(), stamped_event(**with_key)))
    assert {chunk.lane for chunk in rig.chunks()} == {LANE, OTHER}


def test_a_project_key_can_come_from_the_records_header() -> None:
    """Each record can have another one."""
    rig = RecordsRig()
    accept(rig, record_list(stamped_event(), api_key=None, header_key="phc_other"))
    assert [chunk.lane for chunk in rig.chunks()] == [OTHER]


def test_ordering_keys_include_all_ids_of_the_events() -> None:
    """`$anon_distinct_id` is one of them. The same for complete records, incomplete ones, and
    arrays.
    """
    rig = RecordsRig(ordering=Ordering.PER_DISTINCT_ID)
    accept(
        rig,
        record_list(
            stamped_event(distinct_id="ann"),
            stamped_event(distinct_id="bob", properties={"$anon_distinct_id": "anon"}),
        ),
    )
    accept(
        rig,
        record_list(
            stamped_event(distinct_id="ann", uuid=None),
            b"[%b]" % json.dumps(stamped_event(distinct_id="cat")).encode(),
        ),
    )
    assert [chunk.ids for chunk in rig.chunks()] == [{"ann", "bob", "anon"}, {"ann", "cat"}]


def test_the_list_of_allowed_keys_does_not_apply_to_records() -> None:
    """Only HTTP senders are limited to `api_keys`."""
    rig = RecordsRig(api_keys=["phc_web"])
    accept(rig, record_list(stamped_event()))
    assert [chunk.lane for chunk in rig.chunks()] == [LANE]


# Incomplete events


def test_missing_fields_are_filled_from_the_record() -> None:
    """Offset, time and key of the record become uuid, timestamp and distinct_id. The event is the
    same, byte for byte, each time the record is read.
    """
    readings = []
    for _ in range(2):
        rig = RecordsRig()
        accept(
            rig,
            record_list(
                {"event": "a"},
                stamped_event(),
                {"event": "b", "distinct_id": "own"},
                offset=7,
                distinct_id="key",
            ),
        )
        readings.append(rig.events())
    assert readings[0] == readings[1]
    first, second, third = (unique(event) for event in readings[0])
    assert first == {"uuid": derived_uuid(7), "timestamp": NOW, "distinct_id": "key", "event": "a"}
    assert second == stamped_event()
    assert (third["uuid"], third["distinct_id"]) == (derived_uuid(9), "own")


def test_the_records_key_is_the_distinct_id_of_events_without_one() -> None:
    """An event can have its distinct_id in three fields. A blank one is replaced."""
    rig = RecordsRig(ordering=Ordering.PER_DISTINCT_ID)
    ids: list[dict[str, Any]] = [
        {"distinct_id": "a"},
        {"$distinct_id": "b"},
        {"properties": {"distinct_id": "c"}},
        {"distinct_id": ""},
        {},
    ]
    accept(rig, record_list(*[{"event": "x", **fields} for fields in ids], distinct_id="key"))
    assert [unique(event).get("distinct_id") for event in rig.events()] == [
        "a",
        None,
        None,
        "key",
        "key",
    ]
    assert [chunk.ids for chunk in rig.chunks()] == [{"a", "b", "c", "key"}]


def test_the_uuid_depends_on_the_index_of_the_event_in_its_record() -> None:
    """It is the index in the whole record, even if its events go to different lanes."""
    rig = RecordsRig()
    events = [
        {"event": str(n), "distinct_id": "ann", "api_key": ["phc_other", KEY][n % 2]}
        for n in range(4)
    ]
    accept(rig, record_list(events, offset=3))
    uuids = {event["event"]: event["uuid"] for event in map(unique, rig.events())}
    assert uuids == {str(n): derived_uuid(3, n) for n in range(4)}


@cases("at", [None, float("nan"), float("inf"), 1e18, -1.0])
def test_an_event_without_a_time_of_its_own_or_its_record_is_dead_lettered(
    at: float | None,
) -> None:
    """An event with a timestamp of its own, or with an offset, is accepted."""
    rig = RecordsRig()
    timeless = stamped_event(timestamp=None)
    offset = stamped_event(offset=1000)
    accept(rig, record_list(timeless, stamped_event(n=1), offset, at=at))
    assert dead_letters(rig) == [(Reason.MISSING_TIMESTAMP, LANE, json.dumps(timeless).encode())]
    assert [unique(event) for event in rig.events()] == [stamped_event(n=1), stamped_event()]


def test_skew_and_offset_are_relative_to_the_records_time() -> None:
    """The time at which the record is read makes no difference."""
    rig = RecordsRig()
    rig.clock.step(1_000_000.0)
    skewed = stamped_event(timestamp="2026-01-01T01:00:00Z", sent_at="2026-01-01T01:00:10.123Z")
    ago = stamped_event(timestamp=None, offset=1000)
    accept(rig, record_list(skewed, ago))
    first, second = (unique(event) for event in rig.events())
    assert first["timestamp"] == "2025-12-31T23:59:50.000Z"
    assert second["timestamp"] == "2025-12-31T23:59:59.123Z"


def test_an_invalid_or_blank_record_key_is_no_distinct_id() -> None:
    """A lone surrogate is no valid text."""
    for distinct_id in ("\ud800", " ", ""):
        rig = RecordsRig()
        accept(rig, record_list({"event": "a"}, distinct_id=distinct_id))
        assert dead_letters(rig) == [(Reason.MISSING_DISTINCT_ID, LANE, b'{"event": "a"}')]


# Other forms of records

FORMS: dict[str, Callable[[Any], bytes]] = {
    "event": lambda event: json.dumps(event).encode(),
    "with white space": lambda event: b" \n%b\n " % json.dumps(event).encode(),
    "array": lambda event: json.dumps([event]).encode(),
    "batch": lambda event: json.dumps(batch(event)).encode(),
    "gzip": lambda event: gzip.compress(json.dumps(event).encode()),
    "base64": lambda event: base64.b64encode(json.dumps(event).encode()),
    "byte order mark": lambda event: b"\xef\xbb\xbf" + json.dumps(event).encode(),
}


@cases("form", FORMS)
def test_a_record_can_have_every_form_of_a_request_body(form: str) -> None:
    """Order is kept among records of different forms."""
    rig = RecordsRig()
    values = [
        json.dumps(stamped_event(n=0)).encode(),
        FORMS[form](stamped_event(n=1)),
        json.dumps(stamped_event(n=2)).encode(),
    ]
    accept(rig, record_list(*values))
    assert [unique(event)["n"] for event in rig.events()] == [0, 1, 2]
    assert len(rig.chunks()) == 1


def test_historical_records_go_to_the_historical_lane() -> None:
    """Whether the batch or the event says that it is historical."""
    rig = RecordsRig(ordering=Ordering.PER_DISTINCT_ID)
    accept(
        rig,
        record_list(
            batch(stamped_event(), historical_migration=True),
            stamped_event(historical_migration=True),
        ),
    )
    assert [(chunk.lane, chunk.count, chunk.ids) for chunk in rig.chunks()] == [
        (Lane(KEY, historical=True), 2, frozenset({"ann"}))
    ]


def test_nan_becomes_null_and_is_counted() -> None:
    """The same as in a request."""
    rig = RecordsRig()
    accept(rig, record_list(b'{"event":"a","distinct_id":"ann","n":NaN}'))
    assert rig.one()["n"] is None
    assert rig.intake.statistics().nulled_numbers == 1


def test_records_get_no_ip_address() -> None:
    """A record has no client whose address could be added."""
    rig = RecordsRig()
    accept(rig, record_list({"event": "a", "distinct_id": "ann", "properties": {}}))
    assert rig.one()["properties"] == {}


# Invalid records


@cases(
    ("record", "reason", "lane"),
    [
        (b"rubbish", Reason.UNDECODABLE, None),
        (b"", Reason.UNDECODABLE, None),
        (b"\xff\xfe", Reason.UNDECODABLE, None),
        (b"17", Reason.UNDECODABLE, None),
        (b'{"event":"a"', Reason.UNDECODABLE, None),
        (b'{"event":"a"},{"event":"b"}', Reason.UNDECODABLE, None),
        (b'{"batch":[]}', Reason.UNDECODABLE, None),
        (b"[]", Reason.UNDECODABLE, None),
        (b'{"batch":{}}', Reason.UNDECODABLE, None),
        (
            b'{"historical_migration":1,"batch":[{"event":"a","distinct_id":"x"}]}',
            Reason.UNDECODABLE,
            None,
        ),
        (
            json.dumps({**stamped_event(), "historical_migration": "true"}).encode(),
            Reason.UNDECODABLE,
            None,
        ),
        (b'{"event":"a","distinct_id":null}', Reason.MISSING_DISTINCT_ID, LANE),
        (b'{"batch":null,"distinct_id":"x"}', Reason.MISSING_EVENT, LANE),
        (b'{"event":"a","distinct_id":"\xff"}', Reason.UNDECODABLE, None),
        (
            json.dumps(stamped_event(p="?")).encode().replace(b"?", b"\xff"),
            Reason.UNDECODABLE,
            None,
        ),
        (
            json.dumps(stamped_event(p="?")).encode().replace(b'"?"', b"0" * 5 + b"1"),
            Reason.UNDECODABLE,
            None,
        ),
        (b"\x1f\x8bnogzip", Reason.UNDECODABLE, None),
        (b"[" * 100_000, Reason.UNDECODABLE, None),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, Reason.UNDECODABLE, None),
        (b'{"event":"a","distinct_id":"x","api_key":"phx_secret"}', Reason.INVALID_TOKEN, None),
        (b'{"event":"a","distinct_id":"x","api_key":7}', Reason.INVALID_TOKEN, None),
        (b'{"distinct_id":"x"}', Reason.MISSING_EVENT, LANE),
        (b'{"event":7,"distinct_id":"x"}', Reason.INVALID_EVENT, LANE),
        (b'{"event":"a"}', Reason.MISSING_DISTINCT_ID, LANE),
        (b'{"event":"\\ud800","distinct_id":"x"}', Reason.LONE_SURROGATE, LANE),
        (b'{"event":"a","distinct_id":"x","p":"%b"}' % (b"x" * 1000), Reason.TOO_LARGE, LANE),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_invalid_records_become_dead_letters(
    record: bytes, reason: Reason, lane: Lane | None
) -> None:
    """The dead letter has the record's bytes, its position, and what its source knows of it. The
    records beside it are accepted.
    """
    rig = RecordsRig(max_event=800)
    callback = accept(rig, record_list(stamped_event(n=0), record, stamped_event(n=1), offset=40))
    (dead_letter,) = rig.dead_letters.dead_letters
    assert (dead_letter.reason, dead_letter.lane, dead_letter.data, dead_letter.source) == (
        reason,
        lane,
        record,
        "kafka",
    )
    assert dead_letter.coordinates == f"{PLACE}/41"
    assert json.loads(dead_letter.attributes)["offset"] == 41
    assert dead_letter.why
    assert dead_letter.at == rig.clock.now()  # the record's own time is still to come
    assert [unique(event)["n"] for event in rig.events()] == [0, 1]
    account = rig.books.accounts[lane]
    assert (account.dead_lettered, account.received["kafka"]) == (
        {reason: 1},
        1 if lane is None else 3,
    )
    deliver(rig)
    assert callback.code == "accepted"


@cases(
    "odd",
    [
        {"batch": None},
        {"historical_migration": None},
        {"properties": 5},
        {"timestamp": 5},
        {"timestamp": "yesterday"},
        {"distinct_id": 5},
        {"groups": 5},
    ],
    ids=str,
)
def test_odd_values_that_requests_may_have_are_accepted_in_records(odd: dict[str, Any]) -> None:
    """These are the odd bodies of docs/maintainers/interface.md. Only a timestamp is corrected."""
    rig = RecordsRig()
    accept(rig, record_list({**stamped_event(), **odd}))
    assert rig.dead_letters.dead_letters == []
    accepted = rig.one()
    for name, value in odd.items():
        assert name == "timestamp" or accepted[name] == value


@pytest.mark.parametrize(
    ("record", "lane"), [(b"[5]", None), (b'{"api_key":"%b","batch":[5]}' % KEY.encode(), LANE)]
)
def test_an_array_element_that_is_not_an_object_is_dead_lettered(
    record: bytes, lane: Lane | None
) -> None:
    """The dead letter has only the element, and the key of the batch that it was in."""
    rig = RecordsRig()
    accept(rig, record_list(stamped_event(), record))
    assert dead_letters(rig) == [(Reason.INVALID_EVENT, lane, b"5")]


def test_an_invalid_key_does_not_affect_the_other_events_of_a_record() -> None:
    """Nor does an element that is not an object."""
    rig = RecordsRig()
    good = stamped_event(api_key=KEY)
    bad = stamped_event(api_key="phx_x")
    accept(rig, record_list([good, bad, 17], api_key=None))
    assert [unique(event) for event in rig.events()] == [good]
    assert dead_letters(rig) == [
        (Reason.INVALID_TOKEN, None, json.dumps(bad).encode()),
        (Reason.INVALID_EVENT, None, b"17"),
    ]


def test_a_record_without_a_valid_project_key_is_dead_lettered() -> None:
    """The same if the configured key, or that of the header, is invalid."""
    for keys in (
        {"api_key": None},
        {"api_key": "\u2603"},
        {"api_key": None, "header_key": "phx_x"},
        {"api_key": None, "header_key": ""},
    ):
        rig = RecordsRig()
        accept(rig, record_list(stamped_event(), **keys))
        assert [(reason, lane) for reason, lane, _ in dead_letters(rig)] == [
            (Reason.INVALID_TOKEN, None)
        ]


def test_records_that_their_source_rejects_become_dead_letters() -> None:
    """The dead letter has the reason that the source gives, and the time of the record."""
    rig = RecordsRig()
    rig.clock.step(AT + 100 - rig.clock.now())
    rejected = RejectedRecord(
        RecordFacts(f"{PLACE}/5", AT),
        Reason.UNMAPPABLE,
        b"csv,line",
        "no field `id`",
        '{"offset":5}',
    )
    callback = accept(rig, RecordList([], rejected=[rejected]))
    (dead_letter,) = rig.dead_letters.dead_letters
    assert (dead_letter.reason, dead_letter.lane, dead_letter.data, dead_letter.why) == (
        Reason.UNMAPPABLE,
        None,
        b"csv,line",
        "no field `id`",
    )
    assert (dead_letter.coordinates, dead_letter.attributes, dead_letter.at) == (
        f"{PLACE}/5",
        '{"offset":5}',
        AT,
    )
    assert callback.code == "accepted"


def test_a_record_that_decompresses_to_too_much_is_dead_lettered() -> None:
    """Decompression stops at the limit."""
    rig = RecordsRig(max_body=10_000)
    bomb = gzip.compress(b" " * 1_000_000)
    accept(rig, record_list(bomb))
    assert dead_letters(rig) == [(Reason.TOO_LARGE, None, bomb)]


# No room


def test_records_that_are_too_large_together_have_to_be_split() -> None:
    """A record that is too large alone becomes a dead letter."""
    rig = RecordsRig(max_bytes=23_500)
    large = stamped_event(properties={"p": "x" * 9_000})
    with pytest.raises(TogetherTooLarge):
        accept(rig, record_list(*[large] * 3))
    assert rig.untouched()
    accept(rig, record_list(large, large))
    whole = batch(*[large] * 3)
    deliver(rig)
    callback = accept(rig, record_list(whole))
    assert dead_letters(rig) == [(Reason.TOO_LARGE, LANE, json.dumps(whole).encode())]
    assert callback.code == "accepted"


def test_records_that_decompress_to_too_much_together_have_to_be_split() -> None:
    """However small they are before."""
    rig = RecordsRig(max_bytes=100_000)
    packed = gzip.compress(json.dumps(stamped_event(properties={"p": "x" * 20_000})).encode())
    with pytest.raises(TogetherTooLarge):
        accept(rig, record_list(*[packed] * 50))
    assert rig.untouched()


def test_records_with_too_many_project_keys_have_to_be_split() -> None:
    """A single record with so many keys becomes a dead letter."""
    rig = RecordsRig(max_lanes=8)
    events = [stamped_event(api_key=f"phc_{n}") for n in range(5)]
    with pytest.raises(TogetherTooLarge):
        accept(rig, record_list(*events))
    accept(rig, record_list(events))
    assert [reason for reason, _, _ in dead_letters(rig)] == [Reason.TOO_LARGE]


def test_a_full_buffer_makes_the_source_wait_whatever_when_full_says() -> None:
    """No event is dropped, and nothing is counted."""
    for when_full in WhenFull:
        rig = RecordsRig(max_bytes=34_000, when_full=when_full)
        large = record_list(stamped_event(properties={"p": "x" * 15_000}))
        accept(rig, large)
        with pytest.raises(LaneFull):
            accept(rig, large)
        assert rig.figures(LANE) == LaneFigures(received=1, buffered=1)


def test_too_many_lanes_make_the_source_wait() -> None:
    """As they make a sender."""
    rig = RecordsRig(max_lanes=1)
    accept(rig, record_list(stamped_event()))
    with pytest.raises(TooManyLanes):
        accept(rig, record_list(stamped_event(api_key="phc_other")))


def test_records_are_not_accepted_while_their_dead_letters_have_no_room() -> None:
    """Dead letters of records are never dropped. A batch that isn't accepted reserves no room."""
    rig = RecordsRig(dead_letter_bytes=10_000)
    accept(rig, record_list(*[b"rubbish"] * 10))
    assert rig.dead_letters.statistics().dead_letters == 10
    used = rig.dead_letters.statistics().bytes
    with pytest.raises(DeadLettersFull) as error:
        accept(rig, record_list(stamped_event(), *[b"rubbish"] * 10))
    assert "undecodable" in error.value.message
    assert (rig.buffer.used, rig.figures(None).received, rig.dead_letters.statistics().bytes) == (
        0,
        10,
        used,
    )


def test_a_rejected_record_that_never_fits_makes_its_source_wait() -> None:
    """Nothing was read of it, so its dead letter is all that there is."""
    rig = RecordsRig(dead_letter_bytes=10_000)
    rejected = RejectedRecord(RecordFacts(PLACE, AT), Reason.UNMAPPABLE, b"x" * 20_000, "why")
    with pytest.raises(DeadLettersFull) as error:
        accept(rig, RecordList([], rejected=[rejected]))
    assert "dead_letters.max_bytes" in error.value.hint
    assert rig.dead_letters.statistics().dead_letters == 0


def test_room_reserved_for_dead_letters_is_freed_if_the_buffer_is_full() -> None:
    """The same if the lane is full."""
    rig = RecordsRig(max_bytes=2_000)
    accept(rig, record_list(stamped_event()))
    with pytest.raises(LaneFull):
        accept(rig, record_list(stamped_event(), b"rubbish"))
    assert (rig.dead_letters.statistics().bytes, rig.figures(None).received) == (0, 0)
    full = RecordsRig(max_bytes=40_000)
    for key in ("phc_one", "phc_two"):
        full.buffer.offer([Chunk(Lane(key), b"x" * 18_000, 1, frozenset(), 0.0)])
    with pytest.raises(BufferFull):
        accept(full, record_list(stamped_event(p="x" * 5_000), b"rubbish"))
    assert (full.dead_letters.statistics().bytes, full.figures(None).received) == (0, 0)


def test_no_records_are_accepted_while_draining() -> None:
    """The same as requests."""
    rig = RecordsRig()
    rig.conditions.draining = True
    with pytest.raises(Draining):
        accept(rig, record_list(stamped_event()))


# Acknowledgement


def test_records_are_acknowledged_after_their_dead_letters_are_durable() -> None:
    """At each level. If they can't be written, the batch waits for the next attempt."""
    for level in (AckLevel.DELIVERED, AckLevel.DISK):
        rig = RecordsRig(durable=True)
        rig.dead_letters.slow = True
        callback = accept(rig, record_list(stamped_event(), b"rubbish"), level)
        rig.slow.finish_writes()
        if level is AckLevel.DELIVERED:
            deliver(rig)
        assert callback.code == "waiting"
        rig.dead_letters.write(LaneFull("the disk is full"))
        assert callback.code == "waiting"
        rig.dead_letters.write()
        assert callback.code == "accepted"
        assert rig.balanced()


def test_a_batch_of_only_dead_letters_is_acknowledged_once_they_are_durable() -> None:
    """An empty batch is acknowledged at once."""
    rig = RecordsRig()
    rig.dead_letters.slow = True
    callback = accept(rig, record_list(b"rubbish"))
    assert callback.code == "waiting"
    rig.dead_letters.write()
    assert callback.code == "accepted"
    assert accept(RecordsRig(), RecordList([])).reached


def test_at_level_disk_a_batch_is_acknowledged_once_the_buffer_has_it() -> None:
    """It is counted at that time, too. Its events carry no `Ack`."""
    rig = RecordsRig(durable=True)
    callback = accept(rig, record_list(stamped_event(), b"rubbish"), AckLevel.DISK)
    assert (callback.code, rig.figures(LANE).received, rig.dead_letters.dead_letters) == (
        "waiting",
        0,
        [],
    )
    rig.slow.finish_writes()
    assert (callback.code, rig.figures(LANE), len(rig.dead_letters.dead_letters)) == (
        "accepted",
        LaneFigures(received=1, buffered=1),
        1,
    )
    assert [chunk.ack for chunk in rig.chunks()] == [None]


def test_a_late_disk_failure_rejects_the_records() -> None:
    """Nothing is counted or dead-lettered, reserved room is freed, and the callback gets the
    error.
    """
    rig = RecordsRig(durable=True)
    callback = accept(rig, record_list(stamped_event(), b"rubbish"), AckLevel.DISK)
    rig.slow.fail_writes()
    assert callback.code == "backpressure"
    assert rig.untouched()
    assert rig.dead_letters.statistics().bytes == 0


def test_a_batch_of_several_lanes_is_acknowledged_with_the_last_lane() -> None:
    """It waits until the events of all lanes are settled."""
    rig = RecordsRig()
    callback = accept(rig, record_list(stamped_event(), stamped_event(api_key="phc_other")))
    deliver(rig)
    assert callback.code == "waiting"
    deliver(rig, OTHER)
    assert callback.code == "accepted"


def test_a_batch_dropped_by_drop_oldest_is_acknowledged() -> None:
    """Its events are counted as dropped. Senders' events may drop those of a source."""
    rig = RecordsRig(max_bytes=24_000, when_full=WhenFull.DROP_OLDEST)
    large = stamped_event(properties={"p": "x" * 15_000})
    callback = accept(rig, record_list(large))
    rig.intake.accept(Incoming(json.dumps(batch(large)).encode()), IntakeCallback())
    assert callback.code == "accepted"
    assert rig.balanced()
    assert rig.figures(LANE).dropped == {DropReason.DROP_OLDEST: 1}


# Giving back, keeping, dead-lettering


def test_giving_back_batches_removes_their_pending_events() -> None:
    """Events in flight are still delivered. No callback of these batches is called."""
    rig = RecordsRig()
    callbacks = [IntakeCallback() for _ in range(3)]
    batches = [
        rig.records.accept(
            record_list(stamped_event(n=n), stamped_event(n=n)), callbacks[n], AckLevel.DELIVERED
        )
        for n in range(3)
    ]
    in_flight = rig.buffer.queue(LANE).popleft()
    first_two = [accepted for accepted in batches[:2] if accepted is not None]
    assert rig.records.give_back(first_two) == 2
    assert rig.balanced()
    assert rig.figures(LANE).dropped == {DropReason.RETURNED_TO_BROKER: 2}
    rig.buffer.settle([in_flight], Fate.DELIVERED)
    rig.books.deliver(LANE, 2)
    assert [unique(event)["n"] for event in rig.events()] == [2, 2]
    deliver(rig)
    assert [callback.code for callback in callbacks] == ["waiting", "waiting", "accepted"]
    assert rig.balanced()


def test_batches_that_cant_be_read_again_are_kept_unacknowledged() -> None:
    """They are delivered as a request's events are, and no callback is called."""
    rig = RecordsRig()
    callback = IntakeCallback()
    accepted = rig.records.accept(
        record_list(stamped_event(n=1), stamped_event(n=2)), callback, AckLevel.DELIVERED
    )
    assert accepted is not None
    rig.records.keep([accepted])
    assert [
        chunk.ack is not None and chunk.ack.of_request for chunk in [*rig.buffer.queue(LANE)]
    ] == [True]
    deliver(rig)
    assert (callback.code, rig.figures(LANE).dropped) == ("waiting", {})
    assert rig.balanced()


def test_giving_back_a_batch_at_level_disk_removes_nothing() -> None:
    """The buffer has it, or will have it. If it is read again, its events are the same."""
    rig = RecordsRig(durable=True)
    callback = IntakeCallback()
    accepted = rig.records.accept(record_list(stamped_event()), callback, AckLevel.DISK)
    assert accepted is not None
    assert rig.records.give_back([accepted]) == 0
    rig.slow.finish_writes()
    assert (callback.code, len(rig.events())) == ("waiting", 1)
    assert rig.balanced()


def test_events_of_a_halted_lane_are_dead_lettered_and_no_others() -> None:
    """Only those in the given batches. A batch that has no other events is settled by that."""
    rig = RecordsRig()
    rig.delivery.halted_lanes[LANE] = 5.0
    assert rig.records.halted() == {LANE: 5.0}
    callbacks = [IntakeCallback() for _ in range(3)]
    halted = stamped_event()
    other = stamped_event(api_key="phc_other")
    batches = [
        rig.records.accept(record_list(*events), callback, AckLevel.DELIVERED)
        for events, callback in zip([[halted], [halted, other], [halted]], callbacks, strict=True)
    ]
    pending = [accepted for accepted in batches if accepted is not None]
    assert all(LANE in accepted.lanes for accepted in pending)
    assert rig.records.dead_letter(pending[:2], LANE, "401 for an hour")
    assert [
        (dead_letter.reason, dead_letter.lane, dead_letter.why)
        for dead_letter in rig.dead_letters.dead_letters
    ] == [(Reason.LANE_HALTED, LANE, "401 for an hour")] * 2
    assert rig.balanced()
    assert [callback.answers for callback in callbacks] == [[None], [], []]
    assert (rig.buffer.count(LANE), rig.buffer.count(OTHER)) == (1, 1)


def test_a_record_with_too_many_invalid_events_is_one_dead_letter() -> None:
    """If the dead letters could never have room for each of its events: else the record would block
    its partition indefinitely.
    """
    rig = RecordsRig(dead_letter_bytes=64 * 1024)
    bad = b"[%b]" % b",".join([b"{}"] * 1000)
    with pytest.raises(TogetherTooLarge):
        rig.records.accept(record_list(stamped_event(), bad), IntakeCallback(), AckLevel.DELIVERED)
    accept(rig, record_list(bad))
    assert dead_letters(rig) == [(Reason.TOO_LARGE, None, bad)]
    assert "1000 of its events can't be delivered" in rig.dead_letters.dead_letters[0].why
    accept(rig, record_list(b"[{},{}]", offset=1))
    assert len(dead_letters(rig)) == 3


def test_records_with_too_many_invalid_events_have_to_be_split() -> None:
    """The size of a dead letter counts, not only the few bytes of its event."""
    rig = RecordsRig(max_bytes=600_000)
    bad = b"[%b]" % b",".join([b"{}"] * 2000)
    with pytest.raises(TogetherTooLarge):
        rig.records.accept(record_list(bad, bad), IntakeCallback(), AckLevel.DELIVERED)


# Foreign records: what a mapping makes events of


@cases("token", ["phc_other", "phx_personal", "", "\ud800"])
@cases("ordering", [Ordering.NONE, Ordering.PER_DISTINCT_ID])
@cases("array", [False, True])
def test_the_token_property_of_a_foreign_record_is_not_a_project_key(
    token: str, ordering: Ordering, array: bool
) -> None:
    """Whatever its value, for complete and incomplete events, and for arrays."""
    rig = RecordsRig(ordering=ordering)
    events = [
        stamped_event(properties={"token": token}),
        {"event": "a", "distinct_id": "b", "properties": {"token": token}},
    ]
    for header_key, api_key in (("phc_header", None), (None, KEY)):
        accept(
            rig,
            record_list(
                *[[event, event] if array else event for event in events],
                api_key=api_key,
                header_key=header_key,
                foreign=True,
            ),
        )
        assert {chunk.lane for chunk in rig.chunks()} <= {Lane("phc_header"), LANE}
    assert {lane for _, lane, _ in dead_letters(rig)} <= {Lane("phc_header"), LANE}
    assert len(rig.events()) + len(dead_letters(rig)) == (8 if array else 4)
    assert (not dead_letters(rig)) == (token != "\ud800")


def test_a_foreign_record_without_a_key_from_its_source_is_dead_lettered() -> None:
    """Its own fields are not read for a key."""
    rig = RecordsRig()
    accept(
        rig,
        record_list(stamped_event(properties={"token": "phc_other"}), api_key=None, foreign=True),
    )
    assert [(reason, lane) for reason, lane, _ in dead_letters(rig)] == [
        (Reason.INVALID_TOKEN, None)
    ]


def test_a_full_lane_that_was_halted_for_too_long_does_not_block_others() -> None:
    """Its events become dead letters at once if they have no room. If the lane is no longer halted,
    they don't, and the batch waits.
    """
    rig = RecordsRig(max_bytes=40_000, halted={LANE})
    large = stamped_event(properties={"p": "x" * 6_000})
    other = stamped_event(api_key="phc_other")
    accept(rig, record_list(large))
    callback = IntakeCallback()
    with pytest.raises(LaneFull):
        rig.records.accept(record_list(large, other), callback, AckLevel.DELIVERED, given_up=[LANE])
    rig.delivery.halted_lanes[LANE] = 5.0
    with pytest.raises(LaneFull):
        rig.records.accept(record_list(large, other), callback, AckLevel.DELIVERED)
    assert (
        rig.records.accept(record_list(large, other), callback, AckLevel.DELIVERED, given_up=[LANE])
        is not None
    )
    assert rig.balanced()
    assert dead_letters(rig) == [(Reason.LANE_HALTED, LANE, json.dumps(large).encode())]
    assert rig.figures(LANE) == LaneFigures(2, 1, dead_lettered={Reason.LANE_HALTED: 1})
    deliver(rig, OTHER)
    assert callback.code == "accepted"


def test_a_halted_lane_is_not_dead_lettered_without_room_for_all_its_events() -> None:
    """All its events become dead letters, or none."""
    rig = RecordsRig(dead_letter_bytes=1_000)
    callback = IntakeCallback()
    accepted = rig.records.accept(record_list(*[stamped_event()] * 5), callback, AckLevel.DELIVERED)
    assert accepted is not None
    assert not rig.records.dead_letter([accepted], LANE, "halted")
    assert rig.figures(LANE) == LaneFigures(received=5, buffered=5)
    assert (len(rig.events()), rig.dead_letters.statistics().bytes) == (5, 0)


def test_the_namespace_of_derived_uuids_never_changes() -> None:
    """With another one, records that are read again would be other events."""
    rig = RecordsRig()
    accept(rig, record_list({"event": "a", "distinct_id": "ann"}))
    assert rig.one()["uuid"] == derived_uuid(0) != UUID
    assert uuid.UUID(bytes=RECORD_NAMESPACE) == uuid.UUID("6f3c7b0a-2d5e-4c1f-9a8b-5d7e1c0f4a62")


def test_the_source_waits_while_memory_is_short() -> None:
    """The same batch is accepted once there is memory."""
    rig = RecordsRig()
    batch_of_one = record_list(stamped_event())
    rig.conditions.memory_short = True
    with pytest.raises(MemoryShort):
        accept(rig, batch_of_one)
    assert rig.buffer.used == 0
    rig.conditions.memory_short = False
    accept(rig, batch_of_one)
    assert len(deliver(rig)) == 1
