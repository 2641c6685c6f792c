"""`kill -9` of a sandbox on a file while clients write: what was answered is
there when it runs again.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp

from forwarder.management import ApiError, Client
from tests.support import management as seed
from tests.support.commands import running

KILLS: Final = 2
ANSWERS: Final = 80
"""So many writes are answered before a kill."""


@dataclass
class WriteAnswers:
    """What clients were answered, of all lives of the sandbox; a write without an answer may have
    been done or not.
    """

    writes: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    issuer: int = 0
    """The newest value of a domain's field, as it was answered; `asked` as it was asked for."""
    asked: int = 0
    projects: dict[int, str] = field(default_factory=dict)
    invites: set[str] = field(default_factory=set)
    taken_back: set[str] = field(default_factory=set)
    events: set[str] = field(default_factory=set)

    def note(self) -> None:
        """One more."""
        self.writes += 1
        if self.writes >= ANSWERS:
            self.enough.set()


class WritingClients:
    """Clients of one life of the sandbox: each writes until no one answers."""

    def __init__(self, url: str, answered: WriteAnswers, number: int) -> None:
        self.url = url
        self.answered = answered
        self.number = number

    async def write(self) -> None:
        """Have all of them write, until the sandbox is gone."""
        jobs = (self.changes, self.makes, self.invites, self.sends)
        async with Client(self.url, seed.OWNER_KEY) as client:
            await asyncio.gather(*(self._until_gone(job, client) for job in jobs))

    async def _until_gone(
        self, job: Callable[[Client, int], Coroutine[Any, Any, None]], client: Client
    ) -> None:
        try:
            for turn in count():
                await job(client, turn)
                self.answered.note()
        except (ApiError, aiohttp.ClientError) as error:
            if getattr(error, "status", None) is not None:
                raise

    async def changes(self, client: Client, turn: int) -> None:
        """Changes one field, always to a greater number."""
        value = self.number * 1_000_000 + turn
        self.answered.asked = value
        await client.domains.update(
            seed.ORGANIZATION, seed.VERIFIED_DOMAIN, saml_entity_id=str(value)
        )
        self.answered.issuer = value

    async def makes(self, client: Client, turn: int) -> None:
        """Makes a project."""
        project = await client.projects.create(seed.ORGANIZATION, name=f"Project {turn}")
        self.answered.projects[project["id"]] = project["api_token"]

    async def invites(self, client: Client, turn: int) -> None:
        """Invites someone, and takes every other invite back."""
        invite = await client.invites.create(
            seed.ORGANIZATION, target_email=f"somebody-{self.number}-{turn}@example.net"
        )
        self.answered.invites.add(invite["id"])
        if turn % 2:
            self.answered.invites.remove(invite["id"])
            await client.invites.delete(seed.ORGANIZATION, invite["id"])
            self.answered.taken_back.add(invite["id"])

    async def sends(self, _client: Client, turn: int) -> None:
        """Sends an event."""
        event = {"event": f"seen {self.number}-{turn}", "distinct_id": "ann"}
        body = {"api_key": seed.TOKEN, "batch": [event]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/batch/", json=body) as response,
        ):
            assert response.status == 200
        self.answered.events.add(event["event"])


async def test_answered_writes_survive_a_kill(tmp_path: Path) -> None:
    """Killed twice under load: every change, project, invite and event that was answered is there,
    and what was removed is gone.
    """
    options = seed.seeded(tmp_path)
    database = tmp_path / "sandbox.db"
    command = (
        "sandbox",
        "--listen",
        "127.0.0.1:0",
        "--database",
        str(database),
        "--seed",
        str(options.seed),
    )
    answered = WriteAnswers()
    for number in range(1, KILLS + 1):
        async with running(*command) as sandbox:
            url = (await sandbox.line("listening on")).split()[-1]
            answered.writes = 0
            answered.enough = asyncio.Event()
            writing = asyncio.create_task(WritingClients(url, answered, number).write())
            await answered.enough.wait()
            sandbox.send(signal.SIGKILL)
            await writing
    async with running(*command) as sandbox:
        url = (await sandbox.line("listening on")).split()[-1]
        await check(url, answered)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def check(url: str, answered: WriteAnswers) -> None:
    """All that was answered is there."""
    async with Client(url, seed.OWNER_KEY) as client, aiohttp.ClientSession() as session:
        domain = await client.domains.get(seed.ORGANIZATION, seed.VERIFIED_DOMAIN)
        assert int(domain["saml_entity_id"]) in (answered.issuer, answered.asked)
        projects = {
            project["id"]: project["api_token"]
            async for project in client.projects.list(seed.ORGANIZATION)
        }
        assert answered.projects.items() <= projects.items()
        assert len(answered.projects) >= KILLS
        assert len(projects) <= len(answered.projects) + 2 + KILLS
        invites = {invite["id"] async for invite in client.invites.list(seed.ORGANIZATION)}
        assert answered.invites <= invites
        assert not answered.taken_back & invites
        async with session.get(f"{url}/sandbox/events?limit=10000") as response:
            events = [event["event"] for event in (await response.json())["results"]]
        assert answered.events <= set(events)
        assert len(set(events)) == len(events) <= len(answered.events) + KILLS
        token = next(iter(answered.projects.values()))
        async with session.post(
            f"{url}/batch/",
            json={"api_key": token, "batch": [{"event": "e", "distinct_id": "ann"}]},
        ) as response:
            assert response.status == 200
