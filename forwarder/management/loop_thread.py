"""An event loop in a thread of its own, which makes calls for programs without one; it works where another loop runs already, too.

A process that is forked off has no such thread: there, calls are refused rather than waited for.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from forwarder.management.errors import ApiError, InvalidCall

R = TypeVar("R")

GRACE: Final = 2.0
"""Seconds that an interrupted call may take to end."""


class LoopThread:
    """The thread starts with the first call and ends with `end`, or with the program. Any thread may call."""

    def __init__(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`last`: what is to be done at the end, if anything was done before."""
        self._last = last
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._ended = False

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """What the coroutine returns or raises. An interrupt cancels it, whenever it comes, and is raised once it has ended."""
        call = _Call(work)
        try:
            with self._lock:
                loop = call.loop = self._running()
                future = asyncio.run_coroutine_threadsafe(call.run(), loop)
            return future.result()
        except CancelledError:
            error = ApiError("the client was closed during a call", type="usage_error", code="closed", unsure=True)
        except BaseException:
            call.abandon()
            raise
        raise error

    def end(self) -> None:
        """Cancel what runs, do what is last, and end the thread. A second time it does nothing."""
        atexit.unregister(self.end)
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
            self._ended = True
        if loop is None or thread is None or self._process != os.getpid():
            return
        try:
            asyncio.run_coroutine_threadsafe(_wind_up(self._last()), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._ended:
            raise InvalidCall("the client is closed", hint="Make the call inside its `with`.")
        if self._loop is not None:
            if self._process != os.getpid():
                raise InvalidCall("the client is of another process, which this one was forked from", hint="Make a client in each process.")
            return self._loop
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(loop,), name="forwarder-management", daemon=True)
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        self._loop, self._thread, self._process = loop, thread, os.getpid()
        atexit.register(self.end)
        return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """The thread."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class _Call(Generic[R]):
    """One coroutine, as the loop's thread runs it. Who waits for it can abandon it even before it has begun."""

    def __init__(self, work: Coroutine[Any, Any, R]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._abandoned = False
        self._done = threading.Event()

    async def run(self) -> R:
        """The coroutine's result. Cancellation is the coroutine's."""
        self._task = asyncio.current_task()
        try:
            if self._abandoned:
                raise asyncio.CancelledError
            return await self._work
        finally:
            self._work.close()
            self._done.set()

    def abandon(self) -> None:
        """End it, unless it has ended, and wait for that a moment. For other threads than the loop's."""
        if self.loop is None:
            self._work.close()
        elif not self._done.is_set():
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._cancel)
            self._done.wait(GRACE)

    def _cancel(self) -> None:
        self._abandoned = True
        if self._task is not None:
            self._task.cancel()
        else:  # it hasn't begun, and won't
            self._work.close()
            self._done.set()


async def _wind_up(last: Coroutine[Any, Any, None]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last
