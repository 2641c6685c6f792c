"""Asking the analytics service whether it is there, and whether it knows the configured project keys (interface document: decide)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forwarder.config.settings import UpstreamSettings
from forwarder.core.clock import SystemClock
from forwarder.core.secrets import mask_key, mask_secrets
from forwarder.daemon.policies import open_sink


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
    """Ask once for each key, or once without any, in the way that the daemon does. Cancelling drops the connection."""
    statuses: dict[str, int] = {}
    sink = open_sink(upstream, SystemClock())
    try:
        for key in keys or [""]:
            reply = await sink.decide(key)
            if reply.status is None:
                return Findings(statuses, mask_secrets(reply.error))
            statuses[key] = reply.status
    finally:
        await sink.close()
    return Findings(statuses)
