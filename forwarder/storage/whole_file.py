"""A file that is there whole, or not at all: written beside its place under another name, made durable, and then moved there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from forwarder.core.errors import ConfigurationError
from forwarder.storage.private import open_file


@contextlib.contextmanager
def whole_file(target: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `target` when the block ends without an exception. Only this user can read it.

    Raises `ConfigurationError` if it can't be written there, or if `target` is there already and `replace` isn't set.
    """
    if not replace and target.exists():
        raise _there_already(target)
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    try:
        descriptor = open_file(part, os.O_WRONLY | os.O_EXCL)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with open(descriptor, "wb", buffering=1 << 20) as file:  # noqa: PTH123 - a descriptor
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put(part, target, replace=replace)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        part.unlink(missing_ok=True)


def _put(part: Path, target: Path, *, replace: bool) -> None:
    if replace:
        part.replace(target)
    else:
        try:
            target.hardlink_to(part)  # unlike a rename, this fails if somebody made the file meanwhile
        except FileExistsError:
            raise _there_already(target) from None
    directory = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _there_already(target: Path) -> ConfigurationError:
    return ConfigurationError(f"{target} is there already", hint="Name another file, or say --force to replace it.")


def _unwritable(target: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"{target} can't be written: {error.strerror or error}", hint="Name a file in a directory with room.")
