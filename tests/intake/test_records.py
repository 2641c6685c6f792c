"""Units of records: what becomes of each record, in which order, and who is notified when."""

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
from tests.support.intakes import KEY, UUID, batch, stamped_event, unique
from tests.support.records import AT, PLACE, RecordList, RecordsRig, record_list
from tests.support.waiters import IntakeCallback

LANE = Lane(KEY)
OTHER = Lane("phc_other")
NOW = "2026-01-01T00:00:00.123Z"
"""`AT`, as a stamp."""


def take(
    rig: RecordsRig, records: RecordList, level: AckLevel = AckLevel.DELIVERED
) -> IntakeCallback:
    """Take a batch; who waits for it."""
    callback = IntakeCallback()
    callback.reached = rig.records.accept(records, callback, level) is None
    assert rig.balanced()
    return callback


def deliver(rig: RecordsRig, lane: Lane = LANE) -> list[Chunk]:
    """Everything that waits in a lane is delivered."""
    queue = rig.buffer.queue(lane)
    chunks = [queue.popleft() for _ in range(len(queue))]
    for chunk in chunks:
        rig.books.deliver(lane, chunk.count)
        rig.buffer.settle([chunk], Fate.DELIVERED)
    return chunks


def derived(offset: int, index: int = 0) -> str:
    """The uuid that an event at this place gets."""
    return str(uuid.uuid5(uuid.UUID(bytes=RECORD_NAMESPACE), f"{PLACE}/{offset}/{index}"))


def letters(rig: RecordsRig) -> list[tuple[Reason, Lane | None, bytes]]:
    """The dead letters."""
    return [(letter.reason, letter.lane, letter.data) for letter in rig.dead_letters.dead_letters]


# The fast way


def test_complete_records_stay_unchanged() -> None:
    """Joined, in one chunk, in their order; nothing more is asked about them."""
    rig = RecordsRig()
    records = record_list(*[stamped_event(n=n) for n in range(5)])
    callback = take(rig, records)
    (chunk,) = rig.chunks()
    assert chunk.events() == list(records.values)
    assert (chunk.lane, chunk.source, chunk.ids, chunk.received_at) == (
        LANE,
        "kafka",
        frozenset(),
        rig.clock.now(),
    )
    assert (records.asked, callback.code, rig.woken) == ([], "waiting", 1)
    assert rig.figures(LANE) == (5, 5, {}, {})
    deliver(rig)
    assert callback.code == "taken"


def test_a_record_may_name_its_own_project_key() -> None:
    """Its own counts before the configured one; each lane has its events in
    the order of the records.
    """
    rig = RecordsRig()
    own = [stamped_event(n=n, api_key="phc_other") for n in range(2)]
    records = record_list(own[0], stamped_event(n=9), own[1], stamped_event(n=8))
    take(rig, records)
    by_lane = {
        chunk.lane: [json.loads(event)["n"] for event in chunk.events()] for chunk in rig.chunks()
    }
    assert by_lane == {OTHER: [0, 1], LANE: [9, 8]}


@cases("where", ["token", "$token", "properties"])
def test_a_project_key_at_another_name_counts_as_well(where: str) -> None:
    """Before the one that is configured."""
    rig = RecordsRig()
    named = (
        {"properties": {"token": "phc_other"}} if where == "properties" else {where: "phc_other"}
    )
    take(rig, record_list(stamped_event(), stamped_event(**named)))
    assert {chunk.lane for chunk in rig.chunks()} == {LANE, OTHER}


def test_a_header_may_name_the_project_key() -> None:
    """Record by record."""
    rig = RecordsRig()
    take(rig, record_list(stamped_event(), api_key=None, header_key="phc_other"))
    assert [chunk.lane for chunk in rig.chunks()] == [OTHER]


