"""What is told of an import when it ends."""

from __future__ import annotations

import json

import msgspec
import pytest
from rich.console import Console

from forwarder.sources.imports.manifest import ImportManifest
from forwarder.sources.imports.report import as_json, as_text, balance, outcome, periods, plain, sentence, top
from forwarder.sources.imports.tallies import DayTally, RecordBooks
from tests.sources.imports.samples.manifests import manifest


def told(made: ImportManifest) -> str:
    """The text as a log has it."""
    console = Console(width=200, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(as_text(made))
    return capture.get()


def test_the_text_has_the_outcome_the_books_and_the_reasons() -> None:
    """With an example of each reason, and what was left out by what."""
    text = told(manifest(60))
    assert "269 events delivered in 3h (0.0/s), complete" in text
    assert "278 records read = 269 delivered + 5 refused + 2 left out + 2 repeats: balanced" in text
    assert "export/0.json.gz:17 there is no `time`" in text
    assert "--exclude-event" in text
    assert "<script>alert(1)</script>" in text


def test_an_import_that_was_stopped_says_how_it_goes_on() -> None:
    """And one without events says that."""
    assert "not complete: the same command goes on with it" in told(manifest(1, ended=False))
    assert "no events" in told(manifest(0))


def test_what_comes_from_outside_is_text() -> None:
    """Markup isn't understood, and what a terminal would obey isn't passed on."""
    made = msgspec.structs.replace(manifest(1), names={"[bold]x[/bold]": 2, "red \x1b[31m alert\x07\u202e": 1})
    text = told(made)
    assert "[bold]x[/bold]" in text
    assert "red \ufffd[31m alert\ufffd\ufffd" in text
    assert plain("Ünïcode 名前") == "Ünïcode 名前"


def test_machines_get_the_same() -> None:
    """With the difference of the books, which is 0."""
    got = json.loads(as_json(manifest(60)))
    assert (got["events"], got["source_events"], got["books"]["read"], got["books"]["difference"]) == (269, 270, 278, 0)
    assert (got["days"], len(got["periods"]), got["seconds"]) == (60, 60, 10800.0)
    assert got["job"]["options"]["until"] == "2025-06-13"


def test_mended_records_are_said_beside_those_that_were_refused() -> None:
    """They stay among these: that is what the source has. Nothing is said where there are none."""
    made = manifest(60)
    assert "mended" not in told(made)
    made.books.mended = 2
    assert "+ 5 refused + 2 left out + 2 repeats (of the refused, 2 mended and delivered since): balanced" in told(made)
    made.books.mended = 5
    assert "(of the refused, 5 mended and delivered since, all of them): balanced" in told(made)
    assert json.loads(as_json(made))["books"]["mended"] == 5


@pytest.mark.parametrize(
    ("days", "unit", "labels"),
    [
        ([], "day", []),
        (["2024-02-28", "2024-03-01"], "day", ["2024-02-28", "2024-02-29", "2024-03-01"]),
        (["2023-12-27", "2024-05-01"], "week", ["2023-12-25", *[""] * 17, "2024-04-29"]),
        (["2019-11-30", "2024-01-01"], "month", ["2019-11", *[""] * 49, "2024-01"]),
        (["1970-01-01", "1970-12-31", "2024-06-01", "9999-12-31"], "year", ["1970", "2024", "9999"]),
    ],
)
def test_many_days_are_shown_by_the_week_month_or_year(days: list[str], unit: str, labels: list[str]) -> None:
    """Whatever the span, what is shown can be read at once, and no event is missing from it."""
    got, shown = periods({day: DayTally(source=3, delivered=2) for day in days})
    assert got == unit
    assert [each.label if known else "" for each, known in zip(shown, labels, strict=True)] == labels
    assert sum(each.source for each in shown) == 3 * len(days)
    assert sum(each.delivered for each in shown) == 2 * len(days)


def test_books_that_do_not_balance_are_said_so() -> None:
    """Missing and too many are different mistakes."""
    assert balance(RecordBooks(read=5, delivered=3)) == "2 missing"
    assert balance(RecordBooks(read=5, delivered=3, refused={"x": 1}, left_out={"y": 1}, repeats=1)) == "1 too many"
    assert sentence(RecordBooks()) == "0 records read = 0 delivered + 0 refused + 0 left out + 0 repeats"


def test_the_rate_is_that_of_all_the_time() -> None:
    """An import that took no second has one that can be said, too."""
    made = msgspec.structs.replace(manifest(1), events=90_000_000)
    assert outcome(made) == "90,000,000 events delivered in 3h (8,333/s)"
    assert "(90,000,000/s)" in outcome(msgspec.structs.replace(made, ended=made.started))


def test_of_many_names_the_rest_is_told_together() -> None:
    """No event is missing from a table."""
    assert top({"a": 5, "b": 3, "c": 2, "d": 1}, 2) == [("a", 5), ("b", 3), ("(2 more names)", 3)]
    assert top({"a": 5}, 2) == [("a", 5)]
