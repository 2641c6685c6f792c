"""The events of a sorted import on disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.checkpoint import ImportJob
from forwarder.sources.imports.entries import SharedRecord, SortedEvent
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.spool import FILE, SPOOL, EventSpool, ReadFailure, SortedFile, SpoolDamaged, SpoolIndex
from forwarder.sources.imports.tallies import RecordBooks, RefusalExample

JOB = ImportJob("0190a0a0-1111-5222-8333-444455556666", "native", "a.jsonl")
LARGE = b"x" * 100_000
"""Three of them fill a block."""


def entries(count: int, data: bytes = LARGE) -> list[SortedEvent]:
    """Entries in order."""
    known = [None, SharedRecord(is_last=False), SharedRecord(is_last=True, reason="too_large", detail="two MB")]
    events = [FinishedEvent(number, "someone", "seen", "", data, number % 2, number, number) for number in range(count)]
    return [SortedEvent.of(event, turn, known[turn % 3]) for turn, event in enumerate(events)]


def written(spool: EventSpool, count: int, data: bytes = LARGE) -> SpoolIndex:
    """A spool of so many entries."""
    about = spool.empty({"a.jsonl": 7})
    about.files = [SortedFile("a.jsonl", "5eed", 9, RecordBooks(2, refused={"no_time": 2}), "d1", ReadFailure(17, "it is cut off"))]
    about.examples = {"no_time": [RefusalExample("a.jsonl", 3, "there is none")]}
    assert list(spool.write(entries(count, data), about))[-1:] == [count][:count]
    return about


def read(spool: EventSpool, about: SpoolIndex, first: int = 0) -> list[tuple[int, SortedEvent]]:
    """Entries from one on, with their numbers."""
    return [(number, entry) for begin, block in spool.read(about, first) for number, entry in enumerate(block, begin)]


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 9, 10])
def test_it_is_read_from_any_entry_on(tmp_path: Path, first: int) -> None:
    """At the beginning, in and between blocks, and at the end."""
    spool = EventSpool(tmp_path, JOB)
    about = written(spool, 10)
    assert about.entries == 10
    assert read(spool, about, first) == list(enumerate(entries(10)))[first:]


def test_what_is_known_of_it_is_found_again(tmp_path: Path) -> None:
    """By the job that wrote it, from where its files stood."""
    about = written(EventSpool(tmp_path, JOB), 10)
    found = EventSpool(tmp_path, JOB).find({"a.jsonl": 7}, about.digest)
    assert found == about
    failure = about.files[0].failure
    assert failure is not None
    assert (failure.file, failure.offset, failure.reason) == ("a.jsonl", 17, "it is cut off")


def test_one_that_is_of_something_else_isnt_used(tmp_path: Path) -> None:
    """Of another job, sorted from elsewhere on, or of other entries than a checkpoint counts."""
    about = written(EventSpool(tmp_path, JOB), 4)
    assert EventSpool(tmp_path, ImportJob(JOB.id, "native", "b.jsonl")).find({"a.jsonl": 7}) is None
    assert EventSpool(tmp_path, JOB).find({"a.jsonl": 8}) is None
    assert EventSpool(tmp_path, JOB).find({"a.jsonl": 7}, "5eed") is None
    assert EventSpool(tmp_path, JOB).find({"a.jsonl": 7}) == about


def test_one_that_isnt_whole_isnt_used(tmp_path: Path) -> None:
    """Without its books, with books that the disk has changed, and without entries."""
    spool = EventSpool(tmp_path, JOB)
    written(spool, 4)
    books = (tmp_path / FILE).read_bytes()
    for content in (books[:-20], books.replace(b'"entries":4', b'"entries":5'), books.replace(b'"version":1', b'"version":2')):
        assert content != books
        (tmp_path / FILE).write_bytes(content)
        assert spool.find({"a.jsonl": 7}) is None
    (tmp_path / FILE).write_bytes(books)
    (tmp_path / SPOOL).unlink()
    assert spool.find({"a.jsonl": 7}) is None


def test_the_same_entries_have_the_same_digest_and_others_another(tmp_path: Path) -> None:
    """So a spool that is lost can be made again, and is known."""
    digests = []
    for name, data in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).mkdir()
        digests.append(written(EventSpool(tmp_path / name, JOB), 4, data).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("what", ["changed", "cut", "cut in a header", "gone"])
def test_damage_is_told_and_the_next_run_sorts_anew(tmp_path: Path, what: str) -> None:
    """Whatever the disk did, no other entries come out; those before the damage do."""
    spool = EventSpool(tmp_path, JOB)
    about = written(spool, 10)
    content = (tmp_path / SPOOL).read_bytes()
    damage = {"changed": content[:-5] + b"?????", "cut": content[: len(content) // 2], "cut in a header": content + b"x"}
    if what in damage:
        (tmp_path / SPOOL).write_bytes(damage[what])
    else:
        (tmp_path / SPOOL).unlink()
    found: list[SortedEvent] = []
    with pytest.raises(SpoolDamaged, match=r"sorted.spool") as raised:
        found.extend(entry for _, block in spool.read(about, 0) for entry in block)
    assert "sorted anew" in raised.value.hint
    assert found == entries(10)[: len(found)]
    assert spool.find({"a.jsonl": 7}) is None


def test_a_spool_without_entries_is_one(tmp_path: Path) -> None:
    """Where nothing is to be sent."""
    spool = EventSpool(tmp_path, JOB)
    about = written(spool, 0)
    assert read(spool, about) == []
    assert spool.find({"a.jsonl": 7}) == about


def test_it_is_there_when_it_is_whole(tmp_path: Path) -> None:
    """Who stops writing leaves nothing that could be taken for a spool; nor does who dies, and what he leaves is removed."""
    spool = EventSpool(tmp_path, JOB)
    about = spool.empty({})
    writing = spool.write(entries(10), about)
    next(writing)
    (tmp_path / f".{SPOOL}.77.part").write_bytes(b"of a process that died")
    assert spool.find({}) is None
    writing.close()  # type: ignore[attr-defined]
    assert [path.name for path in tmp_path.iterdir()] == [f".{SPOOL}.77.part"]
    written(spool, 4)
    spool.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    """With what to do, and nothing of it stays."""
    spool = EventSpool(tmp_path, JOB)

    def refused() -> Iterator[SortedEvent]:
        yield from entries(10)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ConfigurationError, match="can't be sorted in: No space left on device") as raised:
        list(spool.write(refused(), SpoolIndex(JOB, {})))
    assert "--state" in raised.value.hint
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match=r"sorted.spool can't be written: No such file"):
        list(EventSpool(tmp_path / "missing", JOB).write(entries(4), SpoolIndex(JOB, {})))
