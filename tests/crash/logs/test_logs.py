"""The short form of the crash test of logs, and its checker. The long form, of a million lines, is
`make test-crash-logs`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.crash.logs.campaign import MEMORY, LogCampaign, LogOptions, LogReport, judge
from tests.crash.logs.writer import line

SEED = 20261123


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("commit", ["delivered", pytest.param("disk", marks=pytest.mark.long)])
async def test_every_line_arrives_once_however_often_the_daemon_is_killed_and_the_log_is_rotated(
    commit: str, tmp_path: Path
) -> None:
    """Files are rotated in every way while the daemon is up and while it is down: each line's
    event is there, its bytes unchanged.
    """
    options = LogOptions(
        SEED, 12_000, 9, 2, rate=2000, commit=commit, timed=commit == "disk", patience=0.4
    )
    report = await LogCampaign(options, tmp_path).run()
    assert len(report.lives) == 4
    assert report.distinct == options.lines
    assert report.conflicts == 0
    assert 0 < report.memory < MEMORY


def arrival(
    number: int, kind: str = "new", uuid: str = "u", **changed: object
) -> tuple[str, str, int, bytes]:
    """An event of a line as it arrives."""
    properties = {"n": number, "text": json.loads(line(number))["text"], **changed}
    return kind, uuid, number, json.dumps({"properties": properties}).encode()


def test_the_checker_finds_what_is_lost_changed_and_doubled() -> None:
    """Each of these is a problem, and a repeat of the same bytes isn't."""
    report = LogReport()
    good = [arrival(0), arrival(1), arrival(1, "duplicate"), arrival(2)]
    assert judge(3, good, report) == []
    assert (report.distinct, report.repeats, report.conflicts) == (3, 1, 0)
    assert judge(5, [*good, arrival(4)], LogReport()) == ["lines 3 to 3 never came"]
    assert "second uuid" in judge(3, [*good, arrival(2, uuid="other")], LogReport())[0]
    assert "other bytes" in judge(3, [*good, arrival(2, "conflict")], LogReport())[0]
    assert "was changed" in judge(1, [arrival(0, text="")], LogReport())[0]
    assert "no line was like that" in judge(3, [*good, arrival(7)], LogReport())[0]
