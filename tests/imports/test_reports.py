"""What an import leaves in its folder, also where it was killed before it could."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.imports.reports import JSON, PAGE, complete_reports, write_reports
from forwarder.sources.imports import manifest as manifests
from forwarder.sources.imports.checkpoint import ImportCheckpoint
from forwarder.sources.imports.tallies import ImportTotals
from tests.sources.imports.samples.manifests import JOB, manifest

NAMES = {manifests.FILE, JSON, PAGE}


def checkpoint() -> ImportCheckpoint:
    """Of an import that is complete."""
    return ImportCheckpoint(JOB, 1_750_000_000.0, 1_750_000_600.0, [], [], ImportTotals(), exhausted=True)


def test_all_of_them_are_written(tmp_path: Path) -> None:
    """The manifest last: where it is, the others are."""
    write_reports(manifest(2), tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == NAMES
    assert manifests.read(tmp_path / manifests.FILE) == manifest(2)


@pytest.mark.parametrize("lost", [*sorted(NAMES), ""])
def test_what_a_kill_left_out_is_made_of_the_checkpoint(tmp_path: Path, lost: str) -> None:
    """Also in the place of a manifest of a run before, that wasn't complete."""
    write_reports(manifest(2, ended=False), tmp_path)
    if lost:
        (tmp_path / lost).unlink()
    made = complete_reports(checkpoint(), tmp_path)
    assert (made.complete, made.ended) == (True, "2025-06-15T15:16:40.000Z")
    assert {each.name for each in tmp_path.iterdir()} == NAMES
    assert manifests.read(tmp_path / manifests.FILE) == made


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    """It says when the import ended, which the checkpoint doesn't know."""
    first = complete_reports(checkpoint(), tmp_path)
    before = {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()}
    assert complete_reports(checkpoint(), tmp_path) == first
    assert {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()} == before
