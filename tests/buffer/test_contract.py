"""What every buffer promises (`forwarder.core.ports.Buffer`), run over each implementation.

An implementation joins by its name in `OPENERS`: a function that makes an empty one of so many
bytes in a folder, and whose calls show at once. It may put together what is offered together: so
these tests compare events, and settle what they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.buffer.holdings import BufferStatistics, LaneHolding
from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.ack import AckCallback
from forwarder.core.errors import Backpressure, BufferFull
from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.lane_queue import LaneQueue
from forwarder.core.ports import DropReason, Fate
from forwarder.wire.envelope import cut_at
from tests.support.disk import DiskRig

LIVE: Final = Lane("phc_bufferbuffer1234")
OTHER: Final = Lane("phc_otherotherother1")
HISTORICAL: Final = LIVE._replace(historical=True)
LIMIT: Final = 100_000
HALF: Final = 55_000
"""Bytes of padding of which two events don't fit."""


class InspectedBuffer(Protocol):
    """A buffer with the figures that every implementation offers beside the port: quotas, metrics
    and tests read them.
    """

    @property
    def holdings(self) -> Mapping[Lane, LaneHolding]: ...
    def offer(self, chunks: Sequence[Chunk], held: AckCallback | None = None) -> bool: ...
    def cost(self, chunk: Chunk) -> int: ...
    def queue(self, lane: Lane) -> LaneQueue: ...
    def waiting_lanes(self) -> Collection[Lane]: ...
    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None: ...
    def settle(self, chunks: Sequence[Chunk], fate: Fate | DropReason) -> None: ...
    def count(self, lane: Lane) -> int: ...
    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]: ...
    def drop_oldest(self, lane: Lane | None) -> list[Chunk]: ...
    def oldest(self, lane: Lane) -> float | None: ...
    def statistics(self) -> BufferStatistics: ...
    def close(self) -> None: ...


class InMemory(MemoryBuffer):
    """The buffer in memory."""

    def close(self) -> None:
        """There is nothing to close."""


class OnDisk:
    """The buffer on disk, with a commit after each call."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._rig = DiskRig(folder, max_bytes=max_bytes)
        buffer = self._buffer = self._rig.buffer
        self.cost = buffer.cost
        self.queue = buffer.queue
        self.count = buffer.count
        self.oldest = buffer.oldest
        self.waiting_lanes = buffer.waiting_lanes
        self.withdraw = buffer.withdraw
        self.drop_oldest = buffer.drop_oldest
        self.statistics = buffer.statistics

    @property
    def holdings(self) -> Mapping[Lane, LaneHolding]:
        return self._buffer.holdings

    def offer(self, chunks: Sequence[Chunk], held: AckCallback | None = None) -> bool:
        answer = self._buffer.offer(chunks, held)
        self._rig.pump()
        return answer

    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None:
        self._buffer.replace(chunk, parts)
        self._rig.pump()

    def settle(self, chunks: Sequence[Chunk], fate: Fate | DropReason) -> None:
        self._buffer.settle(chunks, fate)
        self._rig.pump()

    def close(self) -> None:
        """Close its files."""
        self._rig.close()


Open = Callable[[Path, int], InspectedBuffer]
OPENERS: Final[dict[str, Open]] = {
    "memory": lambda _, max_bytes: InMemory(max_bytes),
    "disk": OnDisk,
}


@pytest.fixture(params=list(OPENERS))
def opened(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[int], InspectedBuffer]]:
    """Makes a buffer of the kind under test, empty, each in a folder of its own."""
    opener = OPENERS[request.param]
    made: list[InspectedBuffer] = []

    def make(max_bytes: int = LIMIT) -> InspectedBuffer:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(opener(folder, max_bytes))
        return made[-1]

    yield make
    for one_buffer in made:
        one_buffer.close()


@pytest.fixture
def buffer(opened: Callable[[int], InspectedBuffer]) -> InspectedBuffer:
    """An empty buffer of `LIMIT` bytes."""
    return opened(LIMIT)


def chunk(
    name: str = "e", count: int = 1, lane: Lane = LIVE, *, padding: int = 0, at: float = 0.0
) -> Chunk:
    """So many events of a lane."""
    events = [
        b'{"event":"%b-%d","p":"%b"}' % (name.encode(), number, b"x" * padding)
        for number in range(count)
    ]
    return Chunk(lane, b",".join(events), count, frozenset(), at)


def take_all(buffer: InspectedBuffer, lane: Lane = LIVE) -> list[Chunk]:
    """Everything that waits in the lane, taken off its queue."""
    queue = buffer.queue(lane)
    return [queue.popleft() for _ in range(len(queue))]


def events(chunks: Sequence[Chunk]) -> list[bytes]:
    """All events of some chunks, in order."""
    return [event for part in chunks for event in part.events()]


def take_only(buffer: InspectedBuffer, lane: Lane = LIVE) -> Chunk:
    """What waits in the lane: one chunk."""
    (one,) = take_all(buffer, lane)
    return one


def cut(whole: Chunk) -> list[Chunk]:
    """The chunk's events, one by one."""
    parts = [whole]
    while parts[-1].count > 1:
        parts[-1:] = cut_at(parts[-1], 1)
    return parts