def test_ordering_keys_are_those_of_the_events() -> None:
    """The second ids included, where order is kept, whichever way a record goes."""
    rig = RecordsRig(ordering=Ordering.PER_DISTINCT_ID)
    take(
        rig,
        record_list(
            stamped_event(distinct_id="ann"),
            stamped_event(distinct_id="bob", properties={"$anon_distinct_id": "anon"}),
        ),
    )
    take(
        rig,
        record_list(
            stamped_event(distinct_id="ann", uuid=None),
            b"[%b]" % json.dumps(stamped_event(distinct_id="cat")).encode(),
        ),
    )
    assert [chunk.ids for chunk in rig.chunks()] == [{"ann", "bob", "anon"}, {"ann", "cat"}]


def test_a_key_that_http_senders_may_not_use_is_fine_for_records() -> None:
    """The list of keys is HTTP's own."""
    rig = RecordsRig(api_keys=["phc_web"])
    take(rig, record_list(stamped_event()))
    assert [chunk.lane for chunk in rig.chunks()] == [LANE]


# What is missing


def test_missing_fields_come_from_the_record() -> None:
    """Uuid from its place, time from its own, distinct_id from its key: the same bytes each time
    it is read.
    """
    made = []
    for _ in range(2):
        rig = RecordsRig()
        take(
            rig,
            record_list(
                {"event": "a"},
                stamped_event(),
                {"event": "b", "distinct_id": "own"},
                offset=7,
                distinct_id="key",
            ),
        )
        made.append(rig.events())
    assert made[0] == made[1]
    first, second, third = (unique(event) for event in made[0])
    assert first == {"uuid": derived(7), "timestamp": NOW, "distinct_id": "key", "event": "a"}
    assert second == stamped_event()
    assert (third["uuid"], third["distinct_id"]) == (derived(9), "own")


def test_the_keys_id_is_only_for_events_that_have_none() -> None:
    """Wherever theirs stands; blank ones are replaced where they are."""
    rig = RecordsRig(ordering=Ordering.PER_DISTINCT_ID)
    own: list[dict[str, Any]] = [
        {"distinct_id": "a"},
        {"$distinct_id": "b"},
        {"properties": {"distinct_id": "c"}},
        {"distinct_id": ""},
        {},
    ]
    take(rig, record_list(*[{"event": "x", **each} for each in own], distinct_id="key"))
    assert [unique(event).get("distinct_id") for event in rig.events()] == [
        "a",
        None,
        None,
        "key",
        "key",
    ]
    assert [chunk.ids for chunk in rig.chunks()] == [{"a", "b", "c", "key"}]


def test_each_event_of_a_record_has_its_own_index() -> None:
    """Its index in the record, whatever lane it is of."""
    rig = RecordsRig()
    events = [
        {"event": str(n), "distinct_id": "ann", "api_key": ["phc_other", KEY][n % 2]}
        for n in range(4)
    ]
    take(rig, record_list(events, offset=3))
    found = {each["event"]: each["uuid"] for each in map(unique, rig.events())}
    assert found == {str(n): derived(3, n) for n in range(4)}


@cases("at", [None, float("nan"), float("inf"), 1e18, -1.0])
def test_without_any_time_an_event_is_a_dead_letter(at: float | None) -> None:
    """One that has a time of its own continues, also if it says how long ago it was."""
    rig = RecordsRig()
    timeless = stamped_event(timestamp=None)
    offset = stamped_event(offset=1000)
    take(rig, record_list(timeless, stamped_event(n=1), offset, at=at))
    assert letters(rig) == [(Reason.MISSING_TIMESTAMP, LANE, json.dumps(timeless).encode())]
    assert [unique(event) for event in rig.events()] == [stamped_event(n=1), stamped_event()]


