"""The crash test of logs: a log that grows and is rotated, and a daemon that follows it and is
killed again and again.

Between a kill and the next start the writer continues, so that files are rotated, compressed and
renamed while no one looks. At the end each line's event is at the sandbox, with one uuid and the
same bytes however often it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import sqlite3
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from forwarder.core.processes import send_signal
from tests.crash.frame import CampaignFolder, Say, silent
from tests.crash.kills import KillAtShare, schedule
from tests.crash.logs.writer import line
from tests.crash.process import Killable
from tests.support.commands import running
from tests.support.repository import ROOT
from tests.support.waiting import eventually, in_thread, pause

KEY: Final = "phc_crash_of_logs_00000001"
MEMORY: Final = 200_000_000
"""Resident bytes that no life of the daemon may have."""
_REACHES: Final = 600.0
"""Seconds that a life may take to come to where it is killed, and the last one to its end."""
_STALLED: Final = 90.0
"""Seconds without an arrival, of repeats neither, after which nothing more is expected."""
_AWAY: Final = 1.5
"""Seconds for which the daemon is down at most between two lives."""
_ARRIVALS: Final = "SELECT kind, uuid, json_extract(properties, '$.n'), raw FROM events ORDER BY id"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What to do. `rate`: lines a second; `commit`: when positions are stored, with a memory
    buffer (`delivered`) or one on disk.
    """

    seed: int
    lines: int
    rotations: int
    kills: int
    rate: int
    commit: str = "delivered"
    timed: bool = False
    """Whether an event has the time that its line names; else that at which the line was read
    first, which has to survive a kill.
    """
    patience: float = 1.0


@dataclass
class LogReport:
    """What was done and found."""

    lives: list[str] = field(default_factory=list)
    memory: int = 0
    distinct: int = 0
    repeats: int = 0
    conflicts: int = 0


