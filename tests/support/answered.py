"""Answers as they were on the wire, read by a test that cares how they are framed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.support.listening import LIMIT, RawConnection


@dataclass(frozen=True)
class RawAnswer:
    """One answer. `body` is without its chunks."""

    status: int
    reason: str
    lines: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        """The values of a header, line by line."""
        return [value for key, value in self.lines if key.lower() == name.lower()]

    def one(self, name: str) -> str | None:
        """The value of a header that may come once."""
        values = self.all(name)
        assert len(values) <= 1, values
        return values[0] if values else None


async def answered(client: RawConnection, *, head: bool = False) -> RawAnswer:
    """Read one answer with all of its body, however that is framed. Raises
    `asyncio.IncompleteReadError` for one that is cut.
    """
    raw = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), LIMIT)
    first, *rest = raw.decode("utf-8").rstrip("\r\n").split("\r\n")
    version, status, reason = (first + " ").split(" ", 2)
    assert version == "HTTP/1.1"
    answer = RawAnswer(
        int(status),
        reason.strip(),
        [(name, value) for name, _, value in (line.partition(": ") for line in rest)],
        b"",
    )
    if head or answer.status in (204, 304):
        return answer
    return RawAnswer(
        answer.status,
        answer.reason,
        answer.lines,
        await asyncio.wait_for(_body(client, answer), LIMIT),
    )


async def _body(client: RawConnection, answer: RawAnswer) -> bytes:
    if answer.one("transfer-encoding") is not None:
        assert answer.one("content-length") is None
        body = bytearray()
        while size := int((await client.reader.readuntil(b"\r\n")).rstrip(), 16):
            body += await client.reader.readexactly(size)
            assert await client.reader.readexactly(2) == b"\r\n"
        assert await client.reader.readexactly(2) == b"\r\n"
        return bytes(body)
    length = answer.one("content-length")
    if length is None:
        assert answer.one("connection") == "close"
        return await client.reader.read(-1)
    return await client.reader.readexactly(int(length))


async def asked(client: RawConnection, request: bytes) -> RawAnswer:
    """Send one request and read its answer."""
    await client.send(request)
    return await answered(client, head=request.startswith(b"HEAD "))


def get(target: str, *headers: str, method: str = "GET") -> bytes:
    """A request without a body."""
    return (
        "\r\n".join([f"{method} {target} HTTP/1.1", "Host: app.local", *headers]).encode()
        + b"\r\n\r\n"
    )
