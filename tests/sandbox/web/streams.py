"""A reader of `/sandbox/live`, as a browser's EventSource is one: messages with a name, data and
an id.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.support.waiting import LIMIT


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One server-sent event; comments have the name `comment`."""

    name: str
    data: Any
    number: str = ""


class LiveStream:
    """An open stream; what came of it is kept."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.seen: list[ServerSentEvent] = []

    async def message(self) -> ServerSentEvent:
        """The next message. Fails after `LIMIT` seconds."""
        async with asyncio.timeout(LIMIT):
            fields: dict[str, list[str]] = {}
            while (line := (await self.response.content.readline()).decode()) != "\n":
                assert line, "the stream has ended"
                name, _, value = line.rstrip("\n").partition(":")
                fields.setdefault(name or "comment", []).append(value.removeprefix(" "))
        self.seen.append(_message(fields))
        return self.seen[-1]

    async def until(self, *names: str) -> ServerSentEvent:
        """The next message of one of the names."""
        while (message := await self.message()).name not in names:
            continue
        return message

    async def batch(self) -> list[ServerSentEvent]:
        """All messages up to the next that has an id."""
        start = len(self.seen)
        while not (await self.message()).number:
            continue
        return self.seen[start:]

    async def ended(self) -> None:
        """Wait until the sandbox has ended the stream."""
        async with asyncio.timeout(LIMIT):
            await self.response.content.read()


def _message(fields: dict[str, list[str]]) -> ServerSentEvent:
    data = "\n".join(fields.get("data", []))
    name = fields.get("event", ["comment" if "comment" in fields else "retry"])[0]
    return ServerSentEvent(name, json.loads(data) if data else None, fields.get("id", [""])[0])


@asynccontextmanager
async def streaming(
    url: str, query: str = "", last: str | None = None
) -> AsyncIterator[LiveStream]:
    """Open the stream of the sandbox at `url`; `last` is the id to continue from."""
    headers = {} if last is None else {"Last-Event-ID": last}
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=timeout, read_bufsize=2**22) as session,
        session.get(f"{url}/sandbox/live{query}", headers=headers) as response,
    ):
        yield LiveStream(response)
