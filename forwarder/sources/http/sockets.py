"""Sockets to listen on: how an address is written, inheriting them from another process, and
replacing the Unix socket of one that died.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from forwarder.core.error_text import cannot_listen, error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.host_port import join_host_port, split_host_port

UNIX_MODE: Final = 0o660
"""Permissions of a Unix socket: its owner and group may send."""

UNIX_PREFIX: Final = "unix:"

KEY: Final = "sources.http.listen"
"""The setting that holds the listener's address."""


class TcpAddress(NamedTuple):
    """Where to listen; no host means all interfaces."""

    host: str | None
    port: int


def parse_listen(listen: str) -> TcpAddress | Path:
    """`host:port`, `[v6]:port`, `:port`, or `unix:/path`. Raises `ConfigurationError`."""
    if listen.startswith(UNIX_PREFIX):
        path = listen.removeprefix(UNIX_PREFIX)
        if path:
            return Path(path)
    try:
        host, port = split_host_port(listen)
    except ValueError:
        hint = "Write host:port, [v6 address]:port or unix:/path."
        raise ConfigurationError(f"{listen!r} is not an address to listen on.", hint=hint) from None
    return TcpAddress(host or None, port)


def bind_tcp(address: TcpAddress) -> list[socket.socket]:
    """Bound sockets for an address, one for each kind of address that it stands for, all with the
    same port. Raises `OSError`.
    """
    sockets: list[socket.socket] = []
    try:
        for family, host in _resolve(address):
            port = sockets[0].getsockname()[1] if sockets else address.port
            sockets.append(_bind(family, host, port))
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def _resolve(address: TcpAddress) -> list[tuple[socket.AddressFamily, str]]:
    # text would load the tables of IDNA
    host = address.host.encode() if address.host and address.host.isascii() else address.host
    infos = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(
        dict.fromkeys(
            (family, str(name[0])) for family, _, _, _, name in infos if _is_there(family)
        )
    )


def _is_there(family: socket.AddressFamily) -> bool:
    """Whether this machine has such addresses at all."""
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _bind(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def adopt(descriptor: int, key: str = KEY) -> socket.socket:
    """The inherited socket of a descriptor. Raises `ConfigurationError` if
    nothing can listen on it.
    """
    try:
        os.set_inheritable(descriptor, False)
        inherited = socket.socket(fileno=descriptor)
    except OSError as error:
        with suppress(OSError):
            os.close(descriptor)
        why = f"{key}: the inherited descriptor {descriptor} is not a socket: {error_text(error)}"
        raise ConfigurationError(
            why, hint="Have the service manager pass listening stream sockets."
        ) from error
    try:
        inherited.getpeername()
    except OSError:
        if inherited.type == socket.SOCK_STREAM and inherited.family in (
            socket.AF_INET,
            socket.AF_INET6,
            socket.AF_UNIX,
        ):
            inherited.setblocking(False)
            return inherited
    inherited.close()
    why = f"{key}: the inherited descriptor {descriptor} is not a listening stream socket"
    raise ConfigurationError(
        why, hint="In a systemd socket unit: ListenStream=, and Accept=no, which is the default."
    )


def duplicates(sockets: Iterable[socket.socket]) -> tuple[int, ...]:
    """Further descriptors of these sockets, which keep them and their queues of connections when
    the sockets are closed.
    """
    return tuple(os.dup(sock.fileno()) for sock in sockets)


def bind_unix(path: Path, key: str = KEY) -> socket.socket:
    """A bound Unix socket at `path`, which the setting `key` names. One without a listening
    process is removed first.

    Raises `ConfigurationError`.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path, key)
        bound.bind(str(path))
        path.chmod(UNIX_MODE)  # before it listens, so that no other user connects
    except OSError as error:
        bound.close()
        raise cannot_listen(key, f"{UNIX_PREFIX}{path}", error) from error
    except ConfigurationError:
        bound.close()
        raise
    return bound


def remove_unix(path: Path, inode: int) -> None:
    """Remove the socket file at the end, if it is still the one that was bound here."""
    with suppress(FileNotFoundError):
        if path.lstat().st_ino == inode:
            path.unlink()


def _remove_stale(path: Path, key: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        why = f"{key}: can't listen on {UNIX_PREFIX}{path}: a file that is not a socket is there"
        raise ConfigurationError(why, hint=f"Move it away, or set `{key}` to another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # another process listens, with a full queue
    why = f"{key}: can't listen on {UNIX_PREFIX}{path}: another process does"
    raise ConfigurationError(why, hint=f"Stop it, or set `{key}` to another path.")


def describe(bound: socket.socket) -> str:
    """The address of a bound socket, as it would be written in the configuration."""
    name = bound.getsockname()
    if not isinstance(name, tuple):
        return f"{UNIX_PREFIX}{name}"
    return join_host_port(*name[:2])
