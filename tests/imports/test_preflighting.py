"""The preflight of a whole source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from forwarder.imports.preflighting import run_preflight
from forwarder.imports.request import ChosenFormat
from forwarder.sources.files.options import BrokenSource
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.formats.mixpanel import MixpanelConverter
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.moments import DAY, SECOND
from forwarder.sources.imports.policy import EventFilters, FinishPolicy
from forwarder.sources.imports.preflight_report import PreflightReport, PreflightTerms
from tests.imports.imports import FIRST_DAY, line, write

NATIVE = ChosenFormat("native", {}, lambda: NativeConverter("set_once"), ("timestamp",))
FINISH = FinishPolicy("set_once", False, "0190a0a0-1111-5222-8333-444455556666")
TERMS = PreflightTerms(now=(FIRST_DAY + 100) * DAY, max_event=1000, batch_events=5000, batch_bytes=5_000_000, rate=2000.0)


def look(
    *paths: Path, filters: EventFilters | None = None, told: list[tuple[int, int]] | None = None
) -> tuple[PreflightReport, Sequence[BrokenSource]]:
    """What is known of these files."""
    said = [] if told is None else told
    with open_source([str(path) for path in paths]) as source:
        return run_preflight(
            source, NATIVE, FINISH, filters=filters or EventFilters(), terms=TERMS, told=lambda records, size: said.append((records, size))
        )


def test_all_of_a_source_is_looked_at(tmp_path: Path) -> None:
    """Events by name and by day, what is refused, and how far it is meanwhile."""
    told: list[tuple[int, int]] = []
    first = write(tmp_path / "a.jsonl", [line(n, day=n % 3) for n in range(30)])
    second = write(tmp_path / "b.jsonl", [line(30, name="other"), b'{"cut', line(31, pad="x" * 2000)])
    report, broken = look(first, second, told=told)
    assert not broken
    assert report.records == 33
    assert sum(each.records for each in report.refused) == 2
    assert told[-1][0] == 33
    assert told[-1][1] == first.stat().st_size + second.stat().st_size - 33
    assert told == sorted(told)


def test_what_filters_leave_out_is_not_in_it(tmp_path: Path) -> None:
    """But for `--until`, of which the report says what it leaves out. A limit ends the reading."""
    path = write(tmp_path / "a.jsonl", [line(n, name="wanted" if n % 2 else "not") for n in range(30)])
    report, _ = look(path, filters=EventFilters(events=frozenset({"wanted"}), until=FIRST_DAY * DAY + 10 * SECOND))
    assert report.volume.events == 15
    report, _ = look(path, filters=EventFilters(limit=4))
    assert report.volume.events == 4


def test_what_until_leaves_out_does_not_count_against_the_limit(tmp_path: Path) -> None:
    """As in the import itself: four events of the first day, and what stands between them."""
    path = write(tmp_path / "a.jsonl", [line(n, day=n % 3) for n in range(30)])
    report, _ = look(path, filters=EventFilters(limit=4, until=(FIRST_DAY + 1) * DAY))
    assert report.events == 10


def test_a_broken_file_is_told_and_the_others_are_looked_at(tmp_path: Path) -> None:
    """It is no reason to know nothing of the rest."""
    broken = tmp_path / "a.json"
    broken.write_bytes(b"[" + line(0) + b",")
    report, found = look(broken, write(tmp_path / "b.jsonl", [line(1)]))
    assert [error.file for error in found] == [str(broken)]
    assert report.volume.events >= 1


def test_ids_in_upper_case_are_counted_where_they_may_matter(tmp_path: Path) -> None:
    """Of Mixpanel's exports, whose users have such ids too."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"event":"a","properties":{"time":1640995200,"distinct_id":"ABC-1","$distinct_id_before_identity":"x","$insert_id":"i1"}}\n'
    )
    chosen = ChosenFormat("mixpanel", {}, MixpanelConverter, ("properties.time",))
    with open_source([str(path)]) as source:
        report, _ = run_preflight(source, chosen, FINISH, filters=EventFilters(), terms=TERMS, told=lambda _records, _size: None)
    assert report.persons.upper_case_ids == 1


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_source_can_be_looked_at(tmp_path: Path, count: int) -> None:
    """It has nothing."""
    report, broken = look(write(tmp_path / "a.jsonl", [line(n) for n in range(count)]))
    assert (report.records, list(broken)) == (count, [])
