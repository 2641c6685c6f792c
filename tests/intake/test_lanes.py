"""Which keys may open a lane, how many lanes there may be, and which keys are known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from forwarder.core.errors import InvalidToken, TooManyLanes
from forwarder.core.event import Chunk, Lane
from forwarder.core.lane_queue import LanePool
from forwarder.intake.lane_registry import KnownKeys, LaneRegistry
from forwarder.storage.key_file import MAX_KEYS, KeyHashes
from tests.support.cases import cases
from tests.support.intakes import AllKnown


@dataclass
class HeldByLane:
    """What a lane holds."""

    bytes: int = 1
    pool: LanePool | None = None


def hold(known: KnownKeys, *lanes: Lane) -> dict[Lane, HeldByLane]:
    """Lanes that the buffer holds, in their pools."""
    held = {lane: HeldByLane(pool=known.pool_of(lane)) for lane in lanes}
    known.unknown.lanes = sum(1 for holding in held.values() if holding.pool is known.unknown)
    return held


def chunks(*lanes: Lane) -> list[Chunk]:
    """One chunk a lane."""
    return [Chunk(lane, b"{}", 1, frozenset(), 0.0) for lane in lanes]


def lane(number: int) -> Lane:
    """One of many lanes."""
    return Lane(f"phc_{number}")


def test_a_lane_over_the_limit_waits() -> None:
    """One more than there may be has to wait, however many are new in one request; lanes that are
    there continue.
    """
    held = {lane(number): HeldByLane() for number in range(3)}
    registry = LaneRegistry(4, held, AllKnown())
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
        LaneRegistry(1, {}, AllKnown()).admit(
            chunks(lane(0), Lane(lane(0).api_key, historical=True))
        )


def test_unknown_keys_may_open_half_of_the_lanes() -> None:
    """Unknown keys fill half of the lanes; the next is asked about, and a
    known one is still accepted.
    """
    known = KnownKeys(["phc_good"])
    asked: list[str] = []
    registry = LaneRegistry(10, hold(known, *map(lane, range(5))), known, ask=asked.append)
    with pytest.raises(TooManyLanes):
        registry.admit(chunks(lane(5)))
    assert asked == ["phc_5"]
    registry.admit(chunks(Lane("phc_good")))
    registry.admit(chunks(lane(2)))


def test_a_verified_key_opens_a_lane_among_too_many_unknown_ones() -> None:
    """Once the answer is there, its lanes don't count among the unknown ones."""
    known = KnownKeys(["phc_good"])
    registry = LaneRegistry(10, hold(known, *map(lane, range(5))), known)
    with pytest.raises(TooManyLanes):
        registry.admit(chunks(lane(5)))
    known.verify("phc_5")
    registry.admit(chunks(lane(5)))
    known.unknown.lanes = 4
    registry.admit(chunks(lane(6)))


def test_without_key_check_unknown_keys_may_open_every_lane() -> None:
    """Without the key check and a list of keys none is better than another; with a
    list they are.
    """
    known = KnownKeys(verifiable=False)
    registry = LaneRegistry(10, hold(known, *map(lane, range(9))), known)
    registry.admit(chunks(lane(9)))
    known.configure(["phc_good"])
    with pytest.raises(TooManyLanes):
        registry.admit(chunks(lane(9)))


@cases("max_lanes", [1, 2, 3])
def test_one_unknown_key_may_always_open_a_lane(max_lanes: int) -> None:
    """However few lanes there may be, or none could ever begin; a second one waits."""
    known = KnownKeys(["phc_good"])
    LaneRegistry(max_lanes, {}, known).admit(chunks(lane(0)))
    with pytest.raises(TooManyLanes):
        LaneRegistry(max_lanes, hold(known, lane(0)), known).admit(chunks(lane(1)))


def test_only_configured_keys_are_accepted() -> None:
    """Where keys are configured, no other is taken, they need no one's word,
    and a reload changes them.
    """
    known = KnownKeys(["phc_7"])
    registry = LaneRegistry(10, hold(known, *map(lane, range(5))), known, api_keys=["phc_7"])
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
    registry = LaneRegistry(10, {}, KnownKeys())
    registry.check_key("anything")
    for key in ("", "phx_secret", "é", "a" * 65):
        with pytest.raises(InvalidToken):
            registry.live(key)


def test_made_up_keys_are_forgotten() -> None:
    """Ten thousand keys leave no trace of ten thousand keys."""
    registry = LaneRegistry(10, {}, KnownKeys())
    for number in range(10_000):
        registry.live(f"phc_{number}")
    assert len(registry._live) <= 4096


def test_configured_verified_and_remembered_keys_are_known() -> None:
    """And no others; a list that is read again counts from then on."""
    known = KnownKeys(["phc_listed"], ["phc_source"])
    known.verify("phc_verified")
    known.remember(KeyHashes(b"salt", ()).with_keys(["phc_remembered"]))
    for key in ("phc_listed", "phc_source", "phc_verified", "phc_remembered"):
        assert key in known
        assert known.pool_of(Lane(key, historical=True)) is None
    assert "phc_other" not in known
    assert known.pool_of(Lane("phc_other")) is known.unknown
    known.configure(["phc_other"])
    assert "phc_other" in known
    assert "phc_listed" not in known


def test_listeners_are_called_on_changes() -> None:
    """Once for each key that becomes known; a remembered key that is verified again is no change,
    but is written down.
    """
    known = KnownKeys()
    heard = []
    known.on_change = lambda: heard.append("change")
    known.on_verified = lambda: heard.append("verified")
    hashes = KeyHashes(b"salt", ()).with_keys(["phc_a"])
    known.remember(hashes)
    known.remember(hashes)
    known.verify("phc_a")
    known.verify("phc_b")
    known.verify("phc_b")
    assert heard == ["change", "verified", "change", "verified"]


def test_known_keys_are_protected_once_there_are_any() -> None:
    """Any known key; without the key check only the list for senders, who could become known in no
    other way.
    """
    assert not KnownKeys().protects
    assert KnownKeys([], ["phc_source"]).protects
    assert not KnownKeys([], ["phc_source"], verifiable=False).protects
    assert KnownKeys(["phc_listed"], verifiable=False).protects
    for known in (KnownKeys(), KnownKeys(verifiable=False)):
        known.remember(KeyHashes(b"salt", ()).with_keys(["phc_a"]))
        assert known.protects is known.verifiable


def test_verified_keys_are_bounded() -> None:
    """The one verified longest ago is forgotten first."""
    known = KnownKeys()
    for number in range(MAX_KEYS + 5):
        known.verify(f"phc_{number}")
    assert "phc_4" not in known
    assert "phc_5" in known
    assert len(known.verified()) == MAX_KEYS
