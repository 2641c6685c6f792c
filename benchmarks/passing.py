"""Calls that are passed through: what each costs, and how long it takes, beside nginx's
`proxy_pass` in the same run, if it is installed.

Calls for flags go to the sink, which answers each at once. The daemon and nginx take turns on the
same core; each keeps its connections.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from benchmarks.bodies import API_KEY, Request
from benchmarks.load import Load
from benchmarks.nginx import find_nginx, nginx
from benchmarks.processes import BenchmarkError, Program, at_least_a_tick, pinned
from benchmarks.targets import Machine, Target
from benchmarks.upstream import upstream

NAME: Final = "passthrough"
CONNECTIONS: Final = 16
SECONDS: Final = 3.0
ROUNDS: Final = 3
CALLS: Final = 2000
"""On one connection, one after the other, for the time that one takes."""
SHARE: Final = 0.3
"""Calls per CPU-second, of nginx's, that are wanted."""
SLOWER: Final = 0.0001
"""Seconds by which a call may take longer than through nginx."""


@dataclass(slots=True)
class PassingFigures:
    """Calls per CPU-second, and seconds that one takes, of each round."""

    calls: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class PassingResult:
    """The daemon's figures and nginx's, which has none if it isn't installed."""

    name: str
    own: PassingFigures = field(default_factory=PassingFigures)
    nginx: PassingFigures = field(default_factory=PassingFigures)

    @property
    def good(self) -> bool:
        """Whether both are as wanted beside nginx; without it there is nothing to compare with."""
        if not self.nginx.calls:
            return True
        enough = median(self.own.calls) >= SHARE * median(self.nginx.calls)
        return enough and median(self.own.seconds) <= median(self.nginx.seconds) + SLOWER


def measure_passing(
    target: Target, machine: Machine, seconds: float = SECONDS, rounds: int = ROUNDS
) -> PassingResult:
    """Pass calls through, in turn with nginx, `rounds` times. Raises `BenchmarkError`."""
    result = PassingResult(NAME)
    with (
        upstream(target.sink_port, machine.load_core),
        target.running(machine.target_core) as program,
        contextlib.ExitStack() as stack,
        pinned(machine.load_core),
    ):
        turns = [(program, target.port, result.own)]
        if find_nginx():
            turns.append(
                (*stack.enter_context(nginx(target.sink_port, machine.target_core)), result.nginx)
            )
        for running_program, port, _ in turns:
            _turn(running_program, port, seconds / 3, PassingFigures())  # a warm-up
        for _ in range(rounds):
            for running_program, port, figures in turns:
                _turn(running_program, port, seconds, figures)
    return result


def _turn(program: Program, port: int, seconds: float, figures: PassingFigures) -> None:
    cpu = program.cpu_seconds()
    tally = Load([flag_call()], CONNECTIONS, port).run(seconds)
    used = program.cpu_seconds() - cpu
    program.check()
    if set(tally.statuses) != {200} or tally.broken:
        raise BenchmarkError(
            f"{program.name} doesn't pass all calls through: {dict(tally.statuses)}, "
            f"{tally.broken} connections broken"
        )
    figures.calls.append(tally.requests / at_least_a_tick(used))
    figures.seconds.append(one_call(port, CALLS))


def flag_call() -> Request:
    """A call for flags, as an SDK makes it."""
    body = (
        b'{"api_key":"%b","distinct_id":"user-1234","groups":{},"person_properties":{"plan":"t'
        b'eam"}}'
    ) % API_KEY.encode()
    head = (
        b"POST /flags/?v=2 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"User-Agent: posthog-python/7.91.1\r\n"
    )
    return Request(bytearray(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)), 1)


def one_call(port: int, calls: int) -> float:
    """The median of the seconds that a call takes, one after the other on one
    connection. Raises `BenchmarkError`.
    """
    call = bytes(flag_call().data)
    took = []
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(calls):
            began = time.perf_counter()
            connection.sendall(call)
            answer = connection.recv(65536)
            took.append(time.perf_counter() - began)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise BenchmarkError(f"a call is not passed through: {answer[:100]!r}")
    return median(took)


def passing_line(result: PassingResult) -> str:
    """The measurement in a line."""
    own = result.own
    nginx = result.nginx
    said = (
        f"{result.name}: {median(own.calls):,.0f} calls/CPU-s, one takes "
        f"{1000 * median(own.seconds):.2f} ms"
    )
    if not nginx.calls:
        return f"{said}; nginx isn't installed, so there is nothing to compare with"
    share = median(own.calls) / median(nginx.calls)
    later = 1000 * (median(own.seconds) - median(nginx.seconds))
    return (
        f"{said}; nginx {median(nginx.calls):,.0f} calls/CPU-s, "
        f"{1000 * median(nginx.seconds):.2f} ms: ratio {share:.2f} "
        f"(at least {SHARE:.2f} is wanted), {later:+.2f} ms (at most {1000 * SLOWER:+.2f}): "
        f"{'good' if result.good else 'NOT GOOD'}"
    )
