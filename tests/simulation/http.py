"""As much HTTP as senders and services speak, read and written by other code than the product's."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

_decoder: Final = json.JSONDecoder()


class Message(NamedTuple):
    """A request or an answer."""

    first: str
    """Its first line."""
    headers: Mapping[str, str]
    body: bytes


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next one; None at the end. Raises `asyncio.IncompleteReadError` if it breaks off."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readuntil(b"\n"), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    return Message(first, headers, body)


def events_of(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each event of a batch's body as its text, and decoded."""
    at = text.index('"batch":[') + len('"batch":[')
    while text[at] != "]":
        while text[at] in ", \n\t":
            at += 1
        event, end = _decoder.raw_decode(text, at)
        yield text[at:end], event
        at = end
