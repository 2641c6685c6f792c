"""Sizes of the disk buffer's segment files: the buffer derives them from its limit, and the
configuration is validated with them.
"""

from __future__ import annotations

from typing import Final

MIB: Final = 1_048_576

LARGEST_SEGMENT: Final = 64 * MIB
SMALL_SEGMENT: Final = 2 * MIB
LEAST_SEGMENT: Final = MIB // 16
PARTS: Final = 64
"""Segments that a large buffer is divided into."""
FEWEST_PARTS: Final = 8
"""Segments that even a small one is divided into, so that one that can't be freed yet takes little
of it.
"""

SEGMENT_RESERVE: Final = 4096
"""Bytes of a segment that an event can't use: the heads of the segment and of the record."""


def segment_size(max_bytes: int) -> int:
    """Bytes of a segment of a buffer of `max_bytes`."""
    return max(
        LEAST_SEGMENT,
        min(
            LARGEST_SEGMENT, max(max_bytes // PARTS, min(max_bytes // FEWEST_PARTS, SMALL_SEGMENT))
        ),
    )


def largest_event(max_bytes: int) -> int:
    """Bytes of the largest event that fits into such a segment."""
    return segment_size(max_bytes) - SEGMENT_RESERVE


def limit_for(event: int) -> int | None:
    """The least `max_bytes` whose segments hold an event of that size; None if none does."""
    needed = event + SEGMENT_RESERVE
    if needed > LARGEST_SEGMENT:
        return None
    return max(needed, LEAST_SEGMENT) * (FEWEST_PARTS if needed <= SMALL_SEGMENT else PARTS)
