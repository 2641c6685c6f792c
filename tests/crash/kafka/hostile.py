"""A hostile hour, compressed: forwarders join, leave, are killed, and are stopped for longer than
their session lasts, one after another.

What happens when follows from the seed; when each deed is done, so much has arrived. A forwarder
that was stopped is another's predecessor when it continues: it may neither commit over that one nor
lose what it held.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Final

from forwarder.demo.broker import Broker
from tests.crash.frame import Say, silent
from tests.crash.kafka.campaign import Disaster, KafkaCampaign, KafkaOptions
from tests.support.streams import ASK_EVERY
from tests.support.upstream import Fault, failing, plain
from tests.support.waiting import eventually, pause

LEAST: Final = 2
"""Forwarders that run at least before one goes."""


class HostileHour(KafkaCampaign):
    """So many deeds, evenly spread over the records; at the first someone stalls."""

    names = ("one", "two", "three", "four")

    def __init__(
        self, options: KafkaOptions, root: Path, broker: Broker, deeds: int, say: Say = silent
    ) -> None:
        super().__init__(options, root, broker, say)
        self._deeds = random.Random(options.seed)
        self._count = deeds

    async def _live(self) -> None:
        for name in self.names[:LEAST]:
            await self._start(name)
        for number in range(self._count):
            what, deed = self._next() if number else self._stall(self.names[0])
            await self._at(0.05 + 0.85 * number / self._count, what, deed)
        await self._finish()

    def _next(self) -> tuple[str, Disaster]:
        """What is done next, and how."""
        absent = [name for name in self.names if name not in self._members]
        name = self._deeds.choice(list(self._members))
        if absent and (len(self._members) < LEAST or self._deeds.random() < 0.3):
            return f"{absent[0]} joins", lambda: self._start(absent[0])
        deeds: list[tuple[str, Disaster]] = [
            self._stall(name),
            (f"{name} leaves", lambda: self._end(name)),
            (f"{name} is killed, and comes back", lambda: self._kill(name)),
            ("the upstream answers 429", lambda: self._storm(plain(429))),
            (
                "the upstream takes events and resets the connection",
                lambda: self._storm(failing(Fault.RESET)),
            ),
        ]
        return self._deeds.choices(deeds, (6, 2, 2, 1, 1))[0]

    def _stall(self, name: str) -> tuple[str, Disaster]:
        return f"{name} is stopped until the group does without it", lambda: self._freeze(name)

    async def _freeze(self, name: str) -> None:
        """Stop a process while the sandbox has taken events of it that it doesn't know of, and let
        it continue when others have its share.
        """
        member = self._members[name]
        relay = self._relays[name]
        await self._joined(name, is_member=True)
        relay.goes_back.clear()
        await eventually(lambda: relay.kept_back, self._options.patience)
        member.send(signal.SIGSTOP)
        relay.goes_back.set()
        try:
            await self._joined(name, is_member=False)
            before = await self._stream.committed()
        finally:
            member.send(signal.SIGCONT)
        await self._joined(name, is_member=True)
        after = await self._stream.committed()
        back = {
            partition: (offset, after.get(partition))
            for partition, offset in before.items()
            if after.get(partition, 0) < offset
        }
        self._evidence.check([f"{name} committed over its successor: {back}"] if back else [])

    async def _joined(self, name: str, *, is_member: bool) -> None:
        """Wait until a forwarder is in the group and all have their partitions, or
        until it isn't.
        """
        while (members := await self._stream.members()) == [] or any(
            member.startswith(f"{name}-") for member in members
        ) is not is_member:
            await pause(ASK_EVERY)
