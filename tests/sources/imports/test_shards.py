"""Shards: how they are typed, what each gets, and what all of them are together."""

from __future__ import annotations

import io
import random
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.checkpoint import ImportCheckpoint, SourceShard
from forwarder.sources.imports.job import MOST_SHARDS, Shard
from forwarder.sources.imports.report import ImportStatus, manifest_of
from forwarder.sources.imports.shards import ImportShards, ShardGaps, added_up
from tests.sources.imports.samples.manifests import JOB, NAMES, STARTED, checkpoint, manifest
from tests.support.cases import cases

FOLDER = Path("/state/mixpanel-1a2b3c4d")
NOW = STARTED + 75
LIST = "5eed" * 10


@cases(("text", "shard"), [("0/8", Shard(0, 8)), (" 7 / 8 ", Shard(7, 8)), ("0/1", Shard(0, 1))])
def test_a_shard_as_it_is_typed(text: str, shard: Shard) -> None:
    """Number and number of all, from 0 on."""
    assert Shard.parse(text) == shard
    assert Shard.of_folder(shard.folder) == shard
    assert str(shard) == text.replace(" ", "")


@cases(
    ("text", "reported"),
    [
        ("8/8", "there is no shard 8 of 8"),
        ("3", "is not of the form K/N"),
        ("", "is not of the form K/N"),
        ("-1/8", "is not of the form K/N"),
        ("0/0", "is not of the form K/N"),
        ("٣/8", "is not of the form K/N"),
        (f"0/{MOST_SHARDS + 1}", "is not of the form K/N"),
        ("$(JOB_COMPLETION_INDEX)/8", "is not of the form K/N"),
    ],
)
def test_what_is_no_shard(text: str, reported: str) -> None:
    """With how to write it: who counts from 1 sees at the last one that it is from 0."""
    with pytest.raises(ConfigurationError, match=reported) as rejected:
        Shard.parse(text)
    assert "from 0" in rejected.value.hint


@cases("name", ["shard-8-of-8", "shard-1", "shard-a-of-b", "xshard-0-of-1", "shard-0-of-1.old"])
def test_folders_of_no_shard(name: str) -> None:
    """What others put beside them."""
    assert Shard.of_folder(name) is None


@given(st.integers(1, 40), st.integers(0, 200), st.integers(0, 10**9))
def test_all_shards_together_have_everything_once(of: int, files: int, limit: int) -> None:
    """Each file, and each event of a limit; no two differ by more than one."""
    shards = [Shard(number, of) for number in range(of)]
    listed = list(range(files))
    assert sorted(chain.from_iterable(listed[shard.files] for shard in shards)) == listed
    parts = [shard.part(limit) for shard in shards]
    assert sum(parts) == limit
    assert max(parts) - min(parts) <= 1


def part(
    number: int,
    of: int = 3,
    *,
    ended: bool = True,
    files: int = 6,
    listing: str = LIST,
    days: int = 4,
) -> ImportCheckpoint:
    """That of a shard."""
    saved = checkpoint(days, ended=ended)
    saved.job = msgspec.structs.replace(JOB, shard=SourceShard(number, of, files, listing))
    return saved


def together(
    *saved: ImportCheckpoint, running: tuple[int, ...] = (), counted: int | None = None, of: int = 3
) -> ImportShards:
    """All of them."""
    shards = {
        shard_state.job.shard.number: shard_state
        for shard_state in saved
        if shard_state.job.shard is not None
    }
    statuses = {
        number: ImportStatus(
            FOLDER / f"shard-{number}-of-{of}", shard_state, number in running, counted
        )
        for number, shard_state in shards.items()
    }
    return ImportShards(FOLDER, of, statuses)


def page(shards: ImportShards) -> str:
    """As a person sees it, without the spaces that fill lines."""
    text = io.StringIO()
    Console(width=200, file=text).print(shards.page(NOW), soft_wrap=True)
    return "\n".join(" ".join(line.split()) for line in text.getvalue().splitlines())


def test_complete_shards() -> None:
    """A row each, and their sums."""
    shards = together(part(0), part(1), part(2))
    books = shards.shards[0].checkpoint.books if shards.shards[0].checkpoint else None
    assert books is not None
    figures = f"{books.read} {books.delivered} 5 2 2"
    events = manifest(4).events
    assert page(shards).splitlines() == [
        "mixpanel export/*.json.gz in 3 shards: complete",
        f"import {JOB.id}, in {FOLDER}",
        "shard state read delivered refused left out repeats events files last checkpoint",
        *(f"{number}/3 complete {figures} {events} 2 of 2 1m 15s ago" for number in range(3)),
        f"all {books.read * 3} {books.delivered * 3} 15 6 6 {events * 3}",
        (
            f"{books.read * 3} records read = {books.delivered * 3} delivered + 15 refused + 6 "
            "left out + 6 repeats: balanced"
        ),
        f"{events * 3} events delivered, of 2024-01-01T00:00:00.000Z to 2024-01-04T00:00:04.000Z",
    ]
    assert shards.gaps == ShardGaps(3, [], [], same_list=True)
    assert shards.gaps.complete
    assert shards.job_ids == [JOB.id]


