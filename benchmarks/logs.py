"""Logs: the whole daemon follows a file from its beginning, beside the bare server and the bare
loops of `log_stages`.

A file is made beforehand. It appears where the daemon follows it once that listens and has nothing
to do; the measurement begins then, and ends when the event of every line has arrived.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bodies import API_KEY
from benchmarks.cases import matching
from benchmarks.events import MARKER
from benchmarks.log_stages import LogFloor, LogKind
from benchmarks.processes import core_seconds
from benchmarks.profiling import profiled
from benchmarks.report import measured
from benchmarks.targets import Machine, Target
from benchmarks.throughput import Figure
from benchmarks.upstream import upstream

LINES: Final = 1_000_000
"""In each file."""
PROFILED: Final = 8.0
"""Seconds of a profile: less than reading a file takes."""
LOOP: Final = "of_loop"
_EVENT: Final = f'"{MARKER.decode()} line"'
_SETTINGS: Final[dict[LogKind, dict[str, Any]]] = {
    LogKind.JSON: {
        "format": "json",
        "mapping": {"event": _EVENT, "distinct_id": ".user", "timestamp": ".time"},
    },
    LogKind.ACCESS: {
        "format": "combined",
        "mapping": {"event": _EVENT, "distinct_id": ".remote_addr"},
    },
}


@dataclass(frozen=True, slots=True)
class LogCase:
    """One measurement."""

    kind: LogKind
    loop: LogFloor
    """What it is also shown beside."""
    share: float | None
    """Of the bare server's requests that is to be reached; None: only told."""

    @property
    def name(self) -> str:
        """For people, and for `--case`."""
        return f"logs-{self.kind}"


CASES: Final = (
    LogCase(LogKind.JSON, LogFloor.MSGSPEC, share=0.57),
    LogCase(LogKind.ACCESS, LogFloor.REGEX, share=0.57),
)


def select(patterns: list[str]) -> list[LogCase]:
    """The cases whose names match any of `patterns`; all if none are given."""
    return matching(CASES, patterns)


@dataclass(frozen=True, slots=True)
class Following:
    """How to measure: who runs where, and the files, one of each kind."""

    machine: Machine
    target: Target
    files: dict[LogKind, Path]
    profile: Path | None = None

    def case(self, case: LogCase, figure: Figure, lines: int = LINES) -> None:
        """Measure a case once more, into `figure`. `lines`: of its file."""
        core = self.machine.target_core
        file = self.files[case.kind]
        followed = file.with_name(f"{file.stem}.followed")
        source = {"name": "app", "path": str(followed), "api_key": API_KEY, **_SETTINGS[case.kind]}
        with (
            upstream(self.target.sink_port, self.machine.load_core) as sink,
            self.target.running(
                core, more={"FORWARDER_SOURCES__LOGS": json.dumps([source])}
            ) as program,
        ):
            cpu = program.cpu_seconds()
            on_core = core_seconds(core)
            began = time.monotonic()
            os.link(file, followed)
            try:
                with profiled(
                    program, self.profile and self.profile / f"{case.name}.svg", PROFILED
                ):
                    arrived = sink.wait_for(lines)
                program.check()
                used = program.cpu_seconds() - cpu
                on_core = core_seconds(core) - on_core
                seconds = time.monotonic() - began
            finally:
                followed.unlink()
        figure.add(arrived, used, on_core, seconds, lines)


def whole_row(case: LogCase, figure: Figure, server: Figure, loop: Figure) -> dict[str, Any]:
    """One case's line. `server`: the bare server; `loop`: the bare loop."""
    of_loop = (
        f"{figure.rate / loop.rate:.2f} of the {case.loop}, which does {loop.rate:,.0f} lines/CPU-s"
    )
    return {**measured(case.name, figure, "bare server", server, case.share), LOOP: of_loop}
