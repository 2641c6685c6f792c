"""The size of segments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.segments import (
    LARGEST_SEGMENT,
    LEAST_SEGMENT,
    MIB,
    SEGMENT_RESERVE,
    largest_event,
    limit_for,
    segment_size,
)
from tests.support.cases import cases


@cases(
    ("limit", "size"),
    [
        (1, MIB // 16),
        (MIB, MIB // 8),
        (64 * MIB, 2 * MIB),
        (1024 * MIB, 16 * MIB),
        (1024**4, 64 * MIB),
    ],
)
def test_a_buffer_has_at_least_eight_segments_and_none_is_huge(limit: int, size: int) -> None:
    """Small buffers in eight, large ones in sixty-four, never more than 64 MiB each."""
    assert segment_size(limit) == size


@given(st.integers(1, LARGEST_SEGMENT - SEGMENT_RESERVE))
def test_the_limit_that_is_named_is_enough_and_the_least(event: int) -> None:
    """An event fits with it, and not with a byte less a segment."""
    limit = limit_for(event)
    assert limit is not None
    assert largest_event(limit) >= event
    assert largest_event(limit - 8) < event or segment_size(limit) == LEAST_SEGMENT


def test_no_limit_makes_room_for_what_is_larger_than_any_segment() -> None:
    """There is nothing to advise but a smaller event."""
    assert limit_for(LARGEST_SEGMENT - SEGMENT_RESERVE + 1) is None
