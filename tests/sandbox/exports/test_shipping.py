"""Runs as a whole: parts, names and cursors; cut off anywhere and resumed; files that
`forwarder import` reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sandbox.exports import shipping
from forwarder.sandbox.exports.jobs import ExportMisconfigured, Selection
from forwarder.sandbox.exports.shipping import _PartLimits
from forwarder.sandbox.store.stored_records import IngestedEvent
from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.imports.verification import read_exports
from tests.sandbox.client import talking
from tests.sandbox.shipped import (
    KEY,
    NAME,
    Interrupted,
    ProgressCalls,
    at,
    folder,
    holding,
    job,
    read_folder,
    read_part,
    request,
    ship,
    stored,
    uuid_of,
)
from tests.support.buckets import Bucket
from tests.support.cases import cases
from tests.support.commands import forwarder
from tests.support.waiting import eventually, tick


def many(count: int) -> Iterator[IngestedEvent]:
    """Events of three hours, whose second is the one that is exported, in any order."""
    chance = random.Random(1)
    properties = json.dumps({"$import_job_id": "job-1", "text": "x" * 100})
    return (
        stored(number, chance.randrange(180), distinct_id=f"u{number % 100}", properties=properties)
        for number in range(count)
    )


HOUR = Selection(at(60), at(120), 1_000_000_000)


def of_the_hour(count: int) -> set[str]:
    """The uuids that a run over it has to export."""
    return {
        event.uuid for event in many(count) if event.uuid and at(60) <= event.timestamp < at(120)
    }


async def test_names_follow_from_the_work_and_its_interval(tmp_path: Path) -> None:
    """And from the number of the part; progress is reported at the beginning and after
    each part.
    """
    with patch.object(shipping, "_FILE", _PartLimits(2, 1_000)):
        async with holding(stored(number) for number in range(5)) as thread:
            callback = await ship(job(folder(compression="gzip")), thread, tmp_path)
    assert [file.name for file in sorted((tmp_path / "exported").iterdir())] == [
        f"{NAME}_000{part}.jsonl.gz" for part in range(3)
    ]
    assert [record["uuid"] for record in read_folder(tmp_path / "exported")] == [
        uuid_of(number) for number in range(5)
    ]
    assert [(completed, total) for _, completed, total in callback.calls] == [
        (0, 5),
        (2, 5),
        (4, 5),
        (5, 5),
    ]


async def test_names_of_intervals_without_ends(tmp_path: Path) -> None:
    """A backfill of everything has no beginning; fractions of seconds stay."""
    async with holding([stored(1)]) as thread:
        await ship(
            job(first="", last="2026-01-01T00:00:00.500000Z", origin="../x"), thread, tmp_path
        )
    [file] = (tmp_path / "exported").iterdir()
    assert file.name == "start_2026-01-01T00-00-00.500000Z_..x_0000.jsonl"


async def test_nothing_to_export(tmp_path: Path) -> None:
    """No file is written, and the run has nothing of nothing."""
    async with holding() as thread:
        callback = await ship(job(), thread, tmp_path)
    # PTH208: a coroutine may not use `Path.iterdir`.
    assert (os.listdir(tmp_path), callback.calls) == ([], [("v1.0.0.0", 0, 0)])  # noqa: PTH208


@settings(max_examples=25)
@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 4), st.booleans())
async def test_a_run_that_is_cut_off_is_resumed(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], records: int, filtered: bool
) -> None:
    """Wherever it is cut off, and although the part whose cursor was lost is written again: each
    record once, in the same files.
    """
    root = tmp_path_factory.mktemp("cut")
    filters = [{"key": "odd", "operator": "exact", "value": "1"}] if filtered else None
    expected = [number for number in range(11) if number % 2 or not filtered]
    work = job(filters=filters, selection=Selection(None, None, 11))
    with patch.object(shipping, "_FILE", _PartLimits(records, 1_000_000)):
        async with holding(
            stored(number, properties=json.dumps({"odd": number % 2})) for number in range(11)
        ) as thread:
            for cut in cuts:
                callback = ProgressCalls(fail_after=cut)
                with suppress(Interrupted):
                    await ship(work, thread, root, callback=callback)
                work = replace(work, cursor=callback.cursor or work.cursor)
                late = stored(100 + cut)  # arrives meanwhile, and is the next run's
                await thread.run(methodcaller("add", request([late])))
            callback = await ship(work, thread, root)
    assert [record["uuid"] for record in read_folder(root / "exported")] == [
        uuid_of(number) for number in expected
    ]
    assert callback.calls[-1][1:] == (len(expected), len(expected))


async def test_a_cancelled_run_ends_behind_its_file(tmp_path: Path) -> None:
    """What is in writing is completed first: another attempt writes the same name."""
    begun = threading.Event()
    released = threading.Event()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        begun.set()
        released.wait(10)
        real(descriptor)

    async with holding([stored(1)]) as thread:
        with patch("os.fsync", fsync):
            work = asyncio.ensure_future(ship(job(folder("")), thread, tmp_path))
            await eventually(begun.is_set)
            work.cancel()
            await tick()
            assert not work.done()
            released.set()
            with pytest.raises(asyncio.CancelledError):
                await work
    assert [record["uuid"] for record in read_folder(tmp_path)] == [uuid_of(1)]


@cases("cursor", ["v0.1.1.1", "1", "v1.1.1", "v1.-1.0.0", "v1.1.1.1\n"])
async def test_a_cursor_of_something_else(cursor: str, tmp_path: Path) -> None:
    """Nothing is exported from a guess."""
    async with holding([stored(1)]) as thread:
        with pytest.raises(ExportMisconfigured, match="cursor"):
            await ship(job(cursor=cursor), thread, tmp_path)


@cases(
    ("destination", "message"),
    [
        (
            {"type": "BigQuery", "config": {}},
            "'BigQuery' can't be exported to. Types are: Folder, HTTP, S3",
        ),
        ({"type": None, "config": None}, "Types are: Folder, HTTP, S3"),
        ({}, "Types are"),
        ({"type": "Folder", "config": ["a"]}, "config of the destination is not an object"),
        ({"type": "Folder", "config": {"file_format": "CSV"}}, "file_format"),
        ({"type": "S3", "config": None}, "bucket_name"),
        ({"type": "HTTP", "config": None}, "url of the destination"),
    ],
)
async def test_a_destination_that_cant_be(
    destination: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """The run says what is wrong before it reads anything."""
    async with holding() as thread:
        with pytest.raises(ExportMisconfigured, match=message):
            await ship(job(destination), thread, tmp_path)


@cases("kind", ["FOLDER", " folder ", "Folder"])
async def test_the_type_in_any_case(kind: str, tmp_path: Path) -> None:
    """As people write it."""
    async with holding([stored(1)]) as thread:
        await ship(job({"type": kind, "config": None}), thread, tmp_path)
    assert [record["uuid"] for record in read_folder(tmp_path)] == [uuid_of(1)]


async def test_persons(tmp_path: Path) -> None:
    """As files of their own columns."""
    async with holding([stored(1, properties='{"$set": {"plan": "pro"}}')]) as thread:
        await ship(job(model="persons"), thread, tmp_path)
    [person] = read_folder(tmp_path / "exported")
    assert (person["distinct_id"], person["properties"], person["team_id"]) == (
        "u1",
        {"plan": "pro"},
        7,
    )


@cases("file_format", ["JSONLines", "Parquet"])
@cases("compression", ["none", "gzip", "zstd"])
async def test_an_import_is_verified_by_the_export(
    tmp_path: Path, file_format: str, compression: str
) -> None:
    """What `import verify --export` reads: every file's events and days."""
    async with holding(many(300)) as thread:
        await ship(
            job(folder(file_format=file_format, compression=compression), selection=HOUR),
            thread,
            tmp_path,
        )
    days = read_exports(
        [str(tmp_path / "exported")], ["job-1"], ReadOptions(), tmp_path, lambda _: None
    ).days()
    assert {day: tally.delivered for day, tally in days.items()} == {
        "2026-01-01": len(of_the_hour(300))
    }
    assert (
        read_exports(
            [str(tmp_path / "exported")], ["job-2"], ReadOptions(), tmp_path, lambda _: None
        ).days()
        == {}
    )


