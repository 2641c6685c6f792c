"""The local check of a batch that was answered 400: which of its events may an upstream's parser reject?

Invariant: the loop is held for a few milliseconds at a time, however large the batch and whatever its events hold.
"""

from __future__ import annotations

import asyncio
from typing import Final

from forwarder.core.event import Batch
from forwarder.wire.strict import Inspection, Suspicion

_SLICE_BYTES: Final = 64 * 1024
"""After so many bytes others have their turn on the loop."""


async def inspect(batch: Batch) -> dict[int, Suspicion]:
    """The suspects of a batch by the index of the event. Cancellation ends it."""
    found: dict[int, Suspicion] = {}
    index = -1
    since = 0
    for chunk in batch.chunks:
        for event in chunk.events():
            index += 1
            inspection = Inspection(event)
            while inspection.step():
                since = 0
                await asyncio.sleep(0)
            since += len(event)
            suspicion = inspection.result()
            if suspicion is not None:
                found[index] = suspicion
            if since >= _SLICE_BYTES:
                since = 0
                await asyncio.sleep(0)
    return found
