"""Waiting for changes in directories: the system reports them (inotify, kqueue), and everything is
polled in any case.

Network file systems report nothing, and limits of the system may be reached: then polling is what
is left. A thread waits for changes; its library is loaded when the first directory is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Final

import structlog

from forwarder.core.clock import Clock, wait_for_event
from forwarder.core.error_text import error_text

_GATHER_MILLISECONDS: Final = 100
"""The longest time in which changes are gathered before they are reported."""
_STEP_MILLISECONDS: Final = 50
"""Changes are reported when none has come for so long."""
_RETRY_SECONDS: Final = 60.0
"""After which directories that couldn't be watched are watched again."""
_MOST: Final = 4096
"""Directories that are watched; more of them are polled alone."""

_log = structlog.get_logger(__name__)


class Watch:
    """Waits until something changes, at most for a poll interval. On the loop."""

    def __init__(self, name: str, clock: Clock, poll_interval: float) -> None:
        """`name`: the source's, for the log."""
        self._name = name
        self._clock = clock
        self._poll_interval = poll_interval
        self._directories: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._ended = asyncio.Event()
        """Whether the thread is at its end."""
        self._ended.set()
        self._event = asyncio.Event()
        self._changed: set[str] = set()
        self._failed = ""
        self._retry_at = 0.0
        self._next_poll = clock.monotonic() + poll_interval

    async def changes(self, directories: Collection[str]) -> set[str] | None:
        """The paths that changed in these directories; None when `poll_interval` is over: then
        everything has to be looked at.

        Cancellation ends the wait at once; no change is lost by it.
        """
        self._watch(frozenset(directories))
        wait = self._next_poll - self._clock.monotonic()
        if wait <= 0 or not await wait_for_event(self._event, wait, self._clock):
            self._next_poll = self._clock.monotonic() + self._poll_interval
            self._changed.clear()
            self._event.clear()
            return None
        self._event.clear()
        changed = self._changed
        self._changed = set()
        return changed

    def wake(self) -> None:
        """Let `changes` return at once, with what it has."""
        self._event.set()

    async def close(self) -> None:
        """Stop watching. Cancelled, it leaves the thread, which ends by itself."""
        self._stop.set()
        await self._ended.wait()
        if self._thread is not None:
            self._thread.join()  # it has nothing more to do

    def _watch(self, directories: frozenset[str]) -> None:
        """Watch these directories from now on."""
        if directories == self._directories and not (
            self._failed and self._clock.monotonic() >= self._retry_at
        ):
            return
        self._directories = directories
        self._stop.set()  # the thread before ends by itself
        self._stop = threading.Event()
        self._ended = asyncio.Event()
        self._thread = None
        self._retry_at = self._clock.monotonic() + _RETRY_SECONDS
        if not directories or len(directories) > _MOST:
            self._fail(f"there are more than {_MOST} of them" if directories else "", self._stop)
            self._ended.set()
            return
        arguments = sorted(directories), self._stop, self._ended, asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run, args=arguments, name=f"watch {self._name}", daemon=True
        )
        self._thread.start()

    def _run(
        self,
        directories: list[str],
        stop: threading.Event,
        ended: asyncio.Event,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Report changes until it is stopped; in the thread."""
        there = [folder for folder in directories if Path(folder).is_dir()]
        # else it logs each change, also those of our own log
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        try:
            watch = import_module("watchfiles").watch
            watcher = watch(
                *there,
                watch_filter=None,
                debounce=_GATHER_MILLISECONDS,
                step=_STEP_MILLISECONDS,
                stop_event=stop,
                rust_timeout=0,
                recursive=False,
                ignore_permission_denied=True,
            )
            for changes in watcher:
                loop.call_soon_threadsafe(self._add, {path for _, path in changes}, stop)
        except Exception as error:
            why = error_text(error)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._fail, why, stop)
        finally:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

    def _add(self, paths: set[str], stop: threading.Event) -> None:
        if not stop.is_set():
            self._changed |= paths
            self._event.set()

    def _fail(self, why: str, stop: threading.Event) -> None:
        """Changes aren't reported."""
        if stop.is_set():
            return
        if why and why != self._failed:
            _log.warning(
                "logs: changes of directories can't be watched",
                source=self._name,
                why=why,
                hint=(
                    f"New lines are found by looking every {self._poll_interval:g} s. "
                    "On Linux, raise fs.inotify.max_user_watches and "
                    "fs.inotify.max_user_instances to have them at once."
                ),
            )
        self._failed = why
