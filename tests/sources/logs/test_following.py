"""Following log files: what is read of files that grow, are rotated in every way, appear and go."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import zstandard

from tests.support.followed_logs import WAIT, FollowedLogs


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[FollowedLogs]:
    """A directory that is followed."""
    followed = FollowedLogs(tmp_path)
    yield followed
    followed.close()


def test_lines_are_read_as_they_are_appended(logs: FollowedLogs) -> None:
    """A line is read once, when it is complete."""
    path = logs.write("app.log", "one\ntwo\nthr")
    assert logs.read() == ["one", "two"]
    logs.write("app.log", "ee\n")
    assert logs.read([str(path)]) == ["three"]
    assert logs.read() == []
    logs.settle()
    logs.kill()
    assert logs.read() == []
    logs.write("app.log", "four\n")
    assert logs.read() == ["four"]


def test_changes_of_other_files_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What neither matches nor is known isn't looked for; new files,
    directories and renamed ones are.
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
    assert logs.read([*others, str(path)]) == ["two"]
    assert scans.call_count == 0
    path.rename(logs.folder / "app.old")
    logs.write("app.old", "three\n")
    assert logs.read([str(logs.folder / "app.old"), str(path)]) == ["three"]
    new = logs.write("new.log", "four\n")
    assert logs.read([str(new)]) == ["four"]
    (logs.folder / "sub").mkdir()
    logs.write("sub/app.log", "five\n")
    assert logs.read([str(logs.folder / "sub")]) == ["five"]
    assert scans.call_count == 3
    logs.close()


def test_unsettled_lines_are_read_again(logs: FollowedLogs) -> None:
    """After a kill, from the stored position, with the same identity and offsets."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.settle()
    logs.write("app.log", "two\nthree\n")
    assert logs.read() == ["two", "three"]
    logs.kill()
    assert logs.read() == ["two", "three"]
    assert len(logs.lines) == 3


def test_rename(logs: FollowedLogs) -> None:
    """A renamed file is read on, and the new one at its path is another."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.write("app.log", "two\n")
    (logs.folder / "app.log").rename(logs.folder / "app.log.1")
    logs.write("app.log", "three\n")
    assert sorted(logs.read()) == ["three", "two"]
    logs.write("app.log.1", "late\n")
    assert logs.read() == ["late"]
    assert logs.follower.statistics().rotations == {"rename": 1}


def test_rename_while_down(logs: FollowedLogs) -> None:
    """What was appended before and after is read."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.settle()
    logs.kill()
    logs.write("app.log", "two\n")
    (logs.folder / "app.log").rename(logs.folder / "app.log.1")
    logs.write("app.log", "three\n")
    assert sorted(logs.read()) == ["three", "two"]


def test_rename_out_of_the_glob(tmp_path: Path) -> None:
    """The file is read to its end, and is closed when it hasn't changed for a while
    and is settled.
    """
    logs = FollowedLogs(tmp_path, "*.log")
    logs.write("app.log", "one\ntw")
    logs.read()
    (logs.folder / "app.log").rename(logs.folder / "app.old")
    logs.write("app.old", "o\nthree\nfo")
    assert logs.read() == ["two", "three"]
    assert logs.pass_time(WAIT - 1) == []
    logs.write("app.old", "ur")
    assert logs.read() == []
    assert logs.pass_time(WAIT - 1) == []
    assert logs.pass_time(1) == ["four"]
    assert logs.follower.statistics().open == 1
    logs.settle()
    logs.read()
    statistics = logs.follower.statistics()
    assert (statistics.open, statistics.followed) == (0, 0)
    logs.close()


@pytest.mark.parametrize("settled", [True, False])
def test_rename_out_of_the_glob_while_down(tmp_path: Path, settled: bool) -> None:
    """The file is found in its directory."""
    logs = FollowedLogs(tmp_path, "*.log")
    logs.write("app.log", "one\n")
    logs.read()
    if settled:
        logs.settle()
    logs.kill()
    logs.write("app.log", "two\n")
    (logs.folder / "app.log").rename(logs.folder / "app.old")
    logs.write("app.log", "three\n")
    assert sorted(logs.read()) == ["three", "two"] if settled else ["one", "three", "two"]
    logs.close()


