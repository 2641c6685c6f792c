"""Imports: their stages in one process, the whole command towards the sink, and one beside live
events (`live_beside`).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.bodies import API_KEY, Request
from benchmarks.cases import matching
from benchmarks.exports import Export, write
from benchmarks.import_stages import bare_once, import_once
from benchmarks.processes import BenchmarkError, Program, core_seconds, pinned, started
from benchmarks.profiling import profiled
from benchmarks.report import measured
from benchmarks.split import split_floor
from benchmarks.targets import Machine, Target
from benchmarks.throughput import Figure, measure_here
from benchmarks.upstream import Upstream, upstream

RECORDS: Final = {Export.NATIVE: 600_000}
OTHER_RECORDS: Final = 150_000
"""In the file of each format."""
IN_A_BODY: Final = 1000
"""Events in each body of the floor of `native`."""
LOOK: Final = 0.02
"""Seconds between two looks at the sink."""
PROFILED: Final = 5.0
LOOKED: Final = "preflight_per_cpu_second"


@dataclass(frozen=True, slots=True)
class ImportCase:
    """One measurement."""

    export: Export
    share: float | None
    """Of the floor that is to be reached; None: only told."""
    compression: str = ""
    """Of the bodies towards the sink, of the whole command; empty: the stages alone."""

    @property
    def name(self) -> str:
        """For people, and for `--case`."""
        return (
            f"import-{self.export}-{self.compression}"
            if self.compression
            else f"import-{self.export}-stages"
        )


CASES: Final = (
    ImportCase(Export.NATIVE, share=0.5),
    ImportCase(Export.AMPLITUDE, share=0.5),
    ImportCase(Export.MIXPANEL, share=0.5),
    ImportCase(Export.SEGMENT, share=0.5),
    ImportCase(Export.CSV, share=0.5),
    ImportCase(Export.MAPPING, share=None),
    ImportCase(Export.NATIVE, share=None, compression="none"),
    ImportCase(Export.NATIVE, share=None, compression="gzip"),
)


def select(patterns: list[str]) -> list[ImportCase]:
    """The cases whose names match any of `patterns`; all if none are given."""
    return matching(CASES, patterns)


@dataclass(slots=True)
class ImportFigure(Figure):
    """What a case reached, over all repetitions."""

    looks: list[float] = field(default_factory=list)
    """Of the whole command: records per CPU-second until the first event arrived, which is its
    start, and its look at all of the source.
    """


@dataclass(frozen=True, slots=True)
class Importing:
    """How to measure: who runs where, and the files, one of each format."""

    machine: Machine
    target: Target
    files: dict[Export, Path]
    seconds: float
    profile: Path | None = None

    def floor(self, export: Export, figure: Figure) -> None:
        """Measure the floor of a format once more, into `figure`."""
        if export is Export.NATIVE:
            with pinned(self.machine.target_core):
                figure.rates.append(split_floor(_bodies(self.files[export]), self.seconds))
        else:
            measure_here(
                self.machine.target_core, partial(bare_once, export, self.files[export]), figure
            )

    def case(self, case: ImportCase, figure: ImportFigure, records: int = 0) -> None:
        """Measure a case once more, into `figure`. `records`: how many its file has, if they
        aren't as many as usual.
        """
        if case.compression:
            self._whole(case, figure, records or _records(case.export))
            return
        measure_here(
            self.machine.target_core,
            partial(import_once, case.export, self.files[case.export]),
            figure,
        )

    def _whole(self, case: ImportCase, figure: ImportFigure, records: int) -> None:
        """The command, from the first event that arrives to the last: its start and its preflight
        aren't part of it.
        """
        path = self.files[case.export]
        core = self.machine.target_core
        with (
            upstream(self.target.sink_port, self.machine.load_core) as sink,
            importing(
                path,
                core,
                ["--upstream", f"http://127.0.0.1:{self.target.sink_port}"],
                case.compression,
            ) as program,
        ):
            before = _wait_beyond(sink, program, 0)
            cpu = program.cpu_seconds()
            on_core = core_seconds(core)
            began = time.monotonic()
            figure.looks.append(records / cpu)
            with profiled(program, self.profile and self.profile / f"{case.name}.svg", PROFILED):
                arrived = _wait_beyond(sink, program, records - 1)
            used = program.cpu_seconds() - cpu
            on_core = core_seconds(core) - on_core
            seconds = time.monotonic() - began
        figure.add(arrived - before, used, on_core, seconds, records - before)


@contextmanager
def exports(cases: Sequence[ImportCase]) -> Iterator[dict[Export, Path]]:
    """The files of these cases, which takes some seconds each; they are gone after the block."""
    with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as folder:
        files: dict[Export, Path] = {}
        for export in {case.export: None for case in cases}:
            files[export] = Path(folder) / f"{export}{export.suffix}"
            write(export, files[export], _records(export))
        yield files


@contextmanager
def importing(
    path: Path, core: int, where: Sequence[str], compression: str = "none", *, nice: int = 0
) -> Iterator[Program]:
    """Run `forwarder import native` of a file until the block ends, without a limit of its rate,
    with a state folder of its own.
    """
    with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as state:
        command = [str(Path(sys.executable).parent / "forwarder"), "import", "native", str(path)]
        command += [
            "--api-key",
            API_KEY,
            "--state",
            state,
            "--rate",
            "unlimited",
            "--yes",
            "--until",
            "2100-01-01",
            *where,
        ]
        command = ["nice", "-n", str(nice), *command] if nice else command
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FORWARDER_")
        }
        environment |= {
            "FORWARDER_UPSTREAM__COMPRESSION": compression,
            "FORWARDER_LOG__LEVEL": "error",
        }
        with started(command, core, environment, quiet=True) as program:
            yield program


def import_row(case: ImportCase, figure: ImportFigure, floor: Figure) -> dict[str, Any]:
    """One case's line."""
    against = "split and join" if case.export is Export.NATIVE else "bare loop"
    looked = round(median(figure.looks)) if figure.looks else None
    return {**measured(case.name, figure, against, floor, case.share), LOOKED: looked}


def _records(export: Export) -> int:
    return RECORDS.get(export, OTHER_RECORDS)


def _bodies(path: Path) -> list[Request]:
    """The first events of a file in bodies as senders make them: about as many bytes as the other
    cases' requests.
    """
    with path.open("rb") as file:
        lines = [line.rstrip(b"\n") for line, _ in zip(file, range(40 * IN_A_BODY), strict=False)]
    starts = range(0, len(lines), IN_A_BODY)
    bodies = [
        b'{"api_key":"%b","batch":[%b]}' % (API_KEY.encode(), b",".join(lines[at : at + IN_A_BODY]))
        for at in starts
    ]
    return [Request(bytearray(b"\r\n\r\n" + body), IN_A_BODY) for body in bodies]


def _wait_beyond(sink: Upstream, program: Program, events: int) -> int:
    """Wait until more events than that have arrived; how many have. Raises `BenchmarkError` if the
    command ends before.
    """
    while (arrived := sink.events()) <= events:
        if program.has_ended:
            arrived = sink.events()
            if arrived <= events:
                raise BenchmarkError(f"{program.name} ended after {arrived:,} events")
            break
        time.sleep(LOOK)
    return arrived
