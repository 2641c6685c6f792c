"""Requests to destinations: only to addresses that may be asked, through no proxy, following no
redirect, each within a time.

Addresses must be public unless the operator allows others. A private address is any that isn't
globally reachable: loopback, private networks, link-local (metadata of cloud machines), multicast,
reserved, and IPv6 addresses that stand for such an IPv4 address. A name is resolved once for a
request, which then goes to the addresses that were checked. A message shows a URL without
credentials and query, and of what a destination says the beginning, without secrets.
"""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from forwarder.core.error_text import error_text
from forwarder.core.global_addresses import is_global
from forwarder.core.secrets import mask_secrets
from forwarder.core.tls import client_context
from forwarder.sandbox.exports.jobs import DestinationFailed, DestinationPolicy, ExportMisconfigured

OPTION: Final = "--allow-private-destinations"
_RESOLVE_WITHIN: Final = 10.0
_QUOTED: Final = 200
_LOOKED_AT: Final = 2_000
"""Bytes of an error's body that are read."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class DestinationUrl:
    """The URL of a destination."""

    parts: SplitResult
    host: str
    port: int

    @classmethod
    def parse(cls, value: object, setting: str) -> DestinationUrl:
        """An `http` or `https` URL; `setting` names it in messages. Raises
        `ExportMisconfigured`.
        """
        try:
            parts = urlsplit(value.strip() if isinstance(value, str) else "")
            host = parts.hostname
            port = parts.port
        except ValueError:
            host = port = None
            parts = SplitResult("", "", "", "", "")
        if parts.scheme not in _PORTS or not host:
            raise ExportMisconfigured(
                f"{setting} of the destination is not a URL. Write it as https://host or "
                "http://host:port."
            )
        return cls(parts, host, port if port is not None else _PORTS[parts.scheme])

    @property
    def shown(self) -> str:
        """The URL for messages."""
        return f"{self.parts.scheme}://{self.parts.netloc.rpartition('@')[2]}{self.parts.path}"

    async def resolve(self, policy: DestinationPolicy, executor: Executor) -> Sequence[str]:
        """The addresses that it may be reached at; `executor` waits for the name server.
        Cancellation ends the wait.

        Raises `ExportMisconfigured` if one of them is private and none may be, `DestinationFailed`
        if the name has none.
        """
        try:
            async with asyncio.timeout(_RESOLVE_WITHIN):
                asked = partial(socket.getaddrinfo, self.host, self.port, type=socket.SOCK_STREAM)
                infos = await asyncio.get_running_loop().run_in_executor(executor, asked)
        except (OSError, UnicodeError, TimeoutError):
            raise DestinationFailed(
                f"{self.shown} can't be reached: the name {self.host!r} has no address."
            ) from None
        addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
        if not policy.allow_private and any(is_private(address) for address in addresses):
            raise ExportMisconfigured(
                f"{self.shown} is at a private address. To allow these, start the sandbox with "
                f"`{OPTION}`."
            )
        return addresses


@dataclass(frozen=True, slots=True)
class DestinationRequest:
    """A request with a body."""

    method: str
    target: str
    """The whole URL, with credentials and query, at the host of `url`."""
    body: bytes
    secrets: Sequence[str]
    """What no message may show."""


async def send(
    request: DestinationRequest,
    url: DestinationUrl,
    policy: DestinationPolicy,
    executor: Executor,
    limit: float,
) -> str | None:
    """Make a request within `limit` seconds. Returns None if it succeeded, else the status and the
    beginning of what was answered.

    Only 2xx is success. Raises `DestinationFailed` if there is no answer, and what
    `DestinationUrl.resolve` raises. Cancellation may leave the request done or not.
    """
    connector = aiohttp.TCPConnector(
        resolver=_CheckedAddresses(await url.resolve(policy, executor)),
        ssl=client_context(),
        force_close=True,
    )
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=limit), trust_env=False
            ) as session,
            session.request(
                request.method,
                URL(request.target, encoded=True),
                data=io.BytesIO(request.body),
                headers={
                    "Content-Type": "application/octet-stream"
                    if request.method == "PUT"
                    else "application/json"
                },
                allow_redirects=False,
            ) as response,
        ):
            if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                return None
            said = (await response.content.read(_LOOKED_AT)).decode(errors="replace")
            return f"{response.status} {said}".strip()
    except TimeoutError:
        raise DestinationFailed(f"{url.shown} didn't answer within {limit:g} seconds.") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        why = scrub(error_text(error), request.secrets)
        raise DestinationFailed(f"{url.shown} can't be reached: {why}") from None


def is_private(address: str) -> bool:
    """Whether an address isn't globally reachable."""
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        inside = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None, None))[1]
        if inside is None and (ip in _NAT64 or int(ip) >> 32 == 0):
            inside = IPv4Address(int(ip) & 0xFFFFFFFF)
        if inside is not None:
            return is_private(str(inside))
    return not is_global(ip) or ip.is_multicast or ip.is_reserved


def scrub(text: str, secrets: Iterable[str]) -> str:
    """The beginning of what a destination said, on one line, without secrets."""
    for secret in sorted({value for value in secrets if value}, key=len, reverse=True):
        text = text.replace(secret, "…")
    text = " ".join(mask_secrets(text).split())
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"


class _CheckedAddresses(AbstractResolver):
    """Resolves any name to the addresses that were checked, so that no later answer of its name
    server leads elsewhere.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
            if family in (socket.AF_UNSPEC, socket.AF_INET6 if ":" in address else socket.AF_INET)
        ]

    async def close(self) -> None:
        """There is nothing to close."""
