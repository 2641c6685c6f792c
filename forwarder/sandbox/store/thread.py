"""The one thread that uses the database, and its queue.

Work runs in the order of submission. All queued work shares one transaction and is answered after
its commit, so that many writers share a commit; failing work is rolled back alone, by its
savepoint. Why a thread: SQLite blocks, and so does decoding a large body; the event loop belongs
to the program that runs the sandbox.

Arrivals are folded into persons and groups while the queue is empty, a step at a time, and where
that never happens, as many as came with each transaction once `BEHIND` are left. So a query of
persons, such as `/decide`, waits for a bounded number of arrivals, however many there are; only a
file of an older version, whose persons are derived anew, has more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from forwarder.sandbox.store.database import Store

T = TypeVar("T")
GROUP: Final = 64
"""Units of work in one commit at most."""
BEHIND: Final = 1_000
"""Arrivals that may be left to fold while requests come without a pause: 40 to 110 milliseconds."""


class _Work:
    """Work on the store, and the future of its result."""

    __slots__ = ("do", "error", "future", "loop", "result")

    def __init__(self, do: Callable[[Store], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.do = do
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: Exception | None = None

    def settle(self) -> None:
        """Resolve the future, unless it was cancelled. On the loop's thread."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class StoreThread:
    """A store behind a thread. Raises `ConfigurationError` if the database can't be used."""

    def __init__(self, path: Path | None) -> None:
        self._store = Store(path)
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._last: _Work | None = None
        self._arrived = self._store.last_arrival()
        self.next_commit = asyncio.Event()
        """Is set on the loop's thread by the next commit that writes something, and replaced by a
        new event.
        """
        self._thread = threading.Thread(target=self._run, name="sandbox-store", daemon=True)
        self._thread.start()

    async def run(self, do: Callable[[Store], T]) -> T:
        """Run `do` on the store's thread and return what it returns, once that is committed. What
        `do` raises is raised here.

        Raises `RuntimeError` after `close`. Cancellation ends the wait; the
        work is done all the same.
        """
        if self._last is not None:
            raise RuntimeError("the sandbox is closed")
        work = _Work(do, asyncio.get_running_loop())
        self._queue.put(work)
        result: T = await work.future
        return result

    async def ask(self, do: Callable[[Store], T]) -> T:
        """Run a query of persons, groups or events, once all arrivals until now are folded in.

        Folding is done in steps, so that a long backlog does not delay
        requests. Otherwise as `run`.
        """
        end = await self.run(Store.last_arrival)
        while await self.run(lambda store: store.effects.advance(end)):
            continue
        return await self.run(do)

    async def close(self) -> None:
        """Do the queued work, close the database, end the thread. A second call waits for the
        first. Cancellation ends the wait only.
        """
        if self._last is None:
            self._last = _Work(Store.close, asyncio.get_running_loop())
            self._queue.put(self._last)
        await asyncio.shield(self._last.future)
        self._thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            group = self._group()
            changes = self._store.changes
            last = group[-1] is self._last
            if last:
                closing = group.pop()
            if group:
                self._transact(group)
            wrote = self._store.changes > changes
            if last:
                self._store.close()
                group.append(closing)
            loop = group[0].loop
            loop.call_soon_threadsafe(self._settle, group, wrote)
            if not last and self._fold_some():
                loop.call_soon_threadsafe(self._settle, [], True)

    def _fold_some(self) -> bool:
        """Fold arrivals until work waits and enough of the new ones are folded; whether any were.

        What fails is not reported: the next query of persons folds the same arrivals, and fails.
        """
        folded = False
        try:
            last = self._store.last_arrival()
            owed = last - self._arrived
            self._arrived = last
            while left := self._store.arrivals_left():
                if not self._queue.empty() and (owed <= 0 or left <= BEHIND):
                    break
                self._store.execute("BEGIN")
                self._store.effects.advance()
                self._store.execute("COMMIT")
                owed -= left - self._store.arrivals_left()
                folded = True
        except Exception:
            self._roll_back()
        return folded

    # FBT001: `call_soon_threadsafe` passes no keywords.
    def _settle(self, group: list[_Work], wrote: bool) -> None:  # noqa: FBT001
        for work in group:
            work.settle()
        if wrote:
            self.next_commit.set()
            self.next_commit = asyncio.Event()

    def _group(self) -> list[_Work]:
        """Queued work, up to `GROUP`; the closing, if included, is the last."""
        group = [self._queue.get()]
        while len(group) < GROUP and not self._queue.empty():
            group.append(self._queue.get_nowait())
        return group

    def _transact(self, group: list[_Work]) -> None:
        try:
            self._store.execute("BEGIN")
            for work in group:
                self._attempt(work)
            self._store.execute("COMMIT")
        except Exception as error:
            for work in group:
                work.error = work.error or error
            self._roll_back()

    def _attempt(self, work: _Work) -> None:
        self._store.execute("SAVEPOINT work")
        try:
            work.result = work.do(self._store)
        except Exception as error:
            work.error = error
            self._store.execute("ROLLBACK TO work")
        self._store.execute("RELEASE work")

    def _roll_back(self) -> None:
        if self._store.in_transaction:
            self._store.execute("ROLLBACK")
