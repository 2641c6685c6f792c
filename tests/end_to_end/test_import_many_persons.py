"""Many persons: the memory of an index, and its size as the preflight says it.

200,000 of them are `make test-long`; PERSONS_OF_AN_IMPORT=1000000 takes as many: minutes, and no
more memory.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import pytest

from forwarder.sources.imports.persons import INDEX
from forwarder.sources.imports.preflight_report import PREFLIGHT
from tests.crash.process import Killable
from tests.support.waiting import eventually

PERSONS: Final = int(os.environ.get("PERSONS_OF_AN_IMPORT", "200000"))
MEMORY: Final = 300_000_000
LONG: Final = 3_000.0


def write(path: Path, count: int) -> Path:
    """Of each person an event of a device, and then the `$identify` of its user, in no order of
    persons.
    """
    with path.open("w") as file:
        for number in range(2 * count):
            person = number * 7_919 % count
            day = 1 + number * 27 // (2 * count)
            is_user = number >= count
            who = f"user-{person}@example.com" if is_user else f"device-{person}"
            said = f'"$set":{{"plan":"{"pro" if is_user else "free"}","seats":{number}}}'
            more = f'"$anon_distinct_id":"device-{person}",' if is_user else ""
            file.write(
                f'{{"event":"{"$identify" if is_user else "seen"}","distinct_id":"{who}",'
                f'"uuid":"{number:08x}-0000-4000-8000-000000000000",'
                f'"timestamp":"2024-01-{day:02}T00:00:00Z","properties":{{{more}{said}}}}}\n'
            )
    return path


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("count", [5_000, pytest.param(PERSONS, marks=pytest.mark.long)])
async def test_an_index_takes_300_mb_at_most(tmp_path: Path, count: int) -> None:
    """The preflight of `newest`, which makes the index, and says how large it is."""
    source = write(tmp_path / "export.jsonl", count)
    state = tmp_path / "state"
    command = ["import", "native", str(source), "--person-properties", "newest", "--dry-run"]
    log = tmp_path / "log"
    async with Killable.living([*command, "--state", str(state)], log) as importer:

        def has_ended() -> bool:
            importer.look()
            return importer.ended

        await eventually(has_ended, LONG, explain=log.read_text)
        assert await importer.code() == 0, log.read_text()
    persons = json.loads((state / PREFLIGHT).read_text())["report"]["persons"]
    assert 0 < importer.memory < MEMORY
    assert persons["index_persons"] == count
    assert persons["index_bytes"] == (state / INDEX).stat().st_size
