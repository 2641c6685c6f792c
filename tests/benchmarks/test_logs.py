"""The cases of whole log sources: their names, and one short round with the real daemon. Nothing
here looks at how fast anything is.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.log_stages import LogKind, LogReading, log_files
from benchmarks.logs import CASES, LOOP, Following, LogCase, select, whole_row
from benchmarks.processes import free_port
from benchmarks.targets import Machine, Target
from benchmarks.throughput import Figure

COUNT = 20_000


def test_cases_are_chosen_by_name() -> None:
    """All of them without a pattern; there is one of each kind."""
    assert select([]) == list(CASES)
    assert [case.name for case in select(["logs-a*"])] == ["logs-access"]
    assert {case.kind for case in CASES} == set(LogKind)


@pytest.mark.long
@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2,
    reason="the benchmarks need a core for the target and one for the load",
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_line_arrives_at_the_sink(case: LogCase) -> None:
    """A file that appears is followed to its end; its line says what it is beside."""
    cores = sorted(os.sched_getaffinity(0))
    figure = Figure()
    server = Figure(rates=[100_000.0])
    loop = Figure()
    with log_files([case.kind], COUNT) as files:
        LogReading(cores[0], files).floor(case.kind, case.loop, loop)
        Following(Machine(cores[0], cores[1]), Target(free_port(), free_port()), files).case(
            case, figure, COUNT
        )
    row = whole_row(case, figure, server, loop)
    assert (row["case"], row["against"], row["lost"]) == (case.name, "bare server", 0)
    assert row["ratio"] == round(figure.rate / 100_000, 3) > 0
    assert str(case.loop) in row[LOOP]
