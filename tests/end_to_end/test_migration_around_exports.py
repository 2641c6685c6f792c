"""The migration around exports, as docs/migration.md has it: its commands are taken from the page, and run by a shell.

The service is a sandbox with an organization. Nothing runs exports there, so the test writes the files that the export would have written.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from forwarder.sandbox import Sandbox
from forwarder.sources.imports import manifest
from tests.guides.reading import DOCS, text_of
from tests.support.commands import LIMIT, Finished, environment
from tests.support.management import EXPORT, ORGANIZATION, OWNER_KEY, PAUSED_EXPORT, PROJECT, TOKEN, seeded

PAGE: Final = text_of(DOCS / "migration.md")
[RECIPE] = re.findall(r"^## Around a project's exports\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
FIRST: Final = datetime(2024, 2, 27, 23, 59, 59, 250_000, UTC)
"""The last second of a day; the events go on into March, by way of the 29th of February."""
COUNT: Final = 400
EVERY: Final = timedelta(minutes=15)
JQ: Final = f"""#!{sys.executable}
import json, sys, jq
options = {{each for each in sys.argv[1:] if each.startswith("-")}}
program, *files = (each for each in sys.argv[1:] if not each.startswith("-"))
text = "".join(open(file).read() for file in files) if files else sys.stdin.read()
found = jq.compile(program).input_text(text).all()
for each in found:
    print(each if "-r" in options and isinstance(each, str) else json.dumps(each))
sys.exit("-e" in options and not (found and found[-1]))
"""
"""What the page needs of jq, for machines that haven't got it."""


def exported() -> bytes:
    """Events as Mixpanel exports them."""
    times = [round((FIRST + number * EVERY).timestamp() * 1000) for number in range(COUNT)]
    properties = [{"time": time, "distinct_id": f"u{number % 9}", "$insert_id": f"{number:x}"} for number, time in enumerate(times)]
    return b"".join(json.dumps({"event": "Purchase", "properties": each}).encode() + b"\n" for each in properties)


@dataclass(frozen=True)
class Shell:
    """Runs what the page shows, in a folder with the export and the keys."""

    folder: Path
    service: str

    def prepare(self) -> None:
        """What somebody has before the first command."""
        tools, export = self.folder / "bin", self.folder / "export"
        tools.mkdir()
        export.mkdir()
        (export / "2024.json.gz").write_bytes(gzip.compress(exported()))
        self._program(tools / "jq", JQ)
        self._program(tools / "forwarder", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m forwarder "$@"\n')
        for name, key in (("project-key", TOKEN), ("personal-key", OWNER_KEY)):
            (self.folder / name).write_text(key)
            (self.folder / name).chmod(0o600)

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o700)

    def ship(self, lines: list[str]) -> None:
        """Write what the export has written."""
        (self.folder / "shipped").mkdir(exist_ok=True)
        (self.folder / "shipped" / "1.jsonl").write_text("\n".join(lines))

    def variables(self) -> dict[str, str]:
        """Those that the page sets, with this test's values."""
        return {
            "FORWARDER_UPSTREAM__URL": self.service,
            "FORWARDER_IMPORT__API_KEY_FILE": str(self.folder / "project-key"),
            "FORWARDER_MANAGEMENT__URL": self.service,
            "FORWARDER_MANAGEMENT__API_KEY_FILE": str(self.folder / "personal-key"),
            "FORWARDER_MANAGEMENT__ORGANIZATION": ORGANIZATION,
            "FORWARDER_MANAGEMENT__PROJECT": str(PROJECT),
            "EXPORT": EXPORT,
            "STATE": str(self.folder / "state"),
        }

    async def run(self, block: str) -> Finished:
        """A block of the page; it ends at the first command that fails."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", block),
            cwd=self.folder,
            env=environment({**self.variables(), "PATH": path, "STATE_DIRECTORY": str(self.folder)}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(LIMIT):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert process.returncode is not None
        return Finished(process.returncode, out.decode(), err.decode())

    async def done(self, block: str) -> str:
        """What a block says that does what it should."""
        found = await self.run(block)
        assert found.code == 0, found
        return found.out


async def exports(service: str) -> dict[str, dict[str, Any]]:
    """The batch exports as they stand, by their ids."""
    async with aiohttp.ClientSession() as session, session.get(f"{service}/sandbox/batch-exports") as answer:
        return {each["id"]: each for each in (await answer.json())["results"]}


async def shipped(sandbox: Sandbox) -> list[str]:
    """What the export would write: all events, also those that came live, one a line."""
    names = ("uuid", "event", "timestamp", "properties")
    return [json.dumps({name: getattr(each, name) for name in names}) for each in await sandbox.events()]


@pytest.mark.timeout(3 * LIMIT)
async def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """The export rests while history arrives, and goes on after it; one backfill has exactly the days of the manifest, another the pause;
    and what was shipped is what was imported."""
    [setup, *_] = re.findall(r"^```\n(.*?)^```", RECIPE, re.DOTALL | re.MULTILINE)
    look, pause, migrate, go_on, verify = re.findall(r"^```sh\n(.*?)^```", RECIPE, re.DOTALL | re.MULTILINE)
    async with Sandbox(seeded(tmp_path)) as sandbox:
        shell = Shell(tmp_path, sandbox.url)
        assert set(re.findall(r"^export (\w+)=", setup, re.MULTILINE)) == set(shell.variables())
        shell.prepare()
        before = await exports(sandbox.url)

        assert f"{PROJECT}\tShop\t{TOKEN}\n" in await shell.done(look)
        assert (await shell.done(pause)).endswith("true\n")
        await shell.done(migrate)
        while_paused = await exports(sandbox.url)
        assert while_paused[EXPORT]["paused"]
        assert while_paused[EXPORT]["latest_runs"] == before[EXPORT]["latest_runs"]

        kept = manifest.read(tmp_path / "state" / manifest.FILE)
        assert (kept.complete, kept.events) == (True, COUNT)
        assert (kept.first, kept.last) == ("2024-02-27T23:59:59.250Z", "2024-03-03T03:44:59.250Z")

        await shell.done(go_on)
        after = await exports(sandbox.url)
        assert not after[EXPORT]["paused"]
        assert after[PAUSED_EXPORT] == before[PAUSED_EXPORT]
        rest, past = after[EXPORT]["latest_runs"][:2]
        assert len(after[EXPORT]["latest_runs"]) == len(before[EXPORT]["latest_runs"]) + 2
        assert _range(past) == (datetime(2024, 2, 27, tzinfo=UTC), datetime(2024, 3, 4, tzinfo=UTC))
        assert _range(rest)[0] == datetime.fromisoformat(after[EXPORT]["last_paused_at"]) < _range(rest)[1] <= datetime.now(UTC)

        await _live(sandbox.url)
        lines = await shipped(sandbox)
        assert len(lines) == COUNT + 2
        shell.ship(lines)
        assert f"All {COUNT} events of 6 days are there" in await shell.done(verify)
        shell.ship(lines[:100] + lines[101:])
        assert (await shell.run(verify)).code == 1


def _range(run: dict[str, Any]) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(run["data_interval_start"]), datetime.fromisoformat(run["data_interval_end"])


async def _live(service: str) -> None:
    """Somebody is on the site, and a late event of an imported day arrives."""
    batch = [{"event": "seen", "distinct_id": "u1", "timestamp": time} for time in ("2024-02-29T12:00:00Z", "2026-01-01T00:00:00Z")]
    async with aiohttp.ClientSession() as session, session.post(f"{service}/batch/", json={"api_key": TOKEN, "batch": batch}) as answer:
        assert answer.status == 200
