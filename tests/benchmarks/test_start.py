"""How long the daemon takes to start: how rounds are compared, and that a start is measured to its
first answer.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.processes import BenchmarkError, free_port, started
from benchmarks.start import ALLOWED, StartResult, answered, measure_start, start_line
from benchmarks.targets import Machine, Target
from benchmarks.upstream import upstream
from tests.benchmarks.test_measuring import CORE, TWO_CORES
from tests.support.cases import cases


@cases(("last", "good"), [(0.3 + ALLOWED - 0.01, True), (0.3 + ALLOWED + 0.01, False)])
def test_each_start_is_compared_with_the_import_of_its_round(last: float, *, good: bool) -> None:
    """A round in which the machine was slow delays both; the middle of the differences counts."""
    result = StartResult(imports=[0.1, 0.3, 2.0], memory=[0.15, last, 9.0], disk=[5.0, 5.0, 5.0])
    assert result.good == good
    assert start_line(result).endswith(": good" if good else "NOT GOOD")


@pytest.mark.long
@TWO_CORES
def test_a_start_is_measured_with_each_buffer() -> None:
    """Once each: every figure is there, and no start is over before it began."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    result = measure_start(Target(free_port(), free_port()), Machine(first, second), rounds=1)
    assert all(
        len(durations) == 1 and durations[0] > 0
        for durations in (result.imports, result.memory, result.disk)
    )


@pytest.mark.slow
def test_a_first_answer_of_200_is_required() -> None:
    """A program that ends before it listens, and one that answers otherwise, are errors."""
    port = free_port()
    with started(["true"], CORE) as program, pytest.raises(BenchmarkError, match="ended by itself"):
        answered(program, port)
    with upstream(port, CORE), started(["sleep", "60"], CORE) as other:
        answered(other, port)
