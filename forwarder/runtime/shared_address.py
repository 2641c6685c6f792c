"""The address that several processes listen on together.

On TCP each worker has a socket of its own with SO_REUSEPORT, and the kernel spreads connections over those that listen. The supervisor
holds one too, which never listens and so gets no connection: it chooses the port where 0 is configured, keeps it while no worker is
there, and tells at the start whether the address can be had at all. A Unix socket can't be shared so: the supervisor binds it, and the
workers inherit it.
"""

from __future__ import annotations

import socket
from pathlib import Path

from forwarder.core.errors import cannot_listen
from forwarder.sources.http.sockets import KEY, TcpAddress, bind_unix, describe, parse_listen, remove_unix


class SharedAddress:
    """An address that is held, from `hold` to `close`."""

    def __init__(self, listen: str, sockets: list[socket.socket], unix: tuple[Path, int] | None = None) -> None:
        self.listen = listen
        """As it would be configured, with the real port."""
        self._sockets = sockets
        self._unix = unix

    @property
    def descriptor(self) -> int | None:
        """The bound Unix socket that workers are to inherit, as long as it is held; None for TCP."""
        return self._sockets[0].fileno() if self._unix and self._sockets else None

    def let_go(self) -> None:
        """Close the sockets: senders are refused once no worker listens any more. Safe to call twice."""
        while self._sockets:
            self._sockets.pop().close()

    def close(self) -> None:
        """Let go, and remove the socket file."""
        self.let_go()
        if self._unix is not None:
            remove_unix(*self._unix)


def hold(listen: str) -> SharedAddress:
    """Hold `listen` (`host:port`, `[v6]:port`, `:port` or `unix:/path`). Raises `ConfigurationError` if it is none or can't be had."""
    address = parse_listen(listen)
    if isinstance(address, Path):
        bound = bind_unix(address)
        return SharedAddress(listen, [bound], (address, address.lstat().st_ino))
    sockets: list[socket.socket] = []
    try:
        for family, host in _resolved(address):
            port = sockets[0].getsockname()[1] if sockets else address.port
            if port:
                _bound(family, host, port, shared=False).close()  # SO_REUSEPORT alone would let two daemons share an address by mistake
            sockets.append(_bound(family, host, port, shared=True))
    except OSError as error:
        for taken in sockets:
            taken.close()
        raise cannot_listen(KEY, listen, error) from error
    prefix = listen.rpartition(":")[0]
    return SharedAddress(f"{prefix}:{describe(sockets[0]).rpartition(':')[2]}", sockets)


def _resolved(address: TcpAddress) -> list[tuple[socket.AddressFamily, str]]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(name[0])) for family, _, _, _, name in found if _is_there(family)))


def _is_there(family: socket.AddressFamily) -> bool:
    """Whether this machine has such addresses at all: "all interfaces" means those that there are."""
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _bound(family: socket.AddressFamily, host: str, port: int, *, shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