def test_what_is_missing_is_named() -> None:
    """What hasn't begun, and what has and isn't done: neighbours together."""
    shards = together(
        part(1, 8),
        part(3, 8, ended=False),
        part(4, 8, ended=False),
        running=(4,),
        counted=100,
        of=8,
    )
    said = page(shards)
    assert "in 8 shards: not complete" in said
    assert "not started: 0/8, 2/8, 5/8 to 7/8" in said
    assert "not complete: 3/8: the same commands resume them" in said
    share = manifest(4).books.read
    assert f"3/8 not complete, {share}% " in said
    assert f"4/8 running, {share}% " in said
    assert shards.gaps == ShardGaps(8, [0, 2, 5, 6, 7], [3, 4], same_list=True)
    assert shards.running
    summary = shards.plain()
    assert (summary["complete"], summary["running"], summary["counted"]) == (False, True, None)
    assert [shard["shard"] for shard in summary["shards"]["each"]] == [1, 3, 4]
    assert summary["files"] == {"done": 2, "known": 6, "all_known": False}


def test_one_that_has_settled_nothing_and_one_that_is_damaged() -> None:
    """Both have begun."""
    shards = ImportShards(FOLDER, 3, {0: ImportStatus(FOLDER, None, running=True)}, frozenset({2}))
    said = page(shards)
    assert said.splitlines()[0] == "mixpanel-1a2b3c4d in 3 shards: not complete"
    assert "0/3 running" in said
    assert "2/3 checkpoint damaged" in said
    assert shards.gaps == ShardGaps(3, [1], [0, 2], same_list=True)
    assert shards.whole is None
    assert shards.plain()["shards"]["not_started"] == [1]


def test_why_they_wait_is_said_once() -> None:
    """All of them wait for the same service."""
    saved = [part(number, ended=False) for number in range(3)]
    for shard_state in saved[:2]:
        shard_state.waiting = "the service doesn't accept events now"
    assert "waiting: 0/3 to 1/3: the service doesn't accept events now" in page(
        together(*saved, running=(0, 1, 2))
    )


def test_different_lists_are_never_complete() -> None:
    """Shards whose folders are of different machines may have seen different files: which, and how
    many each.
    """
    shards = together(part(0), part(1, files=7, listing="0ther"), part(2))
    said = page(shards)
    assert "divide different lists of files: 6 files for 0/3, 2/3; 7 files for 1/3." in said
    assert "in 3 shards: not complete" in said
    assert not shards.gaps.complete
    assert shards.plain()["shards"]["same_list"] is False


def test_manifests_add_up() -> None:
    """In any order: books, days with the digests of their uuids, names and times."""
    parts = [manifest(1), manifest(4), manifest(9)]
    random.Random(4).shuffle(parts)
    whole = added_up(parts, complete=True)
    assert whole.books.read == sum(shard_manifest.books.read for shard_manifest in parts)
    assert (
        whole.events
        == sum(day.delivered for day in whole.days.values())
        == sum(shard_manifest.events for shard_manifest in parts)
    )
    digest = (
        sum(int(shard_manifest.days["2024-01-01"].uuids, 16) for shard_manifest in parts) % 2**128
    )
    assert whole.days["2024-01-01"].uuids == f"{digest:032x}"
    assert list(whole.days) == sorted(whole.days)
    assert whole.names["$pageview"] == sum(
        shard_manifest.names.get("$pageview", 0) for shard_manifest in parts
    )
    assert set(whole.names) <= set(NAMES)
    assert (whole.first, whole.last) == (manifest(9).first, manifest(9).last)
    assert len(whole.files) == 6
    assert not whole.books.difference
    assert parts == [manifest(len(shard_manifest.days)) for shard_manifest in parts], (
        "a part was changed"
    )


def test_times_are_compared_as_times() -> None:
    """Not as they are written: some have microseconds."""
    parts = [
        msgspec.structs.replace(manifest(1), first=time, last=time)
        for time in ("2024-01-01T00:00:00.1234Z", "2024-01-01T00:00:00.123Z")
    ]
    whole = added_up(
        [*parts, msgspec.structs.replace(manifest(0), first=None, last=None)], complete=True
    )
    assert (whole.first, whole.last) == ("2024-01-01T00:00:00.123Z", "2024-01-01T00:00:00.1234Z")


def test_a_status_is_that_of_the_manifest() -> None:
    """Both are derived from the checkpoint."""
    shards = together(part(0))
    assert shards.manifests == {0: manifest_of(part(0))}
