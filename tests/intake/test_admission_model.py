"""Requests at all levels, in flight through a slow buffer, in any order of
what can happen to them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forwarder.core.ack import AckLevel
from forwarder.core.errors import Backpressure
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DropReason, Fate, Reason, WhenFull
from tests.support.intakes import KEY, IntakeRig, stamped_event
from tests.support.waiters import IntakeCallback

pytestmark = pytest.mark.slow

LANE = Lane(KEY)


class Levels(RuleBasedStateMachine):
    """The books balance after every step, every sender is notified once, and 200 never means more,
    or less, than it should.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rig = IntakeRig(durable=True, max_bytes=20_000, when_full=WhenFull.DROP_OLDEST)
        self.asked: dict[str, tuple[AckLevel, IntakeCallback]] = {}
        self.flying: list[Chunk] = []
        self.settled: set[str] = set()
        self.now = 0.0

    @rule(level=st.sampled_from(list(AckLevel)), events=st.integers(1, 3), bad=st.integers(0, 1))
    def ask(self, level: AckLevel, events: int, bad: int) -> None:
        """A sender brings events, some of them no good."""
        name = f"request-{len(self.asked)}"
        good: list[Any] = [stamped_event(event=name, properties={"p": "x" * 500})] * events
        try:
            notified = self.rig.ask(*good, *[{"event": name}] * bad, ack=level)
        except Backpressure:
            return
        assert notified.reached == (level is AckLevel.MEMORY)
        self.asked[name] = level, notified

    @rule(well=st.booleans())
    def commit(self, *, well: bool) -> None:
        """The buffer has written what it was offered, or couldn't."""
        (self.rig.slow.finish_writes if well else self.rig.slow.fail_writes)()

    @rule(whole=st.booleans())
    def send(self, *, whole: bool) -> None:
        """Delivery takes what waits longest; of a chunk that is too large for a batch the first
        event, and the rest goes back at once.
        """
        queue = self.rig.buffer.queue(LANE)
        if not queue:
            return
        chunk = queue.popleft()
        if whole or chunk.count == 1:
            self.flying.append(chunk)
            return
        parts = [
            chunk.part(event, 1, chunk.ids, index) for index, event in enumerate(chunk.events())
        ]
        self.rig.buffer.replace(chunk, parts)
        self.flying.append(parts[0])
        queue.put_back(parts[1:])

    @rule(fate=st.sampled_from(list(Fate)))
    def land(self, fate: Fate) -> None:
        """The upstream took it, or refused it for good."""
        if self.flying:
            chunk = self.flying.pop(0)
            if fate is Fate.DELIVERED:
                self.rig.books.deliver(LANE, chunk.count)
            else:
                self.rig.books.dead_letter(LANE, Reason.REFUSED, chunk.count)
            self.rig.buffer.settle([chunk], fate)
            self.settled.add(chunk.events()[0].split(b'"')[3].decode())

    @rule()
    def time_passes(self) -> None:
        """Those who wait for delivery give up."""
        while self.rig.clock._timers:
            callback = self.rig.clock._timers.pop(0).callback
            if callback is not None:
                callback()

    @invariant()
    def books_balance(self) -> None:
        """What the books leave as buffered is what the buffer holds."""
        assert self.rig.balanced()
        assert self.rig.buffer.count(LANE) == sum(
            chunk.count for chunk in [*self.flying, *self.rig.buffer.queue(LANE)]
        )

    @invariant()
    def an_answer_means_what_it_says(self) -> None:
        """Of a request that waits for delivery and was answered 200 nothing is left in
        the buffer.
        """
        held = {
            event.split(b'"')[3].decode()
            for chunk in [*self.flying, *self.rig.buffer.queue(LANE)]
            for event in chunk.events()
        }
        for name, (level, notified) in self.asked.items():
            if level is AckLevel.DELIVERED and notified.code == "accepted":
                assert name not in held
                assert name in self.settled

    def teardown(self) -> None:
        """In the end every caller is notified, and nothing of those who come again is
        left waiting.
        """
        self.rig.slow.finish_writes()
        self.rig.admission.end_waiting()
        assert all(notified.code != "waiting" for _, notified in self.asked.values())
        assert self.rig.balanced()
        for level, notified in self.asked.values():
            assert level is not AckLevel.MEMORY or notified.reached
        waiting = [chunk for chunk in self.rig.buffer.queue(LANE) if chunk.ack is not None]
        assert not waiting
        assert set(self.rig.figures(LANE).dropped) <= {
            DropReason.WITHDRAWN,
            DropReason.DROP_OLDEST,
            DropReason.INVALID_OVERFLOW,
        }


TestLevels = Levels.TestCase
TestLevels.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
