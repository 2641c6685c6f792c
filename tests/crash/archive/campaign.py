"""The crash test of the archive itself: a buffer and its archive, killed again and again; then
every file is read, and all are imported.

Kills come once in each equal part of the events, at a share of those that are durable, and at
failpoints: while a file is made, before it is complete under its dotted name, after it has its
name, and after it is durable but before its events are settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import re
import signal
import sys
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import zstandard

from forwarder.core.processes import send_signal
from tests.crash.archive.plan import LANES, ArchivePlan
from tests.crash.archive.victim import PROGRESS
from tests.crash.frame import CampaignFolder, CrashFailure, Say, silent
from tests.crash.imports.judge import arrivals
from tests.crash.imports.service import KEY, CrashService
from tests.crash.process import most_memory
from tests.support.commands import environment, forwarder
from tests.support.waiting import in_thread, pause

POINTS: Final = ("archive.copied", "archive.renamed", "archive.published", "archive.spooling")
MEMORY: Final = 200_000_000
"""Resident bytes that no life may have."""
_LIMIT: Final = 600.0
"""Seconds that a life may take."""
_LOOK: Final = 0.01
_ADDED: Final = re.compile(rb'"\$import_job_id":"[^"]*",')
"""What an import adds to the properties."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What to do: `together` events are a request."""

    seed: int
    events: int
    kills: int
    together: int = 500


@dataclass
class ArchiveReport:
    """What was done."""

    kills: list[str] = field(default_factory=list)
    files: int = 0
    packed: int = 0
    """Bytes of all files."""
    repeats: int = 0
    """Events that are in the files more than once."""
    memory: int = 0
    imported: int = 0
    conflicts: int = 0


class _Numbered(msgspec.Struct):
    n: int


class _Event(msgspec.Struct):
    properties: _Numbered


_read: Final = msgspec.json.Decoder(_Event).decode


