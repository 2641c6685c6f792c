"""The address that several processes listen on together.

The supervisor binds its sockets, and all workers accept from them, so that a connection isn't
bound to one worker before that worker accepts it: one that is stopped or has died holds up none.
The supervisor keeps the sockets open, so that connections wait in their queues while workers
restart. It never listens itself: before the first worker does, senders are refused.
"""

from __future__ import annotations

import socket
from pathlib import Path

from forwarder.core.error_text import cannot_listen
from forwarder.daemon.inheritance import InheritedDescriptors
from forwarder.sources.http.sockets import (
    KEY,
    adopt,
    bind_tcp,
    bind_unix,
    describe,
    duplicates,
    parse_listen,
    remove_unix,
)


class SharedAddress:
    """An address that is held, from `hold_address` to `close`."""

    def __init__(
        self, listen: str, sockets: list[socket.socket], unix: tuple[Path, int] | None = None
    ) -> None:
        """`unix`: the path and the inode of a Unix socket that is this process's own."""
        self.listen = listen
        """As in the configuration; with the real port if it was bound here."""
        self._sockets = sockets
        self._unix = unix

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The sockets, which each worker inherits."""
        return tuple(socket.fileno() for socket in self._sockets)

    def keep(self) -> tuple[int, ...]:
        """Have the sockets and a Unix socket's file outlive it, for the next program of this
        process: their descriptors.
        """
        self._unix = None
        return duplicates(self._sockets)

    def release(self) -> None:
        """Close the sockets: senders are refused once no worker listens any
        more. Safe to call twice.
        """
        while self._sockets:
            self._sockets.pop().close()

    def close(self) -> None:
        """Release the address, and remove the socket file."""
        self.release()
        if self._unix is not None:
            remove_unix(*self._unix)


def hold_address(listen: str, inherited: InheritedDescriptors) -> SharedAddress:
    """Hold `listen` (`host:port`, `[v6]:port`, `:port` or `unix:/path`), or what was inherited for
    it.

    Raises `ConfigurationError` if it isn't an address or can't be bound.
    """
    address = parse_listen(listen)
    inherited_sockets = [adopt(descriptor) for descriptor in inherited.sockets]
    if isinstance(address, Path):
        own = not inherited_sockets or bool(inherited.listen)
        sockets = inherited_sockets or [bind_unix(address)]
        return SharedAddress(listen, sockets, (address, address.lstat().st_ino) if own else None)
    if inherited_sockets:
        return SharedAddress(listen, inherited_sockets)
    try:
        sockets = bind_tcp(address)
    except OSError as error:
        raise cannot_listen(KEY, listen, error) from error
    return SharedAddress(
        f"{listen.rpartition(':')[0]}:{describe(sockets[0]).rpartition(':')[2]}", sockets
    )
