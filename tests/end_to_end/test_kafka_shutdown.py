"""A member ends, in good order or not, with its buffer in memory or on disk: nothing is lost, and
the next one continues from there.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from forwarder.telemetry.snapshot import State
from tests.support.admin import total
from tests.support.kafka import Kafka, MakeTopic
from tests.support.members import Members
from tests.support.streams import GroupTopic
from tests.support.upstream import OK, Answer, Request, Upstream, plain
from tests.support.waiting import eventually
from tests.support.whole import KEY, accepted, events

RAW = events(3000)


async def test_sigterm_in_mid_stream_repeats_nothing(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """What was read is delivered and committed, the exit code is 0, and the next start continues:
    each event arrives once.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(2))
    go_on = asyncio.Event()

    def answer(request: Request) -> Answer:
        return Answer(when=go_on) if len(upstream.requests) > 5 else OK

    settings = {**stream.settings, "api_key": KEY, "max_in_flight": "100kB"}
    limits = {"max_event": "10kB"}
    batch = {"max_events": 50}
    async with (
        Upstream(answer) as upstream,
        Members(tmp_path, settings, upstream=limits, batch=batch) as members,
    ):
        await stream.write(RAW)
        first = await members.start("one", upstream={"url": upstream.url})
        await upstream.until(lambda: upstream.in_flight > 0 and len(upstream.requests) > 5)
        first.send(signal.SIGTERM)
        await first.until(lambda shown: shown.state is State.DRAINING)
        go_on.set()
        assert await first.ended() == 0
        left = len(RAW) - sum((await stream.committed()).values())
        assert 0 < left == len(RAW) - len(accepted(upstream))
        assert await stream.members() == []
        await members.start("two", upstream={"url": upstream.url})
        await stream.settled()
        assert accepted(upstream) == dict.fromkeys(RAW, 1)


async def test_records_that_a_drain_leaves_are_read_again(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """With the upstream down a member with a memory buffer commits nothing, makes no dead letters,
    ends with 0: the broker has it all.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(2))
    settings = {**stream.settings, "api_key": KEY}
    shutdown = {"drain_timeout": "200ms"}
    async with (
        Upstream() as upstream,
        Members(tmp_path, settings, upstream={"url": upstream.url}, shutdown=shutdown) as members,
    ):
        upstream.answer = lambda _: plain(503)
        await stream.write(RAW)
        first = await members.start("one")
        await first.until(lambda shown: total(shown, "buffered") == len(RAW))
        assert await first.stop() == 0
        assert not any((await stream.committed()).values())
        upstream.answer = lambda _: OK
        second = await members.start("one")
        await stream.settled()
        assert total(await second.status(), "total_dead") == 0
        assert accepted(upstream) == dict.fromkeys(RAW, 1)


async def test_commit_disk_and_a_kill(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> None:
    """With `commit: disk` the group is through before anything is delivered; after a kill -9 the
    same directory delivers all of it.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(2))
    settings = {**stream.settings, "api_key": KEY, "commit": "disk"}
    async with (
        Upstream() as upstream,
        Members(
            tmp_path, settings, upstream={"url": upstream.url}, buffer={"kind": "disk"}
        ) as members,
    ):
        await upstream.stop()
        await stream.write(RAW)
        first = await members.start("one")
        await stream.settled()
        await first.kill()
        async with upstream:
            second = await members.start("one")
            await second.until(lambda shown: total(shown, "delivered") == len(RAW))
            assert await second.stop() == 0
            assert accepted(upstream) == dict.fromkeys(RAW, 1)


async def test_commit_delivered_on_disk_and_a_kill(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """With a disk buffer and `commit: delivered` nothing is committed before it is delivered;
    after a kill -9 all of it arrives.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(2))
    settings = {**stream.settings, "api_key": KEY}
    async with (
        Upstream() as upstream,
        Members(
            tmp_path, settings, upstream={"url": upstream.url}, buffer={"kind": "disk"}
        ) as members,
    ):
        await upstream.stop()
        await stream.write(RAW)
        first = await members.start("one")
        await first.until(lambda shown: total(shown, "buffered") == len(RAW))
        assert not any((await stream.committed()).values())
        await first.kill()
        async with upstream:
            second = await members.start("one")
            await stream.settled()
            await second.until(lambda shown: not total(shown, "buffered"))
            await eventually(lambda: accepted(upstream).keys() == set(RAW))
            assert await second.stop() == 0
