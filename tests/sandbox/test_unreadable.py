"""What the log says of requests that are no HTTP."""

from __future__ import annotations

import asyncio
import logging

import pytest

from forwarder.sandbox import Sandbox
from forwarder.sandbox.unreadable import LOG

KEY = b"phx_secret_personal_key"


@pytest.mark.parametrize(
    "line",
    [
        b"Authorization: Bearer " + KEY + b"\x01",
        b"Authorization : Bearer " + KEY,
        b"Authorization: Bearer " + KEY + b"\r\n and more",
        b"Authorization: Bearer " + KEY * 5000,
        b"Content-Length: " + KEY,
    ],
)
async def test_no_key_is_logged(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A header that can't be read is 400 and one line of the log, which doesn't quote it."""
    async with Sandbox() as sandbox:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(sandbox.url.rpartition(":")[2]))
        writer.write(b"GET /api/environments/1/dashboards/ HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["a request could not be read as HTTP"]
    assert "secret" not in caplog.text


def test_a_fault_of_the_program_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    """Any other exception keeps its traceback."""
    with caplog.at_level(logging.ERROR):
        LOG.error("it failed", exc_info=ValueError("a fault"))
    assert "ValueError: a fault" in caplog.text
