"""The file of verified project keys."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from forwarder.storage import key_file
from forwarder.storage.key_file import KNOWN_KEYS, merge_keys, read_keys


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is to be."""
    return tmp_path / KNOWN_KEYS


def test_keys_are_known_by_their_hashes(path: Path) -> None:
    """The file names none of them, and only its owner reads it; another file has other hashes."""
    assert read_keys(path) is None
    merge_keys(path, ["phc_one", "phc_two"])
    known_keys = read_keys(path)
    assert known_keys is not None
    assert "phc_one" in known_keys
    assert "phc_two" in known_keys
    assert "phc_three" not in known_keys
    assert b"phc_" not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    other = merge_keys(path.with_name("other.json"), ["phc_one"])
    assert set(other.hashes).isdisjoint(known_keys.hashes)


def test_merging_keeps_what_is_there(path: Path) -> None:
    """And writes nothing if there is nothing new."""
    merge_keys(path, ["phc_one"])
    merged = merge_keys(path, ["phc_two"])
    assert merged.count == 2
    before = path.stat()
    merge_keys(path, ["phc_one"])
    assert path.stat() == before
    assert [entry.name for entry in path.parent.iterdir()] == [KNOWN_KEYS]


def test_a_bounded_number_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those verified last."""
    monkeypatch.setattr(key_file, "MAX_KEYS", 3)
    merge_keys(path, ["phc_1", "phc_2"])
    known_keys = merge_keys(path, ["phc_3", "phc_4"])
    assert [key for key in ("phc_1", "phc_2", "phc_3", "phc_4") if key in known_keys] == [
        "phc_2",
        "phc_3",
        "phc_4",
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version":2,"salt":"00","keys":[]}',
        b'{"version":1,"salt":"x","keys":[]}',
        b'{"version":1,"salt":"00","keys":["x"]}',
    ],
)
def test_a_damaged_file_is_begun_anew(
    path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a warning; keys are verified again in time."""
    path.write_bytes(content)
    assert read_keys(path) is None
    assert "will be replaced" in capsys.readouterr().out
    assert "phc_one" in merge_keys(path, ["phc_one"])
    assert (known_keys := read_keys(path)) is not None
    assert "phc_one" in known_keys


def test_a_file_that_can_not_be_replaced_stays(path: Path) -> None:
    """A crash while it is written leaves the old one; a link that someone
    prepared is not followed.
    """
    merge_keys(path, ["phc_one"])
    target = path.with_name("victim")
    target.write_text("mine")
    path.with_name(f".{KNOWN_KEYS}.new").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        merge_keys(path, ["phc_two"])
    assert target.read_text() == "mine"
    assert (known_keys := read_keys(path)) is not None
    assert known_keys.count == 1
    assert merge_keys(path, ["phc_two"]).count == 2


def _merge(path: Path, number: int) -> None:
    for key in range(20):
        merge_keys(path, [f"phc_{number}_{key}"])


def test_workers_do_not_lose_each_others_keys(path: Path) -> None:
    """Processes that write at the same time."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_merge, args=(path, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (known_keys := read_keys(path)) is not None
    assert known_keys.count == 60
