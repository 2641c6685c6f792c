"""One request on the wire: what is sent, and what becomes of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from forwarder.core.clock import SystemClock
from forwarder.management import Client
from forwarder.management.transport import (
    LARGEST_ANSWER,
    ConnectionBroken,
    ConnectionFailure,
    connection_failure,
    unrepeated,
)
from tests.management.scripted import DOMAIN, KEY, ORGANIZATION, raw, refusal, said, talking, waited
from tests.support.cases import cases
from tests.support.certificates import Authority, make_certificate
from tests.support.clock import FakeClock
from tests.support.upstream import Answer, Fault, Upstream, failing

SOMEBODY: Any = {"id": DOMAIN}
SOMETHING = said(SOMEBODY)
LAST = said({"detail": "Enough."}, 400)
"""Ends the attempts."""


async def test_what_a_request_is_like() -> None:
    """The key is a bearer, JSON goes both ways, and nothing else is sent but who asks."""
    async with talking(None, SOMETHING, SOMETHING) as (client, service):
        await client.domains.create(ORGANIZATION, domain="example.com")
        await client.domains.get(ORGANIZATION, DOMAIN)
    written, read = service.requests
    assert written.path == f"/api/organizations/{ORGANIZATION}/domains/"
    assert written.json == {"domain": "example.com"}
    headers = dict(written.headers)
    assert headers.pop("user-agent", "").startswith("forwarder/")
    assert headers == {
        "host": service.url.removeprefix("http://"),
        "authorization": f"Bearer {KEY}",
        "accept": "application/json",
        "accept-encoding": "gzip",
        "content-type": "application/json",
        "content-length": str(len(written.wire)),
        "connection": "close",
    }
    assert read.wire == b""
    assert "content-type" not in read.headers
    assert service.connections == 2


async def test_the_base_address_may_have_a_path() -> None:
    """What stands before the API stays there."""
    async with (
        Upstream(lambda _: SOMETHING) as service,
        Client(f"{service.url}/analytics/", KEY) as client,
    ):
        await client.domains.get(ORGANIZATION, DOMAIN)
    assert (
        service.requests[0].path == f"/analytics/api/organizations/{ORGANIZATION}/domains/{DOMAIN}/"
    )


async def test_ids_arrive_as_they_are() -> None:
    """An id with characters that mean something in addresses is encoded once."""
    async with talking(None, SOMETHING) as (client, service):
        await client.domains.get(ORGANIZATION, "a?b=c#d%2F;ü")
    assert service.requests[0].path.endswith("/domains/a%3Fb%3Dc%23d%252F%3B%C3%BC/")


@cases("fault", [Fault.RESET, Fault.CLOSE, Fault.TRUNCATE])
@cases("reused", [False, True], ids=["new connection", "kept connection"])
async def test_a_connection_that_breaks_is_no_reason_for_reading_to_fail(
    fault: Fault, reused: bool
) -> None:
    """A GET whose connection ends is made again, on a new one."""
    before = [SOMETHING] if reused else []
    clock = FakeClock()
    async with talking(clock, *before, failing(fault), SOMETHING) as (client, service):
        for _ in before:
            await client.domains.get(ORGANIZATION, DOMAIN)
        assert await waited(client.domains.get(ORGANIZATION, DOMAIN), clock) == SOMEBODY
    assert len(service.requests) == len(before) + 2


@cases("fault", [Fault.RESET, Fault.CLOSE, Fault.TRUNCATE])
@cases("reused", [False, True], ids=["new connection", "kept connection"])
@cases("verb", ["create", "update", "delete"])
async def test_a_change_is_sent_once(verb: str, fault: Fault, reused: bool) -> None:
    """A change whose connection ends isn't sent again, by no one; the error says that it may have
    been done.
    """
    before = [SOMETHING] if reused else []
    async with talking(None, *before, failing(fault), SOMETHING) as (client, service):
        for _ in before:
            await client.domains.get(ORGANIZATION, DOMAIN)
        match verb:
            case "create":
                error = await refusal(client.domains.create(ORGANIZATION, domain="example.com"))
            case "update":
                error = await refusal(
                    client.domains.update(ORGANIZATION, DOMAIN, sso_enforcement="")
                )
            case _:
                error = await refusal(client.domains.delete(ORGANIZATION, DOMAIN))
    assert len(service.requests) == len(before) + 1
    assert error.unsure
    assert error.hint.startswith("It may have been done: check before you repeat it.")
    assert (error.type, error.code) == ("connection_error", "broken")
    assert error.status == (200 if fault is Fault.TRUNCATE else None)


async def test_a_change_has_a_connection_of_its_own() -> None:
    """Reading shares a connection; a change continues none that was used
    before, which may be closing.
    """
    async with talking(None, *[SOMETHING] * 6) as (client, service):
        for _ in range(3):
            await client.domains.get(ORGANIZATION, DOMAIN)
            await client.domains.update(ORGANIZATION, DOMAIN, sso_enforcement="")
    assert len(service.requests) == 6
    assert service.connections == 4


@pytest.mark.parametrize("changes", [False, True], ids=["reading", "changes"])
async def test_a_service_that_closes_connections_without_a_word(changes: bool) -> None:
    """A service that closes each connection after its answer, and doesn't say so beforehand, is
    none that calls fail with.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    clock = FakeClock()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Client(url, KEY, clock=clock) as client:
        for _ in range(20):
            work = (
                client.domains.create("o", domain="x") if changes else client.domains.get("o", "x")
            )
            assert not await waited(work, clock)


