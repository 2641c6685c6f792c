"""The client's address: the peer's, or the one that trusted proxies report.

A forwarding header is trusted only from its right end, and only as far as trusted proxies
wrote it: everything further left may be invented by the sender. The first address from the
right that is not a trusted proxy is the client. A hop that is not an address ends the walk at
the last trusted hop. `X-Forwarded-For` wins over `Forwarded`, so a proxy that writes
`Forwarded` has to remove the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from itertools import islice
from typing import Final, TypeAlias

from forwarder.core.global_addresses import is_global
from forwarder.sources.http.protocol.limits import Network

Address: TypeAlias = IPv4Address | IPv6Address

_MAX_CACHED: Final = 1024
_MAX_CACHED_VALUE: Final = 256
_MAX_HOPS: Final = 32

_WITH_PORT: Final = re.compile(r"\[([0-9A-Fa-f:.]+(?:%[\w.~-]+)?)\](?::\w+)?|([0-9.]+):\w+")
_PAIR: Final = re.compile(
    r"""
    [ \t]*
    ( [\w!#$%&'*+.^`|~-]+ )
    =
    (?: " ( (?: [^"\\] | \\. )* ) " | ( [\w!#$%&'*+.^`|~:\[\]-]* ) )
    [ \t]*
    ( [;,] | $ )
    """,
    re.ASCII | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection."""

    address: Address | None
    trusted: bool
    stamp: str | None
    """The address to stamp where no proxy says otherwise."""
    sender: str
    """Who shares the listener with other senders (`core/shares.py`), where no proxy says otherwise.
    """
    text: str | None = None
    """The address as text."""


class ClientAddresses:
    """Decides which address an event may be stamped with. The decisions on header values are kept
    in a small cache.
    """

    def __init__(self, trusted: tuple[Network, ...], *, stamp: bool) -> None:
        self._trusted = trusted
        self._stamp = stamp
        self._cache: dict[tuple[Address | None, bytes, bytes], str | None] = {}

    def peer(self, peername: object) -> Peer:
        """The peer of a socket's peer name: a tuple that starts with the address, or anything else
        for a Unix socket, which is trusted.
        """
        address = parse_address(str(peername[0])) if isinstance(peername, tuple) else None
        sender = sender_of(address)
        if not self._stamp:
            return Peer(None, trusted=False, stamp=None, sender=sender)
        if not isinstance(peername, tuple):
            return Peer(None, trusted=True, stamp=None, sender=sender)
        trusted = address is not None and self._trusts(address)
        return Peer(
            address, trusted, stampable(address), sender, None if address is None else str(address)
        )

    def sender(self, peer: Peer, forwarded_for: bytes, forwarded: bytes) -> str:
        """Who shares, for a request of `peer` with these header values, which are those of a
        trusted one, or empty.
        """
        if not (forwarded_for or forwarded):
            return peer.sender
        return sender_of(self._walk(peer.address, _hops(forwarded_for, forwarded)))

    def client(self, peer: Peer, forwarded_for: bytes, forwarded: bytes) -> str | None:
        """The address to stamp, for a request of a trusted `peer` with these header values
        (several lines joined by commas).
        """
        key = (peer.address, forwarded_for, forwarded)
        try:
            return self._cache[key]
        except KeyError:
            address = stampable(self._walk(peer.address, _hops(forwarded_for, forwarded)))
        if len(forwarded_for) + len(forwarded) <= _MAX_CACHED_VALUE:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[key] = address
        return address

    def _walk(self, nearest: Address | None, hops: Iterable[Address | None]) -> Address | None:
        for hop in islice(hops, _MAX_HOPS):
            if hop is None:
                return nearest
            if not self._trusts(hop):
                return hop
            nearest = hop
        return nearest

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def sender_of(address: Address | None) -> str:
    """Who shares: an address; of IPv6 a network of 64 bits, all of which is one customer's; all of
    a Unix socket together.
    """
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, 64), strict=False))
    return "unix" if address is None else str(address)


def stampable(address: Address | None) -> str | None:
    """The address as text if it says where on the Internet the sender is."""
    if address is None or not is_global(address) or address.is_multicast:
        return None
    return str(address)


def parse_address(text: str) -> Address | None:
    """An IP address without port, brackets or zone; IPv4 mapped into IPv6 is IPv4. None for
    anything else (`unknown`, `_hidden`).
    """
    with_port = _WITH_PORT.fullmatch(text)
    if with_port is not None:
        text = with_port[1] or with_port[2]
    try:
        address = ip_address(text.partition("%")[0] if ":" in text else text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _hops(forwarded_for: bytes, forwarded: bytes) -> Iterator[Address | None]:
    """The addresses that the headers name, the nearest first; None for one that is not
    an address.
    """
    if not forwarded_for:
        yield from map(parse_address, reversed(_for_parameters(forwarded.decode("latin-1"))))
        return
    rest = forwarded_for.decode("latin-1")
    while rest:
        rest, _, hop = rest.rpartition(",")
        if hop.strip():
            yield parse_address(hop.strip())


def _for_parameters(value: str) -> list[str]:
    """The `for` parameters of a Forwarded header (RFC 7239), left to right; one
    empty one if it is malformed.
    """
    parameters: list[str] = []
    element: str | None = None
    position = 0
    while position < len(value):
        pair = _PAIR.match(value, position)
        if pair is None:
            return [""]
        if pair[1].lower() == "for":
            element = re.sub(r"\\(.)", r"\1", pair[2]) if pair[2] is not None else pair[3]
        if pair[4] != ";":
            parameters.append(element or "")
            element = None
        position = pair.end()
    return parameters
