"""Connections to the upstream: when one is used again, what ends one, and the way
through a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from forwarder.core.tls import client_context
from forwarder.upstream.connection import (
    MAX_HEAD,
    ArrivingAnswer,
    BrokenAnswer,
    OutgoingRequest,
    UpstreamConnection,
)
from forwarder.upstream.connections import KEPT_SECONDS, NoConnection, UpstreamConnections
from forwarder.upstream.proxies import ProxyRefusal
from tests.support.cases import cases
from tests.support.certificates import make_certificate
from tests.support.listening import LIMIT, turns
from tests.support.origin import OK, Asked, always, ok, origin, whole

LOOP = "forwarder.upstream.connections.asyncio.get_running_loop"
GET = OutgoingRequest(b"GET", b"/flags?v=2", b"Accept: */*\r\n", 0, None)


@contextlib.asynccontextmanager
async def connections(url: str, **options: Any) -> AsyncIterator[UpstreamConnections]:
    """Connections to an address, dropped at the end."""
    made = UpstreamConnections(
        url, **{"tls": None, "proxy": None, "connect_timeout": LIMIT, **options}
    )
    try:
        yield made
    finally:
        made.close()
        await turns()


async def content(answer: ArrivingAnswer) -> bytes:
    """The body of an answer, which is released."""
    try:
        first, more = answer.body()
        return first + (b"" if more is None else b"".join([piece async for piece in more]))
    finally:
        answer.release()


async def get(to: UpstreamConnections, method: bytes = b"GET") -> tuple[int, bytes]:
    """Ask without a body."""
    answer = await asyncio.wait_for(to.ask(GET._replace(method=method)), LIMIT)
    return answer.status, await asyncio.wait_for(content(answer), LIMIT)


async def test_a_connection_is_used_again() -> None:
    """After whole answers to whole requests, also to HEAD, and after those without a body."""
    answers = iter(
        [
            OK,
            b"HTTP/1.1 304 Not Modified\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n",
            OK,
        ]
    )

    async def answer(request: Asked) -> None:
        await request.write(next(answers))

    async with origin(answer) as upstream, connections(upstream.url) as to:
        assert [await get(to, method) for method in (b"GET", b"GET", b"HEAD", b"GET")] == [
            (200, b"ok"),
            (304, b""),
            (200, b""),
            (200, b"ok"),
        ]
        assert upstream.connections == 1
        assert upstream.asked[0].lines == [
            ("host", f"127.0.0.1:{upstream.port}"),
            ("accept", "*/*"),
        ]


@cases(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (OK + b"HTTP/1.1 500 Bad\r\nContent-Length: 3\r\n\r\nbad", b"ok"),
        (OK + b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", b"ok"),
        (OK + b"\x00", b"ok"),
    ],
    ids=["close", "1.0", "two answers", "a preliminary answer", "more bytes"],
)
async def test_a_connection_that_is_not_used_again(answer: bytes, body: bytes) -> None:
    """Where the upstream says so, and where it sends what belongs to no answer: that reaches
    neither this request nor the next.
    """
    async with origin(always(answer)) as upstream, connections(upstream.url) as to:
        first = await to.ask(GET)
        assert (first.status, first.reason, first.lines[-1]) == (
            200,
            b"OK",
            (b"Content-Length", b"2"),
        )
        assert await content(first) == body
        upstream.handler = ok
        assert await get(to) == (200, b"ok")
        assert upstream.connections == 2


async def test_an_answer_that_ends_with_its_connection() -> None:
    """It has neither length nor chunks: its end is the connection's."""

    async def until_end(request: Asked) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\n\r\nto the", b" end")
        request.writer.write_eof()
        await request.reader.read()
        raise ConnectionResetError

    async with origin(until_end) as upstream, connections(upstream.url) as to:
        assert await get(to) == (200, b"to the end")


async def test_preliminary_answers_are_skipped() -> None:
    """100 and 103 come before the answer, and are none."""
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with (
        origin(always(early + whole(b"ok", "X-A: 1"))) as upstream,
        connections(upstream.url) as to,
    ):
        answer = await to.ask(GET)
        assert (answer.status, answer.reason, answer.lines) == (
            200,
            b"OK",
            [(b"Content-Length", b"2"), (b"X-A", b"1")],
        )
        assert await content(answer) == b"ok"


