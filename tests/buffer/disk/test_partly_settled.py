"""A crash when all but one of a chunk's events are settled: that one comes again, and nothing is a
dead letter twice.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

import pytest

from forwarder.buffer.disk.buffer import DiskBuffer
from forwarder.core.event import NO_IDS, Chunk, Lane
from forwarder.core.ports import DropReason, Fate, Ordering, Reason, dead_letters_of
from forwarder.daemon import stores
from forwarder.daemon.roles import Role
from forwarder.deadletter.schema import open_readable
from forwarder.deadletter.store import DeadLetterStore
from forwarder.intake.lane_registry import KnownKeys
from forwarder.storage.directory import DEAD_LETTERS
from forwarder.telemetry.books import Books
from forwarder.wire.envelope import cut_at
from tests.support.disk import DiskRig, InlineCommitter, InlineLoader, StillClock
from tests.support.whole import settings

LANE: Final = Lane("phc_thousandthousand")
EVENTS: Final = [b'{"event":"%d"}' % number for number in range(1000)]
DELIVERED: Final = 990


class Opened:
    """A worker's stores in `path`, which commit when they are asked to."""

    def __init__(self, path: Path) -> None:
        self.clock = StillClock()
        self.books = Books()
        configured = settings(
            "http://127.0.0.1:9", buffer={"kind": "disk", "path": path, "max_bytes": 8 << 20}
        )
        self.stores = stores.open_stores(
            configured,
            Role(),
            self.clock,
            self.books,
            KnownKeys(),
            ordering_of=lambda _: Ordering.NONE,
        )
        assert isinstance(self.stores.buffer, DiskBuffer)
        assert isinstance(self.stores.dead_letters, DeadLetterStore)
        self.buffer = self.stores.buffer
        self.letters = self.stores.dead_letters
        self.buffer.loader = InlineLoader()
        self.commit()

    def commit(self, parts: int = 2) -> None:
        """Write what is to be written; with one part, only the dead letters, and no caller is
        notified.
        """
        committer: Any = self.stores.committer
        if parts == 1:
            committer._participants[0].prepare().run(alone=False)
        elif parts == 2:
            committer.due = True
            committer.pump()

    def bury(self, chunk: Chunk) -> None:
        """The upstream refused it for good."""
        assert self.letters.add(dead_letters_of(chunk, Reason.REFUSED, "no", 0.0))
        self.buffer.settle([chunk], Fate.DEAD_LETTERED)
        self.books.dead_letter(LANE, Reason.REFUSED, chunk.count)

    def taken_off(self) -> list[Chunk]:
        """All that waits."""
        queue = self.buffer.queue(LANE)
        chunks = []
        while queue or self.buffer.waiting_lanes():
            queue = self.buffer.queue(LANE)
            chunks.append(queue.popleft())
        return chunks

    def crash(self) -> None:
        """The process is gone."""
        self.buffer.loader._threads.shutdown()
        self.buffer.log.close()
        self.letters.close()
        for lock in self.stores.locks:
            lock.release()

    def figures(self) -> tuple[int, int, int]:
        """Delivered, buffered, dead-lettered; the books balance."""
        account = self.books.accounts[LANE]
        assert account.buffered == self.buffer.count(LANE)
        assert not account.dropped.get(DropReason.DAMAGED)
        assert sum(account.received.values()) == len(EVENTS)
        return account.delivered, account.buffered, sum(account.dead_lettered.values())


def letters_in(path: Path) -> list[bytes]:
    """The events in the dead letters' file."""
    with contextlib.closing(open_readable(path / "worker-0" / DEAD_LETTERS)) as connection:
        return [row[0] for row in connection.execute("SELECT data FROM letters ORDER BY number")]


@pytest.mark.parametrize(
    "commits", [0, 1, 2], ids=["before both commits", "between the two", "after both"]
)
def test_999_of_1000_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    """990 are delivered, nine are dead letters, one is in flight. What was committed isn't done
    again, what wasn't is, once.
    """
    monkeypatch.setattr(stores, "Committer", InlineCommitter)
    first = Opened(tmp_path)
    first.buffer.offer([Chunk(LANE, b",".join(EVENTS), len(EVENTS), NO_IDS, 0.0)])
    first.books.receive(LANE, "http", len(EVENTS))
    first.commit()
    (chunk,) = first.taken_off()
    parts = cut_at(chunk, DELIVERED)
    first.buffer.replace(chunk, parts)
    first.buffer.settle(parts[:1], Fate.DELIVERED)
    first.books.deliver(LANE, DELIVERED)
    first.commit()
    refused, in_flight = cut_at(parts[1], 9)
    first.buffer.replace(parts[1], [refused, in_flight])
    first.bury(refused)
    first.commit(commits)
    assert first.figures() == (990, 1, 9)
    first.crash()

    second = Opened(tmp_path)
    again = [event for waiting_chunk in second.taken_off() for event in waiting_chunk.events()]
    assert again == (EVENTS[-10:] if commits == 0 else EVENTS[-1:])
    assert second.figures() == ((990, 10, 0) if commits == 0 else (990, 1, 9))
    assert letters_in(tmp_path) == ([] if commits == 0 else EVENTS[DELIVERED:-1])
    second.crash()

    third = Opened(tmp_path)
    for waiting_chunk in third.taken_off():
        third.bury(waiting_chunk)
    third.commit()
    third.crash()
    fourth = Opened(tmp_path)
    assert fourth.figures() == (990, 0, 10)
    assert sorted(letters_in(tmp_path)) == EVENTS[DELIVERED:]
    fourth.crash()


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after it"])
def test_999_of_1000_delivered(tmp_path: Path, *, written: bool) -> None:
    """One by one, in no order: after the commit one comes again, before it those whose marks
    weren't written.
    """
    rig = DiskRig(tmp_path / "worker-0")
    rig.put(LANE, *EVENTS)
    rest = rig.buffer.queue(LANE).popleft()
    parts = []
    while rest.count > 1:
        cut = cut_at(rest, 1)
        rig.buffer.replace(rest, cut)
        parts.append(cut[0])
        rest = cut[1]
    rig.buffer.settle(parts[:500], Fate.DELIVERED)
    rig.pump()
    rig.buffer.settle(parts[:499:-1], Fate.DELIVERED)
    if written:
        rig.pump()
    rig.crash()
    assert rig.events(LANE) == (EVENTS[-1:] if written else EVENTS[500:])
    assert rig.buffer.count(LANE) == rig.open_events(LANE)
    rig.abandon()