def test_copy_truncate(logs: FollowedLogs) -> None:
    """Neither the copy nor what comes after it is taken for something else; the copy is seen
    before the truncation.
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
    assert logs.pass_time(WAIT * 2) == []
    assert logs.follower.statistics().rotations == {"truncate": 1}
    assert len({identity for identity, _, _ in logs.lines}) == 2


def test_copy_truncate_of_a_file_whose_writer_does_not_append(logs: FollowedLogs) -> None:
    """Its next line stands behind a hole, and is read whole; two such files aren't
    taken for one.
    """
    for name in ("a.log", "b.log"):
        with (logs.folder / name).open("wb", buffering=0) as writer:  # as of `app > a.log`
            writer.write(b"%b one\n" % name.encode() * 20_000)
            logs.read()
            shutil.copy(logs.folder / name, logs.folder / f"{name}.1")
            os.truncate(logs.folder / name, 0)
            writer.write(b"%b two\n" % name.encode())
            assert logs.read() == [f"{name} two"]
            writer.write(b"%b three\n" % name.encode())
            assert logs.read() == [f"{name} three"]


def test_copy_truncate_before_the_rest_was_read(logs: FollowedLogs) -> None:
    """The rest is read from the copy, with the same identity and offsets."""
    logs.write("app.log", "one\n")
    logs.read()
    logs.write("app.log", "two\n")
    logs.copy_truncate("app.log", "app.log.1")
    logs.write("app.log", "three\n")
    assert sorted(logs.read()) == ["three", "two"]
    assert {(offset, line) for (_, _, offset), line in logs.lines.items()} == {
        (0, "one"),
        (4, "two"),
        (0, "three"),
    }


@pytest.mark.parametrize("settled", [True, False])
def test_copy_truncate_while_down(logs: FollowedLogs, settled: bool) -> None:
    """The copy is continued, and the original begins again."""
    logs.write("app.log", "one\n")
    logs.read()
    if settled:
        logs.settle()
    logs.kill()
    logs.write("app.log", "two\n")
    logs.copy_truncate("app.log", "app.log.1")
    logs.write("app.log", "three, which is longer than all that was there before\n")
    assert sorted(logs.read()) == (
        ["three, which is longer than all that was there before", "two"]
        if settled
        else sorted(["one", "two", "three, which is longer than all that was there before"])
    )
    logs.settle()
    logs.kill()
    assert logs.read() == []


def test_truncation_and_growth_beyond_the_offset(logs: FollowedLogs) -> None:
    """It is found by what was before the offset, or at the beginning, and equal first lines get
    another generation.
    """
    logs.write("app.log", "start\none\n")
    logs.read()
    logs.write("app.log", "start\ntwo\nthree\n", mode="w")
    assert logs.read() + logs.read() == ["start", "two", "three"]
    assert {generation for _, generation, _ in logs.lines} == {0, 1}
    assert len({identity for identity, _, _ in logs.lines}) == 1


def test_truncation_to_the_same_size(logs: FollowedLogs) -> None:
    """A file of the size that was read, but written since, is looked into."""
    logs.write("app.log", "one\n")
    logs.read()
    path = logs.write("app.log", "two\n", mode="w")
    os.utime(path, ns=(1, 1))
    assert logs.read() + logs.read() == ["two"]


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("down", [True, False])
def test_compression_of_a_rotated_file(logs: FollowedLogs, suffix: str, down: bool) -> None:
    """The compressed file is continued where the original was."""
    path = logs.write("app.log.1", "one\n")
    logs.read()
    logs.settle()
    if down:
        logs.kill()
    logs.write("app.log.1", "two\nthree")
    packed = path.with_name(f"app.log.1.{suffix}")
    packed.write_bytes(COMPRESSIONS[suffix](b"one\ntwo\nthree"))
    path.unlink()
    expected = ["two", "three"]
    found = logs.read() + logs.pass_time(WAIT)
    assert found == expected
    logs.settle()
    logs.kill()
    assert logs.read() == []
    packed.rename(logs.folder / f"app.log.2.{suffix}")
    assert logs.read() == []


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_compressed_file_that_was_read_to_its_end_and_is_not_settled(
    logs: FollowedLogs, suffix: str
) -> None:
    """After a kill it is read again; once it is settled it is not."""
    path = logs.folder / f"app.log.1.{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](b"one\ntwo\n"))
    for _ in range(2):
        assert logs.read() == ["one", "two"]
        logs.follower.save()
        logs.kill()
    assert logs.read() == ["one", "two"]
    logs.settle()
    logs.kill()
    assert logs.read() == []
    assert logs.pass_time(WAIT) == []


@pytest.mark.parametrize("half", ["", "thr"])
@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("down", [True, False])
def test_compression_of_a_copy_that_ends_before_what_was_read(
    logs: FollowedLogs, half: str, settled: bool, down: bool
) -> None:
    """What the program writes between the copy and the truncation was read of the original: the
    copy is nothing new, and its compressed file isn't either.
    """
    path = logs.write("app.log", f"one\ntwo\n{half}")
    copy = logs.folder / "app.log.1"
    assert logs.read() == ["one", "two"]
    shutil.copy(path, copy)
    logs.write("app.log", f"{'three'.removeprefix(half)}\nfour\n")
    assert logs.read() == ["three", "four"]
    os.truncate(path, 0)
    logs.write("app.log", "five\n")
    assert logs.read() + logs.read() + logs.pass_time(WAIT) == ["five"]
    if settled or down:
        logs.settle()
    if down:
        logs.kill()
    packed = logs.folder / "app.log.1.gz"
    packed.write_bytes(gzip.compress(copy.read_bytes()))
    copy.unlink()
    assert logs.read() + logs.pass_time(WAIT) == []
    packed.rename(logs.folder / "app.log.2.gz")
    assert logs.read() + logs.pass_time(WAIT) == []


def test_compression_of_a_copy_that_was_never_seen(logs: FollowedLogs) -> None:
    """It is known by what was stored of the original before, though that was read further."""
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
    assert logs.read() + logs.read() + logs.pass_time(WAIT) == ["five"]


def test_compression_takes_its_time(logs: FollowedLogs) -> None:
    """A compressed file that is being written beside the original isn't read; the original is."""
    path = logs.write("app.log.1", "one\ntwo\n")
    logs.read()
    whole = gzip.compress(b"one\ntwo\n")
    packed = path.with_name("app.log.1.gz")
    packed.write_bytes(whole[:-9])
    assert logs.read() == []
    packed.write_bytes(whole)
    assert logs.read() == []
    assert logs.pass_time(WAIT * 3) == []
    assert logs.follower.statistics().lag == len("one\ntwo\n")
    path.unlink()
    assert logs.read() == []
    assert logs.pass_time(WAIT) == []
    logs.settle()
    assert logs.pass_time(1) == []
    assert logs.follower.statistics().followed == 1


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compression_in_an_outage(logs: FollowedLogs, suffix: str) -> None:
    """What was read of an original that is gone, and isn't settled for long, isn't read again from
    its compressed copy.
    """
    path = logs.write("app.log.1", "one\ntwo\n")
    assert logs.read() == ["one", "two"]
    (logs.folder / f"app.log.2.{suffix}").write_bytes(COMPRESSIONS[suffix](b"one\ntwo\n"))
    path.unlink()
    for _ in range(3):
        assert logs.pass_time(WAIT * 2) == []
    logs.settle()
    assert logs.pass_time(1) + logs.pass_time(WAIT * 2) == []
    assert logs.follower.statistics().followed == 1
    logs.kill()
    assert logs.read() == []


def test_equal_first_lines(logs: FollowedLogs) -> None:
    """Files with the same first line are different files, also if one is all
    that another begins with.
    """
    logs.write("b.log", "start\nb\n")
    assert logs.read() == ["start", "b"]
    logs.write("a.log", "start\n")
    assert logs.read() == []
    assert logs.pass_time(WAIT) == ["start"]
    logs.write("a.log", "a\n")
    assert logs.read() == ["a"]
    assert len(logs.lines) == 4
    logs.settle()
    logs.kill()
    assert logs.read() == []


def test_unreadable_files_are_counted_until_they_are_readable(logs: FollowedLogs) -> None:
    """A compressed file that is cut off is named; once it is whole, it no longer is."""
    packed = gzip.compress(b"one\ntwo\n")
    path = logs.folder / "app.log.1.gz"
    path.write_bytes(packed[:-4])
    logs.read()
    found = logs.follower.statistics()
    assert (found.unreadable, found.why) == (1, f"{path} can't be read: it is cut off")
    path.write_bytes(packed)
    logs.read()
    logs.pass_time(WAIT + 1)
    found = logs.follower.statistics()
    assert (found.unreadable, found.why) == (0, "")
    assert sorted(logs.lines.values()) == ["one", "two"]
