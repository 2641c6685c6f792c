"""Reading a source: its blocks, from the start or from what was settled."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock, source_blocks
from forwarder.sources.imports.checkpoint import SettledFile, SourceChanged
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.conversion import Conversion, EventFilters, FinishPolicy
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.repeats import Repeats
from tests.support.cases import cases

FINISH = FinishPolicy("oldest", False, "0190a0a0-1111-5222-8333-444455556666")
LIMITS = ChunkLimits(100_000, 4)
SMALL = ReadOptions(block_bytes=600)


def line(number: int, day: int = 0, name: str = "seen") -> bytes:
    """An event as it stands in a file."""
    event = {
        "event": name,
        "distinct_id": f"p{number % 3}",
        "uuid": f"0190a0a0-1111-4222-8333-{number:012}",
        "timestamp": f"2024-01-{1 + day:02}T00:00:00.{number:06}Z",
        "properties": {"n": number},
    }
    return msgspec.json.encode(event) + b"\n"


def write(folder: Path, **files: list[bytes]) -> Path:
    """A folder of such files."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    for name, lines in files.items():
        (source / f"{name}.jsonl").write_bytes(b"".join(lines))
    return source


def read(
    source: Path,
    state: Path,
    saved: Mapping[str, SettledFile] | None = None,
    filters: EventFilters | None = None,
) -> list[ImportBlock]:
    """All blocks."""
    with open_source([str(source)], SMALL) as opened, Repeats(state) as repeats:
        conversion = Conversion(
            NativeConverter("oldest"), FINISH, 1_000_000, filters or EventFilters(), repeats
        )
        return list(source_blocks(opened, conversion, saved or {}, LIMITS))


def events_of(blocks: list[ImportBlock]) -> list[FinishedEvent]:
    """What they send."""
    return [event for block in blocks for part in block.parts for event in part]


def numbers(blocks: list[ImportBlock]) -> list[int]:
    """The events, by number."""
    return [msgspec.json.decode(event.data)["properties"]["n"] for event in events_of(blocks)]


def settled_by(blocks: list[ImportBlock]) -> dict[str, SettledFile]:
    """What is saved when all that was read is settled."""
    counts: dict[str, SettledFile] = {}
    for block in blocks:
        if block.records:
            name = block.files[block.file].name
            records = counts.get(name, SettledFile(0)).records + block.records
            counts[name] = SettledFile(records, records, block.digest)
    return counts


def test_files_are_begun_read_and_ended_in_their_order(tmp_path: Path) -> None:
    """Each file is known from its first block on, also if it has no
    records, and ends with its last.
    """
    source = write(
        tmp_path, a=[line(n) for n in range(10)], b=[], c=[line(n) for n in range(10, 15)]
    )
    blocks = read(source, tmp_path)
    order = [block.file for block in blocks]
    assert order == sorted(order)
    assert {number: Path(file.name).name for number, file in blocks[0].files.items()} == {
        0: "a.jsonl",
        1: "b.jsonl",
        2: "c.jsonl",
    }
    assert [(block.file, block.broken) for block in blocks if block.ended] == [
        (0, None),
        (1, None),
        (2, None),
    ]
    assert numbers(blocks) == list(range(15))
    assert sum(block.records for block in blocks) == 15


def test_reading_resumes_after_what_was_settled(tmp_path: Path) -> None:
    """Nothing of it is read again as new; the digest is of the file from its start."""
    source = write(tmp_path, a=[line(n) for n in range(10)], b=[line(n) for n in range(10, 15)])
    whole = read(source, tmp_path)
    rest = read(source, tmp_path, {str(source / "a.jsonl"): SettledFile(4)})
    assert numbers(rest) == list(range(4, 15))
    assert [block.digest for block in rest if block.digest][-1] == [
        block.digest for block in whole if block.digest
    ][-1]
    assert sum(block.records for block in rest) == 11


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
@settings(max_examples=25, deadline=None)
def test_from_every_prefix_the_same_events_are_left(days: list[int], data: st.DataObject) -> None:
    """Byte for byte those that one run would have sent after it, also with repeats and a limit."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [line(n // 2 if n % 5 == 0 else n, day) for n, day in enumerate(days)]
        source = write(Path(folder), a=lines)
        filters = EventFilters(limit=data.draw(st.integers(1, 40)))
        whole = read(source, Path(folder), filters=filters)
        settled = data.draw(st.integers(0, len(lines)))
        rest = read(source, Path(folder), {str(source / "a.jsonl"): SettledFile(settled)}, filters)

        def left(blocks: list[ImportBlock]) -> list[bytes]:
            return sorted(event.data for event in events_of(blocks) if event.number >= settled)

        assert left(rest) == left(whole)


@cases("digested", [3, 6, 10])
def test_another_content_is_seen_before_anything_is_sent(tmp_path: Path, digested: int) -> None:
    """By the running digest, wherever it was taken."""
    lines = [line(n) for n in range(10)]
    source = write(tmp_path, a=lines[:digested])
    known = settled_by(read(source, tmp_path))
    assert known[str(source / "a.jsonl")].digested == digested
    write(tmp_path, a=[line(99), *lines[1:]])
    with pytest.raises(SourceChanged, match=rf"first {digested} records"):
        read(source, tmp_path, known)
    write(tmp_path, a=lines)
    assert numbers(read(source, tmp_path, known)) == list(range(digested, 10))


def test_fewer_records_than_were_settled_are_seen(tmp_path: Path) -> None:
    """Also none."""
    source = write(tmp_path, a=[line(n) for n in range(3)])
    with pytest.raises(SourceChanged, match="it has 3 records, 4 were imported before"):
        read(source, tmp_path, {str(source / "a.jsonl"): SettledFile(4)})
    write(tmp_path, a=[])
    with pytest.raises(SourceChanged, match="it has 0 records"):
        read(source, tmp_path, {str(source / "a.jsonl"): SettledFile(4)})


def test_a_file_that_isn_t_there_any_more_is_seen(tmp_path: Path) -> None:
    """As a member that an archive had. One of which nothing was settled isn't missed."""
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("one.jsonl", b"".join(line(n) for n in range(3)))
    with pytest.raises(SourceChanged, match=r"a\.zip!two\.jsonl: it no longer exists, 7 records"):
        read(archive, tmp_path, {f"{archive}!two.jsonl": SettledFile(7)})
    assert numbers(
        read(
            archive,
            tmp_path,
            {f"{archive}!two.jsonl": SettledFile(0), f"{archive}!one.jsonl": SettledFile(1)},
        )
    ) == [1, 2]


def test_a_limit_ends_the_reading(tmp_path: Path) -> None:
    """No file is begun that can't bring an event."""
    source = write(tmp_path, a=[line(n) for n in range(10)], b=[line(10)])
    blocks = read(source, tmp_path, filters=EventFilters(limit=3))
    assert numbers(blocks) == [0, 1, 2]
    assert {block.file for block in blocks} == {0}


def test_a_broken_file_ends_and_the_next_begins(tmp_path: Path) -> None:
    """What is good of it is sent."""
    source = write(tmp_path, b=[line(n) for n in range(10, 15)])
    archive = source / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("one.jsonl", b"".join(line(n) for n in range(3)))
    whole = archive.read_bytes()
    archive.write_bytes(whole[:100] + b"\xff" * 20 + whole[120:])
    blocks = read(source, tmp_path)
    assert [(block.file, block.ended) for block in blocks if block.ended or block.broken] == [
        (0, False),
        (1, True),
    ]
    assert set(numbers(blocks)) >= set(range(10, 15))
