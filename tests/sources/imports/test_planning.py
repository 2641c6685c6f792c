"""The plan of an import: from a source to its batches, from the start or from what was settled."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.files.records import ReadOptions, SourceChanged
from forwarder.sources.files.source import open_source
from forwarder.sources.imports import planning
from forwarder.sources.imports.conversion import EventFilters, EventSelection, open_conversion
from forwarder.sources.imports.day_batches import BatchLimits
from forwarder.sources.imports.finishing import FinishPolicy
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.planning import BatchReady, FileEnded, FileStarted, PlanStep, RecordsRead, SettledFile, plan_steps
from forwarder.sources.imports.repeats import Repeats

FINISH = FinishPolicy("set_once", False, "0190a0a0-1111-5222-8333-444455556666")
LIMITS = BatchLimits(100_000, 4)
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


def plan(source: Path, state: Path, saved: Mapping[str, SettledFile] | None = None, filters: EventFilters | None = None) -> list[PlanStep]:
    """All steps."""
    with open_source([str(source)], SMALL) as opened, Repeats(state) as repeats:
        conversion = open_conversion(NativeConverter("set_once"), FINISH, 1_000_000, EventSelection(filters or EventFilters(), repeats))
        return list(plan_steps(opened, conversion, saved or {}, LIMITS))


def numbers(found: list[PlanStep]) -> list[int]:
    """The events of its batches."""
    return [
        msgspec.json.decode(event.data)["properties"]["n"] for step in found if isinstance(step, BatchReady) for event in step.batch.events
    ]


def saved_after(found: list[PlanStep], name: Callable[[int], str]) -> dict[str, SettledFile]:
    """What is saved when all that was read is settled."""
    counts: dict[str, SettledFile] = {}
    for step in found:
        if isinstance(step, RecordsRead):
            before = counts.get(name(step.file), SettledFile(0)).records
            counts[name(step.file)] = SettledFile(before + len(step.counts), before + len(step.counts), step.digest)
    return counts


def test_files_are_begun_read_and_ended_in_their_order(tmp_path: Path) -> None:
    """Every batch comes after the records that it is of."""
    source = write(tmp_path, a=[line(n) for n in range(10)], b=[line(n) for n in range(10, 15)])
    found = plan(source, tmp_path)
    assert [(step.number, Path(step.file.name).name) for step in found if isinstance(step, FileStarted)] == [(0, "a.jsonl"), (1, "b.jsonl")]
    assert [(step.file, step.broken) for step in found if isinstance(step, FileEnded)] == [(0, None), (1, None)]
    assert numbers(found) == list(range(15))
    read = 0
    for step in found:
        read += len(step.counts) if isinstance(step, RecordsRead) else 0
        if isinstance(step, BatchReady):
            assert max(event.number + 10 * event.file for event in step.batch.events) < read


def test_a_plan_goes_on_after_what_was_settled(tmp_path: Path) -> None:
    """Nothing of it is read again as new; the digest is of the file from its start."""
    source = write(tmp_path, a=[line(n) for n in range(10)], b=[line(n) for n in range(10, 15)])
    whole = plan(source, tmp_path)
    name = str(source / "a.jsonl")
    rest = plan(source, tmp_path, {name: SettledFile(4)})
    assert numbers(rest) == list(range(4, 15))
    assert [step.digest for step in rest if isinstance(step, RecordsRead)][-1] == [
        step.digest for step in whole if isinstance(step, RecordsRead)
    ][-1]
    assert sum(len(step.counts) for step in rest if isinstance(step, RecordsRead)) == 11


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
@settings(max_examples=25, deadline=None)
def test_from_every_prefix_the_same_events_are_left(days: list[int], data: st.DataObject) -> None:
    """Byte for byte those that one run would have sent after it, also with repeats and a limit."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [line(n // 2 if n % 5 == 0 else n, day) for n, day in enumerate(days)]
        source = write(Path(folder), a=lines)
        filters = EventFilters(limit=data.draw(st.integers(1, 40)))
        whole = plan(source, Path(folder), filters=filters)
        settled = data.draw(st.integers(0, len(lines)))
        rest = plan(source, Path(folder), {str(source / "a.jsonl"): SettledFile(settled)}, filters)

        def left(found: list[PlanStep]) -> list[bytes]:
            events = [event for step in found if isinstance(step, BatchReady) for event in step.batch.events]
            return sorted(event.data for event in events if event.number >= settled)

        assert left(rest) == left(whole)
        for step in (*whole, *rest):
            if isinstance(step, BatchReady):
                assert len({event.day for event in step.batch.events}) == 1


