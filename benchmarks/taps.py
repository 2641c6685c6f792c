"""What `forwarder tap` costs the daemon: CPU time for each event at a steady rate, without a tap
and with one, in turn.

The turns are short and many, so that whatever else the machine does falls on all of them alike;
each turn with a tap is compared with the one without that came just before it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final
from urllib.parse import urlencode

from benchmarks.bodies import API_KEY, Request, Shape, Variant, ring
from benchmarks.events import MARKER
from benchmarks.load import Load
from benchmarks.processes import BenchmarkError, Program, free_port, pinned
from benchmarks.targets import Machine, Target
from benchmarks.upstream import Upstream, upstream
from forwarder.telemetry.labels import key_label

NAME: Final = "taps"
RATE: Final = 50_000
"""Events a second."""
BODY: Final = 50
"""Events in a request."""
BUFFER: Final = "512MiB"
"""So large that a sink that is slow for a moment changes nothing."""
CONNECTIONS: Final = 16
OPENING: Final = 1.0
"""Seconds of load before the turn with a tap: a tap that was just opened has
the allowance of a pause.
"""
SECONDS: Final = 3.0
"""Of a turn."""
ROUNDS: Final = 15
ALLOWED: Final = 1.05
"""CPU time for an event with a tap, of that without."""
TAPS: Final[Mapping[str, Mapping[str, str]]] = {
    "everything": {},
    "a name": {"event": f"{MARKER.decode()} order placed"},
    "a name that doesn't occur": {"event": "never sent"},
    "a key's deliveries": {"key": key_label(API_KEY), "outcome": "delivered"},
}
"""What the taps want."""


@dataclass(slots=True)
class TapResult:
    """CPU-seconds of the daemon for each event, by what was tapped."""

    name: str
    without: list[float] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TAPS})
    """With a tap, of the turn before."""
    rates: list[float] = field(default_factory=list)
    """Events a second that were accepted."""
    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TAPS, 0))
    """Events that each tap showed."""

    @property
    def good(self) -> bool:
        """Whether each tap costs as little as is allowed."""
        return all(median(ratios) <= ALLOWED for ratios in self.ratios.values())


def measure_taps(
    target: Target, machine: Machine, seconds: float = SECONDS, rounds: int = ROUNDS
) -> TapResult:
    """Send events at `RATE`, with no tap and with each in turn, `rounds`
    times. Raises `BenchmarkError`.
    """
    result = TapResult(NAME)
    requests = ring(Variant.STAMPED, BODY, Shape.ENVELOPE, "")
    admin = free_port()
    settings = {"FORWARDER_ADMIN__LISTEN": f"127.0.0.1:{admin}"}
    with (
        upstream(target.sink_port, machine.load_core) as sink,
        target.running(machine.target_core, max_bytes=BUFFER, more=settings) as program,
        pinned(machine.load_core),
    ):
        turn = Turn(program, sink, requests, target.port)
        turn.measure(seconds)  # a warm-up
        for _ in range(rounds):
            for name, wanted in TAPS.items():
                without = turn.measure(seconds)
                with tapped(admin, wanted) as shown:
                    turn.measure(OPENING)
                    beside = turn.measure(seconds)
                result.without.append(without.per_event)
                result.ratios[name].append(beside.per_event / without.per_event)
                result.rates += [without.rate, beside.rate]
                result.lines[name] += shown.lines
    return result


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """CPU-seconds for each event, and events a second."""

    per_event: float
    rate: float


class Turn:
    """Sends requests to a daemon, at the rate, and measures what they cost it."""

    def __init__(
        self, program: Program, sink: Upstream, requests: list[Request], port: int
    ) -> None:
        self._program = program
        self._sink = sink
        self._requests = requests
        self._port = port

    def measure(self, seconds: float) -> TurnFigures:
        """One turn. Raises `BenchmarkError` if events are missing or the daemon has ended."""
        before = self._sink.events()
        cpu = self._program.cpu_seconds()
        tally = Load(self._requests, CONNECTIONS, self._port, rate=RATE / BODY).run(seconds)
        if set(tally.statuses) != {200} or tally.broken:
            raise BenchmarkError(
                f"the daemon doesn't accept the load: {dict(tally.statuses)}, {tally.broken} "
                "connections broken"
            )
        arrived = self._sink.wait_for(before + tally.accepted) - before
        used = self._program.cpu_seconds() - cpu
        self._program.check()
        if arrived < tally.accepted:
            raise BenchmarkError(
                f"{tally.accepted - arrived} of {tally.accepted} events did not arrive"
            )
        return TurnFigures(used / tally.accepted, tally.accepted / tally.seconds)


@dataclass(slots=True)
class ShownLines:
    """What a tap has shown so far."""

    lines: int = 0


@contextlib.contextmanager
def tapped(admin: int, wanted: Mapping[str, str]) -> Iterator[ShownLines]:
    """Tap the daemon and read what it shows, until the block ends."""
    shown = ShownLines()
    with socket.create_connection(("127.0.0.1", admin), timeout=30) as connection:
        connection.sendall(
            f"GET /tap?{urlencode(wanted)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        if not connection.recv(65536).startswith(b"HTTP/1.1 200"):
            raise BenchmarkError("the daemon answers no tap")

        def read() -> None:
            with contextlib.suppress(OSError):
                while data := connection.recv(65536):
                    shown.lines += data.count(b'"outcome"')

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield shown
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            reader.join()


def tap_line(result: TapResult) -> str:
    """The measurement in a line."""
    of_taps = ", ".join(
        f"tapping {name} {100 * (median(ratios) - 1):+.1f} % ({100 * (min(ratios) - 1):+.1f} to "
        f"{100 * (max(ratios) - 1):+.1f}, "
        f"{result.lines[name]:,} shown)"
        for name, ratios in result.ratios.items()
    )
    per_event = f"{1e6 * median(result.without):.2f} CPU-µs an event"
    wanted = (
        f"at most {100 * (ALLOWED - 1):+.0f} % is wanted: {'good' if result.good else 'NOT GOOD'}"
    )
    return (
        f"{result.name}: {median(result.rates):,.0f} events/s in bodies of {BODY}: {per_event} "
        f"without a tap; {of_taps}; {wanted}"
    )