def figures(buffer: InspectedBuffer) -> tuple[int, int, int]:
    """Bytes, the limit, events."""
    statistics = buffer.statistics()
    return statistics.bytes, statistics.limit_bytes, statistics.events


class RecordingCallback:
    """A `core.ack.AckCallback` that records its calls."""

    def __init__(self) -> None:
        self.answers: list[Backpressure | None] = []

    def __call__(self, error: Backpressure | None) -> None:
        self.answers.append(error)


def test_it_begins_empty(buffer: InspectedBuffer) -> None:
    """No bytes, no events, no lanes."""
    assert figures(buffer) == (0, LIMIT, 0)
    assert (list(buffer.waiting_lanes()), dict(buffer.holdings), buffer.count(LIVE)) == ([], {}, 0)
    assert not buffer.queue(LIVE)


def test_offered_chunks_keep_their_order(buffer: InspectedBuffer) -> None:
    """A lane's chunks come out in the order in which they came in, of one request and
    of several.
    """
    chunks = [chunk(str(number)) for number in range(4)]
    buffer.offer(chunks[:2])
    buffer.offer(chunks[2:3])
    buffer.offer(chunks[3:])
    assert events(take_all(buffer)) == events(chunks)


def test_acknowledgement_is_called_once_when_events_are_held(buffer: InspectedBuffer) -> None:
    """At once, by the answer, or later: never both."""
    callback = RecordingCallback()
    at_once = buffer.offer([chunk()], callback)
    assert callback.answers == ([] if at_once else [None])
    assert buffer.offer([chunk()])
    assert buffer.count(LIVE) == 2


def test_lanes_are_apart(buffer: InspectedBuffer) -> None:
    """Two keys, and the live and historical events of one, don't see each other."""
    for lane in (LIVE, OTHER, HISTORICAL):
        buffer.offer([chunk(lane=lane)])
    assert set(buffer.waiting_lanes()) == {LIVE, OTHER, HISTORICAL}
    assert len(take_all(buffer, OTHER)) == 1
    assert set(buffer.waiting_lanes()) == {LIVE, HISTORICAL}
    assert (buffer.count(LIVE), buffer.count(OTHER), buffer.count(HISTORICAL)) == (1, 1, 1)


def test_a_request_over_several_lanes_is_accepted_whole_or_not_at_all(
    buffer: InspectedBuffer,
) -> None:
    """If one of its chunks has no room, none is taken, and nothing has changed."""
    buffer.offer([chunk("here")])
    before = figures(buffer)
    with pytest.raises(BufferFull):
        buffer.offer(
            [
                chunk("small", lane=OTHER),
                chunk("large", padding=HALF),
                chunk("as large", padding=HALF),
            ]
        )
    assert figures(buffer) == before
    assert list(buffer.waiting_lanes()) == [LIVE]
    assert buffer.count(OTHER) == 0


