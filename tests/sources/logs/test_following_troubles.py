"""Following log files where something is in the way: what isn't a file, links, limits, errors of
disks, a store that can't be written.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from forwarder.core.patterns import LinearPattern
from forwarder.sources.logs.positions import PositionsDamaged, PositionStore, read_positions
from forwarder.sources.logs.splitting import Splitter
from tests.support.followed_logs import ROTATE_WAIT, FollowedLogs


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[FollowedLogs]:
    """A directory that is followed."""
    followed = FollowedLogs(tmp_path)
    yield followed
    followed.close()


def test_only_regular_files_are_opened(logs: FollowedLogs) -> None:
    """Directories, pipes, sockets and devices that match are never opened."""
    (logs.folder / "folder").mkdir()
    os.mkfifo(logs.folder / "pipe")
    (logs.folder / "device").symlink_to("/dev/zero")
    (logs.folder / "dangling").symlink_to("nowhere")
    (logs.folder / "loop").symlink_to("loop")
    logs.write("app.log", "one\n")
    assert logs.read() == ["one"]
    assert logs.follower.statistics().followed == 1


def test_several_names_of_one_file(tmp_path: Path) -> None:
    """Links, hard or symbolic, are one file, which is followed where it really is, and whose link
    may lead to another one later.
    """
    logs = FollowedLogs(tmp_path, "*.log", "links/*")
    (logs.folder / "links").mkdir()
    pod = tmp_path / "pods"
    pod.mkdir()
    (pod / "0").write_text("one\n")
    (logs.folder / "links" / "a").symlink_to(pod / "0")
    (logs.folder / "links" / "b").symlink_to(pod / "0")
    (logs.folder / "c.log").hardlink_to(pod / "0")
    assert logs.read() == ["one"]
    assert str(pod) in logs.follower.directories()
    with (pod / "0").open("a") as file:
        file.write("two\n")
    (logs.folder / "c.log").unlink()
    assert logs.read() == ["two"]
    (pod / "0").rename(pod / "0.old")
    (pod / "0").write_text("three\n")
    with (pod / "0.old").open("a") as file:
        file.write("late\n")
    assert sorted(logs.read([str(pod / "0")])) == ["late", "three"]
    logs.close()


def test_changes_of_a_linked_file(tmp_path: Path) -> None:
    """A change is reported for the place that the link leads to."""
    logs = FollowedLogs(tmp_path)
    target = tmp_path / "target"
    target.write_text("one\n")
    (logs.folder / "link").symlink_to(target)
    assert logs.read() == ["one"]
    with target.open("a") as file:
        file.write("two\n")
    assert logs.read([str(target)]) == ["two"]
    logs.close()


def test_globs_and_exclusions(tmp_path: Path) -> None:
    """Any number of directories is `**`; hidden files, and what is excluded by
    name or path, don't match.
    """
    logs = FollowedLogs(tmp_path, "**/*.log", exclude=("debug*", f"{tmp_path}/log/old/**"))
    for name in (
        "a.log",
        "x/b.log",
        "x/y/c.log",
        "x/debug.log",
        "old/x/d.log",
        ".hidden.log",
        ".git/e.log",
        "f.txt",
    ):
        (logs.folder / name).parent.mkdir(parents=True, exist_ok=True)
        logs.write(name, f"{name}\n")
    assert sorted(logs.read()) == ["a.log", "x/b.log", "x/y/c.log"]
    logs.close()


@pytest.mark.parametrize("changed", ["excluded", "narrowed"])
def test_a_file_that_the_configuration_does_not_name_any_more(tmp_path: Path, changed: str) -> None:
    """It isn't read any more, though it grows where it was; named again, it is read on."""
    logs = FollowedLogs(tmp_path, "*.log")
    logs.write("app.log", "one\n")
    logs.write("other.log", "two\n")
    assert sorted(logs.read()) == ["one", "two"]
    logs.settle()
    before = logs.policy
    logs.policy = (
        replace(before, exclude=("app*",))
        if changed == "excluded"
        else replace(before, paths=(f"{logs.folder}/other*",))
    )
    for _ in range(2):
        logs.kill_and_restart()
        logs.write("app.log", "three\n")
        assert logs.read() + logs.read_after(ROTATE_WAIT) == []
        assert logs.follower.statistics().followed == 1
    logs.policy = before
    logs.kill_and_restart()
    assert logs.read() == ["three", "three"]
    logs.close()


