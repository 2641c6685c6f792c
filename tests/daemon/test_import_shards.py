"""An import in shards: what each reads and sends, what they have in common, and what
is rejected.
"""

from __future__ import annotations

import glob
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forwarder.config.settings import Settings
from forwarder.core.clock import SystemClock
from forwarder.core.errors import ConfigurationError
from forwarder.daemon.imports import ImportRun
from forwarder.sources.imports.checkpoint import SourceChanged
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.format import ChosenFormat
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.job import SHARDS, ImportRequest, OtherJob, Shard
from forwarder.sources.imports.report import MANIFEST, ImportManifest
from forwarder.sources.imports.source import ImportProgress
from tests.daemon.imports import line, uuid_of, write
from tests.support.upstream import Upstream

NATIVE = ChosenFormat("native", {}, lambda _: NativeConverter("oldest"), ("timestamp",))
KEY = "phc_imports12345678"
OnProgress = Callable[[ImportRun, ImportProgress], None]
EACH = 6
"""Events of a file."""


class Later(SystemClock):
    """A day later."""

    now = staticmethod(lambda: SystemClock.now() + 86_400)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A service that takes everything."""
    async with Upstream() as server:
        yield server


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of eleven files; by their numbers, the tenth and eleventh come last."""
    folder = tmp_path / "export"
    folder.mkdir()
    for file in range(11):
        write(folder / f"part_{file}.jsonl", [line(file * EACH + n, day=file) for n in range(EACH)])
    return folder


def request(
    upstream: Upstream, state: Path, source: Path, shard: str = "", **more: Any
) -> ImportRequest:
    """An import of that folder, as fast as it goes."""
    settings = Settings.parse({"upstream": {"url": upstream.url}, "batch": {"max_events": 5}})
    part = Shard.parse(shard) if shard else None
    return ImportRequest(
        NATIVE,
        (str(source),),
        settings,
        KEY,
        state,
        shard=part,
        **{"rate": None, "state_root": state.parent, **more},
    )


Requests = Callable[[str], ImportRequest]


@pytest.fixture
def request_(tmp_path: Path, upstream: Upstream, source: Path) -> Requests:
    """Imports of the folder on one state, by their shards."""
    return lambda shard: request(upstream, tmp_path / "state", source, shard)


def opened(wanted: ImportRequest, clock: SystemClock | None = None) -> ImportRun:
    """The import, opened."""
    return ImportRun(wanted, clock or SystemClock())


def closed(wanted: ImportRequest) -> ImportRun:
    """One that was opened, and whose folder others may have again."""
    it = opened(wanted)
    it.close()
    return it


async def run(
    wanted: ImportRequest,
    on_progress: OnProgress = lambda _import, _progress: None,
    clock: SystemClock | None = None,
) -> ImportManifest:
    """A run to its end."""
    it = opened(wanted, clock)
    try:
        return await it.run(lambda progress: on_progress(it, progress))
    finally:
        it.close()


def arrived(upstream: Upstream) -> Counter[str]:
    """Each event that came, byte for byte as far as JSON tells them apart, and how often."""
    return Counter(json.dumps(event) for received in upstream.requests for event in received.events)


