"""What happens to events when there is no room: `buffer.when_full`."""

from __future__ import annotations

from typing import Any

import pytest

from forwarder.core.ack import AckLevel
from forwarder.core.errors import Backpressure, BufferFull, LaneFull, RequestTooLarge, TooManyLanes
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DropReason, Reason, Revived, WhenFull
from tests.support.intakes import KEY, IntakeRig, batch, stamped_event

LANE = Lane(KEY)
OTHER = Lane("phc_other")
DISK, DELIVERED = AckLevel.DISK, AckLevel.DELIVERED


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
        rig.slow.hold()
    return rig


def test_reject() -> None:
    """The sender is asked to come back, and nothing is dropped."""
    rig = filled(WhenFull.REJECT)
    with pytest.raises(LaneFull):
        rig.ask(padded("new"))
    assert rig.figures(LANE) == (3, 3, {}, {})


@pytest.mark.parametrize("level", [*AckLevel])
def test_drop_newest(level: AckLevel) -> None:
    """The request is answered as taken at any level; its events are received and dropped, and those refused at receipt are letters."""
    rig = filled(WhenFull.DROP_NEWEST, durable=True)
    assert rig.ask(padded("new"), {"event": "no id"}, ack=level).code == "taken"
    assert rig.figures(LANE) == (5, 3, {Reason.MISSING_DISTINCT_ID: 1}, {DropReason.DROP_NEWEST: 1})
    assert names(rig) == ["old-0", "old-1", "old-2"]
    assert (rig.balanced(), rig.clock.pending) == (True, 0)


def test_drop_newest_of_a_single_event() -> None:
    """The short way of one event keeps the rule."""
    rig = filled(WhenFull.DROP_NEWEST)
    rig.take({"api_key": KEY, **padded("new")})
    assert rig.figures(LANE)[3] == {DropReason.DROP_NEWEST: 1}


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
    assert rig.ask(padded("new-0"), padded("new-1")).code == "taken"
    assert rig.figures(LANE) == (5, 3, {}, {DropReason.DROP_OLDEST: 2})
    assert names(rig) == ["old-2", "new-0", "new-1", "other"]
    assert rig.balanced()


def test_drop_oldest_of_the_lane_that_is_full() -> None:
    """Of a request with several keys, only the one without room loses events."""
    rig = filled(WhenFull.DROP_OLDEST)
    rig.take([{**padded("a"), "api_key": OTHER.api_key}, {**padded("b"), "api_key": KEY}])
    assert rig.figures(LANE)[3] == {DropReason.DROP_OLDEST: 1}
    assert rig.figures(OTHER)[3] == {}
    assert rig.balanced()


async def test_drop_oldest_of_all() -> None:
    """When the buffer is full the oldest events go, whosever they are."""
    rig = filled(WhenFull.DROP_OLDEST)
    await rig.clock.advance(1)
    rig.take({"api_key": OTHER.api_key, "batch": [padded("other")]})
    rig.buffer.max_bytes = rig.buffer.used + 700  # with one event fewer there is room for another by the rule
    rig.take({"api_key": OTHER.api_key, "batch": [padded("new")]})
    assert rig.figures(LANE) == (3, 2, {}, {DropReason.DROP_OLDEST: 1})
    assert rig.figures(OTHER) == (2, 2, {}, {})
    assert rig.balanced()


def test_nothing_left_to_drop() -> None:
    """What is in flight can't make room: then the sender is asked to come back after all."""
    rig = filled(WhenFull.DROP_OLDEST)
    queue = rig.buffer.queue(LANE)
    flying = [queue.popleft() for _ in range(3)]
    with pytest.raises(LaneFull):
        rig.ask(padded("new"))
    assert (len(flying), rig.figures(LANE)) == (3, (3, 3, {}, {}))


def test_whoever_waits_for_what_is_dropped_comes_again() -> None:
    """A sender that waits for delivery isn't told 200 because its event was dropped; what else it brought is withdrawn."""
    rig = IntakeRig(max_bytes=8_800, when_full=WhenFull.DROP_OLDEST)
    first = rig.ask(padded("old-0"), padded("old-1"), ack=DELIVERED)
    (whole,) = rig.chunks()
    rig.buffer.queue(LANE).popleft()
    parts = [whole.part(event, 1, whole.ids, index) for index, event in enumerate(whole.events())]
    rig.buffer.replace(whole, parts)
    rig.buffer.queue(LANE).put_back(parts)
    rig.ask(padded("old-2"))
    assert rig.ask(padded("new")).code == "taken"
    assert first.code == "not_acknowledged"
    assert rig.figures(LANE) == (4, 2, {}, {DropReason.DROP_OLDEST: 1, DropReason.WITHDRAWN: 1})
    assert (rig.balanced(), rig.clock.pending) == (True, 0)


@pytest.mark.parametrize("when_full", [WhenFull.DROP_NEWEST, WhenFull.DROP_OLDEST])
def test_other_refusals_stay_what_they_are(when_full: WhenFull) -> None:
    """Too many lanes, a request that could never fit, and a dead letter on its way back are refused: nothing is dropped for them."""
    rig = filled(when_full, max_lanes=1)
    with pytest.raises(TooManyLanes):
        rig.take({"api_key": OTHER.api_key, "batch": [padded("x")]})
    with pytest.raises(RequestTooLarge):
        rig.take(batch(padded("x", 10_000)))
    with pytest.raises(LaneFull):
        rig.ask(padded("x"), revived=Revived(1, Reason.REFUSED))
    assert rig.figures(LANE) == (3, 3, {}, {})


def test_a_disk_that_refuses_is_no_full_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
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
    told = rig.ask(padded("new"), ack=level)
    assert told.code == "waiting"
    rig.slow.hold()
    assert told.code == ("taken" if level is DISK else "waiting")
    assert rig.figures(LANE)[3] == {DropReason.DROP_OLDEST: 1}
    rig.intake.end_waiting()
    assert (rig.balanced(), rig.clock.pending) == (True, 0)
