"""The short form of moving regions under load. The long form is `make test-crash-destinations`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.destinations.campaign import DestinationsCampaign, DestinationsOptions

LIMIT = 300


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
async def test_both_destinations_hold_everything(tmp_path: Path) -> None:
    """Whichever of them is away, and however often the daemon is killed: each event that was
    acknowledged, byte for byte, no conflict.
    """
    report = await DestinationsCampaign(DestinationsOptions(20261126, 0.5, 3), tmp_path).run()
    assert report.kills == 3
    assert len(report.live) == 4
    assert report.sent > 500
