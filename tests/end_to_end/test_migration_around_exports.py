"""The migration around exports, as docs/how-to/migration.md has it: its commands are taken from
the page, and run by a shell.

The service is a sandbox in a process of its own, with a database and an organization whose batch
export goes to a folder.
"""

from __future__ import annotations

import copy
import gzip
import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from forwarder.sources.imports.report import MANIFEST, read_manifest
from tests.support.commands import LIMIT, running
from tests.support.documents import text_of
from tests.support.management import (
    EXPORT,
    ORGANIZATION,
    OWNER_KEY,
    PAUSED_EXPORT,
    PROJECT,
    SEED,
    TOKEN,
)
from tests.support.shells import Shell, posted

RECIPE: Final = text_of("migration-exports")
FIRST: Final = datetime(2024, 2, 27, 23, 59, 59, 250_000, UTC)
"""The last second of a day; the events go on into March, by way of the 29th of February."""
COUNT: Final = 400
EVERY: Final = timedelta(minutes=15)
DAYS: Final = [
    f"2024-{day}T00:00:00"
    for day in ("02-27", "02-28", "02-29", "03-01", "03-02", "03-03", "03-04")
]
"""The bounds of the days that they are of."""


def exported() -> bytes:
    """Events as Mixpanel exports them."""
    times = [round((FIRST + number * EVERY).timestamp() * 1000) for number in range(COUNT)]
    properties = [
        {"time": time, "distinct_id": f"u{number % 9}", "$insert_id": f"{number:x}"}
        for number, time in enumerate(times)
    ]
    return b"".join(
        json.dumps({"event": "Purchase", "properties": event_properties}).encode() + b"\n"
        for event_properties in properties
    )


def begin(folder: Path) -> list[str]:
    """Put in place what someone has before the first command; what the sandbox is started with."""
    (folder / "export").mkdir()
    (folder / "export" / "2024.json.gz").write_bytes(gzip.compress(exported()))
    for name, key in (("project-key", TOKEN), ("personal-key", OWNER_KEY)):
        (folder / name).write_text(key)
        (folder / name).chmod(0o600)
    seed = copy.deepcopy(SEED)
    [export] = [
        batch_export
        for batch_export in seed["organizations"][0]["projects"][0]["batch_exports"]
        if batch_export["id"] == EXPORT
    ]
    export |= {
        "destination": {"type": "Folder", "config": {"path": "shipped"}},
        "interval": "day",
        "runs": [],
    }
    (folder / "seed.yaml").write_text(yaml.safe_dump(seed))
    files = ("--database", "sandbox.db"), ("--seed", "seed.yaml"), ("--export-root", ".")
    return [
        "sandbox",
        "--listen",
        "127.0.0.1:0",
        *(word for option, name in files for word in (option, str(folder / name))),
    ]


def variables(folder: Path, service: str) -> dict[str, str]:
    """Those that the page sets, with this test's values."""
    return {
        "FORWARDER_UPSTREAM__URL": service,
        "FORWARDER_IMPORT__API_KEY_FILE": str(folder / "project-key"),
        "FORWARDER_MANAGEMENT__URL": service,
        "FORWARDER_MANAGEMENT__API_KEY_FILE": str(folder / "personal-key"),
        "FORWARDER_MANAGEMENT__ORGANIZATION": ORGANIZATION,
        "FORWARDER_MANAGEMENT__PROJECT": str(PROJECT),
        "EXPORT": EXPORT,
        "STATE": str(folder / "state"),
    }


async def exports(service: str) -> dict[str, dict[str, Any]]:
    """The batch exports as they stand, by their ids."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{service}/sandbox/batch-exports") as answer,
    ):
        return {export["id"]: export for export in (await answer.json())["results"]}


def shipped(folder: Path) -> list[tuple[Path, str]]:
    """What the export has written: each line with its file."""
    return [
        (file, line)
        for file in sorted((folder / "shipped").rglob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


@pytest.mark.slow
@pytest.mark.timeout(4 * LIMIT)
async def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """The export rests while history arrives, and continues after it; one backfill has exactly the
    days of the manifest, another the pause; what was exported is what was imported; and nothing of
    the pause is lost.
    """
    [setup, *_] = re.findall(r"^```\n(.*?)^```", RECIPE, re.DOTALL | re.MULTILINE)
    look, pause, migrate, go_on, wait, verify = re.findall(
        r"^```sh\n(.*?)^```", RECIPE, re.DOTALL | re.MULTILINE
    )
    async with running(*begin(tmp_path)) as sandbox:
        service = (await sandbox.line("listening on")).split()[-1]
        shell = Shell(tmp_path, variables(tmp_path, service))
        assert set(re.findall(r"^export (\w+)=", setup, re.MULTILINE)) == set(shell.variables)
        shell.prepare()
        before = await exports(service)

        assert f"{PROJECT}\tShop\t{TOKEN}\n" in await shell.done(look)
        assert (await shell.done(pause)).endswith("true\n")
        await shell.done(migrate)
        while_paused = (await exports(service))[EXPORT]
        assert (while_paused["paused"], while_paused["latest_runs"]) == (True, [])
        manifest = read_manifest(tmp_path / "state" / MANIFEST)
        assert (manifest.complete, manifest.events) == (True, COUNT)
        assert (manifest.first, manifest.last) == (
            "2024-02-27T23:59:59.250Z",
            "2024-03-03T03:44:59.250Z",
        )
        # an event of now, and a late one of an imported day
        live = [
            {"event": "seen", "distinct_id": "u1", **more}
            for more in ({}, {"timestamp": "2024-02-29T12:00:00Z"})
        ]
        await posted(f"{service}/batch/", {"api_key": TOKEN, "batch": live})

        await shell.done(go_on)
        await posted(f"{service}/sandbox/clock?settle=true", {})
        assert "Completed\t" in await shell.done(wait)
        after = await exports(service)
        assert not after[EXPORT]["paused"]
        assert after[PAUSED_EXPORT] == before[PAUSED_EXPORT]
        runs = sorted(after[EXPORT]["latest_runs"], key=lambda run: str(run["data_interval_start"]))
        assert {run["status"] for run in runs} == {"Completed"}
        past = runs[: len(DAYS) - 1]
        rest = runs[len(DAYS) - 1 :]
        assert [
            (run["data_interval_start"][:19], run["data_interval_end"][:19]) for run in past
        ] == list(pairwise(DAYS))
        assert sum(run["records_completed"] for run in past) == COUNT + 1
        assert rest[0]["data_interval_start"] == after[EXPORT]["last_paused_at"]

        assert f"All {COUNT} events of 6 days are there" in await shell.done(verify)
        file, line = next(
            shipped_line for shipped_line in shipped(tmp_path) if '"Purchase"' in shipped_line[1]
        )
        content = file.read_text()
        file.write_text(content.replace(line + "\n", ""))
        assert (await shell.run(verify)).code == 1
        file.write_text(content)

        await posted(f"{service}/sandbox/clock?settle=true", {"advance": "24h"})
        uuids = {json.loads(line)["uuid"] for _, line in shipped(tmp_path)}
        assert len(uuids) == COUNT + len(live)
