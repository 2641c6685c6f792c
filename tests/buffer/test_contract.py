"""What every buffer promises (`forwarder.core.ports.Buffer`), run over each implementation.

An implementation joins by its name in `OPENERS`: a function that makes an empty one of so many bytes in a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.buffer.memory import BufferStatistics, LaneHolding, MemoryBuffer
from forwarder.core.errors import BufferFull
from forwarder.core.event import Chunk, Lane
from forwarder.core.lane_queue import LaneQueue

LIVE: Final = Lane("phc_bufferbuffer1234")
OTHER: Final = Lane("phc_otherotherother1")
HISTORICAL: Final = LIVE._replace(historical=True)
LIMIT: Final = 100_000


class Held(Protocol):
    """A buffer with the figures that every implementation offers beside the port: quotas, metrics and tests read them."""

    holdings: dict[Lane, LaneHolding]

    def offer(self, chunks: Sequence[Chunk]) -> None: ...
    def queue(self, lane: Lane) -> LaneQueue: ...
    def waiting_lanes(self) -> Collection[Lane]: ...
    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None: ...
    def settle(self, chunks: Sequence[Chunk]) -> None: ...
    def count(self, lane: Lane) -> int: ...
    def statistics(self) -> BufferStatistics: ...


Open = Callable[[Path, int], Held]
OPENERS: Final[dict[str, Open]] = {"memory": lambda _, max_bytes: MemoryBuffer(max_bytes)}


@pytest.fixture(params=list(OPENERS))
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Held]:
    """Makes a buffer of the kind under test, empty, each in a folder of its own."""
    opener = OPENERS[request.param]
    made: list[Held] = []

    def make(max_bytes: int = LIMIT) -> Held:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(opener(folder, max_bytes))
        return made[-1]

    return make


@pytest.fixture
def buffer(opened: Callable[[int], Held]) -> Held:
    """An empty buffer of `LIMIT` bytes."""
    return opened(LIMIT)


def chunk(name: str = "e", count: int = 1, lane: Lane = LIVE, *, padding: int = 0, at: float = 0.0) -> Chunk:
    """So many events of a lane."""
    events = [b'{"event":"%b-%d","p":"%b"}' % (name.encode(), number, b"x" * padding) for number in range(count)]
    return Chunk(lane, b",".join(events), count, frozenset(), at)


def taken(buffer: Held, lane: Lane = LIVE) -> list[Chunk]:
    """Everything that waits in the lane, taken off its queue."""
    queue = buffer.queue(lane)
    return [queue.popleft() for _ in range(len(queue))]


def test_it_begins_empty(buffer: Held) -> None:
    """No bytes, no events, no lanes."""
    assert buffer.statistics() == BufferStatistics(0, LIMIT, 0)
    assert (list(buffer.waiting_lanes()), dict(buffer.holdings), buffer.count(LIVE)) == ([], {}, 0)
    assert not buffer.queue(LIVE)


def test_what_is_offered_waits_in_order(buffer: Held) -> None:
    """A lane's chunks come out in the order in which they came in, of one request and of several."""
    chunks = [chunk(str(number)) for number in range(4)]
    buffer.offer(chunks[:2])
    buffer.offer(chunks[2:3])
    buffer.offer(chunks[3:])
    assert taken(buffer) == chunks


def test_lanes_are_apart(buffer: Held) -> None:
    """Two keys, and the live and historical events of one, don't see each other."""
    for lane in (LIVE, OTHER, HISTORICAL):
        buffer.offer([chunk(lane=lane)])
    assert set(buffer.waiting_lanes()) == {LIVE, OTHER, HISTORICAL}
    assert len(taken(buffer, OTHER)) == 1
    assert set(buffer.waiting_lanes()) == {LIVE, HISTORICAL}
    assert (buffer.count(LIVE), buffer.count(OTHER), buffer.count(HISTORICAL)) == (1, 1, 1)


def test_a_request_over_several_lanes_is_taken_whole_or_not_at_all(buffer: Held) -> None:
    """If one of its chunks has no room, none is taken, and nothing has changed."""
    buffer.offer([chunk("here")])
    before = buffer.statistics()
    with pytest.raises(BufferFull):
        buffer.offer([chunk("small", lane=OTHER), chunk("large", padding=LIMIT)])
    assert buffer.statistics() == before
    assert list(buffer.waiting_lanes()) == [LIVE]
    assert buffer.count(OTHER) == 0


def test_full_is_said_with_a_hint_and_when_to_come_back(buffer: Held) -> None:
    """The sender learns when, the operator where to look."""
    with pytest.raises(BufferFull) as caught:
        buffer.offer([chunk(padding=LIMIT)])
    assert caught.value.retry_after > 0
    assert caught.value.hint


def test_the_limit_can_be_used_to_the_last_byte(opened: Callable[[int], Held]) -> None:
    """What costs exactly the limit fits; one byte more doesn't."""
    one = chunk(padding=100)
    buffer = opened(2 * one.cost)
    buffer.offer([one, chunk(padding=100)])
    assert buffer.statistics().bytes == 2 * one.cost
    with pytest.raises(BufferFull):
        opened(2 * one.cost - 1).offer([one, chunk(padding=100)])


def test_what_is_in_flight_still_counts(opened: Callable[[int], Held]) -> None:
    """Taking a chunk off its queue frees nothing; settling it does."""
    one = chunk(padding=100)
    buffer = opened(one.cost)
    buffer.offer([one])
    assert taken(buffer) == [one]
    assert (buffer.count(LIVE), buffer.statistics().bytes) == (1, one.cost)
    with pytest.raises(BufferFull):
        buffer.offer([chunk()])
    buffer.settle([one])
    buffer.offer([chunk()])
    assert buffer.count(LIVE) == 1


