"""Reading a log while a daemon changes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forwarder.buffer.disk import recovery
from forwarder.buffer.disk.format import VERSION, SegmentHeader, encode_segment_header
from forwarder.buffer.disk.recovery import RecoveredLog, UnsettledRecord
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.inspect import buffer_contents as inspection
from forwarder.inspect.buffer_contents import READS, read_contents, read_log, unsettled
from forwarder.storage.directory import LOG
from tests.support.disk_logs import SEGMENT, LogWriter, in_use

LANE = Lane("phc_livelivelivelive1234")


def use_again(path: Path, generation: int) -> None:
    """Begin a new use of a segment, as a daemon does."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, encode_segment_header(SegmentHeader(VERSION, SEGMENT, generation, 2000.0)), 0)
    finally:
        os.close(fd)


def all_events(directory: Path) -> list[bytes]:
    """The events of all records."""
    return [event for record in unsettled(directory) for event in record.events]


def test_records_come_in_order_without_what_is_settled(tmp_path: Path) -> None:
    """Each lane's events as they were received."""
    log = LogWriter(tmp_path)
    log.events(LANE, [b'{"n":1}', b'{"n":2}'])
    log.events(LANE, [b'{"n":3}'])
    log.settle(LANE, 2, 1)
    log.events(LANE, [b'{"n":4}'])
    assert all_events(log.directory) == [b'{"n":1}', b'{"n":2}', b'{"n":4}']


def test_a_segment_that_is_used_again_meanwhile_is_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in it is settled or was copied forward: it isn't distinguished from bytes that may
    be others by now, and nothing is reported twice.
    """
    log = LogWriter(tmp_path)
    log.events(LANE, [b'{"n":1}'])
    read = RecoveredLog.records

    def recycle_then_read(recovered: RecoveredLog) -> list[UnsettledRecord]:
        records = list(read(recovered))
        use_again(log.path, 2)
        return records

    monkeypatch.setattr(RecoveredLog, "records", recycle_then_read)
    assert all_events(log.directory) == []


def test_a_file_that_goes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for again like one that is used again."""
    log = LogWriter(tmp_path)
    log.events(LANE, [b'{"n":1}'])
    read = RecoveredLog.records

    def remove_then_read(recovered: RecoveredLog) -> list[UnsettledRecord]:
        log.path.unlink(missing_ok=True)
        return list(read(recovered))

    monkeypatch.setattr(RecoveredLog, "records", remove_then_read)
    assert all_events(log.directory) == []


def test_damage_beside_a_daemon_is_believed_only_when_it_stays(tmp_path: Path) -> None:
    """A record that is just being written looks torn at one look, and whole at the next; a flipped
    bit stays.
    """
    log = LogWriter(tmp_path)
    begin = log.events(LANE, [b'{"event":"being written"}'])
    log.flip(begin + 100)
    pauses: list[float] = []

    def write_the_rest(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            log.flip(begin + 100)

    with in_use(log.directory):
        assert read_contents(log.directory, write_the_rest).flaws == ()
        assert len(pauses) == 1
        log.flip(begin + 100)
        pauses[:] = [0.0]
        (flaw,) = read_contents(log.directory, pauses.append).flaws
        assert (flaw.offset, flaw.events, len(pauses)) == (begin, 1, READS)
    pauses.clear()
    assert len(read_contents(log.directory, pauses.append).flaws) == 1
    assert pauses == []


def test_files_that_cannot_be_read_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permission or a failing disk: which file, and what to do."""
    log = LogWriter(tmp_path)

    def forbidden(path: Path, letters: object) -> RecoveredLog:
        raise PermissionError(13, "Permission denied", str(path / "00000001.segment"))

    monkeypatch.setattr(inspection, "recover", forbidden)
    with pytest.raises(
        ConfigurationError, match=r"log/00000001.segment can't be read: Permission denied"
    ):
        read_log(log.directory)
    assert recovery.recover(log.directory / LOG).problems == []
