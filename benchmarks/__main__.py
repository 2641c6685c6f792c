"""The command: `python -m benchmarks`, or `make bench`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.backlog import BacklogResult, backlog_line, measure_backlog
from benchmarks.bodies import Shape, Variant
from benchmarks.cases import BACKLOG, CASES, MEMORY, Case, Floor, select
from benchmarks.exports import Export
from benchmarks.flags import NAME as DECIDE
from benchmarks.flags import DecideResult, decide_line, measure_decide
from benchmarks.imports import CASES as IMPORTS
from benchmarks.imports import LOOKED, ImportCase, ImportFigure, Importing, exports, import_row
from benchmarks.imports import select as select_imports
from benchmarks.kafka import CASES as KAFKA
from benchmarks.kafka import KafkaCase, Reading, broker, kafka_row
from benchmarks.kafka import select as select_kafka
from benchmarks.latency import NAME as LATENCY
from benchmarks.latency import LatencyResult, draw_latency, latency_table, measure_latency
from benchmarks.live_beside import NAME as VIA
from benchmarks.live_beside import ViaResult, measure_via, via_line
from benchmarks.log_stages import CASES as LOG_STAGES
from benchmarks.log_stages import LogFloor, LogKind, LogReading, LogStages, log_files, log_row
from benchmarks.log_stages import select as select_log_stages
from benchmarks.logs import CASES as LOGS
from benchmarks.logs import LINES, LOOP, Following, LogCase, whole_row
from benchmarks.logs import select as select_logs
from benchmarks.memory import MemoryResult, measure_memory
from benchmarks.nginx import MISSING, find_nginx
from benchmarks.outcomes import NAME as OUTCOMES
from benchmarks.outcomes import REQUESTS, OutcomesResult, measure_outcomes, outcomes_table
from benchmarks.passing import NAME as PASSTHROUGH
from benchmarks.passing import PassingResult, measure_passing, passing_line
from benchmarks.processes import BenchmarkError, end_on_signals, free_port
from benchmarks.report import machine, memory_lines, row, table
from benchmarks.stall import NAMES as STALLS
from benchmarks.stall import (
    StallResult,
    measure_kafka_stall,
    measure_rules_stall,
    measure_stall,
    stall_summary,
)
from benchmarks.start import NAME as START
from benchmarks.start import StartResult, measure_start, start_line
from benchmarks.stored import NAME as STORED
from benchmarks.stored import StoredResult, measure_stored, stored_line
from benchmarks.taps import NAME as TAPS
from benchmarks.taps import TapResult, measure_taps, tap_line
from benchmarks.targets import Machine, Target
from benchmarks.throughput import Figure, Plan

SINK_PORT: Final = 18900
"""Where the configurations in benchmarks/peers post to."""

_STALLS: Final = dict(
    zip(STALLS, (measure_stall, measure_rules_stall, measure_kafka_stall), strict=True)
)
OTHERS: Final = (DECIDE, STORED, TAPS, PASSTHROUGH, START, LATENCY, OUTCOMES, *STALLS)
"""What has a measurement of its own."""

OtherResult: TypeAlias = (
    ViaResult
    | StallResult
    | DecideResult
    | StoredResult
    | TapResult
    | PassingResult
    | StartResult
    | LatencyResult
    | OutcomesResult
)

Floors = dict[tuple[Floor, Variant, int], Figure]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The cases to measure."""

    cases: list[Case]
    memory: list[str]
    topics: list[KafkaCase]
    imports: list[ImportCase]
    stages: list[LogStages]
    logs: list[LogCase]
    others: list[str]

    @property
    def empty(self) -> bool:
        """Whether there is none."""
        return not any(
            (
                self.cases,
                self.memory,
                self.topics,
                self.imports,
                self.stages,
                self.logs,
                self.others,
            )
        )


