"""`forwarder import` and `forwarder import status`."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from forwarder.cli.imports import status
from forwarder.sandbox import SandboxOptions
from forwarder.sources.imports.checkpoint import FILE
from forwarder.sources.imports.preflight_report import PreflightResult
from forwarder.storage.directory import LockedDirectory
from tests.cli.import_commands import run, state
from tests.sandbox.client import SandboxClient, talking
from tests.sources.imports.preflights import report
from tests.sources.imports.samples.manifests import JOB
from tests.support.commands import LIMIT, Finished, forwarder, invoked, running
from tests.support.waiting import pause

KEY = "phc_0123456789hunter2good"
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
    file.write_text(
        "".join(
            f"{json.dumps(record)}\n" if not isinstance(record, str) else f"{record}\n"
            for record in records
        )
    )
    return file


@pytest.fixture
async def service() -> AsyncIterator[SandboxClient]:
    """A service that knows one key."""
    async with talking(SandboxOptions(listen="127.0.0.1:0", api_keys=frozenset({KEY}))) as client:
        yield client


async def imported(
    service: SandboxClient, *words: object, key: str = KEY, env: Mapping[str, str] | None = None
) -> Finished:
    """Run the command to its end."""
    target = ("--upstream", service.sandbox.url, "--api-key", key, "--yes")
    done = await forwarder("import", *map(str, words), *target, env=env)
    assert KEY not in done.out + done.err
    assert "Traceback" not in done.err
    return done


async def held(service: SandboxClient) -> list[int]:
    """The numbers of the events that the service has, in the order in which they came."""
    found = (await service.get("/sandbox/events?limit=1000"))["results"]
    return [json.loads(each["raw"])["properties"]["n"] for each in found]


@pytest.mark.slow
async def test_an_import_and_the_same_again(service: SandboxClient, tmp_path: Path) -> None:
    """All events are there, once; the second time nothing is sent, and the same is said."""
    file = written(tmp_path, *events(50))
    state = tmp_path / "state"
    first = await imported(service, "native", file, "--state", state)
    assert (first.code, await held(service)) == (0, list(range(50)))
    again = await imported(service, "native", file, "--state", state)
    assert (again.code, len(await held(service))) == (0, 50)
    assert "This import is complete" in again.err
    for shown in (first.out, again.out):
        assert (
            "50 records read = 50 delivered + 0 refused + 0 left out + 0 repeats: balanced" in shown
        )
    assert {"manifest.json", "report.html", "report.json", "preflight.json"} <= {
        each.name for each in state.iterdir()
    }
    for each in state.iterdir():
        assert KEY.encode() not in each.read_bytes()


@pytest.mark.slow
async def test_rules_of_the_configuration_hold(service: SandboxClient, tmp_path: Path) -> None:
    """As for every other source: what is to be dropped or removed doesn't leave the machine."""
    config = tmp_path / "forwarder.yaml"
    config.write_text(
        "rules:\n"
        "- {name: noise, match: {source: import, event: noise}, drop: true}\n"
        "- {name: secrets, remove: [.properties.password]}\n"
    )
    noise, *kept = events(4)
    file = written(
        tmp_path,
        {**noise, "event": "noise"},
        *({**each, "properties": {**each["properties"], "password": "hunter2"}} for each in kept),
    )
    done = await imported(
        service, "native", file, "--state", tmp_path / "state", "--config", config
    )
    assert (done.code, await held(service)) == (0, [1, 2, 3])
    found = (await service.get("/sandbox/events?limit=1000"))["results"]
    assert not any("hunter2" in each["raw"] for each in found)
    assert "rule:noise" in done.out


