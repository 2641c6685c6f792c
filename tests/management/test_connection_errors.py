"""Words for what goes wrong on the way to the service."""

from __future__ import annotations

import socket
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from forwarder.management.connection_errors import Broken, failure, unrepeated
from forwarder.management.replies import Failure

KEY = ConnectionKey("service.invalid", 443, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)


def test_an_unknown_host() -> None:
    """A name that nobody knows is named; nothing was sent, and trying again may help."""
    error = aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    found = failure(error)
    assert (found.words, found.code) == ("unknown host service.invalid: name or service not known", "unreachable")
    assert (found.sent, found.again) == (False, True)


def test_errors_of_the_system() -> None:
    """An error without words is named by its kind."""
    assert failure(OSError()).words == "the connection failed: oserror"
    assert failure(aiohttp.ClientConnectionResetError("Cannot write to closing transport")).words == "the connection was reset"


def test_a_certificate_error_without_words() -> None:
    """A certificate that another library refuses is one all the same."""
    found = failure(aiohttp.ClientConnectorCertificateError(KEY, ValueError("no")))
    assert found.words == "the certificate of service.invalid isn't trusted: ValueError"
    assert not found.again


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (aiohttp.ServerDisconnectedError(), "the connection was closed before an answer came"),
        (aiohttp.ClientOSError(104, "Connection reset by peer"), "the connection failed: connection reset by peer"),
        (aiohttp.ClientOSError(None, "Can not write request body for URL"), "the connection was closed while the request was being sent"),
    ],
)
async def test_no_error_makes_aiohttp_repeat_a_request(error: Exception, words: str) -> None:
    """What aiohttp repeats by itself is turned into something that it doesn't, whether or not it would have for this method."""

    async def handler(_: Any) -> aiohttp.ClientResponse:
        raise error

    request: Any = None
    with pytest.raises(Broken) as caught:
        await unrepeated(request, handler)
    assert not isinstance(caught.value, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
    assert failure(caught.value) == Failure("broken", words, failure(caught.value).hint, sent=True)


async def test_errors_of_connecting_are_left_alone() -> None:
    """They aren't repeated by aiohttp, and tell more as they are."""
    error = aiohttp.ClientConnectorError(KEY, OSError(111, "Connection refused"))

    async def handler(_: Any) -> aiohttp.ClientResponse:
        raise error

    request: Any = None
    with pytest.raises(aiohttp.ClientConnectorError):
        await unrepeated(request, handler)
    assert failure(error).words == "no connection to service.invalid:443: connection refused"
