"""`forwarder import` as somebody types it: a process, a sandbox as the service, and what is there afterwards."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import Client, talking
from tests.support.commands import LIMIT, Finished, forwarder, running
from tests.support.waiting import pause

KEY = "phc_0123456789hunter2good"
pytestmark = pytest.mark.slow
RULES = "event: .name\ndistinct_id: .who\ntimestamp: .at\nproperties: {n: .n}\n"


def events(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Complete ones, a second apart."""
    return [
        {
            "event": "seen",
            "distinct_id": f"u{number % 5}",
            "timestamp": f"2024-03-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z",
            "uuid": str(UUID(int=number)),
            "properties": {"n": number},
        }
        for number in range(first, first + count)
    ]


def written(folder: Path, *records: object) -> Path:
    """JSON lines."""
    file = folder / "export.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" if not isinstance(record, str) else f"{record}\n" for record in records))
    return file


@pytest.fixture
async def service() -> AsyncIterator[Client]:
    """A service that knows one key."""
    async with talking(SandboxOptions(listen="127.0.0.1:0", api_keys=frozenset({KEY}))) as client:
        yield client


async def imported(service: Client, *words: object, key: str = KEY, env: Mapping[str, str] | None = None) -> Finished:
    """Run the command to its end."""
    target = ("--upstream", service.sandbox.url, "--api-key", key, "--yes")
    done = await forwarder("import", *map(str, words), *target, env=env)
    assert KEY not in done.out + done.err
    assert "Traceback" not in done.err
    return done


async def held(service: Client) -> list[int]:
    """The numbers of the events that the service has, in the order in which they came."""
    found = (await service.get("/sandbox/events?limit=1000"))["results"]
    return [json.loads(each["raw"])["properties"]["n"] for each in found]


async def test_an_import_and_the_same_again(service: Client, tmp_path: Path) -> None:
    """All events are there, once; the second time nothing is sent, and the same is said."""
    file, state = written(tmp_path, *events(50)), tmp_path / "state"
    first = await imported(service, "native", file, "--state", state)
    assert (first.code, await held(service)) == (0, list(range(50)))
    again = await imported(service, "native", file, "--state", state)
    assert (again.code, len(await held(service))) == (0, 50)
    assert "This import is complete" in again.err
    for shown in (first.out, again.out):
        assert "50 records read = 50 delivered + 0 refused + 0 left out + 0 repeats: balanced" in shown
    assert {"manifest.json", "report.html", "report.json", "preflight.json"} <= {each.name for each in state.iterdir()}
    for each in state.iterdir():
        assert KEY.encode() not in each.read_bytes()


async def test_findings_stop_it_until_they_are_accepted(service: Client, tmp_path: Path) -> None:
    """Nothing is sent before; afterwards the bad record is refused, and exit code 1 says so."""
    file = written(tmp_path, *events(3), {**events(1)[0], "distinct_id": "null"})
    words = ("native", file, "--state", tmp_path / "state")
    stopped = await imported(service, *words)
    assert (stopped.code, await held(service)) == (1, [])
    assert "--accept illegal-ids --accept many-refused" in stopped.out
    done = await imported(service, *words, "--accept", "illegal-ids", "--accept", "many-refused", "--output", "json")
    assert (done.code, await held(service)) == (1, [0, 1, 2])
    assert json.loads(done.out)["books"]["refused"] == {"illegal_id": 1}
    assert "dead-letters ls --path" in done.err


async def test_a_key_that_is_unknown(service: Client, tmp_path: Path) -> None:
    """Exit code 3, before anything is read; the key is shown by its end alone."""
    done = await imported(service, "native", written(tmp_path, *events(1)), "--state", tmp_path / "state", key="phc_0123456789unknown1")
    assert (done.code, done.out) == (3, "")
    assert "doesn't know the project key phc_…own1" in done.err


