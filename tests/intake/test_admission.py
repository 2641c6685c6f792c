"""Admission: the levels of acknowledgement, and what a full buffer does with new events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forwarder.core.ack import AckLevel
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    Draining,
    InvalidRequest,
    LaneFull,
    NotAcknowledged,
    RequestTooLarge,
    TooManyLanes,
)
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DropReason, Fate, Reason, ReplayedDeadLetter, WhenFull
from tests.support.cases import cases
from tests.support.intakes import KEY, IntakeRig, batch, stamped_event
from tests.support.waiters import IntakeCallback

LANE = Lane(KEY)
MEMORY = AckLevel.MEMORY
DISK = AckLevel.DISK
DELIVERED = AckLevel.DELIVERED
BAD = {"event": "no id"}
SINGLE = json.dumps({"api_key": KEY, **stamped_event()}).encode()
CONFIGURED = [(MEMORY, False), (DELIVERED, False), (MEMORY, True), (DISK, True), (DELIVERED, True)]


def take_off(rig: IntakeRig) -> list[Chunk]:
    """Take everything that waits, as delivery does."""
    queue = rig.buffer.queue(LANE)
    return [queue.popleft() for _ in range(len(queue))]


def deliver(rig: IntakeRig, *chunks: Chunk) -> None:
    """The upstream took these chunks."""
    for chunk in chunks:
        rig.books.deliver(chunk.lane, chunk.count)
        rig.buffer.settle([chunk], Fate.DELIVERED)
    assert rig.balanced()


def received(rig: IntakeRig) -> int:
    """Events that the books say came in."""
    return rig.figures(LANE).received


@cases(("configured", "durable"), CONFIGURED)
@cases("asked", [None, *AckLevel])
@cases("single", [False, True])
def test_the_higher_acknowledgement_level_wins(
    configured: AckLevel, asked: AckLevel | None, durable: bool, single: bool
) -> None:
    """Of what is configured and what the sender asks for, the higher counts, for every kind of
    body; disk needs a disk.
    """
    rig = IntakeRig(ack=configured, durable=durable)
    due = max(configured, asked or MEMORY, key=lambda level: level.rank)
    body = SINGLE if single else b'{"api_key":"phc_good","batch":[%b]}' % SINGLE
    if due is DISK and not durable:
        with pytest.raises(InvalidRequest, match="in memory"):
            rig.take(body, ack=asked)
        assert rig.untouched()
        return
    callback = IntakeCallback()
    callback.reached = rig.offer(body, callback, ack=asked)
    assert callback.code == ("accepted" if due is MEMORY else "waiting")
    assert rig.balanced()
    assert received(rig) == (0 if durable and due is not MEMORY else 1)
    rig.slow.finish_writes()
    assert rig.balanced()
    assert received(rig) == 1
    assert callback.code == ("waiting" if due is DELIVERED else "accepted")
    deliver(rig, *take_off(rig))
    assert callback.code == "accepted"
    assert rig.clock.pending == 0


def test_a_write_that_fails_later_accepts_nothing() -> None:
    """When the buffer couldn't write what it was offered, nothing of the request is counted, and
    its sender comes again.
    """
    for level in (DISK, DELIVERED):
        rig = IntakeRig(ack=level, durable=True)
        callback = rig.ask(stamped_event(), BAD)
        rig.slow.fail_writes()
        assert callback.code == "backpressure"
        assert rig.untouched()
        assert (rig.clock.pending, rig.intake.statistics().awaiting_delivery) == (0, 0)


def test_an_immediate_rejection_accepts_nothing() -> None:
    """What the buffer doesn't take at all raises, at each level, and no one is called later."""
    for level in AckLevel:
        rig = IntakeRig(ack=level, durable=True, max_bytes=3000)
        rig.buffer.used = 3000
        with pytest.raises(BufferFull):
            rig.ask(stamped_event())
        rig.buffer.used = 0
        assert rig.untouched()
        assert rig.clock.pending == 0


