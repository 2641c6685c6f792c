"""The pace of an import, and its quiet hours."""

from __future__ import annotations

import asyncio
import math
import struct
import subprocess
import sys
from datetime import datetime, time
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.core.event import NO_IDS, Batch, Chunk, Lane
from forwarder.core.outcome import Reply
from forwarder.sources.imports.pacing import (
    SLICE,
    ImportPace,
    PacedSink,
    QuietHours,
    RateLine,
    Slowdown,
)
from tests.support.cases import cases
from tests.support.clock import BusyClock, FakeClock, settle
from tests.support.repository import ROOT

asked = st.lists(st.tuples(st.integers(1, 700), st.floats(0, 2)), min_size=1, max_size=40)


class SetClock(FakeClock):
    """A clock that a test sets; the wall shows the same seconds."""

    def __init__(self, moment: float = 100.0) -> None:
        super().__init__()
        self.moment = moment

    def now(self) -> float:
        """The moment."""
        return self.moment

    monotonic = now


def send(pace: ImportPace, events: int) -> float:
    """Send events as soon as they may go; the moment."""
    assert isinstance(pace.clock, SetClock)
    due = pace.due_at(events, pace.clock.now())
    assert due >= pace.clock.now()
    assert pace.due_at(events, pace.clock.now()) == due
    pace.clock.moment = due
    pace.went(events)
    return due


def most_at_once(sent: list[tuple[float, int]], rate: float) -> float:
    """By how much the events between any two moments exceed what the rate allows, at most."""
    sent = sorted(sent)
    return max(
        sum(events for _, events in sent[first : last + 1])
        - rate * (sent[last][0] - sent[first][0])
        for first in range(len(sent))
        for last in range(first, len(sent))
    )


def most_beside(wants: list[tuple[int, float]], rate: float, processes: int) -> float:
    """What may be sent beside what the rate allows."""
    return max(rate * SLICE, *(events for events, _ in wants)) + processes * rate * SLICE + 1e-6


@settings(deadline=None, max_examples=40)
@given(asked, st.floats(10, 5000))
@example([(20, 2.0)] + [(20, 0.0)] * 39, 5000.0)
def test_one_process_keeps_the_rate(wants: list[tuple[int, float]], rate: float) -> None:
    """Between any two moments no more is sent than the rate allows, one batch or slice, and what
    was left of another slice.
    """
    clock = SetClock()
    pace = ImportPace(rate, clock)
    sent = []
    for events, pause in wants:
        sent.append((send(pace, events), events))
        clock.moment += pause
    assert most_at_once(sent, rate) <= most_beside(wants, rate, 1)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(asked, st.integers(2, 4))
def test_processes_of_a_job_share_the_rate(
    tmp_path: Path, wants: list[tuple[int, float]], count: int
) -> None:
    """Together they send what one would; each may have a slice in hand."""
    path = tmp_path / "rate"
    rate = 2000.0
    path.unlink(missing_ok=True)
    clocks = [SetClock() for _ in range(count)]
    processes = [ImportPace(rate, clock, line=RateLine(path)) for clock in clocks]
    sent = []
    for events, pause in wants:
        who = min(range(count), key=lambda at: clocks[at].moment)
        sent.append((send(processes[who], events), events))
        clocks[who].moment += pause
    assert most_at_once(sent, rate) <= most_beside(wants, rate, count)


def test_a_rate_is_used_up() -> None:
    """Who always has something to send sends just as much as the rate says."""
    pace = ImportPace(2000, SetClock(0.0))
    now = 0.0
    for _ in range(400):
        now = send(pace, 50)
    assert now == pytest.approx(400 * 50 / 2000, abs=2 * SLICE)


def test_small_numbers_are_booked_by_the_slice() -> None:
    """A process asks the line ten times a second, not for each event."""

    class CountedRateLine(RateLine):
        asked = 0

        def book(self, seconds: float, now: float) -> float:
            self.asked += 1
            return super().book(seconds, now)

    line = CountedRateLine()
    pace = ImportPace(1000, SetClock(5.0), line=line)
    assert [send(pace, 1) for _ in range(100)] == [5.0] * 100
    assert line.asked == 1
    assert send(pace, 1) == pytest.approx(5.0 + SLICE)


