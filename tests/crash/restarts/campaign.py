"""The campaign: the daemon is restarted again and again under load, in an outage and in quiet;
then all is healed, drained and checked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from tests.crash.arrivals import Arrivals
from tests.crash.children import Child
from tests.crash.files import audit, read_files
from tests.crash.frame import CampaignFolder, Say, silent
from tests.crash.journal import ENTRIES, JournalReader
from tests.crash.load_plan import LoadPlan
from tests.crash.oracle import Oracle
from tests.crash.restarts.daemon import ConnectionWatch, RestartedDaemon, Way
from tests.crash.scraper import Status, books_of
from tests.crash.victim import Places, write_config
from tests.support.waiting import pause

BETWEEN: Final = 0.7
"""Seconds of service between two restarts."""
DRAIN_LIMIT: Final = 120.0
CONNECTIONS: Final = 16_384
"""`sources.http.max_connections`: a machine that is busy starts a process so slowly that thousands
wait for it.
"""


@dataclass(frozen=True, slots=True)
class RestartOptions:
    """What to do: so many restarts in each of the two conditions."""

    seed: int
    way: Way
    restarts: int
    rate: float = 200.0
    workers: int = 1


@dataclass
class RestartFigures:
    """What was measured in one condition."""

    condition: str
    restarts: int = 0
    sent: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    stops: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)

    def row(self, way: Way) -> str:
        """It, as a line of a table."""
        cells = [
            way.value,
            self.condition,
            str(self.restarts),
            str(self.sent),
            str(self.failures.total()),
            f"{self.slowest:.2f}",
        ]
        beyond = [closed - start for closed, start in zip(self.closed, self.starts, strict=False)]
        cells += [_range(self.stops), _range(self.starts), _range(self.closed), _range(beyond)]
        return "| " + " | ".join(cells) + " |"


COLUMNS: Final = (
    "way",
    "upstream",
    "restarts",
    "requests",
    "failed",
    "slowest answer",
    "stop",
    "start",
    "closed",
    "longer than the start",
)
HEAD: Final = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


@dataclass
class RestartReport:
    """What was done."""

    figures: list[RestartFigures]
    promised: int = 0
    repeats: int = 0


class RestartCampaign:
    """One run in a directory of its own."""

    def __init__(self, options: RestartOptions, root: Path, say: Say = silent) -> None:
        self._options = options
        self._say = say
        self._evidence = CampaignFolder(root, lambda: str(options))
        self._places = places = Places.choose(root)
        self._plan = LoadPlan(options.seed)
        self._oracle = Oracle(self._plan)
        self._journal = JournalReader(places.journal, ENTRIES)
        self._daemon = RestartedDaemon(places, options.way, options.workers)
        self._door = ConnectionWatch(places.ingestion)

    async def run(self) -> RestartReport:
        """Do it all. Raises `CrashFailure`. Cancellation kills all processes."""
        places = self._places
        options = self._options
        self._upstream = await Child.start("tests.crash.faulty", places.log, str(options.seed))
        try:
            write_config(
                places,
                (await self._upstream.ask("tell"))["url"],
                "256MB",
                max_connections=CONNECTIONS,
            )
            arguments = [options.seed, places.journal, places.ingestion, options.rate]
            self._sender = await Child.start(
                "tests.crash.restarts.sender", places.log, *map(str, arguments)
            )
            try:
                return await self._with_sender()
            finally:
                await self._sender.end()
        finally:
            await self._daemon.close()
            await self._upstream.end()

    async def _with_sender(self) -> RestartReport:
        await self._become(away=False)
        await self._daemon.start()
        watching = (
            [asyncio.create_task(self._door.watch())] if self._options.way is Way.PLAIN else []
        )
        try:
            figures = [
                await self._condition("down", away=True),
                await self._condition("up", away=False),
            ]
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        report = RestartReport(figures)
        await self._judge(await self._daemon.drained(DRAIN_LIMIT), report)
        return report

    async def _condition(self, name: str, *, away: bool) -> RestartFigures:
        figures = RestartFigures(name)
        await self._become(away=away)
        self._door.closed.clear()
        await self._sender.ask("go")
        for _ in range(self._options.restarts):
            await pause(BETWEEN)
            await self._restart(figures)
        await pause(BETWEEN)
        await self._sender.ask("pause")
        reported = await self._sender.ask("tell")
        figures.sent = reported["sent"]
        figures.slowest = reported["slowest"]
        figures.failures.update(reported["failures"])
        figures.closed = list(self._door.closed)
        self._say(f"{figures.row(self._options.way)} {dict(figures.failures)}")
        return figures

    async def _restart(self, figures: RestartFigures) -> None:
        seconds, code = await self._daemon.restart()
        figures.restarts += 1
        if self._options.way is Way.IN_PLACE:
            figures.starts.append(seconds)
        else:
            figures.stops.append(seconds)
            figures.starts.append(await self._daemon.start())
        self._evidence.check([f"the daemon ended with {code}"] if code else [])

    async def _become(self, *, away: bool) -> None:
        await self._upstream.ask("become", healed=True, stuck=False, away=away)

    async def _judge(self, status: Status, report: RestartReport) -> None:
        """With the buffer empty: end the daemon, and compare what was promised with
        what arrived.
        """
        code = await self._daemon.stop()
        self._evidence.check([f"the daemon ended with {code} when it was asked to"] if code else [])
        self._evidence.check(self._evidence.complaints())
        self._oracle.hear(self._journal.more())
        books = books_of(status)
        self._evidence.check(self._oracle.judge_books(books, quiet=True))
        saved = self._places.root / "arrivals"
        report.repeats = (await self._upstream.ask("save", path=str(saved)))["repeats"]
        holdings = await read_files(self._places)
        self._evidence.check(self._oracle.judge(Arrivals.load(saved), holdings))
        self._evidence.check(self._oracle.judge_end(books, holdings.letters))
        self._evidence.check(await audit(self._places))
        report.promised = self._oracle.promised.total()


def _range(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} s, at most {max(seconds):.2f} s" if seconds else "-"
