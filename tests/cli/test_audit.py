"""`forwarder audit`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.storage.directory import worker_directory
from forwarder.telemetry.labels import lane_label
from tests.cli.conftest import Answering
from tests.support.commands import forwarder
from tests.support.disk_logs import LogWriter, write_letters
from tests.support.snapshots import FULL, GOOD, HALTED

LANE = Lane("phc_auditauditaudit1234")


async def test_books_that_balance(daemon: Answering) -> None:
    """The books are printed per lane; exit code 0."""
    done = await forwarder("audit", "--admin", daemon.address)
    assert (done.code, done.err) == (0, "")
    assert GOOD.label in done.out
    assert "The books balance" in done.out


async def test_books_that_are_off(daemon: Answering) -> None:
    """Books that don't balance name the lane and by how much; exit code 1."""
    daemon.snapshot = replace(FULL, lanes=(replace(GOOD, delivered=1148), HALTED))
    done = await forwarder("audit", "--admin", daemon.address)
    assert done.code == 1
    assert "2 missing" in done.out
    assert f"don't balance for {GOOD.label}\n" in done.err


async def test_an_event_too_many(daemon: Answering) -> None:
    """Events that were never received are as wrong as missing ones."""
    daemon.snapshot = replace(FULL, lanes=(replace(GOOD, delivered=1151),))
    done = await forwarder("audit", "--admin", daemon.address)
    assert done.code == 1
    assert "1 too many" in done.out


async def test_no_daemon() -> None:
    """Nobody there to ask is exit code 3, not a verdict on the books."""
    assert (await forwarder("audit", "--admin", "127.0.0.1:1")).code == 3


def write_state(root: Path) -> LogWriter:
    """The files of a daemon that is down: six events received, two delivered, one dropped, two dead letters, one buffered."""
    log = LogWriter(root)
    log.events(LANE, [b'{"event":"a"}', b'{"event":"b"}'])
    log.events(LANE, [b'{"event":"c"}'])
    log.settle(LANE, 2, 1, "drop_oldest")
    log.events(LANE, [b'{"event":"d"}', b'{"event":"e"}'])
    log.settle(LANE, 3, 2)
    letters = [
        DeadLetter(Reason.MISSING_EVENT, LANE, b"{}", 1000.0),
        DeadLetter(Reason.REFUSED, LANE, b'{"event":"b"}', 1000.0, "no", place=(1, 1)),
    ]
    write_letters(log.directory, letters)
    return log


async def test_books_of_files_when_no_daemon_answers(tmp_path: Path) -> None:
    """Log and dead letters together balance; an event that stands in both counts once."""
    log = write_state(tmp_path)
    environment = {"FORWARDER_BUFFER__KIND": "disk", "FORWARDER_BUFFER__PATH": str(tmp_path), "FORWARDER_ADMIN__LISTEN": "127.0.0.1:1"}
    done = await forwarder("audit", env=environment)
    assert (done.code, done.err) == (0, "")
    assert f"From the files in {log.directory}" in done.out
    assert "The books balance" in done.out
    (row,) = [line.split() for line in done.out.splitlines() if lane_label(LANE) in line]
    assert row[1:4] == ["6", "2", "1"]
    assert (await forwarder("audit", "--path", str(tmp_path))).out == done.out


async def test_files_that_are_off(tmp_path: Path) -> None:
    """A record that can't be read any more is missing from the books: exit code 1."""
    log = write_state(tmp_path)
    log.flip(log.events(LANE, [b'{"event":"lost"}']) + 30)
    log.settle(LANE, 4, 1)
    done = await forwarder("audit", "--path", str(tmp_path))
    assert done.code == 1
    assert "too many" in done.out
    assert lane_label(LANE) in done.err


async def test_the_books_of_dead_letters_alone(tmp_path: Path) -> None:
    """Beside a memory buffer there is nothing but them: received starts at what they hold."""
    directory = worker_directory(tmp_path, 0)
    directory.mkdir()
    left, invalid = DeadLetter(Reason.UNDELIVERED_AT_EXIT, LANE, b"{}", 1000.0), DeadLetter(Reason.INVALID_EVENT, None, b"[", 1000.0)
    write_letters(directory, [left, invalid])
    done = await forwarder("audit", env={"FORWARDER_DEAD_LETTERS__PATH": str(tmp_path), "FORWARDER_ADMIN__LISTEN": "127.0.0.1:1"})
    assert done.code == 0
    assert "1 undelivered_at_exit" in done.out
    assert "1 invalid_event" in done.out


async def test_a_path_without_state(tmp_path: Path) -> None:
    """Wrong usage, not balanced books of nothing."""
    done = await forwarder("audit", "--path", str(tmp_path))
    assert done.code == 2
    assert "contains no buffer" in done.err
