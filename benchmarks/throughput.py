"""Throughput: events that the sink counted, divided by the CPU-seconds that the target's process
tree took for them.

A measurement begins and ends when all is quiet: whatever was accepted has arrived, so that the CPU
time and the events belong together.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.bodies import Request, Shape, Variant, ring
from benchmarks.cases import CONNECTIONS, Case, Floor, Rules
from benchmarks.load import Load, Tally
from benchmarks.nginx import nginx
from benchmarks.processes import (
    BenchmarkError,
    Program,
    at_least_a_tick,
    core_seconds,
    free_port,
    pinned,
)
from benchmarks.profiling import profiled
from benchmarks.split import split_floor
from benchmarks.targets import Machine, Target
from benchmarks.upstream import Upstream, bare_server, upstream

WARM_UP: Final = 0.7
"""Seconds of load before the measured one."""


@dataclass(slots=True)
class Figure:
    """What a case reached, over all repetitions."""

    rates: list[float] = field(default_factory=list)
    """Events per CPU-second."""
    busy: list[float] = field(default_factory=list)
    """CPU-seconds of the target per second of load: near 1 where the load saturates it."""
    others: list[float] = field(default_factory=list)
    """CPU-seconds of anything else on the target's core per second of load:
    near 0 on a quiet machine.
    """
    statuses: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    """Events that were accepted and did not arrive."""

    @property
    def rate(self) -> float:
        """The median of the repetitions."""
        return median(self.rates)

    def add(self, events: int, used: float, core: float, seconds: float, wanted: int) -> None:
        """One more repetition: events that arrived of those `wanted`; CPU-seconds of the target,
        and of its core, in so many seconds.
        """
        self.rates.append(events / at_least_a_tick(used))
        self.busy.append(used / seconds)
        self.others.append(max(0.0, core - used) / seconds)
        self.lost += max(0, wanted - events)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to measure."""

    machine: Machine
    target: Target
    seconds: float
    shape: Shape = Shape.ENVELOPE
    path: str = ""
    profile: Path | None = None
    pictures: Path | None = None
    """Where pictures are written."""

    def case(self, case: Case, figure: Figure) -> None:
        """Measure `case` once more, into `figure`."""
        machine = self.machine
        with (
            upstream(self.target.sink_port, machine.load_core) as sink,
            self._running(case) as (program, port),
            pinned(machine.load_core),
        ):
            load = Load(
                _ring(
                    case.variant, case.events, self.shape, self.path, rare=case.rules is Rules.WHERE
                ),
                CONNECTIONS[case.events],
                port,
            )
            sink.wait_for(_all_taken(load.run(WARM_UP)) * case.copies)
            with profiled(
                program, self.profile and self.profile / f"{case.name}.svg", self.seconds
            ):
                self._measure(program, load, sink, figure, case.copies)

    @contextlib.contextmanager
    def _running(self, case: Case) -> Iterator[tuple[Program, int]]:
        """What a case measures, and where it listens."""
        core = self.machine.target_core
        target = self.target
        if case.proxied:
            with nginx(target.sink_port, core) as proxy:
                yield proxy
            return
        more = dict(case.rules.settings)
        if case.copies > 1:
            more |= target.copying(case.copies, case.compression, by_name=case.by_name)
        with target.running(
            core, case.compression, case.ordering, disk=case.disk, workers=case.workers, more=more
        ) as program:
            yield program, target.port

    def _measure(
        self, program: Program, load: Load, sink: Upstream, figure: Figure, copies: int
    ) -> None:
        events = sink.events()
        cpu = program.cpu_seconds()
        core = core_seconds(self.machine.target_core)
        tally = load.run(self.seconds)
        busy = program.cpu_seconds() - cpu
        core = core_seconds(self.machine.target_core) - core
        arrived = (sink.wait_for(events + _all_taken(tally) * copies) - events) // copies
        program.check()
        figure.rates.append(arrived / (program.cpu_seconds() - cpu))
        figure.busy.append(busy / tally.seconds)
        figure.others.append(max(0.0, core - busy) / tally.seconds)
        figure.statuses += tally.statuses
        figure.lost += max(0, tally.accepted - arrived)

    def floor(self, floor: Floor, variant: Variant, events: int, figure: Figure) -> None:
        """Measure the floor of a case once more, into `figure`."""
        requests = _ring(variant, events, Shape.ENVELOPE, "")
        if floor is Floor.SPLIT:
            with pinned(self.machine.target_core):
                figure.rates.append(split_floor(requests, self.seconds))
        else:
            self._bare(requests, CONNECTIONS[events], figure)

    def _bare(self, requests: list[Request], connections: int, figure: Figure) -> None:
        port = free_port()
        load = Load(requests, connections, port)
        with bare_server(port, self.machine.target_core) as program, pinned(self.machine.load_core):
            load.run(WARM_UP)
            cpu = program.cpu_seconds()
            tally = load.run(self.seconds)
            used = program.cpu_seconds() - cpu
        figure.rates.append(_all_taken(tally) / at_least_a_tick(used))
        figure.busy.append(used / tally.seconds)


def measure_here(core: int, work: Callable[[], int], figure: Figure) -> None:
    """Do some work on the core, in this process, and measure it once more; it gives its events."""
    with pinned(core):
        cpu = time.process_time()
        on_core = core_seconds(core)
        began = time.monotonic()
        events = work()
        seconds = time.monotonic() - began
        used = time.process_time() - cpu
        on_core = core_seconds(core) - on_core
    figure.add(events, used, on_core, seconds, events)


@functools.cache
def _ring(
    variant: Variant, count: int, shape: Shape, path: str, *, rare: bool = False
) -> list[Request]:
    return ring(variant, count, shape, path, rare=rare)


def _all_taken(tally: Tally) -> int:
    """The events that were accepted. Raises `BenchmarkError` if any request was answered in a way
    that only a mistake explains.
    """
    unexpected = {
        status: count for status, count in tally.statuses.items() if status >= 300 and status != 503
    }
    if unexpected or not tally.accepted:
        raise BenchmarkError(
            f"the target does not take the load: answers {dict(tally.statuses)}, {tally.broken} "
            "broken connections"
        )
    return tally.accepted
