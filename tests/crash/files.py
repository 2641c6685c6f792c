"""Reads what a dead daemon left in its files, as an operator would: the buffer with
`forwarder buffer export`, the dead letters' database as any program can. The database is copied
first: looking at it must not repair it.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from tests.crash.oracle import Holdings, StoredLetter
from tests.crash.victim import Places, command

_QUERY: Final = "SELECT data, sequence, idx FROM letters"


class _Line(msgspec.Struct):
    batch: list[msgspec.Raw]


_lines: Final = msgspec.json.Decoder(_Line)


class Unreadable(Exception):
    """The files can't be read as they should be."""


async def read_files(places: Places) -> Holdings:
    """What the files of all workers hold. Raises `Unreadable`."""
    if not places.buffer.is_dir():
        return Holdings()
    output = places.root / "export.jsonl"
    code, _ = await command(places, "buffer", "export", "--output", str(output), "--force")
    if code:
        raise Unreadable(f"`forwarder buffer export` ended with {code}")
    with output.open("rb") as file:
        buffered = [bytes(raw) for line in file for raw in _lines.decode(line).batch]
    return Holdings(
        buffered,
        [
            letter
            for path in places.buffer.glob("worker-*/dead-letters.db")
            for letter in read_letters(path)
        ],
    )


async def audit(places: Places) -> list[str]:
    """What `forwarder audit` says is wrong, with the daemon down."""
    code, out = await command(places, "audit")
    return [f"`forwarder audit` ended with {code}: {out}"] if code else []


def read_letters(path: Path) -> list[StoredLetter]:
    """The dead letters of a database."""
    with TemporaryDirectory() as folder:
        for file in path.parent.glob(path.name + "*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, folder)
        with closing(sqlite3.connect(Path(folder) / path.name)) as database:
            return [
                StoredLetter(bytes(data), None if at is None else (at, index))
                for data, at, index in database.execute(_QUERY)
            ]
