"""Addresses, Unix sockets, and listening where other processes listen as well."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sources.http.sockets import TcpAddress, adopt, bind_tcp, bind_unix, parse_listen
from tests.support.cases import cases
from tests.support.listening import LIMIT, listening, post, turns


async def test_an_address_is_shared_by_those_who_want_to() -> None:
    """Several listeners can have inherited sockets of one address; one that binds it itself learns
    that it is in use.
    """
    (bound,) = bind_tcp(TcpAddress("127.0.0.1", 0))
    async with listening(inherited=[bound.dup()]) as one:
        address = one.listener.addresses[0]
        async with listening(inherited=[bound]) as other:
            assert other.listener.addresses == [address]
            client = await other.connect()
            assert (await client.ask(post())).status == 200
            assert len(one.intake.accepted) + len(other.intake.accepted) == 1
        with pytest.raises(
            ConfigurationError, match=r"(?:process .+|something else) listens there"
        ):
            await one.listener.start(address)


async def test_connections_wait_in_a_socket_that_outlives_its_listener() -> None:
    """Once a listener has ended, a connection to the same socket waits in its queue, and the next
    listener answers it.
    """
    (bound,) = bind_tcp(TcpAddress("127.0.0.1", 0))
    async with listening(inherited=[bound.dup()]) as first:
        await first.listener.stop_listening()
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(post())
        await turns()
        assert first.intake.accepted == []
    async with listening(inherited=[bound]) as second:
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), LIMIT)).split()[1] == b"200"
        assert len(second.intake.accepted) == 1
        writer.close()
        await writer.wait_closed()


async def test_an_inherited_socket_is_listened_on(tmp_path: Path) -> None:
    """A bound Unix socket can be used by several; anyone who closes leaves its file for
    the others.
    """
    path = tmp_path / "in.sock"
    with bind_unix(path) as bound:
        async with listening(listen=f"unix:{path}", inherited=[bound.dup()]) as first:
            assert first.listener.addresses == [f"unix:{path}"]
            assert (await first.ask(post())).status == 200
        assert path.exists()
        async with listening(
            listen=f"unix:{path}", inherited=[socket.socket(fileno=bound.dup().detach())]
        ) as second:
            assert (await second.ask(post())).status == 200


@cases("wrong", ["file", "datagrams", "connection"])
def test_an_inherited_descriptor_must_be_a_stream_socket(wrong: str, tmp_path: Path) -> None:
    """A descriptor that is inherited must be a stream socket that isn't connected."""
    one, other = socket.socketpair()
    kinds: dict[str, Any] = {
        "file": (tmp_path / "file").open("w"),
        "datagrams": socket.socket(type=socket.SOCK_DGRAM),
        "connection": one,
    }
    with pytest.raises(
        ConfigurationError, match=r"sources\.http\.listen: the inherited descriptor"
    ):
        adopt(os.dup(kinds[wrong].fileno()))
    for opened in (*kinds.values(), other):
        opened.close()


def test_a_file_instead_of_a_socket_is_kept(tmp_path: Path) -> None:
    """A file at a Unix socket's place is not removed; a folder that isn't there
    is an error with a name.
    """
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="a file that is not a socket"):
        bind_unix(path)
    assert path.read_text() == "precious"
    with pytest.raises(ConfigurationError, match="No such file"):
        bind_unix(tmp_path / "missing" / "a.sock")


@cases(
    ("listen", "address"),
    [
        ("127.0.0.1:80", TcpAddress("127.0.0.1", 80)),
        ("[::1]:80", TcpAddress("::1", 80)),
        (":80", TcpAddress(None, 80)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("unix:/run/a.sock", Path("/run/a.sock")),
    ],
)
def test_addresses(listen: str, address: TcpAddress | Path) -> None:
    """How an address is written."""
    assert parse_listen(listen) == address


@cases(
    "listen",
    ["", "localhost", "localhost:", "localhost:x", "localhost:70000", "unix:", "a:-1", "a:٣"],
)
def test_invalid_addresses_are_errors(listen: str) -> None:
    """Anything else is a configuration error."""
    with pytest.raises(ConfigurationError, match="is not an address"):
        parse_listen(listen)
