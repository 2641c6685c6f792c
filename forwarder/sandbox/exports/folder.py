"""A folder as the destination of an export: files that exist complete or not at all, below the
folder that the operator allows.

Each folder on the way is opened by the descriptor of the one before it and never through a
symbolic link, so that nothing that others put there leads out. A part is written under a hidden
name, made durable, renamed, and the rename made durable. Files and new folders are the owner's
alone: they hold people's events.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final

from forwarder.core.error_text import error_text
from forwarder.sandbox.exports.jobs import DestinationFailed, DestinationPolicy, ExportMisconfigured
from forwarder.storage.private import DIRECTORY_MODE, FILE_MODE, make_directories

OPTION: Final = "--export-root"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINKS: Final = frozenset({errno.ELOOP, errno.ENOTDIR})


class FolderDestination:
    """Files in a folder. Raises `ExportMisconfigured` for one that isn't below the allowed one."""

    def __init__(self, config: Mapping[str, Any], policy: DestinationPolicy) -> None:
        if policy.export_root is None:
            raise ExportMisconfigured(
                f"Exports to folders aren't allowed. Start the sandbox with `{OPTION} DIR`; "
                "folders are below it."
            )
        self._root = policy.export_root
        self._path = _relative(config.get("path"), self._root)

    def write(self, name: str, content: bytes) -> None:
        """Write a file durably in the place of one of that name. Blocks. Raises
        `DestinationFailed` and `ExportMisconfigured`.
        """
        try:
            with self._open() as folder:
                _replace(folder, name, content)
        except OSError as error:
            where = f"folder {self._path}" if self._path.parts else "folder of exports"
            raise DestinationFailed(
                f"The {where} can't be written to: {error_text(error)}."
            ) from None

    @contextmanager
    def _open(self) -> Iterator[int]:
        """The folder's descriptor; it is created if it is missing."""
        make_directories(self._root)
        folder = os.open(self._root, _FOLDER)
        try:
            for part in self._path.parts:
                folder, parent = self._enter(folder, part), folder
                os.close(parent)
            yield folder
        finally:
            os.close(folder)

    def _enter(self, parent: int, name: str) -> int:
        try:
            os.mkdir(name, DIRECTORY_MODE, dir_fd=parent)
            os.fsync(parent)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOSPC):
                raise
            # A folder that is there can do without: opening it says so.
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        except OSError as error:
            if error.errno in _LINKS:
                message = (
                    f"{name!r} in path {str(self._path)!r} of the destination is a symbolic "
                    "link or a file. Name a folder."
                )
                raise ExportMisconfigured(message) from None
            raise


def _replace(folder: int, name: str, content: bytes) -> None:
    part = f".{name}.part"
    try:
        descriptor = os.open(
            part,
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC,
            FILE_MODE,
            dir_fd=folder,
        )
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        _remove(folder, part)
        raise
    os.fsync(folder)


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        # The file isn't there, or the disk still fails; the next attempt overwrites the file.
        return


def _relative(path: object, root: Path) -> PurePosixPath:
    """A destination's path, relative to the folder of exports."""
    if path is None:
        return PurePosixPath()
    if not isinstance(path, str) or "\0" in path:
        raise ExportMisconfigured(
            "path of the destination is not text. Name a folder below the folder of exports."
        )
    given = PurePosixPath(path)
    if ".." in given.parts:
        raise ExportMisconfigured(
            f"path of the destination is {path!r}. Name a folder below the folder of exports, "
            "without `..`."
        )
    if not given.is_absolute():
        return given
    absolute = PurePosixPath(os.path.abspath(root))  # noqa: PTH100 - as it was named, links and all
    if not given.is_relative_to(absolute):
        raise ExportMisconfigured(
            f"path of the destination is {path!r}, which is not below the folder of exports "
            f"({OPTION})."
        )
    return given.relative_to(absolute)
