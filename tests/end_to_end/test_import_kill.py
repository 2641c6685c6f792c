"""`kill -9` of an import, again and again: the short form. The long one, of a million events, is
`make test-crash-import`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.imports import shards
from tests.crash.imports.campaign import MEMORY, ImportCampaign, ImportOptions

SEED = 20240252


@pytest.mark.parametrize(
    ("suffix", "events", "kills"),
    [(".gz", 3_000, 2), pytest.param(".zst", 2_000, 1, marks=pytest.mark.long)],
)
async def test_all_is_there_once_however_often_the_importer_is_killed(
    suffix: str, events: int, kills: int, tmp_path: Path
) -> None:
    """Killed before it sends and while it does, the same command continues: every event is there
    once, nothing came twice but what was in flight, and the manifest and `import verify` say so.
    """
    options = ImportOptions(SEED, events, kills, suffix, rate="4000", reading=0.8, patience=0.05)
    report = await ImportCampaign(options, tmp_path).run()
    assert len(report.lives) > kills  # on a busy machine it may be through before the last one
    assert report.verdict.distinct == report.books["delivered"] == events
    assert report.verdict.repeats <= report.in_flight
    assert report.verdict.repeats < events
    assert 0 < report.memory < MEMORY
    assert f"All {events:,} events" in report.verified


async def test_shards_that_are_killed_bring_everything_once(tmp_path: Path) -> None:
    """One of three, two at a time: it resumes by its own command while another runs. Every event is
    there once, without a conflict, nothing came twice but of the one that was killed, and
    `import status` and `import verify` say so over all of them.
    """
    options = shards.ShardOptions(SEED, 3_000, shards=3, files=7, at_a_time=2, kills=1, rate="1600")
    report = await shards.ShardCampaign(options, tmp_path).run()
    assert (len(report.lives), report.together) == (1, 2)
    assert 0 < report.lives[0].settled < 1_300
    assert report.verdict.distinct == report.books["delivered"] == 3_000
    assert report.verdict.repeated <= {life.shard.number for life in report.lives}
    assert 0 < report.memory < MEMORY
    assert "All 3,000 events of " in report.verified
