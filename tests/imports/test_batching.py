"""When which batch of an import is sent, and the chunks that they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.event import Batch, Chunk, Lane, Where
from forwarder.core.ports import Fate, Reason, letters_of
from forwarder.imports.batching import SOURCE, DayBatcher, ImportChunk
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.pacing import ImportPace, OwnLine, QuietHours, SharedLine
from forwarder.sources.imports.times import DAY
from forwarder.wire.envelope import cut_at
from tests.imports.imports import LANE
from tests.support.clock import MIDNIGHT, FakeClock

NOBODY: frozenset[str] = frozenset()


class Rig:
    """A batcher with a buffer to fill, and the batches that it gave."""

    def __init__(self, pace: ImportPace | None = None, *, alone: bool = False, max_body: int = 100_000) -> None:
        self.clock = FakeClock()
        self.buffer = MemoryBuffer(10_000_000)
        self.batcher = DayBatcher(
            self.buffer, pace or ImportPace(1e9, line=OwnLine()), self.clock, max_body=max_body, one_day_at_a_time=alone
        )
        self.number = 0
        self.fates: list[str] = []

    def offer(self, count: int, day: int = 0, ids: Sequence[str] = ()) -> None:
        """A batch of so many events, with these ids; by default of persons of their own."""
        events = []
        for _ in range(count):
            self.number += 1
            person = ids[self.number % len(ids)] if ids else f"p{self.number}"
            data = msgspec.json.encode({"event": "seen", "distinct_id": person, "n": self.number})
            events.append(FinishedEvent(day * DAY, person, "seen", f"uuid-{self.number}", data, 0, self.number, self.number))
        told = lambda events, fate: self.fates.append(f"{len(events)} {fate}")  # noqa: E731 - a callback
        data = b",".join(event.data for event in events)
        keys = frozenset(event.distinct_id for event in events)
        self.buffer.offer([ImportChunk(LANE, data, events, keys, 0.0, told, lambda event: Where(f"a:{event.line}"))])

    def next(self, blocked: frozenset[str] = NOBODY, *, max_body: int | None = None, max_events: int | None = None) -> Batch | None:
        """The next batch, if one may go now."""
        return self.batcher.next(LANE, self.clock.now(), blocked=blocked, max_body=max_body, flush=False, max_events=max_events)

    def due_in(self) -> float | None:
        """Seconds until something may go."""
        due = self.batcher.due_at(LANE, self.clock.now())
        return None if due is None else due - self.clock.now()

    def settle(self, batch: Batch) -> None:
        """The service took it."""
        self.buffer.settle(batch.chunks, Fate.DELIVERED)
        self.batcher.settled(batch.count)


def test_a_chunk_is_a_batch() -> None:
    """Nothing is joined: each was made to be one request."""
    rig = Rig()
    rig.offer(2)
    rig.offer(3)
    assert [batch.count for batch in (rig.next(), rig.next()) if batch] == [2, 3]
    assert rig.next() is None
    assert not rig.batcher.lanes()


def test_what_shares_an_id_with_what_is_under_way_is_passed() -> None:
    """And so is what shares one with what was passed."""
    rig = Rig()
    rig.offer(1, ids=["a"])
    rig.offer(2, ids=["a", "b"])
    rig.offer(1, ids=["b"])
    rig.offer(1, ids=["c"])
    batch = rig.next(frozenset("a"))
    assert batch is not None
    assert batch.ids() == {"c"}
    assert rig.next(frozenset("ac")) is None
    assert rig.due_in() is None, "nothing can go before something is settled"
    rig.settle(batch)
    assert rig.due_in() == 0
    assert [each.ids() for each in (rig.next(), rig.next(), rig.next()) if each] == [{"a"}, {"a", "b"}, {"b"}]


def test_an_event_alone_is_cut_off_and_the_others_stay_together() -> None:
    """A lane that refuses everything is asked about one event; the rest needn't go one by one."""
    rig = Rig()
    rig.offer(5)
    one, rest = rig.next(max_events=1), rig.next()
    assert one is not None
    assert rest is not None
    assert (one.count, rest.count) == (1, 4)
    rig.settle(one)
    rig.settle(rest)
    assert rig.buffer.used == 0
    assert rig.fates == ["1 delivered", "4 delivered"]


