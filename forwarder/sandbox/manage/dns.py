"""Lookup of TXT records: from the DNS, from a table, or from a file (`--dns FILE`).

A lookup never fails: a name that does not exist, a server that does not answer and one that
answers nonsense all mean no records. The first lookup imports the DNS library: most sandboxes
verify no domain, and would start later for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import yaml

from forwarder.core.configured_files import read_file
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver as AsyncResolver
    from dns.rdtypes.ANY.TXT import TXT

LIFETIME: Final = 4.0
"""Seconds for a lookup with all its attempts; shorter than the caller's timeout."""
MAX_RECORDS: Final = 100
"""Records that are read at most."""


class Resolver(Protocol):
    """Looks up TXT records."""

    async def texts(self, name: str) -> Sequence[str]:
        """The TXT records of a name; empty if there are none or they cannot be read. Cancellation
        ends the lookup.
        """


class DnsResolver:
    """The DNS, by the system's servers (read for each lookup; without any there are no records),
    or by the given ones.
    """

    def __init__(
        self, nameservers: Sequence[str] = (), *, port: int = 53, lifetime: float = LIFETIME
    ) -> None:
        self._nameservers = nameservers
        self._port = port
        self._lifetime = lifetime

    async def texts(self, name: str) -> Sequence[str]:
        """The TXT records of a name, each with its strings joined. Cancellation ends the lookup."""
        from dns.name import from_text  # noqa: PLC0415 - see above
        from dns.rdtypes.ANY.TXT import TXT  # noqa: PLC0415

        try:
            answer = await self._resolver().resolve(
                from_text(name), "TXT", lifetime=self._lifetime, search=False
            )
            return [
                _text(record) for record in list(answer)[:MAX_RECORDS] if isinstance(record, TXT)
            ]
        except Exception:  # whatever a server sends
            return []

    def _resolver(self) -> AsyncResolver:
        from dns.asyncresolver import Resolver as AsyncResolver  # noqa: PLC0415

        resolver = AsyncResolver(configure=not self._nameservers)
        if self._nameservers:
            resolver.nameservers = list(self._nameservers)
            resolver.port = self._port
        return resolver


class StaticResolver:
    """A table of names and their TXT records."""

    def __init__(self, records: Mapping[str, Sequence[str]]) -> None:
        self._records = {_normalized(name): tuple(texts) for name, texts in records.items()}

    async def texts(self, name: str) -> Sequence[str]:
        """The texts in the table. Nothing to cancel."""
        return self._records.get(_normalized(name), ())


def _text(record: TXT) -> str:
    return b"".join(record.strings).decode(errors="replace")


def _normalized(name: str) -> str:
    return name.rstrip(".").lower()


_HINT = (
    "Write it in YAML or JSON: _posthog-challenge.example.com: the challenge (or a list of texts)."
)


class FileResolver:
    """Looks names up in a file, which is read for each lookup: what is
    written into it counts at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        """Raise `ConfigurationError` if the file can't be used as it is now."""
        _load_records(self._path)

    async def texts(self, name: str) -> Sequence[str]:
        """The texts of a name; none while the file can't be read. Nothing to cancel."""
        try:
            records = _load_records(self._path)
        except ConfigurationError:
            return []
        return await StaticResolver(records).texts(name)


def _load_records(path: Path) -> dict[str, Sequence[str]]:
    try:
        content = yaml.safe_load(read_file(path).decode())
    except OSError as error:
        raise ConfigurationError(
            f"--dns: {path} can't be read: {error_text(error)}", hint=_HINT
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise ConfigurationError(f"--dns: {path} is neither YAML nor JSON", hint=_HINT) from None
    return _check_records(path, {} if content is None else content)


def _check_records(path: Path, content: Any) -> dict[str, Sequence[str]]:
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise ConfigurationError(
            f"--dns: {path} doesn't say which names have which texts", hint=_HINT
        )
    records = {
        name: [texts] if isinstance(texts, str) else texts for name, texts in content.items()
    }
    for name, texts in records.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigurationError(
                f"--dns: {path}: {name} has something else than texts", hint=_HINT
            )
    return records
