"""`forwarder top`: what its screen shows, and what its keys do."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from forwarder.cli.admin_client import NoDaemon
from forwarder.cli.top_figures import (
    COLUMNS,
    LaneRow,
    cells,
    chart,
    headlines,
    lane_rows,
    sources,
    spark,
)
from forwarder.cli.top_screen import TopApp, TopHelp
from forwarder.telemetry.rates import rates_between
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot
from tests.cli.conftest import Answering
from tests.support.commands import invoked
from tests.support.snapshots import FULL, GOOD, HALTED
from tests.support.waiting import eventually

LATER = replace(
    FULL, now=FULL.now + 2, lanes=(replace(GOOD, received={"http": 3200}, delivered=1350), HALTED)
)


class Screen:
    """A screen whose daemon answers with `snapshot`, or not at all; it is
    asked when a test says so.
    """

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = FULL
        self.asked = 0
        self.app = TopApp("127.0.0.1:8321", self._fetch, 3600)
        self.pilot: Pilot[None]

    def _fetch(self) -> Snapshot:
        assert threading.current_thread() is not threading.main_thread()
        self.asked += 1
        if self.snapshot is None:
            raise NoDaemon("no daemon answers at 127.0.0.1:8321: Connection refused")
        return self.snapshot

    async def refreshed(self, snapshot: Snapshot | None) -> str:
        """The screen once this was answered."""
        self.snapshot = snapshot
        await self.app.ask()
        return await self.text()

    async def press(self, *keys: str) -> str:
        """The screen after these keys."""
        await self.pilot.press(*keys)
        return await self.text()

    async def text(self) -> str:
        """What is on the screen."""
        await self.pilot.pause()
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())


@asynccontextmanager
async def opened(
    width: int = 80, height: int = 24, *, silent: bool = False
) -> AsyncIterator[Screen]:
    """A screen after its first question; `silent`: nothing answers."""
    screen = Screen()
    if silent:
        screen.snapshot = None
    async with screen.app.run_test(size=(width, height)) as screen.pilot:
        await eventually(lambda: screen.asked and not screen.app._asking)
        yield screen


async def test_a_small_terminal_shows_what_matters() -> None:
    """At 80 columns: rates, buffer, upstream, losses, what needs attention, lanes with the halted
    one's state, sources, keys.
    """
    async with opened() as screen:
        text = await screen.refreshed(LATER)
        lines = text.splitlines()
        assert (len(lines), {len(line) for line in lines}) == (24, {80})
        for fact in (
            "9.8.7 running, ready, up 1h 1m",
            "in 1,000/s █ → buffer 70 ░░░░░░░░░░ 3% of 64.0 MiB → out 100/s",
            "upstream down  2/8 in flight  connection_refused: 3  200: 12",
            "dead letters 9 (refused 7, missing_event 2)  dropped 1 (invalid_overflow 1)",
            f"! lane {HALTED.label} is halted: unknown_key",
            "! upstream is down",
            "in/s ▼",
            "kafka main is reading; lag 4,120, 3 partitions, 1 paused",
            "worker-1 is away; 0 received, 2 restarts",
            "q Quit  p Pause  s Sort  r Reverse  / Filter  ? Help",
        ):
            assert fact in text
        rows = [line.split() for line in lines if line.startswith(" phc_")]
        assert rows[0] == [GOOD.label, "ok", "1,000", "100", "40", "1m", "15s", "9"]
        assert rows[1][:5] == [HALTED.label, "unknown_key", "0", "0", "30"]


@pytest.mark.parametrize(("width", "height"), [(40, 10), (200, 60)])
async def test_any_size_will_do(width: int, height: int) -> None:
    """It follows the terminal's size."""
    async with opened() as screen:
        await screen.pilot.resize_terminal(width, height)
        lines = (await screen.refreshed(LATER)).splitlines()
        assert (len(lines), {len(line) for line in lines}) == (height, {width})
        assert lines[1].startswith("in 1,000/s")


async def test_a_tall_terminal_shows_diagrams() -> None:
    """Below the lanes, of rates and buffer, as long as the daemon runs; on a small one, or with
    many lanes, there are none.
    """
    async with opened(110, 45) as screen:
        lines = (await screen.refreshed(LATER)).splitlines()
        titles = [line.strip() for line in lines if "at most" in line]
        assert titles == [
            "in/s 1,000  at most 1,000 so far",
            "out/s 100  at most 100 so far",
            "buffered 70  at most 70 so far",
        ]
        assert sum(not line.strip() for line in lines) <= 4
        await screen.pilot.resize_terminal(80, 24)
        assert "at most" not in await screen.text()
        await screen.pilot.resize_terminal(110, 45)
        assert "at most" in await screen.text()
        many = tuple(LaneSnapshot(f"lane {number}") for number in range(40))
        assert "at most" not in await screen.refreshed(replace(LATER, lanes=many))


async def test_a_daemon_that_is_away_is_waited_for() -> None:
    """Before its first answer, and after: what was shown last stays, marked; when it is back rates
    begin anew.
    """
    async with opened(120, silent=True) as screen:
        assert (
            "NO ANSWER; it is asked again  no daemon answers at 127.0.0.1:8321"
            in await screen.text()
        )
        assert "running, ready" in await screen.refreshed(FULL)
        text = await screen.refreshed(None)
        assert "NO ANSWER, for 0s; it is asked again" in text
        assert GOOD.label in text
        text = await screen.refreshed(replace(LATER, started_at=LATER.now - 1))
        assert "in … → buffer 70" in text
        assert "NO ANSWER" not in text