def test_what_is_over_the_size_that_was_learned_goes_in_pieces() -> None:
    """After a 413; each piece knows where its events are in the source."""
    rig = Rig()
    rig.offer(6)
    first = rig.next(max_body=250)
    assert first is not None
    assert 1 <= first.count < 6
    assert first.size <= 250
    batches = [first]
    while (batch := rig.next(max_body=250)) is not None:
        batches.append(batch)
    assert sum(batch.count for batch in batches) == 6
    assert [batch.chunks[0].where(0).coordinates for batch in batches] == [f"a:{1 + at * first.count}" for at in range(len(batches))]


def test_one_event_over_the_size_goes_alone() -> None:
    """The service says what it thinks of it."""
    rig = Rig()
    rig.offer(1)
    batch = rig.next(max_body=10)
    assert batch is not None
    assert batch.count == 1


async def test_batches_keep_the_pace() -> None:
    """The first goes at once, the next when its time has passed."""
    rig = Rig(ImportPace(10.0))
    for _ in range(3):
        rig.offer(20)
    assert rig.next() is not None
    assert rig.next() is None
    assert rig.due_in() == pytest.approx(2.0)
    await rig.clock.advance(1.9)
    assert rig.next() is None
    await rig.clock.advance(0.2)
    assert rig.next() is not None


async def test_one_that_goes_in_place_of_another_costs_what_it_has() -> None:
    """Neither is the pace broken by a larger one, nor is what a smaller one left lost."""
    rig = Rig(ImportPace(10.0))
    rig.offer(20, ids=["a"])
    rig.offer(20, ids=["a"])
    rig.offer(5, ids=["b"])
    assert rig.next() is not None
    await rig.clock.advance(2.0)
    small = rig.next(frozenset("a"))
    assert small is not None
    assert small.count == 5
    rig.settle(small)
    rig.offer(20, ids=["a"])
    assert rig.due_in() == pytest.approx(2.0)
    await rig.clock.advance(2.0)
    assert rig.next() is not None
    assert rig.due_in() == pytest.approx(0.5), "45 events take 4.5 seconds"


async def test_two_processes_share_a_rate(tmp_path: Path) -> None:
    """Through a file; what one has taken the other waits for."""
    first, second = (Rig(ImportPace(10.0, line=SharedLine(tmp_path / "rate"))) for _ in range(2))
    for rig in (first, second):
        rig.offer(10)
        rig.offer(10)
    assert first.next() is not None
    assert second.due_in() == pytest.approx(1.0)
    assert first.due_in() == pytest.approx(2.0)


def test_a_rate_that_can_t_be_shared_is_told(tmp_path: Path) -> None:
    """Nothing goes; who runs it hears why."""
    rig = Rig(ImportPace(10.0, line=SharedLine(tmp_path / "gone" / "rate")))
    told: list[Exception] = []
    rig.batcher.on_failure(told.append)
    rig.offer(1)
    assert rig.next() is None
    assert "gone/rate can't be used" in str(told[0])


async def test_quiet_hours_are_kept() -> None:
    """And it can be said why nothing goes."""
    rig = Rig(ImportPace(10.0, quiet=QuietHours.parse("00:00-02:00")))
    rig.offer(1)
    assert rig.next() is None
    assert rig.due_in() == pytest.approx(7200.0)
    assert "quiet hours" in rig.batcher.rests()
    await rig.clock.advance(7200.0)
    assert rig.batcher.rests() == ""
    assert rig.next() is not None


def test_days_wait_for_each_other_where_they_may_be_joined() -> None:
    """Until all that is under way of another day is settled."""
    rig = Rig(alone=True)
    rig.offer(1, day=1)
    rig.offer(1, day=1)
    rig.offer(1, day=2)
    batches = [rig.next(), rig.next()]
    assert rig.next() is None
    assert rig.due_in() is None
    for batch in batches:
        assert batch is not None
        assert rig.due_in() is None
        rig.settle(batch)
    assert rig.next() is not None


