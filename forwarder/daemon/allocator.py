"""How the C library keeps memory, set once at the daemon's start
(docs/decisions/0007-fixed-allocator-thresholds.md).

By default glibc raises its thresholds when the first large block is freed: from then on such
blocks come from the heap, where a hole of that size stays after each, and that much stays resident
at the heap's end. One request of 20 MB would cost the process tens of megabytes for the rest of
its life.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Final

LARGE_BLOCK: Final = 1 << 20
"""Bytes from which on a block is mapped by itself and given back when freed. Below it are the
bodies and pieces of usual requests: mapping each of those anew would cost more than it saves.
"""

SPARE_AT_THE_END: Final = 4 << 20
"""Bytes that may stay free at the heap's end."""

MOST: Final = 32 << 20
"""The largest limit that glibc accepts for blocks that come from the heap."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_TUNING_VARIABLES: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def fix_thresholds(recurring: int = 0, environment: Mapping[str, str] = os.environ) -> bool:
    """Have large blocks given back when they are freed; whether that was arranged.

    `recurring`: bytes of the largest blocks that are needed again as soon as they are freed, as
    for what Kafka's brokers answer. These come from the heap, also where they grow by an eighth
    too far, and three of them stay free at its end.

    Nothing is done where the C library has no such setting (musl), or where the environment has
    the operator's own.
    """
    if any(word in environment for word in _TUNING_VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    large = max(LARGE_BLOCK, min(recurring + recurring // 4, MOST))
    return bool(
        mallopt(_M_MMAP_THRESHOLD, large)
        and mallopt(_M_TRIM_THRESHOLD, max(SPARE_AT_THE_END, 3 * min(recurring, MOST)))
    )


def trim() -> bool:
    """Give free memory back to the system, also from the middle of the heap; whether there was
    any. Nothing is done where the C library can't (musl, macOS).
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    return bool(malloc_trim(ctypes.c_size_t(0)))
