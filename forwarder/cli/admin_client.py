"""Asks a running daemon's admin server, using only the standard library: a health check runs every
few seconds.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.host_port import split_host_port
from forwarder.core.proposals import proposed

DEFAULT_ADDRESS: Final = "127.0.0.1:8321"
MISDIRECTED: Final = 421
"""Status code for a host name that the server doesn't accept; the body says what to do."""
TIMEOUT: Final = 5.0
"""Seconds for connecting and for each part of the answer."""

# S104: where a daemon on all interfaces is reached
ANY: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104


_OTHER: Final = (
    "Name the address of forwarder's admin server: its setting is `admin.listen`, "
    "127.0.0.1:8321 by default."
)


class NoDaemon(ForwarderError):
    """No daemon answers at the admin address."""

    code = "no_daemon"


def get(address: str, path: str) -> tuple[int, bytes]:
    """The status code and body of `GET path`. `address` is `host:port`, `http://host:port` or
    `unix:/path`.

    Raises `NoDaemon`, and `ConfigurationError` if `address` is invalid.
    """
    connection = _connection(address)
    try:
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _no_daemon(address, error) from error


@contextlib.contextmanager
def stream(address: str, path: str) -> Iterator[tuple[int, http.client.HTTPResponse]]:
    """The status code of `GET path` and its answer, to be read as it comes. A server that sends
    nothing for `TIMEOUT` is gone.

    Raises `NoDaemon`, also while it is read, and `ConfigurationError` if `address` is invalid.
    """
    connection = _connection(address)
    try:
        connection.request("GET", path, headers={"Accept": "application/x-ndjson"})
        response = connection.getresponse()
        yield response.status, response
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _no_daemon(address, error) from error
    finally:
        connection.close()


def _no_daemon(address: str, error: Exception) -> NoDaemon:
    if not isinstance(error, OSError):
        return NoDaemon(f"what answers at {address} is not forwarder's admin server", hint=_OTHER)
    why = error_text(error)
    if isinstance(error, PermissionError):
        hint = (
            "Run this as a user that may connect to the socket: its owner, or a member of its "
            "group."
        )
        return NoDaemon(f"no daemon can be asked at {address}: {why}", hint=hint)
    return NoDaemon(
        f"no daemon answers at {address}: {why}",
        hint=(
            f"Start one with `{proposed('run')}`, or name its address with `--admin ADDRESS` "
            "(its setting `admin.listen`)."
        ),
    )


def get_status(address: str) -> bytes:
    """The daemon's status document. Raises `NoDaemon`, also if something else answers, and
    `ConfigurationError` as `get`.
    """
    code, body = get(address, "/status")
    if code != 200:
        hint = body.decode(errors="replace").strip() if code == MISDIRECTED else _OTHER
        raise NoDaemon(f"{address} answered {code} to /status", hint=hint)
    if not body.startswith(b"{"):
        raise NoDaemon(f"what answers at {address} is not forwarder's admin server", hint=_OTHER)
    return body


def resolve(admin: str | None, config: Path | None) -> str:
    """The admin address: given, from the environment, from the configuration file, or the default
    one.

    Raises `ConfigurationError` if it is invalid.
    """
    address = (
        admin or os.environ.get("FORWARDER_ADMIN__LISTEN") or _from_file(config) or DEFAULT_ADDRESS
    )
    _connection(address)
    return address


def _from_file(config: Path | None) -> str | None:
    path = config or Path("/etc/forwarder/forwarder.yaml")
    if config is None and not path.exists():
        return None
    return _listen_as_written(path) or _listen_as_read(path)


def _listen_as_written(path: Path) -> str | None:
    """The file's `admin.listen` if it is plain text, as most are: loading all settings takes
    longer than the health check itself.
    """
    import yaml

    try:
        listen = yaml.safe_load(path.read_bytes())["admin"]["listen"]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return None
    return listen if isinstance(listen, str) and "${" not in listen else None


def _listen_as_read(path: Path) -> str:
    from forwarder.config.load import load_settings

    return load_settings(path, os.environ, require_upstream=False).settings.admin.listen


class UnixConnection(http.client.HTTPConnection):
    """A connection to a socket file."""

    def __init__(self, path: str, timeout: float = TIMEOUT) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(address: str) -> http.client.HTTPConnection:
    if address.startswith("unix:"):
        return UnixConnection(address.removeprefix("unix:"))
    try:
        host, port = split_host_port(address.removeprefix("http://").rstrip("/"))
    except ValueError:
        hint = (
            f"Write 127.0.0.1:{address}."
            if address.isdecimal()
            else "Write host:port or unix:/path."
        )
        raise ConfigurationError(f"{address!r} is not an admin address", hint=hint) from None
    return http.client.HTTPConnection(ANY.get(host, host), port, timeout=TIMEOUT)
