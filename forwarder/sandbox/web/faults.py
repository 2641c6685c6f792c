"""Faults for tests: `/sandbox/faults` makes the service's endpoints fail, answer late, or reset
connections.

A request gets the first fault, in the order in which they were added, that is for its path and has
requests or seconds left; it gets one at most. A fault `before` comes instead of the endpoint; with
one `after`, the endpoint does its work and only its answer is lost, which is how events arrive
twice. Faults are in memory and count real time, not that of the sandbox's clock. Browsers'
preflight requests get none, and neither do the sandbox's own pages and lists.

A request with a fault is among `/sandbox/requests` with the status that it got; a reset connection
has the status 0.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from forwarder.core.near_names import propose_name
from forwarder.pages.hosts import reject_other_sites
from forwarder.sandbox.flags.failing import FAILING_HANDLERS, FAILING_PATHS, FlagFailure
from forwarder.sandbox.ingest.capture import AI_PATH
from forwarder.sandbox.ingest.v1 import V1_PATH
from forwarder.sandbox.protocol.http import (
    RequestRejected,
    ServiceResponse,
    answer_early,
    read_body,
)
from forwarder.sandbox.web.service import EVENT_PATHS, ServiceEndpoints, cors_headers

DEFAULT_PATHS: Final = (*EVENT_PATHS, V1_PATH, AI_PATH)
MAX_DELAY: Final = 300.0
MAX_FAULTS: Final = 1000
"""Faults with something left, at most."""
FINISHED: Final = 100
"""Faults with nothing left that are still listed: the latest."""
MAX_BODY: Final = 1_000_000
MEMBERS: Final = (
    "A fault has status (200 to 599), reset (true), flags (over_quota, rate_limited or "
    "unavailable) or delay (seconds), or delay with one of the others; "
    "times (default 1) or seconds; "
    "and may have path (one or a list; * at its end stands for any rest), when (before or after), "
    "retry_after and body."
)
_OWN: Final = ("/sandbox", "/page", "/openapi.json", "/livez")


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


FaultPath: TypeAlias = Annotated[str, Field(pattern=r"^[/*]", max_length=1000)]


class FaultSpec(BaseModel):
    """A fault, as it is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    status: Annotated[int, Field(ge=200, le=599)] | None = None
    reset: bool = False
    flags: FlagFailure | None = None
    delay: Annotated[float, Field(gt=0, le=MAX_DELAY)] | None = None
    times: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    path: Annotated[
        Annotated[list[FaultPath], Field(min_length=1)] | None, BeforeValidator(_as_list)
    ] = None
    when: Literal["before", "after"] = "before"
    retry_after: (
        Annotated[int, Field(ge=0)]
        | Annotated[str, Field(pattern=r"^[ -~]+$", max_length=100)]
        | None
    ) = None
    body: Any = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.status is not None) + self.reset + (self.flags is not None) > 1:
            raise ValueError("status, reset and flags exclude each other")
        if self.status is None and not self.reset and self.flags is None and self.delay is None:
            raise ValueError("it has neither status nor reset nor delay nor flags")
        if self.status is None and (self.body is not None or self.retry_after is not None):
            raise ValueError("body and retry_after belong to a status")
        if self.flags is not None and self.when == "after":
            raise ValueError("flags come instead of the endpoint, not after it")
        if self.flags is not None and any(
            path.rstrip("/") not in FAILING_PATHS for path in self.path or ()
        ):
            raise ValueError(f"flags is for the paths {', '.join(FAILING_PATHS)}")
        if any(path.startswith(_OWN) for path in self.path or ()):
            raise ValueError("the sandbox's own lists and pages have no faults")
        return self

    def covers(self, path: str) -> bool:
        """Whether it is for requests to this path."""
        path = path.rstrip("/")
        return any(
            path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern.rstrip("/")
            for pattern in self.paths
        )

    @property
    def paths(self) -> list[str]:
        """What it is for; unless it says, the endpoints of what it makes fail."""
        return self.path or list(DEFAULT_PATHS if self.flags is None else FAILING_PATHS)

    def response(self) -> ServiceResponse | None:
        """What is answered instead; None if the endpoint's own answer is. A reset connection has
        the status 0.
        """
        if self.reset:
            return ServiceResponse(0, "", error="a fault: connection reset")
        if self.status is None:
            return None
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        kind = "text/plain"
        body = self.body
        if body is None:
            body = f"{self.status}: a fault of /sandbox/faults\n"
        elif not isinstance(body, str):
            kind = "application/json"
            body = json.dumps(body)
        return ServiceResponse(
            self.status, body, kind, error=f"a fault: {self.status}", headers=headers
        )


