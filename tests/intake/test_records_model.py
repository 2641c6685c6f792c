"""Units in flight through real buffers and real dead letters, in memory and on disk, in any
order of what can happen to them.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forwarder.buffer.disk.buffer import DiskBuffer
from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.ack import AckLevel
from forwarder.core.errors import Backpressure
from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.ports import DropReason, Fate, Reason, WhenFull, dead_letters_of
from forwarder.core.record_intake import AcceptedBatch
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.deadletter.store import DeadLetterStore
from forwarder.intake.admission import Admission, Gate
from forwarder.intake.conditions import Conditions
from forwarder.intake.fan_out import Branch
from forwarder.intake.lane_registry import LaneRegistry, Quotas
from forwarder.intake.source_intake import SourceIntake
from forwarder.stamping.stamp_event import ReadingRules
from forwarder.storage import failpoints
from forwarder.storage.directory import LockedDirectory
from forwarder.telemetry.books import Books
from forwarder.wire.envelope import cut_at
from tests.support.disk import DiskRig, StillClock
from tests.support.intakes import AllKnown, stamped_event
from tests.support.records import RecordList, record_list
from tests.support.waiters import IntakeCallback

pytestmark = pytest.mark.slow

LANES = [Lane("phc_one"), Lane("phc_two")]
MAX_BYTES = 60_000
LETTER_BYTES = 8_000


class Memory:
    """Everything in memory: what is offered is there at once."""

    def __init__(self, _directory: Path) -> None:
        self.clock = StillClock()
        self.books = Books()
        self.buffer: MemoryBuffer | DiskBuffer = MemoryBuffer(MAX_BYTES)
        self.letters: MemoryDeadLetters | DeadLetterStore = MemoryDeadLetters(LETTER_BYTES)

    def commit(self) -> None:
        """There is nothing to write."""

    def close(self) -> None:
        """There is nothing to close."""


class Disk(Memory):
    """Everything on disk: written when `commit` is called."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._rig = DiskRig(directory / "worker-0", max_bytes=MAX_BYTES)
        self.clock = self._rig.clock
        self.buffer = self._rig.buffer
        self._lock = LockedDirectory.acquire(directory, "dead_letters.path")
        self.letters = DeadLetterStore.open(
            directory, LETTER_BYTES, self._rig.committer, self.clock, books=self.books, logged=True
        )
        self._rig.committer._participants.reverse()  # letters before the log

    def commit(self) -> None:
        """Write what is to be written, once."""
        timers = self.clock.timers
        self.clock.timers = []
        for _, callback in timers:
            callback()
        self._rig.committer.pump()

    def close(self) -> None:
        """Close the files."""
        self._rig.close()
        self.letters.close()  # type: ignore[union-attr]  # the store, here
        self._lock.release()


class Sending:
    """In place of delivery: what is in flight, and what waits to be sent again."""

    def __init__(self) -> None:
        self.flying: list[Chunk] = []
        self.pending: list[Chunk] = []

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        withdrawn = [
            chunk for chunk in self.pending if chunk.ack in acks and lane in (None, chunk.lane)
        ]
        self.pending = [chunk for chunk in self.pending if chunk not in withdrawn]
        return withdrawn

    def halted_since(self) -> Mapping[Lane, float]:
        """Nothing is halted."""
        return {}


