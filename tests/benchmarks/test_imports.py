"""The cases of imports: their exports and floors, and short rounds with the real programs. Nothing
here looks at how fast anything is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from benchmarks import live_beside
from benchmarks.arrivals import arrivals
from benchmarks.bare_loops import bare_events, bare_loop
from benchmarks.events import MARKER
from benchmarks.exports import Export, write
from benchmarks.import_stages import FINISH, converter_of, import_once
from benchmarks.imports import CASES, LOOKED, ImportFigure, Importing, import_row, select
from benchmarks.live_beside import Delivery, ViaResult, measure_via, via_line
from benchmarks.processes import free_port
from benchmarks.targets import Machine, Target
from benchmarks.throughput import Figure
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.conversion import EventFinisher
from forwarder.sources.imports.format import RecordConverter
from tests.support.cases import cases

COUNT = 500
TWO_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2,
    reason="the benchmarks need a core for the target and one for the load",
)


@pytest.fixture(params=Export)
def export(request: pytest.FixtureRequest) -> Export:
    """Each format in turn."""
    return Export(request.param)


@pytest.fixture
def path(export: Export, tmp_path: Path) -> Path:
    """A file of it."""
    written = tmp_path / f"export{export.suffix}"
    write(export, written, COUNT)
    return written


def test_records_are_of_the_size_that_is_said(export: Export, path: Path) -> None:
    """About 600 bytes each, a marker in each; of a table's rows, which don't
    name their columns, fewer.
    """
    low, high = (420, 520) if export is Export.CSV else (540, 740)
    assert low < path.stat().st_size / COUNT < high
    assert path.read_bytes().count(MARKER) == COUNT


def test_every_record_becomes_an_event(export: Export, path: Path) -> None:
    """By the import, and by the floor of its format: both do their work with all of the file."""
    brought = COUNT if export is not Export.AMPLITUDE else None
    arrived = import_once(export, path)
    # a user's first record of a device brings an `$identify`
    assert arrived == brought or (brought is None and arrived > COUNT)
    if export is not Export.NATIVE:
        events, size = bare_loop(export, path)
        assert events == COUNT
        assert 450 < size / events < 1_050


@pytest.mark.parametrize(
    "export", [export_kind for export_kind in Export if export_kind is not Export.NATIVE]
)
def test_the_floor_makes_the_events_of_the_import(export: Export, path: Path) -> None:
    """A loop that left out a part of the mapping would be no floor; only what follows from records
    before isn't its work.
    """
    converter = converter_of(export)
    assert isinstance(converter, RecordConverter)
    with open_source([str(path)]) as source:
        blocks = [block for file in source.files() for block in source.blocks(file)]
        events = [
            event
            for block in blocks
            for index in range(len(block.records))
            for event in converter.convert(block, index)
        ]
    finished, _ = EventFinisher(FINISH).finish(
        [event for event in events if event.event != "$identify"]
    )
    made = [json.loads(encoded) for encoded in finished]
    assert [json.loads(msgspec.json.encode(event)) for event in bare_events(export, path)] == made
    assert len(made) == COUNT


def test_the_same_seed_writes_the_same_file(export: Export, path: Path, tmp_path: Path) -> None:
    """Runs can be compared."""
    write(export, again := tmp_path / "again", COUNT)
    assert again.read_bytes() == path.read_bytes()


def test_cases_are_chosen_by_name() -> None:
    """All of them without a pattern; their names are different."""
    assert select([]) == list(CASES)
    assert len({case.name for case in CASES}) == len(CASES)
    assert [case.name for case in select(["import-native-*"])] == [
        "import-native-stages",
        "import-native-none",
        "import-native-gzip",
    ]
    assert select(["kafka-*"]) == []


def test_what_comes_twice_arrived_at_first() -> None:
    """A request that is sent again doesn't make an event late."""
    assert arrivals(b"[[1, 2.5], [2, 3.0], [1, 9.0]]") == {1: 2.5, 2: 3.0}


@cases(
    ("beside", "good"),
    [
        (Delivery(10, 10, 1.0, 1.9, 500), True),
        (Delivery(10, 10, 1.0, 2.1, 500), False),
        (Delivery(10, 9, 1.0, 1.9, 500), False),
        (Delivery(10, 10, 1.0, 1.9, 0), False),
    ],
    ids=["good", "too late", "one lost", "no import"],
)
def test_what_is_good_beside_an_import(beside: Delivery, good: bool) -> None:
    """All arrived, the slowest percent within twice what it was, and the import did continue."""
    result = ViaResult("import-via", Delivery(10, 10, 0.5, 1.0), beside, 60.0)
    assert result.good is good
    assert via_line(result).endswith("good" if good else "NOT GOOD")


@pytest.mark.long
@TWO_CORES
def test_the_whole_command_is_measured_without_a_loss(tmp_path: Path) -> None:
    """From the first event that arrives to the last; its line has all that the table shows."""
    [case] = select(["import-native-gzip"])
    path = tmp_path / "export.jsonl"
    write(Export.NATIVE, path, 20_000)
    cores = sorted(os.sched_getaffinity(0))
    measured = Importing(
        Machine(cores[0], cores[1]), Target(free_port(), free_port()), {Export.NATIVE: path}, 0.2
    )
    figure = ImportFigure()
    floor = Figure()
    measured.floor(Export.NATIVE, floor)
    measured.case(case, figure, 20_000)
    row = import_row(case, figure, floor)
    assert (row["case"], row["against"], row["lost"]) == ("import-native-gzip", "split and join", 0)
    assert row["ratio"] == round(figure.rate / floor.rate, 3) > 0
    assert row[LOOKED] > 0


@pytest.mark.long
@pytest.mark.timeout(480)  # an import gets little time on a machine under load
@TWO_CORES
def test_live_events_are_measured_beside_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every live event is found again, with the import and without it."""
    monkeypatch.setattr(live_beside, "RECORDS", 50_000)
    # so that it lasts longer than the live events, whatever the machine does
    monkeypatch.setattr(live_beside, "IMPORT_RATE", "10000")
    cores = sorted(os.sched_getaffinity(0))
    result = measure_via(
        Target(free_port(), free_port()), Machine(cores[0], cores[1]), seconds=2.0, files=2
    )
    assert (result.alone.arrived, result.beside.arrived) == (2000, 2000)
    assert result.beside.imported > 0