async def test_nothing_that_never_left_may_have_been_done() -> None:
    """Without a connection it is certain that nothing was done."""
    async with Upstream() as service:
        url = service.url
    async with Client(url, KEY) as client:
        error = await refusal(client.domains.delete(ORGANIZATION, DOMAIN))
    assert (
        str(error)
        == f"domains delete: no connection to {url.removeprefix('http://')}: connection refused"
    )
    assert not error.unsure
    assert (error.status, error.type, error.code) == (None, "connection_error", "unreachable")
    assert "`url`" in error.hint


async def test_compressed_answers_are_read() -> None:
    """An answer may come as gzip."""
    async with talking(
        None, raw(gzip.compress(json.dumps(SOMEBODY).encode()), content_encoding="gzip")
    ) as (client, _):
        assert await client.domains.get(ORGANIZATION, DOMAIN) == SOMEBODY


async def test_an_answer_that_is_not_compressed_as_it_says_is_broken() -> None:
    """What can't be decompressed is an error that says so."""
    async with talking(None, raw(b'{"id":1}' * 10, content_encoding="gzip"), LAST) as (client, _):
        error = await refusal(client.domains.create(ORGANIZATION, domain="example.com"))
    assert "decompressed" in str(error)
    assert error.unsure


@pytest.mark.slow
async def test_an_answer_that_would_fill_the_memory_is_refused() -> None:
    """An answer is bounded as it is decompressed, and isn't asked for again."""
    bomb = gzip.compress(bytes(LARGEST_ANSWER + 1))
    async with talking(None, raw(bomb, content_encoding="gzip")) as (client, service):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert error.code == "too_large"
    assert "larger than 64 MiB" in str(error)
    assert len(service.requests) == 1


async def test_of_a_large_error_the_beginning_is_read() -> None:
    """An error may be as large as it likes: its beginning is shown."""
    async with talking(None, raw(b"no " * 100_000, 400, "text/plain")) as (client, _):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert (error.status, error.detail[:9]) == (400, "no no no ")


async def test_redirects_are_not_followed() -> None:
    """The key goes nowhere else: a redirect is an error that names the host, and nothing more of
    the address.
    """
    async with Upstream() as other:
        where = f"{other.url}/login?token=s3cret"
        async with talking(None, Answer(302, b"", {"Location": where})) as (client, service):
            error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert other.requests == []
    assert len(service.requests) == 1
    assert str(error) == f"domains get: HTTP 302, the service redirects to {other.url}"
    assert error.hint.startswith(f"Set `url` to {other.url} ")
    assert (error.status, error.code) == (302, "redirect")


