"""Hours in which an import rests."""

from __future__ import annotations

from datetime import datetime, time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.quiet_hours import QuietHours

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("22:00-06:00", QuietHours(time(22), time(6))),
        (" 8:30 - 18:05  Europe/Berlin ", QuietHours(time(8, 30), time(18, 5), BERLIN)),
        ("18:00-24:00 UTC", QuietHours(time(18), time(0), ZoneInfo("UTC"))),
    ],
)
def test_they_are_written_as_people_write_them(text: str, hours: QuietHours) -> None:
    """Two times of the day, and a zone if it isn't the machine's."""
    assert QuietHours.parse(text) == hours


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("at night", "isn't of that form"),
        ("22-06", "isn't of that form"),
        ("25:00-06:00", "no such time"),
        ("22:00-24:30", "no such time"),
        ("22:00-48:00", "no such time"),
        ("06:00-06:00", "begins where it ends"),
        ("22:00-06:00 Mars/Base", "no zone 'Mars/Base'"),
        ("22:00-06:00 ../../etc", "no zone"),
    ],
)
def test_others_are_refused_with_an_example(text: str, why: str) -> None:
    """The message says what is wrong, the hint how to write it."""
    with pytest.raises(ConfigurationError, match=why) as caught:
        QuietHours.parse(text)
    assert "22:00-06:00" in caught.value.hint


@pytest.mark.parametrize(
    ("hours", "now", "then"),
    [
        ("22:00-06:00", "2025-06-01T21:59:59", "2025-06-01T21:59:59"),
        ("22:00-06:00", "2025-06-01T22:00:00", "2025-06-02T06:00:00"),
        ("22:00-06:00", "2025-06-02T05:59:59", "2025-06-02T06:00:00"),
        ("08:00-18:00", "2025-06-02T12:34:56", "2025-06-02T18:00:00"),
        ("08:00-18:00", "2025-06-02T18:00:00", "2025-06-02T18:00:00"),
        ("22:00-02:30", "2025-03-30T01:00:00", "2025-03-30T03:00:00"),  # 02:30 doesn't exist in that night
    ],
)
def test_work_begins_again_when_they_end(hours: str, now: str, then: str) -> None:
    """Also over midnight, and in nights in which clocks are changed."""
    quiet = QuietHours.parse(f"{hours} Europe/Berlin")
    moment = datetime.fromisoformat(now).replace(tzinfo=BERLIN).timestamp()
    assert datetime.fromtimestamp(quiet.next_allowed(moment), BERLIN).replace(tzinfo=None).isoformat() == then


@settings(deadline=None, max_examples=25)
@given(st.floats(1.6e9, 1.9e9), st.times(), st.times(), st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"]))
def test_the_next_moment_is_the_first_that_is_not_quiet(now: float, start: time, end: time, zone: str) -> None:
    """It is now or later, it isn't quiet, and every minute before it is."""
    start, end = start.replace(second=0, microsecond=0), end.replace(second=0, microsecond=0)
    if start == end:
        return
    hours = QuietHours(start, end, ZoneInfo(zone))
    found = hours.next_allowed(now)
    assert found >= now
    assert not hours.quiet(found)
    assert all(hours.quiet(moment) for moment in range(int(now) + 1, int(found), 60))


def test_without_a_zone_they_are_the_machines() -> None:
    """What the wall beside the machine shows decides."""
    noon = datetime(2025, 6, 1, 12, 0).timestamp()
    assert QuietHours.parse("11:00-13:00").next_allowed(noon) == noon + 3600
