"""Folders as destinations: nothing leads out, a file is complete or absent, and
it is its owner's alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from forwarder.sandbox.exports.folder import FolderDestination
from forwarder.sandbox.exports.jobs import DestinationFailed, DestinationPolicy, ExportMisconfigured
from tests.support.cases import cases
from tests.support.filesystems import Mounted, mounted


def destination(root: Path | None, path: Any = "a/b") -> FolderDestination:
    """A folder below `root`."""
    return FolderDestination({"path": path}, DestinationPolicy(root))


def test_files_are_private_and_replaced(tmp_path: Path) -> None:
    """Folders on the way are made; a file of the same name has the new
    content; no temporary one stays.
    """
    root = tmp_path / "not" / "there"
    for content in (b"first and longer", b"second"):
        destination(root).write("x.jsonl", content)
    file = root / "a" / "b" / "x.jsonl"
    assert (file.read_bytes(), list(file.parent.iterdir())) == (b"second", [file])
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent, file.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]


def test_what_an_interrupted_write_left_is_overwritten(tmp_path: Path) -> None:
    """Its temporary file has the same name."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / ".x.jsonl.part").write_bytes(b"half of a long file")
    destination(tmp_path).write("x.jsonl", b"new")
    assert {file.name: file.read_bytes() for file in (tmp_path / "a" / "b").iterdir()} == {
        "x.jsonl": b"new"
    }


@cases("path", [None, "", ".", "./", "{root}", "{root}/"])
def test_the_root_itself(tmp_path: Path, path: str | None) -> None:
    """A destination need not have a folder of its own, and may name one by its whole path."""
    destination(tmp_path, path and path.format(root=tmp_path)).write("x", b"1")
    destination(tmp_path, f"{tmp_path}/inside").write("x", b"2")
    assert ((tmp_path / "x").read_bytes(), (tmp_path / "inside" / "x").read_bytes()) == (b"1", b"2")


@cases(
    "path",
    ["..", "a/../../b", "../{name}/a", "/etc", "/", "{root}/../x", "{root}x", 5, ["a"], "a\0b"],
)
def test_a_path_that_leads_out(tmp_path: Path, path: Any) -> None:
    """It is rejected as it is written, whatever it would resolve to."""
    with pytest.raises(ExportMisconfigured, match="path of the destination"):
        destination(
            tmp_path,
            path.format(root=tmp_path, name=tmp_path.name) if isinstance(path, str) else path,
        )


def test_folders_must_be_allowed() -> None:
    """The message names the option."""
    with pytest.raises(ExportMisconfigured, match="--export-root DIR"):
        destination(None)


@cases("place", ["a", "a/b"])
@cases("inside", [False, True])
def test_symbolic_links_are_not_followed(tmp_path: Path, place: str, *, inside: bool) -> None:
    """On no part of the way, wherever they lead."""
    root = tmp_path / "root"
    target = tmp_path / ("root/target" if inside else "target")
    (root / place).parent.mkdir(parents=True)
    target.mkdir()
    (root / place).symlink_to(target)
    with pytest.raises(ExportMisconfigured, match="is a symbolic link or a file"):
        destination(root).write("x", b"1")
    assert list(target.iterdir()) == []


def test_a_link_instead_of_a_file(tmp_path: Path) -> None:
    """It is replaced, and so is one instead of the temporary file refused: what they lead to
    is left alone.
    """
    other = tmp_path / "other"
    other.write_text("mine")
    root = tmp_path / "root"
    root.mkdir()
    (root / "x").symlink_to(other)
    destination(root, None).write("x", b"1")
    assert ((root / "x").is_symlink(), (root / "x").read_bytes()) == (False, b"1")
    (root / ".x.part").symlink_to(other)
    with pytest.raises(DestinationFailed):
        destination(root, None).write("x", b"2")
    assert other.read_text() == "mine"


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    """It is a matter of configuration."""
    (tmp_path / "a").write_text("")
    with pytest.raises(ExportMisconfigured, match="'a' in path 'a/b'"):
        destination(tmp_path).write("x", b"1")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Mounted]:
    """A disk of 256 KiB."""
    try:
        with mounted(tmp_path / "small", 256 << 10) as disk:
            yield disk
    except PermissionError:
        pytest.skip("this user may not mount")


def test_a_full_disk(small: Mounted) -> None:
    """It is an error that passes; nothing half is left, and the file before it stays."""
    destination(small.path).write("x", b"old")
    for content in (bytes(400 << 10), bytes(1 << 20)):
        with pytest.raises(
            DestinationFailed, match="folder a/b can't be written to: No space left on device"
        ):
            destination(small.path).write("x", content)
    assert {file.name: file.read_bytes() for file in (small.path / "a" / "b").iterdir()} == {
        "x": b"old"
    }
    destination(small.path).write("x", b"new")
    assert (small.path / "a" / "b" / "x").read_bytes() == b"new"


def test_a_read_only_disk(small: Mounted) -> None:
    """So is this one, whether the folder is there already or not."""
    destination(small.path).write("x", b"old")
    small.read_only(so=True)
    for path in ("a/b", "a", "new"):
        with pytest.raises(DestinationFailed, match="can't be written to"):
            destination(small.path, path).write("x", b"1")
    small.read_only(so=False)
    destination(small.path).write("x", b"new")


def test_the_rename_is_made_durable(tmp_path: Path) -> None:
    """File first, then its folder; folders that are made, too."""
    synced = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    with patch("os.fsync", fsync):
        destination(tmp_path).write("x", b"1")
    assert synced == [tmp_path.name, "a", ".x.part", "b"]