def test_buffer_full_has_a_hint_and_a_retry_time(buffer: InspectedBuffer) -> None:
    """The sender learns when, the operator where to look."""
    with pytest.raises(BufferFull) as caught:
        buffer.offer([chunk(padding=HALF), chunk(padding=HALF)])
    assert caught.value.retry_after > 0
    assert caught.value.hint


def test_the_limit_can_be_used_to_the_last_byte(opened: Callable[[int], InspectedBuffer]) -> None:
    """What costs exactly the limit fits; one byte more doesn't."""
    one = chunk(padding=100)
    cost = opened(LIMIT).cost(one)
    buffer = opened(2 * cost)
    buffer.offer([one, chunk(padding=100)])
    assert buffer.statistics().bytes == 2 * cost
    with pytest.raises(BufferFull):
        opened(2 * cost - 1).offer([one, chunk(padding=100)])


def test_chunks_in_flight_still_count(opened: Callable[[int], InspectedBuffer]) -> None:
    """Taking a chunk off its queue frees nothing; settling it does."""
    cost = opened(LIMIT).cost(chunk(padding=100))
    buffer = opened(cost)
    buffer.offer([chunk(padding=100)])
    one = take_only(buffer)
    assert (buffer.count(LIVE), buffer.statistics().bytes) == (1, cost)
    with pytest.raises(BufferFull):
        buffer.offer([chunk()])
    buffer.settle([one], Fate.DELIVERED)
    buffer.offer([chunk()])
    assert buffer.count(LIVE) == 1


def test_a_returned_chunk_is_first_again(buffer: InspectedBuffer) -> None:
    """Anyone who takes chunks and can't send them puts them back at their place, also when nothing
    else waits meanwhile.
    """
    for number in range(3):
        buffer.offer([chunk(str(number))])
    chunks = take_all(buffer)
    assert len(chunks) == 3
    assert list(buffer.waiting_lanes()) == []
    buffer.queue(LIVE).put_back(chunks[:2])
    assert list(buffer.waiting_lanes()) == [LIVE]
    assert take_all(buffer) == chunks[:2]
    assert buffer.count(LIVE) == 3


def test_a_lane_without_events_is_forgotten(buffer: InspectedBuffer) -> None:
    """With its last event settled nothing of it is remembered: keys that senders make up cost
    nothing for good.
    """
    buffer.offer([chunk()])
    buffer.settle(take_all(buffer), Fate.DELIVERED)
    assert (list(buffer.waiting_lanes()), dict(buffer.holdings), buffer.count(LIVE)) == ([], {}, 0)
    assert figures(buffer) == (0, LIMIT, 0)


def test_parts_of_a_cut_chunk_replace_it(buffer: InspectedBuffer) -> None:
    """After a cut the same events are held, at what the parts cost, and each
    part is settled by itself.
    """
    buffer.offer([chunk(count=3)])
    whole = take_only(buffer)
    parts = cut(whole)
    buffer.replace(whole, parts)
    assert buffer.count(LIVE) == 3
    assert buffer.statistics().bytes == sum(map(buffer.cost, parts))
    for part in parts[:2]:
        buffer.settle([part], Fate.DELIVERED)
    assert buffer.count(LIVE) == 1
    buffer.queue(LIVE).put_back(parts[2:])
    assert take_all(buffer) == parts[2:]
    buffer.settle([parts[2]], Fate.DELIVERED)
    assert buffer.statistics().bytes == 0


