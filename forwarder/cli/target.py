"""Where `forwarder send` and `generate` send events: an address, a project key, and the daemon
that listens there, if it is known.

Invariant: a key is part of no message.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar
from urllib.parse import urlsplit

import typer

from forwarder.cli.admin_client import ANY, NoDaemon, get, require_status, resolve
from forwarder.cli.settings import load_for_person
from forwarder.config.addresses import check_upstream
from forwarder.config.api_keys import check_project_key, read_key_file, read_key_list
from forwarder.config.settings import ImportSettings, Settings
from forwarder.config.source_settings import KeyedSource
from forwarder.core.configured_files import check_file
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.host_port import join_host_port, split_host_port
from forwarder.core.tls import client_context
from forwarder.telemetry.snapshot import Snapshot

To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="URL",
        help=(
            "Send to this address (http://…, https://… or unix:/path). Default: the "
            "configured listener."
        ),
    ),
]
ProjectKey = Annotated[
    str | None,
    typer.Option(
        "--api-key", metavar="KEY", help="Project key. Default: the first configured one."
    ),
]

Given = TypeVar("Given")
Result = TypeVar("Result")

_UNIX: Final = "unix:"
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class EventTarget:
    """Where events go."""

    url: str
    """Base address; of a Unix socket a name that only stands in the request."""
    api_key: str
    socket: str = ""
    """Path of a Unix socket."""
    context: ssl.SSLContext | None = None
    """How a certificate is checked; None for the system's authorities."""
    admin: str = ""
    """Admin address of the forwarder that listens there; empty if that isn't known."""

    @property
    def address(self) -> str:
        """As a person writes it."""
        return f"{_UNIX}{self.socket}" if self.socket else self.url

    @property
    def local(self) -> bool:
        """Whether it is on this machine."""
        return bool(self.socket) or urlsplit(self.url).hostname in LOOPBACK


def choose_target(
    to: str | None, api_key: str | None, admin: str | None, config: Path | None
) -> EventTarget:
    """The target that options and configuration name. Asks the daemon whether it listens there.

    Raises `ConfigurationError`; ends the command with exit code 3 if no daemon answers at a named
    `admin` address.
    """
    settings = load_for_person(config).settings
    key = (
        checked("--api-key", check_project_key, api_key)
        if api_key is not None
        else next(_configured_keys(settings), None)
    )
    if key is None:
        hint = "Name one with --api-key KEY, or configure `sources.http.api_keys`."
        raise ConfigurationError("there is no project key to send with", hint=hint)
    daemon = resolve(admin, config)
    if admin is not None:
        require_status(admin)
    listening = _listening(daemon)
    if to is not None:
        target = _typed(to, key)
    else:
        target = _listener(
            (listening[0] if admin and listening else None) or settings.sources.http.listen,
            key,
            settings,
        )
    if admin is None and not any(_same(target, other) for other in listening):
        daemon = ""
    return EventTarget(target.url, key, target.socket, target.context, daemon)


def snapshot_of(admin: str) -> Snapshot | None:
    """The state of the daemon at an admin address; None if it doesn't answer as one."""
    from forwarder.admin.status import NotAStatus, parse

    try:
        code, body = get(admin, "/status")
        return parse(body) if code == 200 else None
    except (NoDaemon, NotAStatus):
        return None


def _listening(admin: str) -> tuple[str, ...]:
    """Where the daemon at an admin address listens for events; none if no daemon answers."""
    snapshot = snapshot_of(admin)
    return snapshot.addresses if snapshot else ()


def _configured_keys(settings: Settings) -> Iterator[str]:
    """The configured project keys; a file is read when its keys are needed."""
    http = settings.sources.http
    yield from http.api_keys
    if http.api_keys_file is not None:
        read = partial(read_key_list, known={})
        yield from checked("sources.http.api_keys_file", read, http.api_keys_file)
    others: dict[str, KeyedSource | ImportSettings] = {
        **dict(settings.sources.keyed()),
        "import": settings.import_,
    }
    yield from (source.api_key for source in others.values() if source.api_key)
    for name, source in others.items():
        if source.api_key_file is not None:
            yield from checked(f"{name}.api_key_file", read_key_file, source.api_key_file)


def checked(name: str, read: Callable[[Given], Result], given: Given) -> Result:
    """What `read` makes of an option or key. Raises `ConfigurationError` with its name where that
    raises `ValueError`.
    """
    try:
        return read(given)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def _typed(to: str, key: str) -> EventTarget:
    """The target of `--to`."""
    if to.startswith(_UNIX):
        return EventTarget("http://localhost", key, to.removeprefix(_UNIX))
    return EventTarget(checked("--to", check_upstream, to), key)


def _listener(listen: str, key: str, settings: Settings) -> EventTarget:
    """A listener of the configured daemon, which proves by its configured
    certificate that it is that.
    """
    tls = settings.sources.http.tls
    scheme = "http"
    context = None
    if tls.cert_file is not None:
        scheme = "https"
        context = checked("sources.http.tls.cert_file", _trusting, tls.cert_file)
    if listen.startswith(_UNIX):
        return EventTarget(f"{scheme}://localhost", key, listen.removeprefix(_UNIX), context)
    host, port = split_host_port(listen)
    return EventTarget(
        f"{scheme}://{join_host_port(ANY.get(host, host), port)}", key, context=context
    )


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Accepts this certificate alone, whatever name the daemon is reached by. Raises `ValueError`
    if it can't be read.
    """
    context = client_context()
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        check_file(certificate)
        context.load_verify_locations(certificate)
    except OSError as error:
        raise ValueError(f"{certificate} can't be read: {error_text(error)}") from error
    return context


def _same(target: EventTarget, listening: str) -> bool:
    """Whether a daemon that listens there is what the target reaches."""
    if listening.startswith(_UNIX) or target.socket:
        return listening == target.address
    host, port = split_host_port(listening)
    parts = urlsplit(target.url)
    if port != (parts.port or (443 if parts.scheme == "https" else 80)):
        return False
    return parts.hostname == host or (
        parts.hostname in LOOPBACK and (host in LOOPBACK or host in ANY)
    )
