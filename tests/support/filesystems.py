"""File systems of a test's own, where it may mount them: small ones, and ones that nothing can be
written to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_READ_ONLY: Final = 1
_REMOUNT: Final = 32
_DETACH: Final = 2


class Mounted:
    """A tmpfs at `path`."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._options = f"size={size}".encode()
        self._mount(0)

    def read_only(self, *, so: bool) -> None:
        """Let nothing be written to it, or let it be again. Raises `OSError` while a file there is
        open for writing.
        """
        self._mount(_REMOUNT | (_READ_ONLY if so else 0))

    def fill(self) -> Path:
        """Leave no room; the file that takes it."""
        ballast = self.path / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        return ballast

    def close(self) -> None:
        """Unmount it."""
        _LIBC.umount2(os.fsencode(self.path), _DETACH)

    def _mount(self, flags: int) -> None:
        if _LIBC.mount(b"tmpfs", os.fsencode(self.path), b"tmpfs", flags, self._options):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self.path))


@contextlib.contextmanager
def mounted(path: Path, size: int) -> Iterator[Mounted]:
    """A tmpfs of `size` bytes at `path`, which is made. Raises `OSError` where this process may
    not mount.
    """
    path.mkdir()
    place = Mounted(path, size)
    try:
        yield place
    finally:
        place.close()


def bind_socket(path: Path) -> None:
    """Have a socket at a path, without anything that listens."""
    os.mknod(path, stat.S_IFSOCK | 0o600)
