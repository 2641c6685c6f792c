"""The disk buffer against a plain model of it, with crashes, full and
failing disks among the steps.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forwarder.core.errors import BufferFull
from forwarder.core.event import NO_IDS, Chunk, Lane
from forwarder.core.ports import DropReason, Fate, Ordering
from forwarder.storage import failpoints
from forwarder.wire.envelope import cut_at
from tests.support.disk import DiskRig

pytestmark = pytest.mark.slow

LANES: Final = (
    Lane("phc_firstfirstfirst1"),
    Lane("phc_secondsecond1234"),
    Lane("phc_firstfirstfirst1", historical=True),
)
SIZES: Final = st.sampled_from([0, 10, 300, 3000, 20_000])


class _Held:
    """Hears what became of an offer."""

    def __init__(self, machine: DiskBufferMachine, names: list[bytes]) -> None:
        self._machine = machine
        self._names = names

    def __call__(self, error: object) -> None:
        if error is None:
            self._machine.promised.update(self._names)


class DiskBufferMachine(RuleBasedStateMachine):
    """`promised`: events that were acknowledged and aren't settled; `settling`: settled, but
    perhaps not on disk yet; `flying`: taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.number = 0
        self.promised: set[bytes] = set()
        self.settling: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.flying: list[Chunk] = []

    @initialize(ordered=st.booleans(), window=st.sampled_from([40_000, 200_000, 1 << 20]))
    def begin(self, ordered: bool, window: int) -> None:
        ordering = Ordering.PER_DISTINCT_ID if ordered else Ordering.NONE
        self.ordered = ordered
        self.rig = DiskRig(
            self.folder / "buffer", max_bytes=1 << 20, window=window, ordering=ordering
        )

    def teardown(self) -> None:
        failpoints.arm("")
        if hasattr(self, "rig"):
            self.rig.abandon()
        shutil.rmtree(self.folder)

    def make(self, lane: Lane, count: int, padding: int) -> tuple[Chunk, list[bytes]]:
        events = []
        for _ in range(count):
            self.number += 1
            events.append(
                b'{"event":"%08d","distinct_id":"%d","p":"%b"}'
                % (self.number, self.number % 7, b"x" * padding)
            )
        ids = (
            frozenset(str(number % 7) for number in range(self.number - count + 1, self.number + 1))
            if self.ordered
            else NO_IDS
        )
        return Chunk(lane, b" , ".join(events), count, ids, float(self.number)), events

    @rule(
        lanes=st.lists(st.sampled_from(LANES), min_size=1, max_size=3, unique=True),
        count=st.integers(1, 6),
        padding=SIZES,
    )
    def offer(self, lanes: list[Lane], count: int, padding: int) -> None:
        made = [self.make(lane, count, padding) for lane in lanes]
        names = [event for _, events in made for event in events]
        try:
            self.rig.buffer.offer([chunk for chunk, _ in made], _Held(self, names))
        except BufferFull:
            return
        self.unknown.update(names)

    @rule(lane=st.sampled_from(LANES))
    def take(self, lane: Lane) -> None:
        queue = self.rig.buffer.queue(lane)
        if queue:
            self.flying.append(queue.popleft())

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), fate=st.sampled_from([Fate.DELIVERED, DropReason.DROP_OLDEST]))
    def settle(self, data: st.DataObject, fate: Fate | DropReason) -> None:
        chunk = data.draw(st.sampled_from(self.flying))
        self.flying.remove(chunk)
        self.settling.update(chunk.events())
        self.promised.difference_update(chunk.events())
        self.rig.buffer.settle([chunk], fate)

    @precondition(lambda self: any(chunk.count > 1 for chunk in self.flying))
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        chunk = data.draw(st.sampled_from([chunk for chunk in self.flying if chunk.count > 1]))
        parts = cut_at(chunk, data.draw(st.integers(1, chunk.count - 1)))
        self.rig.buffer.replace(chunk, parts)
        self.flying.remove(chunk)
        self.flying.extend(parts)

    @precondition(lambda self: self.flying and not self.ordered)
    @rule()
    def put_back(self) -> None:
        chunk = self.flying.pop()
        self.rig.buffer.queue(chunk.lane).put_back([chunk])

    @rule()
    def pump(self) -> None:
        failpoints.arm("")
        self.rig.pump()
        assert self.rig.buffer.commits.refusing == ""
        self.settling.clear()

    @rule(
        name=st.sampled_from(
            ["commit.begin", "commit.written", "checkpoint.written", "commit.synced"]
        )
    )
    def fail(self, name: str) -> None:
        failpoints.arm(f"{name}=eio@1")
        self.rig.committer.pump()
        failpoints.arm("")

    @rule()
    def crash(self) -> None:
        failpoints.arm("")
        self.rig.crash()
        self._reopened()

    @rule()
    def restart(self) -> None:
        failpoints.arm("")
        self.rig.close()
        self.rig.open()
        self._reopened()

    def _reopened(self) -> None:
        self.flying.clear()
        lane_events = self.everything()
        names = Counter(name for events in lane_events.values() for name in events)
        assert not self.promised - set(names), (
            f"promised events are gone: {[n[:40] for n in self.promised - set(names)]}"
        )
        odd = set(names) - self.promised - self.settling - self.unknown
        assert not odd, f"events came from nowhere: {[name[:40] for name in odd]}"
        assert max(names.values(), default=1) == 1, "an event is there twice"
        self.promised = set(names)
        self.settling.clear()
        books = self.rig.buffer.commits.books()
        for lane in LANES:
            account = books.lanes[lane]
            left = (
                sum(account.received.values()) - account.delivered - sum(account.dropped.values())
            )
            assert left == self.rig.buffer.count(lane)

    def everything(self) -> dict[Lane, list[bytes]]:
        """Every event that the buffer holds, read from its queues, put back there."""
        lane_events: dict[Lane, list[bytes]] = {}
        buffer = self.rig.buffer
        for lane in list(buffer.holdings):
            chunks: list[Chunk] = []
            holding = buffer.holdings[lane]
            while buffer.queue(lane) or holding.runs:
                window = buffer.memory.used
                in_memory = holding.in_memory
                # as if what was taken had gone: all of a long backlog is to be seen
                buffer.memory.used = holding.in_memory = 0
                queue = buffer.queue(lane)
                buffer.memory.used += window
                holding.in_memory += in_memory
                assert queue, "what waits on disk doesn't come"
                chunks.append(queue.popleft())
            lane_events[lane] = [event for chunk in chunks for event in chunk.events()]
            assert len(lane_events[lane]) == buffer.count(lane)
            buffer.queue(lane).put_back(chunks)
            if self.ordered:
                assert lane_events[lane] == sorted(lane_events[lane]), "the order isn't kept"
        return lane_events

    @invariant()
    def accounts_are_exact(self) -> None:
        if not hasattr(self, "rig"):
            return
        buffer = self.rig.buffer
        assert buffer.used == sum(holding.bytes for holding in buffer.holdings.values())
        assert buffer.used >= 0
        assert all(
            holding.events >= 0 and holding.in_memory >= 0 for holding in buffer.holdings.values()
        )
        size = sum(path.stat().st_size for path in self.rig.log_directory.iterdir())
        assert size <= (1 << 20) + 2 * buffer.log.size, "the files are larger than the limit"
        assert all(segment.live >= 0 for segment in buffer.log.in_use)


TestDiskModel: Any = DiskBufferMachine.TestCase
TestDiskModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
