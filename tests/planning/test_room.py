"""How many events a buffer holds: the formula beside real buffers that are
filled until they reject.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.errors import BufferFull, LaneFull
from forwarder.core.event import NO_IDS, Chunk, Lane
from forwarder.intake.lane_registry import KnownKeys, Quotas, SharedBuffer
from forwarder.planning.capacity import bytes_for, room
from tests.support.cases import cases
from tests.support.disk import DiskRig, LossyDisk

MIB = 1 << 20
NEAR = {1: 0.99, 3: 0.9}
"""How much of what a buffer really holds the formula promises at least, by the number of projects:
several may hold more than one.
"""

TOGETHER = 8
"""Requests that a commit covers, if they are small."""
TOGETHER_BYTES = 16 << 10

REQUESTS = [
    pytest.param(600, 1, id="singles"),
    pytest.param(600, 50, id="bodies of 50"),
    pytest.param(600, 1000, id="bodies of 1000"),
    pytest.param(60, 1000, id="tiny events"),
    pytest.param(10_000, 20, id="events of 10 kB"),
    pytest.param(900_000, 1, id="events of 900 kB"),
]


def filled(quotas: Quotas, buffer: MemoryBuffer | DiskRig, requests: list[Chunk]) -> int:
    """Offer these requests in turn until one is rejected; the events that were accepted."""
    accepted = 0
    for number, chunk in enumerate(cycle(requests)):
        try:
            quotas.check([chunk])
            (buffer.buffer if isinstance(buffer, DiskRig) else buffer).offer([chunk])
        except (BufferFull, LaneFull):
            return accepted
        accepted += chunk.count
        if isinstance(buffer, DiskRig) and (
            number % TOGETHER == 0 or len(chunk.data) > TOGETHER_BYTES
        ):
            buffer.pump()
    raise AssertionError("there are requests")


def requests_of(event_bytes: int, count: int, keys: int) -> list[Chunk]:
    """A request of each of so many projects."""
    data = b",".join([b"x" * event_bytes] * count)
    return [Chunk(Lane(f"phc_{number:043}"), data, count, NO_IDS, 0.0) for number in range(keys)]


def known(requests: list[Chunk]) -> KnownKeys:
    """Their keys are known."""
    return KnownKeys((), [chunk.lane.api_key for chunk in requests], verifiable=True)


def quotas_of(buffer: SharedBuffer, requests: list[Chunk]) -> Quotas:
    """The shares that lanes of known keys have."""
    return Quotas(buffer, (), known(requests))


@pytest.mark.slow
@cases("keys", [1, 3])
@cases("max_bytes", [16 * MIB, 43 * MIB])
@cases(("event_bytes", "count"), REQUESTS)
def test_a_buffer_on_disk_holds_what_is_planned(
    event_bytes: int, count: int, max_bytes: int, keys: int, tmp_path: Path
) -> None:
    """A buffer on disk accepts at least as many events as the formula says, whatever is left of
    its segments, and not many more.
    """
    rig = DiskRig(tmp_path, max_bytes=max_bytes, disk=LossyDisk(syncs=False))
    requests = requests_of(event_bytes, count, keys)
    accepted = filled(quotas_of(rig.buffer, requests), rig, requests)
    rig.abandon()
    assert NEAR[keys] * accepted <= room(max_bytes, "disk", event_bytes, count) <= accepted
    assert sum(file.stat().st_size for file in rig.log_directory.iterdir()) <= max_bytes


@cases("keys", [1, 3])
@cases(("event_bytes", "count"), REQUESTS)
def test_a_buffer_in_memory_holds_what_is_planned(event_bytes: int, count: int, keys: int) -> None:
    """The same in memory."""
    buffer = MemoryBuffer(16 * MIB)
    requests = requests_of(event_bytes, count, keys)
    accepted = filled(quotas_of(buffer, requests), buffer, requests)
    assert NEAR[keys] * accepted <= room(16 * MIB, "memory", event_bytes, count) <= accepted


@cases("kind", ["memory", "disk"])
@cases(("event_bytes", "count"), REQUESTS)
def test_the_size_for_a_backlog_is_the_least_that_holds_it(
    event_bytes: int, count: int, kind: str
) -> None:
    """The size that is planned for a backlog holds it, and one that is a hundredth
    smaller doesn't.
    """
    events = 500_000
    size = bytes_for(events, kind, event_bytes, count)
    assert room(size, kind, event_bytes, count) >= events
    assert room(int(size * 0.99), kind, event_bytes, count) < events
