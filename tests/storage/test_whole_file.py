"""Files that are there whole, or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.storage.whole_file import whole_file


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    """Until then nothing has its name; then it can be read by this user alone, and nothing else is left."""
    target = tmp_path / "out"
    with whole_file(target, replace=False) as file:
        file.write(b"all of it")
        assert not target.exists()
    assert target.read_bytes() == b"all of it"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_what_fails_halfway_leaves_nothing(tmp_path: Path) -> None:
    """An exception in the block leaves the directory as it was."""

    def write_some() -> None:
        with whole_file(tmp_path / "out", replace=True) as file:
            file.write(b"half of i")
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        write_some()
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_only_when_that_is_asked_for(tmp_path: Path) -> None:
    """One that is there, or that somebody made meanwhile, stays."""
    target = tmp_path / "out"
    with pytest.raises(ConfigurationError, match="is there already") as caught, whole_file(target, replace=False):
        target.write_text("somebody else's")
    assert "--force" in caught.value.hint
    with pytest.raises(ConfigurationError, match="is there already"), whole_file(target, replace=False):
        pytest.fail("it doesn't even begin")
    assert target.read_text() == "somebody else's"
    with whole_file(target, replace=True) as file:
        file.write(b"ours")
    assert target.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(ConfigurationError, match=r"none/out can't be written: No such file"), whole_file(
        tmp_path / "none" / "out", replace=False
    ):
        pytest.fail("it doesn't even begin")