@pytest.mark.slow
async def test_findings_stop_it_until_they_are_accepted(
    service: SandboxClient, tmp_path: Path
) -> None:
    """Nothing is sent before; afterwards the bad record is refused, and exit code 1 says so."""
    file = written(
        tmp_path,
        *events(3),
        {**events(1)[0], "event": "$create_alias", "properties": {"alias": "nil"}},
    )
    words = ("native", file, "--state", tmp_path / "state")
    stopped = await imported(service, *words)
    assert (stopped.code, await held(service)) == (1, [])
    assert "--accept illegal-merges --accept many-refused" in stopped.out
    done = await imported(
        service,
        *words,
        "--accept",
        "illegal-merges",
        "--accept",
        "many-refused",
        "--output",
        "json",
    )
    assert (done.code, await held(service)) == (1, [0, 1, 2])
    assert json.loads(done.out)["books"]["refused"] == {"illegal_distinct_id": 1}
    assert "dead-letters ls --path" in done.err


@pytest.mark.long
async def test_a_key_that_is_unknown(service: SandboxClient, tmp_path: Path) -> None:
    """Exit code 3, before anything is read; the key is shown by its end alone."""
    done = await imported(
        service,
        "native",
        written(tmp_path, *events(1)),
        "--state",
        tmp_path / "state",
        key="phc_0123456789unknown1",
    )
    assert (done.code, done.out) == (3, "")
    assert "doesn't know the project key phc_…own1" in done.err


@pytest.mark.long
async def test_no_service(tmp_path: Path) -> None:
    """Exit code 3, with what to look at."""
    target = ("--upstream", "http://127.0.0.1:1", "--api-key", KEY, "--yes")
    done = await forwarder(
        "import",
        "native",
        str(written(tmp_path, *events(1))),
        "--state",
        str(tmp_path / "state"),
        *target,
    )
    assert done.code == 3
    assert "can't be reached" in done.err


async def test_an_unknown_format_is_named_with_the_known_ones() -> None:
    """Exit code 2, with those that there are."""
    done = await invoked("import", "mixpanel_profiles", "x")
    assert done.code == 2
    assert (
        "Unknown format 'mixpanel_profiles'. Did you mean mixpanel-profiles? The formats are "
        "native, posthog,"
    ) in done.err


@pytest.mark.slow
async def test_the_same_folder_for_another_import(service: SandboxClient, tmp_path: Path) -> None:
    """Exit code 2, with what is another; nothing is sent."""
    words = ("native", written(tmp_path, *events(2)), "--state", tmp_path / "state")
    assert (await imported(service, *words)).code == 0
    other = await imported(service, *words, "--geoip")
    assert other.code == 2
    assert "`--geoip` was not said, now it is 'true'" in other.err


@pytest.mark.slow
async def test_a_signal_and_the_same_command_again(service: SandboxClient, tmp_path: Path) -> None:
    """What was taken is settled and saved, exit code 130; then it continues, and
    each event is there once.
    """
    file = written(tmp_path, *events(600))
    words = (
        "import",
        "native",
        str(file),
        "--state",
        str(tmp_path / "state"),
        "--upstream",
        service.sandbox.url,
        "--api-key",
        KEY,
    )
    small = {"FORWARDER_BATCH__MAX_EVENTS": "20"}
    async with running(*words, "--rate", "100", "--yes", env=small) as command:
        async with asyncio.timeout(LIMIT):
            while not await held(service):
                await pause(0.05)
        command.send(signal.SIGINT)
        assert await command.ended() == 130
    assert any("reading stops" in line for line in command.lines)
    done = await imported(
        service, "native", file, "--state", tmp_path / "state", "--rate", "unlimited"
    )
    assert done.code == 0
    assert "resumes from its checkpoint" in done.err
    assert sorted(await held(service)) == list(range(600))
    assert (await service.get("/sandbox/conflicts"))["count"] == 0


