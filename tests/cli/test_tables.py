"""Tables and progress that several commands print."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from forwarder.cli.tables import EVERY, EventProgress, flow, lane_table, status_page
from forwarder.telemetry.rates import rates_between
from forwarder.telemetry.snapshot import UpstreamState
from tests.support.snapshots import FULL, GOOD, HALTED


def rendered(what: RenderableType, width: int = 200) -> str:
    """As plain text on a screen so wide."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(what)
    return str(console.file.getvalue()) if isinstance(console.file, io.StringIO) else ""


def test_nothing_from_outside_is_markup() -> None:
    """Square brackets in the upstream's words and in labels are text."""
    odd = replace(HALTED, label="[red]label[/red]", why="[bold]no[/bold]", hint="[link=x]do[/link]")
    page = rendered(
        status_page(replace(FULL, lanes=(odd,), warnings=("[blink]",)), "127.0.0.1:8321")
    )
    for text in ("[red]label[/red]", "[bold]no[/bold]", "[link=x]do[/link]", "[blink]"):
        assert text in page


def test_reasons_of_outside_are_text_too() -> None:
    """A reason with brackets is shown as it is."""
    assert "3 [x]" in rendered(lane_table([replace(GOOD, dead_lettered={"[x]": 3})], books=True))


@pytest.mark.parametrize(("width", "whole"), [(80, False), (200, True)])
def test_a_narrow_table_has_counts_without_reasons(width: int, *, whole: bool) -> None:
    """A lane is one row at 80 columns: the reasons appear where they have room."""
    lines = rendered(
        lane_table([replace(GOOD, dead_lettered={"undelivered_at_exit": 5348})], books=False), width
    ).splitlines()
    assert (len(lines), "5,348" in lines[1], "undelivered_at_exit" in lines[1]) == (2, True, whole)


def test_a_halt_says_since_when_and_what_is_next() -> None:
    """Anyone who looks at a halted lane sees how long it has stood still, and when it is
    tried again.
    """
    page = rendered(status_page(FULL, "127.0.0.1:8321"))
    assert f"lane {HALTED.label} is halted: unknown_key, for 1h 11m, next probe in 12s" in page


def test_rejected_requests_are_shown() -> None:
    """Which requests were rejected and why, the most frequent first; nothing where none was."""
    assert "rejected requests  /static upstream: 2, /e undecodable: 1" in rendered(
        status_page(FULL, "127.0.0.1:8321")
    )
    assert "rejected" not in rendered(
        status_page(replace(FULL, rejected_requests={}), "127.0.0.1:8321")
    )


def test_flow_is_one_line() -> None:
    """In, buffer, out, dead letters and dropped fit one line."""
    assert (
        flow(FULL).plain
        == "  in 1,230 → buffer 70 (2.0 MiB of 64.0 MiB) → out 1,150   dead letters 9   dropped 1"
    )


def test_a_line_every_few_seconds_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Events, rate and time left; nothing for what is soon done, and nothing on standard output."""
    now = 100.0
    with EventProgress("exporting", 1000, now=lambda: now) as progress:
        progress.advance(100)
        now += EVERY
        progress.advance(150)
        now += EVERY / 2
        progress.advance(50)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "exporting: 250 of 1,000 events, 50 a second, 15s left\n")
    assert progress.done == 300


def test_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes away with the work."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with EventProgress("draining", 10) as progress:
        progress.advance(10)
    assert "draining" in capsys.readouterr().err


def test_what_needs_attention_comes_first() -> None:
    """Anyone who looks sees what is wrong before the figures, in the order of urgency; counts of
    one are no plurals.
    """
    odd = replace(HALTED, received={"http": 31})
    snapshot = replace(
        FULL, lanes=(odd,), in_flight=1, ready=False, not_ready=("the buffer is full",)
    )
    lines = rendered(status_page(snapshot, "127.0.0.1:8321")).splitlines()
    marks = [line for line in lines if line.startswith("!")]
    assert lines[1 : 1 + len(marks) + 1] == [
        *marks[:3],
        "  what to do: Check the project key.",
        *marks[3:],
    ]
    starts = (
        "! accepts no events",
        "! the books don't balance",
        f"! lane {odd.label} is halted",
        "! upstream is down",
    )
    assert all(mark.startswith(start) for mark, start in zip(marks, starts, strict=True))
    assert any("; 1 request in flight" in line for line in lines)


def test_an_upstream_before_the_first_event() -> None:
    """It isn't called unknown, which reads as if its name were."""
    fresh = replace(FULL, upstream=replace(FULL.upstream, state=UpstreamState.UNKNOWN))
    said = rendered(status_page(fresh, "127.0.0.1:8321"))
    assert f"upstream {fresh.upstream.url} is not used yet; " in said


def test_a_narrow_status_keeps_its_indent() -> None:
    """Below the first line and what needs attention everything is indented, also the rest of a
    line that is too long.
    """
    _, *lines = rendered(status_page(FULL, "127.0.0.1:8321"), 72).splitlines()
    begun = next(number for number, line in enumerate(lines) if line.startswith("! "))
    assert [line for line in lines[begun:] if line.strip() and line[:2] not in ("  ", "! ")] == []
    assert [line for line in lines if len(line) > 72] == []


def test_flow_has_rates_between_two_snapshots() -> None:
    """Where there is a snapshot before, the flow says how much came and went a second."""
    later = replace(
        FULL,
        now=FULL.now + 2,
        lanes=(replace(GOOD, received={"http": 3200}, delivered=2150), HALTED),
    )
    assert flow(later, rates_between(FULL, later)).plain.startswith(
        "  in 3,230 (1,000/s) → buffer 70"
    )
    assert " → out 2,150 (500/s)" in flow(later, rates_between(FULL, later)).plain
