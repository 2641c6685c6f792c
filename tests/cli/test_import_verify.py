"""`forwarder import verify`: against a sandbox, and against exports of the service."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from aiohttp import web
from aiohttp.test_utils import TestServer
from pyarrow import parquet

from forwarder.cli.imports import verify
from forwarder.sandbox import Sandbox
from forwarder.sources.imports import checkpoint, verification
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.report import MANIFEST, write_reports
from forwarder.sources.imports.times import when
from tests.cli.import_commands import DAYS, run, run_beside, state
from tests.sandbox.client import KEY, SandboxClient, talking
from tests.sources.imports.samples import manifests
from tests.sources.imports.samples.manifests import JOB
from tests.support.commands import Finished, invoked

OTHER_KEY = "phc_another_key_000000002"
SAME = (
    f"All {manifests.manifest(DAYS).events} events of 4 days are there, by count and by "
    "digest of their uuids\n"
)


def delivered() -> list[FinishedEvent]:
    """The events that the sample's manifest counts as delivered."""
    some = manifests.events(DAYS)
    return [event for event in some if event is not some[2]]


def sent(event: FinishedEvent, job: str | None = JOB.id, **more: Any) -> dict[str, Any]:
    """An event as an import sends it."""
    properties = {} if job is None else {"$import_job_id": job}
    reported = {
        "event": event.event,
        "distinct_id": event.distinct_id,
        "uuid": event.uuid,
        "timestamp": when(event.time),
    }
    return {**reported, "properties": properties, **more}


async def send(client: SandboxClient, events: Sequence[dict[str, Any]], key: str = KEY) -> None:
    """Send a batch, as an import does."""
    reply = await client.post(
        "/batch/", {"api_key": key, "historical_migration": True, "batch": events}
    )
    assert reply.status == 200