@pytest.mark.slow
async def test_rules_and_variables(service: SandboxClient, tmp_path: Path) -> None:
    """By the environment alone, as in a job of a cluster: whom to send to, and where
    the state is.
    """
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    records = written(
        tmp_path,
        *(
            {"name": "e", "who": "u", "at": "2024-01-01T00:00:00Z", "n": number}
            for number in range(3)
        ),
    )
    env = {
        "FORWARDER_UPSTREAM__URL": service.sandbox.url,
        "FORWARDER_IMPORT__API_KEY": KEY,
        "FORWARDER_IMPORT__STATE": str(tmp_path / "imports"),
    }
    done = await forwarder(
        "import", "mapping", str(records), "--mapping", str(rules), "--yes", env=env
    )
    assert (done.code, await held(service)) == (0, [0, 1, 2]), done.err
    (folder,) = [each for each in (tmp_path / "imports").iterdir() if each.is_dir()]
    assert folder.name.startswith("mapping-")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the configuration says that imports keep their folders."""
    monkeypatch.setenv("FORWARDER_IMPORT__STATE", str(tmp_path / "imports"))
    return tmp_path / "imports"


def test_all_imports_are_listed(root: Path) -> None:
    """By the names of their folders, complete or not; other folders and files are none. Exit
    code 0.
    """
    state(root / "b", ended=False)
    state(root / "a")
    (root / "other").mkdir()
    (root / "pace").write_text("")
    done = run(status)
    assert (done.code, done.err) == (0, "")
    heads = [line for line in done.out.splitlines() if line.startswith("mixpanel")]
    assert heads == [
        "mixpanel export/*.json.gz: complete",
        "mixpanel export/*.json.gz: not complete: the same command resumes it",
    ]
    assert done.out.index(str(root / "a")) < done.out.index(str(root / "b"))


def test_one_import(tmp_path: Path) -> None:
    """By its folder, wherever that is."""
    done = run(status, "--state", state(tmp_path / "x"))
    assert done.code == 0
    assert f"import {JOB.id}, in {tmp_path / 'x'}" in done.out


def test_an_import_that_runs(root: Path) -> None:
    """Its folder is read without its lock, and it is said that a process has it; also before it
    has settled anything.
    """
    locks = [
        LockedDirectory.acquire(state(root / "a", ended=False), "--state"),
        LockedDirectory.acquire(root / "b", "--state"),
    ]
    done = run(status)
    for lock in locks:
        lock.release()
    assert done.code == 0
    assert "mixpanel export/*.json.gz: running\n" in done.out
    assert "b: running, nothing is settled yet" in done.out


def test_for_machines(root: Path) -> None:
    """`--output json` has all of them."""
    state(root / "a")
    done = run(status, "--output", "json")
    [found] = json.loads(done.out)["imports"]
    assert (found["folder"], found["complete"], found["running"], done.code) == (
        str(root / "a"),
        True,
        False,
        0,
    )


def test_a_checkpoint_that_is_damaged(root: Path) -> None:
    """It is said, and what to do; the others are shown all the same. Exit code 2."""
    (state(root / "a") / FILE).write_text('{"version": 1, "sha2')
    state(root / "b")
    done = run(status)
    assert done.code == 2
    assert f"Error: {root / 'a' / FILE} can't be read" in done.err
    assert str(root / "b") in done.out
    assert run(status, "--state", root / "a").code == 2


def test_how_much_was_counted_before(tmp_path: Path) -> None:
    """What the preflight left beside the checkpoint is compared with, from the file
    that it writes.
    """
    folder = state(tmp_path / "x", ended=False)
    PreflightResult.assess(structs.replace(report([]), records=400), ()).save(folder)
    assert "% of the 400 records that were counted" in run(status, "--state", folder).out


@pytest.mark.parametrize("made", [True, False])
def test_nothing_is_there(root: Path, *, made: bool) -> None:
    """No folder, or an empty one: that is said, with its place. Exit code 1."""
    if made:
        root.mkdir()
    for arguments in ((), ("--state", root / "x")):
        done = run(status, *arguments)
        assert (done.code, done.out) == (1, "")
        assert f"there is no import in {root}" in done.err


def test_a_place_that_cannot_be_looked_at(root: Path) -> None:
    """A file where the folder should be holds no import."""
    root.write_text("")
    assert run(status).code == 1
