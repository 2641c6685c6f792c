"""A sandbox that is killed with -9 while it exports, and started again by the same command."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
import yaml

from forwarder.sandbox.store.database import Store
from tests.end_to_end.importing import RunningSandbox, sandbox
from tests.sandbox.shipped import KEY, folder, read_folder, read_part, request, stored
from tests.support.buckets import Bucket
from tests.support.commands import LIMIT
from tests.support.waiting import eventually

EVENTS: Final = 24_000
"""Of each hour that is exported about 11,000: a file of 10,000 events, and one of the others."""
HOURS: Final = range(10, 12)
"""Those that are exported; one event in twelve is of the hours around them."""
EXPORTS: Final = ("01900000-0000-7000-8000-000000000777", "01900000-0000-7000-8000-000000000778")


def seed(path: Path, *destinations: dict[str, Any]) -> Path:
    """A project with exports of two hours, paused."""
    times = {
        "interval": "hour",
        "start_at": "2026-01-01T10:00:00Z",
        "end_at": "2026-01-01T12:00:00Z",
        "paused": True,
    }
    exports = [
        {"id": one, "name": one, "destination": destination, **times}
        for one, destination in zip(EXPORTS, destinations, strict=True)
    ]
    member = {"email": "a@example.com", "first_name": "A", "level": "owner"}
    project = {"api_key": KEY, "name": "killed", "batch_exports": exports}
    path.write_text(
        yaml.safe_dump(
            {"organizations": [{"name": "O", "members": [member], "projects": [project]}]}
        )
    )
    return path


@pytest.fixture
def expected(tmp_path: Path) -> list[str]:
    """A database with events of four hours in any order; the uuids of those that are exported."""
    chance = random.Random(7)
    store = Store(tmp_path / "x.db")
    events = [
        stored(
            number,
            chance.choice((9, 12)) * 60 + chance.randrange(60)
            if number % 12 == 0
            else chance.randrange(10 * 60, 12 * 60),
            distinct_id=f"d{number % 50}",
        )
        for number in range(EVENTS)
    ]
    store.execute("BEGIN")
    store.add(request(events))
    store.execute("COMMIT")
    store.close()
    return sorted(
        event.uuid for event in events if event.uuid and int(event.timestamp[11:13]) in HOURS
    )


def unpause(service: RunningSandbox, export: str) -> None:
    """Let an export begin, as its page does."""
    urlopen(
        Request(f"{service.url}/sandbox/batch-exports/{export}/unpause", b"{}"), timeout=LIMIT
    ).close()


def runs(service: RunningSandbox) -> list[dict[str, Any]]:
    """The runs of both exports."""
    export_runs: list[dict[str, Any]] = service.ask("batch-export-runs?limit=100")["results"]
    return export_runs


def completed(service: RunningSandbox) -> int:
    """How many runs are."""
    return sum(run["status"] == "Completed" for run in runs(service))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_each_event_is_exported_once(
    tmp_path: Path, bucket: Bucket, expected: list[str]
) -> None:
    """Killed whenever some more parts are written: a folder and a bucket have each event of the
    hours once, and no other.
    """
    place = tmp_path / "root" / "exported"
    key = bucket.config(file_format="Parquet", prefix="hourly")
    seeded = seed(tmp_path / "seed.yaml", folder(compression="gzip"), {"type": "S3", "config": key})
    options = (
        "--database",
        str(tmp_path / "x.db"),
        "--seed",
        str(seeded),
        "--export-root",
        str(tmp_path / "root"),
    )
    for count in (1, 3):
        with sandbox(*options, "--allow-private-destinations") as service:
            for export in EXPORTS if count == 1 else ():
                unpause(service, export)
            await eventually(
                # mypy has no type for a default that binds the loop's value.
                lambda count=count: len(list(place.glob("[!.]*"))) >= count,  # type: ignore[misc]
                limit=LIMIT,
            )
    with sandbox(*options, "--allow-private-destinations") as service:
        await eventually(
            lambda: completed(service) == len(HOURS) * len(EXPORTS),
            limit=LIMIT,
            explain=lambda: json.dumps(runs(service)),
        )
        assert {run["status"] for run in runs(service)} == {"Completed", "ContinuedAsNew"}
        assert all(
            run["records_completed"] == run["records_total_count"]
            for run in runs(service)
            if run["status"] == "Completed"
        )
    in_folder = sorted(record["uuid"] for record in read_folder(place))
    in_bucket = sorted(
        record["uuid"]
        for name, content in bucket.contents().items()
        for record in read_part(name, content)
    )
    assert (len(in_folder), len(in_bucket)) == (len(expected), len(expected))
    assert in_folder == in_bucket == expected
