"""Checkpoints: what is written, what is read, what is damaged; whether the source is the same, and the job's identity."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.books import ImportTotals, RecordBooks
from forwarder.sources.imports.checkpoint import (
    FILE,
    CheckpointDamaged,
    FileCheckpoint,
    ImportCheckpoint,
    ImportJob,
    OtherJob,
    SourceContent,
    StateFolder,
    compare,
    encode,
    job_id,
    read_checkpoint,
)
from forwarder.sources.imports.times import DAY
from forwarder.sources.imports.uuid_digest import uuid_hash
from forwarder.storage.directory import Locked

JOB = ImportJob("11111111-2222-5333-8444-555555555555", "mixpanel", "export/*.json", {"since": "2020-01-01"})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateFolder]:
    """A state folder that this process has."""
    folder = StateFolder(tmp_path / "state")
    yield folder
    folder.close()


def checkpoint() -> ImportCheckpoint:
    """Of a file with two records, one of them in flight."""
    time, totals = 1_700_000_000_000_000, ImportTotals(names={"seen": 1})
    totals.day(time // DAY).add(1, 1, uuid_hash("0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"))
    totals.spans(time, time)
    file = FileCheckpoint("a.json", "ab", RecordBooks(1, 1), read=2, digested=1, digest="digest of 1")
    return ImportCheckpoint(JOB, 1.5, 2.5, [SourceContent("a.json", 9, "5eed")], [file], totals)


def test_a_new_folder_has_none(folder: StateFolder) -> None:
    """That is the only way to begin anew."""
    assert folder.load(JOB) is None


def test_what_is_written_is_read_back(folder: StateFolder) -> None:
    """All of it, with the lock and without; nothing else is left in the folder."""
    folder.save(checkpoint())
    folder.save(checkpoint())
    assert folder.load(JOB) == read_checkpoint(folder.path) == checkpoint()
    assert sorted(path.name for path in folder.path.iterdir()) == [FILE, "lock"]


def test_one_process_at_a_time_has_the_folder(folder: StateFolder) -> None:
    """Another is told which option to use."""
    with pytest.raises(Locked, match="in use by another forwarder") as caught:
        StateFolder(folder.path)
    assert "--state" in caught.value.hint


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    """In a container the next process has the same number: its own checkpoint must not find its place taken."""
    part = tmp_path / f".{FILE}.{os.getpid()}.part"
    part.write_bytes(b"half of a checkpo")
    folder = StateFolder(tmp_path)
    folder.save(checkpoint())
    folder.close()
    assert not part.exists()
    assert read_checkpoint(tmp_path) == checkpoint()


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (msgspec.structs.replace(JOB, format="segment"), "its format is 'mixpanel', now it is 'segment'"),
        (msgspec.structs.replace(JOB, source="other"), r"its source is 'export/\*.json', now it is 'other'"),
        (msgspec.structs.replace(JOB, options={"since": "2021-01-01"}), "`--since` was '2020-01-01', now it is '2021-01-01'"),
        (msgspec.structs.replace(JOB, options={"geoip": "on"}), "`--geoip` was not said, now it is 'on'; `--since` was"),
        (msgspec.structs.replace(JOB, id="another"), "its id is 11111111-.*, now it is another: what the source holds"),
    ],
)
def test_another_job_is_refused_with_what_differs(folder: StateFolder, job: ImportJob, words: str) -> None:
    """Its records would be counted in the middle of these."""
    folder.save(checkpoint())
    with pytest.raises(OtherJob, match=words) as caught:
        folder.load(job)
    assert "--state" in caught.value.hint


def damaged() -> dict[str, bytes]:
    """A checkpoint, damaged in several ways."""
    whole = encode(checkpoint())
    unbalanced = checkpoint()
    unbalanced.files[0].books.read = 2
    ahead = checkpoint()
    ahead.files[0].digested = 2
    return {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "zeros": bytes(len(whole)),
        "changed": whole.replace(b'"a.json"', b'"b.json"'),
        "no object": b"[]",
        "no version": b"{}",
        "later version": whole.replace(b'"version":1', b'"version":2'),
        "unknown field": whole.replace(b'"version":1', b'"version":1,"more":1'),
        "books": encode(unbalanced),
        "digest ahead": encode(ahead),
    }


@pytest.mark.parametrize("how", list(damaged()))
def test_a_damaged_checkpoint_is_an_error(folder: StateFolder, how: str) -> None:
    """It is never taken for a new job; the hint says what can be done."""
    (folder.path / FILE).write_bytes(damaged()[how])
    with pytest.raises(CheckpointDamaged, match=r"checkpoint\.json can't be read: .+") as caught:
        folder.load(JOB)
    assert "backup" in caught.value.hint
    assert (folder.path / FILE).read_bytes() == damaged()[how]


def test_any_byte_that_flips_is_found(tmp_path: Path) -> None:
    """The digest is of all that counts."""
    whole, unnoticed = encode(checkpoint()), []
    for index in range(0, len(whole) - 1, 7):
        (tmp_path / FILE).write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with contextlib.suppress(CheckpointDamaged):
            unnoticed.append((index, read_checkpoint(tmp_path)))
    assert unnoticed == []


def test_a_checkpoint_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    """A folder in its place, for one."""
    (tmp_path / FILE).mkdir()
    with pytest.raises(CheckpointDamaged, match="directory"):
        read_checkpoint(tmp_path)


def test_a_disk_that_refuses_is_told(folder: StateFolder) -> None:
    """And the former checkpoint stays."""
    (folder.path / FILE).mkdir()
    with pytest.raises(ConfigurationError, match="can't be written") as told:
        folder.save(checkpoint())
    assert "run the same command again" in told.value.hint


THEN, LATER = 1_700_000_000_000_000_000, 1_700_000_060_000_000_000
LOCAL = SourceContent("a.json", 1000, "aa", THEN)
STORED = SourceContent("s3://b/a.json", 1000, "aa")
TIMES = "it was written at 2023-11-14T22:14:20.000Z, before at 2023-11-14T22:13:20.000Z"


def test_the_same_files_have_not_changed() -> None:
    """In whatever order they are found."""
    assert compare([LOCAL, STORED], [STORED, LOCAL]) == []


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (SourceContent("a.json", 1300, "bb", LATER), f"a.json grew by 300 bytes, from 1,000 to 1,300; {TIMES}"),
        (SourceContent("a.json", 0, "bb", THEN), "a.json shrank by 1,000 bytes, from 1,000 to 0"),
        (SourceContent("a.json", 1000, "bb", THEN), "a.json has another beginning or end than before, and the same size"),
    ],
)
def test_a_local_file_that_changed_is_told_with_how(now: SourceContent, words: str) -> None:
    """Where the size changed, it says more than the content."""
    assert compare([LOCAL], [now]) == [words]


def test_a_file_that_was_only_written_again_is_the_same() -> None:
    """Its time alone means nothing."""
    assert compare([LOCAL], [SourceContent("a.json", 1000, "aa", LATER)]) == []


def test_a_stored_object_is_told_by_its_etag_and_size() -> None:
    """Where both changed, the size says more."""
    [change] = compare([STORED], [SourceContent("s3://b/a.json", 1000, "bb")])
    assert change == "s3://b/a.json has another content (of an object: another ETag) than before, and the same size"
    [change] = compare([STORED], [SourceContent("s3://b/a.json", 1001, "bb")])
    assert change == "s3://b/a.json grew by 1 byte, from 1,000 to 1,001"


def test_files_that_come_and_go_are_told() -> None:
    """A new one would have been read between others."""
    changes = compare([LOCAL], [SourceContent("b.json", 1, "cc")])
    assert changes == ["a.json is gone", "b.json is new: it wasn't there when this import began"]


OPTIONS = {"person_properties": "set_once", "geoip": False, "since": None}
SOURCES = ["aa", "bb"]


def test_it_never_changes() -> None:
    """The same import has this id in every version and on every machine: it stands on events that can't be deleted."""
    assert job_id("mixpanel", OPTIONS, SOURCES) == "a1c2bfb2-4549-5ae9-95be-f9a4a9a3ecbe"
    assert UUID(job_id("mixpanel", OPTIONS, SOURCES)).version == 5