def test_a_renamed_file_that_does_not_match_is_found_after_a_kill(tmp_path: Path) -> None:
    """It was outside of the glob before, and isn't read to its end."""
    logs = FollowedLogs(tmp_path, "*.log")
    logs.write("app.log", "one\n")
    logs.read()
    logs.settle()
    (logs.folder / "app.log").rename(logs.folder / "app.old")
    assert logs.read() == []
    logs.settle()
    logs.write("app.old", "two\n")
    logs.kill_and_restart()
    assert logs.read() == ["two"]
    logs.close()


def test_a_file_that_is_removed_while_it_is_unread(logs: FollowedLogs) -> None:
    """What an open file has is read, its last line too, although it has no end."""
    path = logs.write("app.log", "one\n")
    logs.read()
    logs.write("app.log", "two\nthree")
    path.unlink()
    assert logs.read() == ["two"]
    assert logs.read_after(ROTATE_WAIT) == ["three"]
    logs.settle()
    logs.read()
    state = logs.follower.statistics()
    assert (state.followed, state.state) == (0, "waiting")
    assert state.why == f"no file matches {logs.folder}/*"


def test_a_file_without_a_complete_line_that_is_removed(logs: FollowedLogs) -> None:
    """It is read as it is, when nothing more has come for a while."""
    path = logs.write("app.log", "unfinished")
    assert logs.read() == []
    path.unlink()
    assert logs.read() == []
    assert logs.read_after(ROTATE_WAIT) == ["unfinished"]


def test_a_file_that_is_removed_before_it_was_read(logs: FollowedLogs) -> None:
    """That is logged, with what to do."""
    path = logs.write("app.log", "one\n")
    logs.read()
    logs.follower._close(next(iter(logs.follower._open_files)))
    logs.write("app.log", "two\n")
    logs.follower.look(None)
    path.unlink()
    with capture_logs() as logged:
        assert logs.read() == []
    assert [(entry["log_level"], entry["path"], entry["bytes"]) for entry in logged] == [
        ("warning", str(path), 4)
    ]
    assert "hint" in logged[0]


def test_a_file_that_replaces_another(logs: FollowedLogs) -> None:
    """A new file that is renamed over it is another content; the rest of the old one
    is read first.
    """
    logs.write("app.log", "one\n")
    logs.read()
    logs.write("app.log", "two\n")
    logs.write("new", "three\n").rename(logs.folder / "app.log")
    assert sorted(logs.read()) == ["three", "two"]


def test_a_directory_that_vanishes(tmp_path: Path) -> None:
    """Its open files are read to their ends; it may come again."""
    logs = FollowedLogs(tmp_path, "sub/*")
    (logs.folder / "sub").mkdir()
    path = logs.write("sub/app.log", "one\n")
    logs.read()
    logs.write("sub/app.log", "two\n")
    path.unlink()
    path.parent.rmdir()
    assert logs.read() == ["two"]
    path.parent.mkdir()
    logs.write("sub/app.log", "three\n")
    assert logs.read() == ["three"]
    logs.close()


def test_a_file_that_may_not_be_read(logs: FollowedLogs) -> None:
    """It is logged once with its path and what to do, retried, and read when that is possible;
    others are read meanwhile.
    """
    path = logs.write("secret.log", "one\n")
    logs.write("app.log", "two\n")
    denied = _failing_open(path, errno.EACCES)
    with capture_logs() as logged:
        assert logs.read() + logs.read() == ["two"]
    assert [
        (entry["log_level"], entry["path"] == str(path), "group" in entry["hint"])
        for entry in logged
    ] == [("error", True, True)]
    assert "Permission denied" in logs.follower.statistics().why
    denied.undo()
    assert logs.read() == ["one"]
    assert logs.follower.statistics().why == ""


