"""A proxy on the way to an upstream, which can be led elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from urllib.parse import urlsplit


class Switch:
    """Listens on a free port, as an asynchronous context manager, and pipes every connection to
    its target. A new target ends them.
    """

    def __init__(self) -> None:
        self.url = ""
        self._target = ("127.0.0.1", 9)
        self._piping: set[asyncio.Task[None]] = set()

    def lead_to(self, address: str) -> None:
        """Send connections to a URL or to `host:port` from now on."""
        parts = urlsplit(address if "//" in address else f"//{address}")
        self._target = parts.hostname or "", parts.port or 80
        for task in self._piping:
            task.cancel()

    async def __aenter__(self) -> Switch:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._piping:
            task.cancel()
        await asyncio.gather(*self._piping, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._pipe(reader, writer))
        self._piping.add(task)
        task.add_done_callback(self._piping.discard)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy both ways until one side ends, or it is cancelled."""
        ends = [writer]
        try:
            with contextlib.suppress(OSError):
                behind, onward = await asyncio.open_connection(*self._target)
                ends.append(onward)
                ways = [
                    asyncio.ensure_future(_copy(reader, onward)),
                    asyncio.ensure_future(_copy(behind, writer)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for end in ends:
                end.close()
            for end in ends:
                with contextlib.suppress(OSError):
                    await end.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy to the end of what is read. Cancellation leaves the rest unread."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
