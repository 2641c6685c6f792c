"""How long one sender's body keeps everybody else waiting: the daemon's health check and a second
sender, while the worst bodies are read.

Two probes ask in turn, each on a connection of its own, as fast as they are answered: `/livez`,
which says that the loop turns, and a small event. The longest time between a question and its
answer is the gap. Each body comes alone, and then six times at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaProducer

from benchmarks.bodies import API_KEY
from benchmarks.kafka import broker
from benchmarks.processes import Program, free_port
from benchmarks.records import make_topic
from benchmarks.stall_bodies import (
    LINE_MAPPING,
    OTLP_MAPPING,
    WorstBody,
    bodies,
    records,
    ruled_bodies,
    ruled_lines,
    ruled_records,
    rules,
)
from benchmarks.targets import Machine, Target
from benchmarks.upstream import upstream

NAMES: Final = ("stall", "stall-rules", "stall-kafka")
ALLOWED: Final = 0.1
"""Seconds that nobody may have to wait for longer."""
AT_ONCE: Final = 6
QUIET: Final = 1.0
"""Seconds of probing before the bodies, for what the machine itself does."""
LIMIT: Final = 120.0
PAUSE: Final = 0.002
JOIN: Final = 15.0
"""Seconds that a group takes to form."""
_EVENT: Final = b'{"api_key":"%b","event":"probe","distinct_id":"p"}' % API_KEY.encode()
_LARGEST_REQUEST: Final = 64 << 20
"""Of Kafka's producer: what the broker takes is the limit."""


@dataclass(slots=True)
class Stall:
    """What one body did."""

    name: str
    alone: float = 0.0
    """The longest gap, in seconds."""
    together: float = 0.0
    cpu: float = 0.0
    """Seconds that the daemon and its processes took for one."""
    size: int = 0
    answers: str = ""


@dataclass(frozen=True, slots=True)
class StallResult:
    """All bodies."""

    name: str
    quiet: float
    stalls: Sequence[Stall]

    @property
    def worst(self) -> float:
        """The longest gap of all."""
        return max(max(stall.alone, stall.together) for stall in self.stalls)

    @property
    def good(self) -> bool:
        """Whether nobody had to wait for too long."""
        return self.worst <= ALLOWED


class Probe:
    """Asks over and over on one connection, in a thread of its own."""

    def __init__(self, port: int, request: bytes) -> None:
        self._port = port
        self._request = request
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe")
        self._longest = 0.0
        self._asked: float | None = None
        self.failures = 0
        self._thread.start()

    def take(self) -> float:
        """The longest gap since this was asked last, the one that lasts still included."""
        asked = self._asked
        longest = self._longest
        self._longest = 0.0
        return max(longest, 0.0 if asked is None else time.monotonic() - asked)

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), timeout=LIMIT) as connection,
            ):
                while not self._stopped.is_set():
                    asked = self._asked = time.monotonic()
                    connection.sendall(self._request)
                    answer = connection.recv(65536)
                    self._longest = max(self._longest, time.monotonic() - asked)
                    self._asked = None
                    if not answer:
                        break
                    self.failures += not answer.startswith(b"HTTP/1.1 200")
                    time.sleep(PAUSE)


def measure_stall(target: Target, machine: Machine) -> StallResult:
    """Send the worst bodies over HTTP. Takes some minutes."""
    stalls = []
    with _daemon(target, machine, {}) as (program, probes):
        quiet = _quiet(probes)
        for body in bodies():
            stalls.append(_measure(body, program, probes, target.port))
            print(stall_line(stalls[-1]), flush=True)
    return StallResult("stall", quiet, stalls)


def measure_rules_stall(target: Target, machine: Machine) -> StallResult:
    """Send the bodies that rules take longest for. Takes some minutes."""
    stalls = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "app.log"
        settings = ruled_settings(Path(folder), log)
        with _daemon(target, machine, settings) as (program, probes):
            quiet = _quiet(probes)
            for body in ruled_bodies():
                stalls.append(_measure(body, program, probes, target.port))
                print(stall_line(stalls[-1]), flush=True)
            for name, lines in ruled_lines():
                read = partial(_follow, log, lines, program)
                stalls.append(_handed_in(f"{name}-log", len(lines), read, program, probes))
    return StallResult("stall-rules", quiet, stalls)


def ruled_settings(folder: Path, log: Path) -> dict[str, str]:
    """Settings with a rule of each kind, by the names of their variables: for HTTP, the logs of
    OpenTelemetry and lines of `log`, which is created. The salt is kept in `folder`.
    """
    salt = folder / "salt"
    salt.write_text("salt")
    log.touch()
    followed = {"path": [str(log)], "mapping": LINE_MAPPING, "api_key": API_KEY}
    return {
        "FORWARDER_RULES": json.dumps(rules(str(salt))),
        "FORWARDER_SOURCES__LOGS": json.dumps([followed]),
        "FORWARDER_SOURCES__HTTP__OTLP__API_KEY": API_KEY,
        **{
            f"FORWARDER_SOURCES__HTTP__OTLP__MAPPING__{name.upper()}": program
            for name, program in OTLP_MAPPING.items()
        },
    }


