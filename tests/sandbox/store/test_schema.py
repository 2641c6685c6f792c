"""The tables of a sandbox's database, and files of other versions."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.schema import MANAGEMENT, VERSION
from tests.sandbox.client import UUID, batch, event, talking
from tests.support import management as seed
from tests.support.cases import cases

MANAGED = re.findall(r"CREATE TABLE (\w+)", MANAGEMENT)


def older(path: Path, version: int) -> None:
    """Make a file as an older version of the sandbox left it."""
    connection = sqlite3.connect(path)
    connection.execute("DROP INDEX groups_by_type")
    for table in ("person_versions", "event_persons", "merges", "warnings", "person_groups"):
        connection.execute(f"DROP TABLE {table}")
    for column in ("created", "sources", "version"):
        connection.execute(f"ALTER TABLE persons DROP COLUMN {column}")
    if version <= 4:
        _without_decisions(connection)
    if version <= 3:
        connection.executescript("DROP INDEX imported; ALTER TABLE events DROP COLUMN import_job;")
    if version <= 2:
        connection.execute("DROP INDEX requests_with_events")
        for table in reversed(MANAGED):
            connection.execute(f"DROP TABLE {table}")
    if version == 1:
        for table in ("persons", "distinct_ids", "groups", "marks", "progress"):
            connection.execute(f"DROP TABLE {table}")
        connection.executescript("DROP INDEX events_of; ALTER TABLE requests DROP COLUMN method;")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def _without_decisions(connection: sqlite3.Connection) -> None:
    """Take away what version 5 added."""
    added = ("origin", "cause", "attempt", "due_at", "selection")
    connection.executescript(
        "".join(f"DROP INDEX batch_export_runs_{name};" for name in ("by_cause", "unfinished"))
    )
    connection.executescript(
        "".join(f"ALTER TABLE batch_export_runs DROP COLUMN {column};" for column in added)
    )
    for table in ("clock", "definitions", "definition_revisions", "hash_keys", "export_logs"):
        connection.execute(f"DROP TABLE {table}")
    connection.execute("ALTER TABLE persons DROP COLUMN changed")


def shape(path: Path) -> list[Any]:
    """The columns of every table, and what else there is."""
    connection = sqlite3.connect(path)
    things = connection.execute("SELECT type, name FROM sqlite_schema ORDER BY name").fetchall()
    columns = [
        connection.execute(f"PRAGMA table_info({name})").fetchall()
        for kind, name in things
        if kind == "table"
    ]
    [version] = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return [
        version,
        things,
        [sorted((name, kind, null) for _, name, kind, null, *_ in table) for table in columns],
    ]


@cases("version", [1, 2, 3, 4, 5])
async def test_a_file_of_an_older_version(tmp_path: Path, version: int) -> None:
    """A database from before persons, organizations, or imports, is taken over: what is in it is
    there, its events have their effects.
    """
    path = tmp_path / "x.db"
    async with talking(SandboxOptions(database=path)) as client:
        await client.post(
            "/batch/", batch(event(uuid=UUID, properties={"$set": {"a": 1}}), event(event=""))
        )
        events = await client.sandbox.events()
        requests = await client.sandbox.requests()
    new = shape(path)
    older(path, version)
    assert shape(path) != new
    async with Sandbox(seed.seeded(tmp_path, database=path)) as sandbox:
        assert (await sandbox.events(), await sandbox.requests()) == (events, requests)
        assert [one.properties for one in await sandbox.persons()] == [{"a": 1}]
        assert await sandbox.organizations() == 2
    assert shape(path) == new


def test_a_file_of_a_later_version(tmp_path: Path) -> None:
    """A database of a version to come is left alone, and the error says so."""
    path = tmp_path / "x.db"
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(ConfigurationError, match="later version"):
        Store(path)


async def test_clearing_leaves_the_management_half(tmp_path: Path) -> None:
    """What arrived is forgotten, by the page as well as by the program; organizations, projects
    and all else of theirs stay.
    """
    path = tmp_path / "x.db"
    async with talking(seed.seeded(tmp_path, database=path)) as client:
        await client.post("/batch/", {"api_key": seed.TOKEN, "batch": [event()]})
        tables = rows(path)
        assert (await client.ask("DELETE", "/sandbox/events")).status == 204
        assert await client.sandbox.events() == []
        assert rows(path) == tables
        answer = await client.post("/batch/", {"api_key": seed.TOKEN, "batch": [event()]})
        assert answer.status == 200
        assert (await client.post("/batch/", batch(event()))).status == 401


def rows(path: Path) -> dict[str, list[Any]]:
    """Everything in the tables of the management half."""
    connection = sqlite3.connect(path)
    tables = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in MANAGED}
    connection.close()
    assert all(tables.values())
    return tables
