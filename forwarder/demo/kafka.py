"""The demo with Kafka: a broker, the sandbox, and a forwarder that reads two topics.

The records are the shop's story, with what real topics contain beside events: a tombstone, an
unreadable record, and foreign JSON (the payments), which `MAPPING` turns into events.

Invariants: it is the product's own pipeline; the verdict compares event by event with the sandbox:
each event that was produced is there once, with its own uuid where it has one. Each event carries
a number among its properties, which identifies it at the other end; every other one has neither
uuid nor timestamp.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from forwarder.config.settings import Settings
from forwarder.core.clock import Clock, SystemClock
from forwarder.demo.broker import Broker
from forwarder.demo.demo import SETTLE_SECONDS, DemoVerdict, Forwarder, Ports, running, settled
from forwarder.demo.traffic import PROJECT_KEY, story
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.telemetry.snapshot import Snapshot

PARTITIONS: Final = 4
GROUP: Final = "forwarder-demo"

_SKIPPED: Final = {"tombstone": "tombstones", "filtered": "filtered out"}


class KafkaDemo:
    """A running demo; `open_kafka_demo` makes one."""

    def __init__(
        self, sandbox: Sandbox, forwarder: Forwarder, producer: AIOKafkaProducer, bootstrap: str
    ) -> None:
        self.sandbox_url = sandbox.url
        self.admin_address = forwarder.admin.address
        self.entrance = (
            f"send records to   Kafka {bootstrap}  (topic {EVENTS_TOPIC} for events; "
            f"{PAYMENTS_TOPIC} for JSON that is mapped)"
        )
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

    def details(self) -> str:
        """More about what was sent, for the progress line."""
        clusters = self.snapshot().kafka
        read = sum((Counter(cluster.records) for cluster in clusters), Counter[str]())
        rest = ", ".join(
            f"{words} {read[name]:,}" for name, words in _SKIPPED.items() if read[name]
        )
        lag = sum(cluster.lag for cluster in clusters)
        return (
            f" in {self._produced:,} records, of which {read.total():,} are "
            f"read{rest and f' ({rest})'}; lag {lag:,}"
        )

    @property
    def stopping(self) -> bool:
        """Whether the traffic has to stop."""
        return self._stop.is_set()

    def snapshot(self) -> Snapshot:
        """The forwarder's state now."""
        return self._forwarder.pipeline.snapshot()

    async def traffic(self, visitors: int | None, pause: float = 0.0) -> None:
        """Produce the story's records. Cancelled, or after `stop_traffic`, it ends at the next
        record, and flushes what was produced.
        """
        try:
            for record in records(visitors):
                if self.stopping:
                    return
                await self._produce(record)
                if pause:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._stop.wait()
        finally:
            await self._producer.flush()

    def stop_traffic(self) -> None:
        """Produce nothing more."""
        self._stop.set()

    async def settle(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Wait until all that was produced is read and nothing is buffered, for at most `seconds`;
        whether that happened.
        """
        return await settled(self._clock, self._all_settled, seconds)

    async def verdict(self) -> DemoVerdict:
        """Compare what was produced with the sandbox's events."""
        uuids: dict[int, str] = {}
        extra = changed = 0
        for event in await self._sandbox.events():
            properties = json.loads(event.properties)
            number = properties.get(NUMBER) if isinstance(properties, dict) else None
            # somebody else's event may have any value there
            if type(number) is not int or number not in self._events:
                extra += 1
                continue
            changed += number in uuids
            uuids[number] = event.uuid
            changed += self._events[number] not in {None, event.uuid}
        changed += sum(
            conflict.first.uuid in set(uuids.values())
            for conflict in await self._sandbox.conflicts()
        )
        missing = len(self._events) - len(uuids)
        return DemoVerdict(
            self.sent,
            len(uuids),
            missing,
            changed,
            self.snapshot(),
            unreadable=self._broken,
            extra=extra,
        )

    def _all_settled(self) -> bool:
        snapshot = self.snapshot()
        read = sum(sum(cluster.records.values()) for cluster in snapshot.kafka)
        behind = any(cluster.lag for cluster in snapshot.kafka)
        return (
            read >= self._produced
            and not behind
            and not any(lane.buffered for lane in snapshot.lanes)
        )

    async def _produce(self, record: SampleRecord) -> None:
        await self._producer.send(record.topic, record.value, key=record.key.encode())
        self._produced += 1
        self._broken += record.broken
        if record.number is not None and record.value is not None:
            self._events[record.number] = json.loads(record.value).get("uuid")


@contextlib.asynccontextmanager
async def open_kafka_demo(ports: Ports) -> AsyncIterator[KafkaDemo]:
    """Start broker, sandbox, forwarder and admin server; at the end drain, and close all. Raises
    `BrokerUnavailable`.

    The first time, the broker's files are fetched, which takes some ten seconds more.
    """
    async with (
        open_broker() as bootstrap,
        Sandbox(SandboxOptions(listen=f"127.0.0.1:{ports.sandbox}")) as sandbox,
    ):
        await _make_topics(bootstrap)
        # never beside those of a real forwarder
        with tempfile.TemporaryDirectory(prefix="forwarder-demo-") as letters:
            settings = _settings(sandbox.url, f"127.0.0.1:{ports.ingestion}", letters, bootstrap)
            async with (
                AIOKafkaProducer(
                    bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=10
                ) as producer,
                running(settings, f"127.0.0.1:{ports.admin}") as forwarder,
            ):
                yield KafkaDemo(sandbox, forwarder, producer, bootstrap)


@contextlib.asynccontextmanager
async def open_broker() -> AsyncIterator[str]:
    """A broker until the block ends; its address. Raises `BrokerUnavailable`."""
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
        await admin.create_topics(
            [NewTopic(name, PARTITIONS, 1) for name in (EVENTS_TOPIC, PAYMENTS_TOPIC)]
        )
    finally:
        await admin.close()


def _settings(upstream: str, ingestion: str, letters: str, bootstrap: str) -> Settings:
    """The default settings, except for addresses, the directory of dead letters, and the topics:
    plain events, and mapped payments.
    """
    cluster: dict[str, Any] = {"bootstrap_servers": bootstrap, "api_key": PROJECT_KEY}
    events = {**cluster, "name": "events", "topics": [EVENTS_TOPIC], "group_id": f"{GROUP}-events"}
    mapped = {"format": "json", "mapping": MAPPING}
    payments = {
        **cluster,
        "name": "payments",
        "topics": [PAYMENTS_TOPIC],
        "group_id": f"{GROUP}-payments",
        **mapped,
    }
    return Settings.parse(
        {
            "upstream": {"url": upstream},
            "sources": {"http": {"listen": ingestion}, "kafka": [events, payments]},
            "dead_letters": {"path": letters},
        }
    )


EVENTS_TOPIC: Final = "shop-events"
PAYMENTS_TOPIC: Final = "shop-payments"
NUMBER: Final = "record"
"""The property that holds an event's number."""

MAPPING: Final[Mapping[str, Any]] = {
    "where": '.state != "pending"',
    "event": ".kind",
    "distinct_id": ".customer.id",
    "timestamp": {"from": ".at"},
    "properties": {"amount": ".amount", "method": ".card.brand", NUMBER: ".number"},
}
"""Of payments: the card's number isn't mapped to a property, so it isn't sent."""

PAYMENT_EVERY: Final = 7
TOMBSTONE_AT: Final = 10
BROKEN_AT: Final = 20
"""Positions in the story."""


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One record. `number` is that of the event that is to become of it; None if none is."""

    topic: str
    key: str
    value: bytes | None
    number: int | None = None
    broken: bool = False
    """Whether it is to become a dead letter."""


def records(visitors: int | None) -> Iterator[SampleRecord]:
    """The story of `visitors` visitors as records; without end for None."""
    recorder = _EventRecorder()
    number = 0
    for place, shop_event in enumerate(story(visitors)):
        shop_event.send(recorder, str(uuid4()))
        yield _event(recorder.event, number)
        number += 1
        if place % PAYMENT_EVERY == 0:
            yield _payment(number, pending=False)
            yield _payment(number, pending=True)
            number += 1
        if place == TOMBSTONE_AT:
            yield SampleRecord(EVENTS_TOPIC, "customer-0", None)
        if place == BROKEN_AT:
            yield SampleRecord(
                EVENTS_TOPIC,
                "customer-0",
                b'{"event": "order placed", "distinct_id": "custom',
                broken=True,
            )


def _event(event: dict[str, Any], number: int) -> SampleRecord:
    event["properties"][NUMBER] = number
    if number % 2:
        del event["uuid"]
    else:
        event["timestamp"] = datetime.now(UTC).isoformat()
    return SampleRecord(EVENTS_TOPIC, event["distinct_id"], _json(event), number)


def _payment(number: int, *, pending: bool) -> SampleRecord:
    customer = f"customer-{number}"
    payment = {
        "kind": "payment received",
        "state": "pending" if pending else "done",
        "number": number,
        "customer": {"id": customer},
        "at": datetime.now(UTC).isoformat(),
        "amount": 49.0,
        "card": {"brand": "Girocard", "number": "6799 9989 0000 0000"},
    }
    return SampleRecord(PAYMENTS_TOPIC, customer, _json(payment), None if pending else number)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


class _EventRecorder:
    """Plays the SDK for the story; `event` is the last event."""

    def __init__(self) -> None:
        self.event: dict[str, Any] = {}

    def capture(self, event: str, **kwargs: Any) -> None:
        """An event as a record holds it."""
        groups = {"$groups": kwargs["groups"]} if kwargs.get("groups") else {}
        self._record(
            event, kwargs["distinct_id"], {**kwargs["properties"], **groups}, kwargs["uuid"]
        )

    def alias(self, *, previous_id: str, distinct_id: str, uuid: str) -> None:
        """Two ids of one person."""
        self._record(
            "$create_alias", previous_id, {"distinct_id": previous_id, "alias": distinct_id}, uuid
        )

    def group_identify(
        self, *, group_type: str, group_key: str, properties: dict[str, Any], uuid: str
    ) -> None:
        """A group."""
        group = {"$group_type": group_type, "$group_key": group_key, "$group_set": properties}
        self._record("$groupidentify", f"{group_type}_{group_key}", group, uuid)

    def shutdown(self) -> None:
        """Nothing is queued."""

    def _record(self, event: str, distinct_id: str, properties: dict[str, Any], uuid: str) -> None:
        self.event = {
            "event": event,
            "distinct_id": distinct_id,
            "properties": properties,
            "uuid": uuid,
        }