def test_skew_is_measured_against_the_record() -> None:
    """And an offset is counted from its time: when it is read makes no difference."""
    rig = RecordsRig()
    rig.clock.step(1_000_000.0)
    skewed = stamped_event(timestamp="2026-01-01T01:00:00Z", sent_at="2026-01-01T01:00:10.123Z")
    ago = stamped_event(timestamp=None, offset=1000)
    take(rig, record_list(skewed, ago))
    first, second = (unique(event) for event in rig.events())
    assert first["timestamp"] == "2025-12-31T23:59:50.000Z"
    assert second["timestamp"] == "2025-12-31T23:59:59.123Z"


def test_an_id_that_is_no_text_counts_as_none() -> None:
    """Also one that is only white space."""
    for distinct_id in ("\ud800", " ", ""):
        rig = RecordsRig()
        take(rig, record_list({"event": "a"}, distinct_id=distinct_id))
        assert letters(rig) == [(Reason.MISSING_DISTINCT_ID, LANE, b'{"event": "a"}')]


# Other forms

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
def test_every_form_of_a_body_is_one_of_a_record(form: str) -> None:
    """Among plain ones, in their order."""
    rig = RecordsRig()
    values = [
        json.dumps(stamped_event(n=0)).encode(),
        FORMS[form](stamped_event(n=1)),
        json.dumps(stamped_event(n=2)).encode(),
    ]
    take(rig, record_list(*values))
    assert [unique(event)["n"] for event in rig.events()] == [0, 1, 2]
    assert len(rig.chunks()) == 1


def test_historical_records_have_a_lane_of_their_own() -> None:
    """With its own ordering keys."""
    rig = RecordsRig(ordering=Ordering.PER_DISTINCT_ID)
    take(
        rig,
        record_list(
            batch(stamped_event(), historical_migration=True),
            stamped_event(historical_migration=True),
        ),
    )
    assert [(chunk.lane, chunk.count, chunk.ids) for chunk in rig.chunks()] == [
        (Lane(KEY, historical=True), 2, frozenset({"ann"}))
    ]


def test_infinite_numbers_become_null_and_are_counted() -> None:
    """As in a request."""
    rig = RecordsRig()
    take(rig, record_list(b'{"event":"a","distinct_id":"ann","n":NaN}'))
    assert rig.one()["n"] is None
    assert rig.intake.statistics().nulled_numbers == 1


def test_no_address_is_ever_stamped() -> None:
    """A record has no sender."""
    rig = RecordsRig()
    take(rig, record_list({"event": "a", "distinct_id": "ann", "properties": {}}))
    assert rig.one()["properties"] == {}


# What is no good


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
    """With its original bytes, its place and what its source knows; its neighbours continue."""
    rig = RecordsRig(max_event=800)
    callback = take(rig, record_list(stamped_event(n=0), record, stamped_event(n=1), offset=40))
    (letter,) = rig.dead_letters.dead_letters
    assert (letter.reason, letter.lane, letter.data, letter.source) == (
        reason,
        lane,
        record,
        "kafka",
    )
    assert letter.coordinates == f"{PLACE}/41"
    assert json.loads(letter.attributes)["offset"] == 41
    assert letter.why
    assert letter.at == rig.clock.now()  # the record's own time is still to come
    assert [unique(event)["n"] for event in rig.events()] == [0, 1]
    account = rig.books.accounts[lane]
    assert (account.dead_lettered, account.received["kafka"]) == (
        {reason: 1},
        1 if lane is None else 3,
    )
    deliver(rig)
    assert callback.code == "taken"


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
def test_records_may_be_as_odd_as_bodies(odd: dict[str, Any]) -> None:
    """What is odd about a body and accepted over HTTP is accepted of a record, too
    (docs/maintainers/interface.md, Odd bodies).
    """
    rig = RecordsRig()
    take(rig, record_list({**stamped_event(), **odd}))
    assert rig.dead_letters.dead_letters == []
    one = rig.one()
    assert {name: one[name] for name in odd if name != "timestamp"} == {
        name: value for name, value in odd.items() if name != "timestamp"
    }


