"""The endpoints of batch exports and their runs, which need no personal key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.openapi import document
from tests.sandbox.client import SandboxClient, batch, event, talking
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT
from tests.support.management import TOKEN, UNKNOWN

FOLDER: dict[str, Any] = {"type": "Folder", "config": {"path": "shop"}}
CHANGES = (
    "batch-exports/{export}/pause",
    "batch-exports/{export}/unpause",
    "batch-exports/{export}/backfill",
)
OF_RUNS = ("batch-export-runs/{run}/retry", "batch-export-runs/{run}/terminate")


def seeded(folder: Path, *exports: dict[str, Any]) -> SandboxOptions:
    """A project with exports, on a clock that stands still."""
    project = {
        "api_key": TOKEN,
        "name": "Shop",
        "batch_exports": [{"name": f"Export {n}", **one} for n, one in enumerate(exports)],
    }
    path = folder / "seed.yaml"
    members = [{"email": "a@example.com", "level": "owner"}]
    path.write_text(
        yaml.safe_dump(
            {"organizations": [{"name": "Example", "members": members, "projects": [project]}]}
        )
    )
    return SandboxOptions(seed=path, export_root=folder / "out", now=lambda: MIDNIGHT)


async def runs(client: SandboxClient, **query: str) -> list[dict[str, Any]]:
    """The runs that are listed, which fit their schema."""
    path = "/sandbox/batch-export-runs"
    listing = await client.get(
        f"{path}?{'&'.join(f'{name}={value}' for name, value in query.items())}"
    )
    described = document()
    content = described["paths"][path]["get"]["responses"]["200"]["content"]
    schema = content["application/json"]["schema"]
    jsonschema.Draft202012Validator({**schema, "components": described["components"]}).validate(
        listing
    )
    results: list[dict[str, Any]] = listing["results"]
    return results


async def test_an_hour_is_exported(tmp_path: Path) -> None:
    """When the clock says so; the run is listed with its log, and what it wrote is in
    the folder.
    """
    async with talking(
        seeded(tmp_path, {"destination": FOLDER}, {"destination": {"type": "BigQuery"}})
    ) as client:
        await client.post("/batch/", batch(event(), event(), api_key=TOKEN))
        assert await runs(client) == []
        await client.post("/sandbox/clock?settle=true", {"advance": "1h"})
        [export, other] = (await client.get("/sandbox/batch-exports"))["results"]
        [run] = await runs(client, batch_export=export["id"])
        assert (run["status"], run["trigger"], run["attempt"]) == ("Completed", "schedule", 1)
        assert (run["records_completed"], run["next_attempt_at"]) == (2, None)
        assert export["latest_runs"] == [{name: run[name] for name in export["latest_runs"][0]}]
        [file] = (tmp_path / "out" / "shop").iterdir()
        assert len(file.read_text().splitlines()) == 2
        [failed] = await runs(client, status="Failed")
        assert (failed["batch_export"], "BigQuery" in failed["latest_error"]) == (other["id"], True)
        lines = (await client.get(f"/sandbox/batch-export-runs/{failed['id']}/logs"))["results"]
        assert [line["level"] for line in lines] == ["info", "error"]
        assert set(lines[0]) == {"timestamp", "level", "message"}


async def test_a_person_steers_an_export(tmp_path: Path) -> None:
    """Pauses and resumes it, exports a range or a run again, and stops a run."""
    async with talking(seeded(tmp_path, {"destination": FOLDER})) as client:
        [export] = (await client.get("/sandbox/batch-exports"))["results"]
        url = f"/sandbox/batch-exports/{export['id']}"
        assert (await client.post(f"{url}/pause", b"")).json == {"paused": True}
        await client.post("/sandbox/clock?settle=true", {"advance": "2h"})
        assert await runs(client) == []
        backfill = await client.post(
            f"{url}/backfill",
            {"start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-01T01:30:00Z"},
        )
        await client.post("/sandbox/clock?settle=true", b"")
        newest, oldest = await runs(client, trigger="backfill")
        assert (backfill.json, newest["data_interval_end"]) == (
            {"backfill_id": oldest["id"]},
            "2026-01-01T01:30:00.000000Z",
        )
        retry = await client.post(f"/sandbox/batch-export-runs/{oldest['id']}/retry", b"")
        await client.post("/sandbox/clock?settle=true", b"")
        [retried] = await runs(client, trigger="retry")
        assert (retry.json, retried["origin"], retried["status"]) == (
            {"run": retried["id"]},
            oldest["id"],
            "Completed",
        )
        assert (await client.post(f"{url}/unpause", b"")).json == {"paused": False}
        await client.post("/sandbox/clock?settle=true", b"")
        assert (
            len(await runs(client, trigger="schedule", order="oldest", limit="5", offset="0")) == 2
        )
        finished = await client.post(f"/sandbox/batch-export-runs/{oldest['id']}/terminate", b"")
        assert (finished.status, finished.json["code"]) == (409, "finished")


async def test_a_waiting_run_can_be_stopped(tmp_path: Path) -> None:
    """One whose destination is down, at an address that is allowed: it is `Terminated`, and not
    tried again.
    """
    options = seeded(
        tmp_path, {"destination": {"type": "HTTP", "config": {"url": "http://127.0.0.1:9/"}}}
    )
    async with talking(options) as client:
        await client.post("/batch/", batch(event(), api_key=TOKEN))
        await client.post("/sandbox/clock?settle=true", {"advance": "1h"})
        [run] = await runs(client)
        assert run["status"] == "Failed"
    async with talking(replace(options, allow_private_destinations=True)) as client:
        await client.post("/batch/", batch(event(), api_key=TOKEN))
        await client.post("/sandbox/clock?settle=true", {"advance": "1h"})
        [run] = await runs(client)
        assert (run["status"], run["next_attempt_at"]) == (
            "FailedRetryable",
            "2026-01-01T01:00:02.000000Z",
        )
        answer = await client.post(f"/sandbox/batch-export-runs/{run['id']}/terminate", b"")
        assert answer.json == {"status": "Terminated"}
        await client.post("/sandbox/clock?settle=true", {"advance": "1m"})
        [run] = await runs(client)
        assert (run["status"], run["attempt"]) == ("Terminated", 1)


@cases("path", [*CHANGES, *OF_RUNS])
async def test_forbidden_changes_of_exports(path: str, tmp_path: Path) -> None:
    """A page of another site changes nothing; what doesn't exist is 404."""
    async with talking(seeded(tmp_path, {"destination": FOLDER})) as client:
        await client.post("/sandbox/clock?settle=true", {"advance": "1h"})
        [run] = before = await runs(client)
        url = "/sandbox/" + path.format(export=run["batch_export"], run=run["id"])
        assert (await client.post(url, b"", Origin="https://elsewhere.example")).status == 403
        assert await runs(client) == before
        missing = await client.post("/sandbox/" + path.format(export=UNKNOWN, run=UNKNOWN), b"")
        assert (missing.status, missing.json["code"]) == (404, "not_found")
        assert (await client.ask("GET", f"/sandbox/batch-export-runs/{UNKNOWN}/logs")).status == 404


async def test_a_backfill_that_cannot_be(tmp_path: Path) -> None:
    """A range that isn't one, a body that is no JSON, one that is too large: 400, and no run."""
    async with talking(seeded(tmp_path, {"destination": FOLDER})) as client:
        [export] = (await client.get("/sandbox/batch-exports"))["results"]
        url = f"/sandbox/batch-exports/{export['id']}/backfill"
        bodies: list[Any] = [
            {"start_at": "2027-01-01T00:00:00Z"},
            {"start_at": "x"},
            {"strat_at": "2025-01-01T00:00:00Z"},
            [],
            b"{",
            b" " * 20_000,
        ]
        for body in bodies:
            assert (await client.post(url, body)).status == 400
        assert await runs(client) == []
