"""Keeps verified project keys in a file of the state directory, and reads from it which keys other
workers have verified.

A key is written as soon as it is verified, on a thread; the file is read again every `REFRESH`
seconds if it has changed. If the file can't be written, verified keys may be unknown after a
restart: that is reported once, and tried again.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from forwarder.core.clock import Clock, Timer
from forwarder.core.error_text import error_text
from forwarder.intake.lane_registry import KnownKeys
from forwarder.storage.key_file import KeyHashes, key_file, merge_keys, read_keys

REFRESH: Final = 10.0

_log = structlog.get_logger()


class KeyMemory:
    """From `start`, on a loop, to `close`. What the file holds is known from the beginning."""

    def __init__(
        self, known: KnownKeys, directory: Path, clock: Clock, destination: str = ""
    ) -> None:
        """`directory`: the state directory that all workers share; `destination`: the name of the
        one that verifies the keys.
        """
        self._known = known
        self._path = key_file(directory, destination)
        self._clock = clock
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._dirty = False
        self._version: object = None
        self._failing = ""
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "known-keys")
        try:
            self._version = _version(self._path)
            self._remember(read_keys(self._path))
        except OSError as error:
            self._report(error)
        known.on_verified = self._verified

    def start(self) -> None:
        """Begin to write and to read, on the running loop."""
        self._run()

    async def close(self) -> None:
        """Write what is new, and end. Cancelling it leaves the file as it is."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        while self._task is not None:
            await asyncio.wait([self._task])
        if self._dirty:
            await self._exchange()
        self._thread.shutdown()

    def _verified(self) -> None:
        self._dirty = True
        if self._timer is not None or self._task is not None:
            self._run()

    def _run(self) -> None:
        """Exchange with the file now, or once more after the exchange that runs."""
        if self._task is not None:
            self._again = True
        elif not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._exchange())
            self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        again = self._again
        self._again = False
        if not task.cancelled():
            task.result()
        if again:
            self._run()
        elif not self._closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._clock.call_later(REFRESH, self._run)

    async def _exchange(self) -> None:
        dirty = self._dirty
        self._dirty = False
        keys = self._known.verified() if dirty else []
        loop = asyncio.get_running_loop()
        try:
            hashes, self._version = await loop.run_in_executor(
                self._thread, _exchange, self._path, keys, self._version
            )
        except OSError as error:
            self._dirty |= dirty
            self._report(error)
        else:
            self._failing = ""
            self._remember(hashes)

    def _remember(self, hashes: KeyHashes | None) -> None:
        if hashes is not None:
            self._known.remember(hashes)

    def _report(self, error: OSError) -> None:
        why = error_text(error)
        if why != self._failing:
            meaning = (
                "A key that is verified now may be unknown after a restart, until the "
                "upstream verifies it again."
            )
            hint = "Make the directory writable, or list the keys in sources.http.api_keys."
            _log.warning(
                "verified project keys can't be remembered",
                path=str(self._path),
                why=why,
                meaning=meaning,
                hint=hint,
            )
        self._failing = why


def _exchange(
    path: Path, keys: list[str], known_version: object
) -> tuple[KeyHashes | None, object]:
    """On a thread: add keys, or read the file if it has changed. None: it hasn't."""
    if keys:
        return merge_keys(path, keys), _version(path)
    version = _version(path)
    return (None if version == known_version else read_keys(path)), version


def _version(path: Path) -> object:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
