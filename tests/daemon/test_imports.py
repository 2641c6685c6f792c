"""One import, from its opening to its report: what makes it this one, and what another command
on its state is answered.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import zipfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forwarder.config.settings import Settings
from forwarder.core.clock import SystemClock
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.daemon.imports import ImportRun, UpstreamRefuses
from forwarder.sources.imports.checkpoint import FILE, CheckpointDamaged, SourceChanged
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.format import ChosenFormat
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.job import ImportRequest, OtherJob
from forwarder.sources.imports.report import MANIFEST, ImportManifest, read_manifest
from forwarder.sources.imports.source import ImportProgress
from tests.daemon.imports import line, uuid_of, write
from tests.support.cases import cases
from tests.support.upstream import UNAUTHORIZED, Answer, Upstream, plain
from tests.support.waiting import eventually

KEY = "phc_imports12345678"
NATIVE = ChosenFormat("native", {}, lambda _: NativeConverter("oldest"), ("timestamp",))


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A service that takes everything."""
    async with Upstream() as server:
        yield server


def request(
    upstream: Upstream | str, state: Path, *paths: Path | str, **more: Any
) -> ImportRequest:
    """An import of some files, as fast as it goes."""
    url = upstream if isinstance(upstream, str) else upstream.url
    settings = Settings.parse({"upstream": {"url": url} if url else {}, "batch": {"max_events": 5}})
    return ImportRequest(
        NATIVE,
        tuple(map(str, paths)),
        settings,
        KEY,
        state,
        **{"rate": None, "state_root": state.parent / "imports", **more},
    )


def opened(wanted: ImportRequest) -> ImportRun:
    """The import, opened."""
    return ImportRun(wanted, SystemClock())


async def run(
    wanted: ImportRequest,
    reported: Callable[[ImportRun, ImportProgress], None] = lambda _import, _progress: None,
) -> ImportManifest:
    """A run to its end."""
    it = opened(wanted)
    try:
        return await it.run(lambda progress: reported(it, progress))
    finally:
        it.close()


def sent(upstream: Upstream) -> list[str]:
    """The uuids of all events that it got."""
    return [event["uuid"] for received in upstream.requests for event in received.events]


