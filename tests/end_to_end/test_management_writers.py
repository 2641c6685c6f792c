"""Fifty clients that write to one sandbox at once: no update is lost, no rule broken, nothing
answered that isn't kept, and no 5xx.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from forwarder.contract.resources import ADMIN, OWNER
from forwarder.contract.resources import MEMBER as PLAIN_MEMBER
from forwarder.management import Client
from forwarder.sandbox import Sandbox
from tests.end_to_end.writing import (
    DOMAIN_FIELDS,
    EXPORT_FIELDS,
    LEAVING,
    OWNERS,
    QUARRELLING,
    REFUSED,
    ROUNDS,
    WANTED,
    Written,
    key_of,
    writing,
)
from tests.support import management as seed


async def test_fifty_clients(tmp_path: Path) -> None:
    """Each field ends as who writes it wrote it last, each count is exact, one owner and one
    invite remain, and the file is sound.
    """
    async with writing(tmp_path) as (writers, client):
        writers.add(
            *map(writers.changes_domain, DOMAIN_FIELDS), *map(writers.changes_export, EXPORT_FIELDS)
        )
        writers.add(
            *[writers.pauses] * 3,
            *[writers.verifies] * 2,
            *[writers.backfills] * 3,
            *[writers.retries] * 2,
            *[writers.reads] * 3,
        )
        writers.add(
            *[writers.lifts] * 2,
            *map(writers.invites_others, range(3)),
            *[writers.makes_projects] * 3,
            *[writers.sends] * 6,
        )
        writers.add(
            *(
                writers.invites_the_same(project, PLAIN_MEMBER)
                for project in (seed.PROJECT, seed.SECOND_PROJECT)
            )
        )
        writers.add(
            *[writers.lifts] * 2,
            writers.makes_projects,
            writers.invites_the_same(seed.PROJECT, ADMIN),
            key=seed.ADMIN_KEY,
        )
        writers.add(writers.invites_the_same(seed.PROJECT, PLAIN_MEMBER))
        for number in range(OWNERS):
            writers.add(writers.leaves(number), key=key_of(LEAVING, number))
            writers.add(writers.demotes(number), key=key_of(QUARRELLING, number))
        assert await writers.run() == 50
        assert set(writers.written.refused) <= REFUSED
        await check_resources(client, writers.written)
        await check_invites(client)
        await check_projects(client, writers.written)
        await check_events(writers.sandbox, writers.written)
    check_file(tmp_path / "sandbox.db")


async def check_resources(client: Client, written: Written) -> None:
    """Domain, exports and levels are what was written last."""
    domain = await client.domains.get(seed.ORGANIZATION, seed.DOMAIN)
    export = await client.batch_exports.get(seed.PROJECT, seed.EXPORT)
    assert {name: domain[name] for name in DOMAIN_FIELDS} == {
        name: written.last[name] for name in DOMAIN_FIELDS
    }
    assert {name: export[name] for name in EXPORT_FIELDS} == {
        name: written.last[name] for name in EXPORT_FIELDS
    }
    assert (domain["has_saml"], domain["is_verified"]) == (True, True)
    assert written.refused[400, "already_verified"] >= 2 * ROUNDS - 2
    paused = await client.batch_exports.get(seed.PROJECT, seed.PAUSED_EXPORT)
    assert paused["last_paused_at"] is not None
    members = {
        member["user"]["uuid"]: member["level"]
        async for member in client.members.list(seed.ORGANIZATION)
    }
    assert members[seed.MEMBER] in written.levels
    assert (members[seed.OWNER], members[seed.ADMIN]) == (OWNER, ADMIN)


async def check_invites(client: Client) -> None:
    """Each address has one invite; that of many has all that each of them gave it."""
    invites = [invite async for invite in client.invites.list(seed.ORGANIZATION, page_size=10)]
    addresses = [invite["target_email"] for invite in invites]
    assert len(set(addresses)) == len(addresses) == 1 + 1 + 3 * 4 * (ROUNDS // 2)
    (wanted,) = (invite for invite in invites if invite["target_email"] == WANTED)
    access = {project["id"] for project in wanted["private_project_access"] or []}
    assert (wanted["level"], access) == (ADMIN, {seed.PROJECT, seed.SECOND_PROJECT})


async def check_projects(client: Client, written: Written) -> None:
    """Each project that was made is there once, with an id and a key of its own."""
    projects = {
        project["id"]: project["api_token"]
        async for project in client.projects.list(seed.ORGANIZATION, page_size=5)
    }
    assert len(written.projects) == 4 * (ROUNDS // 3)
    assert len(set(written.tokens)) == len(written.tokens)
    made = dict(zip(written.projects, written.tokens, strict=True))
    assert projects == {**made, seed.PROJECT: seed.TOKEN, seed.SECOND_PROJECT: seed.SECOND_TOKEN}


async def check_events(sandbox: Sandbox, written: Written) -> None:
    """Every event that was answered is there, once, under its key."""
    summary = await sandbox.summary()
    arrived = Counter(event.api_key for event in await sandbox.events())
    assert arrived == written.events
    assert (summary.events, summary.duplicates, summary.conflicts, summary.refused) == (
        written.events.total(),
        0,
        0,
        0,
    )


def check_file(path: Path) -> None:
    """The file is sound; the runs are all there; of each organization at least one owner is, of
    the one that all left exactly one.
    """
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (runs,) = database.execute(
            "SELECT count(*) FROM batch_export_runs WHERE batch_export = ?", (seed.EXPORT,)
        ).fetchone()
        assert runs == 1 + 5 * ROUNDS
        assert owners(database, LEAVING) == members(database, LEAVING) == 1
        assert owners(database, QUARRELLING) >= 1
        assert members(database, QUARRELLING) == OWNERS
        assert owners(database, seed.ORGANIZATION) == 1


def owners(database: sqlite3.Connection, organization: str) -> int:
    """How many owners an organization has."""
    (count,) = database.execute(
        "SELECT count(*) FROM members WHERE organization = ? AND level = ?", (organization, OWNER)
    ).fetchone()
    return int(count)


def members(database: sqlite3.Connection, organization: str) -> int:
    """How many members it has."""
    (count,) = database.execute(
        "SELECT count(*) FROM members WHERE organization = ?", (organization,)
    ).fetchone()
    return int(count)
