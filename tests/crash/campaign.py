"""The crash test itself: load and faults continue while the daemon is killed again and again; then
all is healed, drained and checked.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from forwarder.core.event import Lane
from tests.crash.arrivals import Arrivals
from tests.crash.children import Child
from tests.crash.files import Unreadable, audit, read_files
from tests.crash.frame import CampaignFolder, Say, silent
from tests.crash.journal import ENTRIES, JournalReader
from tests.crash.load_plan import LoadPlan
from tests.crash.oracle import Account, Oracle
from tests.crash.schedule import Schedule, ScheduledKill
from tests.crash.scraper import Scraper, Status, books_of
from tests.crash.victim import CrashVictim, Places, command, write_config

KILLED: Final = -9
STARTED_WITHIN: Final = 30.0
"""Seconds in which a daemon has to listen."""
COMMAND_LIMIT: Final = 60.0
"""Seconds in which an operator's command has to be done, beside a daemon that is busy."""
PATIENCE: Final = 3.0
"""Seconds, from listening, in which an armed failpoint should be passed."""
STUCK: Final = (range(4, 20), 26)
"""The historical lane isn't served in these cycles of each so many: its old events
then pin their segments.
"""
AWAY: Final = (range(2, 4), 9)
"""Nothing is served in these: a backlog grows, and has to be read back."""
NEED_ANSWERS: Final = frozenset(
    {"bisect.cut", "dead_letters.begin", "dead_letters.committed", "settle.marked", "replay.held"}
)
"""Failpoints that aren't passed while nothing is served."""
REPLAY: Final = (
    "dead-letters",
    "replay",
    "--reason",
    "refused",
    "--limit",
    "30",
    "--no-wait",
    "--yes",
)
REPLAY_EVERY: Final = 17
DROP_EVERY: Final = 29
DRAIN_LIMIT: Final = 60.0
"""Seconds in which all that is left has to be delivered once the upstream is healed."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CrashOptions:
    """What to do. `rate` is in events a second; `look_every` counts kills between two looks into
    the files.
    """

    seed: int
    at_random: int
    at_failpoints: int
    names: tuple[str, ...] = ()
    rate: float = 3000.0
    least_rate: float = 0.0
    """Promised events a second, while the daemon listens, below which the load was none."""
    look_every: int = 20
    max_bytes: str = "16MB"
    """`buffer.max_bytes`: small, so that segments are used up and compacted all the time."""


@dataclass
class CrashReport:
    """What was done."""

    kills: int = 0
    hit: dict[str, int] = field(default_factory=dict)
    random: int = 0
    promised: int = 0
    sent: int = 0
    repeats: int = 0
    refused: int = 0
    looks: int = 0
    up_seconds: float = 0.0
    letters: int = 0
    books: dict[Lane, Account] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Promised events a second while the daemon listened."""
        return self.promised / self.up_seconds if self.up_seconds else 0.0


def _is_away(kill: ScheduledKill, cycle: int) -> bool:
    """Whether the upstream serves nothing in a cycle: not when its answers are needed."""
    return cycle % AWAY[1] in AWAY[0] and kill.failpoint not in NEED_ANSWERS


