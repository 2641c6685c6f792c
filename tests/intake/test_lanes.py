"""How many lanes there may be, and which keys may open one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from forwarder.core.errors import InvalidToken, TooManyLanes
from forwarder.core.event import Chunk, Lane
from forwarder.intake.lanes import LaneRegistry


@dataclass
class Held:
    """What a lane holds."""

    bytes: int = 1


def chunks(*lanes: Lane) -> list[Chunk]:
    """One chunk a lane."""
    return [Chunk(lane, b"{}", 1, frozenset(), 0.0) for lane in lanes]


def lane(number: int) -> Lane:
    """One of many lanes."""
    return Lane(f"phc_{number}")


def test_lanes_up_to_the_limit() -> None:
    """One more than there may be has to wait, however many are new in one request; lanes that are there go on."""
    held = {lane(number): Held() for number in range(3)}
    registry = LaneRegistry(4, held)
    registry.admit(chunks(lane(3)))
    registry.admit(chunks(lane(0), lane(1), lane(2)))
    with pytest.raises(TooManyLanes) as caught:
        registry.admit(chunks(lane(0), lane(3), lane(4)))
    assert caught.value.retry_after > 0
    del held[lane(0)]
    registry.admit(chunks(lane(3), lane(4)))


def test_live_and_historical_events_are_two_lanes() -> None:
    """Of one key."""
    with pytest.raises(TooManyLanes):
        LaneRegistry(1, {}).admit(chunks(lane(0), Lane(lane(0).api_key, historical=True)))


def test_made_up_keys_leave_half_of_the_places() -> None:
    """Keys that nobody vouched for fill half of the lanes; the next is asked about, and a good one is still let in."""
    held = {lane(number): Held() for number in range(5)}
    asked: list[str] = []
    registry = LaneRegistry(10, held, vouched=lambda key: key == "phc_good", ask=asked.append)
    with pytest.raises(TooManyLanes):
        registry.admit(chunks(lane(5)))
    assert asked == ["phc_5"]
    registry.admit(chunks(Lane("phc_good")))
    registry.admit(chunks(lane(2)))


def test_a_key_that_was_vouched_for_comes_in_again() -> None:
    """Once the answer is there, its lanes don't count among the unknown ones."""
    held = {lane(number): Held() for number in range(5)}
    good: set[str] = set()
    registry = LaneRegistry(10, held, vouched=good.__contains__)
    with pytest.raises(TooManyLanes):
        registry.admit(chunks(lane(5)))
    good.add("phc_5")
    registry.admit(chunks(lane(5)))
    good.add("phc_0")
    registry.admit(chunks(lane(6)))


@pytest.mark.parametrize("max_lanes", [1, 2, 3])
def test_a_single_unknown_key_always_finds_a_place(max_lanes: int) -> None:
    """However few lanes there may be, or nobody could ever begin; a second one waits."""
    held: dict[Lane, Held] = {}
    registry = LaneRegistry(max_lanes, held, vouched=lambda _: False)
    registry.admit(chunks(lane(0)))
    held[lane(0)] = Held()
    with pytest.raises(TooManyLanes):
        registry.admit(chunks(lane(1)))


def test_configured_keys() -> None:
    """Where keys are configured, no other is taken, they need nobody's word, and a reload changes them."""
    held = {lane(number): Held() for number in range(5)}
    registry = LaneRegistry(10, held, api_keys=["phc_7"], vouched=lambda _: False)
    registry.admit(chunks(lane(7)))
    assert registry.live("phc_7") == lane(7)
    for check in (registry.check_key, registry.live):
        with pytest.raises(InvalidToken):
            check("phc_8")
    registry.configure(10, ["phc_8"])
    assert registry.live("phc_8") == lane(8)
    with pytest.raises(InvalidToken):
        registry.live("phc_7")
    registry.configure(10, [])
    assert registry.live("phc_7") == lane(7)


def test_any_well_formed_key_where_none_is_configured() -> None:
    """And none that can't be one."""
    registry = LaneRegistry(10, {})
    registry.check_key("anything")
    for key in ("", "phx_secret", "é", "a" * 65):
        with pytest.raises(InvalidToken):
            registry.live(key)


def test_made_up_keys_are_not_remembered_for_ever() -> None:
    """Ten thousand keys leave no trace of ten thousand keys."""
    registry = LaneRegistry(10, {})
    for number in range(10_000):
        registry.live(f"phc_{number}")
    assert len(registry._live) <= 4096
