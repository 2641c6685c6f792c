"""Reading a request's body, never more than a limit, and answering while the rest of it is still coming."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from aiohttp import ClientPayloadError, web

from forwarder.sandbox.answers import Refusal

LINGER: Final = 5.0
"""Seconds for which the rest of a body that was refused is read and dropped."""


async def read_body(request: web.Request, limit: int) -> bytes:
    """The body as it is on the wire. Raises `Refusal`: 413 as soon as it is not smaller than `limit`, 400 if its end never comes.

    Cancellation ends the reading.
    """
    too_large = Refusal(413, f"the body is not smaller than {limit} bytes")
    if (request.content_length or 0) >= limit:
        raise too_large
    try:
        return await _joined(request, limit, too_large)
    except (ConnectionError, ClientPayloadError):
        raise Refusal(400, "the body was cut off") from None


async def answer_early(request: web.Request, response: web.Response) -> web.Response:
    """Answer while the body is still coming, and let what comes of it go by: a connection closed too early would lose the answer.

    Cancellation ends the reading; the answer has been sent.
    """
    with suppress(TimeoutError, ConnectionError, ClientPayloadError):  # whoever asked may have gone
        await response.prepare(request)
        await response.write_eof()
        async with asyncio.timeout(LINGER):
            while await request.content.readany():
                continue
    return response


async def _joined(request: web.Request, limit: int, too_large: Refusal) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        size += len(part)
        if size >= limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)
