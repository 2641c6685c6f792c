"""Collections of young garbage, after so many bytes of bodies."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from forwarder.core.garbage import OLDER_EVERY, YOUNG_BYTES, note_body

_ALIVE: weakref.WeakSet[Cycle] = weakref.WeakSet()


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        _ALIVE.add(self)
        self.itself = self
        self.body = bytes(1 << 20)


def cycles() -> int:
    """How many of them are there."""
    return len(_ALIVE)


@pytest.fixture(autouse=True)
def seldom() -> Iterator[None]:
    """The collector counts no objects, as good as in the daemon."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1 << 30, 50, 100)
    yield
    gc.set_threshold(*thresholds)
    gc.collect()


@pytest.mark.slow
def test_cycles_with_bodies_are_collected_after_so_many_bytes() -> None:
    """A megabyte each: there are never more than the bound allows."""
    most = 0
    for _ in range(60):
        Cycle()
        note_body(1 << 20)
        most = max(most, cycles())
    assert most <= YOUNG_BYTES // (1 << 20) + 1


def test_cycle_that_outlived_a_collection_is_collected_too() -> None:
    """It was in use, and is garbage since: a later collection visits it."""
    survivor = Cycle()
    note_body(YOUNG_BYTES + 1)
    del survivor
    for _ in range(OLDER_EVERY):
        note_body(YOUNG_BYTES + 1)
    assert cycles() == 0


def test_nothing_is_collected_where_the_collector_is_off() -> None:
    """As while the daemon starts."""
    gc.disable()
    try:
        Cycle()
        note_body(YOUNG_BYTES + 1)
        assert cycles() == 1
    finally:
        gc.enable()
