"""How far an import is, as lines and as a bar."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forwarder.cli.import_run import RATE_WINDOW, Preflight, PreflightProgress, RecentRate, SendProgress, saved_events
from forwarder.cli.tables import EVERY
from forwarder.sources.imports.status import PREFLIGHT
from tests.cli.importing import GOOD, PROGRESS
from tests.sources.imports.preflights import report


class Watch:
    """A clock to be turned."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Events of all runs, the rate of this one, the time left, and the books of the records."""
    watch = Watch()
    with SendProgress(1000, 200, now=watch) as progress:
        progress.update(PROGRESS)
        watch.now += EVERY
        progress.update(replace(PROGRESS, events=100, read=1300, delivered=1200, refused=20))
        watch.now += EVERY / 2
        progress.update(replace(PROGRESS, events=150))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "importing: 300 of 1,000 events, 20 a second, 35s left; "
        "1,300 records read: 1,200 delivered, 20 refused, 1 left out, 1 repeats; 3 events in flight\n"
    )


def test_why_nothing_is_sent_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """And no time left is made up."""
    watch = Watch()
    with SendProgress(1000, 0, now=watch) as progress:
        watch.now += EVERY
        progress.update(replace(PROGRESS, events=0, waiting="quiet hours until 06:00"))
    assert "importing: 0 of 1,000 events, 0 a second; " in (line := capsys.readouterr().err)
    assert line.endswith("; waiting: quiet hours until 06:00\n")


def test_a_total_that_is_not_known_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    """As where the folder's look is gone; and one that was too small grows."""
    watch = Watch()
    with SendProgress(None, 0, now=watch) as progress:
        watch.now += EVERY
        progress.update(replace(PROGRESS, events=50))
    with SendProgress(10, 0, now=watch) as progress:
        watch.now += EVERY
        progress.update(replace(PROGRESS, events=50))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == ["importing: 50 events, 10 a second", "importing: 50 of 50 events, 10 a second"]


def test_the_rate_is_that_of_lately() -> None:
    """Hours of quiet don't make what comes after them slow."""
    watch = Watch()
    speed = RecentRate(watch)
    watch.now += 3600
    assert speed.at(36_000) == 10
    for second in range(1, int(RATE_WINDOW) + 5):
        watch.now += 1
        rate = speed.at(36_000 + second * 2000)
    assert rate == pytest.approx(2000)


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same figures; the cursor is there again after it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with SendProgress(1000, 0) as progress:
        progress.update(replace(PROGRESS, waiting="quiet hours"))
    with PreflightProgress() as looking:
        looking.update(10, 2048)
    shown = capsys.readouterr().err
    told = ("7 of 1,000 events", "10 records read: 7 delivered, 1 refused", "waiting: quiet hours", "the source: 10 records, 2.0 KiB")
    assert [text for text in told if text not in shown] == []


def test_a_look_at_a_source_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """However often it is told, a line comes every few seconds."""
    watch = Watch()
    with PreflightProgress(now=watch) as progress:
        progress.update(100, 1000)
        watch.now += EVERY
        progress.update(1000, 5 << 20)
        progress.update(1001, 5 << 20)
    assert capsys.readouterr().err == "analyzing the source: 1,000 records, 5.0 MiB, 200 a second\n"


def test_what_a_look_found_to_send_is_known_to_later_runs(tmp_path: Path) -> None:
    """Repeats aren't sent. A file that is gone or damaged only leaves out the bar's total."""
    looked = Preflight.judged(report([*GOOD, GOOD[0]]), (), ())
    looked.save(tmp_path)
    assert looked.events == saved_events(tmp_path) == 5
    (tmp_path / PREFLIGHT).write_text('{"report": 7}')
    assert saved_events(tmp_path) is None
    (tmp_path / PREFLIGHT).unlink()
    assert saved_events(tmp_path) is None
