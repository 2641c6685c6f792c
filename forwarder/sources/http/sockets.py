"""The sockets that a listener is given: how an address is written, and how a Unix socket is taken over from a process that died."""

from __future__ import annotations

import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from forwarder.core.errors import ConfigurationError, cannot_listen
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
        raise ConfigurationError(f"{listen!r} is no address to listen on.", hint=hint) from None
    return TcpAddress(host or None, port)


def bind_unix(path: Path, key: str = KEY) -> socket.socket:
    """A bound Unix socket at `path`, which the setting `key` names. One that nobody listens on any more is removed first.

    Raises `ConfigurationError`.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path, key)
        bound.bind(str(path))
        path.chmod(UNIX_MODE)  # nobody can connect yet: it doesn't listen
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
        why = f"{key}: can't listen on {UNIX_PREFIX}{path}: there is a file that is no socket"
        raise ConfigurationError(why, hint=f"Move it away, or set `{key}` to another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # somebody listens, with a full queue
    why = f"{key}: can't listen on {UNIX_PREFIX}{path}: another process does"
    raise ConfigurationError(why, hint=f"Stop it, or set `{key}` to another path.")


def describe(bound: socket.socket) -> str:
    """The address of a bound socket, as it would be written in the configuration."""
    name = bound.getsockname()
    if not isinstance(name, tuple):
        return f"{UNIX_PREFIX}{name}"
    return join_host_port(*name[:2])
