"""Files that a configuration names: regular ones are read, anything else is an error in no time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forwarder.config.api_keys import read_key_file
from forwarder.core import configured_files
from forwarder.core.configured_files import (
    NotRegularFile,
    check_file,
    in_thread,
    names_descriptor,
    open_file,
    read_file,
)
from forwarder.core.error_text import error_text
from tests.support.cases import cases
from tests.support.filesystems import bind_socket


@contextmanager
def written(data: bytes, *, closed: bool = True) -> Iterator[Path]:
    """A pipe that has these bytes, as a shell names it."""
    reader, writer = os.pipe()
    os.write(writer, data)
    if closed:
        os.close(writer)
    try:
        yield Path(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
        if not closed:
            os.close(writer)


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    """Also by a link to it; one that is missing or closed is the system's error."""
    file = tmp_path / "file"
    file.write_bytes(b"content")
    link = tmp_path / "link"
    link.symlink_to(file)
    for path in (file, link):
        assert read_file(path) == read_file(path, pipe=True) == b"content"
        with open_file(path) as opened:
            assert opened.read() == b"content"
        check_file(path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "missing")
    with pytest.raises(ValueError, match="null"):
        read_file(Path("a\0b"))


@cases(
    ("put", "words"),
    [
        (os.mkfifo, "it is a pipe, not a regular file: write the content into a file there"),
        (Path.mkdir, "Is a directory"),
        (bind_socket, "it is a socket, not a regular file: write the content into a file there"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
    ],
)
@pytest.mark.timeout(120)
def test_anything_else_is_named(tmp_path: Path, put: Callable[[Path], object], words: str) -> None:
    """Nothing waits for a writer, or reads without end."""
    path = tmp_path / "odd"
    put(path)
    for use in (read_file, open_file, check_file):
        with pytest.raises(OSError, match=r".") as caught:
            use(path)
        assert words in error_text(caught.value)


def test_a_pipe_is_read_where_once_is_enough() -> None:
    """To its end; a second time, as without a writer, is an error and not an empty file."""
    with written(b"a: 1\n") as path:
        assert names_descriptor(path)
        with pytest.raises(NotRegularFile, match="it is a pipe"):
            read_file(path)
        assert read_file(path, pipe=True) == b"a: 1\n"
        with pytest.raises(NotRegularFile, match="it was read before"):
            read_file(path, pipe=True)
    assert read_file(Path("/dev/null")) == b""
    assert not any(map(names_descriptor, (Path("/dev/zero"), Path("/srv/dev/fd/3"), Path("fd/3"))))


def test_a_named_pipe_waits_for_its_writer(tmp_path: Path) -> None:
    """Which may come later than its reader."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"x" * 200_000,))
    writer.start()
    assert read_file(path, pipe=True) == b"x" * 200_000
    writer.join(20)


def test_a_silent_pipe_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute without a byte."""
    monkeypatch.setattr(configured_files, "PIPE_SECONDS", 0.01)
    with (
        written(b"begun", closed=False) as path,
        pytest.raises(NotRegularFile, match="nothing came through the pipe"),
    ):
        read_file(path, pipe=True)


async def test_a_loop_waits_for_no_pipe() -> None:
    """A reload takes what is there, or is an error."""
    with written(b"a: 1\n") as path:
        assert read_file(path, pipe=True) == b"a: 1\n"
    with (
        written(b"", closed=False) as path,
        pytest.raises(NotRegularFile, match="nothing came through the pipe for 0 seconds"),
    ):
        read_file(path, pipe=True)


def test_a_key_may_come_by_a_descriptor(tmp_path: Path) -> None:
    """A pipe with a name is none that a process hands over."""
    with written(b"phc_one\n") as path:
        assert [*read_key_file(path)] == ["phc_one"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is a pipe, not a regular file"):
        read_key_file(tmp_path / "pipe")


async def test_a_thread_reports_what_a_call_returns_or_raises() -> None:
    """On the loop that has asked."""
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(FileNotFoundError):
        await in_thread(lambda: Path("/missing/file").stat())
