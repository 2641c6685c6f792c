"""Ways in which requests reach the listener, each through the whole pipeline: in pieces,
pipelined, over a Unix socket, over TLS.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from forwarder.core.clock import SystemClock
from forwarder.core.tls import client_context
from tests.support.certificates import make_certificate
from tests.support.listening import RawConnection, chunked, post
from tests.support.upstream import Upstream
from tests.support.whole import Whole, accepted, batch, events


async def test_a_body_in_a_thousand_pieces() -> None:
    """However the network cuts a request, its events arrive whole. On the real clock: on a fast
    one its sender would be too slow.
    """
    sent = events(100, padding=50)
    request = post("/batch/", batch(sent))
    size = len(request) // 1000 + 1
    async with Upstream() as upstream, Whole(upstream.url, SystemClock()) as whole:
        client = await whole.connect()
        await client.send(
            *[request[start : start + size] for start in range(0, len(request), size)]
        )
        assert (await client.reply()).status == 200
        await client.close()
        await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)


async def test_a_chunked_body_in_a_thousand_chunks() -> None:
    """Chunks are joined; nothing of their framing gets into an event."""
    sent = events(100)
    body = batch(sent)
    size = len(body) // 1000 + 1
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        reply = await whole.send(
            chunked(*[body[start : start + size] for start in range(0, len(body), size)])
        )
        assert reply.status == 200
        await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Requests that don't wait for answers are all taken, a bad one among them
    is refused at its place.
    """
    sent = events(20)
    requests = [post("/batch/", batch(sent[start : start + 2])) for start in range(0, 20, 2)]
    requests[5:5] = [post("/batch/", b'{"batch":[{"event":"no key","distinct_id":"x"}]}')]
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        client = await whole.connect()
        await client.send(b"".join(requests))
        assert [(await client.reply()).status for _ in requests] == [200] * 5 + [401] + [200] * 5
        await client.close()
        await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)


async def test_many_connections_at_once() -> None:
    """A hundred senders beside each other: each is answered, and every event is delivered."""
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        clients = [await whole.connect() for _ in range(100)]
        for number, client in enumerate(clients):
            await client.send(post("/batch/", batch(events(3, f"c{number}-"))))
        assert {(await client.reply()).status for client in clients} == {200}
        assert whole.snapshot.connections == 100
        for client in clients:
            await client.close()
        await whole.emptied()
        assert len(accepted(upstream)) == 300


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    """The same through a file, which is gone at the end."""
    path = tmp_path / "forwarder.sock"
    sent = events(10)
    async with (
        Upstream() as upstream,
        Whole(upstream.url, http={"listen": f"unix:{path}"}) as whole,
    ):
        assert whole.address == f"unix:{path}"
        await whole.take(sent)
        await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)
    assert not path.exists()


async def test_over_tls(tmp_path: Path) -> None:
    """With a certificate of the listener's own; who speaks plain HTTP to it gets nowhere."""
    certificate = make_certificate(tmp_path)
    trusting = client_context(certificate.cert_file)
    tls = {"cert_file": str(certificate.cert_file), "key_file": str(certificate.key_file)}
    sent = events(10)
    async with Upstream() as upstream, Whole(upstream.url, http={"tls": tls}) as whole:
        client = await whole.connect(ssl=trusting, server_hostname="localhost")
        assert (await client.ask(post("/batch/", batch(sent)))).status == 200
        await client.close()
        plain = await whole.connect()
        await plain.send(post("/batch/", batch(sent)))
        assert await ended(plain) == b""
        await plain.close()
        await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)


async def test_a_renewed_certificate_is_used_after_a_reload(tmp_path: Path) -> None:
    """The files are read again; connections from then on see the new certificate, and a broken one
    changes nothing.
    """
    old = make_certificate(tmp_path, "old.example")
    tls = {"cert_file": str(old.cert_file), "key_file": str(old.key_file)}
    async with Upstream() as upstream, Whole(upstream.url, http={"tls": tls}) as whole:
        assert await presented(whole) == old.der
        new = make_certificate(tmp_path, "new.example")
        assert whole.pipeline.reload(whole.settings) == []
        assert await presented(whole) == new.der != old.der
        old.cert_file.write_text("no certificate")
        assert whole.pipeline.reload(whole.settings) == []
        assert await presented(whole) == new.der


async def presented(whole: Whole) -> bytes:
    """The certificate that a new connection sees."""
    careless = client_context()
    careless.check_hostname = False
    careless.verify_mode = ssl.CERT_NONE
    client = await whole.connect(ssl=careless)
    try:
        shown: bytes = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return shown
    finally:
        await client.close()


async def ended(client: RawConnection) -> bytes:
    """What comes before the other side closes, however it does."""
    try:
        return await client.ended()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_sender_that_leaves_in_the_middle_leaves_nothing(version: str) -> None:
    """A request that is cut off is no request: none of its events is taken, and
    the next sender is served.
    """
    request = post("/batch/", batch(events(10)), version=version)
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        client = await whole.connect()
        await client.send(request[:-5])
        await client.close()
        await whole.take(events(1, "after"))
        await whole.emptied()
        assert upstream.delivered == ["after0"]
        await whole.until(lambda: whole.snapshot.connections == 1)
