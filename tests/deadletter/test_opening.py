"""Opening the dead letters' file in whatever state it is: nothing is deleted, and what can be read
continues.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import Reason
from forwarder.deadletter import opening, schema
from forwarder.storage.directory import ASIDE, DEAD_LETTERS
from tests.deadletter.rig import LANE, StoreRig, event_letter, fill, letter, query, started

LETTERS = 200


async def filled(directory: Path) -> bytes:
    """A closed file with letters in it; its bytes."""
    async with started(directory) as rig:
        rig.store.add(
            [
                event_letter(b'{"n":%d,"pad":"%b"}' % (n, b"x" * 500), place=(1, n))
                for n in range(LETTERS - 50)
            ]
        )
        rig.store.add_at_receipt(
            [event_letter(b'{"n":%d}' % n, Reason.MISSING_EVENT) for n in range(50)]
        )
    return (directory / DEAD_LETTERS).read_bytes()


def moved(directory: Path) -> list[Path]:
    """The databases that lie aside."""
    return sorted((directory / ASIDE).glob("*.db"))


def opened(directory: Path) -> tuple[StoreRig, list[str]]:
    """A store opened there, and the errors that it logged."""
    with capture_logs() as logs:
        rig = StoreRig(directory)
    return rig, [str(line) for line in logs if line["log_level"] == "error"]


async def test_another_version_is_quarantined_whole(tmp_path: Path) -> None:
    """A file of a later version isn't touched: it is quarantined as it is,
    said, and a new one is begun.
    """
    await filled(tmp_path)
    query(tmp_path, "PRAGMA user_version = 7")
    before = (tmp_path / DEAD_LETTERS).read_bytes()
    rig, errors = opened(tmp_path)
    (aside,) = moved(tmp_path)
    assert aside.read_bytes() == before
    assert "version 7" in errors[0]
    assert str(aside) in errors[0]
    assert rig.store.statistics().quarantined == (aside,)
    assert rig.store.statistics().warnings == (
        f"a file of dead letters couldn't be read, and was quarantined as {aside}",
    )
    assert (rig.store.statistics().dead_letters, rig.store.statistics().failing) == (0, "")
    rig.store.close()


async def test_a_file_that_is_no_database_is_quarantined(tmp_path: Path) -> None:
    """A file that is something else altogether is kept, with what belonged to it, and nothing of
    it is believed.
    """
    (tmp_path / DEAD_LETTERS).write_bytes(b"not a database, but somebody's file\n" * 100)
    (tmp_path / f"{DEAD_LETTERS}-wal").write_bytes(b"something")
    rig, errors = opened(tmp_path)
    (aside,) = moved(tmp_path)
    assert aside.read_bytes().startswith(b"not a database, but")
    assert aside.with_name(f"{aside.name}-wal").read_bytes() == b"something"
    assert "not a database" in errors[0]
    rig.store.close()


async def test_letters_survive_a_garbled_page(tmp_path: Path) -> None:
    """Of a file with a page overwritten, the letters that can be read continue, under their
    numbers; how many, is said.
    """
    data = bytearray(await filled(tmp_path))
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = os.urandom(4096)
    (tmp_path / DEAD_LETTERS).write_bytes(data)
    rig, errors = opened(tmp_path)
    saved = rig.store.statistics().dead_letters
    assert LETTERS * 0.8 < saved < LETTERS
    assert f"'letters_saved': {saved}" in errors[0]
    (aside,) = moved(tmp_path)
    assert aside.read_bytes() == data
    rig.store.close()
    rows = query(tmp_path, "SELECT number, data FROM letters ORDER BY number")
    assert all(
        b'"n":%d' % ((number - 1) if number <= LETTERS - 50 else number - LETTERS + 49) in event
        for number, event in rows
    )


async def test_a_flipped_bit_in_an_event_is_not_passed_on(tmp_path: Path) -> None:
    """SQLite has no checksum over an event's bytes: the letter's own tells that they changed."""
    data = await filled(tmp_path)
    (tmp_path / DEAD_LETTERS).write_bytes(data.replace(b'{"n":70,', b'{"n":71,', 1))
    async with started(tmp_path) as rig:
        query(tmp_path, "UPDATE letters SET mark = 'replay' WHERE number IN (71, 72)")
        letters: list[tuple[int, bool]] = []
        rig.store.poll(
            10,
            lambda marked: letters.extend(
                (dead_letter.number, dead_letter.intact) for dead_letter in marked
            ),
        )
        await rig.commit()
        assert letters == [(71, False), (72, True)]


async def test_a_truncated_file(tmp_path: Path) -> None:
    """A file that was cut off is kept, and what is before the cut continues."""
    data = await filled(tmp_path)
    (tmp_path / DEAD_LETTERS).write_bytes(data[: len(data) // 2])
    rig, errors = opened(tmp_path)
    assert len(errors) == 1
    assert len(moved(tmp_path)) == 1
    assert rig.store.statistics().dead_letters < LETTERS
    rig.store.close()


async def test_two_files_quarantined_in_one_second(tmp_path: Path) -> None:
    """Each has a name of its own."""
    for _ in range(2):
        (tmp_path / DEAD_LETTERS).write_bytes(b"rubbish" * 1000)
        rig, _errors = opened(tmp_path)
        rig.store.close()
    assert len(moved(tmp_path)) == 2


async def test_the_instant_of_a_crash(tmp_path: Path) -> None:
    """The files as they are between two commits are read as if nothing had happened."""
    (tmp_path / "one").mkdir()
    async with started(tmp_path / "one") as rig:
        rig.store.add([event_letter(b"{}", place=(1, 0))])
        await rig.commit()
        shutil.copytree(tmp_path / "one", tmp_path / "two")
    rig, errors = opened(tmp_path / "two")
    assert (rig.store.statistics().dead_letters, errors) == (1, [])
    assert rig.store.accounts()[LANE].dead_lettered == {Reason.REFUSED: 1}
    rig.store.close()


async def test_a_read_only_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there counts in the books, letters find no room, and once the file can be written
    they do.
    """
    await filled(tmp_path)
    switch = [True]
    real = schema.open_writable

    def open_writable(path: Path, *, check: bool = False) -> sqlite3.Connection:
        if switch:
            raise OSError(30, "Read-only file system")
        return real(path, check=check)

    monkeypatch.setattr("forwarder.deadletter.schema.open_writable", open_writable)
    monkeypatch.setattr("forwarder.deadletter.opening.open_writable", open_writable)
    async with started(tmp_path) as rig:
        assert rig.store.statistics().failing == "Read-only file system"
        assert rig.store.accounts()[LANE].dead_lettered == {
            Reason.REFUSED: LETTERS - 50,
            Reason.MISSING_EVENT: 50,
        }
        assert "Read-only file system" in rig.store.statistics().warnings[0]
        assert not rig.store.add([letter()])
        assert rig.store.add_at_receipt([letter()]) == 1
        rig.store.forget([1])
        assert rig.store.accounts()[LANE].dead_lettered[Reason.REFUSED] == LETTERS - 51
        await rig.clock.advance(1)
        await rig.commit()
        assert rig.store.statistics().failing == "Read-only file system"
        switch.clear()
        await rig.clock.advance(1)
        await rig.commit()
        assert rig.store.statistics().failing == ""
        assert rig.store.statistics().dead_letters == LETTERS
        assert rig.store.add([letter()])