@cases("rate", [0, -1, math.nan, math.inf])
def test_a_rate_is_a_number_above_none(rate: float) -> None:
    """Anyone who wants no limit passes no pace."""
    with pytest.raises(ValueError, match="more than 0"):
        ImportPace(rate, FakeClock())


def test_no_booking_of_another_process_is_lost(tmp_path: Path) -> None:
    """Two processes that book at the same time book all of their time, one behind the other."""
    path = tmp_path / "rate"
    book = (
        "from pathlib import Path; from forwarder.sources.imports.pacing import RateLine; "
        f"line = RateLine(Path({str(path)!r}))"
    )
    command = [sys.executable, "-c", f"{book}; [line.book(0.25, 100.0) for _ in range(400)]"]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [process.wait(30) for process in processes] == [0, 0]
    assert RateLine(path).book(1.0, 100.0) == 100.0 + 2 * 400 * 0.25


@cases(
    "damage",
    [b"", b"x", b"x" * 100, struct.pack("<dd", math.nan, 5), struct.pack("<dd", math.inf, 5)],
)
def test_a_damaged_line_begins_anew(tmp_path: Path, damage: bytes) -> None:
    """There is nothing in it to lose, and it is repaired by the first who books."""
    path = tmp_path / "rate"
    path.write_bytes(damage)
    assert RateLine(path).book(2.0, 100.0) == 100.0
    assert RateLine(path).book(2.0, 100.0) == 102.0


def test_a_clock_that_goes_back_takes_the_line_with_it(tmp_path: Path) -> None:
    """No one waits for hours because the clock was ahead, or because the machine started anew."""
    line = RateLine(tmp_path / "rate")
    line.book(3.0, 1_000_000.0)
    assert line.book(1.0, 50.0) == 53.0


def test_429_halves_the_rate_once_for_all_in_flight_and_it_recovers() -> None:
    """Ten answers at once are one; a later one halves again; after a time without any all of the
    rate is used.
    """
    slow = Slowdown(recovery=60, floor=0.2)
    for _ in range(10):
        slow.refused(10.0)
    assert slow.share(10.0) == 0.5
    slow.refused(11.0)
    assert slow.share(11.0) == pytest.approx(0.5 * (0.5 + 1 / 60))
    for second in range(12, 20):
        slow.refused(float(second))
    assert slow.share(19.0) == 0.2
    assert slow.share(19.0 + 48) == pytest.approx(1.0)


def test_the_service_may_say_how_long_to_wait() -> None:
    """Nothing is sent before; the rate recovers from then on."""
    clock = SetClock(10.0)
    pace = ImportPace(100, clock)
    pace.slowdown.refused(10.0, retry_after=30.0)
    assert (pace.rest_seconds(), pace.due_at(100, 10.0)) == (30.0, 40.0)
    assert (pause := pace.pause()) is not None
    assert pause.words(10.0) == "the service limits requests (429), retry in 30s"
    assert pause.words(39.5) == "the service limits requests (429), retry in 1s"
    assert pause.lasting() == "the service limits requests (429), retry at 1970-01-01T00:00:40.000Z"
    clock.moment = 40.0
    assert (pace.rest_seconds(), pace.pause()) == (0.0, None)
    assert pace.slowdown.share(40.0) == 0.5
    assert send(pace, 100) == 40.0
    assert pace.due_at(100, 40.0) == pytest.approx(42.0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 20)), max_size=20))
def test_the_share_stays_within_its_bounds(refusals: list[tuple[float, float]]) -> None:
    """Whatever the service says, some of the rate is used, and never more than all; without
    refusals it only grows.
    """
    slow = Slowdown()
    now = 0.0
    for pause, retry_after in refusals:
        assert slow.share(now) <= slow.share(now + pause)
        now += pause
        slow.refused(now, retry_after)
        assert 1 / 64 <= slow.share(now) <= 1
        assert slow.paused_until >= now + retry_after
    assert slow.share(now + 1000) == 1


