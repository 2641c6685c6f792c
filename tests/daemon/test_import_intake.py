"""The intake of an import, whose source makes its events itself: real buffer, dead letters, books
and delivery; the upstream is scripted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.ack import AckCallback
from forwarder.core.errors import Backpressure, BufferFull, DeadLettersFull
from forwarder.core.event import Batch, Chunk, Lane, Where
from forwarder.core.outcome import Reply
from forwarder.core.ports import DeadLetter, Ordering, Reason
from forwarder.daemon.imports import import_intake
from forwarder.delivery.batching import Batcher, BatchPolicy
from forwarder.delivery.delivery import Delivery
from forwarder.delivery.lane_state import RetryPolicy
from forwarder.telemetry.books import Books
from tests.deadletter.rig import StoreRig, started
from tests.support.clock import settle
from tests.support.waiters import IntakeCallback

LANE = Lane("phc_not_verified", historical=True)


class FoundChunk(Chunk):
    """A chunk whose events say where they were."""

    first = 0
    """The index of its first event in the chunk that it was a part of."""

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> Chunk:
        part = FoundChunk(self.lane, data, count, ids, self.received_at, self.source, self.ack)
        part.first = self.first + at
        return part

    def where(self, index: int) -> Where:
        index += self.first
        return Where(f"export.jsonl:{index + 1}", (1 << 40, index), '{"record":0}')


class RefusingSink:
    """A sink that refuses events called `bad`."""

    def __init__(self) -> None:
        self.delivered: list[bytes] = []
        self.closed = False
        """Whether it can't be reached."""

    async def send(self, batch: Batch) -> Reply:
        events = [event for chunk in batch.chunks for event in chunk.events()]
        if self.closed:
            return Reply(None, error="connection refused")
        if any(b'"bad"' in event for event in events):
            return Reply(400, body=b"bad event")
        self.delivered += events
        return Reply(200, "application/json", body=b'{"status":1}')


class OneSource:
    """The pipeline of such a process."""

    def __init__(self, letters: StoreRig, max_bytes: int) -> None:
        self.letters = letters
        self.clock = letters.clock
        self.books = Books()
        self.buffer = MemoryBuffer(max_bytes, any_if_empty=True)
        self.upstream = RefusingSink()
        self.delivery = Delivery(
            batcher=Batcher(self.buffer, BatchPolicy(5_000_000, 5000, 1.0)),
            buffer=self.buffer,
            sink=self.upstream,
            dead_letters=letters.store,
            books=self.books,
            clock=self.clock,
            retry=RetryPolicy(),
            concurrency=4,
            ordering_of=lambda _lane: Ordering.PER_DISTINCT_ID,
        )
        self.intake = import_intake(
            self.buffer, letters.store, self.books, self.delivery, self.clock, lane=LANE
        )

    def chunk(self, *names: str, padding: int = 0) -> Chunk:
        """A chunk of events with these names."""
        events = [
            b'{"event":"%b","distinct_id":"%b","p":"%b"}'
            % (name.encode(), name.encode(), b"x" * padding)
            for name in names
        ]
        return FoundChunk(
            LANE, b",".join(events), len(events), frozenset(names), self.clock.now(), "import"
        )

    def letter(self, record: int, data: bytes = b"no JSON") -> DeadLetter:
        """A record that was refused by its format."""
        return DeadLetter(
            Reason.UNDECODABLE,
            LANE,
            data,
            self.clock.now(),
            "not JSON",
            "import",
            f"export.jsonl:{record}",
            (record, 0),
        )

    async def deliver(self) -> None:
        """Let everything be delivered, as far as the upstream answers."""
        for _ in range(100):
            await self.clock.advance(1.0)
            await settle()
            if not self.buffer.used:
                return

    async def written(self, answer: IntakeCallback) -> None:
        """Let the dead letters be written, until the source is called."""
        while not answer.answers:
            await self.letters.commit()
            await settle()

    def figures(self) -> tuple[int, int, int]:
        """Received, delivered, dead-lettered."""
        account = self.books.accounts[LANE]
        assert account.buffered == self.buffer.count(LANE)
        return account.received["import"], account.delivered, sum(account.dead_lettered.values())


@asynccontextmanager
async def one_source(
    directory: Path, max_bytes: int = 1 << 20, letter_bytes: int = 1 << 20
) -> AsyncIterator[OneSource]:
    """A pipeline, closed at the end."""
    async with started(directory, max_bytes=letter_bytes, logged=False) as store:
        source = OneSource(store, max_bytes)
        source.delivery.start()
        try:
            yield source
        finally:
            await source.delivery.close()


