"""Answers to bodies that are refused before they have come."""

from __future__ import annotations

from typing import Any

from aiohttp import ClientConnectionResetError, web
from aiohttp.test_utils import make_mocked_request

from forwarder.sandbox.protocol.http import answer_early


class Unwanted(web.Response):
    """An answer that can't be sent, because the client is gone."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Fail. Nothing to cancel."""
        raise ClientConnectionResetError("Cannot write to closing transport")


async def test_a_client_may_have_disconnected() -> None:
    """Before the answer: that is no failure of the server's, and none is logged."""
    response: Any = Unwanted()
    assert await answer_early(make_mocked_request("POST", "/batch/"), response) is response