def test_quiet_hours_and_the_services_limits_are_distinguished() -> None:
    """Also from the rate that was asked for; by the option or the setting that says so."""
    clock = SetClock(1_704_103_200.0)  # 10:00 UTC, 2024-01-01
    pace = ImportPace(
        100, clock, quiet=QuietHours.parse("08:00-20:00 Europe/Berlin", "import.quiet_hours")
    )
    assert (pause := pace.pause()) is not None
    assert (
        pause.words(clock.moment)
        == pause.lasting()
        == "paused until 20:00 Europe/Berlin by import.quiet_hours"
    )
    pace.slowdown.refused(clock.moment, 7.0)
    assert (pause := pace.pause()) is not None
    assert pause.lasting() == "paused until 20:00 Europe/Berlin by import.quiet_hours"
    assert pace.slowed() == "slowed to 50% of the rate: the service limits requests (429)"
    clock.moment += 20 * 3600
    clock.moment += 1
    pace = ImportPace(100, clock)
    assert pace.slowed() == ""
    send(pace, 100)
    pace.due_at(100, clock.moment)
    assert pace.slowed() == "slowed by --rate"
    clock.moment += 10
    assert pace.slowed() == ""
    assert str(QuietHours.parse("22:00-06:00").name) == "--quiet-hours"


def test_quiet_hours_come_on_top_of_what_the_service_says() -> None:
    """A pause that would end in quiet hours ends with them."""
    midnight = 1_750_032_000.0  # 2025-06-16 00:00 UTC
    evening = midnight + 21 * 3600
    pace = ImportPace(100, SetClock(evening), quiet=QuietHours.parse("22:00-06:00 UTC"))
    assert pace.due_at(1, evening) == evening
    pace.slowdown.refused(evening, retry_after=2 * 3600)
    assert pace.due_at(1, evening) == evening + 9 * 3600
    assert pace.rest_seconds() == 9 * 3600


BERLIN = ZoneInfo("Europe/Berlin")


