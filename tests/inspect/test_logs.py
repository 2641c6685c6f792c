"""The stored positions of log files, without a daemon."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwarder.config.load import load_settings
from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError
from forwarder.inspect.logs import STOPPED, stored_logs
from forwarder.telemetry.snapshot import LogFile, LogSourceState
from tests.support.followed_logs import FollowedLogs


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[FollowedLogs]:
    """A source called `logs`, whose positions are where a daemon with the state directory
    `tmp_path / "state"` has them.
    """
    root = tmp_path / "state" / "logs"
    root.mkdir(parents=True)
    made = FollowedLogs(root)
    yield made
    made.close()


def settings(state: Path, letters: str = "") -> Settings:
    """A configuration with that source and another one, which was never started."""
    file = state / "forwarder.yaml"
    mapping = "api_key: phc_x, mapping: {event: .a, distinct_id: .b}"
    file.write_text(
        f"buffer: {{kind: disk, path: {state}, max_bytes: 1GiB}}\n{letters}"
        f"sources: {{logs: [{{name: logs, path: /x, {mapping}}}, {{name: new, path: /y, "
        f"{mapping}}}]}}\n"
    )
    return load_settings(file, {}, require_upstream=False).settings


def state_of(followed: FollowedLogs, *, everything: bool = False) -> LogSourceState:
    """What is stored of the source, once all that was read is settled."""
    followed.settle()
    root = followed.path.parent.parent
    stored = stored_logs(settings(root), {}, everything=everything)
    assert stored is not None
    assert stored[1] == LogSourceState("new", STOPPED)
    return stored[0]


def test_positions_beside_the_files_as_they_are(followed: FollowedLogs) -> None:
    """Lag is what was written since; the last line is the one before the position; the file with
    the largest lag comes first.
    """
    quiet = followed.write("a.log", "first\nsecond\n")
    busy = followed.write("b.log", "one\ntwo phc_0123456789abcd\n")
    followed.read()
    state = state_of(followed)
    followed.write("b.log", "more\n")
    state = state_of(followed)
    ids = [file.identity for file in state.files]
    assert state.files == (
        LogFile(str(busy), ids[0], position=27, size=32, lag=5, last_line="two phc_…abcd"),
        LogFile(str(quiet), ids[1], position=13, size=13, lag=0, last_line="second"),
    )
    assert (state.name, state.state, state.followed, state.lag, state.why) == (
        "logs",
        STOPPED,
        2,
        5,
        "",
    )


def test_a_renamed_file_is_found(followed: FollowedLogs) -> None:
    """In its directory, by device and inode; its size is that of the file and
    not of what took its place.
    """
    path = followed.write("a.log", "first\n")
    followed.read()
    followed.write("a.log", "unread\n")
    state_of(followed)
    path.rename(path.with_name("a.log.1"))
    followed.write("a.log", "new file\n")
    [file] = state_of(followed).files
    assert (file.path, file.size, file.lag, file.last_line) == (f"{path}.1", 13, 7, "first")


def test_a_file_that_is_gone(followed: FollowedLogs) -> None:
    """What wasn't read of it is said; so is nothing else."""
    path = followed.write("a.log", "first\n")
    read = followed.write("b.log", "whole\n")
    followed.read()
    followed.write("a.log", "unread\n")
    followed.follower.look(None)
    state_of(followed)
    path.unlink()
    read.unlink()
    state = state_of(followed)
    assert {file.lag for file in state.files} == {7, 0}
    assert "1 of the files aren't there any more" in state.why


def test_a_compressed_file(followed: FollowedLogs) -> None:
    """One that was read to its end has no lag, however many bytes its content had."""
    path = followed.folder / "a.log.1.gz"
    path.write_bytes(gzip.compress(b"first\n" * 1000))
    followed.read()
    followed.read()
    [file] = state_of(followed).files
    assert (file.path, file.position, file.lag, file.last_line) == (str(path), 6000, 0, "")


def test_no_positions(tmp_path: Path) -> None:
    """Nothing was stored yet: that isn't an error. Neither is anything created."""
    assert stored_logs(settings(tmp_path), {}) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forwarder.yaml"]


def test_positions_stand_beside_the_buffer(followed: FollowedLogs, tmp_path: Path) -> None:
    """Dead letters may be elsewhere."""
    followed.write("a.log", "first\n")
    followed.read()
    state_of(followed)
    stored = stored_logs(
        settings(tmp_path / "state", f"dead_letters: {{path: {tmp_path}/letters}}\n"), {}
    )
    assert stored is not None
    assert [file.position for file in stored[0].files] == [6]


def test_nothing_is_written(followed: FollowedLogs) -> None:
    """The positions can be read while a daemon has them."""
    followed.write("a.log", "first\n")
    followed.read()
    state_of(followed)
    before = followed.path.read_bytes()
    state_of(followed)
    assert followed.path.read_bytes() == before


def test_damaged_positions(tmp_path: Path) -> None:
    """What to do is said."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "logs.db").write_bytes(b"no database" * 1000)
    with pytest.raises(
        ConfigurationError, match=r"the positions of log files in .*logs.db are damaged"
    ):
        stored_logs(settings(tmp_path), {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_cant_be_read(tmp_path: Path) -> None:
    """The user that it needs is named."""
    (tmp_path / "logs").mkdir(mode=0)
    with pytest.raises(ConfigurationError, match="can't be read"):
        stored_logs(settings(tmp_path), {})
