"""A destination of the campaign: a real sandbox that is stopped, killed and started again on its
file, and what its file holds.
"""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import datetime
from pathlib import Path

from tests.crash.process import Killable
from tests.support.waiting import LIMIT, eventually

ARRIVALS = """SELECT events.uuid, events.raw, requests.received_at FROM events JOIN requests ON \
requests.id = events.request
    WHERE events.kind NOT IN ('duplicate', 'conflict')"""


class DestinationService:
    """Serves until `close`."""

    def __init__(self, name: str, port: int, root: Path) -> None:
        self.name = name
        self.port = port
        self._database = root / f"{name}.db"
        self._log = root / "output.log"
        self._life = contextlib.AsyncExitStack()
        self._process: Killable | None = None

    @property
    def url(self) -> str:
        """Its address, in all lives."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        arguments = (
            "sandbox",
            "--listen",
            f"127.0.0.1:{self.port}",
            "--database",
            str(self._database),
        )
        self._process = await self._life.enter_async_context(Killable.living(arguments, self._log))
        process = self._process
        await eventually(lambda: process.ended or listens(self.port), LIMIT)
        assert not process.ended, f"the sandbox {self.name} ended; {self._log} says why"

    async def end(self, *, kill: bool) -> None:
        """End it in good order, or kill it."""
        assert self._process is not None
        await (self._process.killed() if kill else self._process.stopped())
        await self._life.aclose()

    async def close(self) -> None:
        """Kill it, if it lives."""
        await self._life.aclose()

    def arrivals(self) -> dict[str, tuple[bytes, float]]:
        """Each event by its uuid: its bytes as they arrived first, and when that was."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
        ) as connection:
            rows = connection.execute(ARRIVALS).fetchall()
        return {
            uuid: (bytes(raw), datetime.fromisoformat(at).timestamp()) for uuid, raw, at in rows
        }

    def count(self) -> int:
        """How many events it has, each once."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
        ) as connection:
            return int(connection.execute("SELECT count(DISTINCT uuid) FROM events").fetchone()[0])

    def conflicts(self) -> int:
        """Repeats of a uuid with other bytes."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
        ) as connection:
            return int(
                connection.execute(
                    "SELECT count(*) FROM events WHERE kind = 'conflict'"
                ).fetchone()[0]
            )


def listens(port: int) -> bool:
    """Whether something listens on the port of this machine."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                return True
    return False
