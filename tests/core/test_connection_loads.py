"""Who of several workers leaves the next connection to another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from forwarder.core.connection_loads import TURNS, WorkerLoad, create_loads


class Three:
    """The loads of three workers, and what the workers have of them."""

    def __init__(self) -> None:
        self.loads = create_loads(3)
        self.workers = [WorkerLoad(os.dup(self.loads.descriptor), 3, number) for number in range(3)]

    def close(self) -> None:
        """Close all."""
        self.loads.close()
        for worker in self.workers:
            worker.close()


@pytest.fixture
def three() -> Iterator[Three]:
    """Three workers that have no connections yet, and take no part."""
    made = Three()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("own", "others", "room"),
    [
        (0, [0, 0], 2),
        (2, [0, 0], 0),
        (5, [0, 0], -3),
        (2, [1, 9], 1),
        (3, [1, 9], 0),
        (100, [95, 100], 3),
        (103, [95, 100], 0),
        (1000, [970, 1000], TURNS),
        (1100, [970, 1000], -65),
        (100, [], sys.maxsize),
    ],
)
def test_connections_decide_first(three: Three, own: int, others: list[int], room: int) -> None:
    """A worker leaves a connection to one that has clearly fewer: two, and a sixteenth of the
    mean, is no difference.
    """
    for number, count in enumerate([own, *others]):
        three.workers[number].write(count)
    assert three.workers[0].room == room


def test_turns_decide_among_those_with_equal_connections(three: Three) -> None:
    """Where connections end at once, no matter who has accepted most leaves the next to the others;
    one with fewer connections doesn't.
    """
    one, other, busy = three.workers
    for worker in (one, other):
        worker.write(0)
    busy.write(9)
    for _ in range(TURNS):
        assert one.room > 0
        one.add(1)
        one.write(0)
    assert (one.room, other.room) == (0, 2)
    other.write(1)
    assert one.room > 0
    other.write(0)
    one.leave_turn()
    assert one.room > 0


def test_missed_turns_are_forgotten(three: Three) -> None:
    """A worker that starts, or comes back, isn't given all that the others have
    accepted meanwhile.
    """
    one, back, _ = three.workers
    one.write(0)
    one.add(1000)
    one.write(0)
    back.write(0)
    assert one.room < 0
    back.add(1)
    back.write(0)
    accepted = 0
    while one.room <= 0:
        back.add(1)
        back.write(0)
        accepted += 1
    assert accepted < 10


def test_a_worker_that_is_excluded_counts_again_when_it_writes(three: Three) -> None:
    """One that has ended or doesn't respond is due nothing, and one that
    starts or responds again is.
    """
    one, _, other = three.workers
    one.write(9)
    assert one.room > 0
    other.write(0)
    assert one.room < 0
    three.loads.exclude(2)
    assert one.room > 0
    other.write(1)
    assert three.loads.present() == [(9, 0), (1, 0)]
    assert one.room < 0


def test_a_listener_waiting_for_room_is_called_when_connections_end(three: Three) -> None:
    """Each time that there are fewer and there is room, until it waits no longer."""
    one, other, _ = three.workers
    calls: list[int] = []

    def call() -> None:
        calls.append(one.room)
        one.stop_waiting(call)

    other.write(0)
    one.write(4)
    one.wait(call)
    for count in (3, 2, 1, 0):
        one.write(count)
    assert calls == [1]


def test_processes_share_it(three: Three) -> None:
    """A process that inherits the descriptor sees what this one writes, and the reverse."""
    loads = three.loads
    loads.write(0, 7, 70)
    script = f"""
from forwarder.core.connection_loads import ConnectionLoads
loads = ConnectionLoads({loads.descriptor}, 3)
assert loads.present() == [(7, 70)]
loads.write(2, 5, 50)
"""
    subprocess.run([sys.executable, "-c", script], pass_fds=[loads.descriptor], check=True)
    assert loads.present() == [(7, 70), (5, 50)]
    assert not os.get_inheritable(loads.descriptor)


def test_it_can_be_closed_twice(three: Three) -> None:
    """As all that is closed at the end of a process that may have failed."""
    three.loads.close()
    three.loads.close()
