"""Buffer and batcher against a plain model: any sequence of requests, takes, settlements and
put-backs.

The model is a list a lane of (name, ids) in order of receipt, and what is in flight. It asks: is
no event lost or doubled, is order kept per id, is nothing taken that may not go, is something
taken if the first waiting event may go, are bytes and events counted exactly?
"""

from __future__ import annotations

from itertools import count

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.event import Batch, Chunk, Lane
from forwarder.core.ports import Fate
from forwarder.delivery.batching import Batcher, BatchPolicy
from forwarder.wire.envelope import body_pieces
from forwarder.wire.identity import ids_of

pytestmark = pytest.mark.slow

LANES = [Lane("phc_modelmodel123456"), Lane("phc_modelmodel123456", historical=True)]
PEOPLE = ["ann", "bob", "cid", "dee"]
LIMIT = 900
NOW = 1_767_225_600.0

people = st.sampled_from(PEOPLE)
events = st.tuples(people, st.none() | people, st.integers(0, 300))
requests = st.lists(events, min_size=1, max_size=6)


class BatchingModel(RuleBasedStateMachine):
    """Batches of a lane that keeps order per id: ids in flight are blocked
    for it, as delivery does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.buffer = MemoryBuffer(10_000_000)
        self.batcher = Batcher(self.buffer, BatchPolicy(LIMIT, 5, 1.0))
        self.numbers = count()
        self.waiting: dict[Lane, list[str]] = {lane: [] for lane in LANES}
        self.ids: dict[str, frozenset[str]] = {}
        self.flying: list[Batch] = []
        self.settled: dict[Lane, list[str]] = {lane: [] for lane in LANES}

    batches = Bundle("batches")

    @rule(lane=st.sampled_from(LANES), request=requests)
    def offer(self, lane: Lane, request: list[tuple[str, str | None, int]]) -> None:
        """A request comes in."""
        raw = []
        for person, alias, padding in request:
            name = f"e{next(self.numbers)}"
            raw.append(
                msgspec.json.encode(
                    {
                        "event": name,
                        "distinct_id": person,
                        "properties": {"alias": alias, "p": "x" * padding},
                    }
                )
            )
            self.ids[name] = ids_of(raw[-1])
            self.waiting[lane].append(name)
        self.buffer.offer(
            [Chunk(lane, b",".join(raw), len(raw), frozenset().union(*map(ids_of, raw)), NOW)]
        )

    @rule(
        target=batches,
        lane=st.sampled_from(LANES),
        also=st.sets(people, max_size=2),
        body=st.none() | st.integers(200, LIMIT),
    )
    def take(self, lane: Lane, also: set[str], body: int | None) -> Batch | None:
        """A batch goes out; ids in flight are blocked, and others at random."""
        blocked = also.union(*[batch.ids() for batch in self.flying if batch.lane == lane])
        batch = self.batcher.next(lane, NOW, blocked=blocked, max_body=body, flush=True)
        waiting = self.waiting[lane]
        if batch is None:
            assert not waiting or not self.first_chunk(lane).ids.isdisjoint(blocked)
            return None
        encoded = b"".join(body_pieces(batch))
        assert batch.size == len(encoded)
        assert batch.size < (body or LIMIT) or batch.count == 1
        assert batch.count <= 5
        self.check_order(waiting, names(batch), blocked)
        self.waiting[lane] = [name for name in waiting if name not in names(batch)]
        self.flying.append(batch)
        return batch

    def first_chunk(self, lane: Lane) -> Chunk:
        """The chunk that the lane's oldest event waits in."""
        queue = self.buffer.queue(lane)
        chunk = queue.popleft()
        queue.put_back([chunk])
        return chunk

    def check_order(self, waiting: list[str], batched: list[str], blocked: set[str]) -> None:
        """What was taken waited, comes in the order of the queue, isn't blocked, and passed no one
        that it shares an id with.
        """
        assert [name for name in waiting if name in batched] == batched
        held = set(blocked)
        for name in waiting:
            if name in batched:
                assert self.ids[name].isdisjoint(held)
            else:
                held |= self.ids[name]

    @rule(batch=consumes(batches))
    def settle(self, batch: Batch | None) -> None:
        """A batch was taken by the upstream."""
        if batch is not None:
            for chunk in batch.chunks:
                self.buffer.settle([chunk], Fate.DELIVERED)
            self.flying.remove(batch)
            self.settled[batch.lane] += names(batch)

    @rule(batch=consumes(batches))
    def put_back(self, batch: Batch | None) -> None:
        """A batch comes back to the front of its lane, before what it had passed; none of that
        shares an id with it.
        """
        if batch is not None:
            self.buffer.queue(batch.lane).put_back(batch.chunks)
            self.flying.remove(batch)
            self.waiting[batch.lane] = names(batch) + self.waiting[batch.lane]

    @invariant()
    def queues_are_as_they_should_be(self) -> None:
        """Each lane's queue holds the model's events, and the buffer's sums are exact. Events that
        share no id may change places.
        """
        cost = sum(chunk.cost for batch in self.flying for chunk in batch.chunks)
        for lane in LANES:
            queue = self.buffer.queue(lane)
            chunks = [queue.popleft() for _ in range(len(queue))]
            queue.put_back(chunks)
            waiting = [name for chunk in chunks for name in named(chunk)]
            assert sorted(waiting) == sorted(self.waiting[lane])
            self.waiting[lane] = waiting
            assert all(
                chunk.ids == frozenset().union(*[self.ids[name] for name in named(chunk)])
                for chunk in chunks
            )
            flying = sum(batch.count for batch in self.flying if batch.lane == lane)
            assert self.buffer.count(lane) == len(self.waiting[lane]) + flying
            cost += sum(chunk.cost for chunk in chunks)
        assert self.buffer.statistics().bytes == cost

    @invariant()
    def order_is_kept_per_id(self) -> None:
        """The events of an id are settled in order of receipt, and those in flight come before
        those that wait.
        """
        for lane in LANES:
            flying = [name for batch in self.flying if batch.lane == lane for name in names(batch)]
            for person in PEOPLE:
                theirs = [
                    name
                    for name in self.settled[lane] + flying + self.waiting[lane]
                    if person in self.ids[name]
                ]
                assert theirs == sorted(theirs, key=lambda name: int(name[1:]))

    def teardown(self) -> None:
        """In the end nothing is missing: everything that is left comes out,
        and the buffer is empty.
        """
        for batch in list(self.flying):
            self.settle(batch)
        for lane in LANES:
            while self.waiting[lane]:
                self.settle(self.take(lane, set(), None))
        assert self.buffer.statistics().bytes == 0
        assert sorted(name for lane in LANES for name in self.settled[lane]) == sorted(self.ids)


def names(batch: Batch) -> list[str]:
    """The batch's events by name."""
    return [name for chunk in batch.chunks for name in named(chunk)]


def named(chunk: Chunk) -> list[str]:
    """The chunk's events by name."""
    return [str(msgspec.json.decode(raw)["event"]) for raw in chunk.events()]


TestBatchingModel = BatchingModel.TestCase
TestBatchingModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
