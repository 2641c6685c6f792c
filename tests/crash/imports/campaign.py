"""The crash test of imports itself: one import into a sandbox, killed again and again, and resumed
by the same command.

Kills are timed by what has arrived at the sandbox, not by time. After each the sandbox is asked
what it has, and the checkpoint how much of that is settled: the difference was in flight, and no
more than that may come twice.
"""

from __future__ import annotations

import json
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forwarder.sources.imports.checkpoint import read_checkpoint
from forwarder.sources.imports.report import MANIFEST, ImportManifest, read_manifest
from tests.crash.frame import CampaignFolder, CrashFailure, Say, silent
from tests.crash.imports.judge import ImportVerdict, Settled, arrivals, judge
from tests.crash.imports.plan import EventPlan, write
from tests.crash.imports.service import KEY, CrashService
from tests.crash.kills import KillAtShare, schedule
from tests.crash.process import Killable
from tests.support.commands import invoked
from tests.support.waiting import eventually, in_thread

MEMORY: Final = 200_000_000
"""Resident bytes that no life of the importer may have."""
_BEFORE_KILL: Final = 600.0
"""Seconds that a life may take to come to where it is killed."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What to do. `reading`: seconds after a start in which kills come that don't wait for an
    event; `patience`: the same of the others, after the share that they wait for.
    """

    seed: int
    events: int
    kills: int
    suffix: str = ".gz"
    """How the source is packed."""
    rate: str = "unlimited"
    reading: float = 10.0
    patience: float = 1.5


@dataclass(frozen=True, slots=True)
class KilledImporter:
    """A life of the importer that was killed."""

    kill: KillAtShare
    seconds: float
    arrived: int
    """Events that the sandbox had when it was gone, each once."""
    settled: int
    """How many of them its checkpoint knew of: the first ones of the source."""
    requests: int
    """Requests that had arrived until then, in all lives."""
    repeats: int
    """Events that had come more than once, in all lives until then."""
    memory: int

    @property
    def in_flight(self) -> int:
        """Events that had arrived and weren't settled: what the next life may send again."""
        return self.arrived - self.settled


@dataclass
class ImportReport:
    """What was done."""

    size: int = 0
    packed: int = 0
    """Bytes of the source, and of its file."""
    lives: list[KilledImporter] = field(default_factory=list)
    memory: int = 0
    """The most of any life, the last one too."""
    verdict: ImportVerdict = field(default_factory=ImportVerdict)
    books: dict[str, Any] = field(default_factory=dict)
    verified: str = ""

    @property
    def in_flight(self) -> int:
        """Events that had arrived and weren't settled, of all kills together."""
        return sum(life.in_flight for life in self.lives)