async def test_accepted_events_are_settled_once(tmp_path: Path) -> None:
    """Events go to the upstream as they are, count in the books, and the callback comes once, when
    the last is delivered.
    """
    async with one_source(tmp_path) as source:
        answer = IntakeCallback()
        accepted = source.intake.accept_events(
            [source.chunk("a", "b"), source.chunk("c")], (), answer
        )
        assert accepted is not None
        assert (set(accepted.lanes), accepted.at) == ({LANE}, source.clock.now())
        assert (source.figures(), answer.answers) == ((3, 0, 0), [])
        await source.deliver()
        assert (source.figures(), answer.answers) == ((3, 3, 0), [None])
        assert source.upstream.delivered == [
            *source.chunk("a", "b").events(),
            *source.chunk("c").events(),
        ]


async def test_a_refused_event_is_durable_before_the_callback(tmp_path: Path) -> None:
    """What the upstream refuses becomes a dead letter that says where it was, and its source is
    called when that is on disk.
    """
    async with one_source(tmp_path) as source:
        answer = IntakeCallback()
        assert source.intake.accept_events(
            [source.chunk("good", "bad", "fine")], [source.letter(7)], answer
        )
        await source.deliver()
        assert source.figures() == (4, 2, 2)
        await source.written(answer)
        assert answer.answers == [None]
        rows = source.letters.query(
            "SELECT reason, coordinates, attributes, data FROM letters ORDER BY coordinates"
        )
        assert rows == [
            ("refused", "export.jsonl:2", '{"record":0}', source.chunk("bad").data),
            ("undecodable", "export.jsonl:7", "", b"no JSON"),
        ]


async def test_the_callback_waits_for_the_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that are delivered aren't settled before the dead letters beside them are durable,
    however often writing them fails.
    """
    async with one_source(tmp_path) as source:
        asked: list[AckCallback] = []

        def not_yet(on_durable: AckCallback) -> bool:
            asked.append(on_durable)
            return False

        monkeypatch.setattr(source.letters.store, "when_durable", not_yet)
        answer = IntakeCallback()
        source.intake.accept_events([source.chunk("a")], [source.letter(1)], answer)
        await source.deliver()
        assert (source.figures(), answer.answers, len(asked)) == ((2, 1, 1), [], 1)
        asked[0](Backpressure("dead letters can't be written"))
        assert (answer.answers, len(asked)) == ([], 2)
        asked[1](None)
        assert answer.answers == [None]


async def test_a_full_buffer_accepts_nothing(tmp_path: Path) -> None:
    """All or nothing: neither events nor dead letters are kept, nothing is counted, and the same
    chunks are accepted later.
    """
    async with one_source(tmp_path, 10_000) as source:
        answer = IntakeCallback()
        second = IntakeCallback()
        source.intake.accept_events([source.chunk("a", padding=6000)], (), answer)
        unit = [source.chunk("b"), source.chunk("c", padding=3000)]
        with pytest.raises(BufferFull):
            source.intake.accept_events(unit, [source.letter(1)], second)
        assert source.figures() == (1, 0, 0)
        assert source.letters.store.statistics().bytes == 0
        await source.deliver()
        assert source.intake.accept_events(unit, [source.letter(1)], second) is not None
        await source.deliver()
        await source.written(second)
        assert (source.figures(), answer.answers, second.answers) == ((4, 3, 1), [None], [None])


async def test_the_only_lane_has_the_whole_buffer(tmp_path: Path) -> None:
    """No share is kept for others; and what is larger than the whole buffer is accepted once that
    is empty.
    """
    async with one_source(tmp_path, 10_000) as source:
        source.intake.accept_events([source.chunk("a", padding=9000)], (), IntakeCallback())
        with pytest.raises(BufferFull):
            source.intake.accept_events([source.chunk("b", padding=20_000)], (), IntakeCallback())
        await source.deliver()
        source.intake.accept_events([source.chunk("b", padding=20_000)], (), IntakeCallback())
        with pytest.raises(BufferFull):
            source.intake.accept_events([source.chunk("c")], (), IntakeCallback())


async def test_letters_alone_and_nothing_at_all(tmp_path: Path) -> None:
    """Letters are waited for until they are durable; what holds nothing is settled at once."""
    async with one_source(tmp_path) as source:
        answer = IntakeCallback()
        none = IntakeCallback()
        assert (
            source.intake.accept_events((), [source.letter(1), source.letter(2)], answer)
            is not None
        )
        none.reached = source.intake.accept_events((), (), none) is None
        assert none.code == "accepted"
        assert answer.answers == []
        await source.written(answer)
        assert (answer.answers, source.figures()) == ([None], (2, 0, 2))


async def test_letters_without_room_are_waited_for(tmp_path: Path) -> None:
    """The source tries again, also where they would never fit: its operator has to make room."""
    async with one_source(tmp_path, letter_bytes=1000) as source:
        with pytest.raises(DeadLettersFull):
            source.intake.accept_events(
                [source.chunk("a")], [source.letter(1, b"x" * 2000)], IntakeCallback()
            )
        assert (source.buffer.used, source.figures()) == (0, (0, 0, 0))
