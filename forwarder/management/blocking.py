"""From the asynchronous operations to blocking ones: each is made of the other, with its signature, so that the two can't differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from forwarder.contract.errors import Envelope
from forwarder.management import groups
from forwarder.management.groups import Group
from forwarder.management.loop_thread import LoopThread
from forwarder.management.pages import Pages, Unseen

G = TypeVar("G", bound=Group)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncPages(Generic[T]):
    """A list of the service. Nothing is asked for before it is iterated, and each iteration asks anew."""

    def __init__(self, pages: Pages[T], thread: LoopThread) -> None:
        self._pages = pages
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._pages).replace("<", "<Sync", 1)

    def page(self, limit: int | None = None, offset: int | None = None) -> Envelope[T]:
        """One page. Raises `ApiError`."""
        return self._thread.run(self._pages.page(limit, offset))

    def count(self) -> int:
        """How many items there are. Raises `ApiError`."""
        return self._thread.run(self._pages.count())

    def pages(self) -> Iterator[Envelope[T]]:
        """The pages, as they came: if the list changes meanwhile, an item may be on two. Each has its own time limit."""
        steps = self._pages.pages()

        async def step() -> Envelope[T] | None:
            return await anext(steps, None)

        while (envelope := self._thread.run(step())) is not None:
            yield envelope

    def __iter__(self) -> Iterator[T]:
        """The items of all pages, none twice."""
        new = Unseen()
        for envelope in self.pages():
            yield from new.of(envelope["results"])


class SyncGroup(Generic[G]):
    """The operations of one resource, which block."""

    def __init__(self, group: G, thread: LoopThread) -> None:
        self._group = group
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._group).replace("<", "<Sync", 1)


def blocking(method: Callable[Concatenate[G, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[SyncGroup[G], P], R]:
    """The method, which returns when it is done."""

    @wraps(method)
    def call(self: SyncGroup[G], /, *ids: P.args, **fields: P.kwargs) -> R:
        return self._thread.run(method(self._group, *ids, **fields))

    call.__qualname__ = f"Sync{method.__qualname__}"
    return call


def listing(method: Callable[Concatenate[G, P], Pages[R]]) -> Callable[Concatenate[SyncGroup[G], P], SyncPages[R]]:
    """The method, whose list blocks while it is iterated."""

    @wraps(method)
    def call(self: SyncGroup[G], /, *ids: P.args, **options: P.kwargs) -> SyncPages[R]:
        return SyncPages(method(self._group, *ids, **options), self._thread)

    signature = inspect.signature(method)
    call.__qualname__ = f"Sync{method.__qualname__}"
    vars(call)["__signature__"] = signature.replace(return_annotation=f"Sync{signature.return_annotation}")
    return call


class SyncOrganizationBatchExports(SyncGroup[groups.OrganizationBatchExports]):
    """See `groups.OrganizationBatchExports`."""

    pause = blocking(groups.OrganizationBatchExports.pause)
    unpause = blocking(groups.OrganizationBatchExports.unpause)


class SyncDomains(SyncGroup[groups.Domains]):
    """See `groups.Domains`."""

    list = listing(groups.Domains.list)
    create = blocking(groups.Domains.create)
    get = blocking(groups.Domains.get)
    update = blocking(groups.Domains.update)
    delete = blocking(groups.Domains.delete)
    verify = blocking(groups.Domains.verify)


class SyncInvites(SyncGroup[groups.Invites]):
    """See `groups.Invites`."""

    list = listing(groups.Invites.list)
    create = blocking(groups.Invites.create)
    delete = blocking(groups.Invites.delete)
    bulk = blocking(groups.Invites.bulk)


class SyncMembers(SyncGroup[groups.Members]):
    """See `groups.Members`."""

    list = listing(groups.Members.list)
    update = blocking(groups.Members.update)
    delete = blocking(groups.Members.delete)


class SyncProjects(SyncGroup[groups.Projects]):
    """See `groups.Projects`."""

    list = listing(groups.Projects.list)
    create = blocking(groups.Projects.create)
    get = blocking(groups.Projects.get)


class SyncBatchExports(SyncGroup[groups.BatchExports]):
    """See `groups.BatchExports`."""

    get = blocking(groups.BatchExports.get)
    update = blocking(groups.BatchExports.update)
    delete = blocking(groups.BatchExports.delete)
    backfill = blocking(groups.BatchExports.backfill)
    pause = blocking(groups.BatchExports.pause)
    unpause = blocking(groups.BatchExports.unpause)
    logs = blocking(groups.BatchExports.logs)


class SyncBatchExportRuns(SyncGroup[groups.BatchExportRuns]):
    """See `groups.BatchExportRuns`."""

    retry = blocking(groups.BatchExportRuns.retry)


class SyncDashboards(SyncGroup[groups.Dashboards]):
    """See `groups.Dashboards`."""

    list = listing(groups.Dashboards.list)