def files(folder: Path) -> list[Path]:
    """Two files of events."""
    return [
        write(folder / f"{name}.jsonl", [line(20 * at + n, day=n // 10) for n in range(20)])
        for at, name in enumerate("ab")
    ]


async def test_a_run_leaves_a_manifest_and_a_report(tmp_path: Path, upstream: Upstream) -> None:
    """Every event is historical, and says of which import it is."""
    manifest = await run(request(upstream, tmp_path / "state", *files(tmp_path)))
    assert manifest.complete
    assert (manifest.books.read, manifest.books.delivered) == (40, 40)
    assert sorted(sent(upstream)) == sorted(uuid_of(n) for n in range(40))
    assert all(received.json["historical_migration"] is True for received in upstream.requests)
    assert {
        event["properties"]["$import_job_id"]
        for received in upstream.requests
        for event in received.events
    } == {manifest.job.id}
    assert {"manifest.json", "report.json", "report.html", FILE} <= {
        path.name for path in (tmp_path / "state").iterdir()
    }
    assert read_manifest(tmp_path / "state" / MANIFEST).books == manifest.books


async def test_a_complete_import_is_known_as_such(tmp_path: Path, upstream: Upstream) -> None:
    """The same command again has nothing to do."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    await run(wanted)
    it = opened(wanted)
    try:
        assert it.is_complete
        assert it.saved is not None
    finally:
        it.close()


async def test_stopped_in_mid_run_the_same_command_resumes(
    tmp_path: Path, upstream: Upstream
) -> None:
    """Also a stop that comes before the run."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    manifest = await run(wanted, lambda it, _progress: it.stop())
    assert not manifest.complete
    manifest = await run(wanted)
    assert manifest.complete
    assert set(sent(upstream)) == {uuid_of(n) for n in range(40)}


async def partly(wanted: ImportRequest) -> None:
    """A run that is stopped at once: there is a checkpoint."""
    await run(wanted, lambda it, _progress: it.stop())


def appended(paths: list[Path]) -> None:
    """A file grew."""
    paths[1].write_bytes(paths[1].read_bytes() + line(99) + b"\n")


def shortened(paths: list[Path]) -> None:
    """A file lost its end."""
    paths[1].write_bytes(paths[1].read_bytes()[:-50])


def replaced(paths: list[Path]) -> None:
    """A file has another content of the same size."""
    paths[1].write_bytes(paths[1].read_bytes().replace(b"seen", b"done"))


def renamed(paths: list[Path]) -> None:
    """A file has another name."""
    paths[1].rename(paths[1].with_name("c.jsonl"))


def joined(paths: list[Path]) -> None:
    """A file came to the folder."""
    write(paths[1].with_name("c.jsonl"), [line(99)])


def removed(paths: list[Path]) -> None:
    """A file is gone."""
    paths[1].unlink()


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (appended, r"b\.jsonl grew by"),
        (shortened, r"b\.jsonl shrank by 50 bytes"),
        (replaced, r"b\.jsonl has another beginning or end than before, and the same size"),
        (renamed, r"b\.jsonl is gone; .*c\.jsonl is new"),
        (joined, r"c\.jsonl is new"),
        (removed, r"b\.jsonl is gone"),
    ],
)
async def test_a_folder_that_changed_is_refused(
    tmp_path: Path, upstream: Upstream, change: Callable[[list[Path]], None], reported: str
) -> None:
    """What is where another record was would be left out or sent twice. Nothing is changed, and it
    continues once it is as before.
    """
    source = tmp_path / "export"
    source.mkdir()
    paths = files(source)
    wanted = request(upstream, tmp_path / "state", source)
    await partly(wanted)
    originals = {path: path.read_bytes() for path in paths}
    before = len(upstream.requests)
    change(paths)
    with pytest.raises(SourceChanged, match=reported):
        opened(wanted)
    assert len(upstream.requests) == before
    (source / "c.jsonl").unlink(missing_ok=True)
    for path, content in originals.items():
        path.write_bytes(content)
    assert (await run(wanted)).complete


async def test_a_file_that_was_only_touched_is_the_same(tmp_path: Path, upstream: Upstream) -> None:
    """As after it was copied."""
    paths = files(tmp_path)
    wanted = request(upstream, tmp_path / "state", *paths)
    await partly(wanted)
    os.utime(paths[0], (1, 1))
    assert (await run(wanted)).complete


async def test_files_in_another_order_are_another_import(
    tmp_path: Path, upstream: Upstream
) -> None:
    """In its own state folder unless one is named; in a named one it is refused."""
    paths = files(tmp_path)
    await partly(request(upstream, tmp_path / "state", *paths))
    with pytest.raises(OtherJob, match="its source is"):
        opened(request(upstream, tmp_path / "state", *reversed(paths)))
    folders = []
    for order in (paths, paths[::-1]):
        it = opened(
            replace(
                request(upstream, tmp_path, *order), state=None, state_root=tmp_path / "imports"
            )
        )
        folders.append(it.state)
        it.close()
    assert folders[0] != folders[1]


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        ({"geoip": True}, "--geoip"),
        ({"person_properties": "none"}, "--person-properties"),
        ({"filters": EventFilters(limit=3)}, "--limit"),
        ({"filters": EventFilters(until=1_700_000_000_000_000)}, "--until"),
        ({"api_key": "phc_another12345678"}, "--api-key"),
        ({"via": "http://127.0.0.1:8320"}, "--via"),
    ],
)
async def test_another_option_on_the_same_state_is_refused(
    tmp_path: Path, upstream: Upstream, more: dict[str, Any], reported: str
) -> None:
    """Also another project: what one has isn't in the other. No key is shown."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    await partly(wanted)
    with pytest.raises(OtherJob, match=reported) as refused:
        opened(replace(wanted, **more))
    assert KEY not in str(refused.value)
    assert "phc_another12345678" not in str(refused.value)


async def test_a_rehearsal_elsewhere_doesn_t_count_as_the_import(
    tmp_path: Path, upstream: Upstream
) -> None:
    """It was complete in a sandbox; the service itself has nothing of it yet."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    await run(wanted)
    with pytest.raises(OtherJob, match=r"`--upstream` was 'http://127\.0\.0\.1:"):
        opened(request("https://eu.example.com", tmp_path / "state", *wanted.paths))


async def test_a_look_without_a_key_is_at_the_same_import(
    tmp_path: Path, upstream: Upstream
) -> None:
    """What isn't said is as it was."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    await partly(wanted)
    it = opened(replace(wanted, api_key=""))
    it.close()
    assert it.saved is not None


async def test_the_rate_and_quiet_hours_may_change(tmp_path: Path, upstream: Upstream) -> None:
    """They change nothing of what is sent."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    await partly(wanted)
    assert (await run(replace(wanted, rate=1e6))).complete


async def test_a_slow_import_sends_no_more_than_a_second_of_its_rate_at_once(
    tmp_path: Path, upstream: Upstream
) -> None:
    """A whole batch would be minutes of it; the look counts the requests that this makes."""
    wanted = request(
        upstream,
        tmp_path / "state",
        write(tmp_path / "a.jsonl", [line(n) for n in range(5)]),
        rate=3.0,
    )
    it = opened(wanted)
    try:
        report, _ = it.preflight(lambda _records, _bytes: None)
    finally:
        it.close()
    assert report.volume.requests == 2
    await run(wanted, lambda it, _progress: it.stop() if upstream.requests else None)
    assert [len(received.events) for received in upstream.requests] == [3]


