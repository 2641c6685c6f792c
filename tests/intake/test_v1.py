"""A v1 request in the intake: taken as any other, and answered event by event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forwarder.core.ack import AckLevel
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    InvalidToken,
    NotAcknowledged,
    UnsupportedMedia,
)
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DropReason, Fate, Ordering, Reason, V1Head, WhenFull
from tests.support.cases import cases
from tests.support.intakes import KEY, UUID, IntakeRig
from tests.support.waiters import IntakeCallback

LANE = Lane(KEY)
OTHER = UUID.replace("0190", "0191")
THIRD = UUID.replace("0190", "0192")


def event(uuid: str | None = UUID, **changes: Any) -> dict[str, Any]:
    """A good event with changes; None takes a member out."""
    whole: dict[str, Any] = {
        "event": "click",
        "uuid": uuid,
        "distinct_id": "ann",
        "timestamp": "2025-12-31T12:00:00Z",
        "options": {},
    }
    whole |= {"properties": {"a": 1}, **changes}
    return {key: value for key, value in whole.items() if value is not None}


class V1RequestSender:
    """One request, its head and who waits for it."""

    def __init__(
        self,
        rig: IntakeRig,
        *events: Any,
        body: bytes | None = None,
        timestamp: bytes = b"",
        **hints: Any,
    ) -> None:
        self.rig = rig
        self.head = V1Head(b"Bearer " + KEY.encode(), b"sdk/1", timestamp)
        self.callback = IntakeCallback()
        data = (
            body
            or json.dumps({"created_at": "2026-01-01T00:00:00Z", "batch": list(events)}).encode()
        )
        self.callback.reached = rig.offer(data, self.callback, head=self.head, **hints)
        assert rig.balanced()

    @property
    def results(self) -> dict[str, Any]:
        """What the sender learns of each event: the result alone if it is ok, else with the
        details.
        """
        assert self.callback.code == "accepted"
        assert self.head.results is not None
        results = json.loads(self.head.results.body())["results"]
        return {key: " ".join(result.values()) for key, result in results.items()}


def take_off(rig: IntakeRig, count: int | None = None) -> list[Chunk]:
    """Take what waits, as delivery does; cut to chunks of one event each if a `count` is given:
    the first so many, the rest stays.
    """
    queue = rig.buffer.queue(LANE)
    chunk = queue.popleft()
    if count is None:
        return [chunk]
    parts = [chunk.part(data, 1, chunk.ids, at) for at, data in enumerate(chunk.events())]
    rig.buffer.replace(chunk, parts)
    queue.put_back(parts[count:])
    return parts[:count]


def settle(rig: IntakeRig, fate: Fate, *chunks: Chunk) -> None:
    """The upstream took chunks, or refused them."""
    for chunk in chunks:
        if fate is Fate.DELIVERED:
            rig.books.deliver(chunk.lane, chunk.count)
        else:
            rig.books.dead_letter(chunk.lane, Reason.REFUSED, chunk.count)
        rig.buffer.settle([chunk], fate)
    assert rig.balanced()


def test_a_v1_event_equals_a_classic_one() -> None:
    """It goes into the lane of the key, in the classic shape."""
    rig = IntakeRig()
    sender = V1RequestSender(rig, event(session_id="s", options={"process_person_profile": False}))
    assert sender.results == {UUID: "ok"}
    assert rig.one() == {
        "event": "click",
        "uuid": UUID,
        "distinct_id": "ann",
        "timestamp": "2025-12-31T12:00:00Z",
        "properties": {
            "$session_id": "s",
            "$process_person_profile": False,
            "$lib": "sdk",
            "$lib_version": "1",
            "a": 1,
        },
    }
    assert rig.figures(LANE) == (1, 1, {}, {})


def test_historical_events_have_their_own_lane() -> None:
    """The flag is the body's."""
    rig = IntakeRig()
    V1RequestSender(
        rig, body=json.dumps({"historical_migration": True, "batch": [event()]}).encode()
    )
    assert [chunk.lane for chunk in rig.chunks()] == [Lane(KEY, historical=True)]


def test_ordering_and_address() -> None:
    """Ids to be ordered by and the sender's address are stamped as for every other request."""
    rig = IntakeRig(ordering=Ordering.PER_DISTINCT_ID)
    V1RequestSender(rig, event(), event(OTHER, properties={"alias": "bob"}), client="8.8.8.8")
    (chunk,) = rig.chunks()
    assert chunk.ids == {"ann", "bob"}
    assert [json.loads(raw)["properties"]["$ip"] for raw in chunk.events()] == [
        "8.8.8.8",
        "8.8.8.8",
    ]


