"""Opening a buffer's directory that is locked, can't be read, or is of another size; and what is
found on a disk with bad places.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from forwarder.buffer.disk import reading
from forwarder.buffer.disk.format import RecordKind
from forwarder.core.errors import BufferFull, ConfigurationError
from forwarder.core.event import Lane
from forwarder.storage import failpoints
from forwarder.storage.directory import LockedDirectory
from tests.support.cases import cases
from tests.support.commands import forwarder
from tests.support.damage import PAGE, segments
from tests.support.disk import DiskRig

LANE: Final = Lane("phc_openingopening12")


def event(number: int, size: int = 2000) -> bytes:
    """Event number so and so."""
    return b'{"event":"%d","p":"%b"}' % (number, b"x" * size)


async def test_two_processes_on_one_directory(tmp_path: Path) -> None:
    """The second one ends at once with exit code 2, says who has it, and what to do."""
    lock = LockedDirectory.acquire(tmp_path / "worker-0", "buffer.path")
    try:
        env = {
            "FORWARDER_BUFFER__KIND": "disk",
            "FORWARDER_BUFFER__PATH": str(tmp_path),
            "FORWARDER_UPSTREAM__URL": "http://127.0.0.1:9",
            "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
            "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
            "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
        }
        second = await forwarder("run", env=env)
    finally:
        lock.release()
    assert second.code == 2
    said = " ".join((second.out + second.err).split())
    assert (
        f"buffer.path: {tmp_path}/worker-0 is in use by another forwarder (process {os.getpid()})"
        in said
    )
    assert "give this one a directory of its own with `buffer.path`" in said


def test_a_file_instead_of_the_log_folder_is_an_error(tmp_path: Path) -> None:
    """A file where the log's folder belongs: which one, and what to do."""
    (tmp_path / "worker-0").mkdir()
    (tmp_path / "worker-0" / "log").write_text("mine")
    with pytest.raises(
        ConfigurationError, match=r"buffer.path: .*/worker-0/log can't be read: Not a directory"
    ) as caught:
        DiskRig(tmp_path / "worker-0")
    assert (
        caught.value.hint == "Set `buffer.path` to a directory that this user may read and write."
    )
    assert (tmp_path / "worker-0" / "log").read_text() == "mine"


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of another user's: nothing is begun beside them."""
    rig = DiskRig(tmp_path / "worker-0")
    rig.put(LANE, event(1))
    rig.abandon()
    path = segments(rig.log_directory)[0].path

    def refuse(path: Path, *, read_only: bool) -> int:
        raise PermissionError(
            errno.EACCES, f"Permission denied{'' if read_only else '!'}", str(path)
        )

    with monkeypatch.context() as patched:
        patched.setattr(reading, "open_segment", refuse)
        with pytest.raises(ConfigurationError, match=f"{path} can't be read: Permission denied"):
            rig.open()
    rig.open()
    assert rig.events(LANE) == [event(1)]
    rig.abandon()