@cases("location", ["", "javascript:alert(1)", "http://[", "http://h:99999/", "//\x7f/"])
async def test_redirects_to_nowhere(location: str) -> None:
    """A redirect whose target is unknown is one all the same."""
    async with talking(None, Answer(301, b"", {"Location": location} if location else {})) as (
        client,
        _,
    ):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert "doesn't say where to" in str(error)


async def test_redirects_within_the_service() -> None:
    """A redirect to a page of the same service says that `url` or a login is to be looked at."""
    async with talking(None, Answer(302, b"", {"Location": "/login?next=/api/"})) as (
        client,
        service,
    ):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert f"{service.url} redirects to another page of its own" in str(error)


async def test_cookies_are_not_kept() -> None:
    """No call depends on the one before."""
    async with talking(None, said({}, set_cookie="session=1; Path=/"), said({})) as (
        client,
        service,
    ):
        for _ in range(2):
            await client.domains.get(ORGANIZATION, DOMAIN)
    assert "cookie" not in service.requests[1].headers


async def test_a_proxy_is_used_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls go through the proxy that is given, with its login; what the
    environment says doesn't count.
    """
    async with Upstream(lambda _: SOMETHING) as proxy:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        with_login = proxy.url.replace("://", "://user:s3cret@")
        async with Client("http://service.invalid", KEY, proxy=with_login) as client:
            assert await client.domains.get(ORGANIZATION, DOMAIN) == SOMEBODY
            assert "s3cret" not in repr(client)
    assert (
        proxy.requests[0].path
        == f"http://service.invalid/api/organizations/{ORGANIZATION}/domains/{DOMAIN}/"
    )
    assert proxy.requests[0].headers["proxy-authorization"].startswith("Basic ")


async def test_a_proxy_that_refuses_or_is_not_there() -> None:
    """Errors of the proxy name the proxy, and not its password."""
    async with Upstream(lambda _: raw(b"", 407)) as proxy:
        with_login = proxy.url.replace("://", "://user:s3cret@")
        async with Client("https://service.invalid", KEY, proxy=with_login) as client:
            refused = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    async with Client("https://service.invalid", KEY, proxy=with_login) as client:
        missing = await refusal(client.domains.delete(ORGANIZATION, DOMAIN))
    assert str(refused) == "domains get: the proxy refuses the connection: HTTP 407"
    assert str(missing) == "domains delete: no connection to the proxy: connection refused"
    assert {refused.hint, missing.hint} == {"Check `proxy`."}
    assert not refused.unsure


async def test_tls(tmp_path: Path) -> None:
    """Certificates are checked: with the system's authorities, or those of `ca_file`; one that
    isn't trusted ends the call at once.
    """
    certificate = Authority(tmp_path).issue("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    async with Upstream(lambda _: SOMETHING, tls=context) as service:
        async with Client(service.url, KEY, ca_file=tmp_path / "ca.pem") as client:
            assert await client.domains.get(ORGANIZATION, DOMAIN) == SOMEBODY
        async with Client(service.url, KEY) as client:
            error = await refusal(client.domains.delete(ORGANIZATION, DOMAIN))
    assert "the certificate of 127.0.0.1 isn't trusted" in str(error)
    assert "`ca_file`" in error.hint
    assert (error.code, error.unsure) == ("untrusted", False)
    assert service.requests[1:] == []


async def test_https_where_http_is_spoken() -> None:
    """A service that doesn't speak TLS is reported as such."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"https://127.0.0.1:{port}", KEY) as client:
            error = await refusal(client.domains.delete(ORGANIZATION, DOMAIN))
    assert f"no TLS with 127.0.0.1:{port}: " in str(error)
    # the system's name for the number that a TLS error has
    assert "operation not permitted" not in str(error)
    assert "`url`" in error.hint