@cases(
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


@cases(
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


@cases(
    ("hours", "now", "then"),
    [
        ("22:00-06:00", "2025-06-01T21:59:59", "2025-06-01T21:59:59"),
        ("22:00-06:00", "2025-06-01T22:00:00", "2025-06-02T06:00:00"),
        ("22:00-06:00", "2025-06-02T05:59:59", "2025-06-02T06:00:00"),
        ("08:00-18:00", "2025-06-02T12:34:56", "2025-06-02T18:00:00"),
        ("08:00-18:00", "2025-06-02T18:00:00", "2025-06-02T18:00:00"),
        # 02:30 doesn't exist in that night
        ("22:00-02:30", "2025-03-30T01:00:00", "2025-03-30T03:00:00"),
    ],
)
def test_work_begins_again_when_they_end(hours: str, now: str, then: str) -> None:
    """Also over midnight, and in nights in which clocks are changed."""
    quiet = QuietHours.parse(f"{hours} Europe/Berlin")
    moment = datetime.fromisoformat(now).replace(tzinfo=BERLIN).timestamp()
    assert (
        datetime.fromtimestamp(quiet.next_allowed(moment), BERLIN).replace(tzinfo=None).isoformat()
        == then
    )


@settings(deadline=None, max_examples=25)
@given(
    st.floats(1.6e9, 1.9e9),
    st.times(),
    st.times(),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"]),
)
def test_the_next_moment_is_the_first_that_is_not_quiet(
    now: float, start: time, end: time, zone: str
) -> None:
    """It is now or later, it isn't quiet, and every minute before it is."""
    start = start.replace(second=0, microsecond=0)
    end = end.replace(second=0, microsecond=0)
    if start == end:
        return
    hours = QuietHours(start, end, ZoneInfo(zone))
    next_time = hours.next_allowed(now)
    assert next_time >= now
    assert not hours.quiet(next_time)
    assert all(hours.quiet(moment) for moment in range(int(now) + 1, int(next_time), 60))


def test_without_a_zone_they_are_the_machines() -> None:
    """What the wall beside the machine shows decides."""
    noon = datetime(2025, 6, 1, 12, 0).timestamp()
    assert QuietHours.parse("11:00-13:00").next_allowed(noon) == noon + 3600


def test_one_that_goes_in_place_of_another_costs_what_it_has() -> None:
    """Neither is the pace broken by a larger one, nor is what a smaller one left lost."""
    clock = SetClock(10.0)
    pace = ImportPace(10.0, clock)
    send(pace, 20)
    clock.moment = pace.due_at(20, 10.0)
    assert clock.moment == pytest.approx(12.0)
    pace.went(5)
    assert pace.due_at(20, clock.moment) == pytest.approx(14.0)
    clock.moment = 14.0
    pace.went(20)
    assert pace.due_at(20, 14.0) == pytest.approx(14.5), "45 events take 4.5 seconds"


def test_who_asks_for_more_as_more_waits_keeps_the_rate() -> None:
    """However often it is asked: what goes in the end is what was booked."""
    clock = SetClock(0.0)
    pace = ImportPace(1000.0, clock)
    for _ in range(20):
        for events in (1, 150, 149, 300, 500):
            due = pace.due_at(events, clock.moment)
        clock.moment = max(clock.moment, due)
        pace.went(500)
    assert clock.moment == pytest.approx(10.0, abs=0.5)


def test_a_rate_that_can_t_be_shared_is_reported(tmp_path: Path) -> None:
    """Nothing goes; who runs it hears why."""
    pace = ImportPace(10.0, SetClock(5.0), line=RateLine(tmp_path / "gone" / "rate"))
    with pytest.raises(ConfigurationError, match="gone/rate can't be used"):
        pace.due_at(1, 5.0)
    failures: list[Exception] = []
    pace.on_failure = failures.append
    assert pace.due_at(1, 5.0) > 5.0
    assert "gone/rate can't be used" in str(failures[0])


def test_two_questions_of_one_time_have_one_answer() -> None:
    """What is not due at a time has a moment after it: otherwise no timer is set, and the import
    stands still indefinitely.
    """
    pace = ImportPace(8.0, BusyClock())
    went = 0
    for wall in range(20):
        while pace.due_at(1, wall) <= wall and went < 4:
            pace.went(1)
            went += 1
        assert pace.due_at(1, wall) == pace.due_at(1, wall)
    assert went == 4


LANE = Lane("phc_pacing123456789", historical=True)


def batch() -> Batch:
    """One event."""
    return Batch(LANE, (Chunk(LANE, b"{}", 1, NO_IDS, 0.0, "import"),), 100)


class Answers:
    """A sink with prepared answers."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.sent = 0

    async def send(self, _: Batch) -> Reply:
        """The next answer."""
        self.sent += 1
        return self.replies.pop(0)


async def test_nothing_is_sent_in_quiet_hours() -> None:
    """Also what delivery wants sent again; cancelling ends the wait."""
    clock = FakeClock()
    inner = Answers(Reply(200))
    sink = PacedSink(inner, ImportPace(1.0, clock, quiet=QuietHours.parse("00:00-01:00")))
    sending = asyncio.create_task(sink.send(batch()))
    given_up = asyncio.create_task(sink.send(batch()))
    await clock.advance(3599.0)
    assert inner.sent == 0
    given_up.cancel()
    await clock.advance(2.0)
    assert (await sending).status == 200
    assert inner.sent == 1
    assert clock.pending == 0


async def test_after_a_429_nothing_is_sent_for_as_long_as_it_asks() -> None:
    """And then slower."""
    clock = FakeClock()
    inner = Answers(Reply(429, retry_after=30.0), Reply(200))
    pace = ImportPace(100.0, clock)
    sink = PacedSink(inner, pace)
    assert (await sink.send(batch())).status == 429
    again = asyncio.create_task(sink.send(batch()))
    await clock.advance(29.0)
    assert inner.sent == 1
    await clock.advance(1.0)
    await settle()
    assert again.done()
    assert pace.slowdown.share(clock.monotonic()) == pytest.approx(0.5)