def main() -> int:
    """Measure, and print what was found. 0 if every figure is as wanted, 1 if not, 2 if it could
    not be measured.
    """
    arguments = _arguments()
    end_on_signals()
    chosen = choose(arguments.case, other_program=bool(arguments.command))
    if chosen.empty:
        names = [
            *(case.name for case in CASES),
            *MEMORY,
            *BACKLOG,
            *(case.name for case in (*KAFKA, *IMPORTS)),
            VIA,
            *OTHERS,
        ]
        names += [case.name for case in (*LOG_STAGES, *LOGS)]
        print(f"no such case; there are {', '.join(names)}", file=sys.stderr)
        return 2
    try:
        return _measure(arguments, chosen)
    except BenchmarkError as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 2


def choose(patterns: list[str], *, other_program: bool) -> Chosen:
    """The cases whose names match any of `patterns`, but for those that can't be measured here,
    which are named with the reason.
    """
    cases, memory = select(patterns)
    proxied = [case.name for case in cases if case.proxied]
    if proxied and (other_program or not find_nginx()):
        _say(
            f"{', '.join(proxied)}: skipped, "
            f"{'another program is measured' if other_program else MISSING}"
        )
        cases = [case for case in cases if not case.proxied]
    if other_program:
        return Chosen(cases, memory, [], [], [], [], [])
    others = [
        name
        for name in (VIA, *OTHERS)
        if any(fnmatchcase(name, pattern) for pattern in patterns or ["*"])
    ]
    logs = select_log_stages(patterns), select_logs(patterns)
    return Chosen(cases, memory, select_kafka(patterns), select_imports(patterns), *logs, others)


def _measure(arguments: argparse.Namespace, chosen: Chosen) -> int:
    plan = Plan(
        _cores(),
        _target(arguments),
        arguments.seconds,
        Shape(arguments.shape),
        arguments.path,
        arguments.profile,
        arguments.pictures,
    )
    repeat = arguments.repeat
    rows = _throughput(plan, chosen.cases, repeat) + (
        _kafka(plan, chosen.topics, repeat) if chosen.topics else []
    )
    rows += _imports(plan, chosen.imports, repeat) if chosen.imports else []
    rows += _log_stages(plan, chosen.stages, repeat) if chosen.stages else []
    rows += _logs(plan, chosen.logs, repeat) if chosen.logs else []
    if rows:
        print(table(rows))
        said = [
            f"{row['case']}: preflight {row[LOOKED]:,} records/CPU-s"
            for row in rows
            if row.get(LOOKED)
        ]
        print(*said, *(f"{row['case']}: {row[LOOP]}" for row in rows if row.get(LOOP)), sep="\n")
    results: list[MemoryResult | BacklogResult | OtherResult] = [
        _backlog(plan, name) if name in BACKLOG else _memory(plan, name, arguments.memory_seconds)
        for name in chosen.memory
    ]
    results += [
        _outcomes(plan, arguments.requests) if name == OUTCOMES else _other(plan, name)
        for name in chosen.others
    ]
    if arguments.output:
        whole = {
            "machine": machine(),
            "throughput": rows,
            "memory": [{**asdict(result), "good": result.good} for result in results],
        }
        arguments.output.write_text(json.dumps(whole, indent=2) + "\n")
    below = [row for row in rows if row["lost"] or (row["wanted"] and row["ratio"] < row["wanted"])]
    return 1 if below or not all(result.good for result in results) else 0


def _throughput(plan: Plan, cases: list[Case], repeat: int) -> list[dict[str, Any]]:
    """Measure floors and cases in turn, `repeat` times round, so that a slow minute of the machine
    falls on all of them.
    """
    figures = {case.name: Figure() for case in cases}
    floors: Floors = {(case.floor, case.variant, case.events): Figure() for case in cases}
    for number in range(repeat):
        for floor, figure in floors.items():
            _say(f"round {number + 1} of {repeat}: floor {floor[0]}, {floor[1]}-{floor[2]}")
            plan.floor(*floor, figure)
        for case in cases:
            _say(f"round {number + 1} of {repeat}: {case.name}")
            plan.case(case, figures[case.name])
    return [
        row(
            case,
            figures[case.name],
            floors[case.floor, case.variant, case.events]
            if case.base == case.name
            else figures[case.base],
        )
        for case in cases
    ]


