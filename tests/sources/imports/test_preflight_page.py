"""A preflight as text and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from forwarder.sources.imports.format import RefusalReason
from forwarder.sources.imports.preflight_page import as_json, page
from forwarder.sources.imports.preflight_report import find_all, unaccepted
from tests.sources.imports.preflight_streams import good, odd
from tests.sources.imports.preflights import DAY, OLD, Seen, event, preflight, refused, report, seen

GOLDEN = Path(__file__).parent / "golden"


def text(stream: Iterable[Seen], accepted: Sequence[str] = (), **terms: Any) -> str:
    """The page on a screen of 140 columns, without spaces at the ends of lines."""
    made = report(stream, **terms)
    found = find_all(made)
    console = Console(file=io.StringIO(), width=140, highlight=False)
    console.print(page(made, found, unaccepted(found, accepted)))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def document(stream: Iterable[Seen], accepted: Sequence[str] = ()) -> str:
    """The JSON."""
    made = report(stream)
    found = find_all(made)
    return as_json(made, found, unaccepted(found, accepted))


def test_the_page_of_an_odd_source() -> None:
    """All that a person is told, word by word."""
    assert text(odd(), ["no-zone"]) == (GOLDEN / "preflight_odd.txt").read_text()


def test_the_page_of_a_good_source() -> None:
    """Nothing stops it, and nothing is said that needn't be."""
    assert text(good()) == (GOLDEN / "preflight_good.txt").read_text()


def test_how_long_it_takes() -> None:
    """At the rate that was asked for; without one nobody knows."""
    assert "0s or more, at 1,000,000 events/s" in text(good(), rate=1_000_000)
    assert "as long as the service does" in text(good(), rate=1e9)


def test_the_json_of_an_odd_source() -> None:
    """All that a program is told, byte by byte."""
    assert document(odd(), ["no-zone"]) + "\n" == (GOLDEN / "preflight_odd.json").read_text()


def test_nothing_of_the_source_moves_the_terminal() -> None:
    """Brackets are text, and escapes are replaced."""
    shown = text(odd())
    assert "[red]odd[/red]" in shown
    assert "\x1b" not in shown


def test_project_keys_are_masked() -> None:
    """A key in a record is shown in neither form."""
    for shown in (text(odd()), document(odd())):
        assert "phc_0123456789" not in shown
        assert "phc_…6789" in shown


def test_long_histories_are_shown_by_month_and_by_year() -> None:
    """Each day is in the JSON; a person sees at most three dozen rows."""
    months = text(seen(event(day, time=OLD - day * DAY)) for day in range(60))
    years = text(seen(event(day, time=OLD - day * 40 * DAY)) for day in range(60))
    assert "\nmonth    events\n2023-09      15  " in months
    assert "\nyear  events\n2017       6  " in years
    assert len(json.loads(document(seen(event(day, time=OLD - day * DAY)) for day in range(60)))["report"]["days"]) == 60


def test_many_names_end_in_other() -> None:
    """Twenty names, and the rest together."""
    shown = text(seen(event(number, event=f"name-{number:02}")) for number in range(25))
    assert "name-19" in shown
    assert "name-20" not in shown
    assert "\nother         5  " in shown


def test_estimates_say_their_scale() -> None:
    """Where only a part was looked at, a person reads about, and how large the part was."""
    made = preflight((seen(event(number, distinct_id=f"id-{number}")) for number in range(300)), keys=50).report()
    console = Console(file=io.StringIO(), width=140, highlight=False)
    console.print(page(made, (), ()))
    assert isinstance(console.file, io.StringIO)
    assert f"about {made.persons.distinct_ids.keys:,} (one in 8 sampled)" in console.file.getvalue()


def test_nothing_at_all_has_a_page() -> None:
    """An empty source is shown without tables."""
    assert "warns nothing-to-send: Of 0 records nothing would be sent." in text([])


def test_illegal_ids_past_the_shown_are_counted() -> None:
    """Fifty values, then how many more."""
    shown = text(refused(RefusalReason.ILLEGAL_ID, f"the id 'x{number:02}' is one that many share") for number in range(53))
    assert "'x49' 1, others 3\n" in shown
