"""Following log files that grow, appear, are removed, and are rotated by renaming, by copying and
truncating, or by compressing. What goes wrong meanwhile: `test_following_troubles.py`.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.followed_logs import COMPRESSIONS, ROTATE_WAIT, FollowedLogs


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[FollowedLogs]:
    """A directory of which all files are followed."""
    followed = FollowedLogs(tmp_path)
    yield followed
    followed.close()


def test_appended_line_is_read_once_it_is_complete(logs: FollowedLogs) -> None:
    """It isn't read again, also not after it was settled and the follower was killed."""
    path = logs.write("app.log", "one\ntwo\nthr")
    assert logs.read() == ["one", "two"]
    logs.write("app.log", "ee\n")
    assert logs.read(changed=[str(path)]) == ["three"]
    assert logs.read() == []
    logs.settle()
    logs.kill_and_restart()
    assert logs.read() == []
    logs.write("app.log", "four\n")
    assert logs.read() == ["four"]


def test_directories_are_scanned_only_for_changes_that_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renamed file, a new one and a new directory do; a file that grows, and
    those that don't match, don't.
    """
    logs = FollowedLogs(tmp_path, "**/*.log", exclude=("debug*",))
    path = logs.write("app.log", "one\n")
    logs.read()
    scans = Mock(wraps=logs.follower._discovery.scan)
    monkeypatch.setattr(logs.follower._discovery, "scan", scans)
    others = [
        str(logs.write("other.txt", "x")),
        str(logs.write("debug.log", "x\n")),
        str(logs.folder / "gone.tmp"),
    ]
    logs.write("app.log", "two\n")
    assert logs.read(changed=[*others, str(path)]) == ["two"]
    assert scans.call_count == 0
    path.rename(logs.folder / "app.old")
    logs.write("app.old", "three\n")
    assert logs.read(changed=[str(logs.folder / "app.old"), str(path)]) == ["three"]
    assert scans.call_count == 1
    new = logs.write("new.log", "four\n")
    assert logs.read(changed=[str(new)]) == ["four"]
    assert scans.call_count == 2
    (logs.folder / "sub").mkdir()
    logs.write("sub/app.log", "five\n")
    assert logs.read(changed=[str(logs.folder / "sub")]) == ["five"]
    assert scans.call_count == 3
    logs.close()


def test_unsettled_lines_are_read_again_after_a_kill(logs: FollowedLogs) -> None:
    """They have the same identity, generation and offsets as before."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.settle()
    logs.write("app.log", "two\nthree\n")
    assert logs.read() == ["two", "three"]
    logs.kill_and_restart()
    assert logs.read() == ["two", "three"]
    assert len(logs.lines) == 3


def test_renamed_file_and_its_successor_are_both_read(logs: FollowedLogs) -> None:
    """What is appended to either of them after the rename is read, too."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.write("app.log", "two\n")
    (logs.folder / "app.log").rename(logs.folder / "app.log.1")
    logs.write("app.log", "three\n")
    assert sorted(logs.read()) == ["three", "two"]
    logs.write("app.log.1", "late\n")
    assert logs.read() == ["late"]
    assert logs.follower.statistics().rotations == {"rename": 1}


def test_file_renamed_while_down_is_resumed(logs: FollowedLogs) -> None:
    """Its unread lines and those of the new file at its path are read."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.settle()
    logs.kill_and_restart()
    logs.write("app.log", "two\n")
    (logs.folder / "app.log").rename(logs.folder / "app.log.1")
    logs.write("app.log", "three\n")
    assert sorted(logs.read()) == ["three", "two"]