def test_held_it_begins_nothing() -> None:
    """Somebody ends the run: what waits stays for the next one."""
    rig = Rig()
    rig.offer(1)
    rig.offer(1)
    batch = rig.next()
    assert batch is not None
    rig.batcher.hold()
    assert rig.next() is None
    assert rig.due_in() is None
    assert rig.batcher.under_way == 1
    rig.settle(batch)
    assert rig.batcher.under_way == 0


def chunk(told: list[tuple[list[int], str]]) -> ImportChunk:
    """Four events, of which the records are told when they are settled."""
    events = [FinishedEvent(3 * DAY + n, f"p{n}", "seen", f"u{n}", b'{"distinct_id":"p%d"}' % n, 0, n + 1, n) for n in range(4)]
    data = b",".join(event.data for event in events)
    ids = frozenset(event.distinct_id for event in events)
    return ImportChunk(
        LANE,
        data,
        [event._replace(data=b"") for event in events],
        ids,
        5.0,
        lambda events, fate: told.append(([event.number for event in events], fate)),
        lambda event: Where(f"a.jsonl:{event.line}", (1, event.number)),
    )


def test_its_events_are_told_when_they_are_settled() -> None:
    """All at once, with their fate."""
    told: list[tuple[list[int], str]] = []
    whole = chunk(told)
    assert (whole.day, whole.source) == (3, SOURCE)
    assert whole.ack is not None
    whole.ack.settle(4, whole.data, "delivered")
    assert told == [([0, 1, 2, 3], "delivered")]


def test_parts_of_it_are_told_each_by_itself() -> None:
    """Whatever becomes of the other part; the ids of a part are those of its own events."""
    told: list[tuple[list[int], str]] = []
    left, right = cut_at(chunk(told), 1)
    assert (left.ids, right.ids) == (frozenset({"p0"}), frozenset({"p1", "p2", "p3"}))
    middle = cut_at(right, 2)[0]
    for part, fate in ((middle, "buried"), (left, "delivered")):
        assert part.ack is not None
        part.ack.settle(part.count, part.data, fate)
    assert told == [([1, 2], "buried"), ([0], "delivered")]


def test_a_dead_letter_says_where_its_event_was() -> None:
    """Also that of a part: by file and line, and by a place that no other has."""
    letters = letters_of(cut_at(chunk([]), 2)[1], Reason.REFUSED, "no", 1.0)
    assert [(letter.coordinates, letter.place, letter.data) for letter in letters] == [
        ("a.jsonl:3", (1, 2), b'{"distinct_id":"p2"}'),
        ("a.jsonl:4", (1, 3), b'{"distinct_id":"p3"}'),
    ]


TIMED_LANE = Lane("phc_batches_in_time_000001", historical=True)
NONE: frozenset[str] = frozenset()


class BusyClock(FakeClock):
    """A clock whose time also passes while somebody looks at it, as on a busy machine."""

    def monotonic(self) -> float:
        """A tenth of a second later each time."""
        self._monotonic += 100_000_000
        return super().monotonic()


async def test_a_batch_that_becomes_due_between_two_questions_is_not_forgotten() -> None:
    """Both questions of one pass have one answer: not yet, and when. Otherwise no timer is set, and the import stands still for ever."""
    buffer = MemoryBuffer(1 << 20)
    batcher = DayBatcher(buffer, ImportPace(8.0), BusyClock(), max_body=1 << 20)
    buffer.offer([Chunk(TIMED_LANE, b"{}", 1, NONE, MIDNIGHT, "import") for _ in range(4)])
    taken, moments = 0, [MIDNIGHT + turn for turn in range(20)]
    for wall in moments:
        while batcher.next(TIMED_LANE, wall, blocked=NONE, max_body=None, flush=False) is not None:
            taken += 1
        due = batcher.due_at(TIMED_LANE, wall)
        assert due is None or due > wall
    assert taken == 4
