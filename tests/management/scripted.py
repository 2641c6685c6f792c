"""A client, and a service that answers it as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from forwarder.core.clock import Clock, SystemClock
from forwarder.management import ApiError, Client
from tests.support.clock import FakeClock
from tests.support.upstream import Answer, Upstream
from tests.support.waiting import tick

T = TypeVar("T")

KEY: Final = "phx_0123456789abcdefABCDEF"
ORGANIZATION: Final = "01900000-0000-7000-8000-0000000000aa"
DOMAIN: Final = "01900000-0000-7000-8000-0000000000bb"
_JSON: Final = {"Content-Type": "application/json"}


def said(value: Any, status: int = 200, **headers: str) -> Answer:
    """A JSON answer; `retry_after="3"` becomes the header Retry-After."""
    return Answer(
        status,
        json.dumps(value).encode(),
        {**_JSON, **{name.replace("_", "-").title(): text for name, text in headers.items()}},
    )


def raw(
    body: bytes, status: int = 200, content_type: str = "application/json", **headers: str
) -> Answer:
    """An answer with this body."""
    named = {name.replace("_", "-").title(): text for name, text in headers.items()}
    return Answer(status, body, {"Content-Type": content_type, **named} if content_type else named)


def envelope(*ids: object, count: int, following: str | None = None) -> dict[str, Any]:
    """A page with items of these ids."""
    return {
        "count": count,
        "next": following,
        "previous": None,
        "results": [{"id": identity} for identity in ids],
    }


@asynccontextmanager
async def talking(
    clock: Clock | None = None, *answers: Answer, **options: Any
) -> AsyncIterator[tuple[Client, Upstream]]:
    """A client of a service that gives these answers, one a request, and 404 after them."""
    async with Upstream(lambda _: said({"detail": "Not found."}, 404)) as service:
        service.script.extend(answers)
        async with Client(service.url, KEY, clock=clock or SystemClock(), **options) as client:
            yield client, service


async def waited(work: Awaitable[T], clock: FakeClock) -> T:
    """What comes of the work; the time passes while it waits for the clock alone: two timers, its
    limit and a wait.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        await tick()
        if clock.pending > 1:
            await clock.advance(0.25)
    return await task


async def refusal(work: Awaitable[object]) -> ApiError:
    """The error that the work raises."""
    try:
        result = await work
    except ApiError as error:
        return error
    raise AssertionError(f"it returned {result!r}")


def numbers(target: str) -> Mapping[str, int]:
    """The query of a path, as numbers."""
    query = target.partition("?")[2]
    return {
        name: int(text)
        for name, _, text in (pair.partition("=") for pair in query.split("&") if pair)
    }