def _kafka(plan: Plan, cases: list[KafkaCase], repeat: int) -> list[dict[str, Any]]:
    """The same of topics, on a broker of its own that ends with the measurement."""
    figures = {case.name: Figure() for case in cases}
    floors = {case.topic: Figure() for case in cases}
    with broker(plan.machine.load_core) as bootstrap:
        reading = Reading(
            plan.machine, plan.target, bootstrap, f"benchmark-{os.urandom(3).hex()}", plan.profile
        )
        _say(f"filling {len(floors)} topics")
        with reading.topics(cases):
            for number in range(repeat):
                for topic, figure in floors.items():
                    _say(f"round {number + 1} of {repeat}: counting {topic.content}, {topic.codec}")
                    reading.floor(topic, figure)
                for case in cases:
                    _say(f"round {number + 1} of {repeat}: {case.name}")
                    reading.case(case, figures[case.name])
    return [kafka_row(case, figures[case.name], floors[case.topic]) for case in cases]


def _imports(plan: Plan, cases: list[ImportCase], repeat: int) -> list[dict[str, Any]]:
    """The same of imports, of files that are made before."""
    figures = {case.name: ImportFigure() for case in cases}
    floors: dict[Export, Figure] = {case.export: Figure() for case in cases}
    _say(f"writing {len(floors)} exports")
    with exports(cases) as files:
        importing = Importing(plan.machine, plan.target, files, plan.seconds, plan.profile)
        for number in range(repeat):
            for export, figure in floors.items():
                _say(f"round {number + 1} of {repeat}: floor of {export}")
                importing.floor(export, figure)
            for case in cases:
                _say(f"round {number + 1} of {repeat}: {case.name}")
                importing.case(case, figures[case.name])
    return [import_row(case, figures[case.name], floors[case.export]) for case in cases]


def _log_stages(plan: Plan, cases: list[LogStages], repeat: int) -> list[dict[str, Any]]:
    """The stages of log sources, of files that are made before."""
    figures = {case.name: Figure() for case in cases}
    floors = {case.name: Figure() for case in cases}
    with log_files([case.kind for case in cases]) as files:
        reading = LogReading(plan.machine.target_core, files)
        for number in range(repeat):
            for case in cases:
                _say(f"round {number + 1} of {repeat}: {case.name}")
                reading.floor(case.kind, case.floor, floors[case.name])
                reading.case(case, figures[case.name])
    return [log_row(case, figures[case.name], floors[case.name]) for case in cases]


def _logs(plan: Plan, cases: list[LogCase], repeat: int) -> list[dict[str, Any]]:
    """The same of the whole daemon."""
    figures = {case.name: Figure() for case in cases}
    server = Figure()
    loops: dict[tuple[LogKind, LogFloor], Figure] = {
        (case.kind, case.loop): Figure() for case in cases
    }
    _say(f"writing {len(loops)} logs")
    with log_files([case.kind for case in cases], LINES) as files:
        following = Following(plan.machine, plan.target, files, plan.profile)
        reading = LogReading(plan.machine.target_core, files)
        for number in range(repeat):
            _say(f"round {number + 1} of {repeat}: floor {Floor.BARE}")
            plan.floor(Floor.BARE, Variant.STAMPED, 1, server)
            for loop, figure in loops.items():
                _say(f"round {number + 1} of {repeat}: {loop[1]}")
                reading.floor(*loop, figure)
            for case in cases:
                _say(f"round {number + 1} of {repeat}: {case.name}")
                following.case(case, figures[case.name])
    return [
        whole_row(case, figures[case.name], server, loops[case.kind, case.loop]) for case in cases
    ]


def _other(plan: Plan, name: str) -> OtherResult:
    measure: dict[str, Callable[[Plan], OtherResult]] = {
        DECIDE: _decide,
        STORED: _stored,
        TAPS: _taps,
        PASSTHROUGH: _passing,
        START: _start,
    }
    measure |= {LATENCY: _latency, VIA: _via}
    return measure[name](plan) if name in measure else _stall(plan, name)


def _decide(plan: Plan) -> DecideResult:
    _say(f"{DECIDE}: a sandbox with many flags")
    result = measure_decide(plan.target.port, plan.machine)
    print(decide_line(result))
    return result


def _stored(plan: Plan) -> StoredResult:
    _say(f"{STORED}: a sandbox with few events stored, then one with many")
    result = measure_stored(plan.target.port, plan.machine)
    print(stored_line(result))
    return result


