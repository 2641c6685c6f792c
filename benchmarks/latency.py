"""Latencies at half of the greatest load: of answers, and from receipt to delivery, with the
memory buffer and on disk.

The greatest load is what the daemon takes when each connection sends its next request as soon as
the last one is answered. Then requests come at half of that rate, each at its time whatever the
daemon does, and each latency counts from then (`load.py`). Settings are the defaults; only the
buffer's kind differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.arrivals import ArrivalUpstream, arrival_upstream
from benchmarks.bodies import Request, Variant, ring
from benchmarks.cases import CONNECTIONS
from benchmarks.charts import Axis, Line, Panel, picture
from benchmarks.load import Load
from benchmarks.processes import BenchmarkError, Program, pinned
from benchmarks.report import percentile
from benchmarks.targets import Machine, Target

NAME: Final = "latency"
BODIES: Final = (1, 50)
"""Events in a body."""
LOW: Final = 1000.0
"""Requests a second of a load so low that only their age closes batches."""
WARM_UP: Final = 2.0
"""Seconds of the greatest load, before its measurement and for it."""
NICE: Final = 10
"""The sink gives way to the load generator, with which it shares a core: requests are sent when
they are due.
"""
BATCH_AGE: Final = 1.0
"""`batch.max_age`, by default."""
ALLOWED: Final = 0.05
"""Seconds by which the slowest percent may be delivered later than that."""
SHARES: Final = {0.5: "p50", 0.99: "p99", 0.999: "p99.9"}
NINES: Final = [number / 10 for number in range(3, 41)]
"""Where the picture's lines have points: at 2, the share is 0.99, at 3 it is 0.999."""

Percentiles: TypeAlias = dict[float, float]
"""Seconds by the share of requests that took no longer: of `SHARES` and at `NINES`."""


@dataclass(slots=True)
class LatencySeries:
    """One load: seconds from when each request was due to its answer, and to its last event's
    arrival upstream.
    """

    events: int
    """In a body."""
    disk: bool
    greatest: float = 0.0
    """Requests a second that the daemon took at most."""
    rate: float = 0.0
    """Requests a second of the measured load; half of the greatest, unless it was given."""
    busy: float = 0.0
    """CPU-seconds of the daemon in a second of it."""
    delays: Percentiles = field(default_factory=dict)
    """Until it was sent: of the answer's time, what was spent on waiting for a connection or for
    the load generator.
    """
    answers: Percentiles = field(default_factory=dict)
    deliveries: Percentiles = field(default_factory=dict)

    @property
    def label(self) -> str:
        """For people."""
        low = ", low" if not self.greatest else ""
        return (
            f"{'1 event' if self.events == 1 else f'{self.events} events'}, "
            f"{'disk' if self.disk else 'memory'}{low}"
        )

    @property
    def good(self) -> bool:
        """Whether all but the slowest percent were delivered as soon as wanted."""
        return self.deliveries[0.99] < BATCH_AGE + ALLOWED


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """All of them."""

    name: str
    series: list[LatencySeries]

    @property
    def good(self) -> bool:
        """Whether each is."""
        return all(measured.good for measured in self.series)


def all_series() -> list[LatencySeries]:
    """Each size of bodies with each buffer, and the low load."""
    low = [LatencySeries(1, disk, rate=LOW) for disk in (False, True)]
    return [*(LatencySeries(events, disk) for events, disk in product(BODIES, (False, True))), *low]


