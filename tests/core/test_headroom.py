"""What may be in hand beside what is buffered."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.errors import BufferFull
from forwarder.core.headroom import LEAST, Headroom

MOST = 24_000_000


@dataclass
class Held:
    """A buffer, as far as it matters here."""

    max_bytes: int
    used: int = 0


@given(st.integers(2 * MOST, 1 << 40), st.floats(0, 1))
def test_buffered_and_in_hand_stay_within_the_buffer_and_a_little(max_bytes: int, share: float) -> None:
    """However full the buffer is, it and what is in hand are over its limit by the least that is always allowed, at most."""
    buffer = Held(max_bytes, int(max_bytes * share))
    bound = Headroom(MOST, buffer).bound()
    assert LEAST <= bound <= MOST
    assert buffer.used + bound <= max_bytes + LEAST


@given(st.integers(0, MOST), st.floats(0, 1))
def test_a_small_buffer_takes_nothing_away(max_bytes: int, share: float) -> None:
    """A request that could never fit gets its 413 also while the buffer isn't empty."""
    assert Headroom(MOST, Held(max_bytes, int(max_bytes * share))).bound() == MOST


def test_without_a_buffer() -> None:
    """Then only the bound on what is being received holds."""
    assert Headroom(1000).bound() == 1000


def test_what_is_being_received_counts() -> None:
    """A request is worked on if there is room for it twice beside the bodies that come in; it may be sent again otherwise."""
    headroom = Headroom(MOST, Held(64_000_000, 20_000_000))
    headroom.check(MOST)
    headroom.add("sender", 4_000_000)
    headroom.check(22_000_000)
    with pytest.raises(BufferFull):
        headroom.check(22_000_001)


def test_beside_a_full_buffer() -> None:
    """Usual requests are worked on, and get the buffer's own answer."""
    Headroom(MOST, Held(64_000_000, 64_000_000)).check(LEAST // 2)


def test_one_sender_leaves_room_for_others() -> None:
    """It may hold seven eighths of the bound, and less when the bound shrinks; a newcomer brings its bytes beside it."""
    buffer = Held(64_000_000)
    headroom = Headroom(MOST, buffer)
    headroom.add("greedy", 21_000_000)
    assert not headroom.exceeded("greedy")
    headroom.add("greedy", 1)
    headroom.add("honest", 1_000_000)
    assert headroom.exceeded("greedy")
    assert not headroom.exceeded("honest")
    headroom.add("greedy", -17_500_001)
    buffer.used = 64_000_000
    assert headroom.exceeded("honest")
    headroom.add("greedy", -1_000_000)
    assert not headroom.exceeded("honest")
    assert headroom.receiving == 3_500_000