def test_a_cut_fits_in_a_full_buffer(opened: Callable[[int], InspectedBuffer]) -> None:
    """Cutting what was taken can't be refused, though its parts cost a little more
    than the whole.
    """
    buffer = opened(opened(LIMIT).cost(chunk(count=2)))
    buffer.offer([chunk(count=2)])
    whole = take_only(buffer)
    parts = cut(whole)
    buffer.replace(whole, parts)
    with pytest.raises(BufferFull):
        buffer.offer([chunk()])
    for part in parts:
        buffer.settle([part], Fate.DELIVERED)
    buffer.offer([chunk()])


def test_figures_are_per_lane(buffer: InspectedBuffer) -> None:
    """Events and bytes of each lane, for the quotas; together they are the whole."""
    buffer.offer([chunk(count=2), chunk(count=3, lane=OTHER, padding=50)])
    held = buffer.holdings
    assert {lane: holding.events for lane, holding in held.items()} == {LIVE: 2, OTHER: 3}
    assert held is buffer.holdings or dict(held) == dict(buffer.holdings)
    assert sum(holding.bytes for holding in held.values()) == buffer.statistics().bytes
    assert buffer.statistics().events == 5


def test_abandoned_offer_is_withdrawn_unless_it_is_being_written(
    buffer: InspectedBuffer,
) -> None:
    """Only what waits comes off the queue; it still has to be settled."""
    ack = Ack(2, RecordingCallback())
    for name in ("flying", "waiting"):
        buffer.offer(
            [Chunk(LIVE, b'{"event":"%b"}' % name.encode(), 1, frozenset(), 0.0, "http", ack)]
        )
    buffer.offer([chunk("another's")])
    buffer.queue(LIVE).popleft()
    (withdrawn,) = buffer.withdraw([ack])
    assert withdrawn.data == b'{"event":"waiting"}'
    assert (len(buffer.queue(LIVE)), buffer.count(LIVE)) == (1, 3)


def test_many_acks_are_withdrawn_in_one_go(buffer: InspectedBuffer) -> None:
    """Of one lane, or of all; what stays keeps its order, and parts of a chunk that was cut have
    its ack.
    """
    acks = [Ack(9, RecordingCallback()) for _ in range(4)]
    for number, ack in enumerate(acks):
        for lane in (LIVE, OTHER):
            data = b",".join(b'{"event":"%d-%d"}' % (number, index) for index in range(2))
            buffer.offer([Chunk(lane, data, 2, frozenset(), 0.0, "kafka", ack)])
    queue = buffer.queue(LIVE)
    first = queue.popleft()
    parts = cut_at(first, 1)
    buffer.replace(first, parts)
    queue.put_back(parts)
    assert [part.data for part in buffer.withdraw(acks[:2], OTHER)] == [
        b'{"event":"0-0"},{"event":"0-1"}',
        b'{"event":"1-0"},{"event":"1-1"}',
    ]
    both = [b'{"event":"0-0', b'{"event":"0-1', b'{"event":"2-0', b'{"event":"2-0']
    assert [part.data[:13] for part in buffer.withdraw([acks[0], acks[2]])] == both
    assert [part.data[:13] for part in buffer.queue(LIVE)] == [b'{"event":"1-0', b'{"event":"3-0']
    assert (buffer.queue(LIVE).events, buffer.queue(LIVE).size) == (
        4,
        sum(len(part.data) + 1 for part in buffer.queue(LIVE)),
    )
    assert [part.data[:13] for part in buffer.queue(OTHER)] == [b'{"event":"3-0']
    assert buffer.withdraw([]) == []
    assert (buffer.count(LIVE), buffer.count(OTHER)) == (8, 8)


def test_the_oldest_is_dropped_first(buffer: InspectedBuffer) -> None:
    """Of one lane, or of all; and its age is reported."""
    buffer.offer([chunk("newer", at=2.0)])
    buffer.offer([chunk("older", lane=OTHER, at=1.0)])
    assert (buffer.oldest(LIVE), buffer.oldest(OTHER), buffer.oldest(HISTORICAL)) == (
        2.0,
        1.0,
        None,
    )
    (first,) = buffer.drop_oldest(None)
    assert first.lane == OTHER
    assert buffer.drop_oldest(OTHER) == []
    (second,) = buffer.drop_oldest(LIVE)
    assert events([second]) == events([chunk("newer")])


