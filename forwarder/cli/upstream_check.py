"""Asking the analytics service whether it is there, and whether it knows the configured project keys (interface document: decide)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from forwarder.config.settings import UpstreamSettings
from forwarder.core.secrets import mask_key, mask_secrets

_PATIENCE: Final = 10.0
"""Seconds that the service has for an answer, at most."""
_DISTINCT_ID: Final = "forwarder-config-check"


@dataclass(frozen=True, slots=True)
class Findings:
    """What the service answered: a status for each key ("" if none is configured), and why it can't be reached, if so."""

    statuses: Mapping[str, int]
    error: str = ""

    def unknown(self) -> list[str]:
        """The keys that the service doesn't know."""
        return [key for key, status in self.statuses.items() if key and status == 401]

    def undecided(self) -> dict[str, int]:
        """The keys of which its answer tells nothing: neither 200 nor 401."""
        return {key: status for key, status in self.statuses.items() if key and status not in {200, 401}}

    def exit_code(self) -> int:
        """3: unreachable, or answers otherwise than the service does; 1: a key is unknown; 0: all is well."""
        if self.error or self.undecided():
            return 3
        return 1 if self.unknown() else 0

    def lines(self, url: str) -> list[str]:
        """What to tell a person."""
        if self.error:
            return [f"{url} can't be reached: {self.error}", "    check upstream.url, upstream.proxy and upstream.ca_file"]
        known = len(self.statuses) - len(self.unknown()) - len(self.undecided()) - ("" in self.statuses)
        answers = f"{url} answers" + (f" (HTTP {self.statuses['']})" if "" in self.statuses else f", and knows {known} of the api_keys")
        unknown = [f"{mask_key(key)} is unknown there: its events would be lost" for key in self.unknown()]
        return [answers, *unknown, *[f"{mask_key(key)}: it can't tell (HTTP {status})" for key, status in self.undecided().items()]]


async def ask_upstream(upstream: UpstreamSettings, keys: Sequence[str]) -> Findings:
    """Ask `/decide?v=3` once for each key, or once without any. Cancelling drops the connection."""
    statuses: dict[str, int] = {}
    timeout = aiohttp.ClientTimeout(total=min(upstream.timeout, _PATIENCE))
    try:
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(upstream.ca_file) if upstream.ca_file else None))
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            for key in keys or [""]:
                statuses[key] = await _ask(session, upstream, key)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Findings(statuses, mask_secrets(str(error) or type(error).__name__))
    return Findings(statuses)


async def _ask(session: aiohttp.ClientSession, upstream: UpstreamSettings, key: str) -> int:
    question = {"api_key": key, "distinct_id": _DISTINCT_ID}
    address = f"{upstream.url}/decide?v=3"
    async with session.post(address, json=question, proxy=upstream.proxy, allow_redirects=False) as answer:
        return answer.status