@pytest.mark.parametrize("text", ["", "unfinished", "one\n", "one\nunfinished"])
@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_file_that_can_be_read_again(logs: FollowedLogs, call: str, text: str) -> None:
    """The reason is gone by the next look, whether there is a whole line by then or not."""
    path = logs.write("app.log", text)
    logs.read()
    for file in list(logs.follower._open_files):
        logs.follower._close(file)
    logs.write("app.log", "more")
    failing = _failing_open(path, errno.EACCES) if call == "open" else _failing_reads()
    try:
        with capture_logs() as logged:
            assert logs.read() + logs.read() == []
    finally:
        failing.undo()
    assert len(logged) == 1
    assert logs.follower.statistics().unreadable == 1
    logs.read()
    state = logs.follower.statistics()
    assert (state.unreadable, state.why) == (0, "")


def test_a_file_that_was_only_touched(logs: FollowedLogs) -> None:
    """It is opened again, and has nothing more to be read: the reason is gone."""
    path = logs.write("app.log", "one\n")
    assert logs.read() == ["one"]
    logs.follower._close(next(iter(logs.follower._open_files)))
    os.utime(path, (1, 1))
    denied = _failing_open(path, errno.EACCES)
    try:
        assert logs.read() == []
    finally:
        denied.undo()
    assert logs.follower.statistics().unreadable == 1
    assert logs.read() == []
    assert logs.follower.statistics().unreadable == 0


def test_many_files_that_may_not_be_read(logs: FollowedLogs) -> None:
    """They aren't logged one by one."""
    for number in range(50):
        logs.write(f"{number}.log", f"line of {number}\n")
    with pytest.MonkeyPatch.context() as patch:

        def fail(name: str, *_args: int) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

        patch.setattr(os, "open", fail)
        with capture_logs() as logged:
            assert logs.read() + logs.read() == []
    assert len(logged) == 21
    assert len(logs.read()) == 50


def _failing_open(path: Path, code: int) -> pytest.MonkeyPatch:
    """Let opening this file fail."""
    real = os.open

    def opened(name: str, *args: int, **more: int) -> int:
        if name == str(path):
            raise OSError(code, os.strerror(code), name)
        return real(name, *args, **more)

    patch = pytest.MonkeyPatch()
    patch.setattr(os, "open", opened)
    return patch


def _failing_reads(behind: int = 0) -> pytest.MonkeyPatch:
    """Let reading any file fail from this offset on, but for its first bytes: it can be opened."""
    real = os.pread

    def fail(descriptor: int, size: int, offset: int) -> bytes:
        if size > 4 and offset >= behind:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, size, offset)

    patch = pytest.MonkeyPatch()
    patch.setattr(os, "pread", fail)
    return patch


@pytest.mark.parametrize("known", [True, False])
def test_a_disk_error(logs: FollowedLogs, *, known: bool) -> None:
    """It is logged once, reading is retried, and nothing is skipped, whether the file was
    recognized before or not.
    """
    path = logs.write("app.log", "one\ntwo\n")
    if known:
        logs.follower.look(None)
    failing = _failing_reads()
    try:
        with capture_logs() as logged:
            assert logs.read() + logs.read() == []
    finally:
        failing.undo()
    assert [(entry["event"], entry["path"], entry["why"]) for entry in logged] == [
        ("logs: a file can't be read", str(path), "Input/output error")
    ]
    assert logs.read() == ["one", "two"]


@pytest.mark.parametrize("stored", [True, False])
def test_a_disk_error_behind_the_first_line(logs: FollowedLogs, *, stored: bool) -> None:
    """A file keeps its identity where its position can't be checked: what is settled
    isn't read again, and a new file is read whole.
    """
    logs.write("app.log", "one\n" * 2000)
    if stored:
        assert len(logs.read()) == 2000
        logs.settle()
        logs.kill_and_restart()
    logs.write("app.log", "two\n")
    failing = _failing_reads(behind=5000)
    try:
        assert logs.read() + logs.read() == []
    finally:
        failing.undo()
    assert logs.read() == ([] if stored else ["one"] * 2000) + ["two"]
    logs.settle()
    logs.kill_and_restart()
    assert logs.read() == []


