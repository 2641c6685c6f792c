"""The address that several processes listen on together.

On TCP each worker has sockets of its own with SO_REUSEPORT, and the kernel spreads connections over those that listen. The supervisor
creates them and keeps them open, so that connections stay in their queues while workers restart. It also holds a socket of its own, which
never listens and so gets no connection: it chooses the port where 0 is configured, and keeps it while no worker runs. A Unix socket, and
sockets that the supervisor has inherited, can't be spread like this: all workers accept on the same ones.
"""

from __future__ import annotations

import socket
from pathlib import Path

from forwarder.core.error_text import cannot_listen
from forwarder.daemon.inheritance import InheritedDescriptors
from forwarder.sources.http.sockets import KEY, TcpAddress, adopt, bind_tcp, bind_unix, describe, duplicates, parse_listen, remove_unix


class SharedAddress:
    """An address that is held, from `hold_address` to `close`."""

    def __init__(
        self,
        listen: str,
        *,
        common: list[socket.socket],
        each: dict[int, list[socket.socket]],
        reserved: list[socket.socket],
        unix: tuple[Path, int] | None = None,
    ) -> None:
        """`common`: the sockets of all workers; where there are none, `each` worker has its own, made as they are needed."""
        self.listen = listen
        """As in the configuration, with the real port."""
        self._common = common
        self._each = each
        self._reserved = reserved
        self._unix = unix

    def descriptors(self, number: int) -> tuple[int, ...]:
        """The sockets that worker `number` inherits. Raises `ConfigurationError` if they can't be bound."""
        if self._common:
            return tuple(each.fileno() for each in self._common)
        if number not in self._each:
            address = parse_listen(self.listen)
            try:
                self._each[number] = bind_tcp(address, shared=True) if isinstance(address, TcpAddress) else []
            except OSError as error:
                raise cannot_listen(KEY, self.listen, error) from error
        return tuple(each.fileno() for each in self._each[number])

    def forget(self, number: int) -> None:
        """Worker `number` has ended unexpectedly: its sockets are closed, so that the kernel gives its connections to the others."""
        for each in self._each.pop(number, []):
            each.close()

    def keep(self) -> tuple[tuple[int, ...], ...]:
        """Have the sockets and a Unix socket's file outlive it, for the next program of this process: their descriptors."""
        self._unix = None
        return tuple(duplicates(each) for each in (self._common, *self._each.values()) if each)

    def release(self) -> None:
        """Close the sockets: senders are refused once no worker listens any more. Safe to call twice."""
        for sockets in (self._common, self._reserved, *self._each.values()):
            while sockets:
                sockets.pop().close()

    def close(self) -> None:
        """Release the address, and remove the socket file."""
        self.release()
        if self._unix is not None:
            remove_unix(*self._unix)


def hold_address(listen: str, inherited: InheritedDescriptors, workers: int) -> SharedAddress:
    """Hold `listen` (`host:port`, `[v6]:port`, `:port` or `unix:/path`), or what was inherited for it.

    Raises `ConfigurationError` if it isn't an address or can't be bound.
    """
    address = parse_listen(listen)
    groups = [[adopt(descriptor) for descriptor in group] for group in inherited.ingestion]
    if groups:
        return _inherited(listen, address, groups, workers, own=bool(inherited.listen))
    if isinstance(address, Path):
        bound = bind_unix(address)
        return SharedAddress(listen, common=[bound], each={}, reserved=[], unix=(address, address.lstat().st_ino))
    try:
        if address.port:
            for bound in bind_tcp(address):  # SO_REUSEPORT alone would let two daemons share an address by mistake
                bound.close()
        reserved = bind_tcp(address, shared=True)
    except OSError as error:
        raise cannot_listen(KEY, listen, error) from error
    return SharedAddress(_with_port(listen, reserved[0]), common=[], each={}, reserved=reserved)


def _inherited(listen: str, address: TcpAddress | Path, groups: list[list[socket.socket]], workers: int, *, own: bool) -> SharedAddress:
    """What was inherited: a group for each worker, or all sockets for all of them."""
    unix = (address, address.lstat().st_ino) if own and isinstance(address, Path) else None
    first = groups[0][0]
    if len(groups) != workers or unix or not first.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) or isinstance(address, Path):
        return SharedAddress(listen, common=[each for group in groups for each in group], each={}, reserved=[], unix=unix)
    listen = _with_port(listen, first)
    name = parse_listen(listen)
    reserved = bind_tcp(name, shared=True) if isinstance(name, TcpAddress) else []
    return SharedAddress(listen, common=[], each=dict(enumerate(groups)), reserved=reserved)


def _with_port(listen: str, bound: socket.socket) -> str:
    return f"{listen.rpartition(':')[0]}:{describe(bound).rpartition(':')[2]}"