async def test_the_shards_together_are_the_import(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """Each file is read by one of them; their events are those of an import in one process, byte
    for byte, whatever their number.
    """
    assert (await run(request(upstream, tmp_path / "whole", source))).complete
    whole = arrived(upstream)
    assert len(whole) == 11 * EACH
    for of in (1, 4, 13):
        upstream.requests.clear()
        made = [
            await run(request(upstream, tmp_path / f"in_{of}", source, f"{number}/{of}"))
            for number in range(of)
        ]
        assert all(manifest.complete for manifest in made)
        assert arrived(upstream) == whole
        assert [len(manifest.files) for manifest in made] == [
            len(range(number, 11, of)) for number in range(of)
        ]
        names = [Path(file.name).name for file in made[0].files]
        assert names == [f"part_{file}.jsonl" for file in range(0, 11, of)]
    state = tmp_path / "in_4"
    assert sorted(path.name for path in state.iterdir()) == [
        *(f"shard-{number}-of-4" for number in range(4)),
        SHARDS,
    ]
    assert (state / "shard-3-of-4" / MANIFEST).is_file()


async def test_records_without_ids_are_the_same_in_any_division(
    tmp_path: Path, upstream: Upstream
) -> None:
    """Their uuids follow from the content of their own file."""
    source = tmp_path / "bare"
    source.mkdir()
    for file in range(3):
        records = (
            (
                f'{{"event":"e","distinct_id":"u","timestamp":"2024-01-0{file + 1}T00:00:0{n}Z"}}'
            ).encode()
            for n in range(3)
        )
        write(source / f"{file}.jsonl", records)
    await run(request(upstream, tmp_path / "whole", source))
    whole = arrived(upstream)
    upstream.requests.clear()
    for number in range(2):
        await run(request(upstream, tmp_path / "divided", source, f"{number}/2"))
    assert arrived(upstream) == whole
    assert len(whole) == 9


async def test_the_default_folder_is_one_for_all_of_them(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """That of the import, with a folder for each shard in it: none finds another's."""
    wanted = [
        request(upstream, tmp_path, source, shard, state_root=tmp_path / "imports")
        for shard in ("0/2", "1/2", "")
    ]
    runs = [closed(replace(shard_request, state=None)) for shard_request in wanted]
    assert [run.state.relative_to(runs[2].state).as_posix() for run in runs] == [
        "shard-0-of-2",
        "shard-1-of-2",
        ".",
    ]
    assert {run.folder for run in runs} == {runs[2].state}


async def test_two_at_a_time_have_folders_and_rates_of_their_own(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """Neither waits for the other: a shard on another machine couldn't either."""
    one = opened(request(upstream, tmp_path / "state", source, "0/2", rate=1e6))
    try:
        assert (await run(request(upstream, tmp_path / "state", source, "1/2", rate=1e6))).complete
        assert (await one.run(lambda _: None)).complete
    finally:
        one.close()
    # PTH207: a coroutine may not use `Path.glob`. A shard that shared a rate would have a file.
    assert not glob.glob(f"{tmp_path}/**/rate-*", recursive=True)  # noqa: PTH207


async def test_rate_and_limit_are_those_of_all(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """Each has its part; the parts of a limit add up to it."""
    wanted = [
        request(
            upstream, tmp_path / "state", source, f"{n}/4", rate=10.0, filters=EventFilters(limit=7)
        )
        for n in range(4)
    ]
    assert {shard_request.own_rate for shard_request in wanted} == {2.5}
    it = opened(wanted[0])
    try:
        report, _ = it.preflight(lambda _records, _bytes: None)
    finally:
        it.close()
    assert (report.volume.rate, report.volume.events) == (2.5, 1)
    made = [
        await run(
            request(upstream, tmp_path / "state", source, f"{n}/4", filters=EventFilters(limit=7))
        )
        for n in range(4)
    ]
    assert [manifest.events for manifest in made] == [1, 2, 2, 2]
    assert {manifest.job.options["limit"] for manifest in made} == {"7"}


async def test_a_shard_without_files_is_complete_at_once(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """Of eleven files the twelfth and thirteenth shard get none; sorted, too."""
    for number, sort in ((11, False), (12, True)):
        made = await run(
            request(upstream, tmp_path / f"sort_{sort}", source, f"{number}/13", sort=sort)
        )
        assert (made.complete, made.books.read, made.files, made.events) == (True, 0, [], 0)
        assert closed(
            request(upstream, tmp_path / f"sort_{sort}", source, f"{number}/13", sort=sort)
        ).is_complete
    assert not upstream.requests


async def test_a_stopped_shard_resumes_by_the_same_command(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """Others are complete meanwhile."""
    wanted = request(upstream, tmp_path / "state", source, "1/3")
    assert not (await run(wanted, lambda it, _progress: it.stop())).complete
    assert (await run(request(upstream, tmp_path / "state", source, "0/3"))).complete
    assert (await run(wanted)).complete
    assert (await run(request(upstream, tmp_path / "state", source, "2/3"))).complete
    assert {event["uuid"] for received in upstream.requests for event in received.events} == {
        uuid_of(n) for n in range(11 * EACH)
    }


async def test_all_leave_out_events_from_the_same_time_on(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """Days may lie between their starts; also if both had begun to look at
    their files before one sent.
    """
    first = await run(request(upstream, tmp_path / "state", source, "0/2"))
    second = await run(request(upstream, tmp_path / "state", source, "1/2"), clock=Later())
    assert second.job.options == first.job.options
    late = opened(request(upstream, tmp_path / "other", source, "1/2"), Later())
    try:
        first = await run(request(upstream, tmp_path / "other", source, "0/2"))
        second = await late.run(lambda _: None)
    finally:
        late.close()
    assert second.job.options == first.job.options


async def test_a_dry_run_records_no_shards(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """After a look at one of four, the import may be divided by three."""
    it = opened(request(upstream, tmp_path / "state", source, "0/4"))
    try:
        report, _ = it.preflight(lambda _records, _bytes: None)
    finally:
        it.close()
    assert report.records == 3 * EACH
    assert (await run(request(upstream, tmp_path / "state", source, "0/3"))).complete


def contents(source: Path) -> dict[Path, bytes]:
    """Its files."""
    return {path: path.read_bytes() for path in source.iterdir()}


def added(source: Path) -> None:
    """A file came, between others."""
    write(source / "part_2b.jsonl", [line(99)])


def removed(source: Path) -> None:
    """A file is gone."""
    (source / "part_10.jsonl").unlink()


def changed(source: Path) -> None:
    """A file of another shard has other content."""
    write(source / "part_1.jsonl", [line(99)])


@pytest.mark.parametrize("begun", [True, False], ids=["resumed", "new"])
@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (added, "it has 12 files now, and had 11"),
        (removed, "it has 10 files now, and had 11"),
        (changed, "its 11 files have another content, or another order"),
    ],
)
async def test_another_list_of_files_is_rejected(
    tmp_path: Path,
    upstream: Upstream,
    source: Path,
    change: Callable[[Path], None],
    reported: str,
    *,
    begun: bool,
) -> None:
    """Every shard takes its files by their place in the list: one of another list would leave out
    some, and take others twice. It resumes once the list is as it was.
    """
    await run(request(upstream, tmp_path / "state", source, "0/2"), lambda it, _progress: it.stop())
    wanted = request(upstream, tmp_path / "state", source, "0/2" if begun else "1/2")
    before = len(upstream.requests)
    originals = contents(source)
    change(source)
    with pytest.raises(SourceChanged, match=reported):
        opened(wanted)
    if begun:  # also where only its own checkpoint knows
        (tmp_path / "state" / SHARDS).unlink()
        with pytest.raises(SourceChanged, match=reported):
            opened(wanted)
    assert len(upstream.requests) == before
    (source / "part_2b.jsonl").unlink(missing_ok=True)
    for path, content in originals.items():
        path.write_bytes(content)
    assert (await run(wanted)).complete


async def test_a_list_that_changes_while_shards_look_at_their_files(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """The second one sends nothing."""
    late = opened(request(upstream, tmp_path / "state", source, "1/2"))
    try:
        added(source)
        assert (await run(request(upstream, tmp_path / "state", source, "0/2"))).complete
        before = len(upstream.requests)
        with pytest.raises(SourceChanged, match="it has 11 files now, and had 12"):
            await late.run(lambda _: None)
    finally:
        late.close()
    assert len(upstream.requests) == before


@pytest.mark.parametrize(
    ("first", "then", "reported"),
    [
        ("0/2", "0/4", "began in 2 shards, this one is in 4 shards"),
        ("0/2", "", "began in 2 shards, this one is without shards"),
        ("", "0/2", "began without shards, this one is in 2 shards"),
        ("0/1", "", "began in 1 shard, this one is without shards"),
    ],
)
async def test_another_division_is_rejected(
    request_: Requests, first: str, then: str, reported: str
) -> None:
    """Before anything is sent, and what was begun can be resumed as it began."""
    wanted = request_(first)
    await run(wanted, lambda it, _progress: it.stop())
    with pytest.raises(OtherJob, match=reported) as rejected:
        opened(request_(then))
    assert (f"--shard K/{first[-1]}" if first else "without --shard") in rejected.value.hint
    assert (await run(wanted)).complete


async def test_other_options_than_those_of_the_first_shard_are_rejected(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """They would be two halves of two imports."""
    await run(request(upstream, tmp_path / "state", source, "0/2"))
    with pytest.raises(OtherJob, match="`--geoip` was not said, now it is 'true'"):
        opened(request(upstream, tmp_path / "state", source, "1/2", geoip=True))
    with pytest.raises(OtherJob, match="its source is"):
        opened(request(upstream, tmp_path / "state", source / "part_1.jsonl", "1/2"))


async def test_a_shards_own_folder_is_not_an_imports(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """`--state` is the folder above it."""
    await run(request(upstream, tmp_path / "state", source, "0/2"))
    with pytest.raises(OtherJob, match="its shard is '0/2', now it is 'all of the source'"):
        opened(request(upstream, tmp_path / "state" / "shard-0-of-2", source))


async def test_a_damaged_shared_file_of_shards_is_rewritten(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """A process that is killed while it writes leaves half of it: each checkpoint has the same."""
    first = await run(request(upstream, tmp_path / "state", source, "0/2"))
    shared = tmp_path / "state" / SHARDS
    whole = shared.read_bytes()
    shared.write_bytes(whole[: len(whole) // 2])
    second = await run(
        request(
            upstream,
            tmp_path / "state",
            source,
            "1/2",
            filters=EventFilters(until=1_800_000_000_000_000),
        )
    )
    assert second.job.id == first.job.id
    assert b"2027-01-15" in shared.read_bytes()


async def test_a_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, upstream: Upstream, source: Path
) -> None:
    """Nothing is sent."""
    (tmp_path / "state" / SHARDS).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=rf"{SHARDS} can't be written: Is a directory"):
        await run(request(upstream, tmp_path / "state", source, "0/2"))
    assert not upstream.requests


async def test_standard_input_and_pipes_are_not_sharded(tmp_path: Path, upstream: Upstream) -> None:
    """Standard input, and a pipe, which isn't even opened: that would wait for who writes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("-", str(pipe)):
        with pytest.raises(ConfigurationError, match="can't be divided"):
            opened(request(upstream, tmp_path / "state", Path(path), "0/2"))