def test_a_directory_that_cannot_be_listed(logs: FollowedLogs) -> None:
    """Its files aren't gone by that: it isn't known."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.follower._close(next(iter(logs.follower._open_files)))
    real = os.scandir
    with pytest.MonkeyPatch.context() as patch:

        def fail(path: str) -> Iterator[os.DirEntry[str]]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        patch.setattr(os, "scandir", fail)
        with capture_logs() as logged:
            assert logs.read() + logs.read() == []
        assert len(logged) == 1
        assert logs.follower.statistics().followed == 1
        patch.setattr(os, "scandir", real)
        logs.write("app.log", "two\n")
        assert logs.read() == ["two"]
    assert logs.follower.statistics().why == ""


def test_a_store_that_cannot_be_written(logs: FollowedLogs) -> None:
    """Positions stay in memory and are stored later; files whose identity is stored are read
    meanwhile, new ones after that.
    """
    logs.write("app.log", "one\n")
    logs.read()
    logs.settle()
    real = logs.store.save
    with pytest.MonkeyPatch.context() as patch:

        def fail(*_args: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        patch.setattr(logs.store, "save", fail)
        logs.write("app.log", "two\n")
        logs.write("other.log", "three\n")
        with capture_logs() as logged:
            assert logs.read() + logs.read() == ["two"]
            logs.settle()
            logs.settle()
        assert [entry["log_level"] for entry in logged] == ["error"]
        assert "hint" in logged[0]
        state = logs.follower.statistics()
        assert (state.state, state.hint != "") == ("down", True)
        assert state.why.startswith("positions can't be stored: ")
        assert "disk is full" in state.why
        patch.setattr(logs.store, "save", real)
    assert logs.read() == ["three"]
    logs.settle()
    statistics = logs.follower.statistics()
    assert (statistics.state, statistics.why) == ("reading", "")
    assert statistics.commits["failed"] > 0
    logs.kill_and_restart()
    assert logs.read() == []


def test_a_kill_while_the_store_cannot_be_written(logs: FollowedLogs) -> None:
    """What isn't stored is read again, under the same identity."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.settle()
    logs.write("app.log", "two\n")
    with pytest.MonkeyPatch.context() as patch:

        def fail(*_args: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        patch.setattr(logs.store, "save", fail)
        assert logs.read() == ["two"]
        logs.settle()
    logs.kill_and_restart()
    assert logs.read() == ["two"]
    assert len(logs.lines) == 2


def test_times_that_cannot_be_stored(tmp_path: Path) -> None:
    """Nothing is handed over or read before the times are stored: after a kill, what was handed
    over has the same times.
    """
    logs = FollowedLogs(tmp_path, stores_times=True)
    logs.write("app.log", "one\n")
    assert logs.read() == ["one"]
    logs.settle()
    real = logs.store.save
    with pytest.MonkeyPatch.context() as patch:

        def fail(*_args: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        patch.setattr(logs.store, "save", fail)
        logs.write("app.log", "two\n")
        assert logs.read() == []
        read = logs.follower.statistics().bytes
        logs.write("app.log", "three\n")
        assert logs.read_after(10) == []
        assert logs.follower.statistics().bytes == read
        patch.setattr(logs.store, "save", real)
        logs.passed += 10
        assert logs.read() == ["two", "three"]
    times = [block.at for block in logs.blocks]
    assert times[1] == times[0] + 20
    logs.kill_and_restart()
    logs.passed += 10
    assert logs.read() == ["two", "three"]
    assert [block.at for block in logs.blocks] == times
    logs.close()


def test_a_damaged_store(tmp_path: Path) -> None:
    """Anyone who only reads it gets an error with the file's name and what happens next."""
    path = tmp_path / "logs.db"
    PositionStore(path).close()
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xff" * (len(data) - 100))
    with pytest.raises(PositionsDamaged, match=re.escape(str(path))) as raised:
        read_positions(path)
    assert "quarantines" in raised.value.hint
    path.write_text("not a database at all, but long enough to look like one" * 10)
    with pytest.raises(PositionsDamaged, match="damaged"):
        read_positions(path)


def test_few_descriptors(tmp_path: Path) -> None:
    """At most `max_open_files` are open, all are read in turn, and their ends are noticed."""
    logs = FollowedLogs(tmp_path, max_open_files=3)
    for number in range(40):
        logs.write(f"{number}.log", f"first of {number}\n")
    assert len(logs.read()) == 40
    for number in range(40):
        logs.write(f"{number}.log", "".join(f"line {line} of {number}\n" for line in range(50)))
    assert len(logs.read()) == 2000
    assert logs.follower.statistics().open == 3
    for path in logs.folder.iterdir():
        path.unlink()
    logs.settle()
    assert logs.read() + logs.read_after(ROTATE_WAIT) == []
    assert (logs.follower.statistics().followed, logs.follower.statistics().open) == (0, 0)
    logs.close()


def test_each_file_has_its_turn(logs: FollowedLogs) -> None:
    """A large file doesn't keep others waiting."""
    logs.write(
        "large.log", "".join(f"a line of the large file, {number}\n" for number in range(50_000))
    )
    logs.write("small.log", "small\n")
    logs.follower.look(None)
    blocks = logs.follower.read(600_000)
    assert [Path(block.file.path).name for block in blocks].index("small.log") <= 1


def test_reading_from_the_end(tmp_path: Path) -> None:
    """Of files that are there when the source is started for the first time; not of later ones,
    nor after a restart.
    """
    logs = FollowedLogs(tmp_path, from_end=True)
    logs.write("app.log", "old\nold, too\nbeg")
    assert logs.read() == []
    logs.write("app.log", "un\nnew\n")
    logs.write("later.log", "from its beginning\n")
    assert sorted(logs.read()) == ["begun", "from its beginning", "new"]
    logs.kill_and_restart()
    logs.write("app.log", "newer\n")
    logs.write("latest.log", "all\n")
    assert sorted(logs.read()) == ["all", "begun", "from its beginning", "new", "newer"]
    logs.close()


@pytest.mark.parametrize("max_wait", [5.0, 3600.0])
def test_records_of_several_lines(tmp_path: Path, max_wait: float) -> None:
    """One that waits for more is whole when it has waited long enough, though its file was closed
    in between, and not before.
    """
    logs = FollowedLogs(
        tmp_path,
        max_open_files=1,
        split=lambda offset: Splitter(offset, 1000, LinearPattern(rb"^start"), max_wait),
    )
    names = "abcd"
    for name in names:
        logs.write(f"{name}.log", f"start {name}\n more\n")
    assert logs.read() == logs.read_after(max_wait - 1) == []
    assert sorted(logs.read_after(2)) == [f"start {name}\n more" for name in names]
    logs.settle()
    logs.kill_and_restart()
    assert logs.read() == []
    logs.close()


def test_a_record_that_is_overdue_while_the_disk_fails_is_read_again(tmp_path: Path) -> None:
    """It was released, and its block couldn't be made: no later block covers its place."""
    logs = FollowedLogs(
        tmp_path, split=lambda offset: Splitter(offset, 1000, LinearPattern(rb"^start"))
    )
    logs.write("app.log", "start a\n more\n" + "x" * 600)
    assert logs.read() == []
    logs.passed += 6
    failing = _failing_reads()
    try:
        logs.follower.look(None)
    finally:
        failing.undo()
    assert "Input/output error" in logs.follower.statistics().why
    logs.write("app.log", "\nstart b\n")
    assert "".join(logs.read() + logs.read_after(6)).startswith("start a\n more")
    assert logs.follower.statistics().why == ""
    logs.close()


def test_times_of_large_files_are_kept(tmp_path: Path) -> None:
    """After a kill a file is read in other parts than before; each of its lines keeps the time of
    its first reading.
    """
    logs = FollowedLogs(tmp_path, stores_times=True)
    logs.write("app.log", "".join(f"line {number:0700}\n" for number in range(1500)))
    logs.follower.look(None)
    times: dict[bytes, float] = {}
    while blocks := logs.follower.read(1):
        logs.passed += 1
        logs.blocks += blocks
        times |= {line: block.at for block in blocks for line in block.records.values}
    assert len(times) == 1500
    assert len(set(times.values())) == len(logs.blocks) > 3
    del logs.blocks[1:]
    for _ in range(2):
        logs.settle()
        logs.kill_and_restart()
        logs.passed += 100
        logs.read()
        again = {line: block.at for block in logs.blocks for line in block.records.values}
        assert 0 < len(again) < 1500
        assert again == {line: times[line] for line in again}
        del logs.blocks[1:]
    logs.close()


def test_times_are_kept(tmp_path: Path) -> None:
    """What is read again after a kill, or because it couldn't be kept, has the
    time of its first reading.
    """
    logs = FollowedLogs(tmp_path, stores_times=True)
    logs.write("app.log", "one\ntwo\n")
    logs.read()
    first = logs.blocks[0].at
    logs.passed += 10
    logs.write("app.log", "three\n")
    logs.read()
    second = logs.blocks[1].at
    assert second == first + 10
    logs.passed += 10
    logs.kill_and_restart()
    logs.write("app.log", "four\n")
    assert logs.read() == ["one", "two", "three", "four"]
    assert [(block.at, list(block.records.values)) for block in logs.blocks] == [
        (first, [b"one", b"two"]),
        (second, [b"three"]),
        (first + 20, [b"four"]),
    ]
    logs.passed += 10
    logs.follower.rewind(logs.blocks[1])
    logs.blocks = logs.blocks[:1]
    assert logs.read() == ["three", "four"]
    assert [block.at for block in logs.blocks] == [first, second, first + 20]
    identity = logs.blocks[0].file.identity
    assert len(logs.store.times("logs", identity, 0)) == 3
    logs.settle()
    assert logs.store.times("logs", identity, 0) == []
    logs.close()


def test_rows_of_old_files_are_forgotten(logs: FollowedLogs) -> None:
    """Thirty days after the file was there last; those of files that are there stay."""
    path = logs.write("gone.log", "one\n")
    logs.write("app.log", "two\n")
    logs.read()
    logs.settle()
    path.unlink()
    for _ in range(3):
        logs.read_after(ROTATE_WAIT)
        logs.settle()
    for _ in range(31):
        logs.read_after(86400)
        logs.settle()
    assert [row.path for row in logs.store.present("logs")] == [str(logs.folder / "app.log")]
    assert len(logs.store._all("SELECT 1 FROM positions")) == 1
    logs.kill_and_restart()
    assert logs.read() == []


def test_a_lost_end_after_a_loss_of_power(logs: FollowedLogs) -> None:
    """A file that is a little shorter than it was, but not before the position, is resumed."""
    logs.write("app.log", "one\ntwo\n")
    logs.read()
    logs.settle()
    logs.write("app.log", "three\nfour\n")
    logs.read()
    logs.follower._recognition.mark(logs.blocks[0].file)
    logs.follower.save()
    logs.kill_and_restart()
    os.truncate(logs.folder / "app.log", len("one\ntwo\nthree\n"))
    assert logs.read() == ["three"]
    assert {identity for identity, _, _ in logs.lines} == {next(iter(logs.lines))[0]}


def test_statistics(logs: FollowedLogs) -> None:
    """Each file's position, lag, and its last line without what a terminal would obey."""
    logs.write("app.log", "one\n\x1b[31mtwo\n")
    logs.read()
    statistics = logs.follower.statistics()
    (file,) = statistics.files
    assert (file.path, file.position, file.size, file.lag, file.open) == (
        str(logs.folder / "app.log"),
        0,
        13,
        13,
        True,
    )
    assert "\x1b" not in file.last_line
    assert (
        statistics.followed,
        statistics.open,
        statistics.lag,
        statistics.bytes,
    ) == (1, 1, 13, 13)
    logs.settle()
    assert (logs.follower.statistics().lag, logs.follower.statistics().files[0].position) == (0, 13)
