"""The thread that makes calls for programs without a loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from forwarder.management import InvalidCall
from forwarder.management.loop_thread import LoopThread

LINES = (3, 4, 5, 7)
"""Of `LoopThread.run`, counted as they are executed: from the first inside its `try` to the one that waits. Not the sixth, at which the
lock is given back: no signal is looked at before that is done."""


class Works:
    """What is done in a loop thread, and whether it has ended."""

    def __init__(self) -> None:
        self.last_done = 0
        self.begun = threading.Event()
        self.ended = threading.Event()
        self.thread = LoopThread(self.last)

    async def last(self) -> None:
        """See `LoopThread`."""
        self.last_done += 1

    async def waiting(self) -> str:
        """Waits until it is cancelled, or for a while."""
        self.begun.set()
        try:
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        finally:
            self.ended.set()
        return "never"


@pytest.fixture
def works() -> Iterator[Works]:
    """A thread, ended afterwards."""
    under_test = Works()
    yield under_test
    under_test.thread.end()


@contextmanager
def interrupted(function: Callable[..., Any], line: int) -> Iterator[None]:
    """Raise an interrupt before a line of a function is executed; lines count from 1."""
    passed = 0

    def each(_: FrameType, event: str, __: object) -> Any:
        nonlocal passed
        passed += event == "line"
        if event == "line" and passed == line:
            raise KeyboardInterrupt
        return each

    before = sys.gettrace()
    sys.settrace(lambda frame, _, __: each if frame.f_code is function.__code__ else None)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("line", LINES)
def test_an_interrupt_ends_the_work_whenever_it_comes(works: Works, line: int) -> None:
    """Ctrl-C may come between any two lines: what has begun is cancelled and has ended, and nothing begins afterwards."""
    with pytest.raises(KeyboardInterrupt), interrupted(LoopThread.run, line):
        works.thread.run(works.waiting())
    assert not works.begun.is_set() or works.ended.is_set()
    assert works.thread.run(_answer()) == 42
    assert not works.begun.is_set() or works.ended.is_set()


def test_the_last_line_is_the_one_that_waits(works: Works) -> None:
    """The test above reaches as far as it says."""
    lines: list[int] = []

    def each(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            lines.append(frame.f_lineno)
        return each

    before = sys.gettrace()
    sys.settrace(lambda frame, _, __: each if frame.f_code is LoopThread.run.__code__ else None)
    try:
        works.thread.run(_answer())
    finally:
        sys.settrace(before)
    assert len(lines) == LINES[-1]


def test_the_end_comes_once(works: Works) -> None:
    """What is last is done once, if there was anything before; after that nothing is."""
    works.thread.run(_answer())
    works.thread.end()
    works.thread.end()
    assert works.last_done == 1
    with pytest.raises(InvalidCall, match="the client is closed"):
        works.thread.run(_answer())
    unused = Works()
    unused.thread.end()
    assert unused.last_done == 0


def test_a_thread_that_cannot_start_is_no_half_thread(works: Works, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no thread to be had, the call says so, and the next one tries again."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            works.thread.run(_answer())
    assert works.thread.run(_answer()) == 42


async def _answer() -> int:
    return 42