@pytest.mark.parametrize(
    ("record", "lane"), [(b"[5]", None), (b'{"api_key":"%b","batch":[5]}' % KEY.encode(), LANE)]
)
def test_an_element_that_is_no_object_is_a_dead_letter(record: bytes, lane: Lane | None) -> None:
    """It is a dead letter by itself, of the key that stands beside it."""
    rig = RecordsRig()
    take(rig, record_list(stamped_event(), record))
    (letter,) = rig.dead_letters.dead_letters
    assert (letter.reason, letter.lane, letter.data) == (Reason.INVALID_EVENT, lane, b"5")


def test_one_event_without_a_good_key_doesnt_spoil_its_record() -> None:
    """The others of an array continue; so they do beside what is no object at all."""
    rig = RecordsRig()
    good = stamped_event(api_key=KEY)
    bad = stamped_event(api_key="phx_x")
    take(rig, record_list([good, bad, 17], api_key=None))
    assert [unique(event) for event in rig.events()] == [good]
    assert letters(rig) == [
        (Reason.INVALID_TOKEN, None, json.dumps(bad).encode()),
        (Reason.INVALID_EVENT, None, b"17"),
    ]


def test_without_any_key_a_record_is_a_dead_letter() -> None:
    """No one can tell whose it is; the same if the configured or the header's can't be one."""
    for more in (
        {"api_key": None},
        {"api_key": "\u2603"},
        {"api_key": None, "header_key": "phx_x"},
        {"api_key": None, "header_key": ""},
    ):
        rig = RecordsRig()
        take(rig, record_list(stamped_event(), **more))
        assert [(reason, lane) for reason, lane, _ in letters(rig)] == [
            (Reason.INVALID_TOKEN, None)
        ]


def test_records_that_their_source_refused_become_dead_letters() -> None:
    """As it says, at the time when they were written."""
    rig = RecordsRig()
    rig.clock.step(AT + 100 - rig.clock.now())
    refused = RejectedRecord(
        RecordFacts(f"{PLACE}/5", AT),
        Reason.UNMAPPABLE,
        b"csv,line",
        "no field `id`",
        '{"offset":5}',
    )
    callback = take(rig, RecordList([], rejected=[refused]))
    (letter,) = rig.dead_letters.dead_letters
    assert (letter.reason, letter.lane, letter.data, letter.why) == (
        Reason.UNMAPPABLE,
        None,
        b"csv,line",
        "no field `id`",
    )
    assert (letter.coordinates, letter.attributes, letter.at) == (f"{PLACE}/5", '{"offset":5}', AT)
    assert callback.code == "taken"


def test_a_body_that_unpacks_to_too_much_is_a_dead_letter() -> None:
    """It is cut off while it is unpacked."""
    rig = RecordsRig(max_body=10_000)
    bomb = gzip.compress(b" " * 1_000_000)
    take(rig, record_list(bomb))
    assert letters(rig) == [(Reason.TOO_LARGE, None, bomb)]


# Room


def test_records_that_never_fit_together_have_to_come_in_parts() -> None:
    """One that alone is too large becomes a dead letter."""
    rig = RecordsRig(max_bytes=23_500)
    large = stamped_event(properties={"p": "x" * 9_000})
    with pytest.raises(TogetherTooLarge):
        take(rig, record_list(*[large] * 3))
    assert rig.untouched()
    take(rig, record_list(large, large))
    whole = batch(*[large] * 3)
    deliver(rig)
    callback = take(rig, record_list(whole))
    assert letters(rig) == [(Reason.TOO_LARGE, LANE, json.dumps(whole).encode())]
    assert callback.code == "taken"


def test_records_that_unpack_to_too_much_together_have_to_come_in_parts() -> None:
    """However small they are as they come."""
    rig = RecordsRig(max_bytes=100_000)
    packed = gzip.compress(json.dumps(stamped_event(properties={"p": "x" * 20_000})).encode())
    with pytest.raises(TogetherTooLarge):
        take(rig, record_list(*[packed] * 50))
    assert rig.untouched()