def _taps(plan: Plan) -> TapResult:
    _say(f"{TAPS}: turns without a tap and with one, for some minutes")
    result = measure_taps(plan.target, plan.machine)
    print(tap_line(result))
    return result


def _passing(plan: Plan) -> PassingResult:
    _say(f"{PASSTHROUGH}: calls for flags, in turn with nginx")
    result = measure_passing(plan.target, plan.machine)
    print(passing_line(result))
    return result


def _start(plan: Plan) -> StartResult:
    _say(f"{START}: the daemon until its first answer, in turn with importing aiohttp")
    result = measure_start(plan.target, plan.machine)
    print(start_line(result))
    return result


def _latency(plan: Plan) -> LatencyResult:
    _say(f"{LATENCY}: half of the greatest load, with each buffer")
    result = measure_latency(plan.target, plan.machine, plan.seconds)
    print(latency_table(result))
    if plan.pictures:
        draw_latency(result, plan.pictures / "latency.svg")
    return result


def _via(plan: Plan) -> ViaResult:
    _say(f"{VIA}: live events for a minute, and again beside an import")
    result = measure_via(plan.target, plan.machine)
    print(via_line(result))
    return result


def _stall(plan: Plan, name: str) -> StallResult:
    _say(f"{name}: the worst bodies, alone and six at once, for some minutes")
    measure = _STALLS[name]
    result = measure(plan.target, plan.machine)
    print(stall_summary(result))
    return result


def _outcomes(plan: Plan, requests: int) -> OutcomesResult:
    _say(f"{OUTCOMES}: {requests:,} requests of each outcome, for some minutes")
    result = measure_outcomes(plan.target, plan.machine, requests)
    print(outcomes_table(result))
    return result


def _memory(plan: Plan, name: str, seconds: float) -> MemoryResult:
    _say(f"{name}: {seconds:.0f} s without an upstream")
    result = measure_memory(name, plan.target, plan.machine, seconds)
    print(memory_lines([result]))
    return result


def _backlog(plan: Plan, name: str) -> BacklogResult:
    _say(f"{name}: filling a buffer on disk")
    result = measure_backlog(name, plan.target, plan.machine)
    print(backlog_line(result))
    return result


def _cores() -> Machine:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchmarkError(
            "it takes two cores: one for the target, one for the load and the sink"
        )
    return Machine(cores[0], cores[1])


def _target(arguments: argparse.Namespace) -> Target:
    if arguments.command and not arguments.port:
        raise BenchmarkError("--command needs --port: where the program listens")
    sink_port = arguments.sink_port or (SINK_PORT if arguments.command else free_port())
    return Target(arguments.port or free_port(), sink_port, arguments.command)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Events per CPU-second and memory, beside floors."
    )
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME",
        help="only these (repeatable; * and ? allowed)",
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of load a measurement (default 4)"
    )
    parser.add_argument(
        "--repeat", type=int, default=3, help="rounds; the median counts (default 3)"
    )
    parser.add_argument(
        "--memory-seconds", type=float, default=60.0, help="without an upstream (default 60)"
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=REQUESTS,
        help=f"of each outcome, where memory is measured by outcome (default {REQUESTS})",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write everything as JSON, too")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="DIR",
        help="record each case with py-spy, which must be installed",
    )
    parser.add_argument(
        "--pictures", type=Path, metavar="DIR", help="draw what has a picture, as SVG"
    )
    other = parser.add_argument_group("another program in forwarder's place")
    other.add_argument(
        "--command", default="", help="starts it; it finds PORT and SINK_PORT in its environment"
    )
    other.add_argument("--port", type=int, default=0, help="where it listens")
    other.add_argument(
        "--sink-port", type=int, default=0, help=f"where it must post to (default {SINK_PORT})"
    )
    other.add_argument(
        "--shape",
        choices=list(Shape),
        default=Shape.ENVELOPE,
        help="how events are wrapped (default envelope)",
    )
    other.add_argument(
        "--path", default="", help="where it takes them (default /batch/, single events /capture/)"
    )
    return parser.parse_args()


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
