"""The upstream of the crash test, in a process of its own: it fails in all the ways that a service
on the internet does.

It refuses poison always, healed or not. What it takes it notes, also when its answer then fails to
arrive; only a whole answer of 200 makes an event answered.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path
from typing import Final

import msgspec

from tests.crash.arrivals import Arrivals
from tests.crash.children import Message, obey
from tests.crash.load_plan import EventKind, LoadPlan
from tests.support.upstream import OK, Answer, Fault, Request, Upstream, failing, plain

LARGEST: Final = 150_000
"""Bytes of a body that are still taken."""

FAULTS: Final[tuple[tuple[float, Answer], ...]] = (
    (0.04, plain(500, "boom")),
    (0.02, plain(503, "later", retry_after="0")),
    (0.002, plain(503, "a little later", retry_after="1")),
    (0.01, plain(429, "slowly")),
    (0.02, failing(Fault.RESET)),
    (0.02, failing(Fault.TRUNCATE)),
    (0.01, failing(Fault.CLOSE)),
    (0.005, failing(Fault.HANG)),
)
"""How often each is the answer to a request that would be taken. Some of the events that get them
are taken all the same.
"""
TAKEN_SHARE: Final = 0.5

STUCK: Final = plain(500, "this lane isn't served now")


class _Head(msgspec.Struct):
    uuid: str
    event: str


class _Body(msgspec.Struct):
    batch: list[msgspec.Raw]
    historical_migration: bool = False


_bodies: Final = msgspec.json.Decoder(_Body)
_heads: Final = msgspec.json.Decoder(_Head)


class FaultyService:
    """Decides what to answer. It begins faulty, with the historical lane served."""

    def __init__(self, plan: LoadPlan) -> None:
        self.arrivals = Arrivals()
        self.healed = False
        self.stuck = False
        """Whether the historical lane isn't served."""
        self.away = False
        """Whether nothing is served."""
        self.refused = 0
        self._plan = plan
        self._random = random.Random(plan.seed)

    def answer(self, request: Request) -> Answer:
        """What to answer to a request to `/batch/`."""
        body = request.body
        if self.away:
            return plain(500, "nobody is here")
        if len(body) > LARGEST and not self.healed:
            return plain(413, "too large")
        payload = _bodies.decode(body)
        if self.stuck and payload.historical_migration:
            return STUCK
        events = [(_heads.decode(raw), bytes(raw)) for raw in payload.batch]
        if any(head.event.startswith(EventKind.POISON) for head, _ in events):
            self.refused += 1
            return plain(400, "there is poison in it")
        answer = OK if self.healed else self._fault()
        if answer is OK or self._random.random() < TAKEN_SHARE:
            for head, event in events:
                self._note(head.uuid, event, answered=answer is OK)
        return answer

    def _note(self, uuid: str, event: bytes, *, answered: bool) -> None:
        number = self._plan.number(uuid)
        if number is None:
            self.arrivals.strangers.append(repr(event[:300]))
        else:
            self.arrivals.note(number, event, answered=answered)

    def _fault(self) -> Answer:
        dice = self._random.random()
        for share, answer in FAULTS:
            if dice < share:
                return answer
            dice -= share
        return OK

    async def handle(self, message: Message) -> Message:
        """Obey a command: `become` (healed, stuck, away), or `save` what came to a file."""
        if message["do"] == "become":
            self.healed = message["healed"]
            self.stuck = message["stuck"]
            self.away = message["away"]
        else:
            self.arrivals.save(Path(message["path"]))
        return {
            "refused": self.refused,
            "repeats": self.arrivals.repeats,
            "conflicts": len(self.arrivals.conflicts),
        }


async def main() -> None:
    """Serve until the parent lets go. The first line that is written says where."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    service = FaultyService(LoadPlan(parser.parse_args().seed))
    async with Upstream(service.answer, keeps=False) as upstream:

        async def handle(message: Message) -> Message:
            return (
                {"url": upstream.url} if message["do"] == "tell" else await service.handle(message)
            )

        await obey(handle)


if __name__ == "__main__":
    asyncio.run(main())
