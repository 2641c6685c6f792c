"""Jobs of clients that write to one sandbox at once, each with a client of its own, and what they
were answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp
import yaml

from forwarder.contract.resources import MEMBER as PLAIN_MEMBER
from forwarder.management import ApiError, Client
from forwarder.sandbox import Sandbox, SandboxOptions
from tests.support import management as seed

ROUNDS: Final = 24
"""Writes of each client, one after another."""
DOMAIN_FIELDS: Final = ("saml_entity_id", "saml_acs_url", "saml_x509_cert")
EXPORT_FIELDS: Final = ("name", "hogql_query", "filters")
LEAVING: Final = "01900000-0000-7000-8000-0000000000a1"
QUARRELLING: Final = "01900000-0000-7000-8000-0000000000a2"
OWNERS: Final = 5
"""Of each of these two organizations."""
REFUSED: Final = {
    (400, "already_verified"),
    (400, "last_owner"),
    (403, "permission_denied"),
    (404, "not_found"),
}
"""What may be said to who comes too late."""
WANTED: Final = "wanted@example.net"
Job = Callable[[Client], Coroutine[Any, Any, None]]


def owner(organization: str, number: int) -> dict[str, Any]:
    """One of many owners."""
    name = f"{organization[-2:]}-{number}"
    keys = [{"key": key_of(organization, number), "scopes": ["*"]}]
    return {
        "uuid": uuid_of(organization, number),
        "email": f"{name}@example.net",
        "level": "owner",
        "personal_api_keys": keys,
    }


def uuid_of(organization: str, number: int) -> str:
    """The user's uuid."""
    return f"01900000-0000-7000-8000-{organization[-2:]}000000000{number}"


def key_of(organization: str, number: int) -> str:
    """The user's key."""
    return f"phx_test_{organization[-2:]}_owner_{number}"


SEED: Final = {
    "organizations": [
        *seed.SEED["organizations"],
        *(
            {
                "id": organization,
                "name": organization[-2:],
                "members": [owner(organization, number) for number in range(OWNERS)],
            }
            for organization in (LEAVING, QUARRELLING)
        ),
    ]
}


class Slow:
    """A DNS that has the challenge, and lets others go first."""

    challenge = ""

    async def texts(self, _name: str) -> Sequence[str]:
        for _ in range(20):
            await asyncio.sleep(0)
        return [self.challenge]


@dataclass
class Written:
    """What the clients were answered."""

    last: dict[str, object] = field(default_factory=dict)
    """The last value of each field that one client alone writes."""
    levels: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    projects: list[int] = field(default_factory=list)
    refused: Counter[tuple[int | None, str]] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    """Sent with each project key, and answered with 200."""

    async def unless_refused(self, call: Awaitable[object]) -> bool:
        """Whether a call did what it was made for; it may be refused, but
        the sandbox must not fail.
        """
        try:
            await call
        except ApiError as error:
            self.refused[error.status, error.code] += 1
            return False
        return True


