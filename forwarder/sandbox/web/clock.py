"""`/sandbox/clock`: shows the sandbox's time, and moves it forward for tests. The database keeps
the offset over a restart.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from aiohttp import web

from forwarder.config.units import parse_duration
from forwarder.core.near_names import propose_name
from forwarder.pages.hosts import reject_other_sites
from forwarder.sandbox.protocol.clock import SandboxClock
from forwarder.sandbox.protocol.http import (
    ManagementError,
    RequestRejected,
    invalid,
    management_error_response,
    read_body,
)
from forwarder.sandbox.protocol.times import format_time, parse_time
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.thread import StoreThread

LARGEST_BODY: Final = 10_000
"""Bytes."""
_MOVES: Final = ("advance", "now")


class ClockEndpoints:
    """The endpoints of the clock. `settle` returns once everything that is due has run."""

    def __init__(
        self, thread: StoreThread, clock: SandboxClock, settle: Callable[[], Awaitable[None]]
    ) -> None:
        self._thread = thread
        self._clock = clock
        self._settle = settle

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        return [web.get("/sandbox/clock", self.show), web.post("/sandbox/clock", self.move)]

    async def show(self, _request: web.Request) -> web.Response:
        """GET /sandbox/clock: `{now, offset}`, the time and the seconds that it is ahead."""
        return web.json_response(
            {"now": format_time(self._clock.now()), "offset": round(self._clock.offset, 6)}
        )

    async def move(self, request: web.Request) -> web.Response:
        """POST /sandbox/clock: move it by `advance` (`1h`, or seconds) or to `now` (ISO 8601), in
        the body or the query.

        Without either it stays. `settle=true`: answer once everything that is due has run;
        cancellation ends that wait. Not for pages of other sites.
        """
        reject_other_sites(request)
        try:
            fields = await _fields(request)
            _move(self._clock, fields)
        except ManagementError as error:
            return management_error_response(error).response()
        await self._thread.run(partial(_keep, self._clock.offset))
        if str(fields.get("settle")).lower() in ("true", "1"):
            await self._settle()
        return await self.show(request)


def stored_offset(store: Store) -> timedelta:
    """How far the clock was moved forward in this database's life."""
    ((seconds,),) = store.select('SELECT "offset" FROM clock', [])
    return timedelta(seconds=seconds)


def _keep(offset: float, store: Store) -> None:
    store.connection.execute('UPDATE clock SET "offset" = max("offset", ?)', [offset])


async def _fields(request: web.Request) -> Mapping[str, Any]:
    """The fields of the query and the body, which takes precedence. Raises `ManagementError`."""
    try:
        content = await read_body(request, LARGEST_BODY)
        sent = json.loads(content) if content.strip() else {}
    except RequestRejected as rejection:
        raise invalid(
            None, f"{rejection.message[:1].upper()}{rejection.message[1:]}.", "parse_error"
        ) from None
    except (ValueError, RecursionError):
        raise invalid(None, "The body is not JSON.", "parse_error") from None
    if not isinstance(sent, dict):
        raise invalid(None, "Invalid data. Expected an object.", "invalid")
    fields = {**request.query, **sent}
    if unknown := fields.keys() - {*_MOVES, "settle"}:
        name = min(unknown)
        hint = propose_name(name, (*_MOVES, "settle"))
        raise invalid(name, f"There is no such field, {hint}", "invalid")
    return {name: value for name, value in fields.items() if value is not None}


def _move(clock: SandboxClock, fields: Mapping[str, Any]) -> None:
    """Raises `ManagementError`."""
    moves = [name for name in _MOVES if name in fields]
    if len(moves) > 1:
        raise invalid("now", "Give advance or now, not both.", "invalid")
    for name in moves:
        try:
            if name == "advance":
                clock.advance(_duration(fields[name]))
            else:
                clock.move_to(_time(fields[name]))
        except (ValueError, OverflowError) as error:
            raise invalid(name, str(error), "invalid") from None


def _time(value: object) -> datetime:
    """A time; the `+` of its zone may have become a space in the query. Raises `ValueError`."""
    moment = parse_time(
        value.strip().replace(" ", "+") if isinstance(value, str) and "T" in value else value
    )
    if moment is None:
        raise ValueError("Not an ISO 8601 time, such as 2026-01-01T00:00:00Z.")
    return moment


def _duration(value: object) -> timedelta:
    """Seconds, as a number or its text, or a text with a unit: `90`, `1.5`, `"90"`, `"1h"`. Raises
    `ValueError` or `OverflowError`.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return timedelta(seconds=value)
    text = str(value).strip()
    try:
        return timedelta(seconds=float(text))
    except ValueError:
        return timedelta(seconds=parse_duration(text))
