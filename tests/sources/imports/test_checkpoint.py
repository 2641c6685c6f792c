"""Checkpoints: what is written, what is read, what is damaged."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.checkpoint import (
    FILE,
    VERSION,
    CheckpointDamaged,
    FileCheckpoint,
    ImportCheckpoint,
    ImportJob,
    SourceContent,
    StateFolder,
    read_checkpoint,
    seal,
)
from forwarder.sources.imports.import_books import ImportTotals, RecordBooks, uuid_hash
from forwarder.sources.imports.times import DAY
from forwarder.storage.directory import Locked

JOB = ImportJob(
    "11111111-2222-5333-8444-555555555555", "mixpanel", "export/*.json", {"since": "2020-01-01"}
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateFolder]:
    """A state folder that this process has."""
    folder = StateFolder(tmp_path / "state")
    yield folder
    folder.close()


def checkpoint() -> ImportCheckpoint:
    """Of a file with two records, one of them in flight."""
    time = 1_700_000_000_000_000
    totals = ImportTotals(names={"seen": 1})
    totals.day(time // DAY).add(1, 1, uuid_hash("0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"))
    totals.spans(time, time)
    file = FileCheckpoint(
        "a.json", "ab", RecordBooks(1, 1), read=2, digested=1, digest="digest of 1"
    )
    return ImportCheckpoint(JOB, 1.5, 2.5, [SourceContent("a.json", 9, "5eed")], [file], totals)


def test_a_new_folder_has_none(folder: StateFolder) -> None:
    """That is the only way to begin anew."""
    assert read_checkpoint(folder.path) is None


def test_what_is_written_is_read_back(folder: StateFolder) -> None:
    """All of it, with the lock and without; nothing else is left in the folder."""
    folder.save(checkpoint())
    folder.save(checkpoint())
    assert read_checkpoint(folder.path) == checkpoint()
    assert sorted(path.name for path in folder.path.iterdir()) == [FILE, "lock"]


def test_one_process_at_a_time_has_the_folder(folder: StateFolder) -> None:
    """Another one learns which option to use."""
    with pytest.raises(Locked, match="in use by another forwarder") as caught:
        StateFolder(folder.path)
    assert "--state" in caught.value.hint


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    """In a container the next process has the same number: what it writes must
    not find its place taken.
    """
    parts = [
        tmp_path / f".{name}.{os.getpid()}.part"
        for name in (FILE, "preflight.json", "manifest.json", "report.html")
    ]
    for part in parts:
        part.write_bytes(b"half of a checkpo")
    folder = StateFolder(tmp_path)
    folder.save(checkpoint())
    folder.close()
    assert not any(part.exists() for part in parts)
    assert read_checkpoint(tmp_path) == checkpoint()


def damaged() -> dict[str, bytes]:
    """A checkpoint, damaged in several ways."""
    whole = seal(VERSION, "checkpoint", checkpoint())
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
        "books": seal(VERSION, "checkpoint", unbalanced),
        "digest ahead": seal(VERSION, "checkpoint", ahead),
    }


@pytest.mark.parametrize("how", list(damaged()))
def test_a_damaged_checkpoint_is_an_error(folder: StateFolder, how: str) -> None:
    """It is never taken for a new job; the hint says what can be done."""
    (folder.path / FILE).write_bytes(damaged()[how])
    with pytest.raises(CheckpointDamaged, match=r"checkpoint\.json can't be read: .+") as caught:
        read_checkpoint(folder.path)
    assert "backup" in caught.value.hint
    assert (folder.path / FILE).read_bytes() == damaged()[how]


def test_any_byte_that_flips_is_found(tmp_path: Path) -> None:
    """The digest is of all that counts."""
    whole = seal(VERSION, "checkpoint", checkpoint())
    unnoticed = []
    for index in range(0, len(whole) - 1, 7):
        (tmp_path / FILE).write_bytes(
            whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :]
        )
        with contextlib.suppress(CheckpointDamaged):
            unnoticed.append((index, read_checkpoint(tmp_path)))
    assert unnoticed == []


def test_a_checkpoint_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    """A folder in its place, for one."""
    (tmp_path / FILE).mkdir()
    with pytest.raises(CheckpointDamaged, match="directory"):
        read_checkpoint(tmp_path)


def test_a_failing_disk_is_reported(folder: StateFolder) -> None:
    """And the former checkpoint stays."""
    (folder.path / FILE).mkdir()
    with pytest.raises(ConfigurationError, match="can't be written") as reported:
        folder.save(checkpoint())
    assert "run the same command again" in reported.value.hint
