"""The short form of the restarts under load. The long form is `make test-crash-restarts`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.crash.restarts.campaign import RestartCampaign, RestartOptions
from tests.crash.restarts.daemon import Way

LIMIT = 300


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize(
    "way",
    [
        Way.IN_PLACE,
        pytest.param(Way.SYSTEMD, marks=pytest.mark.long),
        pytest.param(Way.PLAIN, marks=pytest.mark.long),
    ],
    ids=lambda way: way.name.lower(),
)
def test_a_restart_rejects_no_request_and_loses_no_event(tmp_path: Path, way: Way) -> None:
    """Where the socket or the process outlives a restart no request fails, in an outage and in
    quiet; nothing is ever lost.
    """
    # the second one restarts what the first one has started
    report = asyncio.run(RestartCampaign(RestartOptions(20261122, way, 1), tmp_path).run())
    assert [figures.restarts for figures in report.figures] == [1, 1]
    assert report.promised > 100
    if way is not Way.PLAIN:
        assert [dict(figures.failures) for figures in report.figures] == [{}, {}]