class Writers:
    """The jobs, each for one client, and what came of them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.written = Written()
        self._start = asyncio.Event()
        self._jobs: list[tuple[str, Job]] = []

    def add(self, *jobs: Job, key: str = seed.OWNER_KEY) -> None:
        """One more client for each job."""
        self._jobs += [(key, job) for job in jobs]

    async def run(self) -> int:
        """Do all jobs at once, each with a client of its own that is connected before; how many
        there were.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(key, job)) for key, job in self._jobs]
            self._start.set()
        return len(tasks)

    async def _one(self, key: str, job: Job) -> None:
        async with Client(self.sandbox.url, key) as client:
            await self._start.wait()
            await job(client)

    def changes_domain(self, name: str) -> Job:
        """Writes one field of a domain that others write other fields of, and
        others verify meanwhile.
        """

        async def job(client: Client) -> None:
            for number in range(ROUNDS):
                value = f"{name}-{number}"
                answer = await client.domains.update(
                    # one of its fields
                    seed.ORGANIZATION,
                    seed.DOMAIN,
                    **{name: value},  # type: ignore[arg-type]
                )
                assert answer[name] == value  # type: ignore[literal-required]  # the same
                self.written.last[name] = value

        return job

    def changes_export(self, name: str) -> Job:
        """Writes one field of a batch export that others write other fields of."""

        async def job(client: Client) -> None:
            for number in range(ROUNDS):
                value = f"{name}-{number}"
                answer = await client.batch_exports.update(
                    # one of its fields
                    seed.PROJECT,
                    seed.EXPORT,
                    **{name: value},  # type: ignore[arg-type]
                )
                assert answer[name] == value  # type: ignore[literal-required]  # the same
                self.written.last[name] = value

        return job

    async def verifies(self, client: Client) -> None:
        """Verifies that domain: the look-up takes a while, in which others write."""
        for _ in range(ROUNDS):
            await self._refusable(client.domains.verify(seed.ORGANIZATION, seed.DOMAIN))

    async def pauses(self, client: Client) -> None:
        """Pauses and unpauses an export, from both sides."""
        for _ in range(ROUNDS // 2):
            await client.batch_exports.pause(seed.PROJECT, seed.PAUSED_EXPORT)
            await client.organization_batch_exports.unpause(seed.ORGANIZATION, seed.PAUSED_EXPORT)

    async def backfills(self, client: Client) -> None:
        """Makes runs of an export that others change."""
        for _ in range(ROUNDS):
            await client.batch_exports.backfill(seed.PROJECT, seed.EXPORT)

    async def retries(self, client: Client) -> None:
        """Makes more runs of it."""
        for _ in range(ROUNDS):
            await client.batch_export_runs.retry(seed.PROJECT, seed.EXPORT, seed.RUN)

    async def lifts(self, client: Client) -> None:
        """Changes the level of a member up and down, as others do."""
        for number in range(ROUNDS):
            level: Literal[1, 8] = 1 if number % 2 else 8
            answer = await client.members.update(seed.ORGANIZATION, seed.MEMBER, level=level)
            assert answer["level"] == level
            self.written.levels.append(level)

    def leaves(self, number: int) -> Job:
        """Leaves an organization that all its owners leave."""
        return lambda client: self._refusable(
            client.members.delete(LEAVING, uuid_of(LEAVING, number))
        )

    def demotes(self, number: int) -> Job:
        """Demotes all other owners of an organization, who do the same."""

        async def job(client: Client) -> None:
            for other in (owner_number for owner_number in range(OWNERS) if owner_number != number):
                await self._refusable(
                    client.members.update(
                        QUARRELLING, uuid_of(QUARRELLING, other), level=PLAIN_MEMBER
                    )
                )

        return job

    async def _refusable(self, call: Awaitable[object]) -> None:
        await self.written.unless_refused(call)

    def invites_the_same(self, project: int, level: Any) -> Job:
        """Invites an address that others invite as well, each adding to what it may."""

        async def job(client: Client) -> None:
            for _ in range(ROUNDS // 2):
                await client.invites.create(
                    seed.ORGANIZATION,
                    target_email=WANTED,
                    level=level,
                    combine_pending_invites=True,
                    private_project_access=[{"id": project, "level": "member"}],
                )

        return job

    def invites_others(self, number: int) -> Job:
        """Invites addresses that no one else invites, one by one and three at once."""

        async def job(client: Client) -> None:
            for count in range(ROUNDS // 2):
                await client.invites.create(
                    seed.ORGANIZATION, target_email=f"one-{number}-{count}@example.net"
                )
                addresses = [
                    f"{prefix}-{number}-{count}@example.net" for prefix in ("two", "three", "four")
                ]
                await client.invites.bulk(
                    seed.ORGANIZATION, [{"target_email": address} for address in addresses]
                )

        return job

    async def makes_projects(self, client: Client) -> None:
        """Makes projects, and sends events with the keys of each at once."""
        for number in range(ROUNDS // 3):
            project = await client.projects.create(seed.ORGANIZATION, name=f"Project {number}")
            self.written.projects.append(project["id"])
            self.written.tokens.append(project["api_token"])
            await self._send(project["api_token"], number)

    async def sends(self, _client: Client) -> None:
        """Sends events all the while."""
        for number in range(ROUNDS):
            await self._send(seed.TOKEN, number)

    async def reads(self, client: Client) -> None:
        """Reads the lists that others change, page by page."""
        for _ in range(ROUNDS // 3):
            assert [invite async for invite in client.invites.list(seed.ORGANIZATION, page_size=7)]
            assert [
                project async for project in client.projects.list(seed.ORGANIZATION, page_size=3)
            ]

    async def _send(self, token: str, number: int) -> None:
        events = [
            {"event": f"seen {number}", "distinct_id": f"person-{person}"} for person in range(5)
        ]
        body = {"api_key": token, "batch": events}
        url = f"{self.sandbox.url}/batch/"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            assert response.status == 200
        self.written.events[token] += len(events)


@asynccontextmanager
async def writing(folder: Path) -> AsyncIterator[tuple[Writers, Client]]:
    """A sandbox on a file, those who will write, and the owner who looks at what came of it."""
    path = folder / "seed.yaml"
    path.write_text(yaml.safe_dump(SEED))
    dns = Slow()
    options = SandboxOptions(seed=path, database=folder / "sandbox.db", resolver=dns)
    async with Sandbox(options) as sandbox, Client(sandbox.url, seed.OWNER_KEY) as client:
        reply = await client.domains.get(seed.ORGANIZATION, seed.DOMAIN)
        dns.challenge = reply["verification_challenge"]
        yield Writers(sandbox), client
