"""A process that can be killed at any step: what runs in its context, and what that has started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop

PROCESS: Final[ContextVar[SimulatedProcess | None]] = ContextVar("process", default=None)
"""The process that a step belongs to; None: it is one of the world's."""

_T = TypeVar("_T")


class Killed(BaseException):
    """The process is killed in this step: nothing of it goes on."""


class SimulatedProcess:
    """From its start to its end, whichever that is."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.killed = False
        self.over = asyncio.Event()
        """Set when it has ended, or was killed."""
        self.on_kill: list[Callable[[], None]] = []
        """Called in order when it is killed, or has ended."""
        self._context: Context = copy_context()
        self._context.run(PROCESS.set, self)
        self.left: list[asyncio.Task[Any]] = []
        """Its tasks when it was over: nothing of them may run, not even as garbage."""

    def call(self, work: Callable[..., _T], *args: object) -> _T:
        """Do something in the process. Raises `Killed` if it doesn't survive that."""
        return self._context.copy().run(work, *args)

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do something in the process. Raises `Killed` if it doesn't survive that."""
        task = self._loop.create_task(work, context=self._context.copy())
        over = self._loop.create_task(self.over.wait(), name="waiting for a process")
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
            if self.killed or not task.done():
                raise Killed
            return task.result()
        finally:
            over.cancel()
            if not self.killed and not task.done():
                task.cancel()
            await asyncio.gather(over, return_exceptions=True)

    def kill(self) -> None:
        """End it at once: none of its steps comes any more."""
        if self.killed:
            return
        self.killed = True
        self.left = self._loop.forget(self)
        for callback in self.on_kill:
            Context().run(callback)
        self.over.set()

    def bury(self) -> None:
        """Let go of its tasks, in order, with everything that they would still do. At the end of
        a life: it would come whenever garbage is collected otherwise.
        """
        for task in self.left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                self.call(task.get_coro().close)
        self.left.clear()


def is_dead(context: Context | None) -> bool:
    """Whether what has this context, None for the current one, is of a process that is over."""
    process = PROCESS.get() if context is None else context.get(PROCESS)
    return process is not None and process.killed