def exported(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as an export of the service has them, compressed as the name says."""
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


@pytest.fixture
def import_folder(tmp_path: Path) -> Path:
    """The folder of an import."""
    return state(tmp_path / "kept")


async def verified(folder: Path, client: SandboxClient, *more: str) -> Finished:
    """The command, of the import in a folder against a sandbox."""
    return await run_beside(verify, "--state", folder, "--sandbox", client.sandbox.url, *more)


async def test_all_is_in_the_sandbox(import_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event once, however many pages they take; repeats and events of no one's import don't
    count. Exit code 0.
    """
    monkeypatch.setattr(verification, "PAGE", 3)
    async with talking() as client:
        await send(client, [sent(event) for event in delivered()])
        await send(client, [sent(event) for event in delivered()[:4]])
        await send(client, [sent(event, None, uuid=None) for event in delivered()])
        done = await verified(import_folder, client)
        slash = await run_beside(
            verify,
            "--manifest",
            import_folder / MANIFEST,
            "--sandbox",
            f"{client.sandbox.url}/",
            "--api-key",
            KEY,
        )
    assert (done.code, done.out, done.err) == (0, SAME, "")
    assert slash == done


async def test_what_is_missing_in_the_sandbox(import_folder: Path) -> None:
    """It is reported by day. Exit code 1."""
    async with talking() as client:
        await send(client, [sent(event) for event in delivered()[:-2]])
        done = await verified(import_folder, client)
        empty = await verified(import_folder, client, "--api-key", OTHER_KEY, "--output", "json")
    assert (done.code, done.out.splitlines()[0].split(":")[0]) == (1, "1 of 4 days differs")
    assert "2024-01-04: 2 of " in done.out
    report = json.loads(empty.out)
    assert (empty.code, report["same"], sum(day["found"] for day in report["days"])) == (
        1,
        False,
        0,
    )


async def test_a_conflict_in_the_sandbox(import_folder: Path) -> None:
    """Every event is there, and one of them twice, with other properties. Exit code 1."""
    async with talking() as client:
        await send(client, [sent(event) for event in delivered()])
        await send(client, [sent(delivered()[0], distinct_id="somebody else")])
        done = await verified(import_folder, client)
    assert done.code == 1
    assert "1 conflict: " in done.out


async def test_an_import_into_two_projects(import_folder: Path) -> None:
    """Which of them is meant has to be said."""
    async with talking() as client:
        for key in (KEY, OTHER_KEY):
            await send(client, [sent(event) for event in delivered()], key)
        unsaid = await verified(import_folder, client)
        said = await verified(import_folder, client, "--api-key", OTHER_KEY)
    assert unsaid.code == 2
    assert "has this import in several projects: phc_…0002, phc_…0001" in unsaid.err
    assert KEY not in unsaid.err
    assert said.code == 0


async def test_the_configured_upstream_is_asked(
    import_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an address, and the only import there is without a folder; the key is the configured
    one, too.
    """
    monkeypatch.setenv("FORWARDER_IMPORT__STATE", str(import_folder.parent))
    monkeypatch.setenv("FORWARDER_IMPORT__API_KEY", KEY)
    async with talking() as client:
        monkeypatch.setenv("FORWARDER_UPSTREAM__URL", client.sandbox.url)
        await send(client, [sent(event) for event in delivered()])
        await send(client, [sent(event) for event in delivered()], OTHER_KEY)
        assert (await run_beside(verify)).code == 0
        state(import_folder.parent / "second")
        several = await run_beside(verify)
    assert several.code == 2
    assert f"there are several imports in {import_folder.parent}: kept, second" in several.err


def test_nothing_to_compare_with(import_folder: Path) -> None:
    """Neither an upstream nor files: both ways are named. Exit code 2."""
    done = run(verify, "--state", import_folder)
    assert done.code == 2
    assert "--sandbox" in done.err
    assert "--export" in done.err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:1/prefix/"])
def test_no_sandbox_answers(import_folder: Path, url: str) -> None:
    """Exit code 3, and how to start one."""
    done = run(verify, "--state", import_folder, "--sandbox", url)
    assert done.code == 3
    assert f"no sandbox answers at {url.rstrip('/')}: Connection refused" in done.err
    assert "forwarder sandbox" in done.err


@pytest.mark.parametrize("url", ["127.0.0.1:8322", "ftp://x", "http://", "http://x:99999"])
def test_no_address_of_a_sandbox(import_folder: Path, url: str) -> None:
    """Exit code 2, with the form that it should have."""
    done = run(verify, "--state", import_folder, "--sandbox", url)
    assert done.code == 2
    assert "is not the address of a sandbox" in done.err


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [(404, "", 2), (200, "<html>", 2), (200, '{"results": [{}]}', 2), (502, "", 3)],
)
async def test_who_answers_is_no_sandbox(
    import_folder: Path, status: int, body: str, code: int
) -> None:
    """The service can't be asked for events: exports are named. One that fails may be
    there later.
    """

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    application = web.Application()
    application.router.add_get("/{anything:.*}", answer)
    async with TestServer(application) as server:
        done = await run_beside(
            verify, "--state", import_folder, "--sandbox", str(server.make_url(""))
        )
    assert done.code == code
    assert ("--export" in done.err) == (code == 2)


async def test_a_sandbox_that_goes_away(
    import_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that breaks off is no verdict."""

    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"count"')
        assert request.transport is not None
        request.transport.abort()
        return response

    application = web.Application()
    application.router.add_get("/sandbox/imports", cut)
    async with TestServer(application) as server:
        done = await run_beside(
            verify, "--state", import_folder, "--sandbox", str(server.make_url(""))
        )
    assert (done.code, done.out) == (3, "")


@pytest.mark.parametrize("name", ["events.jsonl", "events.jsonl.gz", "events.jsonl.zst"])
def test_an_export_of_the_service(import_folder: Path, name: str) -> None:
    """As its batch exports write events: whatever else they have, properties as an object or as
    text, times with a zone or without.
    """
    rows = [
        {
            **sent(event),
            "team_id": 1,
            "elements_chain": "",
            "set": None,
            "timestamp": when(event.time).replace("T", " ").removesuffix("Z")
            if place % 2
            else when(event.time),
            "properties": {"$import_job_id": JOB.id}
            if place % 3
            else json.dumps({"$import_job_id": JOB.id}),
        }
        for place, event in enumerate(delivered())
    ]
    live = [
        {**sent(event, None), "uuid": f"{place:032x}"} for place, event in enumerate(delivered())
    ]
    path = exported(import_folder.parent / name, [*live, *rows])
    assert run(verify, "--state", import_folder, "--export", path).out == SAME
    assert run(verify, "--state", import_folder, "--export", path).code == 0
    assert run(verify, "--state", import_folder, "--export", path, "--any-job").code == 1


def test_an_export_as_parquet_and_as_an_array(import_folder: Path) -> None:
    """The service writes either file format; a listing that was saved is an array."""
    rows = [
        {**sent(event), "properties": json.dumps({"$import_job_id": JOB.id})}
        for event in delivered()
    ]
    moments = [datetime.fromisoformat(row["timestamp"]) for row in rows]
    table = pa.table(
        {
            **{name: [row[name] for row in rows] for name in ("uuid", "event", "properties")},
            "timestamp": moments,
        }
    )
    parquet.write_table(table, import_folder.parent / "x.parquet")
    (import_folder.parent / "x.json").write_text(json.dumps(rows, indent=1))
    for name in ("x.parquet", "x.json"):
        done = run(verify, "--state", import_folder, "--export", import_folder.parent / name)
        assert (done.code, done.out) == (0, SAME)


def test_several_files_of_an_export(import_folder: Path) -> None:
    """By a pattern, by a folder, or one after the other; rows that the service will remove are
    said, and no difference.
    """
    folder = import_folder.parent / "export"
    folder.mkdir()
    rows = [sent(event) for event in delivered()]
    files = [exported(folder / "1.jsonl.gz", rows[:9]), exported(folder / "2.jsonl", rows[7:])]
    for arguments in ([folder], [folder / "*.jsonl*"], files):
        done = run(
            verify,
            "--state",
            import_folder,
            *(part for path in arguments for part in ("--export", path)),
        )
        assert (done.code, done.out) == (
            0,
            SAME + "2 rows repeat a uuid of their day: the service removes them some time later\n",
        )
    assert run(verify, "--state", import_folder, "--export", files[0]).code == 1


def test_an_export_without_properties(import_folder: Path) -> None:
    """Its rows don't say which import they are of: all of them are counted where that
    is asked for.
    """
    path = exported(
        import_folder.parent / "x.jsonl",
        [{"uuid": event.uuid, "timestamp": when(event.time)} for event in delivered()],
    )
    assert run(verify, "--state", import_folder, "--export", path, "--any-job").code == 0
    assert run(verify, "--state", import_folder, "--export", path).code == 1


@pytest.mark.parametrize(
    "row",
    [
        {"event": "x", "timestamp": "2024-01-01T00:00:00Z"},
        {
            "uuid": "no uuid",
            "timestamp": "2024-01-01T00:00:00Z",
            "properties": {"$import_job_id": JOB.id},
        },
        {"uuid": delivered()[0].uuid, "timestamp": 1704067200},
        {
            "uuid": delivered()[0].uuid,
            "timestamp": "yesterday",
            "properties": {"$import_job_id": JOB.id},
        },
        {"uuid": delivered()[0].uuid, "timestamp": "2024-01-01T00:00:00Z", "properties": [1]},
        {"uuid": delivered()[0].uuid, "timestamp": "2024-01-01T00:00:00Z", "properties": "{"},
        [1],
    ],
)
def test_a_row_that_is_no_event(import_folder: Path, row: Any) -> None:
    """It is named by its file and line, with what rows must have. Exit code 2: nothing
    is proven.
    """
    path = exported(
        import_folder.parent / "x.jsonl", [sent(delivered()[0]), row, sent(delivered()[1])]
    )
    done = run(verify, "--state", import_folder, "--export", path)
    assert (done.code, done.out) == (2, "")
    assert f"Error: {path}:2 is not an exported event: " in done.err
    assert "`uuid`, `timestamp`" in done.err


def test_an_export_that_is_cut_off(import_folder: Path) -> None:
    """What can't be read to its end proves nothing. Exit code 2."""
    path = exported(import_folder.parent / "x.jsonl.gz", [sent(event) for event in delivered()])
    path.write_bytes(path.read_bytes()[:-20])
    done = run(verify, "--state", import_folder, "--export", path)
    assert (done.code, done.out) == (2, "")
    assert "can't be read" in done.err


def test_an_export_that_is_not_there(import_folder: Path) -> None:
    """It is named. Exit code 2."""
    done = run(verify, "--state", import_folder, "--export", import_folder.parent / "none.jsonl")
    assert (done.code, done.out) == (2, "")
    assert "none.jsonl" in done.err


def test_an_import_that_was_killed(tmp_path: Path) -> None:
    """Its checkpoint says more than the manifest of the run before, or than none; that it isn't
    complete is said.
    """
    folder = state(tmp_path / "kept", ended=False)
    write_reports(manifests.manifest(1, ended=False), folder)
    path = exported(tmp_path / "x.jsonl", [sent(event) for event in delivered()])
    stale = run(verify, "--state", folder, "--export", path)
    (folder / MANIFEST).unlink()
    assert run(verify, "--state", folder, "--export", path) == stale
    assert (stale.code, stale.out.splitlines()[0]) == (0, SAME.strip())
    assert "isn't complete" in stale.out
    (folder / checkpoint.FILE).unlink()
    assert run(verify, "--state", folder, "--export", path).code == 2


def test_a_manifest_that_says_something_else(import_folder: Path) -> None:
    """A digest that is another tells others from the same, however many there are."""
    path = exported(import_folder.parent / "x.jsonl", [sent(event) for event in delivered()])
    said = json.loads((import_folder / MANIFEST).read_bytes())
    said["days"]["2024-01-02"]["uuids"] = "0" * 32
    (import_folder / MANIFEST).write_text(json.dumps(said))
    done = run(verify, "--state", import_folder, "--export", path)
    assert done.code == 1
    assert "2024-01-02: " in done.out
    assert "but not the same ones" in done.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--state", "x", "--manifest", "y", "--sandbox", "http://127.0.0.1:1"),
        ("--state", "x", "--sandbox", "http://127.0.0.1:1", "--export", "y"),
        ("--state", "x", "--any-job"),
        ("--manifest", "no such file"),
        ("--state", "no such folder"),
    ],
)
def test_what_does_not_fit_together(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, before anything is asked."""
    monkeypatch.chdir(tmp_path)
    assert run(verify, *arguments).code == 2


@pytest.mark.slow
async def test_as_it_is_typed(import_folder: Path) -> None:
    """With the whole command, as it is documented, beside a sandbox."""
    async with Sandbox() as sandbox:
        done = await invoked(
            "import",
            "verify",
            "--state",
            str(import_folder),
            "--sandbox",
            sandbox.url,
            "--output",
            "json",
        )
        shown = await invoked("import", "status", "--state", str(import_folder))
    assert (done.code, json.loads(done.out)["job"]) == (1, JOB.id)
    assert (shown.code, JOB.id in shown.out) == (0, True)


def test_a_folder_that_cannot_be_looked_into_is_an_error_in_words(tmp_path: Path) -> None:
    """Whatever keeps the system from it."""
    done = run(verify, "--state", tmp_path / ("n" * 300))
    assert done.code == 2
    assert "can't be read" in done.err
