"""Calls of the management endpoints over plain HTTP, by the rows of
`docs/maintainers/interface.md`:
of a sandbox with two organizations.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from tests.contract.tables import EndpointRow, endpoints
from tests.sandbox.client import SandboxClient, SandboxReply, talking
from tests.support import management as seed

Ids: TypeAlias = Mapping[str, object]
ROWS: Final = {row.call: row for row in endpoints()}
NEEDED: Final[dict[str, Any]] = {"domain": "new.example.com", "target_email": "new@example.com"}
"""Values for fields without which an operation doesn't work."""
CHANGED: Final = {"level": 8}


class Challenges:
    """A DNS that has the challenges that it was given."""

    def __init__(self) -> None:
        self.challenges: dict[str, list[str]] = {}

    async def texts(self, name: str) -> Sequence[str]:
        return self.challenges.get(name, [])


class CalledSandbox:
    """A sandbox that is called by its endpoints' names."""

    def __init__(self, client: SandboxClient, dns: Challenges) -> None:
        self.client = client
        self.dns = dns

    async def call(
        self,
        name: str,
        body: Any = ...,
        ids: Ids | None = None,
        *,
        key: str | None = seed.OWNER_KEY,
        query: str = "",
        **more: object,
    ) -> SandboxReply:
        """Call an endpoint; `...` sends no more than it needs, None no body. Ids that aren't
        given, by whichever way, are the seed's.
        """
        row = ROWS[name]
        return await self.ask(
            row.method,
            path_of(row, {**(ids or {}), **more}) + query,
            least(row) if body is ... else body,
            key,
        )

    async def ask(
        self, method: str, path: str, body: Any = None, key: str | None = seed.OWNER_KEY
    ) -> SandboxReply:
        """Make any request."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        if body is None:
            return await self.client.ask(method, path, None, headers)
        return await self.client.ask(
            method, path, json.dumps(body).encode(), {**headers, "Content-Type": "application/json"}
        )

    async def settle(self) -> None:
        """Wait until nothing of batch exports is due."""
        assert (await self.client.post("/sandbox/clock?settle=true", {})).status == 200

    async def items(self, name: str) -> list[dict[str, Any]]:
        """Everything that a list has."""
        items: list[dict[str, Any]] = (await self.call(name)).json["results"]
        return items


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[CalledSandbox]:
    """A sandbox with the seed."""
    dns = Challenges()
    async with talking(seed.seeded(folder, resolver=dns, **options)) as client:
        yield CalledSandbox(client, dns)


def ids_of(row: EndpointRow, *, other: bool = False) -> dict[str, object]:
    """Ids that an endpoint can be called with: of the first organization, or of the other."""
    things: dict[str, tuple[object, object]] = {
        "domains": (seed.DOMAIN, seed.OTHER_DOMAIN),
        "invites": (seed.INVITE, seed.OTHER_INVITE),
        "projects": (seed.PROJECT, seed.OTHER_PROJECT),
        "batch-exports": (seed.EXPORT, seed.OTHER_EXPORT),
        "organization-batch-exports": (seed.EXPORT, seed.OTHER_EXPORT),
        "batch-export-runs": (seed.RUN, seed.OTHER_RUN),
    }
    every: dict[str, tuple[object, object]] = {
        "organization_id": (seed.ORGANIZATION, seed.OTHER),
        "project_id": (seed.PROJECT, seed.OTHER_PROJECT),
        "batch_export_id": (seed.EXPORT, seed.OTHER_EXPORT),
        "user__uuid": (seed.MEMBER, seed.STRANGER),
        "id": things.get(row.resource, (None, None)),
    }
    return {name: every[name][other] for name in row.parameters}


def is_number(row: EndpointRow, parameter: str) -> bool:
    """Whether an id is a number; all others are UUIDs."""
    return parameter == "project_id" or (parameter == "id" and row.resource == "projects")


def path_of(row: EndpointRow, ids: Ids | None = None) -> str:
    """The path with its ids in place."""
    texts = {
        name: quote(str(value), safe="") for name, value in {**ids_of(row), **(ids or {})}.items()
    }
    return row.path.format_map(texts)


def least(row: EndpointRow) -> Any:
    """The least body that does something; None where there is none."""
    if row.body is None:
        return None
    if row.call == "members update":
        return CHANGED
    return {name: NEEDED[name] for name in row.needed}


def error_of(reply: SandboxReply) -> tuple[int, str, str, str | None]:
    """Status, type, code and field of an error, whose body has the documented form."""
    body = reply.json
    assert list(body) == ["type", "code", "detail", "attr"]
    assert body["detail"]
    assert reply.headers["Content-Type"].startswith("application/json")
    return reply.status, body["type"], body["code"], body["attr"]