async def test_no_service(tmp_path: Path) -> None:
    """Exit code 3, with what to look at."""
    target = ("--upstream", "http://127.0.0.1:1", "--api-key", KEY, "--yes")
    done = await forwarder("import", "native", str(written(tmp_path, *events(1))), "--state", str(tmp_path / "state"), *target)
    assert done.code == 3
    assert "can't be reached" in done.err


async def test_a_format_that_there_is_not() -> None:
    """Exit code 2, with those that there are."""
    done = await forwarder("import", "mixpanel_profiles", "x")
    assert done.code == 2
    assert "Unknown format 'mixpanel_profiles'. The formats are native, amplitude, mixpanel, mixpanel-profiles, segment," in done.err


async def test_a_dry_run_without_anything(tmp_path: Path) -> None:
    """A look needs neither service nor key."""
    done = await forwarder("import", "native", str(written(tmp_path, *events(5))), "--state", str(tmp_path / "state"), "--dry-run")
    assert done.code == 0
    assert "5 events, " in done.out
    assert "Nothing was sent" in done.err


async def test_a_script_has_to_confirm(service: Client, tmp_path: Path) -> None:
    """Exit code 2 without `--yes`, with what to do; nothing is sent."""
    words = ("native", str(written(tmp_path, *events(2))), "--state", str(tmp_path / "state"))
    done = await forwarder("import", *words, "--upstream", service.sandbox.url, "--api-key", KEY)
    assert (done.code, done.out) == (2, "")
    assert "the import isn't confirmed" in done.err
    assert "add --yes" in done.err
    assert not await held(service)


async def test_the_same_folder_for_another_import(service: Client, tmp_path: Path) -> None:
    """Exit code 2, with what is another; nothing is sent."""
    words = ("native", written(tmp_path, *events(2)), "--state", tmp_path / "state")
    assert (await imported(service, *words)).code == 0
    other = await imported(service, *words, "--geoip")
    assert other.code == 2
    assert "`--geoip` was not said, now it is 'true'" in other.err


async def test_a_signal_and_the_same_command_again(service: Client, tmp_path: Path) -> None:
    """What was taken is settled and saved, exit code 130; then it goes on, and each event is there once."""
    file = written(tmp_path, *events(600))
    words = ("import", "native", str(file), "--state", str(tmp_path / "state"), "--upstream", service.sandbox.url, "--api-key", KEY)
    small = {"FORWARDER_BATCH__MAX_EVENTS": "20"}
    async with running(*words, "--rate", "100", "--yes", env=small) as command:
        async with asyncio.timeout(LIMIT):
            while not await held(service):
                await pause(0.05)
        command.send(signal.SIGINT)
        assert await command.ended() == 130
    assert any("nothing more is read" in line for line in command.lines)
    done = await imported(service, "native", file, "--state", tmp_path / "state", "--rate", "unlimited")
    assert done.code == 0
    assert "goes on where it stood" in done.err
    assert sorted(await held(service)) == list(range(600))
    assert (await service.get("/sandbox/conflicts"))["count"] == 0


async def test_rules_and_variables(service: Client, tmp_path: Path) -> None:
    """By the environment alone, as in a job of a cluster: whom to send to, and where the state is."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    records = written(tmp_path, *({"name": "e", "who": "u", "at": "2024-01-01T00:00:00Z", "n": number} for number in range(3)))
    env = {
        "FORWARDER_UPSTREAM__URL": service.sandbox.url,
        "FORWARDER_IMPORT__API_KEY": KEY,
        "FORWARDER_IMPORT__STATE": str(tmp_path / "imports"),
    }
    done = await forwarder("import", "mapping", str(records), "--mapping", str(rules), "--yes", env=env)
    assert (done.code, await held(service)) == (0, [0, 1, 2]), done.err
    (folder,) = [each for each in (tmp_path / "imports").iterdir() if each.is_dir()]
    assert folder.name.startswith("mapping-")