def test_dead_letters_of_a_request_wait_for_its_events() -> None:
    """What is refused at receipt becomes a dead letter only once the rest is held, and the answer
    waits until it is written too.
    """
    rig = IntakeRig(ack=DISK, durable=True)
    rig.dead_letters.slow = True
    callback = rig.ask(stamped_event(), BAD)
    assert rig.dead_letters.dead_letters == []
    rig.slow.finish_writes()
    assert rig.figures(LANE) == (2, 1, {Reason.MISSING_DISTINCT_ID: 1}, {})
    assert (rig.balanced(), callback.code) == (True, "waiting")
    rig.dead_letters.write()
    assert callback.code == "accepted"


@pytest.mark.parametrize("durable", [False, True])
def test_a_request_of_letters_alone(durable: bool) -> None:
    """They are buried at once; the answer waits until they are written, from the level disk on."""
    for level in (MEMORY, DELIVERED, *([DISK] if durable else [])):
        rig = IntakeRig(ack=level, durable=durable)
        rig.dead_letters.slow = True
        callback = rig.ask(BAD, BAD)
        assert rig.figures(LANE).dead_lettered == {Reason.MISSING_DISTINCT_ID: 2}
        assert callback.code == ("accepted" if level is MEMORY else "waiting")
        rig.dead_letters.write(Backpressure("the disk is full"))
        assert callback.code == ("accepted" if level is MEMORY else "backpressure")


def test_level_delivered_waits_for_every_event() -> None:
    """The answer waits for the last event, however the request is cut, and for the dead letters to
    be written.
    """
    rig = IntakeRig(ack=DELIVERED)
    callback = rig.ask(stamped_event(), stamped_event(), stamped_event())
    (whole,) = take_off(rig)
    parts = [whole.part(event, 1, whole.ids, index) for index, event in enumerate(whole.events())]
    rig.buffer.replace(whole, parts)
    deliver(rig, parts[0], parts[2])
    assert callback.code == "waiting"
    rig.dead_letters.slow = True
    rig.books.dead_letter(LANE, Reason.REFUSED, 1)
    rig.buffer.settle([parts[1]], Fate.DEAD_LETTERED)
    assert (callback.code, rig.intake.statistics().awaiting_delivery) == ("waiting", 1)
    rig.dead_letters.write()
    assert (callback.code, rig.intake.statistics().awaiting_delivery) == ("accepted", 0)
    assert rig.clock.pending == 0


def test_a_pending_request_holds_no_events() -> None:
    """Once they are counted they are the buffer's alone, which may have them on disk."""
    rig = IntakeRig(ack=DELIVERED)
    rig.ask(stamped_event(), stamped_event(), {"event": "no id"})
    [submission] = rig.admission._awaiting_delivery
    assert submission.counted
    assert (submission.chunks, submission.content.chunks) == ((), [])


async def test_a_request_past_its_ack_timeout_is_withdrawn() -> None:
    """After the time limit the sender comes again: what still waits is dropped and counted, what
    is in flight is not.
    """
    rig = IntakeRig()
    flying = rig.ask(stamped_event(), ack=DELIVERED)
    (chunk,) = take_off(rig)
    waiting = rig.ask(stamped_event(), stamped_event(), ack=DELIVERED)
    rig.ask(stamped_event())
    await rig.clock.advance(4.9)
    assert (flying.code, waiting.code) == ("waiting", "waiting")
    await rig.clock.advance(0.2)
    assert (flying.code, waiting.code) == ("not_acknowledged", "not_acknowledged")
    assert chunk.ack is not None
    assert chunk.ack.settled
    assert rig.figures(LANE) == (4, 2, {}, {DropReason.WITHDRAWN: 2})
    assert rig.balanced()
    deliver(rig, chunk)
    assert len(rig.events()) == 1
    assert rig.intake.statistics().not_acknowledged == 2


async def test_only_the_part_that_is_not_in_flight_is_withdrawn() -> None:
    """Of one request the part that was sent continues, the rest is withdrawn;
    the sender is notified once.
    """
    rig = IntakeRig(ack=DELIVERED)
    callback = rig.ask(stamped_event(), stamped_event())
    (whole,) = take_off(rig)
    parts = [whole.part(event, 1, whole.ids, index) for index, event in enumerate(whole.events())]
    rig.buffer.replace(whole, parts)
    rig.buffer.queue(LANE).put_back(parts[1:])
    await rig.clock.advance(5)
    assert callback.code == "not_acknowledged"
    assert rig.figures(LANE) == (2, 1, {}, {DropReason.WITHDRAWN: 1})
    deliver(rig, parts[0])
    assert rig.buffer.used == 0