def test_more_keys_than_can_be_held_come_in_parts() -> None:
    """One record of so many is a dead letter."""
    rig = RecordsRig(max_lanes=8)
    events = [stamped_event(api_key=f"phc_{n}") for n in range(5)]
    with pytest.raises(TogetherTooLarge):
        take(rig, record_list(*events))
    take(rig, record_list(events))
    assert [reason for reason, _, _ in letters(rig)] == [Reason.TOO_LARGE]


def test_a_full_buffer_makes_its_source_wait() -> None:
    """Whatever `when_full` says: nothing is dropped, nothing counted, no caller notified."""
    for when_full in WhenFull:
        rig = RecordsRig(max_bytes=34_000, when_full=when_full)
        large = record_list(stamped_event(properties={"p": "x" * 15_000}))
        take(rig, large)
        with pytest.raises(LaneFull):
            take(rig, large)
        assert rig.figures(LANE) == (1, 1, {}, {})


def test_too_many_lanes_make_its_source_wait() -> None:
    """As they do a sender."""
    rig = RecordsRig(max_lanes=1)
    take(rig, record_list(stamped_event()))
    with pytest.raises(TooManyLanes):
        take(rig, record_list(stamped_event(api_key="phc_other")))


def test_dead_letters_of_records_wait_for_room() -> None:
    """It is never dropped: with no room for its letters a batch isn't taken, and room that wasn't
    needed is free again.
    """
    rig = RecordsRig(dead_letter_bytes=10_000)
    take(rig, record_list(*[b"rubbish"] * 10))
    assert rig.dead_letters.statistics().dead_letters == 10
    used = rig.dead_letters.statistics().bytes
    with pytest.raises(DeadLettersFull) as error:
        take(rig, record_list(stamped_event(), *[b"rubbish"] * 10))
    assert "undecodable" in error.value.message
    assert (rig.buffer.used, rig.figures(None)[0], rig.dead_letters.statistics().bytes) == (
        0,
        10,
        used,
    )


def test_room_for_letters_is_free_again_when_the_buffer_has_none() -> None:
    """Nothing of the batch was taken."""
    rig = RecordsRig(max_bytes=2_000)
    take(rig, record_list(stamped_event()))
    with pytest.raises(LaneFull):
        take(rig, record_list(stamped_event(), b"rubbish"))
    assert (rig.dead_letters.statistics().bytes, rig.figures(None)[0]) == (0, 0)
    full = RecordsRig(max_bytes=40_000)
    for key in ("phc_one", "phc_two"):
        full.buffer.offer([Chunk(Lane(key), b"x" * 18_000, 1, frozenset(), 0.0)])
    with pytest.raises(BufferFull):
        take(full, record_list(stamped_event(p="x" * 5_000), b"rubbish"))
    assert (full.dead_letters.statistics().bytes, full.figures(None)[0]) == (0, 0)


def test_nothing_is_accepted_during_shutdown() -> None:
    """Draining, as for requests."""
    rig = RecordsRig()
    rig.conditions.draining = True
    with pytest.raises(Draining):
        take(rig, record_list(stamped_event()))


# Who is told, and when


def test_dead_letters_are_durable_before_the_acknowledgement() -> None:
    """At each level; what couldn't be written is waited for again."""
    for level in (AckLevel.DELIVERED, AckLevel.DISK):
        rig = RecordsRig(durable=True)
        rig.dead_letters.slow = True
        callback = take(rig, record_list(stamped_event(), b"rubbish"), level)
        rig.slow.hold()
        if level is AckLevel.DELIVERED:
            deliver(rig)
        assert callback.code == "waiting"
        rig.dead_letters.write(LaneFull("the disk is full"))
        assert callback.code == "waiting"
        rig.dead_letters.write()
        assert callback.code == "taken"
        assert rig.balanced()