@pytest.mark.parametrize("digested", [3, 6, 10])
def test_another_content_is_seen_before_anything_is_sent(tmp_path: Path, digested: int) -> None:
    """By the running digest, wherever it was taken."""
    lines = [line(n) for n in range(10)]
    source = write(tmp_path, a=lines[:digested])
    known = saved_after(plan(source, tmp_path), lambda _: str(source / "a.jsonl"))
    assert known[str(source / "a.jsonl")].digested == digested
    write(tmp_path, a=[line(99), *lines[1:]])
    with pytest.raises(SourceChanged, match=rf"first {digested} records"):
        plan(source, tmp_path, known)
    write(tmp_path, a=lines)
    assert numbers(plan(source, tmp_path, known)) == list(range(digested, 10))


def test_fewer_records_than_were_settled_are_seen(tmp_path: Path) -> None:
    """Also none."""
    source = write(tmp_path, a=[line(n) for n in range(3)])
    with pytest.raises(SourceChanged, match="it has 3 records, 4 were imported before"):
        plan(source, tmp_path, {str(source / "a.jsonl"): SettledFile(4)})
    write(tmp_path, a=[])
    with pytest.raises(SourceChanged, match="it has 0 records"):
        plan(source, tmp_path, {str(source / "a.jsonl"): SettledFile(4)})


def test_a_file_that_isn_t_there_any_more_is_seen(tmp_path: Path) -> None:
    """As a member that an archive had. One of which nothing was settled isn't missed."""
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("one.jsonl", b"".join(line(n) for n in range(3)))
    with pytest.raises(SourceChanged, match=r"a\.zip!two\.jsonl: it no longer exists, 7 records"):
        plan(archive, tmp_path, {f"{archive}!two.jsonl": SettledFile(7)})
    assert numbers(plan(archive, tmp_path, {f"{archive}!two.jsonl": SettledFile(0), f"{archive}!one.jsonl": SettledFile(1)})) == [1, 2]


def test_a_limit_ends_the_reading(tmp_path: Path) -> None:
    """No file is begun that can't bring an event."""
    source = write(tmp_path, a=[line(n) for n in range(10)], b=[line(10)])
    found = plan(source, tmp_path, filters=EventFilters(limit=3))
    assert numbers(found) == [0, 1, 2]
    assert len([step for step in found if isinstance(step, FileStarted)]) == 1


def test_a_broken_file_ends_and_the_next_begins(tmp_path: Path) -> None:
    """What is good of it is sent."""
    source = write(tmp_path, b=[line(n) for n in range(10, 15)])
    archive = source / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("one.jsonl", b"".join(line(n) for n in range(3)))
    whole = archive.read_bytes()
    archive.write_bytes(whole[:100] + b"\xff" * 20 + whole[120:])
    found = plan(source, tmp_path)
    assert [step.broken is None for step in found if isinstance(step, FileEnded)] == [False, True]
    assert set(numbers(found)) >= set(range(10, 15))


def test_an_event_doesn_t_wait_for_ever_for_others_of_its_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where little is wanted of much, what follows it can't be counted while it waits."""
    monkeypatch.setattr(planning, "MAX_WAIT_RECORDS", 20)
    source = write(tmp_path, a=[line(n, name="rare" if n == 0 else "common") for n in range(100)])
    found = plan(source, tmp_path, filters=EventFilters(events=frozenset({"rare"})))
    at = next(index for index, step in enumerate(found) if isinstance(step, BatchReady))
    assert 20 <= sum(len(step.counts) for step in found[:at] if isinstance(step, RecordsRead)) <= 30
