"""The short form of the crash test: a few kills under load, at random instants and at failpoints.
The long form is `make test-crash`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.campaign import CrashCampaign, CrashOptions

SEED = 20240229
PLACES = ("commit.written", "dead_letters.committed", "opening.written", "settle.marked")


@pytest.mark.slow
async def test_nothing_is_lost_changed_or_miscounted_when_the_daemon_is_killed(
    tmp_path: Path,
) -> None:
    """Every promised event is delivered, a dead letter or in the buffer, its bytes unchanged; the
    books balance at every look.
    """
    report = await CrashCampaign(
        CrashOptions(SEED, 2, len(PLACES), PLACES, look_every=4), tmp_path
    ).run()
    assert report.kills >= 6
    assert set(report.hit) == set(PLACES)
    assert report.promised > 1000
    assert report.looks > 100
