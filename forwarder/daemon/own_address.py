"""Detects an upstream whose address is the daemon's own: a loop, before the first event.

Names are resolved within a short limit: a resolver that doesn't answer doesn't keep the daemon
from starting. Other loops (through a proxy, a load balancer, a name that changes) are recognized
by the path in the requests (`core/path.py`).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError
from forwarder.core.host_port import join_host_port
from forwarder.sources.http.sockets import KEY, TcpAddress, parse_listen

RESOLVE_SECONDS: Final = 1.0
"""How long all names together are resolved."""

HINT: Final = (
    "Set it to the address of the analytics service, or of the next forwarder on the way there."
)

_DISCARD: Final = 9
"""The port that a datagram socket is connected to; nothing is sent."""

Ip: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str], Iterable[str]]


@dataclass(frozen=True, slots=True)
class OwnAddress:
    """A key whose address is one that the daemon listens on."""

    key: str
    message: str


def own_addresses(
    settings: Settings, resolve: Resolve | None = None, limit: float = RESOLVE_SECONDS
) -> list[OwnAddress]:
    """The keys whose address is the daemon's own, as far as names resolve within
    `limit` seconds.
    """
    listen = parse_listen(settings.sources.http.listen)
    if not isinstance(listen, TcpAddress) or not listen.port:
        return []
    targets = [(key, host) for key, host, port in _targets(settings) if port == listen.port]
    names = {host for _, host in targets} | ({listen.host} if listen.host else set())
    known = _resolved(names, resolve or _look_up, limit) if targets else {}
    # S104: the address is compared with others, nothing is bound to it.
    own = known.get(listen.host, set()) if listen.host else {IPv4Address("0.0.0.0")}  # noqa: S104
    found = []
    for key, host in targets:
        if any(_is_own(address, own) for address in known.get(host, ())):
            where = f"{KEY} ({settings.sources.http.listen})"
            found.append(
                OwnAddress(
                    key,
                    (
                        f"{join_host_port(host, listen.port)} is this forwarder itself, which "
                        f"listens at {where}"
                    ),
                )
            )
    return found


def reject_own_address(settings: Settings) -> None:
    """Raises `ConfigurationError` if the upstream is the daemon itself."""
    for own in own_addresses(settings):
        raise ConfigurationError(f"{own.key}: {own.message}", hint=HINT)


def _targets(settings: Settings) -> Iterator[tuple[str, str, int]]:
    """The keys of addresses that are connected to, with host and port. With a
    proxy only the proxy is.
    """
    for section, destination in settings.of_each():
        upstream = destination.upstream
        named = {"url": upstream.url, "assets_url": upstream.assets_url}
        if upstream.proxy:
            named = {"proxy": upstream.proxy}
        for key, url in named.items():
            parts = urlsplit(url or "")
            if parts.hostname:
                yield (
                    f"{section}.{key}",
                    parts.hostname,
                    parts.port or (443 if parts.scheme == "https" else 80),
                )


def _look_up(host: str) -> list[str]:
    try:
        return [
            str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        ]
    except (OSError, UnicodeError):
        return []


def _resolved(names: Iterable[str], resolve: Resolve, limit: float) -> dict[str, set[Ip]]:
    """The addresses of names; those that aren't known in time are left out."""
    found: dict[str, set[Ip]] = {}

    def run() -> None:
        for name in names:
            found[name] = {_plain(text) for text in resolve(name)}

    thread = threading.Thread(target=run, name="resolve the upstream", daemon=True)
    thread.start()
    thread.join(limit)
    return dict(found)


def _plain(text: str) -> Ip:
    """An address without zone; one of IPv4 that is written as IPv6 is the former."""
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_own(address: Ip, listening: Iterable[Ip]) -> bool:
    """Whether a connection to `address` ends at one of the addresses listened on."""
    if address.is_unspecified:  # the kernel connects to the loopback address
        address = IPv4Address("127.0.0.1") if address.version == 4 else IPv6Address("::1")
    return any(
        address == other or (other.is_unspecified and _is_local(address)) for other in listening
    )


def _is_local(address: Ip) -> bool:
    """Whether it is an address of this machine: the kernel then chooses it as the sender's, too."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD))
            return bool(ip_address(str(probe.getsockname()[0]).partition("%")[0]) == address)
    except OSError:
        return False
