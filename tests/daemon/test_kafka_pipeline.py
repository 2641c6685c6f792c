"""A pipeline that reads a real broker, at its end: what Kafka has still is left to Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from forwarder.core.clock import SystemClock
from tests.support.kafka import Kafka, MakeTopic, committed, produce, unique
from tests.support.upstream import Fault, Upstream, failing
from tests.support.waiting import eventually
from tests.support.whole import KEY, Whole

pytestmark = pytest.mark.slow

EVENT = (
    b'{"event":"e","distinct_id":"d","timestamp":"2026-01-01T00:00:00Z","uuid":"0198c0de-0000-'
    b'7000-8000-%012d"}'
)


def sources(kafka: Kafka, topic: str, **cluster: Any) -> dict[str, Any]:
    """The section for one cluster."""
    read = {
        "bootstrap_servers": (kafka.bootstrap,),
        "topics": (topic,),
        "group_id": unique("group"),
        "api_key": KEY,
        **cluster,
    }
    return {"http": {"listen": "127.0.0.1:0"}, "kafka": (read,)}


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_undelivered_records_are_not_committed(
    kafka: Kafka, topic: MakeTopic, kind: str
) -> None:
    """With requests in flight that get no answer: nothing becomes a dead letter, nothing stays in
    the files, the books balance, and the offset that is committed is the one before all of it.
    """
    name = await topic()
    await produce(kafka.bootstrap, name, [EVENT % number for number in range(3000)])
    async with Upstream(lambda _: failing(Fault.HANG)) as upstream:
        read = sources(kafka, name)
        async with Whole(
            upstream.url,
            SystemClock(),
            sources=read,
            buffer={"kind": kind},
            batch={"max_events": 500},
        ) as forwarder:
            await forwarder.until(
                lambda: (
                    forwarder.snapshot.in_flight
                    and sum(lane.buffered for lane in forwarder.snapshot.lanes) == 3000
                )
            )
            forwarder.pipeline.stop_accepting()
            assert not await forwarder.pipeline.drain(0.1)
        [lane] = forwarder.snapshot.lanes
        assert forwarder.left == []
        assert (lane.dropped, lane.dead_lettered, lane.buffered) == (
            {"returned_to_broker": 3000},
            {},
            0,
        )
        assert lane.difference == 0
    assert await committed(kafka.bootstrap, read["kafka"][0]["group_id"], name) in ({}, {0: 0})


async def test_records_delivered_in_the_drain_are_committed(kafka: Kafka, topic: MakeTopic) -> None:
    """The group is left after the drain, so that nothing of it comes twice."""
    name = await topic()
    await produce(kafka.bootstrap, name, [EVENT % number for number in range(1000)])
    async with Upstream() as upstream:
        read = sources(kafka, name, commit_interval="1h")
        async with Whole(
            upstream.url, SystemClock(), sources=read, batch={"max_age": "1h"}
        ) as forwarder:
            await forwarder.until(
                lambda: sum(lane.buffered for lane in forwarder.snapshot.lanes) == 1000
            )
            forwarder.pipeline.stop_accepting()
            assert forwarder.snapshot.kafka[0].state == "stopping"
            assert await forwarder.pipeline.drain(20.0)
        assert forwarder.snapshot.lanes[0].delivered == 1000
    assert await committed(kafka.bootstrap, read["kafka"][0]["group_id"], name) == {0: 1000}


async def test_readiness_is_not_kafkas() -> None:
    """A broker that isn't there is a warning that names the setting, and no reason to take the
    process away.
    """
    read = {
        "http": {"listen": "127.0.0.1:0"},
        "kafka": ({"bootstrap_servers": ("127.0.0.1:9",), "topics": ("t",), "api_key": KEY},),
    }
    async with (
        Upstream() as upstream,
        Whole(upstream.url, SystemClock(), sources=read) as forwarder,
    ):
        await eventually(lambda: forwarder.snapshot.kafka[0].state == "down")
        assert forwarder.snapshot.ready
        [warning] = forwarder.snapshot.warnings
        assert warning.startswith("kafka kafka: bootstrap_servers: nothing listens on 127.0.0.1:9")
        assert "retried in" in warning
