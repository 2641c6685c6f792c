"""The harness against real processes: what it counts is what was sent. Nothing here looks at how
fast anything is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import choose
from benchmarks.arrivals import arrival_upstream
from benchmarks.bodies import Variant, ring
from benchmarks.load import Load
from benchmarks.nginx import MISSING, find_nginx
from benchmarks.processes import BenchmarkError, free_port, running
from benchmarks.upstream import upstream
from tests.support.repository import ROOT

CORE = min(os.sched_getaffinity(0))
TWO_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2,
    reason="the benchmarks need a core for the target and one for the load",
)


BRIEFLY = """
import functools, sys
from benchmarks import throughput
throughput.WARM_UP = 0.05
throughput.ring = functools.partial(throughput.ring, limit=500_000)
from benchmarks.__main__ import main
sys.exit(main())
"""
"""The command, without the time and the many bodies that make its figures steady."""


@pytest.mark.slow
def test_the_sink_counts_what_the_load_sent() -> None:
    """Straight from the load generator to the sink: as many events arrive as were accepted, over
    all connections.
    """
    port = free_port()
    with upstream(port, CORE) as sink:
        tally = Load(ring(Variant.SDK, 50, limit=500_000), 4, port).run(0.2)
        assert sink.wait_for(tally.accepted) == tally.accepted == tally.requests * 50 > 0
        assert (tally.unanswered, tally.broken, set(tally.statuses)) == (0, 0, {200})


@pytest.mark.slow
def test_a_load_with_a_rate_sends_all_that_is_due() -> None:
    """On one connection a hundred requests are due within a millisecond: each is sent, in order,
    and its latency counts from then.
    """
    port = free_port()
    rate = 100_000.0
    with arrival_upstream(port, CORE) as sink:
        tally = Load(ring(Variant.STAMPED, 2, limit=5000, numbered=True), 1, port, rate=rate).run(
            0.001
        )
        assert (tally.requests, tally.accepted) == (100, 200)
        arrived = sink.arrivals(100)
    assert sorted(arrived) == list(range(100))
    answered = [latency + number / rate for number, latency in enumerate(tally.latencies)]
    assert answered == sorted(answered)
    assert all(
        0 <= delay < latency for delay, latency in zip(tally.delays, tally.latencies, strict=True)
    )
    assert tally.delays[-1] > tally.delays[0]
    assert all(at >= tally.began + number / rate for number, at in arrived.items())


@pytest.mark.slow
def test_a_program_that_ends_by_itself_is_an_error() -> None:
    """A target that can't start is said at once, not waited for."""
    with (
        pytest.raises(BenchmarkError, match="ended by itself with status 3"),
        running([sys.executable, "-c", "raise SystemExit(3)"], CORE, free_port()),
    ):
        pytest.fail("it never listened")


@pytest.mark.slow
@TWO_CORES
def test_forwarder_is_measured_without_a_loss(tmp_path: Path) -> None:
    """One short round of a case with the real daemon: everything that it accepted arrives, and the
    figures are written.
    """
    output = tmp_path / "figures.json"
    options = [
        "--case",
        "sdk-50-none",
        "--seconds",
        "0.1",
        "--repeat",
        "1",
        "--output",
        str(output),
    ]
    done = subprocess.run(
        [sys.executable, "-c", BRIEFLY, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert output.exists(), done.stderr
    [row] = json.loads(output.read_text())["throughput"]
    assert (row["case"], row["lost"], set(row["answers"]) <= {"200", "503"}) == (
        "sdk-50-none",
        0,
        True,
    )


@pytest.mark.long
@TWO_CORES
@pytest.mark.skipif(not find_nginx(), reason=MISSING)
def test_nginx_is_measured_in_its_place(tmp_path: Path) -> None:
    """The same bodies go through nginx to the sink, each event once, and are
    compared with forwarder's.
    """
    output = tmp_path / "figures.json"
    options = ["--case", "nginx-1000", "--seconds", "0.3", "--repeat", "1", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert output.exists(), done.stderr
    beside, row = json.loads(output.read_text())["throughput"]
    assert (row["case"], row["against"], row["lost"], set(row["answers"])) == (
        "nginx-1000",
        beside["case"],
        0,
        {"200"},
    )


def test_without_nginx_its_cases_are_skipped_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was chosen beside them stays."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("benchmarks.nginx._PATH", "")
    assert [case.name for case in choose(["nginx-50"], other_program=False).cases] == [
        "stamped-50-none"
    ]
    assert capsys.readouterr().err == f"nginx-50: skipped, {MISSING}\n"