class ImportCampaign:
    """One run in a directory of its own."""

    def __init__(self, options: ImportOptions, root: Path, say: Say = silent) -> None:
        self.report = ImportReport()
        self._options = options
        self._root = root
        self._say = say
        self._evidence = CampaignFolder(
            root, lambda: f"seed {options.seed}, after {len(self.report.lives)} kills"
        )
        self._plan = EventPlan(options.seed, options.events)
        self._kills = schedule(
            options.seed, options.kills, reading=options.reading, patience=options.patience
        )
        self._source = root / f"events.jsonl{options.suffix}"
        self._state = root / "state"

    async def run(self) -> ImportReport:
        """Do it all. Raises `CrashFailure`. Cancellation ends all processes."""
        self.report.size = await in_thread(lambda: write(self._plan, self._source))
        self.report.packed = self._source.stat().st_size
        sizes = (
            f"{self.report.size / 1e6:.1f} MB, as {self._source.name} "
            f"{self.report.packed / 1e6:.1f} MB"
        )
        self._say(f"{self._options.events:,} events: {sizes}")
        async with CrashService.living(self._root) as self._service:
            for kill in self._kills:
                if not await self._live(kill):
                    break
            else:
                await self._last_life()
            await self._judge()
        return self.report

    async def _live(self, kill: KillAtShare) -> bool:
        """One life, up to its kill; False if it was through before."""
        began = time.monotonic()
        async with self._importer() as importer:
            await self._reach(importer, kill, began)
            code = await importer.killed()
        if code not in (0, -9):
            raise self._failure([f"it ended with {code} before it was killed {kill}"])
        arrived, repeats = await self._service.arrived()
        self._check_repeats(repeats)
        self._check_memory(importer)
        if code == 0:
            self._say(f"complete before it was killed {kill}")
            return False
        life = KilledImporter(
            kill,
            time.monotonic() - began,
            arrived,
            self._settled(),
            self._service.requests,
            repeats,
            importer.memory,
        )
        self.report.lives.append(life)
        self._say(
            f"killed {kill}: {life.arrived:,} had arrived, {life.settled:,} of them were settled; "
            f"{life.memory // 1_000_000} MB, {life.seconds:.1f} s"
        )
        return True

    async def _last_life(self) -> None:
        began = time.monotonic()
        async with self._importer() as importer:
            await eventually(lambda: self._has_ended(importer), _BEFORE_KILL)
            if code := await importer.code():
                raise self._failure([f"the last run ended with {code}"])
        self._check_memory(importer)
        self._check_repeats((await self._service.arrived())[1])
        self._say(f"complete: {importer.memory // 1_000_000} MB, {time.monotonic() - began:.1f} s")

    def _importer(self) -> AbstractAsyncContextManager[Killable]:
        upstream = (
            "--upstream",
            self._service.url,
            "--api-key",
            KEY,
            "--state",
            str(self._state),
            "--rate",
            self._options.rate,
            "--yes",
        )
        return Killable.living(
            ("import", "native", str(self._source), *upstream), self._evidence.log
        )

    async def _reach(self, importer: Killable, kill: KillAtShare, began: float) -> None:
        """Return when the moment of the kill is there, or the importer has ended."""
        if kill.share is not None:
            goal = round(kill.share * self._options.events)
            await eventually(
                lambda: self._has_ended(importer) or self._service.came >= goal,
                _BEFORE_KILL,
                explain=lambda: f"{self._service.came:,} came",
            )
            began = time.monotonic()
        await eventually(
            lambda: self._has_ended(importer) or time.monotonic() - began >= kill.after,
            _BEFORE_KILL,
        )

    def _has_ended(self, importer: Killable) -> bool:
        importer.look()
        return importer.ended

    def _settled(self) -> int:
        saved = read_checkpoint(self._state)
        return 0 if saved is None else saved.books.delivered

    async def _judge(self) -> None:
        report = self.report
        settled = [Settled(life.requests, life.settled) for life in report.lives]
        report.verdict = await in_thread(
            lambda: judge(self._plan, arrivals(self._service.database), settled)
        )
        self._check(report.verdict.problems)
        manifest = read_manifest(self._state / MANIFEST)
        self._check(list(self._wrong_in_books(manifest)))
        await self._judge_counts(manifest)
        await self._verify()

    def _wrong_in_books(self, manifest: ImportManifest) -> list[str]:
        books = manifest.books
        count = self._options.events
        self.report.books = {
            "read": books.read,
            "delivered": books.delivered,
            "repeats": books.repeats,
            "refused": books.refused,
        }
        wanted = {"read": count, "delivered": count, "repeats": 0, "refused": {}}
        problems = (
            [] if self.report.books == wanted else [f"the manifest's books say {self.report.books}"]
        )
        if not manifest.complete or manifest.events != count or books.difference:
            problems.append(
                f"the manifest says {manifest.events:,} events, complete: {manifest.complete}"
            )
        return problems

    async def _judge_counts(self, manifest: ImportManifest) -> None:
        """What the sandbox itself says of the import."""
        [counts] = (await self._service.ask(f"imports?import={manifest.job.id}"))["results"]
        verdict = self.report.verdict
        reported = (counts["events"], counts["duplicates"], counts["conflicts"])
        if (
            reported != (self._options.events, verdict.repeats, 0)
            or verdict.distinct != self._options.events
        ):
            self._check(
                [
                    (
                        f"the sandbox says (events, duplicates, conflicts) {reported}, of "
                        f"{self._options.events:,}"
                    )
                ]
            )

    async def _verify(self) -> None:
        """Ask as a user does."""
        verify = await invoked(
            *("import", "verify", "--state", str(self._state), "--sandbox", self._service.url)
        )
        self.report.verified = verify.out.strip()
        if verify.code:
            self._check(
                [f"`forwarder import verify` ended with {verify.code}: {verify.out}{verify.err}"]
            )

    def _check_repeats(self, repeats: int) -> None:
        """A life sends nothing again but what was in flight when the one before was killed."""
        last = self.report.lives[-1] if self.report.lives else None
        again = repeats - (last.repeats if last else 0)
        allowed = last.in_flight if last else 0
        if again > allowed:
            self._check([f"a life sent {again:,} events again, and {allowed:,} had been in flight"])

    def _check_memory(self, importer: Killable) -> None:
        self.report.memory = max(self.report.memory, importer.memory)
        if importer.memory > MEMORY:
            self._check([f"a life had {importer.memory // 1_000_000} MB of resident memory"])

    def _check(self, problems: list[str]) -> None:
        if problems:
            raise self._failure(problems)

    def _failure(self, problems: list[str]) -> CrashFailure:
        return self._evidence.failure(problems, log_lines=12)


def as_text(report: ImportReport, seconds: float) -> str:
    """What was done, in lines for a person."""
    verdict = report.verdict
    lives = report.lives
    widest = max((life.in_flight for life in lives), default=0)
    return "\n".join(
        [
            f"killed {len(lives)} times with -9 and resumed, in {seconds:.0f} s",
            f"{verdict.distinct:,} events of {verdict.days} days are at the sandbox, "
            f"{verdict.derived:,} of them with a uuid that "
            f"follows from the source; no conflict",
            f"{verdict.repeats:,} came more than once, the same bytes; {report.in_flight:,} had "
            "been in flight at the kills, "
            f"{widest:,} at most at one",
            f"{report.memory / 1e6:.0f} MB of resident memory at most in any life",
            f"the manifest's books: {json.dumps(report.books)}",
            f"import verify: {report.verified}",
        ]
    )