class LogCampaign:
    """One run in a directory of its own."""

    def __init__(self, options: LogOptions, root: Path, say: Say = silent) -> None:
        self.report = LogReport()
        self._options = options
        self._root = root
        self._say = say
        self._chance = random.Random(options.seed)
        self._evidence = CampaignFolder(
            root,
            lambda: f"seed {options.seed}, {options.commit}, after {len(self.report.lives)} kills",
        )
        self._kills = schedule(
            options.seed, options.kills, reading=options.patience, patience=options.patience
        )
        self._folder = root / "logs"
        self._database = root / "sandbox.db"
        self._config = root / "forwarder.yaml"

    async def run(self) -> LogReport:
        """Do it all. Raises `CrashFailure`. Cancellation ends all processes."""
        self._folder.mkdir()
        arguments = (
            "--listen",
            "127.0.0.1:0",
            "--database",
            str(self._database),
            "--strict",
            "--api-key",
            KEY,
        )
        async with running("sandbox", *arguments) as sandbox:
            self._url = (await sandbox.line("listening on")).split()[-1]
            self._configure()
            with contextlib.closing(
                sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
            ) as self._looking:
                writer = await self._start_writer()
                try:
                    for kill in self._kills:
                        await self._live(kill)
                    await self._last_life(writer)
                finally:
                    if writer.returncode is None:
                        send_signal(writer, signal.SIGKILL)
                        await writer.wait()
            conflicts = (await self._ask("conflicts"))["count"]
        problems = await in_thread(self._judge)
        self._evidence.check(
            [
                *problems,
                *([f"{conflicts} conflicts"] if conflicts else []),
                *self._evidence.complaints(),
            ]
        )
        return self.report

    def _configure(self) -> None:
        source: dict[str, Any] = {
            "name": "app",
            "path": [str(self._folder / "app.log"), str(self._folder / "app.log.*")],
            "format": "json",
            "api_key": KEY,
            "commit": self._options.commit,
            "host": "web-1",
            "poll_interval": "200ms",
            "commit_interval": "100ms",
            "rotate_wait": "3s",
            "mapping": {
                "event": '"line read"',
                "distinct_id": ".who",
                "properties": {"n": ".n", "text": ".text"},
            },
        }
        if self._options.timed:
            source["mapping"]["timestamp"] = ".at"
        on_disk = self._options.commit == "disk"
        settings = {
            "upstream": {"url": self._url, "compression": "none"},
            "sources": {"http": {"listen": f"unix:{self._root}/http.sock"}, "logs": [source]},
            "buffer": {"kind": "disk" if on_disk else "memory", "path": str(self._root / "state")},
            "dead_letters": {"path": str(self._root / "state")},
            "admin": {"listen": f"unix:{self._root}/admin.sock"},
            "batch": {"max_age": "200ms"},
            "log": {"format": "json"},
        }
        self._config.write_text(yaml.safe_dump(settings))

    async def _start_writer(self) -> asyncio.subprocess.Process:
        options = self._options
        arguments = [self._folder, options.seed, options.lines, options.rotations, options.rate]
        command = (sys.executable, "-m", "tests.crash.logs.writer", *map(str, arguments))
        with self._evidence.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=log, stderr=log)

    def _daemon(self) -> AbstractAsyncContextManager[Killable]:
        return Killable.living(("run", "--config", str(self._config)), self._evidence.log)

    async def _live(self, kill: KillAtShare) -> None:
        """One life up to its kill, and the pause after it."""
        began = time.monotonic()
        async with self._daemon() as daemon:
            if kill.share is not None:
                goal = round(kill.share * self._options.lines)
                await self._until(daemon, lambda: self._came() >= goal)
            reached = time.monotonic()
            await self._until(daemon, lambda: time.monotonic() - reached >= kill.after)
            code = await daemon.killed()
        self._remember(daemon)
        self._evidence.check(
            [] if code == -signal.SIGKILL else [f"it ended with {code} before it was killed {kill}"]
        )
        self.report.lives.append(str(kill))
        self._say(
            f"killed {kill}: {self._came():,} lines had arrived; {time.monotonic() - began:.1f} s"
        )
        await pause(self._chance.uniform(0, _AWAY))

    async def _last_life(self, writer: asyncio.subprocess.Process) -> None:
        async with self._daemon() as daemon:
            await self._until(daemon, self._listens)
            await self._until(daemon, lambda: writer.returncode is not None)
            self._evidence.check(
                [f"the writer ended with {writer.returncode}"] if writer.returncode else []
            )
            await self._until(daemon, lambda: self._came() >= self._options.lines)
            code = await daemon.stopped()
        self._remember(daemon)
        self._evidence.check([f"it ended with {code} when it was asked to"] if code else [])

    async def _until(self, daemon: Killable, condition: Callable[[], bool]) -> None:
        """Wait for the condition. Raises `CrashFailure` if the daemon ends, or if nothing arrives
        any more.
        """
        came = self._sum("events + duplicates")
        since = time.monotonic()

        def met() -> bool:
            nonlocal came, since
            daemon.look()
            if daemon.ended or condition():
                return True
            if (now := self._sum("events + duplicates")) != came:
                came = now
                since = time.monotonic()
            return time.monotonic() - since > _STALLED

        await eventually(met, _REACHES, explain=lambda: f"{self._came():,} lines came")
        if daemon.ended:
            raise self._evidence.failure(["the daemon ended by itself"], log_lines=12)
        if not condition():
            problems = await in_thread(self._judge)
            raise self._evidence.failure([f"nothing has arrived for {_STALLED:.0f} s", *problems])

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(f"{self._root}/http.sock") == 0

    def _remember(self, daemon: Killable) -> None:
        self.report.memory = max(self.report.memory, daemon.memory)
        self._evidence.check(
            [f"{daemon.memory // 1_000_000} MB of resident memory"]
            if daemon.memory > MEMORY
            else []
        )

    def _came(self) -> int:
        return self._sum("events")

    def _sum(self, figure: str) -> int:
        return int(
            self._looking.execute(f"SELECT ifnull(sum({figure}), 0) FROM requests").fetchone()[0]
        )

    async def _ask(self, path: str) -> Any:
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{self._url}/sandbox/{path}") as response,
        ):
            return await response.json()

    def _judge(self) -> list[str]:
        """What is wrong with what arrived."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
        ) as connection:
            return judge(self._options.lines, connection.execute(_ARRIVALS), self.report)


def judge(lines: int, arrived: Any, report: LogReport) -> list[str]:
    """What is wrong with these arrivals (kind, uuid, the line's number, its bytes); the counts go
    to `report`.
    """
    came = array("b", bytes(lines))
    problems: list[str] = []
    for kind, uuid, number, raw in arrived:
        if kind == "duplicate":
            report.repeats += 1
        elif kind != "new":
            report.conflicts += 1
            problems.append(f"line {number} came again with other bytes: {raw[:300]!r}")
        elif number is None or not 0 <= number < lines:
            problems.append(f"no line was like that: {raw[:300]!r}")
        elif came[number]:
            problems.append(f"line {number} came with a second uuid: {uuid}")
        else:
            came[number] = 1
            report.distinct += 1
            text = json.loads(line(number))["text"]
            if json.loads(raw)["properties"] != {"n": number, "text": text}:
                problems.append(f"line {number} was changed: {raw[:300]!r}")
    missing = [number for number, there in enumerate(came) if not there]
    return problems + _missing_lines(missing)


def _missing_lines(missing: Sequence[int]) -> list[str]:
    """Lines that never came, as ranges."""
    ranges: list[list[int]] = []
    for number in missing:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [f"lines {first} to {last} never came" for first, last in ranges]


def as_text(report: LogReport, seconds: float) -> str:
    """What was done, for a person."""
    return (
        f"killed {len(report.lives)} times with -9, in {seconds:.0f} s: {report.distinct:,} lines "
        "are at the sandbox, each once; "
        f"{report.repeats:,} came more than once, the same bytes; {report.conflicts} conflicts; "
        f"{report.memory / 1e6:.0f} MB of resident memory at most"
    )
