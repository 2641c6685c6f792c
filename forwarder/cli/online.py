"""Asks the upstream, as the daemon would: whether it is there, whether it is the analytics
service, and whether it knows the keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from forwarder.cli.exit_codes import ExitCode
from forwarder.core.outcome import Reply
from forwarder.core.secrets import mask_key, mask_secrets
from forwarder.core.tls import client_context
from forwarder.telemetry.readable import duration
from forwarder.telemetry.snapshot import without_credentials

if TYPE_CHECKING:
    from forwarder.config.settings import UpstreamSettings

_FIELDS: Final = (
    b'"featureFlags"',
    b'"flags"',
    b'"config"',
    b'"supportedCompression"',
    b'"errorsWhileComputingFlags"',
)
"""Of which the service's answer to `/decide` has at least one."""

CLOCK_SECONDS: Final = 60.0
"""A difference of clocks that is worth a line."""

_PROBE_SECONDS: Final = 3.0
"""How long it is tried whether the other scheme is spoken."""


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """How the service answered for each key ("" if none is configured), and why it can't be
    reached or isn't the service, if so.
    """

    statuses: Mapping[str, int]
    error: str = ""
    hint: str = ""
    reached: bool = True
    """Whether anything answered at all."""
    clock_ahead: float = 0.0
    """Seconds that this machine's clock is ahead of the upstream's."""

    def exit_code(self) -> ExitCode:
        """`UNREACHABLE` also if an answer is neither 200 nor 401, as an analytics service's is."""
        if self.error or self._undecided():
            return ExitCode.UNREACHABLE
        return ExitCode.NO if self._unknown() else ExitCode.DONE

    def lines(self, url: str, names: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """The answer in words; `names`: of project keys."""

        def shown(key: str) -> str:
            name = names.get(key)
            return f"{name} ({mask_key(key)})" if name else mask_key(key)

        if self.error:
            return [f"{url} {self.error}", f"    {self.hint}"]
        known = (
            len(self.statuses)
            - len(self._unknown())
            - len(self._undecided())
            - ("" in self.statuses)
        )
        answers = f"{url} answers" + (
            f" (HTTP {self.statuses['']})"
            if "" in self.statuses
            else f" and knows {known} of the api_keys"
        )
        unknown = [
            f"{shown(key)} is unknown to it: events with this key would be lost"
            for key in self._unknown()
        ]
        undecided = [
            f"{shown(key)} can't be checked (HTTP {status})"
            for key, status in self._undecided().items()
        ]
        return [answers, *unknown, *undecided, *self._clock_lines()]

    def as_json(self, url: str, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
        """The answer for programs; `names`: of project keys. `status` is that of a question without
        a key.
        """
        return {
            "url": without_credentials(url),
            "reached": self.reached,
            "status": self.statuses.get(""),
            "keys": [
                {
                    "key": mask_key(key),
                    **({"name": names[key]} if key in names else {}),
                    "status": status,
                }
                for key, status in self.statuses.items()
                if key
            ],
            "error": self.error or None,
            "hint": self.hint or None,
            "clock_ahead_seconds": round(self.clock_ahead, 3),
        }

    def _clock_lines(self) -> list[str]:
        if abs(self.clock_ahead) < CLOCK_SECONDS:
            return []
        by = (
            f"{duration(abs(self.clock_ahead))} "
            f"{'ahead of' if self.clock_ahead > 0 else 'behind'} the upstream's"
        )
        return [
            f"this machine's clock is {by}: events without a timestamp get its time",
            "    set it, for example with chrony or systemd-timesyncd",
        ]

    def _unknown(self) -> list[str]:
        return [key for key, status in self.statuses.items() if key and status == 401]

    def _undecided(self) -> dict[str, int]:
        return {
            key: status for key, status in self.statuses.items() if key and status not in {200, 401}
        }


async def ask_upstream(upstream: UpstreamSettings, keys: Sequence[str]) -> UpstreamAnswer:
    """Ask the service once for each key, or once without any, as the daemon does. Cancelling drops
    the connection.
    """
    from forwarder.core.clock import SystemClock
    from forwarder.daemon.policies import open_sink

    statuses: dict[str, int] = {}
    ahead = 0.0
    sink = open_sink(upstream, SystemClock())
    try:
        for key in keys or [""]:
            reply = await sink.decide(key)
            diagnosis = foreign(reply)
            if diagnosis is not None or reply.status is None:
                what, hint = diagnosis or (
                    f"can't be reached: {mask_secrets(reply.error)}",
                    _UNREACHABLE,
                )
                return UpstreamAnswer(
                    statuses,
                    what,
                    await _other_scheme(upstream) or hint,
                    reached=diagnosis is not None,
                )
            statuses[key] = reply.status
            ahead = _clock_ahead(reply.date)
    finally:
        await sink.close()
    return UpstreamAnswer(statuses, clock_ahead=ahead)


def _clock_ahead(date: str) -> float:
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:  # none is given
        return 0.0


_UNREACHABLE: Final = "check upstream.url, upstream.proxy and upstream.ca_file"
_INGESTION: Final = (
    "set upstream.url to the address that SDKs send events to, such as https://us.i.example.com"
)


def foreign(reply: Reply) -> tuple[str, str] | None:
    """How an answer to `/decide` shows that it isn't the analytics service's, and what to do; None
    if it may be.
    """
    status = reply.status
    if status is None:
        return None
    if 300 <= status < 400:
        to = f" to {mask_secrets(reply.location)}" if reply.location else ""
        return (
            f"redirects{to} (HTTP {status}), which events don't follow",
            "set upstream.url to an address that answers itself",
        )
    if status == 407 or reply.asks_login:
        what = f"asks for a login (HTTP {status}), as a proxy does and the service doesn't"
        return (
            what,
            "name a proxy in upstream.proxy, with user and password, or an address without a login",
        )
    if reply.content_type.partition(";")[0].strip().lower() == "text/html":
        return (
            (
                f"answers with a web page (HTTP {status}): it is a website or a proxy's page, not "
                "the analytics service"
            ),
            _INGESTION,
        )
    if status in (404, 405, 410):
        return (
            (
                f"has no /decide (HTTP {status}): it is another server, or its address has "
                "another path"
            ),
            _INGESTION,
        )
    if status == 200 and not (
        reply.body.lstrip().startswith(b"{") and any(name in reply.body for name in _FIELDS)
    ):
        return (
            "answers 200 to /decide, but not as the analytics service does: it is another API",
            _INGESTION,
        )
    return None


async def _other_scheme(upstream: UpstreamSettings) -> str:
    """The hint to write http for https or the reverse, if the port speaks that; else nothing.
    Cancelling drops the connection.
    """
    parts = urlsplit(upstream.url)
    if upstream.proxy or parts.hostname is None:
        return ""
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    with contextlib.suppress(OSError, TimeoutError, EOFError, ValueError):
        async with asyncio.timeout(_PROBE_SECONDS):
            if secure and await _speaks_plain(parts.hostname, port):
                return (
                    "this port speaks HTTP without TLS: write http:// in upstream.url, or the "
                    "port of TLS"
                )
            if not secure and await _speaks_tls(parts.hostname, port):
                return "this port speaks TLS: write https:// in upstream.url"
    return ""


async def _speaks_plain(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"HEAD / HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = await reader.read(400)
        return answer.startswith(b"HTTP/") and b"HTTPS" not in answer
    finally:
        await _closed(writer)


async def _speaks_tls(host: str, port: int) -> bool:
    """Whether a handshake succeeds, with whatever certificate: nothing is sent after it."""
    context = client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    await _closed(writer)
    return True


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):  # the server may have cut the connection
        await writer.wait_closed()