class BufferModel:
    """A buffer as a plain list of each lane's events."""

    def __init__(self, buffer: InspectedBuffer, limit: int) -> None:
        self.buffer = buffer
        self.limit = limit
        self.used = 0
        self.waiting: dict[Lane, list[bytes]] = {LIVE: [], OTHER: [], HISTORICAL: []}
        self.flying: list[Chunk] = []

    def offer(self, chunks: Sequence[Chunk]) -> None:
        """All of them are taken if they fit, else none."""
        cost = sum(map(self.buffer.cost, chunks))
        if self.used + cost > self.limit:
            with pytest.raises(BufferFull):
                self.buffer.offer(chunks)
            return
        self.buffer.offer(chunks)
        self.used += cost
        for part in chunks:
            self.waiting[part.lane] += part.events()

    def take(self, lane: Lane) -> None:
        """The lane's first chunk."""
        if self.waiting[lane]:
            one = self.buffer.queue(lane).popleft()
            self.flying.append(one)
            assert one.events() == self.waiting[lane][: one.count]
            del self.waiting[lane][: one.count]

    def settle(self, one: Chunk) -> None:
        """It is over."""
        self.buffer.settle([one], Fate.DELIVERED)
        self.used -= self.buffer.cost(one)

    def put_back(self, one: Chunk) -> None:
        """It waits again, before the others."""
        self.buffer.queue(one.lane).put_back([one])
        self.waiting[one.lane][:0] = one.events()

    def cut(self, one: Chunk) -> None:
        """Each event goes its own way."""
        parts = cut(one)
        self.buffer.replace(one, parts)
        self.used += sum(map(self.buffer.cost, parts)) - self.buffer.cost(one)
        self.flying.extend(parts)

    def check(self) -> None:
        """The buffer's figures are those of the lists."""
        flying = {
            lane: sum(one.count for one in self.flying if one.lane == lane) for lane in self.waiting
        }
        held = {lane: flying[lane] + len(waiting) for lane, waiting in self.waiting.items()}
        assert figures(self.buffer) == (self.used, self.limit, sum(held.values()))
        assert set(self.buffer.waiting_lanes()) == {
            lane for lane, waiting in self.waiting.items() if waiting
        }
        assert set(self.buffer.holdings) == {lane for lane, count in held.items() if count}
        assert {lane: self.buffer.count(lane) for lane in held} == held


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None
)
@given(data=st.data())
def test_accounts_are_exact_whatever_happens(
    opened: Callable[[int], InspectedBuffer], data: st.DataObject
) -> None:
    """Offers, takes, put-backs, cuts and settlements in any order: bytes, events, order and lanes
    are those of a plain list.
    """
    model = BufferModel(opened(12_000), 12_000)
    lanes = list(model.waiting)
    for number in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["offer", "take", "settle", "put back", "cut"]))
        if step == "offer":
            drawn = data.draw(st.lists(st.sampled_from(lanes), min_size=1, max_size=3, unique=True))
            sizes = st.tuples(st.integers(1, 4), st.integers(0, 900))
            model.offer(
                [
                    chunk(str(number), count, lane, padding=size)
                    for lane in drawn
                    for count, size in [data.draw(sizes)]
                ]
            )
        elif step == "take":
            model.take(data.draw(st.sampled_from(lanes)))
        elif model.flying:
            one = model.flying.pop(data.draw(st.integers(0, len(model.flying) - 1)))
            {"settle": model.settle, "put back": model.put_back, "cut": model.cut}[step](one)
        model.check()
    for lane, waiting in model.waiting.items():
        assert events(take_all(model.buffer, lane)) == waiting
