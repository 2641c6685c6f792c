"""Memory: the upstream is down while senders go on. The target must stay within its bound, refuse
what it can't hold, and lose nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.bodies import API_KEY, Request, Variant, ring
from benchmarks.dribble import Dribbler
from benchmarks.load import Load
from benchmarks.processes import pinned
from benchmarks.targets import Machine, Target
from benchmarks.upstream import Upstream, upstream

BUFFER_BYTES: Final = 64_000_000
ALLOWANCE: Final = 100_000_000
"""Resident bytes that may be taken beside the buffer: the interpreter, its libraries, and requests
under way.
"""

DRIBBLERS: Final = 200
DRIBBLED_EVENTS: Final = 33_000
"""In a body of about 19 MB."""

LANES: Final = 3
"""Project keys among the senders: one alone may not fill the buffer."""

LONGEST_PAUSE: Final = 0.05
"""Seconds that a sender waits after a 503, whatever Retry-After says: this load does not let go."""

RECOVERY: Final = 120.0
"""Seconds without any arrival after which nothing more is expected: longer than the longest wait
between retries.
"""


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """What a target did while the upstream was down, and when it came back."""

    name: str
    peak: int
    """Resident bytes, at any time."""
    peak_down: int
    """Resident bytes, before the upstream returned."""
    accepted: int
    """Events answered 200."""
    uncertain: int
    """Events whose request was never answered."""
    arrived: int
    answers: dict[int, int]
    """Requests, by status."""
    recovery: float
    """Seconds from the upstream's return until everything had arrived."""
    allowed: int = BUFFER_BYTES + ALLOWANCE

    @property
    def good(self) -> bool:
        """Within the bound, refusing what it could not hold, with everything
        delivered and nothing twice.
        """
        complete = self.accepted <= self.arrived <= self.accepted + self.uncertain
        return self.peak < self.allowed and self.answers.get(503, 0) > 0 and complete


def measure_memory(name: str, target: Target, machine: Machine, seconds: float) -> MemoryResult:
    """Run one of `cases.MEMORY`: `seconds` of full load without an upstream, then the upstream
    again. Blocks.
    """
    requests, connections = _load(name)
    load = Load(requests, connections, target.port, longest_pause=LONGEST_PAUSE)
    with (
        target.running(machine.target_core, max_bytes=str(BUFFER_BYTES)) as program,
        pinned(machine.load_core),
    ):
        with _dribbling(target.port, DRIBBLERS if name == "memory-dribble" else 0) as dribbler:
            tally = load.run(seconds)
        program.check()
        peak_down = program.peak_memory()
        with upstream(target.sink_port, machine.load_core) as sink:
            arrived, recovery = _recover(sink, tally.accepted + dribbler.accepted)
        peak = program.peak_memory()
    return MemoryResult(
        name=name,
        peak=peak,
        peak_down=peak_down,
        accepted=tally.accepted + dribbler.accepted,
        uncertain=tally.unanswered + dribbler.unanswered,
        arrived=arrived,
        answers=dict(sorted((tally.statuses + dribbler.statuses).items())),
        recovery=recovery,
    )


def _recover(sink: Upstream, accepted: int) -> tuple[int, float]:
    """Wait for what was accepted; how many events have arrived, and after how many seconds."""
    began = time.monotonic()
    return sink.wait_for(accepted, stalled=RECOVERY), time.monotonic() - began


def _load(name: str) -> tuple[list[Request], int]:
    if name == "memory-tiny":
        return with_keys(ring(Variant.TINY, 1000, limit=2_000_000)), 8
    return with_keys(ring(Variant.STAMPED, 50)), 32


def with_keys(requests: list[Request]) -> list[Request]:
    """The requests, with each of `LANES` project keys of the same length in turn."""
    for number, request in enumerate(requests):
        key = f"{API_KEY[:-1]}{number % LANES}"
        request.data[:] = request.data.replace(API_KEY.encode(), key.encode())
    return requests


@contextlib.contextmanager
def _dribbling(port: int, connections: int) -> Iterator[Dribbler]:
    dribbler = Dribbler(ring(Variant.STAMPED, DRIBBLED_EVENTS, limit=0)[0], connections, port)
    dribbler.start()
    try:
        yield dribbler
    finally:
        dribbler.stop()
