"""The blocking client of the management API: the same operations, on an event loop in a thread of
its own.

Each blocking operation is derived from the asynchronous one, with its signature, so that they
cannot differ. It works beside a running loop, too. A forked process does not have the thread:
there, calls are rejected.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, TypeVar

from forwarder.contract.endpoints import Endpoint
from forwarder.contract.resources import PageEnvelope
from forwarder.core.clock import Clock
from forwarder.management.client import (
    CLOCK,
    TIMEOUT,
    BatchExportOperations,
    BatchExportRunOperations,
    Client,
    DashboardOperations,
    DomainOperations,
    InviteOperations,
    MemberOperations,
    OperationGroup,
    OrganizationBatchExportOperations,
    ProjectOperations,
)
from forwarder.management.errors import ApiError, InvalidCall
from forwarder.management.pages import NewItems, Pages

R = TypeVar("R")
G = TypeVar("G", bound=OperationGroup)
P = ParamSpec("P")
T = TypeVar("T")
GRACE: Final = 2.0
"""Seconds that an interrupted call has to end."""


class SyncClient:
    """The blocking `Client`. Calls are made in a thread, which starts with the first; any
    thread may call, and one with a running loop, too.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        timeout: float = TIMEOUT,
        ca_file: str | Path | None = None,
        proxy: str | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        client = self._client = Client(
            url, api_key, timeout=timeout, ca_file=ca_file, proxy=proxy, clock=clock
        )
        thread = self._thread = LoopThread(client.close)
        self.organization_batch_exports = SyncOrganizationBatchExportOperations(
            client.organization_batch_exports, thread
        )
        self.domains = SyncDomainOperations(client.domains, thread)
        self.invites = SyncInviteOperations(client.invites, thread)
        self.members = SyncMemberOperations(client.members, thread)
        self.projects = SyncProjectOperations(client.projects, thread)
        self.batch_exports = SyncBatchExportOperations(client.batch_exports, thread)
        self.batch_export_runs = SyncBatchExportRunOperations(client.batch_export_runs, thread)
        self.dashboards = SyncDashboardOperations(client.dashboards, thread)

    def __repr__(self) -> str:
        return repr(self._client).replace("<", "<Sync", 1)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client holds a key and connections: it can't be copied or pickled")

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; calls are rejected from then on."""
        self._thread.end()

    def call(
        self, endpoint: Endpoint[Any, Any], ids: Mapping[str, object], body: Any = None
    ) -> Any:
        """What an endpoint answers (of a list: its first page); None if nothing.
        Raises `ApiError`.
        """
        return self._thread.run(self._client.call(endpoint, ids, body))

    def pages(
        self, endpoint: Endpoint[Any, R], ids: Mapping[str, object], page_size: int | None = None
    ) -> SyncPages[R]:
        """The list that an endpoint gives."""
        return SyncPages(self._client.pages(endpoint, ids, page_size), self._thread)


class SyncPages(Generic[T]):
    """A list of the service. Nothing is requested before the iteration, and
    each iteration starts again.
    """

    def __init__(self, pages: Pages[T], thread: LoopThread) -> None:
        self._pages = pages
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._pages).replace("<", "<Sync", 1)

    def page(self, limit: int | None = None, offset: int | None = None) -> PageEnvelope[T]:
        """One page. Raises `ApiError`."""
        return self._thread.run(self._pages.page(limit, offset))

    def count(self) -> int:
        """How many items there are. Raises `ApiError`."""
        return self._thread.run(self._pages.count())

    def pages(self) -> Iterator[PageEnvelope[T]]:
        """The pages as they are: if the list changes meanwhile, an item can be on two. Each has
        its own time limit.
        """
        steps = self._pages.pages()

        async def step() -> PageEnvelope[T] | None:
            return await anext(steps, None)

        while (envelope := self._thread.run(step())) is not None:
            yield envelope

    def __iter__(self) -> Iterator[T]:
        """The items of all pages, none twice."""
        new = NewItems()
        for envelope in self.pages():
            yield from new.of(envelope["results"])


class SyncGroup(Generic[G]):
    """The operations of one resource, which block."""

    def __init__(self, group: G, thread: LoopThread) -> None:
        self._group = group
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._group).replace("<", "<Sync", 1)


def _blocking(
    method: Callable[Concatenate[G, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncGroup[G], P], R]:
    """The method, which returns when it is done."""

    @wraps(method)
    def call(self: SyncGroup[G], /, *ids: P.args, **fields: P.kwargs) -> R:
        return self._thread.run(method(self._group, *ids, **fields))

    call.__qualname__ = f"Sync{method.__qualname__}"
    return call


def _blocking_list(
    method: Callable[Concatenate[G, P], Pages[R]],
) -> Callable[Concatenate[SyncGroup[G], P], SyncPages[R]]:
    """The method, whose list blocks while it is iterated."""

    @wraps(method)
    def call(self: SyncGroup[G], /, *ids: P.args, **options: P.kwargs) -> SyncPages[R]:
        return SyncPages(method(self._group, *ids, **options), self._thread)

    signature = inspect.signature(method)
    call.__qualname__ = f"Sync{method.__qualname__}"
    vars(call)["__signature__"] = signature.replace(
        return_annotation=f"Sync{signature.return_annotation}"
    )
    return call


class SyncOrganizationBatchExportOperations(SyncGroup[OrganizationBatchExportOperations]):
    """The blocking `OrganizationBatchExportOperations`."""

    pause = _blocking(OrganizationBatchExportOperations.pause)
    unpause = _blocking(OrganizationBatchExportOperations.unpause)


class SyncDomainOperations(SyncGroup[DomainOperations]):
    """The blocking `DomainOperations`."""

    list = _blocking_list(DomainOperations.list)
    create = _blocking(DomainOperations.create)
    get = _blocking(DomainOperations.get)
    update = _blocking(DomainOperations.update)
    delete = _blocking(DomainOperations.delete)
    verify = _blocking(DomainOperations.verify)


class SyncInviteOperations(SyncGroup[InviteOperations]):
    """The blocking `InviteOperations`."""

    list = _blocking_list(InviteOperations.list)
    create = _blocking(InviteOperations.create)
    delete = _blocking(InviteOperations.delete)
    bulk = _blocking(InviteOperations.bulk)


class SyncMemberOperations(SyncGroup[MemberOperations]):
    """The blocking `MemberOperations`."""

    list = _blocking_list(MemberOperations.list)
    update = _blocking(MemberOperations.update)
    delete = _blocking(MemberOperations.delete)


class SyncProjectOperations(SyncGroup[ProjectOperations]):
    """The blocking `ProjectOperations`."""

    list = _blocking_list(ProjectOperations.list)
    create = _blocking(ProjectOperations.create)
    get = _blocking(ProjectOperations.get)


class SyncBatchExportOperations(SyncGroup[BatchExportOperations]):
    """The blocking `BatchExportOperations`."""

    get = _blocking(BatchExportOperations.get)
    update = _blocking(BatchExportOperations.update)
    delete = _blocking(BatchExportOperations.delete)
    backfill = _blocking(BatchExportOperations.backfill)
    pause = _blocking(BatchExportOperations.pause)
    unpause = _blocking(BatchExportOperations.unpause)
    logs = _blocking(BatchExportOperations.logs)


class SyncBatchExportRunOperations(SyncGroup[BatchExportRunOperations]):
    """The blocking `BatchExportRunOperations`."""

    retry = _blocking(BatchExportRunOperations.retry)


class SyncDashboardOperations(SyncGroup[DashboardOperations]):
    """The blocking `DashboardOperations`."""

    list = _blocking_list(DashboardOperations.list)


class LoopThread:
    """The thread starts with the first call and ends with `end`, or with the program. Any thread
    may call.
    """

    def __init__(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`last`: what is to be done at the end, if anything was done before."""
        self._last = last
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._ended = False

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """What the coroutine returns or raises. An interrupt cancels it, whenever it comes, and is
        raised once it has ended.
        """
        call = _Call(work)
        try:
            with self._lock:
                loop = call.loop = self._running()
                future = asyncio.run_coroutine_threadsafe(call.run(), loop)
            return future.result()
        except CancelledError:
            error = ApiError(
                "the client was closed during a call",
                type="usage_error",
                code="closed",
                unsure=True,
            )
        except BaseException:
            call.abandon()
            raise
        raise error

    def end(self) -> None:
        """Cancel what runs, do what is last, and end the thread. A second time it does nothing."""
        atexit.unregister(self.end)
        with self._lock:
            loop = self._loop
            thread = self._thread
            self._loop = None
            self._thread = None
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
                raise InvalidCall(
                    "the client is of another process, which this one was forked from",
                    hint="Make a client in each process.",
                )
            return self._loop
        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=_serve, args=(loop,), name="forwarder-management", daemon=True
        )
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        self._loop = loop
        self._thread = thread
        self._process = os.getpid()
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
    """One coroutine, as the loop's thread runs it. Who waits for it can abandon it even before it
    has begun.
    """

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
        """End it, unless it has ended, and wait for that a moment. For other
        threads than the loop's.
        """
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