def test_order_and_options_that_arent_set_make_no_difference() -> None:
    """Neither the order of options nor that of files matters, and an option without a value is as good as absent."""
    expected = job_id("mixpanel", OPTIONS, SOURCES)
    assert job_id("mixpanel", {"geoip": False, "person_properties": "set_once"}, ["bb", "aa"]) == expected
    assert job_id("mixpanel", dict(reversed(OPTIONS.items())), iter(SOURCES)) == expected


@pytest.mark.parametrize(
    ("format_name", "options", "sources"),
    [
        ("amplitude", OPTIONS, SOURCES),
        ("mixpanel", {**OPTIONS, "geoip": True}, SOURCES),
        ("mixpanel", {**OPTIONS, "time_offset": 0}, SOURCES),
        ("mixpanel", OPTIONS, ["aa"]),
        ("mixpanel", OPTIONS, ["aa", "bb", "bb"]),
        ("mixpanel", OPTIONS, ["aabb"]),
    ],
)
def test_whatever_differs_makes_another_job(format_name: str, options: dict[str, object], sources: list[str]) -> None:
    """Another format, option or file is another job."""
    assert job_id(format_name, options, sources) != job_id("mixpanel", OPTIONS, SOURCES)


def test_options_are_json() -> None:
    """What can't be written the same everywhere is no option."""
    with pytest.raises(TypeError):
        job_id("mixpanel", {"events": {"a", "b"}}, SOURCES)
    with pytest.raises(ValueError, match="JSON"):
        job_id("mixpanel", {"rate": float("nan")}, SOURCES)
