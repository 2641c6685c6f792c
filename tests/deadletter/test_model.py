"""Dead letters are added, replayed, dropped, refused and cut off by crashes, in any order."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.ports import DropReason, Reason
from forwarder.storage import failpoints
from tests.deadletter.rig import LANE, StoreRig, event_letter, query, started

STEPS = st.lists(
    st.sampled_from(
        [
            "bury",
            "at_receipt",
            "replay",
            "drop",
            "fail_before",
            "fail_after",
            "commit",
            "crash",
            "restart",
        ]
    ),
    min_size=3,
    max_size=30,
)


@dataclass
class DeadLetterModel:
    """What must be true of the file."""

    rig: StoreRig
    durable: set[bytes] = field(default_factory=set)
    pending: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)
    next: int = 0

    def bury(self, *, at_receipt: bool) -> None:
        """A letter more, if there is room for it now."""
        data = b'{"n":%d}' % self.next
        letter = event_letter(
            data,
            Reason.MISSING_EVENT if at_receipt else Reason.REFUSED,
            None if at_receipt else (self.next, 0),
        )
        self.next += 1
        if at_receipt:
            assert self.rig.store.add_at_receipt([letter]) == 1
        elif not self.rig.store.add([letter]):
            assert self.rig.store.statistics().failing
            return
        self.pending.add(data)

    async def commit(self) -> None:
        """Write what can be written, again after a failure."""
        await self.rig.commit()
        while self.rig.store.statistics().failing:
            await self.rig.clock.advance(1)
            await self.rig.commit()
        self.durable |= self.pending
        self.pending = set()

    async def leave(self, *, drop: bool) -> None:
        """The oldest letter is replayed, or dropped by hand."""
        await self.commit()
        if not self.durable:
            return
        ((number, data),) = self.rig.query(
            "SELECT number, data FROM letters ORDER BY number LIMIT 1"
        )
        if drop:
            query(
                self.rig.directory, "UPDATE letters SET mark = 'drop' WHERE number = ?", (number,)
            )
            self.rig.store.poll(1, lambda _: None)
        else:
            self.rig.store.remove([number])
        await self.commit()
        self.durable.discard(data)
        self.gone.add(data)

    def check(self, rig: StoreRig, *, allowed: set[bytes]) -> None:
        """The file holds what is durable, perhaps what was being written, nothing else and nothing
        twice; the books say so.
        """
        held = rig.data()
        assert len(held) == len(set(held)) == rig.store.statistics().dead_letters
        assert self.durable <= set(held) <= self.durable | allowed
        account = rig.store.accounts().get(LANE)
        dead, dropped, received = (
            (0, 0, 0)
            if account is None
            else (
                sum(account.dead_lettered.values()),
                account.dropped.get(DropReason.OPERATOR, 0),
                account.received.get("http", 0),
            )
        )
        assert dead == len(held)
        placed = rig.query("SELECT count(*) FROM letters WHERE sequence IS NOT NULL")[0][0]
        assert received >= dead - placed
        assert dropped <= len(self.gone)


async def play(directory: Path, steps: list[str]) -> None:
    """Do the steps; after each crash or restart another store is opened on what is there."""
    async with started(directory) as rig:
        model = DeadLetterModel(rig)
        for step in steps:
            await _do(model, step)
        await model.commit()
        model.check(rig, allowed=set())


async def _do(model: DeadLetterModel, step: str) -> None:
    if step in ("bury", "at_receipt"):
        model.bury(at_receipt=step == "at_receipt")
    elif step in ("replay", "drop"):
        await model.leave(drop=step == "drop")
    elif step in ("fail_before", "fail_after"):
        failpoints.arm(
            "dead_letters.begin=eio@1" if step == "fail_before" else "dead_letters.committed=eio@1"
        )
    elif step == "commit":
        await model.commit()
    else:
        if step == "restart":
            await model.commit()
        crashed = Path(tempfile.mkdtemp(dir=model.rig.directory))
        for ending in ("", "-wal"):
            shutil.copy(model.rig.directory / f"dead-letters.db{ending}", crashed)
        other = StoreRig(crashed)
        model.check(other, allowed=model.pending)
        other.store.close()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_letter_is_lost_or_there_twice(steps: list[str]) -> None:
    """In any order of steps, also across crashes; the books balance after each."""
    armed = dict(failpoints.ARMED)
    try:
        with tempfile.TemporaryDirectory() as place:
            asyncio.run(play(Path(place), steps))
    finally:
        failpoints.ARMED.clear()
        failpoints.ARMED.update(armed)
