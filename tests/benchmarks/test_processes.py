"""No program outlives the benchmark that started it, and its CPU can be divided by."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.processes import TICKS, free_port, free_ports, running
from benchmarks.throughput import Figure
from tests.support.repository import ROOT
from tests.support.waiting import eventually

CORE = min(os.sched_getaffinity(0))
TWO_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2,
    reason="the benchmarks need a core for the target and one for the load",
)
LIMIT = 60.0
"""Seconds after which a test that waits for a process has failed."""


def server(port: int) -> list[str]:
    """A program that listens, and forgives no one who asks it to stop kindly."""
    listen = (
        "import signal, socket; signal.signal(signal.SIGTERM, signal.SIG_IGN); s = "
        f"socket.create_server(('127.0.0.1', {port}))"
    )
    return [sys.executable, "-c", f"{listen}; signal.pause()"]


def test_an_error_kills_the_program_at_once() -> None:
    """Where there is nothing more to measure, no one waits for a drain."""
    port = free_port()
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), running(server(port), CORE, port) as program:
        raise ZeroDivisionError
    assert not Path(f"/proc/{program.pid}").exists()
    assert time.monotonic() - began < LIMIT


@pytest.mark.slow
@TWO_CORES
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_program_outlives_the_benchmark(number: signal.Signals) -> None:
    """Whether it is interrupted or killed in the middle of a measurement: its target ends too."""
    port = free_port()
    command = f"{sys.executable} -m benchmarks.bare {port}"
    options = [
        "--case",
        "memory-tiny",
        "--memory-seconds",
        "60",
        "--port",
        str(port),
        "--command",
        command,
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *options], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as benchmark:
        with watched(child_of(benchmark.pid, port)) as target:
            benchmark.send_signal(number)
            assert select.select([target], [], [], LIMIT)[0], "the target runs on"
        assert benchmark.wait(LIMIT) == (-number if number is signal.SIGKILL else 128 + number)


def child_of(parent: int, port: int) -> int:
    """The process id of the program on `port`, once it listens."""

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    asyncio.run(eventually(listens))
    return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])


@contextlib.contextmanager
def watched(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when the process ends."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_work_of_less_than_a_tick_can_be_divided_by() -> None:
    """A short case on a busy machine may have used no tick at all."""
    figure = Figure()
    figure.add(events=5_000, used=0.0, core=0.1, seconds=0.1, wanted=5_000)
    assert (figure.rate, figure.busy) == (5_000 * TICKS, [0.0])


def test_a_free_port_is_reserved() -> None:
    """A listener of port 0 got it a moment later, and what was meant for the daemon."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < lowest
