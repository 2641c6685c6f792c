"""An event loop whose time is virtual: it jumps to the next timer when nothing is ready. The
standard library's loop with a selector that never waits; what others do in threads, and what
arrives from the network, are timers at instants that the seed draws.

Callbacks that are ready run in the order in which they became so, which asyncio promises.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from tests.simulation.network import Connected, SimulatedTransport, passing
from tests.simulation.process import PROCESS, Killed, SimulatedProcess, is_dead
from tests.simulation.trace import Trace

STANDS_STILL: Final = 100_000
"""Turns of the loop in which time doesn't pass, after which it never will."""

LONGEST_STEP: Final = 0.05
"""Seconds that a thread takes at most for one step."""

_T = TypeVar("_T")


class StandsStill(Exception):
    """Nothing will ever happen again, or too much happens at one instant."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """`seconds` is the virtual time since its beginning."""

    def __init__(self, chance: Random, trace: Trace) -> None:
        super().__init__()
        self.seconds = 0.0
        self.chance = chance
        self.trace = trace
        self._selector = _NeverWaits(self)
        self._clock_resolution = 1e-9
        self.numbers = itertools.count()
        """Of tasks."""
        self.unhandled: list[str] = []
        """What the loop's exception handler was told."""
        self.set_exception_handler(self._note)
        self._owners: WeakKeyDictionary[asyncio.Task[Any], SimulatedProcess | None] = (
            WeakKeyDictionary()
        )
        self.set_task_factory(_own)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.seconds

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Killed):
            self.unhandled.append(f"{context.get('message')}: {error!r}")

    # Processes that are killed

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Of a process that is over nothing comes."""
        if is_dead(context):
            return _never(self, callback)
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Of a process that is over nothing comes."""
        if is_dead(context):
            timer = asyncio.TimerHandle(when, callback, args, self)
            timer.cancel()
            return timer
        return super().call_at(when, callback, *args, context=context)

    def timers_of(self, process: SimulatedProcess) -> list[str]:
        """What the process still waits for."""
        return [
            repr(timer)
            for timer in self._scheduled  # type: ignore[attr-defined]
            if not timer.cancelled() and timer._context.get(PROCESS) is process
        ]

    def forget(self, process: SimulatedProcess) -> list[asyncio.Task[Any]]:
        """Nothing of this process, which is killed, happens any more; its tasks."""
        for handle in (*self._ready, *self._scheduled):  # type: ignore[attr-defined]
            if not handle.cancelled() and handle._context.get(PROCESS) is process:
                handle.cancel()
        return [
            task
            for task, owner in list(self._owners.items())
            if owner is process and not task.done()
        ]

    # What the standard library's loop asks of its heirs

    def _process_events(self, _: object) -> None:
        """There are none: what arrives is a timer."""

    def _write_to_self(self) -> None:
        """Nothing waits that would have to be woken."""

    # Threads

    def run_in_executor(
        self, _: object, work: Callable[..., _T], *args: object
    ) -> asyncio.Future[_T]:
        """The work is one step, at an instant that is drawn."""
        future: asyncio.Future[_T] = self.create_future()

        def step() -> None:
            if future.cancelled():
                return
            self.trace.note("thread", getattr(work, "__qualname__", "work"))
            try:
                result = work(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.chance.uniform(0.0, LONGEST_STEP), step)
        return future

    # The network

    def add_reader(  # type: ignore[override]
        self, listening: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        """Only of a listening socket."""
        context = copy_context()  # who connects has another
        arrivals = listening.arrivals
        scheduled = False

        def look() -> None:
            # as a selector does it: in each turn of the loop for as long as somebody waits
            nonlocal scheduled
            if arrivals.waiting and not scheduled:
                scheduled = True
                self.call_soon(turn, context=context)

        def turn() -> None:
            nonlocal scheduled
            scheduled = False
            if arrivals.on_arrival is look and arrivals.waiting:
                callback(*args)
                look()

        arrivals.on_arrival = look
        look()

    def remove_reader(self, listening: Any) -> bool:
        listening.arrivals.on_arrival = None
        return True

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], *, sock: Connected, **_: Any
    ) -> tuple[SimulatedTransport, asyncio.Protocol]:
        """Of one end of a connection."""
        return await self._begin(factory, sock)

    async def connect_accepted_socket(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], sock: Connected, **_: Any
    ) -> tuple[SimulatedTransport, asyncio.Protocol]:
        """Of one end of a connection."""
        return await self._begin(factory, sock)

    async def _begin(
        self, factory: Callable[[], asyncio.Protocol], end: Connected
    ) -> tuple[SimulatedTransport, asyncio.Protocol]:
        protocol = factory()
        await passing(0)
        transport = end.transport
        transport.begin(protocol)
        return transport, protocol


class _Task(asyncio.Task[Any]):
    """In sets, tasks are in the order of these numbers; by themselves in that of their places in
    memory, which is another one in each life.
    """

    def __init__(
        self, work: Coroutine[Any, Any, Any], *, loop: SimulatedLoop, context: Context | None
    ) -> None:
        self._number = next(loop.numbers)
        super().__init__(work, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


def _own(
    loop: SimulatedLoop, work: Coroutine[Any, Any, Any], *, context: Context | None = None
) -> asyncio.Task[Any]:
    """A task, noted with the process that it is of."""
    task = _Task(work, loop=loop, context=context)
    loop._owners[task] = PROCESS.get() if context is None else context.get(PROCESS)
    return task


def _never(loop: SimulatedLoop, callback: Callable[..., object]) -> asyncio.Handle:
    handle = asyncio.Handle(callback, (), loop)
    handle.cancel()
    return handle


class _NeverWaits(selectors.BaseSelector):
    """Lets time pass where a selector would wait for it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Never waits."""
        if timeout is None:
            raise StandsStill("nothing is ready, and nothing will be")
        if timeout > 0:
            self._loop.seconds += timeout
            self._turns = 0
        else:
            self._turns += 1
            if self._turns > STANDS_STILL:
                raise StandsStill(f"{STANDS_STILL} turns of the loop at one instant")
        return []

    def register(self, *_: Any) -> Any:
        """There are no files."""
        raise NotImplementedError

    def unregister(self, *_: Any) -> Any:
        """There are no files."""
        raise NotImplementedError

    def get_map(self) -> Any:
        """There are no files."""
        return {}

    def close(self) -> None:
        """Nothing is open."""
