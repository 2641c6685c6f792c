"""The quarantine of a database that can't be read: it is moved whole into `aside/`, beside it, and
never deleted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from forwarder.storage.directory import ASIDE
from forwarder.storage.private import make_directory, sync_directory

BESIDE: Final = ("", "-wal", "-shm")
"""Suffixes of the files that SQLite keeps for a database."""


def quarantine_database(path: Path, now: float) -> Path:
    """Move the file with those that belong to it; return its new path. `now`: seconds since 1970.
    Raises `OSError`.
    """
    directory = path.parent / ASIDE
    make_directory(directory)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    number = 0
    while True:
        target = directory / (
            f"{path.stem}-{stamp}" + (f"-{number}" if number else "") + path.suffix
        )
        if not target.exists():
            break
        number += 1
    # the database last: while it exists the next opening moves the rest
    for ending in reversed(BESIDE):
        part = path.with_name(path.name + ending)
        if part.exists():
            part.rename(target.with_name(target.name + ending))
    for changed in (directory, path.parent):
        sync_directory(changed)
    return target