async def test_what_is_not_http() -> None:
    """A server that answers something else than HTTP is reported as such."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", KEY) as client:
            error = await refusal(client.domains.delete(ORGANIZATION, DOMAIN))
    assert "the answer isn't valid HTTP" in str(error)
    assert error.unsure


async def test_the_date_of_retry_after_is_seen_from_now() -> None:
    """A date is a wait from the clock's now on."""
    async with talking(FakeClock(), said({}, 429, retry_after="Thu, 01 Jan 2026 00:01:00 GMT")) as (
        client,
        _,
    ):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert error.retry_after == 60.0
    assert error.hint == "Retry in 60 s."


async def test_a_certificate_of_its_own_authority(tmp_path: Path) -> None:
    """`ca_file` may be the certificate itself, as with a service that signed its own."""
    certificate = make_certificate(tmp_path)
    async with Client(
        "https://127.0.0.1:9", KEY, ca_file=certificate.cert_file, clock=SystemClock()
    ) as client:
        error = await refusal(client.domains.delete(ORGANIZATION, DOMAIN))
    assert error.code == "unreachable"


CONNECTION_KEY = ConnectionKey(
    "service.invalid",
    443,
    is_ssl=True,
    ssl=True,
    proxy=None,
    proxy_auth=None,
    proxy_headers_hash=None,
)


def test_an_unknown_host() -> None:
    """A name that no one knows is named; nothing was sent, and trying again may help."""
    error = aiohttp.ClientConnectorDNSError(
        CONNECTION_KEY, socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    )
    failure = connection_failure(error)
    assert (failure.words, failure.code) == (
        "unknown host service.invalid: name or service not known",
        "unreachable",
    )
    assert (failure.sent, failure.again) == (False, True)


def test_errors_of_the_system() -> None:
    """One without words is an error of the system; a connection that was reset is called so."""
    assert connection_failure(OSError()).words == "the system reports an error"
    assert (
        connection_failure(
            aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        ).words
        == "the connection was reset"
    )


def test_a_certificate_error_without_words() -> None:
    """A certificate that another library refuses is one all the same."""
    failure = connection_failure(
        aiohttp.ClientConnectorCertificateError(CONNECTION_KEY, ValueError("no"))
    )
    assert failure.words == "the certificate of service.invalid isn't trusted: no"
    assert not failure.again


@cases(
    ("error", "words"),
    [
        (aiohttp.ServerDisconnectedError(), "the connection was closed before an answer came"),
        (
            aiohttp.ClientOSError(104, "Connection reset by peer"),
            "the connection failed: connection reset by peer",
        ),
        (
            aiohttp.ClientOSError(None, "Can not write request body for URL"),
            "the connection was closed while the request was being sent",
        ),
    ],
)
async def test_no_error_makes_aiohttp_repeat_a_request(error: Exception, words: str) -> None:
    """What aiohttp repeats by itself is turned into something that it doesn't, whether or not it
    would have for this method.
    """

    async def handler(_: Any) -> aiohttp.ClientResponse:
        raise error

    request: Any = None
    with pytest.raises(ConnectionBroken) as caught:
        await unrepeated(request, handler)
    assert not isinstance(caught.value, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
    assert connection_failure(caught.value) == ConnectionFailure(
        "broken", words, connection_failure(caught.value).hint, sent=True
    )


async def test_errors_of_connecting_are_left_alone() -> None:
    """They aren't repeated by aiohttp, and tell more as they are."""
    error = aiohttp.ClientConnectorError(CONNECTION_KEY, OSError(111, "Connection refused"))

    async def handler(_: Any) -> aiohttp.ClientResponse:
        raise error

    request: Any = None
    with pytest.raises(aiohttp.ClientConnectorError):
        await unrepeated(request, handler)
    assert (
        connection_failure(error).words
        == "no connection to service.invalid:443: connection refused"
    )
