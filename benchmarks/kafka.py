"""Kafka to HTTP: records that the sink counted, divided by the CPU-seconds that the target's
process tree took for them.

A topic is filled beforehand and read by a new group from its beginning, by the target and by its
floor, a bare loop that only counts. A measurement begins when the program listens, before it has
asked the broker for anything, and ends when every record has arrived.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bodies import API_KEY
from benchmarks.cases import matching
from benchmarks.processes import BenchmarkError, Program, core_seconds, free_port, pinned, running
from benchmarks.profiling import profiled
from benchmarks.records import RECORDS, Content, fill, forget
from benchmarks.report import measured
from benchmarks.targets import Machine, Target
from benchmarks.throughput import Figure
from benchmarks.upstream import Upstream, upstream
from forwarder.demo.broker import Broker, BrokerUnavailable

PROFILED: Final = 3.0
"""Seconds of a profile: about as long as reading a topic takes."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What is in a topic."""

    content: Content
    codec: str
    """`none`: not compressed."""


@dataclass(frozen=True, slots=True)
class KafkaCase:
    """One measurement of reading a topic."""

    content: Content
    compression: str
    """Of the bodies towards the upstream."""
    share: float | None
    """Of the floor that is to be reached; None: only told."""
    codec: str = "none"
    """Of the topic."""
    ordered: bool = False
    disk: bool = False
    """With the disk buffer, and offsets committed once an fdatasync covers the records."""

    @property
    def name(self) -> str:
        """For people, and for `--case`."""
        read = "" if self.codec == "none" else f"-of-{self.codec}"
        return (
            f"kafka-{self.content}-{self.compression}{read}"
            + ("-ordered" if self.ordered else "")
            + ("-disk" if self.disk else "")
        )

    @property
    def topic(self) -> Topic:
        """What it reads; the floor is of the same."""
        return Topic(self.content, self.codec)

    def settings(self, bootstrap: str, topic: str, group: str) -> dict[str, str]:
        """What its daemon is told beside what all are."""
        cluster: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "topics": [topic],
            "group_id": group,
        }
        if self.disk:
            cluster["commit"] = "disk"
        if self.content is Content.KEYLESS:
            cluster["api_key"] = API_KEY
        return {"FORWARDER_SOURCES__KAFKA": json.dumps([cluster])}


CASES: Final = (
    KafkaCase(Content.STAMPED, "none", share=0.45),
    KafkaCase(Content.KEYLESS, "none", share=0.45),
    KafkaCase(Content.STAMPED, "gzip", share=0.45),
    KafkaCase(Content.STAMPED, "none", share=None, codec="zstd"),
    KafkaCase(Content.STAMPED, "none", share=None, ordered=True),
    KafkaCase(Content.STAMPED, "none", share=None, disk=True),
    KafkaCase(Content.BARE, "none", share=None),
)


def select(patterns: list[str]) -> list[KafkaCase]:
    """The cases whose names match any of `patterns`; all if none are given."""
    return matching(CASES, patterns)


@dataclass(frozen=True, slots=True)
class Reading:
    """How to measure: who runs where, and the broker."""

    machine: Machine
    target: Target
    bootstrap: str
    run: str
    """What its topics' names begin with: the broker may have others."""
    profile: Path | None = None
    records: int = RECORDS
    """In each topic."""

    @contextlib.contextmanager
    def topics(self, cases: Iterable[KafkaCase]) -> Iterator[None]:
        """Fill the topics of these cases, which takes some seconds each; they
        are gone after the block.
        """
        filled: list[str] = []
        try:
            for topic in {case.topic: None for case in cases}:
                filled.append(self._called(topic))
                fill(self.bootstrap, filled[-1], topic.content, topic.codec, self.records)
            yield
        finally:
            forget(self.bootstrap, filled)

    def floor(self, topic: Topic, figure: Figure) -> None:
        """Measure the floor of a topic once more, into `figure`."""
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "benchmarks.counting",
            self.bootstrap,
            self._called(topic),
            _group(),
            str(port),
        ]
        with running(command, self.machine.target_core, port) as program:
            self._measure(program, Upstream(port, program), figure)
            program.kill()

    def case(self, case: KafkaCase, figure: Figure) -> None:
        """Measure a case once more, into `figure`."""
        target = self.target
        machine = self.machine
        more = case.settings(self.bootstrap, self._called(case.topic), _group())
        ordering = "per_distinct_id" if case.ordered else "none"
        with (
            upstream(target.sink_port, machine.load_core) as sink,
            target.running(
                machine.target_core, case.compression, ordering, disk=case.disk, more=more
            ) as program,
            profiled(program, self.profile and self.profile / f"{case.name}.svg", PROFILED),
        ):
            self._measure(program, sink, figure)

    def _called(self, topic: Topic) -> str:
        return f"{self.run}-{topic.content}-{topic.codec}"

    def _measure(self, program: Program, counted: Upstream, figure: Figure) -> None:
        cpu = program.cpu_seconds()
        core = core_seconds(self.machine.target_core)
        began = time.monotonic()
        arrived = counted.wait_for(self.records)
        program.check()
        busy = program.cpu_seconds() - cpu
        core = core_seconds(self.machine.target_core) - core
        seconds = time.monotonic() - began
        figure.add(arrived, busy, core, seconds, self.records)


@contextlib.contextmanager
def broker(core: int) -> Iterator[str]:
    """A broker on `core` until the block ends, or the one that KAFKA_BOOTSTRAP_SERVERS names;
    where it is. Raises `BenchmarkError`.
    """
    if given := os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        yield given
        return
    with contextlib.ExitStack() as held:
        try:
            with pinned(core):
                started = held.enter_context(Broker())
        except BrokerUnavailable as error:
            raise BenchmarkError(f"{error.message} {error.hint}") from error
        yield started.bootstrap


def _group() -> str:
    return f"benchmark-{os.urandom(4).hex()}"


def kafka_row(case: KafkaCase, figure: Figure, floor: Figure) -> dict[str, Any]:
    """One case's line."""
    return measured(case.name, figure, "counting loop", floor, case.share)
