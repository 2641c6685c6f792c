"""A backlog on disk: the upstream is down until a buffer of 1 GB is full, the daemon is killed,
and starts again with the upstream back.

How long until it listens, and how fast the backlog goes out: events for each CPU-second, and for
each second.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.bodies import Variant, ring
from benchmarks.load import Load
from benchmarks.memory import with_keys
from benchmarks.processes import BenchmarkError, pinned
from benchmarks.targets import Machine, Target
from benchmarks.upstream import upstream

BUFFER_BYTES: Final = 1_000_000_000
LISTENING: Final = 2.0
"""Seconds from the start within which it must listen."""

ROUND: Final = 2.0
ROUNDS: Final = 60
EVENTS: Final = 50
CONNECTIONS: Final = 32
LONGEST_PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class BacklogResult:
    """What was found."""

    name: str
    accepted: int
    """Events answered 200 before the kill."""
    disk: int
    """Bytes of its files."""
    listening: float
    """Seconds from the start until it listened."""
    arrived: int
    seconds: float
    """From then until everything had arrived."""
    cpu: float
    """CPU-seconds that this took, those of the start included."""
    peak: int
    """Resident bytes, at any time after the start."""

    @property
    def good(self) -> bool:
        """Quick to listen, and nothing lost; nothing was sent before, so
        nothing can have come twice.
        """
        return self.listening <= LISTENING and self.accepted <= self.arrived


def measure_backlog(name: str, target: Target, machine: Machine) -> BacklogResult:
    """Fill, kill, start, drain. Blocks for a minute or so."""
    with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as folder:
        state = Path(folder)
        accepted = _fill(target, machine, state)
        disk = sum(file.stat().st_blocks * 512 for file in state.rglob("*") if file.is_file())
        with upstream(target.sink_port, machine.load_core) as sink:
            began = time.monotonic()
            with target.running(
                machine.target_core, max_bytes=str(BUFFER_BYTES), disk=True, state=state
            ) as program:
                listening = time.monotonic() - began
                arrived = sink.wait_for(accepted)
                seconds = time.monotonic() - began - listening
                return BacklogResult(
                    name,
                    accepted,
                    disk,
                    listening,
                    arrived,
                    seconds,
                    program.cpu_seconds(),
                    program.peak_memory(),
                )


def _fill(target: Target, machine: Machine, state: Path) -> int:
    """Load until the buffer is full; then the target is killed. How many events were
    answered 200.
    """
    load = Load(
        with_keys(ring(Variant.STAMPED, EVENTS)),
        CONNECTIONS,
        target.port,
        longest_pause=LONGEST_PAUSE,
    )
    accepted = 0
    with (
        target.running(
            machine.target_core, max_bytes=str(BUFFER_BYTES), disk=True, state=state
        ) as program,
        pinned(machine.load_core),
    ):
        for _ in range(ROUNDS):
            tally = load.run(ROUND)
            accepted += tally.accepted
            if tally.statuses.get(200, 0) < tally.statuses.get(503, 0):
                break
        else:
            raise BenchmarkError("the buffer doesn't get full")
        program.kill()
    return accepted


def backlog_line(result: BacklogResult) -> str:
    """The measurement, in a line."""
    return (
        f"{result.name}: {result.accepted:,} events in {result.disk / 1e6:,.0f} MB of files; "
        f"listens after {result.listening:.2f} s; "
        f"{result.arrived:,} events arrived in {result.seconds:.1f} s "
        f"({result.arrived / result.seconds:,.0f}/s, "
        f"{result.arrived / result.cpu:,.0f} a CPU-second), peak {result.peak / 1e6:.0f} MB: "
        f"{'good' if result.good else 'NOT GOOD'}"
    )
