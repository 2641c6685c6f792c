"""How far an import is, in words and for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forwarder.sources.imports.books import RecordBooks
from forwarder.sources.imports.checkpoint import FileCheckpoint, ImportCheckpoint, SourceContent
from forwarder.sources.imports.status import PREFLIGHT, FileProgress, ImportStatus, as_json, counted_in
from tests.sources.imports.samples.manifests import JOB, STARTED, checkpoint

FOLDER = Path("/state/mixpanel-1a2b3c4d")
NOW = STARTED + 75


def standing(saved: ImportCheckpoint | None, *, running: bool = False) -> ImportStatus:
    """An import in that folder."""
    return ImportStatus(FOLDER, saved, running)


def test_a_complete_import_in_words() -> None:
    """What it is, since when, its books, its events and its files."""
    saved = checkpoint(4)
    read, delivered, events = saved.books.read, saved.books.delivered, sum(day.delivered for day in saved.totals.days.values())
    assert list(standing(saved).words(NOW)) == [
        "mixpanel export/*.json.gz: complete",
        f"  import {JOB.id}, in /state/mixpanel-1a2b3c4d",
        "  started 2025-06-15T15:06:40Z, last checkpoint 2025-06-15T15:06:40Z, 1m 15s ago",
        f"  {read} records read = {delivered} delivered + 5 refused + 2 left out + 2 repeats: balanced",
        f"  {events} events delivered, of 2024-01-01T00:00:00.000Z to 2024-01-04T00:00:04.000Z; 2 of 2 files done",
    ]


@pytest.mark.parametrize(
    ("ended", "running", "said"),
    [(True, True, "running"), (False, True, "running"), (False, False, "not complete: the same command resumes it")],
)
def test_the_state_of_one_that_runs_or_was_ended(*, ended: bool, running: bool, said: str) -> None:
    """Whoever has the folder now is at work on it; else it waits for the command."""
    assert next(standing(checkpoint(4, ended=ended), running=running).words(NOW)) == f"mixpanel export/*.json.gz: {said}"


def test_books_that_are_off_are_said() -> None:
    """A figure that can't be is shown, not passed over."""
    saved = checkpoint(4)
    saved.files[0].books.read += 3
    assert list(standing(saved).words(NOW))[3].endswith(": 3 missing")


def test_one_that_has_settled_nothing() -> None:
    """It is looking at its source; there is only the folder to name."""
    assert list(standing(None, running=True).words(NOW)) == [
        "mixpanel-1a2b3c4d: running, nothing is settled yet",
        "  in /state/mixpanel-1a2b3c4d",
    ]


def test_files_in_archives_are_known_once_they_are_read() -> None:
    """An archive that wasn't begun counts for one file; one that was, for those found in it."""
    files = [
        FileCheckpoint("a.zip!1.json", "x", RecordBooks(), 0, complete=True),
        FileCheckpoint("a.zip!deep.zip!2.json", "x", RecordBooks(), 0),
    ]
    contents = [SourceContent(name, 1, "d") for name in ("a.zip", "b!.zip", "c.json")]
    saved = ImportCheckpoint(JOB, STARTED, STARTED, contents, files)
    assert FileProgress.of(saved) == FileProgress(1, 4, all_known=False)
    assert FileProgress.of(saved).words() == "1 of 4 files done, as far as they are known"
    saved.files.append(FileCheckpoint("b!.zip!3.json", "x", RecordBooks(), 0))
    assert FileProgress.of(saved) == FileProgress(1, 4, all_known=False)


def test_what_a_terminal_would_obey_is_not_said() -> None:
    """Names come from outside."""
    saved = checkpoint(4)
    saved.job = type(JOB)(JOB.id, "native", "\x1b[31mred\n")
    assert "\x1b" not in "".join(standing(saved).words(NOW))


def test_how_much_of_it_is_read() -> None:
    """Against what the preflight counted, until it is complete."""
    saved = checkpoint(4, ended=False)
    said = list(ImportStatus(FOLDER, saved, running=True, counted=saved.books.read * 4).words(NOW))
    assert said[4] == f"  25% of the {saved.books.read * 4} records that were counted before it began"
    assert not any("%" in line for line in ImportStatus(FOLDER, checkpoint(4), running=True, counted=100).words(NOW))


@pytest.mark.parametrize(
    ("content", "counted"),
    [('{"findings": [], "report": {"records": 7, "events": 6}}', 7), ('{"report": {}}', None), ("{", None), (None, None)],
)
def test_what_the_preflight_counted(tmp_path: Path, content: str | None, counted: int | None) -> None:
    """From the file that it leaves; without it, or when it is being written, nothing is compared."""
    if content is not None:
        (tmp_path / PREFLIGHT).write_text(content)
    assert counted_in(tmp_path) == counted


def test_for_machines() -> None:
    """All figures, also of what has settled nothing; never a folder without its state."""
    whole, empty = json.loads(as_json([standing(checkpoint(4)), standing(None, running=True)]))["imports"]
    assert empty == {"folder": str(FOLDER), "job": None, "running": True, "complete": False}
    assert (whole["job"]["id"], whole["complete"], whole["running"]) == (JOB.id, True, False)
    assert whole["books"]["read"] == checkpoint(4).books.read
    assert whole["books"]["difference"] == 0
    assert whole["files"] == {"done": 2, "known": 2, "all_known": True}
    assert (whole["first"], whole["written"]) == ("2024-01-01T00:00:00.000Z", "2025-06-15T15:06:40Z")
