"""A sandbox with two organizations on a file, all of whose endpoints are called, and all of whose
rows are compared.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import pytest

from forwarder.contract.endpoints import ENDPOINTS, Endpoint
from forwarder.contract.payloads import (
    BatchExportChange,
    DomainChange,
    MemberChange,
    NewDomain,
    NewInvite,
    NewProject,
    RunChange,
)
from forwarder.contract.resources import MEMBER as PLAIN_MEMBER
from forwarder.sandbox.manage.dns import StaticResolver
from tests.sandbox.client import SandboxClient, SandboxReply, talking
from tests.support import management as seed

EVERY: Final = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
BODIES: Final[Mapping[Any, Any]] = {
    NewDomain: {"domain": "new.example.net"},
    DomainChange: {"saml_entity_id": "taken over"},
    NewInvite: {"target_email": "somebody@example.net", "message": "taken over"},
    MemberChange: {"level": PLAIN_MEMBER},
    NewProject: {"name": "taken over"},
    BatchExportChange: {"name": "taken over", "paused": True},
    RunChange: {"status": "Cancelled"},
}
REFUSED: Final = {
    "type": "invalid_request",
    "code": "not_found",
    "detail": "Not found.",
    "attr": None,
}
OF_ORGANIZATION: Final = {
    "organizations": "id = :organization",
    "members": "organization = :organization",
    "users": "id IN (SELECT user FROM members WHERE organization = :organization)",
    "personal_keys": "user IN (SELECT user FROM members WHERE organization = :organization)",
    "domains": "organization = :organization",
    "invites": "organization = :organization",
    "projects": "organization = :organization",
    "dashboards": "project IN (SELECT id FROM projects WHERE organization = :organization)",
    "batch_exports": "project IN (SELECT id FROM projects WHERE organization = :organization)",
    "batch_export_runs": """batch_export IN (SELECT batch_exports.id FROM batch_exports JOIN \
projects ON projects.id = project
        WHERE organization = :organization)""",
}
"""Every table of the management half, and which rows of it are an organization's."""


class ManagementHalf:
    """A sandbox with two organizations, on a file."""

    def __init__(self, client: SandboxClient, path: Path) -> None:
        self._client = client
        self._path = path

    async def ask(
        self, method: str, path: str, body: Any = None, key: str = seed.STRANGER_KEY
    ) -> SandboxReply:
        """Make a request, the stranger's unless `key` says whose."""
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        return await self._client.ask(
            method, path, None if body is None else json.dumps(body).encode(), headers
        )

    async def call(
        self,
        endpoint: Endpoint[Any, Any],
        ids: Mapping[str, str],
        body: Any = ...,
        key: str = seed.STRANGER_KEY,
    ) -> SandboxReply:
        """Call an endpoint, with a body that it accepts."""
        return await self.ask(
            endpoint.method,
            endpoint.path.format_map(ids),
            BODIES.get(endpoint.request) if body is ... else body,
            key,
        )

    async def everything(
        self, organization: str = seed.ORGANIZATION, key: str = seed.OWNER_KEY
    ) -> tuple[Any, Any]:
        """All that is the first organization's: as its owner sees it, and as it is kept."""
        with closing(sqlite3.connect(self._path)) as database:
            tables = {
                name: rows(database, name, where, organization)
                for name, where in OF_ORGANIZATION.items()
            }
        paths = [
            f"/api/organizations/{organization}/{name}/"
            for name in ("domains", "invites", "members", "projects")
        ]
        paths += [f"{paths[-1]}{row[0]}/" for row in tables["projects"]]
        paths += [f"/api/environments/{row[0]}/dashboards/" for row in tables["projects"]]
        paths += [
            f"/api/environments/{project}/batch_exports/{export}/"
            for _, export, project, *_ in tables["batch_exports"]
        ]
        seen = {path: await self.ask("GET", path, key=key) for path in paths}
        assert {reply.status for reply in seen.values()} == {200}
        return {path: reply.json for path, reply in seen.items()}, tables


def rows(database: sqlite3.Connection, name: str, where: str, organization: str) -> list[Any]:
    """An organization's rows of a table."""
    return database.execute(
        f"SELECT * FROM {name} WHERE {where} ORDER BY 1, 2", {"organization": organization}
    ).fetchall()


@asynccontextmanager
async def halves(folder: Path) -> AsyncIterator[ManagementHalf]:
    """A sandbox that nothing but what is kept in it can tell anything."""
    path = folder / "sandbox.db"
    async with talking(seed.seeded(folder, database=path, resolver=StaticResolver({}))) as client:
        yield ManagementHalf(client, path)