async def test_the_ack_timeout_may_end_before_the_buffer_holds_the_events() -> None:
    """The limit runs from the offer; what the buffer holds only later is withdrawn in the same
    step, and what it refuses is nothing.
    """
    rig = IntakeRig(ack=DELIVERED, durable=True)
    callback = rig.ask(stamped_event(), BAD)
    await rig.clock.advance(5)
    assert (callback.code, received(rig)) == ("not_acknowledged", 0)
    rig.slow.finish_writes()
    assert rig.figures(LANE) == (2, 0, {Reason.MISSING_DISTINCT_ID: 1}, {DropReason.WITHDRAWN: 1})
    assert (rig.balanced(), rig.buffer.used) == (True, 0)
    late = rig.ask(stamped_event())
    await rig.clock.advance(5)
    rig.slow.fail_writes()
    assert (late.code, rig.balanced()) == ("not_acknowledged", True)


def test_pending_requests_are_answered_at_the_end() -> None:
    """When nothing will be delivered any more, each pending sender is rejected, and what it will
    bring again is dropped.
    """
    rig = IntakeRig(ack=DELIVERED)
    callback = [rig.ask(stamped_event()) for _ in range(3)]
    rig.conditions.draining = True
    with pytest.raises(Draining):
        rig.ask(stamped_event())
    assert [waiter.code for waiter in callback] == ["waiting"] * 3
    rig.admission.end_waiting()
    assert [waiter.code for waiter in callback] == ["draining"] * 3
    assert (rig.figures(LANE).dropped, rig.clock.pending, rig.balanced()) == (
        {DropReason.WITHDRAWN: 3},
        0,
        True,
    )


async def test_expired_requests_are_found_at_the_front() -> None:
    """Requests that give up one after the other are found at the front, and no
    other's events are touched.
    """
    rig = IntakeRig(ack=DELIVERED)
    callback = []
    for _ in range(4):
        callback.append(rig.ask(stamped_event()))
        await rig.clock.advance(1)
    await rig.clock.advance(2)
    assert [waiter.code for waiter in callback] == [
        "not_acknowledged",
        "not_acknowledged",
        "waiting",
        "waiting",
    ]
    deliver(rig, *take_off(rig))
    assert [waiter.code for waiter in callback[2:]] == ["accepted", "accepted"]


def test_not_acknowledged_is_backpressure() -> None:
    """It is answered 503 with a time to come back at."""
    assert issubclass(NotAcknowledged, Backpressure)
    assert NotAcknowledged("x").retry_after >= 1


@cases("durable", [False, True])
@cases("configured", [MEMORY, DELIVERED])
def test_a_replayed_dead_letter_moves_between_accounts(durable: bool, configured: AckLevel) -> None:
    """It isn't received anew: its account moves from the dead letters to the buffer, once the
    buffer holds it; it is never withdrawn.
    """
    rig = IntakeRig(ack=configured, durable=durable)
    rig.books.receive(LANE, "kafka", 1)
    rig.books.dead_letter(LANE, Reason.REFUSED, 1)
    callback = rig.ask(
        stamped_event(), source="kafka", replayed=ReplayedDeadLetter(7, Reason.REFUSED)
    )
    assert callback.code == ("waiting" if durable else "accepted")
    if durable:
        assert rig.figures(LANE) == (1, 0, {Reason.REFUSED: 1}, {})
        rig.slow.finish_writes()
    assert callback.code == "accepted"
    assert rig.figures(LANE) == (1, 1, {Reason.REFUSED: 0}, {})
    (chunk,) = rig.chunks()
    assert (chunk.origin, chunk.source, chunk.ack) == (7, "kafka", None)
    assert (rig.balanced(), rig.clock.pending) == (True, 0)


def test_a_dead_letter_that_is_refused_again_stays_one() -> None:
    """What would be refused at receipt says why, and nothing changes."""
    rig = IntakeRig()
    with pytest.raises(InvalidRequest, match="no distinct_id"):
        rig.ask(BAD, replayed=ReplayedDeadLetter(7, Reason.MISSING_DISTINCT_ID))
    rig.conditions.draining = True
    with pytest.raises(Draining):
        rig.ask(stamped_event(), replayed=ReplayedDeadLetter(7, Reason.REFUSED))
    assert rig.untouched()