def test_v1_clock_skew_is_corrected() -> None:
    """The head's time corrects each event's but those that want none of it; a small difference
    changes nothing.
    """
    rig = IntakeRig()
    V1RequestSender(
        rig,
        event(),
        event(OTHER, options={"disable_skew_correction": True}),
        timestamp=b"2026-01-01T01:00:00Z",
    )
    first, second = (json.loads(raw) for raw in rig.events())
    assert first["timestamp"] == "2025-12-31T11:00:00.000Z"
    assert (second["timestamp"], second["properties"]["$ignore_sent_at"]) == (
        "2025-12-31T12:00:00Z",
        True,
    )
    rig = IntakeRig()
    V1RequestSender(rig, event(), timestamp=b"2026-01-01T00:00:00.900Z")
    assert rig.one()["timestamp"] == "2025-12-31T12:00:00Z"


def test_v1_warnings_name_what_was_replaced() -> None:
    """What had to be replaced is said; the key is the uuid that was sent."""
    rig = IntakeRig()
    sender = V1RequestSender(
        rig,
        event("no uuid", timestamp="soon"),
        event(OTHER, timestamp=None),
        event(None),
        event(f" {THIRD} "),
        event(UUID, distinct_id="x" * 300),
    )
    assert sender.results == {
        "no uuid": "warning uuid_replaced,timestamp_replaced",
        OTHER: "warning timestamp_replaced",
        f" {THIRD} ": "ok",
        UUID: "warning distinct_id_cut",
    }
    assert [json.loads(raw)["timestamp"][:10] for raw in rig.events()] == [
        "2026-01-01",
        "2026-01-01",
        *["2025-12-31"] * 3,
    ]
    assert json.loads(rig.events()[3])["uuid"] == THIRD


def test_a_uuid_that_is_there_twice() -> None:
    """Both events are taken, and the sender is warned."""
    rig = IntakeRig()
    sender = V1RequestSender(rig, event(), event(distinct_id="bob"))
    assert sender.results == {UUID: "warning duplicate_uuid"}
    assert len(rig.events()) == 2


@cases(
    ("bad", "details", "reason", "why"),
    [
        (event(OTHER, event=""), "missing_event_name", Reason.MISSING_EVENT, "no name"),
        (
            event(OTHER, distinct_id="  "),
            "missing_distinct_id",
            Reason.MISSING_DISTINCT_ID,
            "no distinct_id",
        ),
        (event(OTHER, event=5), "malformed_event", Reason.INVALID_EVENT, "name no string"),
        (
            event(OTHER, properties=[]),
            "malformed_event_properties",
            Reason.INVALID_EVENT,
            "properties are no object",
        ),
        (
            event(OTHER, options={"cookieless_mode": "perhaps"}),
            "invalid_options",
            Reason.INVALID_EVENT,
            "options",
        ),
        (
            event(OTHER, session_id=5),
            "invalid_session_or_window",
            Reason.INVALID_EVENT,
            "session_id",
        ),
        (
            event(OTHER, properties={"a": "\ud800"}),
            "lone_surrogate",
            Reason.LONE_SURROGATE,
            "surrogate",
        ),
        (
            event(OTHER, properties={"a": "x" * 3000}),
            "event_too_big",
            Reason.TOO_LARGE,
            "max_event",
        ),
    ],
)
@cases("first", [False, True])
def test_a_dropped_v1_event_is_a_dead_letter(
    bad: Any, details: str, reason: Reason, why: str, first: bool
) -> None:
    """An event that can't be delivered is a dead letter, alone; the sender is notified, and the
    others continue.
    """
    rig = IntakeRig(max_event=2000)
    sender = V1RequestSender(rig, *([bad, event()] if first else [event(), bad]))
    assert sender.results == {UUID: "ok", OTHER: f"drop {details}"}
    (letter,) = rig.dead_letters.dead_letters
    assert (letter.reason, letter.lane) == (reason, LANE)
    assert why in letter.why
    assert rig.figures(LANE) == (2, 1, {reason: 1}, {})


def test_a_v1_request_of_dropped_events_alone_is_accepted() -> None:
    """A request of nothing but such events is taken too; one of no events at all is none."""
    rig = IntakeRig()
    assert V1RequestSender(rig, event(event="")).results == {UUID: "drop missing_event_name"}
    assert V1RequestSender(rig, 5).results == {}
    with pytest.raises(Exception, match="no events"):
        V1RequestSender(rig)


