"""Files that a configuration or a command line names: regular ones, or an error that says what is
there instead.

To open a named pipe without a writer, or to read a device, may take for ever. So files are opened
without waiting and looked at before anything is read. A pipe serves where a file is read once, as
in `--config <(…)`; it may keep its reader waiting for `PIPE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

T = TypeVar("T")

PIPE_SECONDS: Final = 60.0
"""How long a pipe may stay without data: what writes into it may ask for a passphrase."""
_MOST_IN_PIPE: Final = 64 * 1024 * 1024
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DESCRIPTOR: Final = re.compile(r"/dev/(?:fd/\d+|stdin)|/proc/(?:self|\d+)/fd/\d+", re.ASCII)
_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularFile(OSError):
    """Something else than a file has the path."""


def open_file(path: Path) -> BinaryIO:
    """The file, which never makes its reader wait for another process. Raises `OSError`, and
    `ValueError` for a path with a NUL.
    """
    return os.fdopen(_regular(path, _open(path)), "rb")


def read_file(path: Path, *, pipe: bool = False) -> bytes:
    """The content. `pipe`: it is read once, so that it may be a pipe. Raises as `open_file`."""
    descriptor = _open(path)
    if pipe and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return _read_pipe(descriptor)
    with os.fdopen(_regular(path, descriptor), "rb") as file:
        return file.read()


def check_file(path: Path) -> None:
    """For what opens a path by itself: raises what `open_file` raises."""
    os.close(_regular(path, _open(path)))


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """What a call returns, from a thread that ends with the process: for file systems that hang,
    which would take the threads of all others, and hold up the end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]  # None is a result too
            else:
                future.set_exception(error)
                future.exception()  # whoever waited may be gone

    def run() -> None:
        result = None
        failure: BaseException | None = None
        try:
            result = call()
        except Exception as error:
            failure = error.with_traceback(None)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="look at a file", daemon=True).start()
    return future


def names_descriptor(path: Path) -> bool:
    """Whether a path is one of this process's descriptors, as of `<(…)`."""
    return _DESCRIPTOR.fullmatch(str(path)) is not None


def _open(path: Path) -> int:
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):  # a socket can't be opened
            _refuse(path, path.stat().st_mode)
        raise


def _regular(path: Path, descriptor: int) -> int:
    """The descriptor, if it is of a regular file, or of the null device, which is an empty one;
    closes it otherwise.
    """
    try:
        status = os.fstat(descriptor)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == Path(os.devnull).stat().st_rdev:
            return descriptor
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        _refuse(path, mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse(path: Path, mode: int) -> None:
    for is_kind, words in _KINDS:
        if is_kind(mode):
            text = f"it is {words}, not a regular file: write the content into a file there"
            raise NotRegularFile(errno.EINVAL, text, str(path))


def _read_pipe(descriptor: int) -> bytes:
    """All that is written into a pipe, until its writers have closed it. On a loop, which a reload
    would hold up, it must be there.
    """
    seconds = 0.0 if _on_a_loop() else PIPE_SECONDS
    data = bytearray()
    readable = select.poll()
    readable.register(descriptor, select.POLLIN)
    try:
        while len(data) <= _MOST_IN_PIPE:
            if not readable.poll(seconds * 1000):
                text = f"nothing came through the pipe for {seconds:.0f} seconds"
                raise NotRegularFile(errno.ETIMEDOUT, text)
            piece = os.read(descriptor, 1 << 20)
            if not piece and not data:
                text = "nothing came through the pipe: its writer failed, or it was read before"
                raise NotRegularFile(errno.EPIPE, text)
            if not piece:
                return bytes(data)
            data += piece
        raise NotRegularFile(errno.EFBIG, f"more than {_MOST_IN_PIPE:,} bytes came through it")
    finally:
        os.close(descriptor)


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
