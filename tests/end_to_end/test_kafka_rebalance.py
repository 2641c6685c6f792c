"""Partitions change hands while batches are in flight: nothing is committed that isn't settled,
nothing is lost, and the books balance.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.admin import dropped
from tests.support.commands import command_line
from tests.support.kafka import Kafka, MakeTopic, Record
from tests.support.members import LOOK_EVERY, Members
from tests.support.streams import GroupTopic
from tests.support.upstream import OK, Answer, Request, Upstream
from tests.support.waiting import eventually, pause
from tests.support.whole import KEY, accepted, event

Place = tuple[int, int]
"""A partition and an offset in it."""

EARLY: Final = 50
LATE: Final = 1200
"""Of each partition, the events before the one and from the other on wait for their answers; those
between them are answered at once: several of the source's units, of which some are answered whole.
"""
ANSWERED: Final = [(partition, offset) for partition in (0, 1) for offset in range(3 * EARLY, 1000)]
"""What is answered at once, however the events are put together in requests."""
ALL: Final = 3000


@dataclass
class HoldingUpstream:
    """An upstream that holds back what is early or late in its partition until it may `go_on`."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    answered: set[Place] = field(default_factory=set)
    """What was answered 200 while the rest was held back."""

    def answer(self, request: Request) -> Answer:
        """What to answer."""
        places = [_place(name) for name in request.names]
        if not all(EARLY <= offset < LATE for _, offset in places):
            return Answer(when=self.go_on)
        self.answered.update(places)
        return OK

    def unsettled(self, committed: dict[int, int]) -> list[Place]:
        """Of what is committed, the events that haven't been answered."""
        places = (
            (partition, offset) for partition, end in committed.items() for offset in range(end)
        )
        return [place for place in places if place not in self.answered]


def _place(name: str) -> Place:
    partition, _, offset = name.partition("-")
    return int(partition), int(offset)


def records(offsets: range) -> list[Record]:
    """Events of both partitions, named after their places."""
    return [
        Record(event(f"{partition}-{offset}"), partition=partition)
        for offset in offsets
        for partition in (0, 1)
    ]


@dataclass(frozen=True, slots=True)
class RebalanceRig:
    """Two partitions whose middles are answered and whose beginnings aren't, with more waiting
    than can be in flight.
    """

    stream: GroupTopic
    members: Members
    upstream: Upstream
    holding: HoldingUpstream
    program: Sequence[str]

    async def fill(self) -> None:
        """One member has all of it: much is answered, some is in flight, the rest waits."""
        await self.stream.write(records(range(LATE + 100)))
        member = await self.members.start("one", program=self.program)
        await eventually(
            lambda: self.holding.answered.issuperset(ANSWERED),
            explain=lambda: len(self.holding.answered),
        )
        await self.stream.write(records(range(LATE + 100, ALL)))
        await member.until(
            lambda shown: sum(lane.total_received for lane in shown.lanes) == 2 * ALL
        )

    async def commits(self, *, until: int) -> list[Place]:
        """Look at what the group commits until it has so many members: what of it may not be."""
        while (
            not (wrong := self.holding.unsettled(await self.stream.committed()))
            and len(await self.stream.members()) != until
        ):
            await pause(LOOK_EVERY)
        return wrong or self.holding.unsettled(await self.stream.committed())


@contextlib.asynccontextmanager
async def rig(
    kafka: Kafka, topic: MakeTopic, path: Path, program: Sequence[str] = ()
) -> AsyncIterator[RebalanceRig]:
    """A rig, started, with nothing in it."""
    stream = GroupTopic(kafka.bootstrap, await topic(2))
    holding = HoldingUpstream()
    async with Upstream(holding.answer) as upstream:
        batch = {"max_events": EARLY}
        delivery = {"concurrency": 16}
        kafka_settings = {**stream.settings, "api_key": KEY}
        async with Members(
            path, kafka_settings, upstream={"url": upstream.url}, batch=batch, delivery=delivery
        ) as members:
            yield RebalanceRig(
                stream, members, upstream, holding, program or command_line(("run",))
            )


async def test_a_rebalance_commits_nothing_unsettled(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """A second member joins while answers are held back: what is committed before, meanwhile and
    after was answered; what waited at the first is given back, and counted; both members' books
    balance all the time; in the end everything has arrived.
    """
    async with rig(kafka, topic, tmp_path) as running:
        watching = asyncio.create_task(running.members.watch())
        try:
            await running.fill()
            assert await running.commits(until=1) == []
            second = await running.members.start("two")
            assert await running.commits(until=2) == []
            first = running.members.all[0]
            shown = await first.until(lambda shown: dropped(shown, "returned_to_broker"))
            assert dropped(shown, "returned_to_broker") > LATE
            await second.until(
                lambda shown: sum(lane.total_received for lane in shown.lanes) == ALL
            )
            assert await running.commits(until=2) == []
            running.holding.go_on.set()
            await running.stream.settled()
            assert [await member.stop() for member in (first, second)] == [0, 0]
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        assert running.members.problems == []
        assert running.members.looks > 20
        assert accepted(running.upstream).keys() == {record.value for record in records(range(ALL))}


async def test_the_highest_offset_would_be_noticed(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """The test above isn't blind: a forwarder that commits the highest settled offset is found
    out, before anybody else joins even.
    """
    program = (sys.executable, "-m", "tests.support.highest_offset", "run")
    async with rig(kafka, topic, tmp_path, program) as running:
        await running.fill()
        wrong: list[Place] = []
        async with asyncio.timeout(60):
            while not wrong:
                wrong = await running.commits(until=1)
        assert {offset for _, offset in wrong} >= set(range(EARLY))
