"""An upstream that fails as scripted, and hands on what it takes to a real service behind it,
whose answers it brings back.
"""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp
import msgspec

from tests.support.upstream import Answer, Decide, Fault, Request, Upstream

LOST_ON_THE_WAY_BACK: Final = frozenset({Fault.RESET, Fault.TRUNCATE})
"""Failures of the answer alone: the service behind has taken the request."""
_PASSED_ON: Final = ("content-type", "content-encoding", "user-agent")


class _Event(msgspec.Struct):
    uuid: str


class _Body(msgspec.Struct):
    batch: list[_Event]


class Relay(Upstream):
    """An answer that `accepts` stands for what the service
    behind says. Keeps no request.
    """

    def __init__(self, answer: Decide, target: str, seen: set[str]) -> None:
        """`seen` gets the uuids of all events that the service takes."""
        super().__init__(answer, keeps=False)
        self._target = target
        self._seen = seen
        self.goes_back = asyncio.Event()
        """While it isn't set, answers of the service are kept back."""
        self.goes_back.set()
        self.kept_back = 0
        """How many."""

    async def __aenter__(self) -> Relay:
        self._client = aiohttp.ClientSession()  # made here, where there is a loop
        await super().__aenter__()
        return self

    async def _close(self) -> None:
        await super()._close()
        await self._client.close()

    async def _act(
        self,
        request: Request,
        answer: Answer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        if answer.accepts:
            answer = await self._hand_on(request)
            await self._keep_back()
        elif answer.fault in LOST_ON_THE_WAY_BACK:
            await self._hand_on(request)
        return await super()._act(request, answer, reader, writer)

    async def _hand_on(self, request: Request) -> Answer:
        """What the service says to the request. While it isn't there: 502."""
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        try:
            async with self._client.post(
                f"{self._target}{request.path}", data=request.wire, headers=headers
            ) as response:
                answer = Answer(
                    response.status, await response.read(), {"Content-Type": response.content_type}
                )
        except aiohttp.ClientError as error:
            return Answer(502, str(error).encode())
        if answer.accepts:
            self._seen.update(
                event.uuid for event in msgspec.json.decode(request.body, type=_Body).batch
            )
        return answer

    async def _keep_back(self) -> None:
        self.kept_back += 1
        try:
            await self.goes_back.wait()
        finally:
            self.kept_back -= 1
