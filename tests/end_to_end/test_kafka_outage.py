"""The upstream is down for longer than a member may be stuck: it stays in its group, its memory
stays flat, and all arrives later.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

from forwarder.telemetry.snapshot import Snapshot, UpstreamState
from tests.support.admin import resident, total
from tests.support.kafka import Kafka, MakeTopic
from tests.support.members import HURRIED, Members
from tests.support.streams import GroupTopic
from tests.support.upstream import Upstream
from tests.support.whole import KEY, accepted, events

MIB: Final = 1024 * 1024
COUNT: Final = 30_000
MAX_IN_FLIGHT: Final = 2 * MIB
GROWTH: Final = 16 * MIB
"""By which a process may grow: several times what it holds of records, and far
less than they are together.
"""
FLOWING: Final = 32 * MIB
"""By which it may grow while records flow: some more, since what was fetched waits beside what is
in flight.
"""
OUTAGE: Final = 4.0
"""Seconds that an event waits at least: several times `max_poll_interval` and `session_timeout`."""


def waited(shown: Snapshot) -> float:
    """How long the oldest event has waited."""
    return max((lane.oldest_age or 0 for lane in shown.lanes), default=0)


async def test_an_outage_longer_than_max_poll_interval(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """The same member, no rebalance, partitions paused, a lag that is reported, memory flat; then
    everything once, and no lag.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(4))
    raw = events(COUNT, padding=1000)
    quick = {"max_poll_interval": "1s", "session_timeout": "1s", "revocation_timeout": "500ms"}
    settings = {**stream.settings, **quick, "api_key": KEY, "max_in_flight": str(MAX_IN_FLIGHT)}
    async with (
        Upstream() as upstream,
        Members(tmp_path, settings, upstream={"url": upstream.url}) as members,
    ):
        await upstream.stop()
        member = await members.start("one")
        first = await stream.joined(1)
        rebalances = await member.metric("forwarder_kafka_rebalances_total")
        await stream.write(raw[:1000])
        await member.until(
            lambda shown: shown.upstream.state is UpstreamState.DOWN and total(shown, "buffered")
        )
        before = resident(member.process.pid)
        await stream.write(raw[1000:])
        shown = await member.until(lambda shown: waited(shown) > OUTAGE)
        assert resident(member.process.pid) < before + GROWTH < before + len(b"".join(raw)) // 2
        assert total(shown, "buffered") < COUNT // 2
        assert await stream.joined(1) == first
        assert await member.metric("forwarder_kafka_rebalances_total") == rebalances
        assert await member.metric("forwarder_kafka_paused_partitions") > 0
        assert 0 < await member.metric("forwarder_kafka_in_flight_bytes") < 2 * MAX_IN_FLIGHT
        assert await member.ready() == 200
        async with upstream:
            await stream.settled()
            await member.until(lambda shown: total(shown, "delivered") == COUNT)
            assert await member.metric("forwarder_kafka_lag") == 0
            assert await member.metric("forwarder_kafka_paused_partitions") == 0
            assert await stream.joined(1) == first
            assert await member.stop() == 0
            assert accepted(upstream) == dict.fromkeys(raw, 1)


async def test_memory_stays_flat_while_records_flow(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Partitions that pause and continue again and again, since little may be in flight, cost no
    more memory for that.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(8))
    raw = events(60_000, padding=200)
    settings = {**stream.settings, "api_key": KEY, "max_in_flight": "500kB"}
    async with (
        Upstream(keeps=False) as upstream,
        Members(tmp_path, settings, upstream={"max_event": "100kB"}) as members,
    ):
        member = await members.start("one", upstream={"url": upstream.url})
        await stream.write(raw[:10_000])
        await member.until(lambda shown: total(shown, "delivered") == 10_000)
        before = resident(member.process.pid)
        await stream.write(raw[10_000:])
        await member.until(lambda shown: total(shown, "delivered") == len(raw))
        assert resident(member.process.pid) < before + FLOWING


async def test_the_lag_is_reported_while_partitions_are_paused(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """What is written while the upstream is down shows in the lag, although nothing is read."""
    stream = GroupTopic(kafka.bootstrap, await topic(1))
    settings = {**stream.settings, "api_key": KEY, "max_uncommitted": 100}
    async with (
        Upstream() as upstream,
        Members(tmp_path, settings, upstream={"url": upstream.url}) as members,
    ):
        await upstream.stop()
        member = await members.start("one", program=HURRIED)
        await stream.write(events(200, "a"))
        await member.reaches("forwarder_kafka_lag", 200)
        await stream.write(events(300, "b"))
        await member.reaches("forwarder_kafka_lag", 500)
        async with upstream:
            await member.reaches("forwarder_kafka_lag", 0)
            await stream.settled()
            member.send(signal.SIGTERM)
            assert await member.process.wait() == 0
