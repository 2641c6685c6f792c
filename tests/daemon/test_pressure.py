"""When memory is short, and what is done before events are rejected for it."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from forwarder.daemon.pressure import (
    LOOK_EVERY,
    RECLAIM_EMPTY,
    RECLAIM_EVERY,
    UNKNOWN_AFTER,
    MemoryGauge,
    MemoryWatch,
    reclaim_memory,
)
from tests.support.cases import cases
from tests.support.clock import FakeClock
from tests.support.fake_memory import FakeMemory

LIMIT = 1000


@dataclass
class PressureRig:
    """A watch over memory that a test sets; `reclaimed` is what each attempt to reclaim frees."""

    memory: FakeMemory = field(default_factory=FakeMemory)
    clock: FakeClock = field(default_factory=FakeClock)
    empty: bool = False
    frees: int = 0
    attempts: int = 0
    changes: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = MemoryWatch(
            self.memory,
            self.clock,
            is_empty=lambda: self.empty,
            on_change=self.changes.append,
            reclaim=self.reclaim,
        )

    def reclaim(self) -> None:
        """Free a little."""
        self.attempts += 1
        self.memory.amount -= self.frees

    def use(self, amount: int) -> bool:
        """So much is used; whether memory is short then."""
        self.memory.amount = amount
        self.watch.look()
        return self.watch.statistics().short


def decide(gauge: MemoryGauge, used: int, now: float, *, empty: bool = False) -> bool:
    """Decide on a figure that reclaiming doesn't change; whether memory is short."""
    if gauge.decide(used, now, empty=empty):
        assert not gauge.decide(used, now, empty=empty)
    return gauge.short


@cases(
    ("figures", "expected"),
    [
        ([899, 900, 850, 800, 799], [False, True, True, True, False]),
        ([800, 899, 1500, 801, 10, 899], [False, False, True, True, False, False]),
    ],
)
def test_memory_is_short_from_nine_tenths_until_below_eight(
    figures: list[int], expected: list[bool]
) -> None:
    """Between the two it stays as it is."""
    gauge = MemoryGauge(LIMIT)
    assert [decide(gauge, used, float(now)) for now, used in enumerate(figures)] == expected


@given(
    st.integers(10, 10**12),
    st.lists(st.tuples(st.floats(0, 2), st.floats(0, 10), st.booleans(), st.floats(0, 1))),
)
def test_memory_pressure_invariants(
    limit: int, steps: list[tuple[float, float, bool, float]]
) -> None:
    """Whatever is used: below eight tenths and with an empty buffer memory isn't short, from nine
    tenths on with events it is, and reclaiming is asked for at most once a second, before that.
    """
    gauge = MemoryGauge(limit)
    now = 0.0
    last = -math.inf
    for share, wait, empty, left in steps:
        now += wait
        used = int(share * limit)
        before = gauge.short
        if gauge.decide(used, now, empty=empty):
            assert now >= last + RECLAIM_EMPTY
            assert gauge.short is before
            last = now
            used = int(used * left)
            assert not gauge.decide(used, now, empty=empty)
        if empty or used < limit * 8 // 10:
            assert not gauge.short
        elif used >= limit * 9 // 10:
            assert gauge.short
        else:
            assert gauge.short is before


def test_reclaimable_memory_rejects_nothing() -> None:
    """Garbage and free memory are given back first; memory is short only if that isn't enough."""
    rig = PressureRig(frees=200)
    assert not rig.use(950)
    assert (rig.attempts, rig.changes) == (1, [])
    assert rig.use(950)
    assert rig.attempts == 1
    rig.frees = 0
    assert rig.changes == [True]


async def test_memory_is_reclaimed_at_intervals_while_it_is_short() -> None:
    """Now and then, not each time that memory is measured."""
    rig = PressureRig()
    rig.use(950)
    rig.watch.start()
    await rig.clock.advance(4 * RECLAIM_EVERY)
    assert 4 <= rig.attempts <= 5
    rig.frees = 500
    await rig.clock.advance(RECLAIM_EVERY)
    assert rig.changes == [True, False]
    rig.watch.stop()
    assert rig.clock.pending == 0


async def test_an_empty_buffer_ends_it() -> None:
    """Nothing is left that could be delivered to free memory: events are accepted, no matter who
    takes it, after one more attempt to reclaim some.
    """
    rig = PressureRig()
    assert rig.use(990)
    await rig.clock.advance(RECLAIM_EMPTY)
    rig.empty = True
    assert not rig.use(990)
    assert rig.attempts == 2
    assert rig.changes == [True, False]
    (warning,) = rig.watch.warnings()
    assert "although the buffer is empty" in warning


async def test_memory_is_measured_by_a_timer() -> None:
    """From the start to the stop; the last figure counts for a while, then what can't be measured
    rejects nothing, and a warning says so.
    """
    rig = PressureRig()
    rig.watch.start()
    rig.memory.amount = 950
    await rig.clock.advance(LOOK_EVERY)
    assert rig.changes == [True]
    assert "over 800 B of 1000 B are used (limits.memory)" in rig.watch.warnings()[0]
    rig.memory.broken = True
    await rig.clock.advance(UNKNOWN_AFTER / 2)
    assert rig.changes == [True]
    await rig.clock.advance(UNKNOWN_AFTER / 2 + LOOK_EVERY)
    assert rig.changes == [True, False]
    assert rig.watch.warnings() == ("memory can't be measured any more (limits.memory)",)
    rig.watch.stop()
    assert rig.clock.pending == 0


async def test_without_a_limit_nothing_is_watched() -> None:
    """There are figures, and no timer."""
    for memory in (FakeMemory(limit=0, amount=7), None):
        clock = FakeClock()
        watch = MemoryWatch(memory, clock, is_empty=lambda: False, on_change=lambda _: None)
        watch.start()
        assert (clock.pending, watch.limited, watch.warnings()) == (0, False, ())
        assert watch.statistics().bytes == (7 if memory else 0)


async def test_the_log_says_it_once() -> None:
    """One line when it begins and one when it ends; what comes and goes is said once a minute."""
    rig = PressureRig()
    with capture_logs() as lines:
        for _ in range(5):
            rig.use(950)
            rig.use(100)
    assert [line["event"] for line in lines] == [
        "memory is short: new events get 503",
        "memory is no longer short: events are accepted again",
    ]
    assert len(rig.changes) == 10
    assert lines[0]["used_bytes"] == 950


def test_reclaiming_takes_garbage_away() -> None:
    """What refers to itself is freed without waiting for a collection."""

    class Node:
        """Refers to itself."""

        def __init__(self) -> None:
            self.own = self

    gone = weakref.ref(Node())
    reclaim_memory()
    assert gone() is None