def test_chunks_know_their_source() -> None:
    """Each chunk knows its source, for its letters and for the books on disk."""
    rig = IntakeRig()
    rig.take(SINGLE, source="kafka")
    rig.take(b'{"api_key":"phc_good","batch":[{"event":"e","distinct_id":"d"}]}', source="logs")
    assert [chunk.source for chunk in rig.chunks()] == ["kafka", "logs"]


OTHER = Lane("phc_other")
DISK = AckLevel.DISK
DELIVERED = AckLevel.DELIVERED


def padded(name: str, size: int = 1000) -> dict[str, Any]:
    """An event of about so many bytes."""
    return stamped_event(event=name, properties={"p": "x" * size})


def names(rig: IntakeRig) -> list[str]:
    """The names of the events that wait."""
    return [event.split(b'"')[3].decode() for event in rig.events()]


def filled(when_full: WhenFull, **options: Any) -> IntakeRig:
    """An intake whose good key has used up its share of the buffer: three events."""
    rig = IntakeRig(max_bytes=8_800, when_full=when_full, **options)
    for number in range(3):
        rig.ask(padded(f"old-{number}"), ack=None)
        rig.slow.finish_writes()
    return rig


def test_reject_asks_the_sender_to_come_back() -> None:
    """The sender is asked to come back, and nothing is dropped."""
    rig = filled(WhenFull.REJECT)
    with pytest.raises(LaneFull):
        rig.ask(padded("new"))
    assert rig.figures(LANE) == (3, 3, {}, {})


@cases("level", [*AckLevel])
def test_drop_newest_accepts_and_drops_the_request(level: AckLevel) -> None:
    """The request is answered as taken at any level; its events are received and dropped, and
    those refused at receipt are letters.
    """
    rig = filled(WhenFull.DROP_NEWEST, durable=True)
    assert rig.ask(padded("new"), {"event": "no id"}, ack=level).code == "accepted"
    assert rig.figures(LANE) == (5, 3, {Reason.MISSING_DISTINCT_ID: 1}, {DropReason.DROP_NEWEST: 1})
    assert names(rig) == ["old-0", "old-1", "old-2"]
    assert (rig.balanced(), rig.clock.pending) == (True, 0)


def test_drop_newest_of_a_single_event() -> None:
    """The short way of one event keeps the rule."""
    rig = filled(WhenFull.DROP_NEWEST)
    rig.take({"api_key": KEY, **padded("new")})
    assert rig.figures(LANE).dropped == {DropReason.DROP_NEWEST: 1}


def test_drop_newest_when_the_buffer_is_full() -> None:
    """It isn't only about a lane's share."""
    rig = filled(WhenFull.DROP_NEWEST)
    rig.take({"api_key": OTHER.api_key, "batch": [padded("other")]})
    rig.buffer.max_bytes = rig.buffer.used
    rig.take({"api_key": OTHER.api_key, "batch": [padded("new")]})
    assert rig.figures(OTHER) == (2, 1, {}, {DropReason.DROP_NEWEST: 1})
    assert rig.balanced()


def test_drop_oldest_of_the_lane() -> None:
    """When its share is full a lane's own oldest events make room, and no other's."""
    rig = filled(WhenFull.DROP_OLDEST)
    rig.take({"api_key": OTHER.api_key, "batch": [padded("other")]})
    assert rig.ask(padded("new-0"), padded("new-1")).code == "accepted"
    assert rig.figures(LANE) == (5, 3, {}, {DropReason.DROP_OLDEST: 2})
    assert names(rig) == ["old-2", "new-0", "new-1", "other"]
    assert rig.balanced()


def test_drop_oldest_of_the_lane_that_is_full() -> None:
    """Of a request with several keys, only the one without room loses events."""
    rig = filled(WhenFull.DROP_OLDEST)
    rig.take([{**padded("a"), "api_key": OTHER.api_key}, {**padded("b"), "api_key": KEY}])
    assert rig.figures(LANE).dropped == {DropReason.DROP_OLDEST: 1}
    assert rig.figures(OTHER).dropped == {}
    assert rig.balanced()