async def test_sorting() -> None:
    """`s` goes through the columns, `r` reverses; the selected lane stays selected."""
    async with opened() as screen:
        await screen.refreshed(LATER)
        assert "received http 3,200" in await screen.press("s")
        assert "out/s ▼" in await screen.text()
        text = await screen.press("r")
        assert "out/s ▲" in text
        assert text.index(f" {HALTED.label}  ") < text.index(f" {GOOD.label}  ")
        assert screen.app.selected is not None
        assert screen.app.selected.lane.label == GOOD.label
        text = await screen.press("up")
        assert "is halted: unknown_key (401 from <b>/decide</b>)" in text
        assert "what to do: Check the project key." in text
        for _ in COLUMNS:
            text = await screen.press("s")
        assert "out/s ▼" in text


async def test_filtering() -> None:
    """What is typed after `/` filters at once, by label or state; Enter keeps it, Esc
    removes it.
    """
    async with opened() as screen:
        text = await screen.press("slash", *"UNK")
        assert f" {HALTED.label}  " in text
        assert f" {GOOD.label}  " not in text
        assert "\nUNK  " in await screen.press("enter")
        assert await screen.press("s")
        assert f" {GOOD.label}  " in await screen.press("escape")
        assert "No lane matches the filter." in await screen.press("slash", *"nothing[/]")


async def test_pausing() -> None:
    """A paused screen asks nothing, and can be sorted."""
    async with opened() as screen:
        assert "PAUSED" in await screen.press("p")
        asked = screen.asked
        await screen.app.ask()
        assert screen.asked == asked
        assert "PAUSED" not in await screen.press("space")
        assert "in 1,000/s" in await screen.refreshed(LATER)


async def test_help_and_the_end() -> None:
    """`?` shows the keys until another is pressed; q and Ctrl-C end the view."""
    async with opened() as screen:
        assert "sort by the next column" in await screen.press("question_mark")
        assert isinstance(screen.app.screen, TopHelp)
        assert "sort by the next column" not in await screen.press("x")
        await screen.pilot.press("q")
    assert screen.app.return_code == 0
    async with opened() as screen:
        await screen.pilot.press("ctrl+c")
    assert screen.app.return_code == 0


def test_nothing_from_outside_is_obeyed() -> None:
    """Texts from outside are one line each, without control characters and without markup."""
    odd = replace(HALTED, label="[red]x\x1b[31m", halted="odd\x07", why="a\nb", hint="\x1b]0;x\x07")
    snapshot = replace(
        FULL, lanes=(odd,), upstream_requests={"\x1b": 1}, warnings=("\x1b[2J", "[blink]two\nlines")
    )
    shown = [line.plain for line in (*headlines(snapshot, None, []), *sources(snapshot))]
    assert not [line for line in shown if any(ord(char) < 32 for char in line)]
    assert "! [blink]two" in shown


def test_many_problems_are_counted() -> None:
    """Four lines at most: the table keeps its place."""
    snapshot = replace(FULL, warnings=tuple(f"warning {number}" for number in range(20)))
    shown = [line.plain for line in headlines(snapshot, None, []) if line.plain.startswith("!")]
    assert (len(shown), shown[-1]) == (4, "! 18 more: `forwarder status` shows all")


def test_rows_are_sorted_by_any_column_and_filtered() -> None:
    """Lanes with equal figures stand in the order of their labels; a lane without a rate counts as
    one at rest.
    """
    lanes = (LaneSnapshot("b"), LaneSnapshot("a"), replace(GOOD, label="c"))
    snapshot = replace(FULL, lanes=lanes)
    for column in COLUMNS:
        rows = lane_rows(snapshot, rates_between(FULL, LATER), column=column, ascending=True)
        assert [row.lane.label for row in rows] == ["a", "b", "c"]
    assert [
        row.lane.label
        for row in lane_rows(snapshot, None, column="lane", ascending=False, wanted="A")
    ] == ["a"]


def test_only_what_needs_a_person_is_coloured() -> None:
    """As on the status page: not a busy lane, what an operator dropped, or a buffer in use."""
    busy = replace(GOOD, oldest_age=200.0, dead_lettered={}, dropped={"operator": 3})
    late = replace(GOOD, oldest_age=400.0, dead_lettered={"refused": 1}, dropped={"buffer_full": 1})
    for lane, style in ((busy, ""), (late, "yellow")):
        assert [cell.style for cell in cells(LaneRow(lane, 0.0, 0.0))[5:]] == [style] * 3
    for used, style in ((7, "green"), (9, "yellow"), (10, "red")):
        flow = headlines(replace(FULL, buffer_bytes=used, buffer_limit_bytes=10), None, [])[0]
        assert [span.style for span in flow.spans if "█" in flow.plain[span.start : span.end]] == [
            style
        ]


def test_a_diagram_of_rates() -> None:
    """The highest is a full block, zero the lowest."""
    assert spark([0, 50, 100]) == "▁▅█"
    assert chart([0, 25, 50, 100], 2) == ["   █", " ▄██"]
    assert chart([0, 0], 1) == ["  "]


async def test_without_a_terminal_it_prints_one_status(daemon: Answering) -> None:
    """For pipes and logs; without a daemon the error of `status`."""
    done = await invoked("top", "--interval", "0.1", "--admin", daemon.address)
    assert (done.code, done.err) == (0, "")
    assert "in 1,230" in done.out
    done = await invoked("top", "--admin", "127.0.0.1:1")
    assert (done.code, "no daemon answers" in done.err) == (3, True)