class CrashCampaign:
    """One run in a directory of its own."""

    def __init__(self, options: CrashOptions, root: Path, say: Say = silent) -> None:
        self._say = say
        self._options = options
        self._evidence = CampaignFolder(
            root, lambda: f"seed {options.seed}, after {self.report.kills} kills"
        )
        self._places = Places.choose(root)
        self._plan = LoadPlan(options.seed)
        self._oracle = Oracle(self._plan)
        self._journal = JournalReader(self._places.journal, ENTRIES)
        self._scraper = Scraper(self._places.admin)
        self._schedule = Schedule(
            options.seed, options.at_random, options.at_failpoints, options.names
        )
        self._random = random.Random(~options.seed)
        self._received: dict[Lane, int] = {}
        """What the books said last was received."""
        self.report = CrashReport()

    async def run(self) -> CrashReport:
        """Do it all. Raises `CrashFailure`. Cancellation kills all processes."""
        places = self._places
        self._upstream = await Child.start(
            "tests.crash.faulty", places.log, str(self._options.seed)
        )
        try:
            write_config(places, (await self._upstream.ask("tell"))["url"], self._options.max_bytes)
            arguments = [self._options.seed, places.journal, places.ingestion, self._options.rate]
            self._sender = await Child.start("tests.crash.sender", places.log, *map(str, arguments))
            try:
                await self._with_scraper()
            finally:
                await self._sender.end()
        finally:
            await self._upstream.end()
        return self.report

    async def _with_scraper(self) -> None:
        scraping = asyncio.create_task(self._scraper.run())
        try:
            await self._sender.ask("go")
            while self._schedule:
                await self._cycle(self._schedule.next())
            await self._end()
        finally:
            scraping.cancel()
            await asyncio.gather(scraping, return_exceptions=True)

    async def _cycle(self, kill: ScheduledKill) -> None:
        """One life of the daemon."""
        cycle = self.report.kills
        await self._upstream.ask(
            "become", healed=False, stuck=cycle % STUCK[1] in STUCK[0], away=_is_away(kill, cycle)
        )
        self._scraper.expect()
        victim = await CrashVictim.start(self._places, kill.armed)
        hits = self._hits()
        try:
            await self._live(victim, kill)
        finally:
            code = await victim.killed()
        hit = self._hits() - hits == 1
        passed = "" if hit or not kill.failpoint else ": not passed"
        self._say(f"kill {cycle + 1}: {kill}{passed}, {time.monotonic() - victim.began:.1f} s")
        self.report.kills += 1
        self._schedule.done(kill, hit=hit)
        self._after(code)
        if self.report.kills % self._options.look_every == 0:
            await self._look(quiet_books=None)
            self._say(
                f"{self.report.kills} kills, {len(self._schedule)} to come; "
                f"{self._oracle.promised.total()} events promised"
            )

    async def _live(self, victim: CrashVictim, kill: ScheduledKill) -> None:
        if kill.starting:
            await victim.ends(kill.after)
            return
        status = await self._while_it_lives(victim, self._scraper.running(), STARTED_WITHIN)
        if status is None:
            return
        listening = time.monotonic()
        await self._judge_start(victim)
        await self._operate(victim, kill)
        await victim.ends(PATIENCE if kill.failpoint else kill.after)
        self.report.up_seconds += time.monotonic() - listening

    async def _judge_start(self, victim: CrashVictim) -> None:
        """Compare the books of a daemon that has just started with what was
        promised by all before it.
        """
        self._oracle.hear(self._journal.more())
        status = await self._while_it_lives(victim, self._scraper.next(), STARTED_WITHIN)
        if status is None:
            return
        books = books_of(status)
        self._evidence.check(self._oracle.judge_books(books, quiet=False))
        self._evidence.check(
            (
                f"{lane}: {before} events were received before the kill, and "
                f"{books.get(lane, Account()).received} after it"
            )
            for lane, before in self._received.items()
            if books.get(lane, Account()).received < before
        )

    async def _operate(self, victim: CrashVictim, kill: ScheduledKill) -> None:
        """Be the operator who replays dead letters, and drops some."""
        cycle = self.report.kills
        if kill.failpoint == "replay.held" or cycle % REPLAY_EVERY == REPLAY_EVERY - 1:
            await self._while_it_lives(victim, command(self._places, *REPLAY), COMMAND_LIMIT)
        if cycle % DROP_EVERY == DROP_EVERY - 1:
            arguments = (
                "dead-letters",
                "drop",
                "--event",
                f"poison-disposable-{self._random.randrange(7)}",
                "--yes",
            )
            await self._while_it_lives(victim, command(self._places, *arguments), COMMAND_LIMIT)

    async def _while_it_lives(
        self, victim: CrashVictim, wanted: Awaitable[Result], limit: float
    ) -> Result | None:
        """What `wanted` gives, or None if the daemon ends before. Raises `CrashFailure` after so
        many seconds.
        """
        task = asyncio.ensure_future(wanted)
        ended = asyncio.create_task(victim.ends(limit))
        try:
            await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if ended.result() is None:
                problem = (
                    f"what was waited for didn't come within {limit:g} s: {wanted}; last "
                    f"seen: {self._scraper.last}"
                )
                self._evidence.check([problem])
            return None
        finally:
            for waiter in (task, ended):
                waiter.cancel()
            await asyncio.gather(task, ended, return_exceptions=True)

    def _after(self, code: int) -> None:
        """Check what was seen of the daemon that has just been killed."""
        if self._scraper.last is not None:
            self._received = {
                lane: account.received for lane, account in books_of(self._scraper.last).items()
            }
        self._evidence.check([f"the daemon ended by itself, with {code}"] if code != KILLED else ())
        self._evidence.check(self._scraper.problems)
        self._evidence.check(self._evidence.complaints())

    async def _look(self, quiet_books: dict[Lane, Account] | None) -> None:
        """With the daemon down: stop the load for a moment, and check the files."""
        await self._sender.ask("pause")
        self._oracle.hear(self._journal.more())
        saved = self._places.root / "arrivals"
        reported = await self._upstream.ask("save", path=str(saved))
        self.report.repeats = reported["repeats"]
        self.report.refused = reported["refused"]
        try:
            holdings = await read_files(self._places)
        except Unreadable as error:
            raise self._evidence.failure([str(error)]) from error
        self._evidence.check(self._oracle.judge(Arrivals.load(saved), holdings))
        self._evidence.check(await audit(self._places))
        self.report.letters = len(holdings.letters)
        if quiet_books is not None:
            self._evidence.check(
                [f"{len(holdings.buffered)} events are left in the buffer"]
                if holdings.buffered
                else ()
            )
            self._evidence.check(self._oracle.judge_end(quiet_books, holdings.letters))
            return
        await self._sender.ask("go")

    async def _end(self) -> None:
        """Heal the upstream, let everything arrive, end the daemon in good order, and check."""
        self._evidence.check([f"never hit: {name}" for name in self._schedule.never_hit()])
        await self._upstream.ask("become", healed=True, stuck=False, away=False)
        self._scraper.expect()
        victim = await CrashVictim.start(self._places)
        try:
            status = await self._drained(victim)
            code = await victim.stopped()
        finally:
            await victim.killed()
        self._evidence.check([f"the daemon ended with {code} when it was asked to"] if code else ())
        self._evidence.check(self._scraper.problems)
        self._evidence.check(self._evidence.complaints())
        books = books_of(status)
        self._oracle.hear(self._journal.more())
        self._evidence.check(self._oracle.judge_books(books, quiet=True))
        await self._look(books)
        self._finish(books)

    async def _drained(self, victim: CrashVictim) -> Status:
        """The status once nothing waits any more. Poison becomes a dead letter only while its
        lane's other events are taken, so a few clean ones keep coming until little is left.
        """
        deadline = time.monotonic() + DRAIN_LIMIT
        while time.monotonic() < deadline and not victim.ended:
            await self._sender.ask("trickle")
            await self._while_it_lives(victim, self._scraper.running(), STARTED_WITHIN)
            await victim.ends(0.5)
            await self._sender.ask("pause")
            await victim.ends(0.3)
            status = await self._while_it_lives(victim, self._scraper.next(), STARTED_WITHIN)
            if status is not None and not any(lane.buffered for lane in status.lanes):
                return status
        raise self._evidence.failure(
            [f"not everything was delivered within {DRAIN_LIMIT:g} s: {self._scraper.last}"]
        )

    def _finish(self, books: dict[Lane, Account]) -> None:
        report = self.report
        report.promised = self._oracle.promised.total()
        report.sent = self._oracle.possible.total()
        report.hit = dict(self._schedule.hit)
        report.random = self._schedule.random
        report.looks = self._scraper.looks
        report.books = books
        if report.rate < self._options.least_rate:
            raise self._evidence.failure([f"only {report.rate:.0f} events/s were taken"])

    def _hits(self) -> int:
        """How many failpoints were hit until now."""
        return self._places.hits.read_text().count("\n") if self._places.hits.exists() else 0
