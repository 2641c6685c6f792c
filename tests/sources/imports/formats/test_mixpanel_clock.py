"""The clock of a Mixpanel project, beside the same moments reckoned by `datetime`."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.events import RecordRefused, RefusalReason
from forwarder.sources.imports.formats.mixpanel_clock import ProjectClock

HOUR = 3_600_000_000
NEW_YEAR = 1_704_067_200_000_000
ZONES = [ZoneInfo(name) for name in ("America/Los_Angeles", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "UTC")]


@pytest.mark.parametrize("value", [b"1704067200", b"1704067200000", b'"1704067200"', b'"2024-01-01T00:00:00"', b'"2024-01-01 00:00:00"'])
@pytest.mark.parametrize(("minutes", "micros"), [(0, NEW_YEAR), (90, NEW_YEAR - HOUR * 3 // 2), (-480, NEW_YEAR + 8 * HOUR)])
def test_an_offset_moves_epochs_and_texts_alike(value: bytes, minutes: int, micros: int) -> None:
    """What the project's clock showed is reckoned to UTC, however it is written."""
    assert ProjectClock(minutes).utc(value) == micros


@pytest.mark.parametrize("clock", [ProjectClock(), ProjectClock(90), ProjectClock(zone=ZONES[0])])
def test_a_text_with_a_zone_is_not_moved(clock: ProjectClock) -> None:
    """A time that says its own zone isn't the project's clock's."""
    assert clock.utc(b'"2024-01-01T01:00:00+01:00"') == clock.utc(b'"2024-01-01T00:00:00Z"') == NEW_YEAR


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(ZONES), st.integers(NEW_YEAR // 1000, NEW_YEAR // 1000 + 2 * 365 * 86_400_000))
def test_what_a_zone_shows_comes_back(zone: ZoneInfo, moment: int) -> None:
    """Whatever moment the project's clock showed is found again to the millisecond; of an hour shown twice, the first."""
    shown = datetime.fromtimestamp(moment / 1000, zone)
    export = round(shown.replace(tzinfo=UTC).timestamp() * 1000)
    first = round(shown.replace(fold=0).timestamp() * 1000)
    assert ProjectClock(zone=zone).utc(str(export).encode()) == first * 1000
    assert shown.fold or first == moment


@pytest.mark.parametrize(("minutes", "value"), [(60, b"3599"), (-60, b"253402300799999999"), (-60, b'"9999-12-31T23:00:00"')])
def test_a_time_outside_of_1970_to_9999_is_refused(minutes: int, value: bytes) -> None:
    """A clock ahead of UTC can't bring a time before the epoch, and one behind it none that no calendar has."""
    with pytest.raises(RecordRefused) as refused:
        ProjectClock(minutes).utc(value)
    assert refused.value.why is RefusalReason.NO_TIME