@dataclass(frozen=True, slots=True)
class LatencyMeasurement:
    """How it is measured: for so many seconds, after a warm-up, each time with a daemon and a sink
    of its own.
    """

    target: Target
    machine: Machine
    seconds: float
    warm_up: float = WARM_UP

    def measure(self, series: LatencySeries) -> None:
        """Measure into `series`. Raises `BenchmarkError`."""
        target = self.target
        machine = self.machine
        with (
            arrival_upstream(target.sink_port, machine.load_core, nice=NICE) as sink,
            target.running(machine.target_core, "gzip", disk=series.disk) as program,
            pinned(machine.load_core),
        ):
            requests = ring(Variant.STAMPED, series.events, numbered=True)
            self._warm_up(series, sink, requests)
            self._send(series, sink, program, requests)

    def _warm_up(
        self, series: LatencySeries, sink: ArrivalUpstream, requests: list[Request]
    ) -> None:
        """Bring it up to speed, find the rate if it isn't given, and wait until all has arrived."""
        load = Load(
            requests, CONNECTIONS[series.events], self.target.port, rate=series.rate or None
        )
        accepted = load.run(self.warm_up).accepted
        if not series.rate:
            greatest = load.run(self.warm_up)
            accepted += greatest.accepted
            series.greatest = greatest.requests / greatest.seconds
            series.rate = series.greatest / 2
        sink.wait_for(accepted)
        sink.arrivals(1)

    def _send(
        self,
        series: LatencySeries,
        sink: ArrivalUpstream,
        program: Program,
        requests: list[Request],
    ) -> None:
        cpu = program.cpu_seconds()
        tally = Load(requests, CONNECTIONS[series.events], self.target.port, rate=series.rate).run(
            self.seconds
        )
        series.busy = (program.cpu_seconds() - cpu) / tally.seconds
        program.check()
        if set(tally.statuses) != {200} or tally.broken:
            raise BenchmarkError(
                f"the daemon doesn't accept half of its load: {dict(tally.statuses)}, "
                f"{tally.broken} connections broken"
            )
        arrivals = sink.arrivals(tally.requests)
        if len(arrivals) < tally.requests:
            raise BenchmarkError(
                f"{tally.requests - len(arrivals)} of {tally.requests} requests' events did not "
                "arrive"
            )
        series.delays = percentiles(tally.delays)
        series.answers = percentiles(tally.latencies)
        series.deliveries = percentiles(
            [at - (tally.began + number / series.rate) for number, at in arrivals.items()]
        )


def measure_latency(target: Target, machine: Machine, seconds: float) -> LatencyResult:
    """Measure all series, for so long each. Raises `BenchmarkError`."""
    measurement = LatencyMeasurement(target, machine, seconds)
    series = all_series()
    for measured in series:
        measurement.measure(measured)
    return LatencyResult(NAME, series)


def percentiles(values: list[float]) -> Percentiles:
    """Those of some latencies, in seconds."""
    values = sorted(values)
    return {share: percentile(values, share) for share in (*SHARES, *map(_share, NINES))}


def _share(nines: float) -> float:
    return 1.0 - float(10.0**-nines)


def latency_table(result: LatencyResult) -> str:
    """The figures as a Markdown table, and the verdict."""
    head = ["bodies, buffer", "requests/s", "core busy", "sent p99"]
    cells = [
        [
            *head,
            *(f"answer {name}" for name in SHARES.values()),
            *(f"delivery {name}" for name in SHARES.values()),
        ]
    ]
    for measured in result.series:
        answers = [f"{1000 * measured.answers[share]:.1f} ms" for share in SHARES]
        deliveries = [f"{measured.deliveries[share]:.3f} s" for share in SHARES]
        cells.append(
            [
                measured.label,
                f"{measured.rate:,.0f}",
                f"{measured.busy:.2f}",
                f"{1000 * measured.delays[0.99]:.1f} ms",
                *answers,
                *deliveries,
            ]
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    cells.insert(1, ["-" * width for width in widths])
    lines = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    wanted = (
        f"delivery p99 under {BATCH_AGE + ALLOWED:.2f} s is wanted: "
        f"{'good' if result.good else 'NOT GOOD'}"
    )
    return "\n".join([*lines, f"{result.name}: {wanted}"])


def draw_latency(result: LatencyResult, path: Path) -> None:
    """Write the picture: latency by percentile, of answers and of deliveries."""
    x = Axis(0.3, 4.0, [(0.30103, "p50"), (1, "p90"), (2, "p99"), (3, "p99.9"), (4, "p99.99")])
    answers = Axis(
        0.1,
        1000,
        [(0.1, "0.1 ms"), (1, "1 ms"), (10, "10 ms"), (100, "100 ms"), (1000, "1 s")],
        logarithmic=True,
    )
    deliveries = Axis(0, 1.6, [(value / 10, f"{value / 10:.1f} s") for value in range(0, 17, 4)])
    panels = [
        Panel(
            "From when a request was due to its answer",
            x,
            answers,
            [_line(measured.label, measured.answers, 1000) for measured in result.series],
        ),
        Panel(
            "From when a request was due to its arrival upstream",
            x,
            deliveries,
            [_line(measured.label, measured.deliveries) for measured in result.series],
        ),
    ]
    path.write_text(picture("Latency at half of the greatest load, by percentile", panels))


def _line(name: str, values: Percentiles, unit: float = 1.0) -> Line:
    return Line(name, [(nines, unit * values[_share(nines)]) for nines in NINES])