@pytest.mark.slow
async def test_the_files_can_be_imported(tmp_path: Path) -> None:
    """`forwarder import native` reads every event of them."""
    async with holding(many(300)) as thread:
        await ship(job(folder(compression="zstd"), selection=HOUR), thread, tmp_path)
    async with talking() as client:
        target = (
            "--upstream",
            client.sandbox.url,
            "--api-key",
            KEY,
            "--state",
            str(tmp_path / "state"),
        )
        done = await forwarder("import", "native", str(tmp_path / "exported"), *target, "--yes")
        assert done.code == 0, done.err
        arrived = await client.sandbox.events()
    expected = {
        event.uuid: (event.event, event.distinct_id, event.timestamp)
        for event in many(300)
        if event.uuid in of_the_hour(300)
    }
    assert {
        event.uuid: (event.event, event.distinct_id, event.timestamp) for event in arrived
    } == expected
    assert {"x" * 100} == {json.loads(event.properties)["text"] for event in arrived}


async def test_a_folder_and_a_bucket_have_the_same(tmp_path: Path, bucket: Bucket) -> None:
    """Exactly the events of the interval, each once, in many parts."""
    expected = of_the_hour(3_000)
    with patch.object(shipping, "_FILE", _PartLimits(300, 1_000_000)):
        async with holding(many(3_000), tmp_path / "x.db") as thread:
            callback = await ship(job(folder(compression="gzip"), selection=HOUR), thread, tmp_path)
            in_bucket = job(
                {
                    "type": "S3",
                    "config": bucket.config(prefix="e", file_format="Parquet", compression="zstd"),
                },
                selection=HOUR,
            )
            interrupted = ProgressCalls(fail_after=3)
            with pytest.raises(Interrupted):
                await ship(in_bucket, thread, None, callback=interrupted)
            await ship(replace(in_bucket, cursor=interrupted.cursor), thread, None)
    folder_uuids = [record["uuid"] for record in read_folder(tmp_path / "exported")]
    stored_there = [
        record["uuid"]
        for name, content in bucket.contents().items()
        for record in read_part(name, content)
    ]
    assert len(folder_uuids) == len(stored_there) == len(expected) == callback.calls[-1][1]
    assert set(folder_uuids) == set(stored_there) == expected
