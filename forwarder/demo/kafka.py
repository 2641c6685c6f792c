"""The demo with Kafka: a broker, the sandbox, and a forwarder that reads two topics, to see it work.

Invariants: it is the product's own pipeline; what it claims at the end is compared, event by event, with what the sandbox holds: each
event that was produced is there once, with its own uuid where it has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from forwarder.config.settings import Settings
from forwarder.core.clock import Clock, SystemClock
from forwarder.demo.broker import Broker
from forwarder.demo.demo import SETTLE_SECONDS, Forwarder, Ports, Verdict, running, settled
from forwarder.demo.records import EVENTS_TOPIC, MAPPING, NUMBER, PAYMENTS_TOPIC, SampleRecord, records
from forwarder.demo.traffic import PROJECT_KEY
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.telemetry.snapshot import Snapshot

PARTITIONS: Final = 4
GROUP: Final = "forwarder-demo"

_SKIPPED: Final = {"tombstone": "tombstones", "filtered": "not wanted"}


class KafkaDemo:
    """A running demo; `open_kafka_demo` makes one."""

    def __init__(self, sandbox: Sandbox, forwarder: Forwarder, producer: AIOKafkaProducer, bootstrap: str) -> None:
        self.sandbox_url = sandbox.url
        self.admin_address = forwarder.admin.address
        self.entrance = f"records go in at Kafka {bootstrap}  (topic {EVENTS_TOPIC} for events; {PAYMENTS_TOPIC} for JSON that is mapped)"
        self._sandbox = sandbox
        self._forwarder = forwarder
        self._producer = producer
        self._clock: Clock = SystemClock()
        self._events: dict[int, str | None] = {}
        self._broken = 0
        self._stop = asyncio.Event()
        self._produced = 0

    @property
    def sent(self) -> int:
        """Events among the records that were produced."""
        return len(self._events)

    def beside(self) -> str:
        """What else there is to tell of what was sent."""
        clusters = self.snapshot().kafka
        read = sum((Counter(cluster.records) for cluster in clusters), Counter[str]())
        rest = ", ".join(f"{words} {read[name]:,}" for name, words in _SKIPPED.items() if read[name])
        lag = sum(cluster.lag for cluster in clusters)
        return f" in {self._produced:,} records, of which {read.total():,} are read{rest and f' ({rest})'}; lag {lag:,}"

    @property
    def stopping(self) -> bool:
        """Whether the traffic was told to stop."""
        return self._stop.is_set()

    def snapshot(self) -> Snapshot:
        """The forwarder's state now."""
        return self._forwarder.pipeline.snapshot()

    async def traffic(self, visitors: int | None, pause: float = 0.0) -> None:
        """Produce the story. Cancelled, or after `stop_traffic`, it ends at the next record, and what was produced is sent all the same."""
        try:
            for record in records(visitors):
                if self.stopping:
                    return
                await self._produce(record)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause) if pause else None
        finally:
            await self._producer.flush()

    def stop_traffic(self) -> None:
        """Produce nothing more."""
        self._stop.set()

    async def settle(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Wait until all that was produced is read and nothing is buffered, for at most `seconds`; whether that came about."""
        return await settled(self._clock, self._at_rest, seconds)

    async def verdict(self) -> Verdict:
        """Compare what was produced with what the sandbox holds."""
        found: dict[int, str] = {}
        strangers = changed = 0
        for event in await self._sandbox.events():
            number = json.loads(event.properties).get(NUMBER)
            if number not in self._events or number in found:
                strangers += 1
                continue
            found[number] = event.uuid
            changed += self._events[number] not in {None, event.uuid}
        conflicts = changed + len(await self._sandbox.conflicts())
        missing = len(self._events) - len(found)
        return Verdict(self.sent, len(found) + strangers, missing, conflicts, self.snapshot(), unreadable=self._broken)

    def _at_rest(self) -> bool:
        lanes = self.snapshot().lanes
        received = sum(lane.total_received for lane in lanes)
        return received >= self.sent + self._broken and not any(lane.buffered for lane in lanes)

    async def _produce(self, record: SampleRecord) -> None:
        await self._producer.send(record.topic, record.value, key=record.key.encode())
        self._produced += 1
        self._broken += record.broken
        if record.number is not None and record.value is not None:
            self._events[record.number] = json.loads(record.value).get("uuid")


@contextlib.asynccontextmanager
async def open_kafka_demo(ports: Ports) -> AsyncIterator[KafkaDemo]:
    """Start broker, sandbox, forwarder and admin server; at the end drain, and close all. Raises `BrokerUnavailable`.

    The first time, the broker's files are fetched, which takes some ten seconds more.
    """
    async with open_broker() as bootstrap, Sandbox(SandboxOptions(listen=f"127.0.0.1:{ports.sandbox}")) as sandbox:
        await _make_topics(bootstrap)
        with tempfile.TemporaryDirectory(prefix="forwarder-demo-") as letters:  # never beside those of a forwarder that is in earnest
            settings = _settings(sandbox.url, f"127.0.0.1:{ports.ingestion}", letters, bootstrap)
            async with (
                AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=10) as producer,
                running(settings, f"127.0.0.1:{ports.admin}") as forwarder,
            ):
                yield KafkaDemo(sandbox, forwarder, producer, bootstrap)


@contextlib.asynccontextmanager
async def open_broker() -> AsyncIterator[str]:
    """A broker until the block ends; where it is. Raises `BrokerUnavailable`."""
    broker = Broker()
    await asyncio.to_thread(broker.__enter__)
    try:
        yield broker.bootstrap
    finally:
        await asyncio.to_thread(broker.close)


async def _make_topics(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (EVENTS_TOPIC, PAYMENTS_TOPIC)])
    finally:
        await admin.close()


def _settings(upstream: str, ingestion: str, letters: str, bootstrap: str) -> Settings:
    """The default ones, but for addresses, the place of dead letters, and the topics: events as they are, payments mapped."""
    cluster: dict[str, Any] = {"bootstrap_servers": bootstrap, "api_key": PROJECT_KEY}
    events = {**cluster, "name": "events", "topics": [EVENTS_TOPIC], "group_id": f"{GROUP}-events"}
    mapped = {"format": "json", "mapping": MAPPING}
    payments = {**cluster, "name": "payments", "topics": [PAYMENTS_TOPIC], "group_id": f"{GROUP}-payments", **mapped}
    return Settings.parse(
        {
            "upstream": {"url": upstream},
            "sources": {"http": {"listen": ingestion}, "kafka": [events, payments]},
            "dead_letters": {"path": letters},
        }
    )