async def test_until_is_that_of_the_first_run(tmp_path: Path, upstream: Upstream) -> None:
    """It follows the clock only once; else a later run would be another import."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    await partly(wanted)
    first = opened(wanted)
    first.close()
    later = ImportRun(wanted, _Later())
    later.close()
    assert later.job == first.job


class _Later(SystemClock):
    """A day later."""

    now = staticmethod(lambda: SystemClock.now() + 86_400)


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (lambda data: data.replace(b'"version":1', b'"version":2'), "it is of version 2"),
        (lambda data: data[: len(data) // 2], "can't be read"),
        (
            lambda data: data.replace(b'"written_at":', b'"written_at": '),
            "aren't those that were written",
        ),
    ],
)
async def test_an_unreliable_checkpoint_is_reported(
    tmp_path: Path, upstream: Upstream, damage: Callable[[bytes], bytes], reported: str
) -> None:
    """It is never taken for a new import."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    await partly(wanted)
    path = tmp_path / "state" / FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointDamaged, match=reported):
        opened(wanted)


async def test_one_process_at_a_time_has_an_import(tmp_path: Path, upstream: Upstream) -> None:
    """A second one on the same folder is an error."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    it = opened(wanted)
    try:
        with pytest.raises(ForwarderError, match=str(tmp_path / "state")):
            opened(wanted)
    finally:
        it.close()
    opened(wanted).close()


async def test_an_archive_resumes_within_a_member(tmp_path: Path, upstream: Upstream) -> None:
    """Members are files of their own."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for at in range(3):
            archive.writestr(f"{at}.jsonl", b"\n".join(line(20 * at + n) for n in range(20)))
    wanted = request(upstream, tmp_path / "state", tmp_path / "a.zip")
    upstream.answer = lambda _: (
        plain(503, "later", retry_after="1") if len(upstream.requests) > 5 else plain(200)
    )
    # E731: a function of a line is a callback of the import.
    stopping = lambda it, progress: it.stop() if progress.waiting else None  # noqa: E731
    first = await run(wanted, stopping)
    assert 0 < first.books.delivered < 60
    upstream.answer = lambda _: plain(200)
    last = await run(wanted)
    assert last.complete
    assert last.books.delivered == 60
    assert set(sent(upstream)) == {uuid_of(n) for n in range(60)}


