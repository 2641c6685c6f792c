"""A load of a soak, in a process of its own: `python -m tests.soak.sender events|flags SEED BEGAN
JOURNAL PORT RATE`.

It obeys `stop`.

Requests come at their times, whatever the daemon does (`benchmarks.load`); the journal says of
each what came of it.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.bodies import Request
from benchmarks.load import Load
from benchmarks.passing import flag_call
from tests.crash.children import Message, obey
from tests.crash.journal import JournalWriter, Layout
from tests.soak.plan import SdkPlan

CONNECTIONS: Final = 16
LONGEST_PAUSE: Final = 5.0
FOREVER: Final = 7 * 86_400.0


class AnswerEntry(NamedTuple):
    """What came of a request: its status (`UNKNOWN` without an answer), when it was due, by the
    system's clock, and how long it took.
    """

    number: int
    status: int
    due: float
    seconds: float


ANSWERS: Final = Layout(struct.Struct("<QHdd"), AnswerEntry)


class JournalWatch:
    """Prepares requests by the plan, and notes what came of them."""

    def __init__(self, journal: JournalWriter, plan: SdkPlan | None) -> None:
        self._journal = journal
        self._plan = plan
        self._began = time.time() - time.monotonic()

    def prepare(self, request: Request, number: int) -> None:
        if self._plan is not None:
            self._plan.prepare(request, number)

    def note(self, number: int, _request: Request, status: int, due: float, seconds: float) -> None:
        self._journal.note(number, status, self._began + due, seconds)


async def main() -> None:
    """Send until it is asked to stop, or the parent closes the input."""
    parser = argparse.ArgumentParser()
    for name, kind in (
        ("what", str),
        ("seed", int),
        ("began", float),
        ("journal", Path),
        ("port", int),
        ("rate", float),
    ):
        parser.add_argument(name, type=kind)
    given = parser.parse_args()
    journal = JournalWriter(given.journal, ANSWERS)
    plan = SdkPlan(given.seed, given.began) if given.what == "events" else None
    requests = plan.requests if plan else [flag_call()]
    watch = JournalWatch(journal, plan)
    load = Load(
        requests, CONNECTIONS, given.port, longest_pause=LONGEST_PAUSE, rate=given.rate, watch=watch
    )
    sending = asyncio.create_task(asyncio.to_thread(load.run, FOREVER))

    async def handle(_: Message) -> Message:
        load.stop()
        tally = await sending
        return {"requests": tally.requests, "broken": tally.broken}

    await obey(handle)
    load.stop()
    await sending
    journal.close()


if __name__ == "__main__":
    asyncio.run(main())