async def test_a_head_without_end() -> None:
    """Its bytes are bounded: the answer is broken, and its connection dropped."""

    async def endless(request: Asked) -> None:
        await request.write(
            b"HTTP/1.1 200 OK\r\n",
            *[b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(MAX_HEAD // 1000 + 100)],
        )
        await request.reader.read()

    async with origin(endless) as upstream, connections(upstream.url) as to:
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(to.ask(GET), LIMIT)


async def test_a_trailer_without_end() -> None:
    """Its bytes are bounded as those of a head: a body of any size comes
    before it, and none after it.
    """
    body = b"x" * MAX_HEAD

    async def endless(request: Asked) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await request.write(*[b"%x\r\n%b\r\n" % (len(body), body)] * 3, b"0\r\nX: ")
        with contextlib.suppress(ConnectionError):
            while True:
                await request.write(body)

    async with origin(endless) as upstream, connections(upstream.url) as to:
        answer = await to.ask(GET)
        received = 0

        async def read() -> None:
            nonlocal received
            async for piece in answer.pieces():
                received += len(piece)

        with pytest.raises(BrokenAnswer, match="too large"):
            await asyncio.wait_for(read(), LIMIT)
        answer.release()
        assert received == 3 * len(body)


async def test_a_kept_connection_that_was_closed() -> None:
    """A request that only asks goes out again on a new one; one that could do
    something twice doesn't.
    """
    async with origin() as upstream, connections(upstream.url) as to:
        assert await get(to) == (200, b"ok")

        async def closes(request: Asked) -> None:
            upstream.handler = ok
            raise ConnectionResetError

        upstream.handler = closes
        assert await get(to) == (200, b"ok")
        assert upstream.connections == 2
        upstream.handler = closes
        with pytest.raises(ConnectionError):
            await get(to, b"POST")
        assert len(upstream.asked) == 4


async def test_a_kept_connection_that_is_being_closed() -> None:
    """Nothing is sent on it, so that nothing has to be sent again: not even what could do
    something twice fails.
    """
    async with origin() as upstream, connections(upstream.url) as to:
        assert await get(to) == (200, b"ok")
        to._kept[0].abort()  # it is lost in the loop's next turn
        assert await content(await to.ask(GET._replace(method=b"POST"))) == b"ok"
        assert upstream.connections == 2


async def test_a_new_connection_that_is_closed() -> None:
    """A request is never sent a third time, nor a second time on a second new connection."""

    async def closes(request: Asked) -> None:
        raise ConnectionResetError

    async with origin(closes) as upstream, connections(upstream.url) as to:
        with pytest.raises(ConnectionError):
            await get(to)
        assert len(upstream.asked) == 1


async def test_an_old_connection_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has waited for longer than upstreams keep theirs."""
    async with origin() as upstream, connections(upstream.url) as to:
        assert await get(to) == (200, b"ok")
        loop = asyncio.get_running_loop()
        later = loop.time() + KEPT_SECONDS + 1
        with monkeypatch.context() as patch:
            patch.setattr(
                "forwarder.upstream.connections.asyncio.get_running_loop",
                lambda: _Other(loop, time=lambda: later),
            )
            assert to._take() is None
        assert await get(to) == (200, b"ok")
        assert upstream.connections == 2


async def test_one_name_is_looked_up_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections are made together, for the system answers few questions at once;
    the next ones ask again.
    """
    asked = []
    loop = asyncio.get_running_loop()

    def look_up(host: str, *rest: Any, **named: Any) -> Any:
        asked.append(host)
        return loop.getaddrinfo(host, *rest, **named)

    async with (
        origin() as upstream,
        connections(upstream.url.replace("127.0.0.1", "localhost")) as to,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(
                "forwarder.upstream.connections.asyncio.get_running_loop",
                lambda: _Other(loop, getaddrinfo=look_up),
            )
            assert await asyncio.gather(*[get(to) for _ in range(8)]) == [(200, b"ok")] * 8
            assert (upstream.connections, asked) == (8, ["localhost"])
            to.close()
            await turns()
            assert await get(to) == (200, b"ok")
        assert asked == ["localhost"] * 2


async def test_an_address_is_not_looked_up() -> None:
    """It needs no thread of the loop's executor, and works where all of
    them wait for a name server.
    """
    async with origin() as upstream, connections(upstream.url) as to:
        before = threading.active_count()
        assert await get(to) == (200, b"ok")
        assert threading.active_count() == before


class _Other:
    """A loop of which something is another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **other: Any) -> None:
        self._loop = loop
        self.__dict__.update(other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def tls_of(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's TLS with a new certificate, and that of a client which trusts it."""
    certificate = make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    return context, client_context(certificate.cert_file)


async def test_a_handshake_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """However many there are while an upstream's certificate isn't trusted."""
    context, _ = tls_of(tmp_path)
    async with origin() as upstream:
        await upstream.stop()
        await upstream.start(context)
        async with connections(f"https://localhost:{upstream.port}") as to:
            with pytest.raises(
                NoConnection,
                match="the certificate of localhost isn't trusted: self-signed certificate",
            ):
                await asyncio.wait_for(to.ask(GET), LIMIT)
            assert not to._open


async def test_a_connection_that_was_lost_before_it_was_made() -> None:
    """As where TLS through a proxy fails: the transport reports only the loss."""
    lost: list[UpstreamConnection] = []
    connection = UpstreamConnection(lambda _: None, lambda _: None, lost.append)
    connection.connection_lost(ConnectionResetError())
    assert lost == [connection]


class Tunnel:
    """A proxy that connects its clients to one server, whatever they ask for."""

    def __init__(self, port: int, answer: bytes) -> None:
        self.port = port
        self.answer = answer
        self.heads: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client."""
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        if not self.answer.startswith(b"HTTP/1.1 200"):
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                writer.write(piece)
        writer.close()


async def test_an_upstream_with_tls_behind_a_proxy_with_tls(tmp_path: Path) -> None:
    """The proxy gets its password encrypted; within that there is the upstream's own TLS."""
    context, trust = tls_of(tmp_path)
    async with origin() as upstream:
        await upstream.stop()
        await upstream.start(context)
        tunnel = Tunnel(upstream.port, b"HTTP/1.1 200 Connection established\r\n\r\n")
        proxy = await asyncio.start_server(tunnel.serve, "127.0.0.1", 0, ssl=context)
        address = f"https://user:pass%20word@localhost:{proxy.sockets[0].getsockname()[1]}"
        try:
            async with connections(
                f"https://localhost:{upstream.port}", tls=trust, proxy=address
            ) as to:
                assert [await get(to), await get(to)] == [(200, b"ok")] * 2
        finally:
            proxy.close()
        assert upstream.connections == 1
        assert b"Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n" in tunnel.heads[0]


async def test_an_upstream_without_tls_behind_a_proxy_with_tls(tmp_path: Path) -> None:
    """All that the proxy gets is encrypted, and so is its password."""
    context, trust = tls_of(tmp_path)
    async with origin() as proxy:
        await proxy.stop()
        await proxy.start(context)
        async with connections(
            "http://upstream.example", tls=trust, proxy=f"https://user:pw@localhost:{proxy.port}"
        ) as to:
            assert await get(to) == (200, b"ok")
        assert proxy.targets == ["http://upstream.example/flags?v=2"]
        assert proxy.asked[0].headers["proxy-authorization"] == "Basic dXNlcjpwdw=="


@cases(
    ("answer", "refusal"),
    [
        (b"HTTP/1.1 200 Connection established\r\nX-A: 1\r\n\r\n", ""),
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            "the proxy refuses the connection: HTTP 407",
        ),
        (b"no HTTP\r\n\r\n", "the proxy's answer is no HTTP"),
        (b"", "the proxy closed the connection"),
    ],
    ids=["200", "407", "no HTTP", "closed"],
)
async def test_an_upstream_with_tls_behind_a_proxy(
    answer: bytes, refusal: str, tmp_path: Path
) -> None:
    """The proxy connects to it, and sees neither request nor answer; it may ask for a password."""
    context, trust = tls_of(tmp_path)
    async with origin() as upstream:
        await upstream.stop()
        await upstream.start(context)
        tunnel = Tunnel(upstream.port, answer)
        proxy = await asyncio.start_server(tunnel.serve, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        url = f"https://localhost:{upstream.port}"
        try:
            async with connections(
                url, tls=trust, proxy=f"http://user:pass%20word@127.0.0.1:{port}"
            ) as to:
                if refusal:
                    with pytest.raises(ProxyRefusal, match=refusal):
                        await asyncio.wait_for(to.ask(GET), LIMIT)
                else:
                    assert await get(to) == (200, b"ok")
                    assert await get(to) == (200, b"ok")
        finally:
            proxy.close()
        assert tunnel.heads[0].startswith(
            b"CONNECT localhost:%d HTTP/1.1\r\nHost: localhost:%d\r\n"
            % (upstream.port, upstream.port)
        )
        assert b"Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n" in tunnel.heads[0]
        assert len(tunnel.heads) == 1
        assert [asked.target for asked in upstream.asked] == ([] if refusal else ["/flags?v=2"] * 2)
