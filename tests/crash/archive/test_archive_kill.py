"""The short form of the crash test of the archive. The long form is `make test-crash-archive`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.archive.campaign import ArchiveCampaign, ArchiveOptions

SEED = 20260301


@pytest.mark.slow
async def test_an_archive_whose_process_is_killed_has_every_event_in_whole_files(
    tmp_path: Path,
) -> None:
    """At an instant and at failpoints: nothing is missing, torn or changed, and an import brings
    all of it to a new project.
    """
    report = await ArchiveCampaign(ArchiveOptions(SEED, 6_000, 4, together=100), tmp_path).run()
    assert len(report.kills) == 4
    assert report.imported == 6_000
    assert report.conflicts == 0