def test_a_bad_sector_costs_its_records_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector costs the records that it is in; all others are read page by page."""
    rig = DiskRig(tmp_path / "worker-0")
    for number in range(20):
        rig.put(LANE, event(number, 5000))
    rig.abandon()
    item = segments(rig.log_directory)[0].records(RecordKind.DATA)[7]
    bad = item.offset // PAGE * PAGE + PAGE
    read = os.pread

    def pread(fd: int, size: int, at: int) -> bytes:
        if at <= bad < at + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, size, at)

    monkeypatch.setattr(os, "pread", pread)
    with capture_logs() as logs:
        rig.open()
    assert [line["what"] for line in logs if line["log_level"] == "error" and "what" in line] == [
        "a record's body"
    ]
    assert any(line["event"] == "damaged bytes can't be copied to the quarantine" for line in logs)
    assert rig.events(LANE) == [event(number, 5000) for number in range(20) if number != 7]
    assert rig.dropped(LANE) == {"damaged": 1}
    rig.abandon()


@cases(("before", "after"), [(4 << 20, 1 << 20), (1 << 20, 4 << 20), (1 << 20, 512 << 10)])
def test_the_size_limit_may_change_between_starts(tmp_path: Path, before: int, after: int) -> None:
    """Lowered below what is there: nothing is lost, nothing is taken until there is room. Raised:
    more is taken. The files follow.
    """
    rig = DiskRig(tmp_path / "worker-0", max_bytes=before)
    sent = [event(number, 20_000) for number in range(before // 30_000)]
    for sent_event in sent:
        rig.put(LANE, sent_event)
    rig.close()
    changed = DiskRig(tmp_path / "worker-0", max_bytes=after)
    assert changed.events(LANE) == sent
    assert changed.open_events(LANE) == len(sent)
    if after < before:
        with pytest.raises(BufferFull):
            changed.put(LANE, event(10_000))
    else:
        changed.put(LANE, event(10_000))
        sent.append(event(10_000))
    while changed.buffer.count(LANE):
        changed.deliver(LANE)
    for number in range(50):
        changed.put(LANE, event(number, 20_000))
        changed.deliver(LANE)
    assert (
        sum(path.stat().st_size for path in changed.log_directory.iterdir())
        <= after + changed.buffer.log.size
    )
    assert {path.stat().st_size for path in changed.log_directory.iterdir()} == {
        changed.buffer.log.size
    }
    changed.close()
    with capture_logs() as logs:
        changed.open()
    assert [line for line in logs if line["log_level"] != "info"] == []
    assert changed.buffer.count(LANE) == changed.open_events(LANE) == 0
    changed.abandon()


@cases("deed", ["commit.begin=enospc@1", "checkpoint.written=enospc@1", "commit.synced=eio@1"])
def test_a_disk_that_refuses_at_the_start(tmp_path: Path, deed: str) -> None:
    """The first commit fails: what is there is available all the same, events are refused with the
    reason, and then taken by themselves.
    """
    rig = DiskRig(tmp_path / "worker-0")
    rig.put(LANE, event(1))
    last = segments(rig.log_directory)[0]
    last.flip(last.records()[-1].offset + 20)  # so that the log goes on in a new segment
    rig.abandon()
    try:
        failpoints.arm(deed)
        rig.open()
        assert rig.buffer.commits.refusing in ("No space left on device", "Input/output error")
        with pytest.raises(BufferFull, match="the disk refuses to write"):
            rig.put(LANE, event(2))
    finally:
        failpoints.arm("")
    rig.pump()
    assert rig.buffer.commits.refusing == ""
    rig.put(LANE, event(2))
    rig.crash()
    assert event(2) in rig.events(LANE)
    assert rig.buffer.count(LANE) == rig.open_events(LANE)
    rig.abandon()


def test_what_cannot_be_synced_at_the_start_replaces_no_older_file(tmp_path: Path) -> None:
    """The process is killed, and then the power fails, while the disk refuses to sync: the books
    are as they were when it last did, though all in that file was delivered.
    """
    rig = DiskRig(tmp_path / "worker-0")
    rig.put(LANE, event(1), event(2), event(3))
    rig.deliver(LANE)
    oldest = min(rig.log_directory.iterdir())
    durable = oldest.read_bytes()
    rig.disk.refuses = True
    rig.buffer.commits.begin()
    for _ in range(3):
        rig.committer.request()
        rig.committer.pump()
    rig.abandon()
    rig.open()
    for _ in range(6):  # each into a free file
        rig.committer.request()
        rig.committer.pump()
    rig.disk.refuses = False
    rig.abandon()
    written = oldest.read_bytes()
    rig.disk.crash(rig.log_directory)
    # of what was written last into this file a part has come to the disk by itself
    oldest.write_bytes(written[:512] + durable[512:])
    rig.open()
    assert rig.buffer.commits.books().lanes[LANE].delivered == 3
    assert rig.dropped(LANE) == {}
    rig.abandon()


def test_names_that_a_start_finds_are_durable_before_new_events_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that was killed between the name of a new file and its sync leaves a name that a
    loss of power takes away, with all that is written into the file later: a start syncs the names
    of files and directories, and events are refused as long as it can't.
    """
    rig = DiskRig(tmp_path / "worker-0")
    rig.abandon()
    synced: set[Path] = set()
    refuses = True

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if refuses and path.is_dir():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced.add(path)

    monkeypatch.setattr(os, "fsync", sync)
    rig.open()
    with pytest.raises(BufferFull, match="the disk refuses to write"):
        rig.put(LANE, event(1))
    refuses = False
    rig.pump()
    rig.put(LANE, event(1))
    assert synced >= {rig.log_directory, rig.directory, tmp_path}
    rig.abandon()


def test_files_that_could_not_be_synced_at_the_start_are_free_later(tmp_path: Path) -> None:
    """Once the disk syncs again, what was found is synced with the first group, and what is
    delivered of it is room for new events.
    """
    rig = DiskRig(tmp_path / "worker-0", max_bytes=256 << 10)
    for number in range(5):
        rig.put(LANE, event(number, 20_000))
    rig.deliver(LANE, 5)
    rig.abandon()
    rig.disk.refuses = True
    rig.open()
    assert rig.buffer.log.sync_found is not None
    rig.disk.refuses = False
    rig.pump()
    assert rig.buffer.log.sync_found is None
    for number in range(100):
        rig.put(LANE, event(number, 20_000))
        rig.deliver(LANE)
    rig.abandon()
