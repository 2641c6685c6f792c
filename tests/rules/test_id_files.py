"""Files of ids: what they hold, that they are read again, and that a broken one leaves the last
content in force.
"""

import hashlib
import hmac
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.rules import id_files
from forwarder.rules.id_files import IdFile, IdFiles, sorted_arrays
from tests.support.clock import FakeClock
from tests.support.filesystems import bind_socket
from tests.support.waiting import FastClock, eventually


def replace(path: Path, text: str) -> None:
    """Another content, by renaming another file to its name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.rename(path)


def test_ids_are_those_of_the_lines(tmp_path: Path) -> None:
    """Whatever ends a line; an id counts as the service cuts it, and an empty line is none."""
    path = tmp_path / "ids"
    path.write_bytes(f"a\r\n\n b\nü\n{'x' * 300}".encode())
    file = IdFile(path, None, "rules[0].match")
    assert all(distinct_id in file for distinct_id in ("a", " b", "ü", "x" * 200, "x" * 300))
    assert not any(distinct_id in file for distinct_id in ("b", "", "A"))
    assert len(file) == 4


def test_hashes_are_hmac_sha256(tmp_path: Path) -> None:
    """Keyed with what the salt's file holds, without white space around it."""
    salt = tmp_path / "salt"
    path = tmp_path / "ids"
    salt.write_text(" key \n")
    path.write_text(hmac.new(b"key", "ü".encode(), hashlib.sha256).hexdigest() + "\n")
    file = IdFile(path, salt, "rules[0].match")
    assert "ü" in file
    assert "u" not in file
    path.write_text("ü\n")
    with pytest.raises(
        ConfigurationError,
        match=r"rules\[0\]\.match\.distinct_id_file: .*line 1 is no hash of 64 hex digits",
    ):
        IdFile(path, salt, "rules[0].match")
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(ConfigurationError, match="line 2 is no UTF-8"):
        IdFile(path, None, "rules[0].match")


@given(st.sets(st.binary(min_size=32, max_size=32), max_size=50))
def test_digests_are_sorted(digests: set[bytes]) -> None:
    """As bytes are, whatever their first byte."""
    first, second = sorted_arrays(
        [digest.hex().encode() + b"\n" for digest in digests], hashed=True
    )
    expected = sorted(digest[:16] for digest in digests)
    assert [
        (high << 64 | low).to_bytes(16) for high, low in zip(first, second, strict=True)
    ] == expected


@pytest.mark.slow
async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """Every second it is looked at; one that is gone or broken leaves the last
    content, and is reported.
    """
    path = tmp_path / "ids"
    path.write_text("a\n")
    files = IdFiles(FastClock())
    file = files.open(path, None, "rules[0].match")
    assert files.open(path, None, "rules[1].match") is file
    files.start()
    replace(path, "b\n")
    await eventually(lambda: "b" in file)
    assert "a" not in file
    path.unlink()
    await eventually(lambda: bool(file.failing))
    assert "b" in file
    path.write_bytes(b"\xff\n")
    os.utime(path, (1, 1))
    await eventually(lambda: "UTF-8" in file.failing)
    assert "b" in file
    replace(path, "c\n")
    await eventually(lambda: "c" in file and not file.failing)
    await files.close()


ODD: dict[str, Callable[[Path], object]] = {
    "it is a pipe, not a regular file": os.mkfifo,
    "Is a directory": Path.mkdir,
    "it is a socket, not a regular file": bind_socket,
    "it is a device, not a regular file": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.slow
async def test_an_invalid_file_delays_no_other(tmp_path: Path) -> None:
    """Instead of a file it is reported, and the last content stays in force; the others are
    read again, and so is the file once it is one again.
    """
    paths = [tmp_path / name for name in ("odd", "other")]
    files = IdFiles(FastClock())
    for path in paths:
        path.write_text("a\n")
    odd, other = [files.open(path, None, "rules[0].match") for path in paths]
    files.start()
    for number, (words, put) in enumerate(ODD.items()):
        start = tmp_path / f"start-{number}"
        put(start)
        with pytest.raises(ConfigurationError, match=words):
            files.open(start, None, "rules[0].match")
        paths[0].rename(tmp_path / f"moved-{number}")
        put(paths[0])
        await eventually(lambda: words in odd.failing)  # noqa: B023 - it ends before the next one
        replace(paths[1], f"b{number}\n")
        await eventually(lambda: f"b{number}" in other)  # noqa: B023 - the same
        assert "a" in odd
    paths[0].rename(tmp_path / "moved")
    paths[0].write_text("c\n")
    await eventually(lambda: "c" in odd and not odd.failing)
    await files.close()


@pytest.mark.slow
async def test_a_file_system_that_hangs_holds_up_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at by one thread at a time, is reported, and is read again when it answers."""
    paths = [tmp_path / name for name in ("hung", "other")]
    for path in paths:
        path.write_text("a\n")
    files = IdFiles(FastClock())
    hung, other = [files.open(path, None, "rules[0].match") for path in paths]
    answers = threading.Event()
    looks = []
    look = id_files._version

    def slow(path: Path) -> id_files.Version:
        if path == paths[0] and not answers.is_set():
            looks.append(path)
            answers.wait(30)
        return look(path)

    monkeypatch.setattr(id_files, "_version", slow)
    monkeypatch.setattr(id_files, "LOOK_SECONDS", 0.01)
    files.start()
    await eventually(lambda: "file system didn't answer" in hung.failing)
    for path in paths:
        replace(path, "b\n")
    await eventually(lambda: "b" in other)
    assert "a" in hung
    assert len(looks) == 1
    answers.set()
    await eventually(lambda: "b" in hung and not hung.failing)
    await files.close()


def test_a_reload_reads_no_file_again(tmp_path: Path) -> None:
    """Only files that weren't open."""
    path = tmp_path / "ids"
    path.write_text("a\n")
    before = IdFiles(FakeClock())
    file = before.open(path, None, "rules[0].match")
    assert IdFiles(FakeClock(), before).open(path, None, "rules[5].match") is file
