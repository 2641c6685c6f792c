"""Calls that are passed through: what each costs, and how long it takes, beside nginx's `proxy_pass` in the same run, if it is installed.

Calls for flags go to the sink, which answers each at once. The daemon and nginx take turns on the same core; each keeps its connections.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.bodies import API_KEY, Request
from benchmarks.load import Load
from benchmarks.processes import BenchmarkError, Program, free_port, pinned, running
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
_PATH: Final = "/usr/sbin:/usr/local/sbin"
_NGINX: Final = """
daemon off; master_process off; pid {home}/pid; error_log {home}/errors;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {home}/1; proxy_temp_path {home}/2; fastcgi_temp_path {home}/3; uwsgi_temp_path {home}/4; scgi_temp_path {home}/5;
  upstream service {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass http://service; }}
  }}
}}
"""


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


def measure_passing(target: Target, machine: Machine, seconds: float = SECONDS, rounds: int = ROUNDS) -> PassingResult:
    """Pass calls through, in turn with nginx, `rounds` times. Raises `BenchmarkError`."""
    result = PassingResult(NAME)
    with (
        upstream(target.sink_port, machine.load_core),
        target.running(machine.target_core) as program,
        _nginx(target.sink_port, machine.target_core) as beside,
        pinned(machine.load_core),
    ):
        turns = [(program, target.port, result.own)]
        if beside is not None:
            turns.append((*beside, result.nginx))
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
        raise BenchmarkError(f"{program.name} doesn't pass all calls through: {dict(tally.statuses)}, {tally.broken} connections broken")
    figures.calls.append(tally.requests / used)
    figures.seconds.append(one_call(port, CALLS))


def flag_call() -> Request:
    """A call for flags, as an SDK makes it."""
    body = b'{"api_key":"%b","distinct_id":"user-1234","groups":{},"person_properties":{"plan":"team"}}' % API_KEY.encode()
    head = b"POST /flags/?v=2 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nUser-Agent: posthog-python/7.91.1\r\n"
    return Request(bytearray(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)), 1)


def one_call(port: int, calls: int) -> float:
    """The median of the seconds that a call takes, one after the other on one connection. Raises `BenchmarkError`."""
    call, took = bytes(flag_call().data), []
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


@contextlib.contextmanager
def _nginx(upstream_port: int, core: int) -> Iterator[tuple[Program, int] | None]:
    """Run nginx before the sink until the block ends; None if it isn't installed."""
    command = shutil.which("nginx") or shutil.which("nginx", path=_PATH)
    if command is None:
        yield None
        return
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as home:
        configuration = Path(home) / "nginx.conf"
        configuration.write_text(_NGINX.format(home=home, upstream=upstream_port, port=port))
        with running([command, "-p", home, "-e", f"{home}/errors", "-c", str(configuration)], core, port) as program:
            yield program, port


def passing_line(result: PassingResult) -> str:
    """The measurement in a line."""
    own, nginx = result.own, result.nginx
    said = f"{result.name}: {median(own.calls):,.0f} calls/CPU-s, one takes {1000 * median(own.seconds):.2f} ms"
    if not nginx.calls:
        return f"{said}; nginx isn't installed, so there is nothing to compare with"
    share, later = median(own.calls) / median(nginx.calls), 1000 * (median(own.seconds) - median(nginx.seconds))
    return (
        f"{said}; nginx {median(nginx.calls):,.0f} calls/CPU-s, {1000 * median(nginx.seconds):.2f} ms: ratio {share:.2f} "
        f"(at least {SHARE:.2f} is wanted), {later:+.2f} ms (at most {1000 * SLOWER:+.2f}): {'good' if result.good else 'NOT GOOD'}"
    )
