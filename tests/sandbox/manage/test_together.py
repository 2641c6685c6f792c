"""Calls that come at once, over HTTP: what must hold anyone who is first."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from forwarder.sandbox.manage.dns import StaticResolver
from tests.sandbox.client import SandboxClient, SandboxReply, talking
from tests.support import management as seed

HOME = f"/api/organizations/{seed.ORGANIZATION}"
THEIRS = f"/api/organizations/{seed.OTHER}"
EXPORT = f"/api/environments/{seed.PROJECT}/batch_exports/{seed.EXPORT}/"


async def call(
    client: SandboxClient, method: str, path: str, body: Any = None, key: str = seed.OWNER_KEY
) -> SandboxReply:
    """One call with a key. Cancelled it may have happened."""
    headers = {"Authorization": f"Bearer {key}"} | (
        {} if body is None else {"Content-Type": "application/json"}
    )
    return await client.ask(
        method, path, None if body is None else json.dumps(body).encode(), headers
    )


async def listed(client: SandboxClient, path: str) -> list[dict[str, Any]]:
    """All items of a list of few. Cancelled nothing happened."""
    results: list[dict[str, Any]] = (await call(client, "GET", path)).json["results"]
    return results


async def test_an_address_that_many_invite_at_once_has_one_invite(tmp_path: Path) -> None:
    """The last one's; and as each combines with those before it, it has the highest level."""
    bodies = [
        {"target_email": email, "level": level}
        for email in ("neo@example.com", "NEO@example.com")
        for level in (1, 8, 15)
    ] * 4
    async with talking(seed.seeded(tmp_path, database=tmp_path / "file.db")) as client:
        replies = await asyncio.gather(
            *(
                call(client, "POST", f"{HOME}/invites/", {**body, "combine_pending_invites": True})
                for body in bodies
            )
        )
        assert Counter(reply.status for reply in replies) == {201: len(bodies)}
        [invite] = [
            listed_invite
            for listed_invite in await listed(client, f"{HOME}/invites/")
            if listed_invite["target_email"].lower() == "neo@example.com"
        ]
        assert invite["level"] == 15
        assert invite["id"] in [reply.json["id"] for reply in replies]


async def test_two_owners_who_demote_each_other_at_once_leave_one(tmp_path: Path) -> None:
    """The second one is no longer an owner."""
    async with talking(seed.seeded(tmp_path)) as client:
        answer = await call(client, "PATCH", f"{HOME}/members/{seed.ADMIN}/", {"level": 15})
        assert answer.status == 200
        replies = await asyncio.gather(
            call(client, "PATCH", f"{HOME}/members/{seed.ADMIN}/", {"level": 1}),
            call(client, "PATCH", f"{HOME}/members/{seed.OWNER}/", {"level": 1}, seed.ADMIN_KEY),
        )
        assert sorted(reply.status for reply in replies) == [200, 403]
        assert [member["level"] for member in await listed(client, f"{HOME}/members/")].count(
            15
        ) == 1


async def test_two_owners_who_leave_at_once_leave_one(tmp_path: Path) -> None:
    """The second is the last."""
    async with talking(seed.seeded(tmp_path)) as client:
        await call(client, "PATCH", f"{HOME}/members/{seed.ADMIN}/", {"level": 15})
        replies = await asyncio.gather(
            call(client, "DELETE", f"{HOME}/members/{seed.ADMIN}/", None, seed.ADMIN_KEY),
            call(client, "DELETE", f"{HOME}/members/{seed.OWNER}/"),
        )
        assert sorted(reply.status for reply in replies) == [204, 400]


async def test_of_two_organizations_that_verify_a_domain_at_once_one_gets_it(
    tmp_path: Path,
) -> None:
    """Each has its challenge in the DNS; the second one learns that it is in use."""
    records: dict[str, list[str]] = {"_posthog-challenge.both.example.com": []}
    async with talking(seed.seeded(tmp_path, resolver=Late(records))) as client:
        sides = [(HOME, seed.OWNER_KEY), (THEIRS, seed.STRANGER_KEY)]
        paths = []
        for home, key in sides:
            answer = await call(
                client, "POST", f"{home}/domains/", {"domain": "both.example.com"}, key
            )
            added = answer.json
            records["_posthog-challenge.both.example.com"].append(added["verification_challenge"])
            paths.append(f"{home}/domains/{added['id']}/")
        replies = await asyncio.gather(
            *(
                call(client, "POST", f"{path}verify/", None, key)
                for path, (_, key) in zip(paths, sides, strict=True)
            )
        )
        assert sorted((reply.status, reply.text[:45]) for reply in replies) == [
            (200, ""),
            (400, '{"type": "validation_error", "code": "unique"'),
        ]
        verified = [
            (await call(client, "GET", path, None, key)).json["is_verified"]
            for path, (_, key) in zip(paths, sides, strict=True)
        ]
        assert sorted(verified) == [False, True]


async def test_a_domain_that_many_add_at_once_is_added_once(tmp_path: Path) -> None:
    """All others learn that it is there."""
    async with talking(seed.seeded(tmp_path)) as client:
        replies = await asyncio.gather(
            *(
                call(client, "POST", f"{HOME}/domains/", {"domain": "Same.example.com"})
                for _ in range(12)
            )
        )
        assert Counter(reply.status for reply in replies) == {201: 1, 400: 11}


async def test_pauses_and_changes_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each changes only what it says, the secret stays, and every backfill has its run."""
    changes = [
        {"name": "New"},
        {"hogql_query": "select 1"},
        {"filters": [1]},
        {"interval": "day"},
        {"end_at": "2027-01-01T00:00:00Z"},
    ]
    async with talking(seed.seeded(tmp_path, database=tmp_path / "file.db")) as client:
        calls = [call(client, "PATCH", EXPORT, change) for change in changes]
        calls += [
            call(client, "POST", f"{EXPORT}{verb}/")
            for verb in ("pause", "backfill", "backfill", "pause", "backfill")
        ]
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
        export = (await call(client, "GET", EXPORT)).json
        assert (export["name"], export["hogql_query"], export["filters"], export["interval"]) == (
            "New",
            "select 1",
            [1],
            "day",
        )
        assert (export["end_at"], export["paused"]) == ("2027-01-01T00:00:00.000000Z", True)
        assert len(export["latest_runs"]) == 4
        assert "hidden-secret" not in json.dumps(export)


class Late:
    """A resolver that answers by a table, after everyone else had a turn."""

    def __init__(self, records: dict[str, list[str]]) -> None:
        self._records = records

    async def texts(self, name: str) -> list[str]:
        """The texts of a name. Cancellation ends the wait."""
        await asyncio.sleep(0)
        return list(await StaticResolver(self._records).texts(name))
