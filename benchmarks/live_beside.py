"""Live events through a daemon, without an import beside them and with one (`--via`): how long
each takes from its sender to the sink.

The daemon has the first core to itself; sender, sink and the import share the second, where the
import gives way to both (`nice`): what is measured is the daemon's doing, not which program of the
benchmark the system lets run first.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from benchmarks.arrivals import ArrivalUpstream, arrival_upstream
from benchmarks.bodies import Variant, ring
from benchmarks.exports import BEGINNING, Export, write
from benchmarks.imports import importing
from benchmarks.load import Load
from benchmarks.processes import BenchmarkError, Program, pinned
from benchmarks.report import percentile
from benchmarks.targets import Machine, Target

NAME: Final = "import-via"
RATE: Final = 1000
CONNECTIONS: Final = 64
RING: Final = 400_000
"""Bytes of different live events."""
SECONDS: Final = 60.0
IMPORT_RATE = "unlimited"
"""As it is typed: the hard case."""
RECORDS: Final = 250_000
"""In each file of the import."""
FILES: Final = 16
"""At most so many, one after the other in one import, so that it goes on for as long as live
events come.
"""
ALLOWED: Final = 2.0
"""How much longer the slowest percent of live events may take beside the import."""
NICE: Final = 10
START: Final = 300.0
"""Seconds in which the import's first events have to arrive: it looks at its whole source first."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How long live events took, in seconds."""

    events: int
    arrived: int
    median: float
    p99: float
    imported: int = 0
    """Events of the import that arrived meanwhile."""


@dataclass(frozen=True, slots=True)
class ViaResult:
    """Without an import, and beside one."""

    name: str
    alone: Delivery
    beside: Delivery
    seconds: float

    @property
    def ratio(self) -> float:
        """Of the slowest percent."""
        return self.beside.p99 / self.alone.p99

    @property
    def good(self) -> bool:
        """Whether every live event arrived, about as soon as without the import, which
        did go on.
        """
        all_there = all(run.arrived == run.events for run in (self.alone, self.beside))
        return all_there and self.ratio <= ALLOWED and self.beside.imported > 0


def measure_via(
    target: Target, machine: Machine, seconds: float = SECONDS, files: int = FILES
) -> ViaResult:
    """Send live events for so long without an import, and again beside one. Takes some minutes.
    Raises `BenchmarkError`.
    """
    with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as folder:
        _write_days(Path(folder), files)
        with _daemon(target, machine) as sink:
            alone = _live(target, sink, machine, seconds)
        where = ["--via", f"http://127.0.0.1:{target.port}", "--rate", IMPORT_RATE]
        with (
            _daemon(target, machine) as sink,
            importing(Path(folder), machine.load_core, where, nice=NICE) as program,
        ):
            _wait_for_import(sink, program)
            before = sink.events()
            beside = _live(target, sink, machine, seconds, before)
            if program.has_ended:
                raise BenchmarkError(
                    "the import came to its end before the live events did: it needs more files"
                )
    return ViaResult(NAME, alone, beside, seconds)


def _write_days(folder: Path, days: int) -> None:
    """A file a day: the events of the first day again, at other times."""
    first = folder / "00.jsonl"
    write(Export.NATIVE, first, RECORDS)
    lines = first.read_bytes()
    today = b'"timestamp":"%b' % BEGINNING.date().isoformat().encode()
    for day in range(1, days):
        date = (BEGINNING + timedelta(days=day)).date().isoformat()
        (folder / f"{day:02}.jsonl").write_bytes(
            lines.replace(today, b'"timestamp":"%b' % date.encode())
        )


def via_line(result: ViaResult) -> str:
    """The measurement in a line."""
    alone = result.alone
    beside = result.beside
    return (
        f"{result.name}: {RATE:,} live events/s for {result.seconds:.0f} s: delivered after "
        f"{alone.median:.2f} s (median), "
        f"{alone.p99:.2f} s (99th percentile); beside an import of "
        f"{beside.imported / result.seconds:,.0f} events/s after "
        f"{beside.median:.2f} s, {beside.p99:.2f} s: {result.ratio:.2f} times as long, at most "
        f"{ALLOWED:g} is wanted; "
        f"{alone.events + beside.events - alone.arrived - beside.arrived} lost: "
        f"{'good' if result.good else 'NOT GOOD'}"
    )


@contextlib.contextmanager
def _daemon(target: Target, machine: Machine) -> Iterator[ArrivalUpstream]:
    with (
        arrival_upstream(target.sink_port, machine.load_core) as sink,
        target.running(machine.target_core),
    ):
        yield sink


def _live(
    target: Target, sink: ArrivalUpstream, machine: Machine, seconds: float, imported: int = 0
) -> Delivery:
    with pinned(machine.load_core):
        tally = Load(
            ring(Variant.STAMPED, 1, limit=RING, numbered=True), CONNECTIONS, target.port, rate=RATE
        ).run(seconds)
    arrived = sink.arrivals(tally.accepted)
    took = [at - (tally.began + number / RATE) for number, at in arrived.items()]
    everything = sink.events() - imported - len(arrived)
    return Delivery(
        round(seconds * RATE),
        len(arrived),
        percentile(took, 0.5),
        percentile(took, 0.99),
        everything,
    )


def _wait_for_import(sink: ArrivalUpstream, program: Program) -> None:
    until = time.monotonic() + START
    while not sink.events():
        if program.has_ended or time.monotonic() > until:
            raise BenchmarkError("the import sends nothing")
        time.sleep(0.1)