def test_file_renamed_out_of_the_glob_is_read_to_its_end(tmp_path: Path) -> None:
    """Its unfinished last line is read after `rotate_wait` without a change; the file is closed
    once that is settled.
    """
    logs = FollowedLogs(tmp_path, "*.log")
    logs.write("app.log", "one\ntw")
    logs.read()
    (logs.folder / "app.log").rename(logs.folder / "app.old")
    logs.write("app.old", "o\nthree\nfo")
    assert logs.read() == ["two", "three"]
    assert logs.read_after(ROTATE_WAIT - 1) == []
    logs.write("app.old", "ur")
    assert logs.read() == []
    assert logs.read_after(ROTATE_WAIT - 1) == []
    assert logs.read_after(1) == ["four"]
    assert logs.follower.statistics().open == 1
    logs.settle()
    logs.read()
    statistics = logs.follower.statistics()
    assert (statistics.open, statistics.followed) == (0, 0)
    logs.close()


@pytest.mark.parametrize("settled", [True, False])
def test_file_renamed_out_of_the_glob_while_down_is_resumed(tmp_path: Path, settled: bool) -> None:
    """It is found in its directory; what wasn't settled is read again."""
    logs = FollowedLogs(tmp_path, "*.log")
    logs.write("app.log", "one\n")
    logs.read()
    if settled:
        logs.settle()
    logs.kill_and_restart()
    logs.write("app.log", "two\n")
    (logs.folder / "app.log").rename(logs.folder / "app.old")
    logs.write("app.log", "three\n")
    assert sorted(logs.read()) == (["three", "two"] if settled else ["one", "three", "two"])
    logs.close()


def test_no_line_is_read_again_from_a_copy_before_truncation(logs: FollowedLogs) -> None:
    """The copy is looked at before the original is truncated; what is written to the original
    afterwards is a new content.
    """
    logs.write("app.log", "one\n")
    assert logs.read() == ["one"]
    logs.write("app.log", "two\n")
    shutil.copy(logs.folder / "app.log", logs.folder / "app.log.1")
    assert logs.read() == ["two"]
    (logs.folder / "app.log").write_text("")
    assert logs.read() == []
    logs.write("app.log", "three\n")
    assert logs.read() == ["three"]
    assert logs.read_after(ROTATE_WAIT * 2) == []
    assert logs.follower.statistics().rotations == {"truncate": 1}
    assert len({line.identity for line in logs.lines}) == 2


def test_hole_before_the_next_line_after_truncation_is_skipped(logs: FollowedLogs) -> None:
    """A writer that doesn't append writes at its old offset, behind a hole of NULs. Two
    files that begin with such a hole are different files.
    """
    for name in ("a.log", "b.log"):
        with (logs.folder / name).open("wb", buffering=0) as writer:  # like `app > a.log`
            writer.write(b"%b one\n" % name.encode() * 20_000)
            logs.read()
            shutil.copy(logs.folder / name, logs.folder / f"{name}.1")
            os.truncate(logs.folder / name, 0)
            writer.write(b"%b two\n" % name.encode())
            assert logs.read() == [f"{name} two"]
            writer.write(b"%b three\n" % name.encode())
            assert logs.read() == [f"{name} three"]