def measure_kafka_stall(target: Target, machine: Machine) -> StallResult:
    """The same with records of a topic, with and without rules that apply to them."""
    stalls = []
    with tempfile.TemporaryDirectory() as folder, broker(machine.load_core) as bootstrap:
        salt = Path(folder) / "salt"
        salt.write_text("salt")
        topic = f"stall-{os.urandom(3).hex()}"
        cluster = {"bootstrap_servers": bootstrap, "topics": [topic], "group_id": topic}
        make_topic(bootstrap, topic, AT_ONCE)
        settings = {
            "FORWARDER_SOURCES__KAFKA": json.dumps([cluster]),
            "FORWARDER_RULES": json.dumps(rules(str(salt))),
        }
        with _daemon(target, machine, settings) as (program, probes):
            time.sleep(JOIN)
            quiet = _quiet(probes)
            for name, record in chain(records(), ruled_records()):
                read = partial(_read, bootstrap, topic, record, program)
                stalls.append(_handed_in(name, len(record), read, program, probes))
    return StallResult("stall-kafka", quiet, stalls)


@contextlib.contextmanager
def _daemon(
    target: Target, machine: Machine, settings: dict[str, str]
) -> Iterator[tuple[Program, list[Probe]]]:
    admin = free_port()
    more = {"FORWARDER_ADMIN__LISTEN": f"127.0.0.1:{admin}", **settings}
    with (
        upstream(target.sink_port, machine.load_core),
        target.running(machine.target_core, max_bytes="256MiB", more=more) as program,
    ):
        event = b"POST /capture/ HTTP/1.1\r\nHost: stall\r\nContent-Length: %d\r\n\r\n%b" % (
            len(_EVENT),
            _EVENT,
        )
        probes = [
            Probe(admin, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
            Probe(target.port, event),
        ]
        try:
            yield program, probes
        finally:
            for probe in probes:
                probe.stop()


def _quiet(probes: Sequence[Probe]) -> float:
    """The longest gap while nothing else happens; after a while in which everything is warm."""
    time.sleep(QUIET)
    for probe in probes:
        probe.take()
    time.sleep(QUIET)
    return max(probe.take() for probe in probes)


def _measure(body: WorstBody, program: Program, probes: Sequence[Probe], port: int) -> Stall:
    stall = Stall(body.name, size=len(body.data))
    request = body.request()
    answers: list[str] = []
    cpu = program.cpu_seconds()
    stall.alone = _during(probes, lambda: _send(port, [request], answers))
    stall.cpu = program.cpu_seconds() - cpu
    stall.together = _during(probes, lambda: _send(port, [request] * AT_ONCE, answers))
    stall.answers = ",".join(sorted(set(answers)))
    return stall


def _during(probes: Sequence[Probe], work: Callable[[], None]) -> float:
    """The longest gap while something is done, and for a moment after it: what was accepted is
    delivered then.
    """
    for probe in probes:
        probe.take()
    work()
    time.sleep(0.3)
    return max(probe.take() for probe in probes)


def _send(port: int, requests: Sequence[bytes], answers: list[str]) -> None:
    threads = [
        threading.Thread(target=_post, args=(port, request, answers)) for request in requests
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _post(port: int, request: bytes, answers: list[str]) -> None:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(request)  # it may be answered before all of it is sent
            answers.append(connection.recv(65536)[9:12].decode() or "none")
    except OSError as error:
        answers.append(type(error).__name__)


def _handed_in(
    name: str,
    size: int,
    read: Callable[[int], None],
    program: Program,
    probes: Sequence[Probe],
) -> Stall:
    """What something does of `size` bytes that a source reads, once and several times."""
    stall = Stall(name, size=size, answers="-")
    cpu = program.cpu_seconds()
    stall.alone = _during(probes, partial(read, 1))
    stall.cpu = program.cpu_seconds() - cpu
    stall.together = _during(probes, partial(read, AT_ONCE))
    print(stall_line(stall), flush=True)
    return stall


def _follow(log: Path, lines: bytes, program: Program, count: int) -> None:
    """Have lines read, until the daemon rests."""
    with log.open("ab") as file:
        for _ in range(count):
            file.write(lines + b"\n")
    _until_rest(program)


def _read(bootstrap: str, topic: str, record: bytes, program: Program, count: int) -> None:
    """Have records read, until the daemon rests."""
    _produce(bootstrap, topic, record, count)
    _until_rest(program)


def _until_rest(program: Program) -> None:
    end = time.monotonic() + LIMIT
    before = program.cpu_seconds()
    time.sleep(1.0)
    while time.monotonic() < end and (now := program.cpu_seconds()) - before > 0.35:
        before = now
        time.sleep(1.0)


def _produce(bootstrap: str, topic: str, record: bytes, count: int) -> None:
    asyncio.run(_produce_async(bootstrap, topic, record, count))


async def _produce_async(bootstrap: str, topic: str, record: bytes, count: int) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=_LARGEST_REQUEST)
    await producer.start()
    try:
        for _ in range(count):
            await producer.send_and_wait(topic, record)
    finally:
        await producer.stop()


def stall_line(stall: Stall) -> str:
    """One body, in a line."""
    per_byte = stall.cpu / stall.size * 1e9 if stall.size else 0.0
    return (
        f"{stall.name:28} {stall.size:>10,} bytes: longest gap {stall.alone * 1000:6.1f} ms "
        f"alone, {stall.together * 1000:6.1f} ms "
        f"six at once; {stall.cpu:5.2f} CPU-s, {per_byte:,.0f} ns a byte; answers {stall.answers}"
    )


def stall_summary(result: StallResult) -> str:
    """All of it, in a line."""
    longest = max(result.stalls, key=lambda stall: max(stall.alone, stall.together))
    dearest = max(result.stalls, key=lambda stall: stall.cpu)
    return (
        f"{result.name}: longest gap {result.worst * 1000:.0f} ms ({longest.name}), "
        f"{result.quiet * 1000:.0f} ms without any body, at most "
        f"{ALLOWED * 1000:.0f} is wanted; most CPU {dearest.cpu:.2f} s ({dearest.name}): "
        f"{'good' if result.good else 'NOT GOOD'}"
    )