async def test_nothing_can_be_made(tmp_path: Path) -> None:
    """Where no file is and none can be made, the store is there all the same, and begins to write
    when it can.
    """
    directory = tmp_path / "missing"
    async with started(directory) as rig:
        assert "No such file" in rig.store.statistics().failing
        assert (rig.store.accounts(), rig.store.places()) == ({}, [])
        directory.mkdir()
        await rig.clock.advance(1)
        await rig.commit()
        assert rig.store.statistics().failing == ""
        assert rig.store.add([letter()])


async def test_the_log_beside_it_is_read_without_writing(tmp_path: Path) -> None:
    """Letters that are only in the write-ahead log are read by way of a copy, where nothing can be
    written beside the file.
    """
    (tmp_path / "one").mkdir()
    async with started(tmp_path / "one") as rig:
        rig.store.add([event_letter(b"{}")])
        await rig.commit()
        (tmp_path / "two").mkdir()
        for ending in ("", "-wal"):
            shutil.copy(tmp_path / "one" / (DEAD_LETTERS + ending), tmp_path / "two")
    connection = opening._copied(tmp_path / "two" / DEAD_LETTERS)
    assert connection.execute("SELECT data FROM letters").fetchall() == [(b"{}",)]
    connection.close()
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [
        DEAD_LETTERS,
        f"{DEAD_LETTERS}-wal",
    ]


