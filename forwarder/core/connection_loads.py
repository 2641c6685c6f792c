"""How many connections each worker of a daemon has, and has accepted: memory that its processes
share, so that each accepts its part.

Two cells for each worker: its connections, or -1 if it takes no part; and its turn, which is one
higher with each connection that it accepts. The first spreads connections that last, the second
those that end at once, of which mostly none is open.

A worker writes its own cells; the supervisor writes -1 there when the worker has ended or doesn't
respond. A cell is read and written as a whole. A figure that is a moment old, or was written twice
at once, only decides who accepts the next connection, so there is no lock, which a stopped process
could hold.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Final

_ABSENT: Final = -1

TOLERANCE: Final = 2
"""How many connections a worker may have more than the one that has fewest, beside a part of the
mean: `_SHARE`.
"""

_SHARE: Final = 16
"""The part of the mean: one connection for each so many."""

TURNS: Final = 4
"""How many connections a worker may accept more than one that doesn't have more."""

_DEBT: Final = 8
"""How many turns a worker catches up with at most, that it missed while it was busy or not there.
"""


class ConnectionLoads:
    """The workers' cells, as the supervisor has them. The memory ends with the last process that
    has it.
    """

    def __init__(self, descriptor: int, workers: int) -> None:
        """`descriptor`: of the memory, from `create_loads` or inherited; this closes it."""
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, workers * 16)
        cells = memoryview(self._memory).cast("q")
        self._connections = cells[::2]
        self._turns = cells[1::2]
        cells.release()

    def close(self) -> None:
        """Nothing may be read or written any more. Processes that have a descriptor of their own
        keep the memory. Safe to call twice.
        """
        if not self._memory.closed:
            self._connections.release()
            self._turns.release()
            self._memory.close()
            os.close(self.descriptor)

    def exclude(self, number: int) -> None:
        """Worker `number` has ended or doesn't respond: the others leave no connections to it
        until it writes again.
        """
        self._connections[number] = _ABSENT

    def write(self, number: int, connections: int, turn: int) -> None:
        """Worker `number` has so many connections, and this turn."""
        self._connections[number] = connections
        self._turns[number] = turn

    def present(self) -> list[tuple[int, int]]:
        """The connections and the turn of each worker that takes part, in
        the order of their numbers.
        """
        both = zip(self._connections.tolist(), self._turns.tolist(), strict=True)
        return [(connections, turn) for connections, turn in both if connections != _ABSENT]


class WorkerLoad:
    """One worker's part of the loads."""

    def __init__(self, descriptor: int, workers: int, number: int) -> None:
        self._loads = ConnectionLoads(descriptor, workers)
        self._number = number
        self._connections = 0
        self._turn = 0
        self._waiting: set[Callable[[], None]] = set()

    def close(self) -> None:
        self._loads.close()

    def write(self, connections: int) -> None:
        """It has so many connections now."""
        before = self._connections
        self._connections = connections
        self._loads.write(self._number, connections, self._turn)
        if self._waiting and connections < before and self.room > 0:
            for callback in list(self._waiting):
                callback()

    def add(self, accepted: int) -> None:
        """It has accepted so many connections."""
        self._turn = max(
            self._turn + accepted,
            max((turn for _, turn in self._loads.present()), default=0) - _DEBT,
        )
        self.write(self._connections + accepted)

    def leave_turn(self) -> None:
        """It leaves a connection to the others: whatever they do with it, none of them is behind
        it then.
        """
        self._turn = min((turn for _, turn in self._loads.present()), default=0)

    @property
    def room(self) -> int:
        """How many connections it may accept before the next one is another worker's. Not positive
        if it is already.
        """
        present = self._loads.present()
        if len(present) < 2:
            return sys.maxsize
        own = self._connections
        mean = sum(connections for connections, _ in present) // len(present)
        least = min(connections for connections, _ in present)
        turn = min(
            (turn for connections, turn in present if connections <= own), default=self._turn
        )
        return min(least + TOLERANCE + mean // _SHARE - own, turn + TURNS - self._turn)

    def wait(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever connections end and there is
        room, until `stop_waiting`.
        """
        self._waiting.add(callback)

    def stop_waiting(self, callback: Callable[[], None]) -> None:
        """Undo `wait`, if it was called."""
        self._waiting.discard(callback)


def create_loads(workers: int) -> ConnectionLoads:
    """Memory for so many workers, none of which takes part yet."""
    descriptor = _open_memory()
    os.ftruncate(descriptor, workers * 16)
    loads = ConnectionLoads(descriptor, workers)
    for number in range(workers):
        loads.exclude(number)
    return loads


def _open_memory() -> int:
    if sys.platform == "linux":
        return os.memfd_create("forwarder-connections")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