def test_a_dead_letter_can_be_sent_again() -> None:
    """It has the classic shape, so that nothing is lost when its id is repaired and it
    is replayed.
    """
    rig = IntakeRig()
    V1RequestSender(rig, event(distinct_id="", session_id="s"))
    (letter,) = rig.dead_letters.dead_letters
    rig.take(
        b'{"api_key":"phc_good","batch":[%b]}'
        % letter.data.replace(b'"distinct_id":""', b'"distinct_id":"ann"')
    )
    assert rig.one()["properties"]["$session_id"] == "s"


def test_a_v1_request_is_rejected_as_a_whole() -> None:
    """A bad key, one that isn't allowed, a foreign encoding: nothing is taken."""
    rig = IntakeRig(api_keys=["phc_other"])
    with pytest.raises(InvalidToken, match="api_keys"):
        V1RequestSender(rig, event())
    rig = IntakeRig()
    with pytest.raises(UnsupportedMedia):
        V1RequestSender(rig, event(), content_encoding=b"lz4")
    with pytest.raises(InvalidToken):
        rig.offer({"api_key": KEY, "batch": [event()]}, IntakeCallback(), head=V1Head())
    assert rig.untouched()


def test_no_room_is_backpressure() -> None:
    """For the request as a whole, as ever; nothing was taken."""
    rig = IntakeRig(max_bytes=3000)
    rig.buffer.used = 3000
    with pytest.raises(BufferFull):
        V1RequestSender(rig, event())
    rig.buffer.used = 0
    assert rig.untouched()


def test_what_a_full_buffer_drops_is_reported() -> None:
    """If the newest are to be dropped, their sender learns that they were."""
    rig = IntakeRig(max_bytes=3000, when_full=WhenFull.DROP_NEWEST)
    rig.buffer.used = 3000
    sender = V1RequestSender(rig, event(), event(OTHER, event=""))
    assert sender.results == {UUID: "drop buffer_full", OTHER: "drop missing_event_name"}
    assert rig.figures(LANE) == (2, 0, {Reason.MISSING_EVENT: 1}, {DropReason.DROP_NEWEST: 1})


def test_at_level_disk_it_waits() -> None:
    """The results are reported once the events are on disk; if they can't be written, the whole
    request has to come again.
    """
    rig = IntakeRig(ack=AckLevel.DISK, durable=True)
    sender = V1RequestSender(rig, event(), event(OTHER, event=""))
    assert sender.callback.code == "waiting"
    rig.slow.finish_writes()
    assert sender.results == {UUID: "ok", OTHER: "drop missing_event_name"}
    sender = V1RequestSender(rig, event())
    rig.slow.fail_writes()
    assert sender.callback.code == "backpressure"


