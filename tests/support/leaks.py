"""What a test has left behind: tasks of its loop, threads, open files and sockets, HTTP sessions,
each named so that it can be found; and what it configured for the whole process, which is undone.

Something that is about to end (a cancelled task, a thread past its last line) gets a moment to do
so; what then remains is a leak.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp
import structlog
import uvloop
from aiohttp import web_app

from forwarder.telemetry.logs import StandardErrorHandler

GRACE: Final = 0.5
"""Seconds that whatever is ending already may take to end."""

Files: TypeAlias = dict[int, str]
"""Open file descriptors of this process, and what each stands for."""

SPARE: Final = "/dev/null"
"""libuv keeps a descriptor of it in reserve for each loop that has listened, until the loop object
itself is gone.
"""

Sessions: TypeAlias = dict[aiohttp.ClientSession, str]
"""Open sessions of HTTP clients, and where each was made."""

_sessions: Final = weakref.WeakKeyDictionary[aiohttp.ClientSession, str]()

DESCRIPTORS: Final = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")


@contextmanager
def logging_restored() -> Iterator[None]:
    """Undo `configure_logging` at the end: a command that runs in this process would else decide
    what later tests find in the log.
    """
    root = logging.getLogger()
    access = logging.getLogger("aiohttp.access")
    handlers = list(root.handlers)
    levels = (root.level, access.level)
    try:
        yield
    finally:
        for handler in [
            installed
            for installed in root.handlers
            if isinstance(installed, StandardErrorHandler) and installed not in handlers
        ]:
            root.removeHandler(handler)
            handler.close()  # its timer would be another test's thread
        root.setLevel(levels[0])
        access.setLevel(levels[1])
        logging.captureWarnings(capture=False)
        structlog.reset_defaults()


def forget_applications() -> None:
    """Drop the up to 1,024 handlers that aiohttp remembers of applications with
    middlewares. Each keeps its application alive: hundreds of sandboxes, which every search
    for garbage would walk through.
    """
    web_app._cached_build_middleware.cache_clear()


def open_files() -> Files:
    """The descriptors that are open now, without the standard streams: those
    belong to what captures output.
    """
    files: Files = {}
    for entry in list(DESCRIPTORS.iterdir()):
        if int(entry.name) <= 2:
            continue
        try:
            files[int(entry.name)] = str(entry.readlink())
        except OSError:  # the descriptor of the listing itself
            continue
    return files


def leaked_files(before: Files) -> list[str]:
    """What is open now and was not `before`, after the garbage is collected. Threads that aren't
    Python's close theirs a moment later.
    """
    if not _opened_since(before):
        return []
    gc.collect()
    until = time.monotonic() + GRACE
    while _opened_since(before) and time.monotonic() < until:
        threading.Event().wait(0.01)  # nothing tells when a library's own thread has ended
    return [
        f"file {number}: {_describe(number, target)}"
        for number, target in _opened_since(before).items()
    ]


def open_signal_pipe() -> None:
    """Let libuv open the pipe that the first of its loops opens and that stays for the process: it
    is no test's.
    """
    uvloop.new_event_loop().close()


def leaked_threads(before: Iterable[threading.Thread]) -> list[str]:
    """The threads that run now and did not `before`."""
    known = set(before)
    started = [thread for thread in threading.enumerate() if thread not in known]
    for thread in started:
        thread.join(GRACE)
    return [f"thread {thread.name!r}" for thread in started if thread.is_alive()]


def watch_sessions() -> None:
    """Remember the sessions that are made from now on. One that isn't closed may have no socket
    any more, and warns only when its garbage is collected, which fails whatever test runs then.
    """
    make = aiohttp.ClientSession.__init__

    @functools.wraps(make)
    def remembered(session: aiohttp.ClientSession, *arguments: Any, **named: Any) -> None:
        make(session, *arguments, **named)
        caller = sys._getframe(1)
        _sessions[session] = f"{caller.f_code.co_filename}:{caller.f_lineno}"

    aiohttp.ClientSession.__init__ = remembered  # type: ignore[assignment, method-assign]


def open_sessions() -> Sessions:
    """The sessions that are open now."""
    return {session: place for session, place in _sessions.items() if not session.closed}


def leaked_sessions(before: Sessions) -> list[str]:
    """The sessions that are open now and were not `before`."""
    return [
        f"HTTP session made in {place}"
        for session, place in open_sessions().items()
        if session not in before
    ]


async def leaked_tasks() -> list[str]:
    """The tasks of the running loop other than the current one."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE)
    return [f"task {task.get_name()!r} in {_place(task)}" for task in tasks if not task.done()]


def _opened_since(before: Files) -> Files:
    return {
        number: target
        for number, target in open_files().items()
        if target not in {before.get(number), SPARE}
    }


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    where = f" ({frames[0].f_code.co_filename}:{frames[0].f_lineno})" if frames else ""
    return getattr(task.get_coro(), "__qualname__", "?") + where


def _describe(number: int, target: str) -> str:
    if not target.startswith("socket:"):
        return target
    try:
        with socket.socket(fileno=os.dup(number)) as copy:
            return f"{target} at {copy.getsockname()}"
    except OSError:
        return target
