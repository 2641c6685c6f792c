"""Listening where other processes listen as well."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sources.http.sockets import bind_unix
from tests.support.listening import listening, post


async def test_a_port_is_shared_by_those_who_want_to() -> None:
    """Several listeners with `reuse_port` have one address; one without it is told that somebody is there."""
    async with listening(reuse_port=True) as one:
        address = one.listener.addresses[0]
        async with listening(listen=address, reuse_port=True) as other:
            assert other.listener.addresses == [address]
            assert (await other.ask(post())).status == 200
        with pytest.raises(ConfigurationError, match="something else listens there"):
            await one.listener.start(address)


async def test_an_inherited_socket_is_listened_on(tmp_path: Path) -> None:
    """A bound Unix socket can be used by several; whoever closes leaves its file for the others."""
    path = tmp_path / "in.sock"
    with bind_unix(path) as bound:
        async with listening(listen=f"unix:{path}", inherited=bound.dup()) as first:
            assert first.listener.addresses == [f"unix:{path}"]
            assert (await first.ask(post())).status == 200
        assert path.exists()
        async with listening(listen=f"unix:{path}", inherited=socket.socket(fileno=bound.dup().detach())) as second:
            assert (await second.ask(post())).status == 200
