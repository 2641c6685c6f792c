"""How much of the buffer a lane, the halted lanes and the historical lanes may hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from operator import attrgetter

import pytest

from forwarder.core.errors import LaneFull, RequestTooLarge
from forwarder.core.event import Chunk, Lane
from forwarder.intake.quotas import Quotas

LIMIT = 100_000
A, B, C = Lane("phc_a"), Lane("phc_b"), Lane("phc_c")
OLD_A, OLD_B = Lane("phc_a", historical=True), Lane("phc_b", historical=True)
OVERHEAD = Chunk(A, b"", 1, frozenset(), 0.0).cost


@dataclass
class Held:
    """What a lane holds."""

    bytes: int


def chunk(lane: Lane, cost: int) -> Chunk:
    """A chunk that counts for so many bytes."""
    return Chunk(lane, b"x" * (cost - OVERHEAD), 1, frozenset(), 0.0)


def check(*chunks: Chunk, held: dict[Lane, int] | None = None, halted: Collection[Lane] = ()) -> None:
    """Ask whether chunks may be taken, given what is held."""
    Quotas(LIMIT, {lane: Held(size) for lane, size in (held or {}).items()}, halted, attrgetter("cost")).check(chunks)


def test_a_lane_may_hold_half() -> None:
    """To the byte; other lanes are not affected, and an empty lane takes half at once."""
    check(chunk(A, LIMIT // 2))
    check(chunk(A, 10_000), held={A: 40_000, B: 50_000})
    with pytest.raises(LaneFull):
        check(chunk(A, 10_001), held={A: 40_000})
    check(chunk(C, 50_000), held={A: 50_000, B: 50_000})


def test_what_fits_no_empty_lane_is_too_large() -> None:
    """Coming again wouldn't help."""
    with pytest.raises(RequestTooLarge):
        check(chunk(A, LIMIT // 2 + 1))
    with pytest.raises(RequestTooLarge):
        check(chunk(B, 10_000), chunk(A, LIMIT // 2 + 1))


def test_what_fits_no_empty_buffer_is_too_large() -> None:
    """Several lanes that could each be taken, but never together."""
    check(chunk(A, 50_000), chunk(B, 50_000))
    with pytest.raises(RequestTooLarge):
        check(chunk(A, 40_000), chunk(B, 40_000), chunk(C, 20_001))


def test_halted_lanes_hold_a_quarter_together() -> None:
    """Past it their senders wait, and only theirs."""
    halted = {A, B}
    check(chunk(A, 10_000), held={B: 15_000}, halted=halted)
    with pytest.raises(LaneFull):
        check(chunk(A, 10_001), held={B: 15_000}, halted=halted)
    with pytest.raises(LaneFull):
        check(chunk(C, 5_000), chunk(A, 10_001), held={B: 15_000}, halted=halted)
    check(chunk(C, 40_000), held={B: 45_000}, halted=halted)


def test_historical_lanes_hold_half_together() -> None:
    """Past it their senders wait; live events of the same key go on."""
    check(chunk(OLD_A, 10_000), held={OLD_B: 40_000})
    with pytest.raises(LaneFull):
        check(chunk(OLD_A, 10_001), held={OLD_B: 40_000})
    check(chunk(A, 40_000), held={OLD_A: 30_000, OLD_B: 20_000})


def test_lanes_of_one_request_count_together() -> None:
    """A request can't pass with two lanes a share that it couldn't pass with one."""
    with pytest.raises(LaneFull):
        check(chunk(OLD_A, 15_000), chunk(OLD_B, 15_000), held={OLD_A: 10_000, OLD_B: 15_000})
    with pytest.raises(LaneFull):
        check(chunk(A, 13_000), chunk(B, 13_000), halted={A, B})
    with pytest.raises(RequestTooLarge):
        check(chunk(OLD_A, 30_000), chunk(OLD_B, 30_000))
    check(chunk(A, 13_000), chunk(B, 13_000), halted={A})


def test_the_most_events_that_a_lane_could_hold() -> None:
    """Even without any bytes of their own, more than these are over its half."""
    quotas = Quotas(LIMIT, {}, (), attrgetter("cost"))
    most = quotas.max_events
    assert Chunk(A, b"", most + 1, frozenset(), 0.0).cost > LIMIT // 2


def test_what_has_no_room_is_told_before_any_work() -> None:
    """Bytes alone tell that a lane is full; what an empty lane could never hold is left for the check that says so."""
    quotas = Quotas(LIMIT, {A: Held(40_000)}, (), attrgetter("cost"))
    quotas.check_room(A, 10_000)
    with pytest.raises(LaneFull):
        quotas.check_room(A, 10_001)
    quotas.check_room(A, LIMIT // 2 + 1)
    quotas.check_room(B, LIMIT // 2)