class UnitsMachine(RuleBasedStateMachine):
    """The books balance after every step, and no caller is notified too early, twice, or never."""

    world: type[Memory] = Memory

    def __init__(self) -> None:
        super().__init__()
        self.files = contextlib.ExitStack()
        self.here = self.world(Path(self.files.enter_context(tempfile.TemporaryDirectory())))
        self.sending = Sending()
        self.units: dict[str, tuple[AcceptedBatch | None, IntakeCallback, AckLevel]] = {}
        self.returned: set[str] = set()
        self.rejected = 0

    @initialize()
    def begin(self) -> None:
        """Wire everything."""
        here = self.here
        self.admission = admission = Admission(
            here.buffer,
            here.letters,
            here.books,
            LaneRegistry(10, here.buffer.holdings, AllKnown()),
            Quotas(here.buffer, (), AllKnown()),
            clock=here.clock,
            on_accepted=lambda: None,
            when_full=WhenFull.DROP_OLDEST,
        )
        reading = ReadingRules(100_000, 20_000, admission.quotas.max_events, 1.0)
        gate = Gate(admission, Conditions(here.clock, reading))
        self.records = SourceIntake(
            gate, [Branch(admission, self.sending, self.sending)], source="kafka"
        )

    @rule(
        level=st.sampled_from([AckLevel.DELIVERED, AckLevel.DISK]),
        lanes=st.lists(st.sampled_from(LANES), max_size=4),
        bad=st.integers(0, 2),
        padding=st.sampled_from([0, 3000]),
    )
    def take(self, level: AckLevel, lanes: list[Lane], bad: int, padding: int) -> None:
        """A batch is handed over."""
        name = f"unit-{len(self.units)}"
        notified = IntakeCallback()
        good = [
            json.dumps(stamped_event(event=name, api_key=lane.api_key, p="x" * padding)).encode()
            for lane in lanes
        ]
        records: RecordList = record_list(*good, *[b"rubbish"] * bad)
        before = self.here.letters.statistics().bytes
        try:
            unit = self.records.accept(records, notified, level)
        except Backpressure:
            assert self.here.letters.statistics().bytes == before
            return
        assert not notified.answers
        notified.reached = unit is None
        assert not notified.reached or not lanes or (level, self.world) == (AckLevel.DISK, Memory)
        self.units[name] = unit, notified, level
        self.rejected += bad

    @rule()
    def commit(self) -> None:
        """What waits to be written is."""
        self.here.commit()

    @precondition(lambda self: self.world is not Memory)
    @rule(well=st.booleans())
    def break_letters(self, *, well: bool) -> None:
        """Dead letters can't be written from now on, or can again."""
        failpoints.arm("" if well else "dead_letters.begin=eio")

    @rule(lane=st.sampled_from(LANES), seen=st.booleans())
    def send(self, lane: Lane, *, seen: bool) -> None:
        """Delivery takes what waits longest; it is in flight, or has failed
        and waits to be sent again.
        """
        queue = self.here.buffer.queue(lane)
        if queue:
            (self.sending.flying if seen else self.sending.pending).append(queue.popleft())

    @rule(fate=st.sampled_from(list(Fate)))
    def land(self, fate: Fate) -> None:
        """The upstream took it, or refused it for good."""
        if not self.sending.flying:
            return
        chunk = self.sending.flying[0]
        if fate is Fate.DEAD_LETTERED:
            if not self.here.letters.add(dead_letters_of(chunk, Reason.REFUSED, "400", 0.0)):
                return
            self.here.books.dead_letter(chunk.lane, Reason.REFUSED, chunk.count)
        else:
            self.here.books.deliver(chunk.lane, chunk.count)
        self.sending.flying.pop(0)
        self.here.buffer.settle([chunk], fate)

    @rule()
    def cut(self) -> None:
        """What is in flight is cut; its end waits to be sent again."""
        if self.sending.flying and self.sending.flying[0].count > 1:
            whole = self.sending.flying[0]
            parts = cut_at(whole, 1)
            self.here.buffer.replace(whole, parts)
            self.sending.flying[0] = parts[0]
            self.sending.pending.append(parts[1])

    @rule(lane=st.none() | st.sampled_from(LANES))
    def make_room(self, lane: Lane | None) -> None:
        """A newer request pushes the oldest event out, as `when_full: drop_oldest` lets it."""
        dropped = self.here.buffer.drop_oldest(lane)
        if dropped:
            self.admission.drop(dropped, DropReason.DROP_OLDEST)

    def held(self) -> Counter[str]:
        """The events that were taken from the buffer or wait available, by their batch's name."""
        queued = [chunk for lane in LANES for chunk in self.here.buffer.queue(lane)]
        chunks = [*queued, *self.sending.flying, *self.sending.pending]
        return Counter(json.loads(event)["event"] for chunk in chunks for event in chunk.events())

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """Some units are let go."""
        names = data.draw(st.lists(st.sampled_from(sorted(self.units)), unique=True, max_size=5))
        flying = Counter(
            json.loads(event)["event"] for chunk in self.sending.flying for event in chunk.events()
        )
        self.records.give_back(
            [unit for name in names if (unit := self.units[name][0]) is not None]
        )
        self.returned.update(name for name in names if self.units[name][1].code == "waiting")
        left = self.held()
        assert all(
            left[name] == flying[name]
            for name in names
            if self.units[name][2] is AckLevel.DELIVERED
        )

    @precondition(lambda self: self.units)
    @rule(data=st.data(), lane=st.sampled_from(LANES))
    def bury(self, data: st.DataObject, lane: Lane) -> None:
        """What waits of one lane's events in some units becomes dead letters, or nothing does."""
        names = data.draw(st.lists(st.sampled_from(sorted(self.units)), unique=True, max_size=5))
        before = self.held().total(), self.here.letters.statistics().dead_letters
        units = [unit for name in names if (unit := self.units[name][0]) is not None]
        done = self.records.dead_letter(units, lane, "halted for an hour")
        after = self.held().total(), self.here.letters.statistics().dead_letters
        assert sum(before) == sum(after)
        assert done or before == after

    @invariant()
    def books_balance(self) -> None:
        """What the books leave as buffered is what the buffer holds, and what was refused is among
        the letters.
        """
        for lane in LANES:
            assert self.here.books.accounts[lane].buffered == self.here.buffer.count(lane)
        dead = sum(
            sum(account.dead_lettered.values()) for account in self.here.books.accounts.values()
        )
        assert dead == self.here.letters.statistics().dead_letters

    @invariant()
    def no_callback_is_called_too_early(self) -> None:
        """Of a batch that was delivered nothing is held; one that was given back
        is never heard of again.
        """
        held = self.held()
        for name, (_, notified, level) in self.units.items():
            if notified.code == "accepted" and level is AckLevel.DELIVERED:
                assert not held[name]
            assert name not in self.returned or not notified.answers

    def teardown(self) -> None:
        """In the end everything is delivered, and every caller notified that wasn't given back."""
        failpoints.arm("")
        for _ in range(3):
            self.here.commit()
        self.sending.flying += self.sending.pending
        for lane in LANES:
            queue = self.here.buffer.queue(lane)
            self.sending.flying += [queue.popleft() for _ in range(len(queue))]
        while self.sending.flying:
            self.land(Fate.DELIVERED)
        for _ in range(3):
            self.here.commit()
        if hasattr(self, "records"):
            self.books_balance()
        assert not self.here.buffer.used
        assert {
            name for name, (_, notified, _) in self.units.items() if notified.code == "waiting"
        } == self.returned
        assert self.here.books.accounts[None].dead_lettered[Reason.UNDECODABLE] == self.rejected
        self.here.close()
        self.files.close()


class DiskRecordsMachine(UnitsMachine):
    """The same on disk."""

    world = Disk


TestInMemory = UnitsMachine.TestCase
TestInMemory.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestOnDisk = DiskRecordsMachine.TestCase
TestOnDisk.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
