"""The sandbox that an import of the crash test is sent to, in a process of its own, and what it
has: asked, and seen in its file.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.support.commands import running
from tests.support.waiting import pause

KEY: Final = "phc_crash_of_imports_000001"
_STILL: Final = 0.05
"""Seconds in which nothing more arrives, when nothing more will."""


class CrashService:
    """The service that an import posts to."""

    def __init__(self, url: str, database: Path, connection: sqlite3.Connection) -> None:
        self.url = url
        self.database = database
        self._connection = connection

    @classmethod
    @contextlib.asynccontextmanager
    async def living(cls, root: Path) -> AsyncIterator[CrashService]:
        """Start it, with its file in `root`. It is killed at the end."""
        database = root / "sandbox.db"
        arguments = (
            "--listen",
            "127.0.0.1:0",
            "--database",
            str(database),
            "--strict",
            "--api-key",
            KEY,
        )
        async with running("sandbox", *arguments) as sandbox:
            url = (await sandbox.line("listening on")).split()[-1]
            with contextlib.closing(
                sqlite3.connect(f"file:{database}?mode=ro", uri=True)
            ) as connection:
                yield cls(url, database, connection)

    @property
    def came(self) -> int:
        """Events that it has, each once, in no time."""
        return int(
            self._connection.execute("SELECT ifnull(sum(events), 0) FROM requests").fetchone()[0]
        )

    @property
    def requests(self) -> int:
        """The number of the last request."""
        return int(
            self._connection.execute("SELECT ifnull(max(id), 0) FROM requests").fetchone()[0]
        )

    async def arrived(self) -> tuple[int, int]:
        """Events that it has, each once, and repeats, when it has done all that it was sent."""
        before: list[dict[str, Any]] | None = None
        while before != (listed := (await self.ask("imports"))["results"]):
            before = listed
            await pause(_STILL)
        return sum(listed_import["events"] for listed_import in listed), sum(
            listed_import["duplicates"] for listed_import in listed
        )

    async def ask(self, path: str) -> Any:
        """What `/sandbox/…` says."""
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{self.url}/sandbox/{path}") as response,
        ):
            return await response.json()