@pytest.mark.parametrize("durable", [False, True])
class TestDelivered:
    """At the level `delivered`."""

    def rig(self, durable: bool) -> IntakeRig:
        """An intake at that level."""
        return IntakeRig(ack=AckLevel.DELIVERED, durable=durable)

    def test_all_of_it(self, durable: bool) -> None:
        """What was delivered is ok, what the upstream refused is dropped: it is a dead letter."""
        rig = self.rig(durable)
        sender = V1RequestSender(rig, event("x"), event(OTHER), event(THIRD))
        rig.slow.finish_writes()
        one, two, three = take_off(rig, 3)
        settle(rig, Fate.DELIVERED, three, one)
        assert sender.callback.code == "waiting"
        settle(rig, Fate.DEAD_LETTERED, two)
        assert sender.results == {
            "x": "warning uuid_replaced",
            OTHER: "drop dead_letter",
            THIRD: "ok",
        }
        assert rig.clock.pending == 0

    async def test_a_part_of_it_in_time(self, durable: bool) -> None:
        """Delivered is ok; what waits is withdrawn and has to come again, what is in progress too,
        for no one knows of it.
        """
        rig = self.rig(durable)
        sender = V1RequestSender(rig, event(), event(OTHER), event(THIRD), event("bad", event=""))
        rig.slow.finish_writes()
        one, two = take_off(rig, 2)
        settle(rig, Fate.DELIVERED, one)
        await rig.clock.advance(5.0)
        assert sender.results == {
            UUID: "ok",
            OTHER: "retry not_confirmed",
            THIRD: "retry not_delivered",
            "bad": "drop missing_event_name",
        }
        assert sender.head.results is not None
        assert sender.head.results.retries
        assert rig.figures(LANE) == (4, 1, {Reason.MISSING_EVENT: 1}, {DropReason.WITHDRAWN: 1})
        settle(rig, Fate.DELIVERED, two)
        statistics = rig.intake.statistics()
        assert (statistics.awaiting_delivery, statistics.not_acknowledged, rig.clock.pending) == (
            0,
            1,
            0,
        )

    async def test_nothing_of_it_in_time(self, durable: bool) -> None:
        """Then the request as a whole has to come again."""
        rig = self.rig(durable)
        sender = V1RequestSender(rig, event(), event(OTHER))
        rig.slow.finish_writes()
        await rig.clock.advance(5.0)
        assert sender.callback.code == NotAcknowledged.code
        assert rig.figures(LANE) == (2, 0, {}, {DropReason.WITHDRAWN: 2})

    async def test_one_of_two_with_one_uuid(self, durable: bool) -> None:
        """It isn't said of both that they were delivered."""
        rig = self.rig(durable)
        sender = V1RequestSender(rig, event(), event(distinct_id="bob"))
        rig.slow.finish_writes()
        settle(rig, Fate.DELIVERED, *take_off(rig, 1))
        await rig.clock.advance(5.0)
        assert sender.results == {UUID: "retry not_delivered"}

    async def test_one_without_a_uuid(self, durable: bool) -> None:
        """It has no key by which it could be retried: the whole request has to."""
        rig = self.rig(durable)
        sender = V1RequestSender(rig, event(), event(None))
        rig.slow.finish_writes()
        settle(rig, Fate.DELIVERED, *take_off(rig, 1))
        await rig.clock.advance(5.0)
        assert sender.callback.code == NotAcknowledged.code
        assert rig.figures(LANE) == (2, 0, {}, {DropReason.WITHDRAWN: 1})

    async def test_what_is_heard_too_late(self, durable: bool) -> None:
        """An event that has to come again is reported as such, though it becomes a dead letter just
        before: nothing waited for the letter.
        """
        rig = self.rig(durable)
        rig.dead_letters.slow = True
        sender = V1RequestSender(rig, event(), event(OTHER), event("bad", event=""))
        rig.slow.finish_writes()
        one, two = take_off(rig, 2)
        settle(rig, Fate.DELIVERED, one)
        await rig.clock.advance(5.0)
        assert sender.callback.code == "waiting"
        settle(rig, Fate.DEAD_LETTERED, two)
        rig.dead_letters.write(None)
        assert sender.results == {
            UUID: "ok",
            OTHER: "retry not_confirmed",
            "bad": "drop missing_event_name",
        }

    async def test_a_part_waits_for_its_letters(self, durable: bool) -> None:
        """An event that is reported as a dead letter is written before; if it can't
        be, all has to come again.
        """
        for error, code in ((None, "accepted"), (Backpressure("the disk is full"), "backpressure")):
            rig = self.rig(durable)
            rig.dead_letters.slow = True
            sender = V1RequestSender(rig, event(), event(OTHER, event=""))
            rig.slow.finish_writes()
            await rig.clock.advance(5.0)
            assert sender.callback.code == "waiting"
            rig.dead_letters.write(error)
            assert sender.callback.code == code

    def test_the_end(self, durable: bool) -> None:
        """A daemon that ends tells of what was delivered."""
        rig = self.rig(durable)
        sender = V1RequestSender(rig, event(), event(OTHER))
        rig.slow.finish_writes()
        settle(rig, Fate.DELIVERED, *take_off(rig, 1))
        rig.admission.end_waiting()
        assert sender.results == {UUID: "ok", OTHER: "retry not_delivered"}

    def test_room_for_others(self, durable: bool) -> None:
        """Events that make room for newer ones have to come again, with
        all that isn't delivered.
        """
        rig = IntakeRig(
            ack=AckLevel.DELIVERED, durable=durable, when_full=WhenFull.DROP_OLDEST, max_bytes=7_500
        )
        sender = V1RequestSender(rig, event(), event(OTHER))
        rig.slow.finish_writes()
        settle(rig, Fate.DELIVERED, *take_off(rig, 1))
        V1RequestSender(rig, event(THIRD, properties={"a": "x" * 5000}))
        rig.slow.finish_writes()
        assert sender.results == {UUID: "ok", OTHER: "retry not_confirmed"}
