"""A topic and the group that reads it, which has the topic's name: how forwarders are configured
for them, and how far the group is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.errors import KafkaError

from tests.support.kafka import Record, admin, committed, ends, produce
from tests.support.waiting import LIMIT, pause

ASK_EVERY: Final = 0.02
"""Seconds between two questions to the broker."""


@dataclass(frozen=True, slots=True)
class GroupTopic:
    """A topic at a broker, and the group that reads it."""

    bootstrap: str
    topic: str

    @property
    def settings(self) -> dict[str, Any]:
        """A cluster as in `sources.kafka`: it reads this topic, and is quick in all it does."""
        return {
            "bootstrap_servers": self.bootstrap,
            "topics": [self.topic],
            "group_id": self.topic,
            "commit_interval": "100ms",
            "fetch_max_wait": "100ms",
            "session_timeout": "2s",
            "revocation_timeout": "1s",
        }

    async def write(
        self, records: Iterable[Record | bytes], compression: str | None = None
    ) -> list[tuple[int, int]]:
        """Append records; the partition and the offset of each."""
        return await produce(self.bootstrap, self.topic, records, compression)

    async def committed(self) -> dict[int, int]:
        """Of each partition that the group has committed an offset of, that offset."""
        return await committed(self.bootstrap, self.topic, self.topic)

    async def ends(self) -> dict[int, int]:
        """The next offset of each partition."""
        return await ends(self.bootstrap, self.topic)

    async def members(self) -> list[str]:
        """The ids of those that are in the group now; empty while it is being rebalanced, or the
        broker can't say.
        """
        try:
            async with admin(self.bootstrap) as client:
                (answer,) = await client.describe_consumer_groups([self.topic])
        except KafkaError as error:
            if error.retriable:
                return []
            raise
        ((_, _, state, _, _, members, *_),) = answer.groups
        return sorted(member[0] for member in members) if state == "Stable" else []

    async def joined(self, count: int, limit: float = LIMIT) -> list[str]:
        """Wait until so many are in the group, and each knows its partitions; their ids."""
        members: list[str] = []
        try:
            async with asyncio.timeout(limit):
                while len(members := await self.members()) != count:
                    await pause(ASK_EVERY)
        except TimeoutError:
            raise AssertionError(
                f"{members} are in the group after {limit:g} s, not {count}"
            ) from None
        return members

    async def settled(self, limit: float = LIMIT) -> None:
        """Wait until the group has committed all there is."""
        expected = {partition: end for partition, end in (await self.ends()).items() if end}
        offsets: dict[int, int] = {}
        try:
            async with asyncio.timeout(limit):
                while not expected.items() <= (offsets := await self.committed()).items():
                    await pause(ASK_EVERY)
        except TimeoutError:
            raise AssertionError(f"committed {offsets} of {expected} after {limit:g} s") from None