class ArchiveCampaign:
    """One run in a directory of its own."""

    def __init__(self, options: ArchiveOptions, root: Path, say: Say = silent) -> None:
        self.report = ArchiveReport()
        self._options = options
        self._root = root
        self._archive = root / "archive"
        self._say = say
        self._plan = ArchivePlan(options.seed, options.events, options.together)
        self._evidence = CampaignFolder(
            root, lambda: f"seed {options.seed}, after {len(self.report.kills)} kills"
        )
        self._chance = random.Random(options.seed)

    async def run(self) -> ArchiveReport:
        """Do it all. Raises `CrashFailure`. Cancellation ends all processes."""
        for kill in range(self._options.kills):
            point = POINTS[kill // 2 % len(POINTS)] if kill % 2 else ""
            share = (kill + self._chance.random() * 0.8) / self._options.kills
            if not await self._live(share, point, self._chance.randrange(1, 4)):
                break
        await self._live(2.0, "", 0)
        await in_thread(self._judge_files)
        await self._judge_import()
        return self.report

    async def _live(self, share: float, point: str, passing: int) -> bool:
        """One life, killed at the failpoint, or at a share of durable requests; False if it ended
        by itself.
        """
        numbers = map(str, (self._options.seed, self._options.events, self._options.together))
        command = (sys.executable, "-m", "tests.crash.archive.victim", str(self._root), *numbers)
        armed = {"FORWARDER_FAILPOINTS": f"{point}=kill@{passing}"} if point else {}
        with self._evidence.log.open("ab") as output:
            victim = await asyncio.create_subprocess_exec(
                *command,
                env={**(environment(None) or os.environ), **armed},
                stdout=output,
                stderr=output,
            )
        memory = 0
        try:
            async with asyncio.timeout(_LIMIT):
                while victim.returncode is None and (
                    point or self._durable() < share * self._plan.requests
                ):
                    with contextlib.suppress(OSError):
                        memory = most_memory(victim.pid) or memory  # the last look counts
                    await pause(_LOOK)
        finally:
            self.report.memory = max(self.report.memory, memory)
            send_signal(victim, signal.SIGKILL)
            code = await victim.wait()
        if code == 0:
            return False
        if code != -9:
            raise self._evidence.failure([f"it ended with {code}"], log_lines=12)
        how = f"at {point}, passed {passing} times" if point else f"at {share:.1%}"
        files = [name for _, _, names in os.walk(self._archive) for name in names]
        unfinished = sum(name.startswith(".") for name in files)
        self.report.kills.append(how)
        self._say(
            f"killed {how}: {self._durable() * self._options.together:,} events durable, "
            f"{len(files)} files, {unfinished} unfinished"
        )
        return True

    def _durable(self) -> int:
        """Requests that are durable, by the victim's own account."""
        try:
            return int((self._root / PROGRESS).read_text() or "0")
        except FileNotFoundError:
            return 0

    def _judge_files(self) -> None:
        """Each file is whole, each line is an event as it was accepted, and each event is in one
        file at least.
        """
        came = array("L", bytes(8 * self._plan.count))
        problems = []
        files = sorted(path for path in self._archive.rglob("*") if path.is_file())
        for path in files:
            self.report.packed += path.stat().st_size
            if path.name.startswith("."):
                problems.append(f"{path} was left")
                continue
            for line in _lines(path):
                number = _read(line).properties.n
                came[number] += 1
                if line != self._plan.event(number) or path.name.rsplit("-", 3)[0] != _prefix(
                    self._plan, number
                ):
                    problems.append(f"{path} has {line[:300]!r}")
        missing = [number for number, times in enumerate(came) if not times]
        problems += [f"{number} is in no file" for number in missing[:8]]
        if len(missing) > 8:
            problems.append(f"{len(missing):,} events are in no file")
        self.report.files = len(files)
        self.report.repeats = sum(came) - self._plan.count
        if self.report.memory > MEMORY:
            problems.append(f"a life had {self.report.memory // 1_000_000} MB of resident memory")
        self._evidence.check(problems)
        self._say(
            f"{len(files)} files, all whole: {self._plan.count:,} events, {self.report.repeats:,} "
            "more than once"
        )

    async def _judge_import(self) -> None:
        """Imported into a new project, all events are there once, byte for byte."""
        async with CrashService.living(self._root) as service:
            where = (
                "--upstream",
                service.url,
                "--api-key",
                KEY,
                "--state",
                str(self._root / "import"),
                "--rate",
                "unlimited",
                "--yes",
            )
            options = ("--person-properties", "history", "--sort", "--geoip")
            done = await forwarder(
                "import", "native", str(self._archive), *where, *options, limit=_LIMIT
            )
            if done.code:
                raise self._evidence.failure(
                    [f"the import ended with {done.code}: {done.out}{done.err}"]
                )
            [counts] = (await service.ask("imports"))["results"]
            self.report.imported = counts["events"]
            self.report.conflicts = counts["conflicts"]
            problems = await in_thread(lambda: self._wrong_in(service.database))
        if (self.report.imported, self.report.conflicts) != (self._plan.count, 0):
            problems.append(
                f"the sandbox has {self.report.imported:,} events, {self.report.conflicts:,} "
                "conflicts"
            )
        self._evidence.check(problems)

    def _wrong_in(self, database: Path) -> list[str]:
        came = bytearray(self._plan.count)
        problems = []
        for arrival in arrivals(database):
            number = _read(arrival.raw).properties.n
            came[number] += arrival.kind == "new"
            if _ADDED.sub(b"", arrival.raw) != self._plan.event(number):
                problems.append(f"{number} came as {arrival.raw[:600]!r}")
        return problems + [
            f"{number} came {times} times" for number, times in enumerate(came) if times != 1
        ]


def _lines(path: Path) -> list[bytes]:
    """The lines of a file. Raises `CrashFailure` for one that isn't whole."""
    try:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        text = decompressor.decompress(path.read_bytes())
    except zstandard.ZstdError as error:
        raise CrashFailure(f"{path} is damaged: {error}") from error
    if not decompressor.eof or decompressor.unused_data or not text.endswith(b"\n"):
        raise CrashFailure(f"{path} is torn")
    return io.BytesIO(text).read().splitlines()


def _prefix(plan: ArchivePlan, number: int) -> str:
    lane = plan.lane(number)
    return lane.api_key.replace("-", "_2d_") + ("-historical" if lane.historical else "")


def as_text(report: ArchiveReport, seconds: float) -> str:
    """What was done, in lines for a person."""
    return "\n".join(
        [
            f"killed {len(report.kills)} times with -9, in {seconds:.0f} s, {len(LANES)} lanes",
            (
                f"{report.files} files, {report.packed / 1e6:.1f} MB, none torn; "
                f"{report.repeats:,} events more than once, none missing"
            ),
            (
                f"imported into a new project: {report.imported:,} events, byte for byte, "
                f"{report.conflicts} conflicts"
            ),
            f"{report.memory / 1e6:.0f} MB of resident memory at most in any life",
        ]
    )
