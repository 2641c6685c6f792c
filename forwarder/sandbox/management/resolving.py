"""What looks up TXT records: the DNS, or a table of answers.

A look-up never fails: a name that doesn't exist, a server that doesn't answer and one that answers nonsense all mean no records. The
library for the DNS is imported by the first look-up: most sandboxes verify no domain, and would start later for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.rdtypes.ANY.TXT import TXT

LIFETIME: Final = 4.0
"""Seconds for a look-up with all its attempts; so that it ends by itself before whoever asked gives up."""
MOST: Final = 100
"""Records that are read at most."""


class DnsResolver:
    """The DNS, by the servers that the system names (read for each look-up; without any there are no records), or by those given."""

    def __init__(self, nameservers: Sequence[str] = (), *, port: int = 53, lifetime: float = LIFETIME) -> None:
        self._nameservers, self._port, self._lifetime = nameservers, port, lifetime

    async def texts(self, name: str) -> Sequence[str]:
        """The TXT records of a name, each with its strings joined. Cancellation ends the look-up."""
        from dns.name import from_text  # noqa: PLC0415 - see above
        from dns.rdtypes.ANY.TXT import TXT  # noqa: PLC0415

        try:
            answer = await self._resolver().resolve(from_text(name), "TXT", lifetime=self._lifetime, search=False)
            return [_text(record) for record in list(answer)[:MOST] if isinstance(record, TXT)]
        except Exception:  # whatever a server sends
            return []

    def _resolver(self) -> Resolver:
        from dns.asyncresolver import Resolver  # noqa: PLC0415

        resolver = Resolver(configure=not self._nameservers)
        if self._nameservers:
            resolver.nameservers = list(self._nameservers)
            resolver.port = self._port
        return resolver


class StaticResolver:
    """A table of names and their TXT records, for tests and demonstrations."""

    def __init__(self, records: Mapping[str, Sequence[str]]) -> None:
        self._records = {_plain(name): tuple(texts) for name, texts in records.items()}

    async def texts(self, name: str) -> Sequence[str]:
        """The texts in the table. Nothing to cancel."""
        return self._records.get(_plain(name), ())


def _text(record: TXT) -> str:
    return b"".join(record.strings).decode(errors="replace")


def _plain(name: str) -> str:
    return name.rstrip(".").lower()
