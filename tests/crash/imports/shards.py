"""The crash test of an import in shards: many files, some shards at a time, some of them killed
and resumed by the same commands.

A shard is killed once its own checkpoint says that a share of its events has arrived. What its
checkpoint says then is settled: none of that may come again. All the others continue meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forwarder.cli.exit_codes import ExitCode
from forwarder.sources.imports.checkpoint import read_checkpoint
from forwarder.sources.imports.job import Shard
from forwarder.sources.imports.report import MANIFEST, read_manifest
from tests.crash.frame import CampaignFolder, CrashFailure, Say, silent
from tests.crash.imports.judge import ImportVerdict, Settled, arrivals, judge
from tests.crash.imports.plan import Division, EventPlan, write
from tests.crash.imports.service import KEY, CrashService
from tests.crash.process import Killable
from tests.support.commands import forwarder, invoked
from tests.support.waiting import in_thread, pause

MEMORY: Final = 200_000_000
"""Resident bytes that no life of the importer may have."""
_LIMIT: Final = 900.0
"""Seconds that a life may take."""
_LOOK: Final = 0.02
"""Seconds between two looks at a checkpoint."""
_UNANSWERED: Final = 20
"""Starts to which the service may not answer."""
_SUFFIXES: Final = (".gz", ".zst")
"""How the files are packed, in turn."""


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """What to do. `kills`: so many shards are killed, one after another."""

    seed: int
    events: int
    shards: int = 8
    files: int = 27
    at_a_time: int = 3
    kills: int = 2
    rate: str = "unlimited"


@dataclass(frozen=True, slots=True)
class ShardLife:
    """A life of a shard that was killed."""

    shard: Shard
    settled: int
    """Its first events, which its checkpoint knew of."""
    requests: int
    """Requests of all shards that had arrived until then."""
    at: int
    """Events of all shards that had."""


@dataclass
class ShardReport:
    """What was done."""

    size: int = 0
    """Bytes of the source."""
    lives: list[ShardLife] = field(default_factory=list)
    together: int = 0
    """Shards that ran at the same time, at most."""
    unanswered: int = 0
    """Starts that ended because the service didn't answer whether it knows the key: it was busy
    with other shards.
    """
    memory: int = 0
    """The most of any life."""
    verdict: ImportVerdict = field(default_factory=ImportVerdict)
    books: dict[str, Any] = field(default_factory=dict)
    verified: str = ""


class ShardCampaign:
    """One run in a directory of its own."""

    def __init__(self, options: ShardOptions, root: Path, say: Say = silent) -> None:
        self.report = ShardReport()
        self._options = options
        self._say = say
        self._evidence = CampaignFolder(
            root, lambda: f"seed {options.seed}, after {len(self.report.lives)} kills"
        )
        self._plan = EventPlan(options.seed, options.events)
        self._division = Division(options.events, options.files, options.shards)
        chance = random.Random(~options.seed)
        self._kills = {
            shard: chance.uniform(0.1, 0.6)
            for shard in chance.sample(range(options.shards), options.kills)
        }
        """By the number of a shard, after which share of its events it is killed."""
        self._source = root / "export"
        self._state = root / "state"
        self._root = root
        self._running = 0

    async def run(self) -> ShardReport:
        """Do it all. Raises `CrashFailure`. Cancellation ends all processes."""
        self.report.size = await in_thread(self._write)
        options = self._options
        self._say(
            f"{options.events:,} events in {options.files} files, {self.report.size / 1e6:.1f} MB "
            "unpacked"
        )
        async with CrashService.living(self._root) as self._service:
            turns = asyncio.Semaphore(options.at_a_time)
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(options.shards):
                        group.create_task(self._shard(Shard(number, options.shards), turns))
            except BaseExceptionGroup as failed:
                raise failed.exceptions[0] from None
            await self._judge()
        return self.report

    def _write(self) -> int:
        self._source.mkdir()
        size = 0
        for file in range(self._options.files):
            path = self._source / f"part_{file}.jsonl{_SUFFIXES[file % len(_SUFFIXES)]}"
            size += write(self._plan, path, self._division.records(file))
        return size

    async def _shard(self, shard: Shard, turns: asyncio.Semaphore) -> None:
        """A shard to its end; one that is killed waits for another turn, and so does one to which
        the busy service doesn't answer.
        """
        share = self._kills.get(shard.number)
        until = None if share is None else round(share * self._division.size(shard.number))
        while True:
            async with turns:
                code = await self._life(shard, until)
            if code == -9:
                until = None
                await self._look_at_all(shard)
            elif code == ExitCode.UNREACHABLE:
                self.report.unanswered += 1
                self._check(
                    [f"the service didn't answer {shard}"]
                    if self.report.unanswered > _UNANSWERED
                    else []
                )
            else:
                return

    async def _life(self, shard: Shard, until: int | None) -> int:
        """One life: to its end, or until so many of its events are settled. Then it is killed. The
        exit code.
        """
        self._running += 1
        self.report.together = max(self.report.together, self._running)
        async with (
            Killable.living(self._command(shard), self._evidence.log) as importer,
            asyncio.timeout(_LIMIT),
        ):
            while not importer.ended and (until is None or self._settled(shard) < until):
                importer.look()
                await pause(_LOOK)
            code = await importer.killed()
        self._running -= 1
        self.report.memory = max(self.report.memory, importer.memory)
        if importer.memory > MEMORY:
            self._check([f"shard {shard} had {importer.memory // 1_000_000} MB of resident memory"])
        if code not in (0 if until is None else -9, ExitCode.UNREACHABLE):
            self._check([f"shard {shard} ended with {code}"])
        if code == -9:
            life = ShardLife(
                shard, self._settled(shard), self._service.requests, self._service.came
            )
            self.report.lives.append(life)
            self._say(
                f"killed {shard}: {life.settled:,} of its {self._division.size(shard.number):,} "
                f"were settled, {life.at:,} of all came"
            )
        else:
            self._say(
                f"{'complete' if code == 0 else 'no answer for'} {shard}: "
                f"{importer.memory // 1_000_000} MB"
            )
        return code

    def _command(self, shard: Shard) -> tuple[str, ...]:
        target = (
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
        return ("import", "native", str(self._source), "--shard", str(shard), *target)

    def _settled(self, shard: Shard) -> int:
        saved = read_checkpoint(self._state / shard.folder)
        return 0 if saved is None else saved.books.delivered

    async def _look_at_all(self, killed: Shard) -> None:
        """Ask as a user does: not all is complete, and the shard that was killed is named."""
        shown = await forwarder(*self._status())
        [listed] = json.loads(shown.out)["imports"]
        if (
            shown.code != 1
            or listed["complete"]
            or killed.number not in listed["shards"]["unfinished"]
        ):
            self._check(
                [f"`import status` ended with {shown.code} after {killed} was killed: {shown.out}"]
            )

    def _status(self) -> tuple[str, ...]:
        return ("import", "status", "--state", str(self._state), "--output", "json")

    async def _judge(self) -> None:
        report = self.report
        options = self._options
        settled = [Settled(life.requests, life.settled, life.shard.number) for life in report.lives]
        report.verdict = await in_thread(
            lambda: judge(self._plan, arrivals(self._service.database), settled, self._division)
        )
        self._check(report.verdict.problems)
        if others := report.verdict.repeated - {life.shard.number for life in report.lives}:
            self._check([f"shards sent events again, and weren't killed: {sorted(others)}"])
        manifests = [
            read_manifest(self._state / Shard(number, options.shards).folder / MANIFEST)
            for number in range(options.shards)
        ]
        [job] = {manifest.job.id for manifest in manifests}
        [counts] = (await self._service.ask(f"imports?import={job}"))["results"]
        reported = (counts["events"], counts["duplicates"], counts["conflicts"])
        if (
            reported != (options.events, report.verdict.repeats, 0)
            or report.verdict.distinct != options.events
        ):
            self._check(
                [
                    f"the sandbox says (events, duplicates, conflicts) {reported}, "
                    f"of {options.events:,}"
                ]
            )
        if sizes := [
            f"{manifest.job.shard}: {manifest.events:,}"
            for at, manifest in enumerate(manifests)
            if manifest.events != self._division.size(at)
        ]:
            self._check([f"manifests count other events than the shards have: {', '.join(sizes)}"])
        await self._judge_commands()

    async def _judge_commands(self) -> None:
        """What `import status` and `import verify` say at the end."""
        shown = await invoked(*self._status())
        [listed] = json.loads(shown.out)["imports"]
        self.report.books = {
            name: listed["books"][name]
            for name in ("read", "delivered", "repeats", "refused", "difference")
        }
        count = self._options.events
        wanted = {"read": count, "delivered": count, "repeats": 0, "refused": {}, "difference": 0}
        if shown.code or not listed["complete"] or self.report.books != wanted:
            self._check([f"`import status` ended with {shown.code}: {shown.out}"])
        verify = await invoked(
            *("import", "verify", "--state", str(self._state), "--sandbox", self._service.url)
        )
        if verify.code:
            self._check([f"`import verify` ended with {verify.code}: {verify.out}{verify.err}"])
        self.report.verified = verify.out.strip().splitlines()[-1]

    def _check(self, problems: list[str]) -> None:
        if problems:
            raise self._failure(problems)

    def _failure(self, problems: list[str]) -> CrashFailure:
        return self._evidence.failure(problems, log_lines=12)


def as_text(report: ShardReport, seconds: float) -> str:
    """What was done, in lines for a person."""
    verdict = report.verdict
    return "\n".join(
        [
            (
                f"{report.together} shards at a time, {len(report.lives)} killed with -9 and "
                f"resumed, in {seconds:.0f} s"
            )
            + (
                f"; {report.unanswered} starts found the service too busy, and were tried again"
                if report.unanswered
                else ""
            ),
            f"{verdict.distinct:,} events of {verdict.days} days are at the sandbox, "
            f"{verdict.derived:,} of them with a uuid that "
            f"follows from the source; no conflict",
            (
                f"{verdict.repeats:,} came more than once, the same bytes, all of shards that "
                "were killed"
            ),
            f"{report.memory / 1e6:.0f} MB of resident memory at most in any life",
            f"import status: {json.dumps(report.books)}",
            f"import verify: {report.verified}",
        ]
    )
