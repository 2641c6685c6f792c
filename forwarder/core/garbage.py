"""Bounds what garbage can hold: a collection of young objects after so many bytes of bodies.

No request or record leaves a cycle (tests/end_to_end/test_no_cycles.py), so the daemon collects
seldom: after so many objects, whatever they hold (`daemon.daemon.run_tuned`). A cycle that exists
all the same, in a library say, may hold megabytes with a dozen objects. Bytes are counted here for
that case: what comes in, and what is decompressed from it. The collector is the process's, and so
is the count.

Invariant: between two collections at most `YOUNG_BYTES`, and one body, are counted.
"""

from __future__ import annotations

import gc
from typing import Final

COUNTED_FROM: Final = 4096
"""Bytes from which on something is counted. With less the usual collection, after so many objects,
comes in time.
"""

YOUNG_BYTES: Final = 16 << 20
"""Bytes of bodies between two collections. With bodies of 28 KB one comes after 600 of them and
takes 0.1 ms, or 0.4 ms while the buffer fills: below 1 µs a request.
"""

OLDER_EVERY: Final = 8
"""Every so many collections also visit what outlived one: a body that waited for the decoder or
for its delivery meanwhile. Such a one takes 4 ms, or 17 ms while the buffer fills: 4 µs a request
of 28 KB, at most.
"""


class _Count:
    """What is left until the next collection."""

    bytes_left = YOUNG_BYTES
    collections = 0


def note_body(size: int) -> None:
    """So many bytes of a body, at least `COUNTED_FROM`, came in or were decompressed."""
    left = _Count.bytes_left = _Count.bytes_left - size
    if left < 0:
        _collect()


def _collect() -> None:
    _Count.bytes_left = YOUNG_BYTES
    if gc.isenabled():
        _Count.collections += 1
        gc.collect(0 if _Count.collections % OLDER_EVERY else 1)
