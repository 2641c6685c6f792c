"""Files of ids: what they hold, that they are read again, and that a broken one leaves the last
content in force.
"""

import hashlib
import hmac
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.rules.id_files import IdFile, IdFiles, sorted_arrays
from tests.support.clock import FakeClock
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
    assert all(each in file for each in ("a", " b", "ü", "x" * 200, "x" * 300))
    assert not any(each in file for each in ("b", "", "A"))
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
    first, second = sorted_arrays([each.hex().encode() + b"\n" for each in digests], hashed=True)
    expected = sorted(each[:16] for each in digests)
    assert [
        (high << 64 | low).to_bytes(16) for high, low in zip(first, second, strict=True)
    ] == expected


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """Every second it is looked at; one that is gone or broken leaves the last content, and is
    reported.
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


def test_a_reload_reads_no_file_again(tmp_path: Path) -> None:
    """Only files that weren't open."""
    path = tmp_path / "ids"
    path.write_text("a\n")
    before = IdFiles(FakeClock())
    file = before.open(path, None, "rules[0].match")
    assert IdFiles(FakeClock(), before).open(path, None, "rules[5].match") is file
