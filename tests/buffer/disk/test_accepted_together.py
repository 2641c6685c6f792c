"""Events that were accepted together without a callback, and that the files, as it turns out, have
no room for: they are written as room is made, whatever else was written first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from forwarder.core.event import NO_IDS, Chunk, Lane
from forwarder.core.ports import DropReason, Fate
from tests.support.disk import DiskRig

LANE: Final = Lane("phc_together")


def test_what_no_longer_fits_together_is_written_in_parts(tmp_path: Path) -> None:
    """The books of something else took a part of the room that it was accepted for."""
    rig = DiskRig(tmp_path / "worker-0", max_bytes=262_144)
    room = rig.buffer.log.room()
    chunks = [
        Chunk(LANE, b'{"event":"%05d%b"}' % (number, b"x" * 1000), 1, NO_IDS, 1.0)
        for number in range(room // 1050)
    ]
    while sum(map(rig.buffer.cost, chunks)) > room:
        del chunks[-1]
    rig.buffer.offer(chunks)
    for number in range(40):
        rig.buffer.commits.tally(Lane(f"phc_{number}"), "http", DropReason.WITHDRAWN, 1)
    arrived: list[bytes] = []
    for _ in range(10):
        rig.committer.pump()
        timers = rig.clock.timers
        rig.clock.timers = []
        for _, callback in timers:
            callback()
        while rig.buffer.holdings.get(LANE) and rig.buffer.queue(LANE):
            queue = rig.buffer.queue(LANE)
            next_chunk = queue.popleft()
            arrived += next_chunk.events()
            rig.buffer.settle([next_chunk], Fate.DELIVERED)
    assert arrived == [event for chunk in chunks for event in chunk.events()]
    assert rig.buffer.used == 0
    rig.close()
