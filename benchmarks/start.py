"""From the daemon's start to the first request that it answers with 200, in turn with what
importing aiohttp alone takes, on one core.

A daemon that is installed has its modules compiled, as pip leaves them; a checkout may not, so
they are compiled before.
"""

from __future__ import annotations

import compileall
import contextlib
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import forwarder
from benchmarks.answers import AnswerReader
from benchmarks.bodies import Variant, ring
from benchmarks.processes import START_LIMIT, BenchmarkError, Program, pinned
from benchmarks.targets import Machine, Target
from benchmarks.upstream import upstream

NAME: Final = "start"
ROUNDS: Final = 15
ALLOWED: Final = 0.15
"""Seconds that a start may take beyond the import."""
_POLL: Final = 0.001
"""Seconds between two attempts to connect."""
_IMPORT: Final = (sys.executable, "-c", "import aiohttp")


@dataclass(slots=True)
class StartResult:
    """Seconds of each round."""

    name: str = NAME
    imports: list[float] = field(default_factory=list)
    """`python -c 'import aiohttp'`, from its start to its end."""
    memory: list[float] = field(default_factory=list)
    """With the memory buffer, from the start to the first answer."""
    disk: list[float] = field(default_factory=list)
    """The same with a disk buffer."""

    def beyond(self, starts: list[float]) -> float:
        """The median, over the rounds, of what a start takes beyond the import of its round."""
        return median(
            start - imported for start, imported in zip(starts, self.imports, strict=True)
        )

    @property
    def good(self) -> bool:
        """Whether the start as it is by default, with the memory buffer,
        takes no longer than wanted.
        """
        return self.beyond(self.memory) <= ALLOWED


def measure_start(target: Target, machine: Machine, rounds: int = ROUNDS) -> StartResult:
    """Start the daemon `rounds` times with each buffer, in turn with the
    import. Raises `BenchmarkError`.
    """
    compileall.compile_dir(Path(forwarder.__file__).parent, quiet=1)
    result = StartResult()
    with upstream(target.sink_port, machine.load_core), pinned(machine.load_core):
        # the first round only fills the caches
        for measured in (StartResult(), *[result] * rounds):
            measured.imports.append(_import(machine))
            measured.memory.append(_start(target, machine, disk=False))
            measured.disk.append(_start(target, machine, disk=True))
    return result


def _import(machine: Machine) -> float:
    with pinned(machine.target_core):
        began = time.perf_counter()
        subprocess.run(_IMPORT, check=True)
        return time.perf_counter() - began


def _start(target: Target, machine: Machine, *, disk: bool) -> float:
    began = time.perf_counter()
    with target.running(machine.target_core, disk=disk, wait=False) as program:
        answered(program, target.port)
        return time.perf_counter() - began


def answered(program: Program, port: int) -> None:
    """Wait until the program answers 200 to an event; any other answer is an error."""
    request = ring(Variant.STAMPED, 1, limit=0)[0]
    reader = AnswerReader()
    received = b""
    with _connected(program, port) as connection:
        connection.sendall(request.data)
        while (answer := reader.read(received)) is None:
            more = connection.recv(65536)
            if not more:
                raise BenchmarkError(
                    f"{program.name} closes its first connection without an answer"
                )
            received += more
    if answer.status != 200:
        raise BenchmarkError(f"{program.name} answers its first event with {answer.status}")


def _connected(program: Program, port: int) -> socket.socket:
    until = time.monotonic() + START_LIMIT
    while time.monotonic() < until:
        program.check()
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=START_LIMIT)
        time.sleep(_POLL)
    raise BenchmarkError(f"{program.name} does not listen on port {port} after {START_LIMIT:.0f} s")


def start_line(result: StartResult) -> str:
    """The measurement in a line."""
    memory = result.beyond(result.memory)
    disk = result.beyond(result.disk)
    return (
        f"{result.name}: first answer {median(result.memory):.3f} s after the start, with a disk "
        f"buffer {median(result.disk):.3f} s; "
        f"importing aiohttp alone takes {median(result.imports):.3f} s: {memory:.3f} s beyond it "
        f"(with a disk buffer {disk:.3f} s), "
        f"at most {ALLOWED:.2f} is wanted: {'good' if result.good else 'NOT GOOD'}"
    )
