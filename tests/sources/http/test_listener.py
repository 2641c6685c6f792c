"""Where a listener listens, and its end."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from tests.support.cases import cases
from tests.support.listening import listening, post, turns

HEAD = b"POST /e HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


async def test_several_addresses(tmp_path: Path) -> None:
    """One listener has any number of addresses, and one set of counts."""
    async with listening() as to:
        await to.listener.start("localhost:0")
        await to.listener.start(f"unix:{tmp_path}/a.sock")
        assert to.listener.addresses[0].startswith("127.0.0.1:")
        assert to.listener.addresses[-1] == f"unix:{tmp_path}/a.sock"
        addresses = list(to.listener.addresses)
        for address in addresses:
            to.listener.addresses = [address]
            if not address.startswith("["):
                assert (await to.ask(post())).status == 200
        assert to.listener.statistics().requests[("/batch", 200)] == len(
            [a for a in addresses if a[0] != "["]
        )
    # asyncio looked a name up in a thread
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_address_in_use() -> None:
    """An address that can't be had is a configuration error that names it."""
    async with listening() as to:
        with pytest.raises(
            ConfigurationError,
            match=(
                r"^sources\.http\.listen: can't listen on 127\.0\.0\.1:\d+: (process "
                r"\d+|something)"
            ),
        ):
            await to.listener.start(to.listener.addresses[0])
        with pytest.raises(ConfigurationError, match=r"listen on 192\.0\.2\.1:1"):
            await to.listener.start("192.0.2.1:1")


async def test_unix_socket(tmp_path: Path) -> None:
    """A socket file that no one listens on is replaced, has its
    permissions, and is gone at the end.
    """
    path = tmp_path / "forwarder.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with listening(listen=f"unix:{path}") as to:
        assert (await to.ask(post())).status == 200
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(ConfigurationError, match="another process does"):
            await to.listener.start(f"unix:{path}")
        assert (await to.ask(post("/e", b"", "X-Forwarded-For: 8.8.8.8"))).status == 200
        assert to.intake.accepted[-1].client == "8.8.8.8"
    assert not path.exists()


async def test_the_socket_of_a_successor_stays(tmp_path: Path) -> None:
    """A socket file that another process has put in its place is left alone."""
    path = tmp_path / "forwarder.sock"
    async with listening(listen=f"unix:{path}"):
        path.unlink()
        path.write_text("somebody else's")
    assert path.exists()


async def test_draining() -> None:
    """While draining, new requests get 503 and the end; a request in progress is taken, and its
    answer is the last.
    """
    async with listening() as to:
        begun = await to.connect()
        idle = await to.connect()
        await begun.send(HEAD % 6 + b"abc")
        await idle.ask(post())
        await to.until(lambda: to.listener.statistics().receiving_bytes == 3)
        to.listener.draining = True
        for client in (idle, await to.connect()):
            reply = await client.ask(post())
            assert (reply.status, reply.headers["connection"], reply.headers["retry-after"]) == (
                503,
                "close",
                "2",
            )
            assert await client.ended() == b""
        reply = await begun.ask(b"def")
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await begun.ended() == b""
        assert to.intake.bodies[-1] == b"abcdef"


async def test_draining_pipelines() -> None:
    """What comes after the last answer on a connection is not read as a request."""
    async with listening() as to:
        client = await to.connect()
        await client.send(HEAD % 6 + b"abc")
        await to.until(lambda: to.listener.statistics().receiving_bytes == 3)
        to.listener.draining = True
        assert (await client.ask(b"def" + post() * 10)).status == 200
        assert await client.ended() == b""
        assert to.intake.bodies == [b"abcdef"]


async def test_closing_waits_for_requests_in_progress() -> None:
    """`close` ends idle connections at once and waits for the others as long as it may."""
    async with listening() as to:
        begun = await to.connect()
        idle = await to.connect()
        await begun.send(HEAD % 6 + b"abc")
        await idle.ask(post())
        await to.until(lambda: to.listener.statistics().receiving_bytes == 3)
        address = to.listener.addresses[0].rpartition(":")
        closing = asyncio.ensure_future(to.listener.close(10))
        assert await idle.ended() == b""
        assert not closing.done()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(address[0], int(address[2]))
        assert (await begun.ask(b"def")).status == 200
        await begun.close()
        await asyncio.wait_for(closing, 60)


@cases("how", ["grace", "cancel"])
async def test_closing_has_a_limit(how: str) -> None:
    """Past the grace, or when cancelled, everything is dropped."""
    async with listening() as to:
        begun = await to.connect()
        await begun.send(HEAD % 6 + b"abc")
        await to.until(lambda: to.listener.statistics().receiving_bytes == 3)
        closing = asyncio.ensure_future(to.listener.close(10))
        await turns()
        if how == "cancel":
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
        else:
            await to.pass_time(10)
            await asyncio.wait_for(closing, 60)
        await to.until(lambda: to.listener.statistics().connections == 0)


async def test_nothing_is_kept_of_a_connection() -> None:
    """Descriptors are given back as connections end."""
    async with listening() as to:
        assert (await to.ask(post())).status == 200
        await to.until(lambda: to.listener.statistics().connections == 0)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 — counted, not walked
        for _ in range(50):
            assert (await to.ask(post())).status == 200
        await to.until(lambda: to.listener.statistics().connections == 0)
        assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 — as above


async def test_connections_end_with_their_next_answer() -> None:
    """While connections are ended requests are accepted, on old and new connections alike, each
    answer being the last; an idle connection is closed after the grace period alone, and a request
    in progress is waited for.
    """
    async with listening() as to:
        asking, idle, begun = [await to.connect() for _ in range(3)]
        await idle.ask(post())
        await begun.send(HEAD % 6 + b"abc")
        await to.until(lambda: to.listener.statistics().receiving_bytes == 3)
        ending = asyncio.ensure_future(to.listener.end_connections(1.5, 5.0))
        await turns()
        for client in (asking, await to.connect()):
            reply = await client.ask(post())
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            await client.close()
        await to.clock.advance(1.4)
        assert not idle.reader.at_eof()
        await to.clock.advance(0.2)
        assert await idle.ended() == b""
        assert not ending.done()
        assert (await begun.ask(b"def")).headers["connection"] == "close"
        await to.clock.advance(0.1)
        await asyncio.wait_for(ending, 60)


async def test_ending_connections_takes_no_time_without_any() -> None:
    """The grace period is over as soon as all connections have ended."""
    async with listening() as to:
        client = await to.connect()
        await client.ask(post())
        ending = asyncio.ensure_future(to.listener.end_connections(1.5, 5.0))
        await turns()
        await client.close()
        await to.until(lambda: to.listener.statistics().connections == 0)
        await to.clock.advance(0.02)
        await asyncio.wait_for(ending, 60)


async def test_the_last_accepted_connection_is_answered() -> None:
    """Once nothing is accepted any more, a connection that has said nothing yet has a moment for
    its first request.
    """
    async with listening() as to:
        quick = await to.connect()
        silent = await to.connect()
        await to.until(lambda: to.listener.statistics().connections == 2)
        await to.listener.stop_listening()
        finishing = asyncio.ensure_future(to.listener.finish_requests(5.0))
        await turns()
        assert (await quick.ask(post())).status == 200
        await quick.close()
        await to.clock.advance(0.3)
        assert await silent.ended() == b""
        await asyncio.wait_for(finishing, 60)
