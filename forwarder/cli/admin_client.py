"""Asks a running daemon's admin server: its health, its status, where an event is, and the events
that pass it.

A health check runs every few seconds: HTTP is the standard library's, and what other questions
need is imported when they are asked.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import typer

from forwarder.cli.exit_codes import ExitCode
from forwarder.core.configured_files import read_file
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.host_port import split_host_port
from forwarder.core.proposals import proposed

if TYPE_CHECKING:
    from forwarder.inspect.explain import Trace

DEFAULT_ADDRESS: Final = "127.0.0.1:8321"
MISDIRECTED: Final = 421
"""Status code for a host name that the server doesn't accept; the body says what to do."""
TIMEOUT: Final = 5.0
"""Seconds for connecting and for each part of the answer."""
_NOTE_SECONDS: Final = 1.0
"""Between two notes of how many events a tap doesn't show."""

# S104: nothing is bound: these are the addresses to reach a daemon on all interfaces by.
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


def require_status(address: str) -> bytes:
    """The daemon's status document. Ends the command with exit code 3 when no daemon answers."""
    from forwarder.cli.output import report

    try:
        return get_status(address)
    except NoDaemon as error:
        report(error)
        raise typer.Exit(ExitCode.UNREACHABLE) from error


def live_traces(uuid: str, admin: str | None, config: Path | None) -> tuple[list[Trace], bool]:
    """What the running daemon knows of the event, and whether one answered."""
    from forwarder.inspect.explain import parse_traces

    try:
        code, body = get(resolve(admin, config), f"/explain?uuid={uuid}")
    except NoDaemon:
        return [], False
    return (parse_traces(body), True) if code == 200 else ([], False)


def tap_events(
    address: str, wanted: Mapping[str, Sequence[str] | None], rate: float
) -> Iterator[dict[str, Any]]:
    """The events that pass the daemon, as it describes them, at most `rate` a second of each
    outcome; how many others there are is written to standard error.

    Raises `NoDaemon` when it can't be asked or the stream ends, and `ConfigurationError` if it
    rejects the request.
    """
    import json

    notes = _Notes()
    with _stream(address, tap_path(wanted, rate)) as (code, response):
        if code != 200:
            raise _rejection(address, code, response.read(1000).decode(errors="replace").strip())
        while line := response.readline():
            record = json.loads(line) if line.strip() else {}
            if not isinstance(record, dict):
                raise _rejection(address, code, "Is this the address of forwarder's admin server?")
            if "outcome" in record:
                yield record
            notes.add(record.get("skipped", 0), record.get("lost", 0))
    raise NoDaemon(
        f"the daemon at {address} ended the stream", hint="Run the command again when it is back."
    )


def tap_path(wanted: Mapping[str, Sequence[str] | None], rate: float) -> str:
    """Path and query of a tap; what is typed that is no text at all matches nothing."""
    query = [(name, str(value)) for name, values in wanted.items() for value in values or ()]
    return "/tap?" + urlencode([*query, ("rate", f"{rate:g}")], errors="replace")


def label_of(key: str) -> str:
    """What the daemon looks for in labels: of a project key its label, so that the key itself is
    sent nowhere; of a lane's label the key's.
    """
    from forwarder.telemetry.labels import HISTORICAL, key_label

    return key.partition("@")[0].removesuffix(HISTORICAL) if "#" in key else key_label(key)


@contextlib.contextmanager
def _stream(address: str, path: str) -> Iterator[tuple[int, http.client.HTTPResponse]]:
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


def _rejection(address: str, code: int, text: str) -> ForwarderError:
    """What an answer that is no stream means."""
    if code == 400:
        return ConfigurationError(text)
    if code == 404:
        text = "Is this the address of forwarder's admin server, of this version?"
    return NoDaemon(f"{address} answered {code} to /tap", hint=text)


class _Notes:
    """Says how many events aren't shown, at most once in `_NOTE_SECONDS`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._due = now() + _NOTE_SECONDS
        self._skipped = self._lost = 0

    def add(self, skipped: int, lost: int) -> None:
        """So many more."""
        self._skipped += skipped
        self._lost += lost
        if not (self._skipped or self._lost) or self._now() < self._due:
            return
        lost_text = (
            f"; {self._lost:,} lost, because this command reads too slowly" if self._lost else ""
        )
        sys.stderr.write(f"… {self._skipped:,} more passed, not shown{lost_text}\n")
        self._skipped = 0
        self._lost = 0
        self._due = self._now() + _NOTE_SECONDS


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
        listen = yaml.safe_load(read_file(path))["admin"]["listen"]
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