def test_unread_lines_are_read_from_the_copy_after_truncation(logs: FollowedLogs) -> None:
    """They have the offsets that they had in the original."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.write("app.log", "two\n")
    logs.copy_truncate("app.log", "app.log.1")
    logs.write("app.log", "three\n")
    assert sorted(logs.read()) == ["three", "two"]
    assert {(key.offset, line) for key, line in logs.lines.items()} == {
        (0, "one"),
        (4, "two"),
        (0, "three"),
    }


@pytest.mark.parametrize("settled", [True, False])
def test_copy_made_while_down_is_resumed(logs: FollowedLogs, settled: bool) -> None:
    """The truncated original is read from its beginning."""
    logs.write("app.log", "one\n")
    logs.read()
    if settled:
        logs.settle()
    logs.kill_and_restart()
    logs.write("app.log", "two\n")
    logs.copy_truncate("app.log", "app.log.1")
    logs.write("app.log", "three, which is longer than all that was there before\n")
    assert sorted(logs.read()) == (
        ["three, which is longer than all that was there before", "two"]
        if settled
        else sorted(["one", "two", "three, which is longer than all that was there before"])
    )
    logs.settle()
    logs.kill_and_restart()
    assert logs.read() == []


def test_file_rewritten_beyond_the_offset_is_read_from_its_beginning(logs: FollowedLogs) -> None:
    """The bytes before the offset show that it was truncated, though it isn't shorter than before.
    Since the first line is the same, it keeps its identity and gets another generation.
    """
    logs.write("app.log", "start\none\n")
    logs.read()
    logs.write("app.log", "start\ntwo\nthree\n", mode="w")
    # The first call finds out that it was rewritten, the second one reads it.
    assert logs.read() + logs.read() == ["start", "two", "three"]
    assert {line.generation for line in logs.lines} == {0, 1}
    assert len({line.identity for line in logs.lines}) == 1


def test_file_rewritten_with_the_same_size_is_read_from_its_beginning(logs: FollowedLogs) -> None:
    """The time of its last change shows that it was written."""
    logs.write("app.log", "one\n")
    logs.read()
    path = logs.write("app.log", "two\n", mode="w")
    os.utime(path, ns=(1, 1))
    assert logs.read() + logs.read() == ["two"]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("down", [True, False])
def test_compressed_file_is_resumed_at_the_position_of_its_original(
    logs: FollowedLogs, suffix: str, down: bool
) -> None:
    """Also if it was compressed while the forwarder was down. Renaming it
    afterwards makes no difference.
    """
    path = logs.write("app.log.1", "one\n")
    logs.read()
    logs.settle()
    if down:
        logs.kill_and_restart()
    logs.write("app.log.1", "two\nthree")
    compressed = path.with_name(f"app.log.1.{suffix}")
    compressed.write_bytes(COMPRESSIONS[suffix](b"one\ntwo\nthree"))
    path.unlink()
    assert logs.read() + logs.read_after(ROTATE_WAIT) == ["two", "three"]
    logs.settle()
    logs.kill_and_restart()
    assert logs.read() == []
    compressed.rename(logs.folder / f"app.log.2.{suffix}")
    assert logs.read() == []


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_file_is_read_again_after_kills_until_it_is_settled(
    logs: FollowedLogs, suffix: str
) -> None:
    """That it was read to its end isn't stored as long as it isn't settled."""
    path = logs.folder / f"app.log.1.{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](b"one\ntwo\n"))
    for _ in range(2):
        assert logs.read() == ["one", "two"]
        logs.follower.save()
        logs.kill_and_restart()
    assert logs.read() == ["one", "two"]
    logs.settle()
    logs.kill_and_restart()
    assert logs.read() == []
    assert logs.read_after(ROTATE_WAIT) == []


@pytest.mark.parametrize("half", ["", "thr"])
@pytest.mark.parametrize("state", ["unsettled", "settled", "restarted"])
def test_no_line_is_read_again_from_a_copy_that_lacks_the_last_ones(
    logs: FollowedLogs, half: str, state: str
) -> None:
    """A program may write between the copy and the truncation. Those lines were read from the
    original; the copy has nothing new, and neither has its compressed file.
    """
    path = logs.write("app.log", f"one\ntwo\n{half}")
    copy = logs.folder / "app.log.1"
    assert logs.read() == ["one", "two"]
    shutil.copy(path, copy)
    logs.write("app.log", f"{'three'.removeprefix(half)}\nfour\n")
    assert logs.read() == ["three", "four"]
    os.truncate(path, 0)
    logs.write("app.log", "five\n")
    assert logs.read() + logs.read() + logs.read_after(ROTATE_WAIT) == ["five"]
    if state != "unsettled":
        logs.settle()
    if state == "restarted":
        logs.kill_and_restart()
    compressed = logs.folder / "app.log.1.gz"
    compressed.write_bytes(gzip.compress(copy.read_bytes()))
    copy.unlink()
    assert logs.read() + logs.read_after(ROTATE_WAIT) == []
    compressed.rename(logs.folder / "app.log.2.gz")
    assert logs.read() + logs.read_after(ROTATE_WAIT) == []


def test_compressed_copy_is_recognized_by_an_earlier_position(logs: FollowedLogs) -> None:
    """It lacks what was read last, and was never looked at before it was compressed."""
    path = logs.write("app.log", "one\ntwo\n")
    assert logs.read() == ["one", "two"]
    logs.settle()
    logs.write("app.log", "three\n")
    copied = path.read_bytes()
    logs.write("app.log", "four\n")
    assert logs.read() == ["three", "four"]
    logs.settle()
    os.truncate(path, 0)
    (logs.folder / "app.log.1.gz").write_bytes(gzip.compress(copied))
    logs.write("app.log", "five\n")
    assert logs.read() + logs.read() + logs.read_after(ROTATE_WAIT) == ["five"]


def test_compressed_file_beside_its_original_is_not_read(logs: FollowedLogs) -> None:
    """Neither while it is being written, nor later; it adds nothing to the lag. Once the original
    is removed, the compressed file is followed instead.
    """
    path = logs.write("app.log.1", "one\ntwo\n")
    logs.read()
    whole = gzip.compress(b"one\ntwo\n")
    compressed = path.with_name("app.log.1.gz")
    compressed.write_bytes(whole[:-9])  # without its trailer, and the end of its content
    assert logs.read() == []
    compressed.write_bytes(whole)
    assert logs.read() == []
    assert logs.read_after(ROTATE_WAIT * 3) == []
    assert logs.follower.statistics().lag == len("one\ntwo\n")
    path.unlink()
    assert logs.read() == []
    assert logs.read_after(ROTATE_WAIT) == []
    logs.settle()
    assert logs.read_after(1) == []
    assert logs.follower.statistics().followed == 1


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_unsettled_lines_of_a_removed_file_are_not_read_from_its_compressed_copy(
    logs: FollowedLogs, suffix: str
) -> None:
    """They stay unsettled for long, as in an outage of the service."""
    path = logs.write("app.log.1", "one\ntwo\n")
    assert logs.read() == ["one", "two"]
    (logs.folder / f"app.log.2.{suffix}").write_bytes(COMPRESSIONS[suffix](b"one\ntwo\n"))
    path.unlink()
    for _ in range(3):
        assert logs.read_after(ROTATE_WAIT * 2) == []
    logs.settle()
    assert logs.read_after(1) + logs.read_after(ROTATE_WAIT * 2) == []
    assert logs.follower.statistics().followed == 1
    logs.kill_and_restart()
    assert logs.read() == []


def test_files_with_the_same_first_line_are_both_read(logs: FollowedLogs) -> None:
    """If one has nothing but what the other begins with, it may be a copy; it is read once it
    hasn't changed for `rotate_wait`.
    """
    logs.write("b.log", "start\nb\n")
    assert logs.read() == ["start", "b"]
    logs.write("a.log", "start\n")
    assert logs.read() == []
    assert logs.read_after(ROTATE_WAIT) == ["start"]
    logs.write("a.log", "a\n")
    assert logs.read() == ["a"]
    assert len(logs.lines) == 4
    logs.settle()
    logs.kill_and_restart()
    assert logs.read() == []


def test_incomplete_compressed_file_is_unreadable_until_it_is_complete(logs: FollowedLogs) -> None:
    """The statistics count it and say why; then all its lines have been read."""
    whole = gzip.compress(b"one\ntwo\n")
    path = logs.folder / "app.log.1.gz"
    path.write_bytes(whole[:-4])
    logs.read()
    statistics = logs.follower.statistics()
    assert (statistics.unreadable, statistics.why) == (1, f"{path} can't be read: it is cut off")
    path.write_bytes(whole)
    logs.read()
    logs.read_after(ROTATE_WAIT + 1)
    statistics = logs.follower.statistics()
    assert (statistics.unreadable, statistics.why) == (0, "")
    assert sorted(logs.lines.values()) == ["one", "two"]
