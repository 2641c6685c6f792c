"""Which directories are looked into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forwarder.config.settings import Settings
from forwarder.inspect.state_files import (
    NotABuffer,
    WorkerFiles,
    buffers_at,
    buffers_of,
    files_at,
    files_of,
    holder,
)
from forwarder.storage.directory import DEAD_LETTERS, LOG, state_directories, worker_directory


def made(root: Path, number: int, *, log: bool = True, letters: bool = False) -> Path:
    """A worker's directory."""
    directory = worker_directory(root, number)
    directory.mkdir(parents=True)
    if log:
        (directory / LOG).mkdir()
    if letters:
        (directory / DEAD_LETTERS).touch()
    return directory


def configured(**sections: Any) -> Settings:
    """Settings with these sections."""
    return Settings.parse(sections)


def test_a_path_names_all_workers_or_one(tmp_path: Path) -> None:
    """In the order of their numbers; what isn't a worker's is passed over."""
    second = made(tmp_path, 2)
    tenth = made(tmp_path, 10)
    (tmp_path / "worker-x").mkdir()
    (tmp_path / "lost+found").mkdir()
    assert buffers_at(tmp_path) == [second, tenth]
    assert buffers_at(tenth) == [tenth]


def test_a_directory_without_a_buffer_is_an_error(tmp_path: Path) -> None:
    """A file, a directory of something else, dead letters alone, a buffer in memory."""
    made(tmp_path / "letters", 0, log=False, letters=True)
    (tmp_path / "file").touch()
    for name, words in [
        ("file", "it is a file"),
        ("letters", "holds no worker-<n>"),
        ("none", "doesn't exist"),
    ]:
        with pytest.raises(NotABuffer, match=words):
            buffers_at(tmp_path / name)
    with pytest.raises(NotABuffer, match="in memory"):
        buffers_of(configured())


def test_a_directory_that_may_not_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't taken for an empty one."""

    def forbidden(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", forbidden)
    with pytest.raises(NotABuffer, match="can't be read: Permission denied") as caught:
        files_at(tmp_path)
    assert "as the user" in caught.value.hint


def test_files_of_a_disk_buffer_with_dead_letters_beside_it(tmp_path: Path) -> None:
    """One directory holds both."""
    directory = made(tmp_path, 0, letters=True)
    empty = made(tmp_path, 1)
    settings = configured(buffer={"kind": "disk", "path": str(tmp_path)})
    assert files_of(settings, {}) == [
        WorkerFiles(directory, directory / DEAD_LETTERS),
        WorkerFiles(empty, None),
    ]


def test_files_of_a_disk_buffer_with_dead_letters_elsewhere(tmp_path: Path) -> None:
    """The two are put together by the workers' numbers."""
    log = made(tmp_path / "buffer", 0)
    letters = made(tmp_path / "letters", 0, log=False, letters=True)
    only = made(tmp_path / "letters", 3, log=False, letters=True)
    settings = configured(
        buffer={"kind": "disk", "path": str(tmp_path / "buffer")},
        dead_letters={"path": str(tmp_path / "letters")},
    )
    assert files_of(settings, {}) == [
        WorkerFiles(log, letters / DEAD_LETTERS),
        WorkerFiles(None, only / DEAD_LETTERS),
    ]


def test_files_beside_a_memory_buffer(tmp_path: Path) -> None:
    """Where it isn't configured, dead letters are where a daemon would have put them."""
    letters = made(tmp_path / "state", 0, log=False, letters=True)
    assert files_of(configured(dead_letters={"path": str(tmp_path / "state")}), {}) == [
        WorkerFiles(None, letters / DEAD_LETTERS)
    ]
    assert WorkerFiles(None, letters / DEAD_LETTERS) in files_of(
        configured(), {"STATE_DIRECTORY": str(tmp_path / "state")}
    )


def test_the_places_for_dead_letters() -> None:
    """What the service manager gives, then the user's state directory, else the system's for root
    and the user's own.
    """

    def places(root: bool, **environment: str) -> list[str]:
        return [str(place) for place in state_directories(environment, is_root=root)]

    assert places(False, STATE_DIRECTORY="/run/a:/run/b", XDG_STATE_HOME="/x", HOME="/home/u") == [
        "/run/a",
        "/x/forwarder",
    ]
    assert places(False, HOME="/home/u") == ["/home/u/.local/state/forwarder"]
    assert places(True, HOME="/root") == ["/var/lib/forwarder"]
    assert places(False) == []


def test_who_holds_a_directory(tmp_path: Path) -> None:
    """The process that wrote its number, if one did."""
    assert holder(tmp_path) is None
    (tmp_path / "lock").write_text("4711\n")
    assert holder(tmp_path) == 4711
    (tmp_path / "lock").write_text("")
    assert holder(tmp_path) is None
