"""A lane's queue: its order, and its sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Chunk, Lane
from forwarder.core.lanes import LaneQueue

LANE = Lane("phc_queuequeue123456")


def chunk(number: int, count: int = 1) -> Chunk:
    """A chunk that can be told from others."""
    return Chunk(LANE, b",".join([b'{"n":%d}' % number] * count), count, frozenset(), float(number))


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


@given(st.lists(st.one_of(st.integers(1, 5), st.none(), st.lists(st.integers(1, 4), min_size=1, max_size=3))))
def test_it_is_a_line_whose_sums_are_right(steps: list[int | list[int] | None]) -> None:
    """Whatever is appended (a count), taken (None) and put back (a list): the order is a plain list's, and the sums are its chunks'."""
    queue, model = LaneQueue(), list[Chunk]()
    for number, step in enumerate(steps):
        if isinstance(step, int):
            model.append(chunk(number, step))
            queue.append(model[-1])
        elif step is None:
            if model:
                assert queue.popleft() is model.pop(0)
        else:
            back = [chunk(number, count) for count in step]
            model[:0] = back
            queue.put_back(back)
        assert (len(queue), queue.events) == (len(model), sum(each.count for each in model))
        assert queue.size == sum(len(each.data) + 1 for each in model)
    assert [queue.popleft() for _ in range(len(queue))] == model
