"""What a running sandbox holds of an import, asked page by page over one connection (docs/sandbox.md: An import into it)."""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

from forwarder.cli.admin_client import MISDIRECTED
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.secrets import mask_secrets
from forwarder.sources.imports.verification import ArrivedEvents, StoredDays, decode_arrived, decode_page

Read = TypeVar("Read")

PAGE: Final = 10_000
"""Events in an answer: the sandbox gives no more."""
TIMEOUT: Final = 120.0
"""Seconds for each answer: a sandbox that is busy with an import answers when it is this question's turn."""
_HINT: Final = "The service itself can't be asked for its events: export them, and name the files with `--export`."


class Unreachable(ForwarderError):
    """Nobody answers there."""

    code = "unreachable"


class SandboxAnswers:
    """A sandbox to ask. To be closed."""

    def __init__(self, url: str) -> None:
        """Nothing is asked yet. Raises `ConfigurationError` if `url` is none."""
        self._url = url.rstrip("/")
        self._connection = _connection(urlsplit(self._url), url)
        self._base = urlsplit(self._url).path

    def hold(self, job: str, api_key: str, told: Callable[[int], None]) -> StoredDays:
        """What it holds of an import, in one project; `told` hears how many events came with each page.

        Raises `Unreachable`, and `ConfigurationError` if it is no sandbox, or has the import in several projects and none was named.
        """
        asked = {"import": job, **({"api_key": api_key} if api_key else {})}
        projects = self.arrived(asked)
        if len(projects) > 1:
            keys = ", ".join(each.api_key for each in projects)
            raise ConfigurationError(
                f"{self._url} has this import in several projects: {keys}", hint="Say which one it is by its key: `--api-key KEY`."
            )
        holding, after = StoredDays(), ""
        holding.conflicts = sum(each.conflicts for each in projects)
        while projects:
            page = self._read(decode_page, "import-events", {**asked, "limit": str(PAGE), "after": after})
            for row in page.results:
                holding.add(row.uuid, row.timestamp)
            told(len(page.results))
            if page.next is None:
                break
            after = page.next
        return holding

    def arrived(self, asked: Mapping[str, str]) -> list[ArrivedEvents]:
        """What it counts of an import, by project."""
        return self._read(decode_arrived, "imports", asked)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _read(self, read: Callable[[bytes], Read], name: str, asked: Mapping[str, str]) -> Read:
        status, body = self._get(f"{self._base}/sandbox/{name}?{urlencode(asked)}")
        if status >= 500:
            raise Unreachable(f"{self._url} answers {status}", hint="Look into what it says for itself, and try again.")
        try:
            if status == 200:
                return read(body)
            why = f"it answers {status}"
            if status == MISDIRECTED:
                raise ConfigurationError(f"{self._url} {why}: {body.decode(errors='replace').strip()}", hint="Or name its address.")
        except ValueError as error:  # msgspec's errors are, too
            why = f"its answer can't be read: {error}"
        raise ConfigurationError(f"{self._url} is no sandbox of this version: {why}", hint=_HINT)

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            self._connection.request("GET", path, headers={"Accept": "application/json"})
            with closing(self._connection.getresponse()) as response:
                return response.status, response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error) or type(error).__name__
            raise Unreachable(
                f"no sandbox answers at {self._url}: {mask_secrets(why)}",
                hint="Start it with `forwarder sandbox --database FILE`, or say where it is with `--sandbox URL`.",
            ) from error


def _connection(parts: SplitResult, url: str) -> http.client.HTTPConnection:
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"{mask_secrets(url)!r} is no address of a sandbox", hint="Write it as http://127.0.0.1:8322.")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=TIMEOUT)