def test_a_batch_of_dead_letters_alone_waits_until_they_are_durable() -> None:
    """A batch of nothing but rubbish is settled once that is durable; one
    of nothing at all at once.
    """
    rig = RecordsRig()
    rig.dead_letters.slow = True
    callback = take(rig, record_list(b"rubbish"))
    assert callback.code == "waiting"
    rig.dead_letters.write()
    assert callback.code == "taken"
    assert take(RecordsRig(), RecordList([])).reached


def test_at_the_level_disk_a_unit_is_settled_by_the_buffer() -> None:
    """Its events carry no ack; it enters the books when the buffer has it."""
    rig = RecordsRig(durable=True)
    callback = take(rig, record_list(stamped_event(), b"rubbish"), AckLevel.DISK)
    assert (callback.code, rig.figures(LANE)[0], rig.dead_letters.dead_letters) == (
        "waiting",
        0,
        [],
    )
    rig.slow.hold()
    assert (callback.code, rig.figures(LANE), len(rig.dead_letters.dead_letters)) == (
        "taken",
        (1, 1, {}, {}),
        1,
    )
    assert [chunk.ack for chunk in rig.chunks()] == [None]


def test_a_late_disk_failure_rejects_the_records() -> None:
    """Nothing is counted or buried, the room is free again, and its source is notified."""
    rig = RecordsRig(durable=True)
    callback = take(rig, record_list(stamped_event(), b"rubbish"), AckLevel.DISK)
    rig.slow.fail()
    assert callback.code == "backpressure"
    assert rig.untouched()
    assert rig.dead_letters.statistics().bytes == 0


def test_a_unit_of_several_lanes_is_settled_with_the_last() -> None:
    """However each ends."""
    rig = RecordsRig()
    callback = take(rig, record_list(stamped_event(), stamped_event(api_key="phc_other")))
    deliver(rig)
    assert callback.code == "waiting"
    deliver(rig, OTHER)
    assert callback.code == "taken"


def test_drop_oldest_settles_dropped_records() -> None:
    """They are counted as dropped, and their batch is settled as to those: the same rule as for
    requests' events.
    """
    rig = RecordsRig(max_bytes=24_000, when_full=WhenFull.DROP_OLDEST)
    large = stamped_event(properties={"p": "x" * 15_000})
    callback = take(rig, record_list(large))
    rig.intake.accept(Incoming(json.dumps(batch(large)).encode()), IntakeCallback())
    assert callback.code == "taken"
    assert rig.balanced()
    assert rig.figures(LANE)[3] == {DropReason.DROP_OLDEST: 1}


# Letting go


def test_units_that_are_given_back_are_gone() -> None:
    """What waits is dropped as returned; what is in progress goes its way; no caller is
    notified.
    """
    rig = RecordsRig()
    callback = [IntakeCallback() for _ in range(3)]
    units = [
        rig.records.accept(
            record_list(stamped_event(n=n), stamped_event(n=n)), callback[n], AckLevel.DELIVERED
        )
        for n in range(3)
    ]
    flying = rig.buffer.queue(LANE).popleft()
    assert rig.records.give_back([each for each in units[:2] if each is not None]) == 2
    assert rig.balanced()
    assert rig.figures(LANE)[3] == {DropReason.RETURNED_TO_BROKER: 2}
    rig.buffer.settle([flying], Fate.DELIVERED)
    rig.books.deliver(LANE, 2)
    assert [unique(event)["n"] for event in rig.events()] == [2, 2]
    deliver(rig)
    assert [each.code for each in callback] == ["waiting", "waiting", "taken"]
    assert rig.balanced()


