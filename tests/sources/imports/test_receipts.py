"""Times that are compared with those of their receipt: which zone they betray."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest

from forwarder.sources.imports.receipts import ENOUGH, ReceiptDistances, ZoneShift
from forwarder.sources.imports.times import SECOND, micros_of

YEAR = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=7 * step) for step in range(1250)]


def shift(
    zone: tzinfo,
    times: list[datetime] = YEAR,
    *,
    clock: tzinfo | None = None,
    late: float = 0.1,
    seed: int = 1,
) -> ZoneShift | None:
    """What shows of times that a zone's clock showed and that `clock` was taken for; a part of the
    records came late.
    """
    dice = random.Random(seed)
    distances = ReceiptDistances(clock)
    for time in times:
        wall = time.astimezone(zone).replace(tzinfo=None)
        delay = dice.uniform(600, 500_000) if dice.random() < late else dice.uniform(-2, 90)
        distances.add(micros_of(wall, clock), micros_of(time) + int(delay * SECOND))
    return distances.shift()


@pytest.mark.parametrize(
    ("name", "minutes"),
    [
        ("America/Los_Angeles", {480, 420}),
        ("America/New_York", {300, 240}),
        ("Europe/Berlin", {-60, -120}),
        ("Europe/London", {-60}),
        ("Asia/Kolkata", {-330}),
        ("Asia/Kathmandu", {-345}),
        ("Asia/Tokyo", {-540}),
        ("Australia/Adelaide", {-570, -630}),
        ("Pacific/Honolulu", {600}),
    ],
)
def test_a_projects_zone_is_named(name: str, minutes: set[int]) -> None:
    """By all distances of a year; a tenth of the records came late."""
    zone_shift = shift(ZoneInfo(name))
    assert zone_shift is not None
    assert name in zone_shift.zones[:2]
    assert set(zone_shift.minutes) == minutes
    assert zone_shift.compared == len(YEAR)
    assert zone_shift.shifted > len(YEAR) * 0.4


def test_a_single_distance_has_an_offset_too() -> None:
    """Of a few days, where no season tells zones apart."""
    zone_shift = shift(ZoneInfo("Asia/Kolkata"))
    assert zone_shift is not None
    assert zone_shift.offset == "+05:30"
    january = shift(ZoneInfo("America/New_York"), YEAR[:60])
    assert january is not None
    assert (january.offset, january.minutes) == ("-05:00", (300,))
    assert "America/New_York" in january.zones


@pytest.mark.parametrize("name", ["UTC", "America/Los_Angeles", "Europe/London"])
@pytest.mark.parametrize("late", [0, 0.3, 0.9, 1])
def test_times_that_can_be_show_nothing(name: str, late: float) -> None:
    """Read as what they are, however many came late: phones without a network have any distance."""
    zone = ZoneInfo(name)
    assert shift(zone, clock=zone, late=late) is None


def test_a_zone_that_was_given_may_be_wrong() -> None:
    """The right one is named all the same."""
    zone_shift = shift(ZoneInfo("America/Los_Angeles"), clock=ZoneInfo("America/New_York"))
    assert zone_shift is not None
    assert zone_shift.zones == ("America/Los_Angeles",)
    assert zone_shift.minutes == (180,)


def test_a_few_records_show_nothing() -> None:
    """They may have come late by chance."""
    assert shift(ZoneInfo("Asia/Tokyo"), YEAR[: ENOUGH - 1], late=0) is None
    assert shift(ZoneInfo("Asia/Tokyo"), YEAR[:ENOUGH], late=0) is not None


def test_an_export_that_was_imported_in_one_go_shows_nothing() -> None:
    """All of it was received within a minute, years later."""
    distances = ReceiptDistances()
    for time in YEAR:
        distances.add(micros_of(time), micros_of(YEAR[-1]) + 86_400 * 30 * SECOND)
    assert distances.shift() is None


@pytest.mark.parametrize("clock", ["America/Los_Angeles", "Europe/Berlin"])
def test_utc_is_named_where_times_were_read_on_a_clock(clock: str) -> None:
    """It is the first that is proposed."""
    zone_shift = shift(ZoneInfo("UTC"), clock=ZoneInfo(clock))
    assert zone_shift is not None
    assert zone_shift.zones[0] == "UTC"


@pytest.mark.parametrize("times", [YEAR, YEAR[:60]], ids=["a year", "a winter"])
@pytest.mark.parametrize("clock", ["America/Denver", "Europe/Berlin"])
def test_no_offset_is_proposed_where_the_clock_is_moved(clock: str, times: list[datetime]) -> None:
    """The clock that shows the times is moved, too: they are of two offsets, also where the source
    has only one of these.
    """
    zone_shift = shift(ZoneInfo("America/Los_Angeles"), times, clock=ZoneInfo(clock))
    assert zone_shift is not None
    assert (zone_shift.zones[0], zone_shift.offset) == ("America/Los_Angeles", "")
