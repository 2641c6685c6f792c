"""The sink as the measurements see it: a program to start and stop, and its count."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Final

from benchmarks.processes import Program, running

POLL: Final = 0.1
STALLED: Final = 8.0
"""Seconds without any arrival after which nothing more is expected."""


class Upstream:
    """The running sink."""

    def __init__(self, port: int, program: Program) -> None:
        self.port = port
        self._program = program

    def events(self) -> int:
        """How many events have arrived since the sink was started. Raises `BenchmarkError` if it
        has ended.
        """
        self._program.check()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/count", timeout=30) as answer:
            return int(json.load(answer)["events"])

    def wait_for(self, expected: int, stalled: float = STALLED) -> int:
        """Wait until `expected` events have arrived, or none has for
        `stalled` seconds; how many have.
        """
        arrived = self.events()
        since = time.monotonic()
        while arrived < expected and time.monotonic() - since < stalled:
            time.sleep(POLL)
            if (now := self.events()) != arrived:
                arrived = now
                since = time.monotonic()
        return arrived


@contextlib.contextmanager
def upstream(port: int, core: int) -> Iterator[Upstream]:
    """Run the counting sink on `port` until the block ends."""
    with running([sys.executable, "-m", "benchmarks.sink", str(port)], core, port) as program:
        yield Upstream(port, program)


@contextlib.contextmanager
def bare_server(port: int, core: int) -> Iterator[Program]:
    """Run the server that reads and drops."""
    with running([sys.executable, "-m", "benchmarks.bare", str(port)], core, port) as program:
        yield program
