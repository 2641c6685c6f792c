"""Programs under measurement: started on a core of their own, watched through /proc, and stopped.

Invariant: no program outlives the benchmark. Where a measurement ends early (an error, a signal)
its programs are killed; where the benchmark itself is killed, the system kills them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG: Final = 1
START_LIMIT: Final = 20.0
STOP_LIMIT: Final = 40.0
_PORTS: Final = range(20000, 30000)
"""Below those that the kernel gives to listeners of port 0 and to outgoing connections: a free port
among those was another program's a moment later.
"""

_prctl = ctypes.CDLL(None).prctl
"""Looked up beforehand: little may be done between fork and exec."""


class BenchmarkError(Exception):
    """The measurement can't be made; says why."""


class Program:
    """A running process with its descendants."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._process = process
        self.name = name
        self.pid = process.pid

    def cpu_seconds(self) -> float:
        """CPU time, user and system, of the process and all its descendants, ended
        ones included.
        """
        return sum(_cpu_ticks(pid) for pid in _tree(self.pid)) / TICKS

    def peak_memory(self) -> int:
        """The highest resident size so far, bytes; summed over the descendants that run now."""
        return sum(_status_bytes(pid, "VmHWM") for pid in _tree(self.pid))

    def memory(self) -> int:
        """The resident size now, bytes."""
        return sum(_status_bytes(pid, "VmRSS") for pid in _tree(self.pid))

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; it can be asked for nothing more then."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def check(self) -> None:
        """Raise `BenchmarkError` if the process has ended."""
        if self._process.poll() is not None:
            raise BenchmarkError(
                f"{self.name} ended by itself with status {self._process.returncode}"
            )

    def stop(self) -> None:
        """End the process, by force if it takes too long."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process and its group at once, without a drain."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Run this process, and whatever it starts meanwhile, on `core` alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(
    command: Sequence[str], core: int, port: int, environment: Mapping[str, str] = os.environ
) -> Iterator[Program]:
    """Run `command` on `core` until the block ends. Enters once it listens on `port`; raises
    `BenchmarkError` if it does not.
    """
    with started(command, core, environment) as program:
        wait_for_port(program, port)
        yield program


@contextlib.contextmanager
def started(
    command: Sequence[str],
    core: int,
    environment: Mapping[str, str] = os.environ,
    *,
    quiet: bool = False,
) -> Iterator[Program]:
    """Run `command` on `core` until the block ends, or it does. `quiet`: what it says
    is dropped.
    """
    with pinned(core):
        process = subprocess.Popen(
            command,
            env=dict(environment),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=subprocess.DEVNULL if quiet else None,
            # PLW1509: programs are started while no other thread runs.
            preexec_fn=_end_with_parent,  # noqa: PLW1509
        )
    program = Program(
        process, Path(command[0]).name if "-m" not in command else " ".join(command[1:3])
    )
    try:
        yield program
        program.stop()
    except BaseException:
        program.kill()
        raise


def end_on_signals() -> None:
    """SIGTERM and SIGINT raise `SystemExit` in the main thread from now on (128 + their number),
    so that everything is undone.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _end_with_parent() -> None:
    """In a child before it becomes the program: have it killed when the thread that started it
    ends, however that comes.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def core_seconds(core: int) -> float:
    """Seconds that a core has spent on anything at all since the machine was started; 0 where the
    system doesn't tell.
    """
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    fields = next((line.split()[1:] for line in lines if line.startswith(f"cpu{core} ")), ["0"] * 8)
    user, nice, system, _idle, _waiting, *rest = (int(field) for field in fields[:8])
    return (user + nice + system + sum(rest)) / TICKS


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many ports of 127.0.0.1 that nothing listens on, for processes that are told where to
    listen: nobody else gets one before its process listens, or while it is down.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = random.choice(_PORTS)
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
        return ports


def wait_for_port(program: Program, port: int) -> None:
    """Wait until it listens on `port`. Raises `BenchmarkError` if it does not."""
    until = time.monotonic() + START_LIMIT
    while time.monotonic() < until:
        program.check()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.01)
    raise BenchmarkError(f"{program.name} does not listen on port {port} after {START_LIMIT:.0f} s")


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    tree = [root]
    for pid in tree:
        tree.extend(children.get(pid, []))
    return tree


def at_least_a_tick(seconds: float) -> float:
    """CPU-seconds to divide by: the kernel counts in ticks, so that little work may take none."""
    return max(seconds, 1 / TICKS)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on (state); empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_ticks(pid: int) -> int:
    return sum(int(ticks) for ticks in _stat(pid)[11:15])


def _status_bytes(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