def test_units_that_cant_be_read_again_are_kept() -> None:
    """They are delivered; no caller is notified, and at an exit they end as a request's
    events do.
    """
    rig = RecordsRig()
    callback = IntakeCallback()
    taken = rig.records.accept(
        record_list(stamped_event(n=1), stamped_event(n=2)), callback, AckLevel.DELIVERED
    )
    assert taken is not None
    rig.records.keep([taken])
    assert [
        chunk.ack is not None and chunk.ack.comes_again for chunk in [*rig.buffer.queue(LANE)]
    ] == [True]
    deliver(rig)
    assert (callback.code, rig.figures(LANE)[3]) == ("waiting", {})
    assert rig.balanced()


def test_a_unit_at_level_disk_is_not_given_back() -> None:
    """The buffer has it, or will: anyone who reads it again brings the same bytes."""
    rig = RecordsRig(durable=True)
    callback = IntakeCallback()
    taken = rig.records.accept(record_list(stamped_event()), callback, AckLevel.DISK)
    assert taken is not None
    assert rig.records.give_back([taken]) == 0
    rig.slow.hold()
    assert (callback.code, len(rig.events())) == ("waiting", 1)
    assert rig.balanced()


def test_a_halted_lanes_events_are_buried() -> None:
    """Those of these batches and of this lane alone; a batch that has nothing
    else is settled by that.
    """
    rig = RecordsRig()
    rig.idle.lanes[LANE] = 5.0
    assert rig.records.halted() == {LANE: 5.0}
    callback = [IntakeCallback() for _ in range(3)]
    both = [stamped_event(), stamped_event(api_key="phc_other")]
    units = [
        rig.records.accept(record_list(*both[: n + 1]), callback[n % 3], AckLevel.DELIVERED)
        for n in (0, 1, 0)
    ]
    known = [each for each in units if each is not None]
    assert all(LANE in each.lanes for each in known)
    assert rig.records.dead_letter(known[:2], LANE, "401 for an hour")
    assert [
        (letter.reason, letter.lane, letter.why) for letter in rig.dead_letters.dead_letters
    ] == [(Reason.LANE_HALTED, LANE, "401 for an hour")] * 2
    assert rig.balanced()
    assert (callback[0].answers, callback[1].answers) == ([None], [])
    assert (rig.buffer.count(LANE), rig.buffer.count(OTHER)) == (1, 1)


def test_a_record_of_very_many_bad_events_is_one_dead_letter() -> None:
    """Where the dead letters could never hold one for each: else it would hold up its partition
    indefinitely.
    """
    rig = RecordsRig(dead_letter_bytes=64 * 1024)
    bad = b"[%b]" % b",".join([b"{}"] * 1000)
    with pytest.raises(TogetherTooLarge):
        rig.records.accept(record_list(stamped_event(), bad), IntakeCallback(), AckLevel.DELIVERED)
    take(rig, record_list(bad))
    assert letters(rig) == [(Reason.TOO_LARGE, None, bad)]
    assert "1000 of its events can't be delivered" in rig.dead_letters.dead_letters[0].why
    take(rig, record_list(b"[{},{}]", offset=1))
    assert len(letters(rig)) == 3


def test_records_of_very_many_bad_events_have_to_come_in_parts() -> None:
    """What is kept of each counts, not its few bytes alone."""
    rig = RecordsRig(max_bytes=600_000)
    bad = b"[%b]" % b",".join([b"{}"] * 2000)
    with pytest.raises(TogetherTooLarge):
        rig.records.accept(record_list(bad, bad), IntakeCallback(), AckLevel.DELIVERED)


# Foreign records