async def test_drop_oldest_of_all() -> None:
    """When the buffer is full the oldest events go, whosever they are."""
    rig = filled(WhenFull.DROP_OLDEST)
    await rig.clock.advance(1)
    rig.take({"api_key": OTHER.api_key, "batch": [padded("other")]})
    # with one event fewer there is room for another by the rule
    rig.buffer.max_bytes = rig.buffer.used + 700
    rig.take({"api_key": OTHER.api_key, "batch": [padded("new")]})
    assert rig.figures(LANE) == (3, 2, {}, {DropReason.DROP_OLDEST: 1})
    assert rig.figures(OTHER) == (2, 2, {}, {})
    assert rig.balanced()


def test_drop_oldest_rejects_when_everything_is_in_flight() -> None:
    """What is in flight can't make room: then the sender is asked to come back after all."""
    rig = filled(WhenFull.DROP_OLDEST)
    queue = rig.buffer.queue(LANE)
    flying = [queue.popleft() for _ in range(3)]
    with pytest.raises(LaneFull):
        rig.ask(padded("new"))
    assert (len(flying), rig.figures(LANE)) == (3, (3, 3, {}, {}))


def test_a_sender_whose_pending_request_is_dropped_retries() -> None:
    """A sender that waits for delivery isn't answered 200 because its event was dropped; what else
    it brought is withdrawn.
    """
    rig = IntakeRig(max_bytes=8_800, when_full=WhenFull.DROP_OLDEST)
    first = rig.ask(padded("old-0"), padded("old-1"), ack=DELIVERED)
    (whole,) = rig.chunks()
    rig.buffer.queue(LANE).popleft()
    parts = [whole.part(event, 1, whole.ids, index) for index, event in enumerate(whole.events())]
    rig.buffer.replace(whole, parts)
    rig.buffer.queue(LANE).put_back(parts)
    rig.ask(padded("old-2"))
    assert rig.ask(padded("new")).code == "accepted"
    assert first.code == "not_acknowledged"
    assert rig.figures(LANE) == (4, 2, {}, {DropReason.DROP_OLDEST: 1, DropReason.WITHDRAWN: 1})
    assert (rig.balanced(), rig.clock.pending) == (True, 0)


@pytest.mark.parametrize("when_full", [WhenFull.DROP_NEWEST, WhenFull.DROP_OLDEST])
def test_drop_policies_apply_to_a_full_buffer_only(when_full: WhenFull) -> None:
    """Too many lanes, a request that could never fit, and a dead letter in flight back are
    refused: nothing is dropped for them.
    """
    rig = filled(when_full, max_lanes=1)
    with pytest.raises(TooManyLanes):
        rig.take({"api_key": OTHER.api_key, "batch": [padded("x")]})
    with pytest.raises(RequestTooLarge):
        rig.take(batch(padded("x", 10_000)))
    with pytest.raises(LaneFull):
        rig.ask(padded("x"), replayed=ReplayedDeadLetter(1, Reason.REFUSED))
    assert rig.figures(LANE) == (3, 3, {}, {})


def test_a_failing_disk_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events aren't dropped because they can't be written now: their senders keep them."""

    class DiskRefuses(BufferFull):
        """Like a full buffer, but none."""

    def refuse(_chunks: list[Chunk], _held: object = None) -> bool:
        raise DiskRefuses("can't write")

    for when_full in (WhenFull.DROP_NEWEST, WhenFull.DROP_OLDEST):
        rig = IntakeRig(when_full=when_full)
        monkeypatch.setattr(rig.buffer, "offer", refuse)
        for body in ({"api_key": KEY, **padded("x")}, batch(padded("x"))):
            with pytest.raises(Backpressure, match="can't write"):
                rig.take(body)
        assert rig.untouched()


@pytest.mark.parametrize("level", [DISK, DELIVERED])
def test_room_is_made_at_each_level(level: AckLevel) -> None:
    """Dropping the oldest lets a request in that then waits as it would have."""
    rig = filled(WhenFull.DROP_OLDEST, durable=True)
    callback = rig.ask(padded("new"), ack=level)
    assert callback.code == "waiting"
    rig.slow.finish_writes()
    assert callback.code == ("accepted" if level is DISK else "waiting")
    assert rig.figures(LANE).dropped == {DropReason.DROP_OLDEST: 1}
    rig.admission.end_waiting()
    assert (rig.balanced(), rig.clock.pending) == (True, 0)
