"""Exports as a user has them: a seed, events, a clock that is moved, and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import SandboxClient, batch, event, talking
from tests.sandbox.shipped import KEY, START, folder, read_folder, uuid_of

EXPORT = "01900000-0000-7000-8000-000000000779"


def options(tmp_path: Path, *, private: bool = False, **export: Any) -> SandboxOptions:
    """A sandbox at the beginning of 2026, with an hourly export to a folder."""
    whole = {
        "id": EXPORT,
        "name": "events",
        "interval": "hour",
        "destination": folder(),
        "start_at": START.isoformat(),
        **export,
    }
    project = {"api_key": KEY, "name": "exported", "batch_exports": [whole]}
    member = {"email": "a@example.com", "first_name": "A", "level": "owner"}
    seed = tmp_path / "seed.yaml"
    seed.write_text(
        yaml.safe_dump(
            {"organizations": [{"name": "O", "members": [member], "projects": [project]}]}
        )
    )
    return SandboxOptions(
        seed=seed, now=START.timestamp, export_root=tmp_path, allow_private_destinations=private
    )


async def send(
    client: SandboxClient, *numbers: int, timestamp: str = "2026-01-01T00:10:00Z"
) -> None:
    """Send events."""
    events = [
        event(uuid=uuid_of(number), timestamp=timestamp, properties={"$set": {"n": number}})
        for number in numbers
    ]
    assert (await client.post("/batch/", {**batch(*events), "api_key": KEY})).status == 200


async def advance(client: SandboxClient, by: str = "1h") -> list[dict[str, Any]]:
    """Let an hour pass, or another time, and everything that is due run;
    the runs, the newest first.
    """
    assert (await client.post("/sandbox/clock?settle=true", {"advance": by})).status == 200
    runs: list[dict[str, Any]] = (
        await client.get(f"/sandbox/batch-export-runs?batch_export={EXPORT}")
    )["results"]
    return runs


def exported(tmp_path: Path) -> list[str]:
    """The uuids that were exported."""
    place = tmp_path / "exported"
    return [record["uuid"] for record in read_folder(place)] if place.exists() else []


async def test_an_hour_passes(tmp_path: Path) -> None:
    """Its events are in a file, and a late one is with the next hour's; an hour without events has
    no file.
    """
    async with talking(options(tmp_path)) as client:
        await send(client, 1, 2)
        [run] = await advance(client)
        assert (run["status"], run["records_completed"], run["records_total_count"]) == (
            "Completed",
            2,
            2,
        )
        assert exported(tmp_path) == [uuid_of(1), uuid_of(2)]
        await send(client, 3)
        await advance(client)
        run, *_ = await advance(client)
        assert (run["status"], run["records_completed"], run["records_total_count"]) == (
            "Completed",
            0,
            0,
        )
    assert exported(tmp_path) == [uuid_of(1), uuid_of(2), uuid_of(3)]
    assert len(list((tmp_path / "exported").iterdir())) == 2


async def test_after_everything_is_deleted(tmp_path: Path) -> None:
    """New events are exported, although arrivals are numbered from the beginning again; a retry
    exports nothing of them.
    """
    async with talking(options(tmp_path)) as client:
        await send(client, 1, 2, 3)
        [first] = await advance(client)
        assert (await client.ask("DELETE", "/sandbox/events")).status in (200, 204)
        await send(client, 4, 5)
        await client.post(f"/sandbox/batch-export-runs/{first['id']}/retry", {})
        [retried, _] = await advance(client, "1s")
        assert (retried["status"], retried["records_completed"]) == ("Completed", 0)
        await advance(client)
    assert exported(tmp_path) == [uuid_of(number) for number in (1, 2, 3, 4, 5)]


async def test_persons_that_changed(tmp_path: Path) -> None:
    """Each run has the persons that changed since the one before."""
    async with talking(options(tmp_path, model="persons")) as client:
        for number in (1, 2):
            await send(client, number)
            await advance(client)
        [run, *_] = await advance(client)
    assert [record["properties"] for record in read_folder(tmp_path / "exported")] == [
        {"n": 1},
        {"n": 2},
    ]
    assert run["records_completed"] == 0


async def test_to_another_sandbox(tmp_path: Path) -> None:
    """Events arrive there as they are here: their ids, their times, their properties; once, also
    if they are sent again.
    """
    async with talking(SandboxOptions(now=START.timestamp)) as other:
        destination = {
            "type": "HTTP",
            "config": {"url": other.sandbox.url, "token": "phc_another_project_0001"},
        }
        async with talking(options(tmp_path, destination=destination, private=True)) as client:
            await send(client, 1, 2)
            [run] = await advance(client)
            await client.post(f"/sandbox/batch-export-runs/{run['id']}/retry", {})
            await advance(client, "1s")
            sent = await client.sandbox.events()
        arrived = await other.sandbox.events()
        summary = await other.sandbox.summary()
    assert run["status"] == "Completed"
    assert [(one.uuid, one.timestamp, one.properties) for one in arrived] == [
        (one.uuid, one.timestamp, one.properties) for one in sent
    ]
    assert {(one.api_key, one.historical) for one in arrived} == {
        ("phc_another_project_0001", True)
    }
    assert (summary.arrivals, summary.events, summary.duplicates) == (4, 2, 2)


async def test_what_is_misconfigured_fails_the_run(tmp_path: Path) -> None:
    """The run says why; secrets are nowhere."""
    secret = {"aws_access_key_id": "AKIAHIDDEN", "aws_secret_access_key": "hidden-secret"}
    destination = {
        "type": "S3",
        "config": {"bucket_name": "b-1", "endpoint_url": "http://127.0.0.1:9", **secret},
    }
    async with talking(options(tmp_path, destination=destination)) as client:
        await send(client, 1)
        [run] = await advance(client)
        logs = await client.get(f"/sandbox/batch-export-runs/{run['id']}/logs")
        shown = json.dumps([run, logs, await client.get("/sandbox/batch-exports")])
    assert run["status"] == "Failed"
    assert "--allow-private-destinations" in run["latest_error"]
    assert not any(value in shown for value in secret.values())