async def test_an_emptied_file_is_reported(tmp_path: Path) -> None:
    """What it held can't be known, but that it was there can: log and status say so, once."""
    await filled(tmp_path)
    (tmp_path / DEAD_LETTERS).write_bytes(b"")
    rig, errors = opened(tmp_path)
    assert len(errors) == 1
    assert "is empty: what it held is gone" in errors[0]
    assert any("was empty at the start" in warning for warning in rig.store.statistics().warnings)
    rig.store.close()
    rig, errors = opened(tmp_path)
    assert (errors, rig.store.statistics().warnings) == ([], ())
    rig.store.close()


async def test_what_can_be_neither_read_nor_moved_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then forwarder doesn't start without its dead letters: it says which file it is."""
    (tmp_path / DEAD_LETTERS).write_bytes(b"rubbish" * 1000)
    (tmp_path / ASIDE).write_bytes(b"")
    with pytest.raises(ConfigurationError, match="can't be quarantined") as raised:
        StoreRig(tmp_path)
    assert raised.value.hint


async def test_an_unclean_file_is_copied_only_if_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full while a damaged file is replaced: it lies aside whole, and the new one
    is made when there is room.
    """
    (tmp_path / DEAD_LETTERS).write_bytes(b"rubbish" * 1000)

    def full(_damaged: Path, _fresh: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(opening, "_salvage", full)
    rig, _errors = opened(tmp_path)
    assert rig.store.statistics().failing == "database or disk is full"
    assert len(moved(tmp_path)) == 1
    rig.store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 768 KiB."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=768k", "tmpfs", tmp_path],
        check=False,
        capture_output=True,
    ).returncode:
        pytest.skip("only root may mount a file system")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("clean", [True, False])
async def test_a_disk_that_is_full_at_the_start(small_disk: Path, *, clean: bool) -> None:
    """What is there is read, also what is only in the write-ahead log; letters find room when the
    disk does.
    """
    await _some(small_disk, clean=clean)
    fill(small_disk / "filler")
    async with started(small_disk) as rig:
        assert rig.store.accounts()[LANE].dead_lettered == {Reason.REFUSED: 20}
        await rig.commit()
        (small_disk / "filler").unlink()
        await rig.clock.advance(1)
        await rig.commit()
        assert rig.store.statistics().failing == ""
        assert rig.store.add([letter()])


@pytest.mark.parametrize("clean", [True, False])
async def test_a_disk_that_is_mounted_read_only(small_disk: Path, *, clean: bool) -> None:
    """The same where nothing may be written at all, until it may."""
    await _some(small_disk, clean=clean)
    _remount(small_disk, "ro")
    try:
        async with started(small_disk) as rig:
            assert rig.store.statistics().failing
            assert rig.store.accounts()[LANE].dead_lettered == {Reason.REFUSED: 20}
            assert not rig.store.add([letter()])
            _remount(small_disk, "rw")
            await rig.clock.advance(1)
            await rig.commit()
            assert rig.store.statistics().failing == ""
            assert rig.store.add([letter()])
    finally:
        _remount(small_disk, "rw")


def _remount(directory: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", directory], check=True, capture_output=True)


async def _some(directory: Path, *, clean: bool) -> None:
    """Letters in a file that was closed, or that a process left as it died."""
    with tempfile.TemporaryDirectory() as place:
        async with started(Path(place)) as rig:
            rig.store.add([letter(place=(1, n)) for n in range(20)])
            await rig.commit()
            if not clean:
                _copy(Path(place), directory)
        if clean:
            _copy(Path(place), directory)


def _copy(source: Path, target: Path) -> None:
    for file in source.glob(f"{DEAD_LETTERS}*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, target)
