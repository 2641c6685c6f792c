"""A lane's queue: its order, and its sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.lane_queue import DayQueue, LaneQueue

LANE = Lane("phc_queuequeue123456")
counts = st.integers(1, 5)
"""Of the events of a chunk."""


class DayChunk(Chunk):
    """A chunk with a day."""

    __slots__ = ("day",)
    day: int


def chunk(number: int, count: int = 1) -> Chunk:
    """A chunk that can be distinguished from others, of one of three days, with an ack
    of its own.
    """
    data = b",".join([b'{"n":%d}' % number] * count)
    made = DayChunk(
        LANE, data, count, frozenset(), float(number), ack=Ack(count, lambda _error: None)
    )
    made.day = number % 3
    return made


def test_an_empty_queue_has_nothing() -> None:
    """No length, no oldest, and nothing to take."""
    queue = LaneQueue()
    assert (len(queue), queue.size, queue.events, queue.oldest) == (0, 0, 0, None)
    with pytest.raises(IndexError):
        queue.popleft()


def test_the_oldest_is_the_one_in_front() -> None:
    """Also after it was taken and put back."""
    queue = LaneQueue()
    for number in (1, 2, 3):
        queue.append(chunk(number))
    first = queue.popleft()
    assert queue.oldest == 2.0
    queue.put_back([first])
    assert queue.oldest == 1.0


@pytest.mark.parametrize("kind", [LaneQueue, DayQueue])
@given(data=st.data())
def test_a_queue_keeps_order_and_sums(kind: type[LaneQueue], data: st.DataObject) -> None:
    """Whatever is appended, taken from the front or from the midst, and put back: the order is a
    plain list's, and the sums are its chunks', those of each day too.
    """
    queue = kind()
    model = list[Chunk]()
    for number in range(data.draw(st.integers(0, 20), label="steps")):
        what = data.draw(
            st.sampled_from(["append", "append", "pop", "take", "put back", "withdraw", "remove"]),
            label="what",
        )
        if what == "append":
            model.append(chunk(number, data.draw(counts)))
            queue.append(model[-1])
        elif what == "put back":
            back = [chunk(number, count) for count in data.draw(st.lists(counts, max_size=3))]
            model[:0] = back
            queue.put_back(back)
        elif what == "pop" and model:
            assert queue.popleft() is model.pop(0)
        elif what == "take":
            front_chunks = queue.take(data.draw(st.integers(1, 100)), data.draw(st.integers(1, 10)))
            assert front_chunks == model[: len(front_chunks)]
            del model[: len(front_chunks)]
        elif model:
            chosen = data.draw(st.sets(st.sampled_from(model)), label="chosen")
            if what == "withdraw":
                assert (
                    set(queue.withdraw({queued.ack for queued in chosen if queued.ack is not None}))
                    == chosen
                )
            else:
                queue.remove(max([model.index(queued) + 1 for queued in chosen], default=0), chosen)
            model = [queued for queued in model if queued not in chosen]
        _check_sums(queue, model)
    assert list(queue) == model


def _check_sums(queue: LaneQueue, model: list[Chunk]) -> None:
    assert (len(queue), queue.events, queue.size) == (len(model), *_sums(model))
    if isinstance(queue, DayQueue):
        days = {
            queued.day: [other for other in model if other.day == queued.day] for queued in model
        }
        assert {day: (total.events, total.size) for day, total in queue.days.items()} == {
            day: _sums(day_chunks) for day, day_chunks in days.items()
        }
        assert queue.cost == sum(queued.cost for queued in model)


def _sums(chunks: list[Chunk]) -> tuple[int, int]:
    return sum(queued.count for queued in chunks), sum(len(queued.data) + 1 for queued in chunks)