@dataclass(slots=True)
class ActiveFault:
    """A fault, and what is left of it."""

    number: int
    spec: FaultSpec
    left: int | None
    """Requests; None for as many as come in its time."""
    end: float | None
    applied: int = 0

    def shown(self, now: float) -> dict[str, object]:
        """Its members, what is left of it, and how often it was applied."""
        seconds_left = None if self.end is None else round(max(0.0, self.end - now), 3)
        members = self.spec.model_dump()
        members["path"] = self.spec.paths
        return {
            "id": self.number,
            **members,
            "left": self.left,
            "seconds_left": seconds_left,
            "applied": self.applied,
        }


class Faults:
    """The faults, in order. `now` is a clock that never goes back, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._numbers = itertools.count(1)
        self._active: list[ActiveFault] = []
        self._finished: deque[ActiveFault] = deque(maxlen=FINISHED)

    @property
    def room(self) -> int:
        """How many more there may be."""
        self._sweep()
        return MAX_FAULTS - len(self._active)

    def add(self, specs: Iterable[FaultSpec]) -> None:
        """Add faults after those that are there; their seconds begin now."""
        for spec in specs:
            times = 1 if spec.times is None and spec.seconds is None else spec.times
            end = None if spec.seconds is None else self._now() + spec.seconds
            self._active.append(ActiveFault(next(self._numbers), spec, times, end))

    def take(self, path: str) -> FaultSpec | None:
        """The fault of a request to this path, which counts as applied."""
        self._sweep()
        fault = next((fault for fault in self._active if fault.spec.covers(path)), None)
        if fault is None:
            return None
        fault.applied += 1
        if fault.left is not None:
            fault.left -= 1
        return fault.spec

    def clear(self) -> None:
        """Forget all of them."""
        self._active.clear()
        self._finished.clear()

    def shown(self) -> dict[str, object]:
        """Those with something left, and the latest of those with nothing left."""
        self._sweep()
        now = self._now()
        results, finished = (
            [fault.shown(now) for fault in faults] for faults in (self._active, self._finished)
        )
        return {"count": len(results), "results": results, "finished": finished}

    def _sweep(self) -> None:
        now = self._now()
        over = [
            fault
            for fault in self._active
            if fault.left == 0 or (fault.end is not None and fault.end <= now)
        ]
        if over:
            self._active = [fault for fault in self._active if fault not in over]
            self._finished.extend(over)


class FaultEndpoints:
    """The endpoints that set, show and remove faults, and the middleware that applies them."""

    def __init__(self, faults: Faults, service: ServiceEndpoints) -> None:
        self._faults = faults
        self._service = service
        self._closing = asyncio.Event()

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        path = "/sandbox/faults"
        return [
            web.get(path, self.show, allow_head=False),
            web.post(path, self.add),
            web.delete(path, self.clear),
        ]

    async def close(self, _application: web.Application) -> None:
        """End every delay, so that the shutdown waits for none."""
        self._closing.set()

    async def show(self, _request: web.Request) -> web.Response:
        """GET /sandbox/faults: what is left, and how often each was applied."""
        return web.json_response(self._faults.shown())

    async def add(self, request: web.Request) -> web.Response:
        """POST /sandbox/faults: one fault, or a list in order. Not for pages of other sites."""
        reject_other_sites(request)
        try:
            body = await read_body(request, MAX_BODY)
        except RequestRejected as rejection:
            return await answer_early(
                request, web.Response(status=rejection.status, text=f"{rejection.message}\n")
            )
        specs = _parse(body)
        for path in [path for spec in specs for path in spec.path or ()]:
            if not path.endswith("*") and not await _is_served(request, path):
                raise web.HTTPBadRequest(text=f"path: the sandbox does not serve {path!r}\n")
        if len(specs) > self._faults.room:
            raise web.HTTPBadRequest(
                text=f"there are {MAX_FAULTS} faults at most; DELETE /sandbox/faults removes them\n"
            )
        self._faults.add(specs)
        return web.json_response(self._faults.shown(), status=201)

    async def clear(self, request: web.Request) -> web.Response:
        """DELETE /sandbox/faults: remove all. Not for pages of other sites."""
        reject_other_sites(request)
        self._faults.clear()
        return web.Response(status=204)

    def middleware(self) -> Middleware:
        """Applies the faults to requests for the service's endpoints and the management API."""

        @web.middleware
        async def apply_fault(request: web.Request, handler: Handler) -> web.StreamResponse:
            path = request.path
            if request.method == "OPTIONS" or path == "/" or path.startswith(_OWN):
                return await handler(request)
            fault = self._faults.take(path)
            return (
                await handler(request)
                if fault is None
                else await self._apply(fault, request, handler)
            )

        return apply_fault

    async def _apply(
        self, fault: FaultSpec, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        if fault.flags is not None:
            await self._delay(fault)
            return await self._service.serve(FAILING_HANDLERS[fault.flags], request)
        instead = fault.response()
        if fault.when == "before":
            await self._delay(fault)
            return (
                await handler(request) if instead is None else await self._answer(instead, request)
            )
        if instead is None:
            response = await handler(request)
            await self._delay(fault)
            return response
        self._service.answer_instead(request, instead)
        try:
            response = await handler(request)
        finally:
            unrecorded = self._service.forget_instead(request)
        await self._delay(fault)
        if response.prepared:
            return response
        return await self._answer(instead, request) if unrecorded else _sent(instead, request)

    async def _answer(self, instead: ServiceResponse, request: web.Request) -> web.StreamResponse:
        """Record the request, and answer it."""
        unread = await self._service.record(request, instead)
        response = _sent(instead, request)
        return await answer_early(request, response) if unread and instead.status else response

    async def _delay(self, fault: FaultSpec) -> None:
        if fault.delay is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(fault.delay):
                    await self._closing.wait()


def _sent(instead: ServiceResponse, request: web.Request) -> web.Response:
    """The response instead of the endpoint's; with the status 0 the connection is reset."""
    if not instead.status:
        _reset(request)
        return web.Response()
    response = instead.response()
    response.headers.update(cors_headers(request))
    return response


def _reset(request: web.Request) -> None:
    transport = request.transport
    if transport is None:
        return
    if (
        connection := transport.get_extra_info("socket")
    ) is not None and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _parse(body: bytes) -> list[FaultSpec]:
    """The faults of a body. Raises 400, with words that say what there is."""
    try:
        content = json.loads(body)
        # half a surrogate pair could not be answered
        json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text=f"the body is not JSON. {MEMBERS}\n") from None
    listed = content if isinstance(content, list) else [content]
    if not listed or not all(isinstance(entry, dict) for entry in listed):
        raise web.HTTPBadRequest(
            text=f"the body is not a fault, an object, or a list of them. {MEMBERS}\n"
        )
    try:
        return [FaultSpec.model_validate(entry) for entry in listed]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"] if part in FaultSpec.model_fields)
        if first["type"] == "extra_forbidden":
            name = str(first["loc"][-1])[:100]
            problem = f"there is no {name!r}, {propose_name(name, FaultSpec.model_fields)}"
        else:
            problem = first["msg"].removeprefix("Value error, ")
        raise web.HTTPBadRequest(
            text=f"{where}{': ' if where else ''}{problem.rstrip('?')}. {MEMBERS}\n"
        ) from None


async def _is_served(request: web.Request, path: str) -> bool:
    """Whether there is an endpoint of this path, of whatever method."""
    match = await request.app.router.resolve(request.clone(rel_url=request.rel_url.with_path(path)))
    return match.http_exception is None or match.http_exception.status == 405