@cases("token", ["phc_other", "phx_personal", "", "\ud800"])
@cases("ordering", [Ordering.NONE, Ordering.PER_DISTINCT_ID])
@cases("array", [False, True])
def test_a_field_of_a_foreign_record_is_no_project_key(
    token: str, ordering: Ordering, array: bool
) -> None:
    """Whatever stands in it, and whichever way the record goes."""
    rig = RecordsRig(ordering=ordering)
    made = [
        stamped_event(properties={"token": token}),
        {"event": "a", "distinct_id": "b", "properties": {"token": token}},
    ]
    for header_key, api_key in (("phc_header", None), (None, KEY)):
        take(
            rig,
            record_list(
                *[[each, each] if array else each for each in made],
                api_key=api_key,
                header_key=header_key,
                foreign=True,
            ),
        )
        found = {chunk.lane for chunk in rig.chunks()} | {
            lane for reason, lane, _ in letters(rig) if reason is not Reason.LONE_SURROGATE
        }
        assert found <= {Lane("phc_header"), LANE}
    assert {lane for _, lane, _ in letters(rig)} <= {Lane("phc_header"), LANE}
    assert len(rig.events()) + len(letters(rig)) == (8 if array else 4)
    assert (not letters(rig)) == (token != "\ud800")


def test_without_a_key_from_its_source_a_foreign_record_is_a_dead_letter() -> None:
    """Its own fields don't help."""
    rig = RecordsRig()
    take(
        rig,
        record_list(stamped_event(properties={"token": "phc_other"}), api_key=None, foreign=True),
    )
    assert [(reason, lane) for reason, lane, _ in letters(rig)] == [(Reason.INVALID_TOKEN, None)]


def test_a_lane_that_was_given_up_doesnt_hold_up_the_others() -> None:
    """Where there is no room for its events they become dead letters at once; of one that isn't
    halted any more nothing does.
    """
    rig = RecordsRig(max_bytes=40_000, halted={LANE})
    large = stamped_event(properties={"p": "x" * 6_000})
    other = stamped_event(api_key="phc_other")
    take(rig, record_list(large))
    callback = IntakeCallback()
    with pytest.raises(LaneFull):
        rig.records.accept(record_list(large, other), callback, AckLevel.DELIVERED, given_up=[LANE])
    rig.idle.lanes[LANE] = 5.0
    with pytest.raises(LaneFull):
        rig.records.accept(record_list(large, other), callback, AckLevel.DELIVERED)
    assert (
        rig.records.accept(record_list(large, other), callback, AckLevel.DELIVERED, given_up=[LANE])
        is not None
    )
    assert rig.balanced()
    assert letters(rig) == [(Reason.LANE_HALTED, LANE, json.dumps(large).encode())]
    assert rig.figures(LANE) == (2, 1, {Reason.LANE_HALTED: 1}, {})
    deliver(rig, OTHER)
    assert callback.code == "taken"


def test_without_room_for_the_letters_nothing_is_buried() -> None:
    """All or none."""
    rig = RecordsRig(dead_letter_bytes=1_000)
    callback = IntakeCallback()
    taken = rig.records.accept(record_list(*[stamped_event()] * 5), callback, AckLevel.DELIVERED)
    assert taken is not None
    assert not rig.records.dead_letter([taken], LANE, "halted")
    assert rig.figures(LANE) == (5, 5, {}, {})
    assert (len(rig.events()), rig.dead_letters.statistics().bytes) == (5, 0)


def test_uuids_are_the_namespaces_own() -> None:
    """The namespace can't change: what was read before would be other events."""
    rig = RecordsRig()
    take(rig, record_list({"event": "a", "distinct_id": "ann"}))
    assert rig.one()["uuid"] == derived(0) != UUID
    assert uuid.UUID(bytes=RECORD_NAMESPACE) == uuid.UUID("6f3c7b0a-2d5e-4c1f-9a8b-5d7e1c0f4a62")


def test_while_memory_is_short_the_source_waits() -> None:
    """Nothing of a batch is read or accepted; the same batch is accepted when there is memory."""
    rig = RecordsRig()
    batch_of_one = record_list(stamped_event())
    rig.conditions.memory_short = True
    with pytest.raises(MemoryShort):
        take(rig, batch_of_one)
    assert rig.buffer.used == 0
    rig.conditions.memory_short = False
    take(rig, batch_of_one)
    assert len(deliver(rig)) == 1