async def test_standard_input_is_known_by_its_content(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes twice are the same import, which is complete; others are another one."""

    def come(content: bytes) -> ImportRun:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        wanted = replace(
            request(upstream, tmp_path, "-"), state=None, state_root=tmp_path / "imports"
        )
        return opened(wanted)

    first = come(line(1) + b"\n")
    try:
        await first.run(lambda _: None)
    finally:
        first.close()
    again = come(line(1) + b"\n")
    other = come(line(2) + b"\n")
    again.close()
    other.close()
    assert again.is_complete
    assert not other.is_complete
    assert other.state != first.state


async def check_key(wanted: ImportRequest) -> None:
    """Ask whether the service knows the key, and send nothing."""
    it = opened(wanted)
    try:
        await it.check_key()
    finally:
        it.close()


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        (UNAUTHORIZED, "doesn't know the project key phc_…5678"),
        (plain(404), "answered HTTP 404"),
        (plain(500), "answered HTTP 500"),  # asked once, as by a dry run
    ],
)
async def test_an_unknown_key_is_reported_before_anything_is_read(
    tmp_path: Path, upstream: Upstream, answer: Answer, reported: str
) -> None:
    """Also where no one can say: what is dropped there can't be seen later. No key is shown."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    upstream.decide = lambda _: answer
    with pytest.raises(UpstreamRefuses, match=reported) as refused:
        await check_key(wanted)
    assert KEY not in str(refused.value)
    upstream.decide = lambda _: plain(200)
    await check_key(wanted)
    assert not upstream.requests


async def test_a_service_that_is_unavailable_at_first_is_asked_until_it_answers(
    tmp_path: Path, upstream: Upstream
) -> None:
    """By 503, 429 with its time, another 5xx: each is waited out as in a delivery, and said."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    answers = iter([plain(503), plain(429, retry_after="1"), plain(502), plain(200)])
    upstream.decide = lambda _: next(answers)
    waits: list[tuple[str, float]] = []
    it = opened(wanted)
    try:
        await it.check_key(lambda why, seconds: waits.append((why, seconds)))
    finally:
        it.close()
    assert [why[:8] for why, _ in waits] == ["HTTP 503", "HTTP 429", "HTTP 502"], waits
    assert waits[1][1] >= 1
    assert next(answers, None) is None


async def test_an_unreachable_service_is_reported(tmp_path: Path) -> None:
    """With what went wrong."""
    with pytest.raises(UpstreamRefuses, match=r"http://127\.0\.0\.1:1 can't be reached"):
        await check_key(request("http://127.0.0.1:1", tmp_path / "state", *files(tmp_path)))


@pytest.mark.parametrize("via", ["", "http://127.0.0.1:1"])
async def test_unreadable_certificates_are_reported(tmp_path: Path, via: str) -> None:
    """By either way, before anything is sent."""
    settings = Settings.parse(
        {"upstream": {"url": "https://eu.example.com", "ca_file": str(tmp_path / "none.pem")}}
    )
    with pytest.raises(ConfigurationError, match=r"none\.pem"):
        await check_key(
            replace(request("", tmp_path / "state", *files(tmp_path), via=via), settings=settings)
        )


async def test_the_service_gets_compressed_batches(tmp_path: Path, upstream: Upstream) -> None:
    """As from the daemon."""
    assert (await run(request(upstream, tmp_path / "state", *files(tmp_path)))).complete
    assert {received.headers["content-encoding"] for received in upstream.requests} == {"gzip"}
    assert not any("forwarder-ack" in received.headers for received in upstream.requests)


async def test_a_daemon_is_asked_to_answer_once_the_service_has_them(
    tmp_path: Path, upstream: Upstream
) -> None:
    """Its own 200 alone would mean less. What comes to it isn't compressed: it is near."""
    async with Upstream() as daemon:
        finished = await run(
            request(upstream, tmp_path / "state", *files(tmp_path), via=daemon.url)
        )
        assert finished.complete
    assert not upstream.requests
    assert {received.headers["forwarder-ack"] for received in daemon.requests} == {"delivered"}
    assert not any("content-encoding" in received.headers for received in daemon.requests)


async def test_a_rate_is_shared_with_imports_whose_folders_are_elsewhere(
    tmp_path: Path, upstream: Upstream
) -> None:
    """The line lies where all imports have their folders by default."""
    for name in ("one", "other"):
        wanted = request(
            upstream,
            tmp_path / name / "state",
            *files(tmp_path),
            rate=1e6,
            state_root=tmp_path / "imports",
        )
        assert (await run(wanted)).complete
    assert len(list((tmp_path / "imports").glob("rate-*"))) == 1
    assert [list((tmp_path / name).iterdir()) for name in ("one", "other")] == [
        [tmp_path / name / "state"] for name in ("one", "other")
    ]


async def test_a_rate_can_t_be_shared_where_no_folder_is_ours(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the import keeps it by itself, in its own folder."""
    above = tmp_path / "above"
    wanted = request(upstream, above / "state", *files(tmp_path), rate=1e6, state_root=above)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != above)
    assert (await run(wanted)).complete
    assert [path.name for path in above.iterdir()] == ["state"]
    assert list((above / "state").glob("rate-*"))


async def test_a_full_disk_ends_a_run_with_a_reason(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one continues from the last checkpoint."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _no_space)
        with pytest.raises(ConfigurationError, match="No space left"):
            await run(wanted)
    assert (await run(wanted)).complete


def _no_space(_: int) -> None:
    raise OSError(28, "No space left on device")


async def test_cancelled_it_saves_what_was_settled(tmp_path: Path, upstream: Upstream) -> None:
    """As when its loop ends; what was in flight is sent again, the same."""
    wanted = request(upstream, tmp_path / "state", *files(tmp_path))
    held = asyncio.Event()
    upstream.answer = lambda _: (
        replace(plain(200), when=held) if len(upstream.requests) > 3 else plain(200)
    )
    task = asyncio.create_task(run(wanted))
    await eventually(lambda: len(upstream.requests) >= 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.set()
    upstream.answer = lambda _: plain(200)
    assert (await run(wanted)).complete
    same: dict[str, bytes] = {}
    for event in [event for received in upstream.requests for event in received.events]:
        assert same.setdefault(event["uuid"], msgspec.json.encode(event)) == msgspec.json.encode(
            event
        )
    assert set(same) == {uuid_of(n) for n in range(40)}


@cases("inside", [".", "state", "a/state"])
def test_a_state_folder_in_the_source_is_refused(inside: str, tmp_path: Path) -> None:
    """Its files would be records of the next run. Nothing is written there; beside the source it
    is taken.
    """
    source = tmp_path / "export"
    source.mkdir()
    write(source / "a.jsonl", [line(0)])
    with pytest.raises(ConfigurationError, match="would be taken for records"):
        ImportRun(request("http://127.0.0.1:1", source / inside, source), SystemClock())
    assert [path.name for path in source.iterdir()] == ["a.jsonl"]
    ImportRun(
        request("http://127.0.0.1:1", tmp_path / "export-state", source), SystemClock()
    ).close()