def test_what_is_put_back_is_first_again(buffer: Held) -> None:
    """Whoever takes chunks and can't send them puts them back at their place, also when nothing else waits meanwhile."""
    chunks = [chunk(str(number)) for number in range(3)]
    buffer.offer(chunks)
    assert taken(buffer) == chunks
    assert list(buffer.waiting_lanes()) == []
    buffer.queue(LIVE).put_back(chunks[:2])
    assert list(buffer.waiting_lanes()) == [LIVE]
    assert taken(buffer) == chunks[:2]
    assert buffer.count(LIVE) == 3


def test_a_lane_without_events_is_forgotten(buffer: Held) -> None:
    """With its last event settled nothing of it is remembered: keys that senders make up cost nothing for good."""
    one = chunk()
    buffer.offer([one])
    taken(buffer)
    buffer.settle([one])
    assert (list(buffer.waiting_lanes()), dict(buffer.holdings), buffer.count(LIVE)) == ([], {}, 0)
    assert buffer.statistics() == BufferStatistics(0, LIMIT, 0)


def test_parts_stand_for_what_was_cut(buffer: Held) -> None:
    """After a cut the same events are held, at what the parts cost, and each part is settled by itself."""
    whole = chunk(count=3)
    buffer.offer([whole])
    taken(buffer)
    parts = [Chunk(LIVE, event, 1, frozenset(), 0.0) for event in whole.events()]
    buffer.replace(whole, parts)
    assert buffer.count(LIVE) == 3
    assert buffer.statistics().bytes == sum(part.cost for part in parts)
    for part in parts[:2]:
        buffer.settle([part])
    assert buffer.count(LIVE) == 1
    buffer.queue(LIVE).put_back(parts[2:])
    assert taken(buffer) == parts[2:]
    buffer.settle([parts[2]])
    assert buffer.statistics().bytes == 0


def test_a_cut_fits_in_a_full_buffer(opened: Callable[[int], Held]) -> None:
    """Cutting what was taken can't be refused, though its parts cost a little more than the whole."""
    whole = chunk(count=2)
    buffer = opened(whole.cost)
    buffer.offer([whole])
    taken(buffer)
    parts = [Chunk(LIVE, event, 1, frozenset(), 0.0) for event in whole.events()]
    buffer.replace(whole, parts)
    with pytest.raises(BufferFull):
        buffer.offer([chunk()])
    for part in parts:
        buffer.settle([part])
    buffer.offer([chunk()])


def test_figures_are_per_lane(buffer: Held) -> None:
    """Events and bytes of each lane, for the quotas; together they are the whole."""
    buffer.offer([chunk(count=2), chunk(count=3, lane=OTHER, padding=50)])
    held = buffer.holdings
    assert {lane: holding.events for lane, holding in held.items()} == {LIVE: 2, OTHER: 3}
    assert held is buffer.holdings or dict(held) == dict(buffer.holdings)
    assert sum(holding.bytes for holding in held.values()) == buffer.statistics().bytes
    assert buffer.statistics().events == 5


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(data=st.data())
def test_accounts_are_exact_whatever_happens(opened: Callable[[int], Held], data: st.DataObject) -> None:
    """Offers, takes, put-backs, cuts and settlements in any order: bytes, events, order and lanes are those of a plain list."""
    limit = 12_000
    buffer = opened(limit)
    waiting: dict[Lane, list[Chunk]] = {LIVE: [], OTHER: [], HISTORICAL: []}
    flying: list[Chunk] = []

    def offer(number: int) -> None:
        lanes = data.draw(st.lists(st.sampled_from(list(waiting)), min_size=1, max_size=3, unique=True))
        chunks = [chunk(str(number), data.draw(st.integers(1, 4)), lane, padding=data.draw(st.integers(0, 900))) for lane in lanes]
        used = sum(each.cost for each in [*flying, *(one for queue in waiting.values() for one in queue)])
        if used + sum(each.cost for each in chunks) > limit:
            with pytest.raises(BufferFull):
                buffer.offer(chunks)
            return
        buffer.offer(chunks)
        for each in chunks:
            waiting[each.lane].append(each)

    def take(lane: Lane) -> None:
        if waiting[lane]:
            flying.append(buffer.queue(lane).popleft())
            assert flying[-1] is waiting[lane].pop(0)

    def land(one: Chunk) -> None:
        flying.remove(one)
        kind = data.draw(st.sampled_from(["settle", "put back", "cut"]))
        if kind == "settle":
            buffer.settle([one])
        elif kind == "put back":
            buffer.queue(one.lane).put_back([one])
            waiting[one.lane].insert(0, one)
        else:
            parts = [Chunk(one.lane, event, 1, frozenset(), 0.0) for event in one.events()]
            buffer.replace(one, parts)
            flying.extend(parts)

    for number in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["offer", "take", "land"]))
        if step == "offer":
            offer(number)
        elif step == "take":
            take(data.draw(st.sampled_from(list(waiting))))
        elif flying:
            land(data.draw(st.sampled_from(flying)))
        everything = [*flying, *(one for queue in waiting.values() for one in queue)]
        statistics = buffer.statistics()
        assert statistics.bytes == sum(one.cost for one in everything)
        assert statistics.events == sum(one.count for one in everything)
        assert set(buffer.waiting_lanes()) == {lane for lane, queue in waiting.items() if queue}
        assert set(buffer.holdings) == {one.lane for one in everything}
        for lane in waiting:
            assert buffer.count(lane) == sum(one.count for one in everything if one.lane == lane)
    for lane, queue in waiting.items():
        assert taken(buffer, lane) == queue
