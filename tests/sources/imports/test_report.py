"""The report of an import: text, JSON, the page, and the files that it leaves; and its progress,
in words and for machines.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.checkpoint import (
    FileCheckpoint,
    ImportCheckpoint,
    ImportJob,
    SourceContent,
)
from forwarder.sources.imports.import_books import (
    DayTally,
    ImportTotals,
    RecordBooks,
    RefusalExample,
)
from forwarder.sources.imports.report import (
    FILES,
    JSON,
    MANIFEST,
    NAMES,
    PAGE,
    FileManifest,
    ImportManifest,
    ImportStatus,
    as_json,
    as_text,
    balance,
    complete_reports,
    file_progress,
    html_page,
    outcome,
    periods,
    read_manifest,
    sentence,
    top,
    write_reports,
)
from forwarder.telemetry.readable import plain
from tests.sources.imports.samples.manifests import JOB, STARTED, manifest
from tests.sources.imports.samples.manifests import checkpoint as sample
from tests.support.cases import cases


def as_shown(made: ImportManifest) -> str:
    """The text as a log has it."""
    console = Console(width=200, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(as_text(made))
    return capture.get()


def test_the_text_has_the_outcome_the_books_and_the_reasons() -> None:
    """With an example of each reason, and what was left out by what."""
    text = as_shown(manifest(60))
    assert "269 events delivered in 3h, complete" in text
    assert "278 records read = 269 delivered + 5 refused + 2 left out + 2 repeats: balanced" in text
    assert "export/0.json.gz:17 there is no `time`" in text
    assert "--exclude-event" in text
    assert "<script>alert(1)</script>" in text


def test_a_stopped_import_says_how_it_resumes() -> None:
    """And one without events says that."""
    assert "not complete: the same command resumes it" in as_shown(manifest(1, ended=False))
    assert "no events" in as_shown(manifest(0))


def test_what_comes_from_outside_is_text() -> None:
    """Markup isn't understood, and what a terminal would obey isn't passed on."""
    made = msgspec.structs.replace(
        manifest(1), names={"[bold]x[/bold]": 2, "red \x1b[31m alert\x07\u202e": 1}
    )
    text = as_shown(made)
    assert "[bold]x[/bold]" in text
    assert "red \ufffd[31m alert\ufffd\ufffd" in text
    assert plain("Ünïcode 名前") == "Ünïcode 名前"


def test_machines_get_the_same() -> None:
    """With the difference of the books, which is 0."""
    got = json.loads(as_json(manifest(60)))
    assert (
        got["events"],
        got["source_events"],
        got["books"]["read"],
        got["books"]["difference"],
    ) == (269, 270, 278, 0)
    assert (got["days"], len(got["periods"]), got["seconds"]) == (60, 60, 10800.0)
    assert got["job"]["options"]["until"] == "2025-06-13"


def test_repaired_records_are_shown_beside_refused_ones() -> None:
    """They stay among these: that is what the source has. Nothing is said where there are none."""
    made = manifest(60)
    assert "mended" not in as_shown(made)
    made.books.repaired = 2
    assert (
        "+ 5 refused + 2 left out + 2 repeats (of the refused, 2 repaired and delivered "
        "since): balanced"
    ) in as_shown(made)
    made.books.repaired = 5
    assert "(of the refused, 5 repaired and delivered since, all of them): balanced" in as_shown(
        made
    )
    assert json.loads(as_json(made))["books"]["mended"] == 5


@cases(
    ("days", "unit", "labels"),
    [
        ([], "day", []),
        (["2024-02-28", "2024-03-01"], "day", ["2024-02-28", "2024-02-29", "2024-03-01"]),
        (["2023-12-27", "2024-05-01"], "week", ["2023-12-25", *[""] * 17, "2024-04-29"]),
        (["2019-11-30", "2024-01-01"], "month", ["2019-11", *[""] * 49, "2024-01"]),
        (
            ["1970-01-01", "1970-12-31", "2024-06-01", "9999-12-31"],
            "year",
            ["1970", "2024", "9999"],
        ),
    ],
)
def test_many_days_are_shown_by_the_week_month_or_year(
    days: list[str], unit: str, labels: list[str]
) -> None:
    """Whatever the span, what is shown can be read at once, and no event is missing from it."""
    got, shown = periods({day: DayTally(source=3, delivered=2) for day in days})
    assert got == unit
    assert [
        period.label if known else "" for period, known in zip(shown, labels, strict=True)
    ] == labels
    assert sum(period.source for period in shown) == 3 * len(days)
    assert sum(period.delivered for period in shown) == 2 * len(days)


def test_books_that_do_not_balance_are_said_so() -> None:
    """Missing and too many are different mistakes."""
    assert balance(RecordBooks(read=5, delivered=3)) == "2 missing"
    assert (
        balance(RecordBooks(read=5, delivered=3, refused={"x": 1}, left_out={"y": 1}, repeats=1))
        == "1 too many"
    )
    assert (
        sentence(RecordBooks())
        == "0 records read = 0 delivered + 0 refused + 0 left out + 0 repeats"
    )


def test_the_rate_is_that_of_all_the_time() -> None:
    """An import that took no second has one that can be said, too."""
    made = msgspec.structs.replace(manifest(1), events=90_000_000)
    assert outcome(made) == "90,000,000 events delivered in 3h (8,333/s)"
    assert "(90,000,000/s)" in outcome(msgspec.structs.replace(made, ended=made.started))


def test_of_many_names_the_rest_is_counted_together() -> None:
    """No event is missing from a table."""
    assert top({"a": 5, "b": 3, "c": 2, "d": 1}, 2) == [("a", 5), ("b", 3), ("(2 more names)", 3)]
    assert top({"a": 5}, 2) == [("a", 5)]


HOSTILE = "</title></style><img src=x onerror=alert(1)>\"'`&\x1b"
VOID = {"meta", "br", "line", "rect"}


class Parsed(HTMLParser):
    """A page's elements, attributes and text; whether each element is closed in its turn."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(body.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it; there is nothing to close."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        """It closes the innermost."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note what is read by people."""
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """All that is read by people."""
        return " ".join(" ".join(self.words).split())


def hostile() -> ImportManifest:
    """With the worst of texts wherever something comes from outside."""
    return msgspec.structs.replace(
        manifest(1),
        job=ImportJob(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}),
        forwarder=HOSTILE,
        books=RecordBooks(read=2, refused={HOSTILE: 1}, left_out={HOSTILE: 1}),
        files=[FileManifest(HOSTILE, "ab", RecordBooks())],
        names={HOSTILE: 1},
        examples={HOSTILE: [RefusalExample(HOSTILE, 1, HOSTILE)]},
    )


def test_it_says_what_the_manifest_says() -> None:
    """Outcome, books, days, reasons with places, names, files and options."""
    text = Parsed(html_page(manifest(60))).text
    for expected in (
        "269 events delivered in 3h",
        "278 records read = 269 delivered + 5 refused + 2 left out + 2 repeats",
        "balanced",
        "Events per day",
        "2024-01-01: 2 of 3 events delivered",
        "export/0.json.gz:17",
        "there is no `time`",
        "<script>alert(1)</script>",
        "--person-properties oldest",
    ):
        assert expected in text


@cases("days", [0, 1, 60, 700, 2500])
def test_it_is_well_formed_and_stands_alone(days: int) -> None:
    """Every element is closed; nothing is loaded from anywhere, nothing runs;
    each period has its bars.
    """
    parsed = Parsed(html_page(manifest(days)))
    assert parsed.open == []
    assert not {"script", "img", "link", "iframe", "object", "a", "base"} & set(parsed.tags)
    assert not [
        name
        for name, _ in parsed.attributes
        if name.startswith("on") or name in ("src", "href", "srcset", "action")
    ]
    assert (
        "content",
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    ) in parsed.attributes
    assert not re.search(rb"//|@import|url\(", html_page(manifest(days)))
    assert parsed.tags.count("rect") == {0: 0, 1: 2, 60: 61, 700: 101, 2500: 84}[days]


def test_what_comes_from_outside_is_text_on_the_page() -> None:
    """Wherever it stands, it makes no element and ends none."""
    body = html_page(hostile())
    parsed = Parsed(body)
    harmless = Parsed(html_page(manifest(1)))
    assert parsed.open == []
    assert set(parsed.tags) <= set(harmless.tags) | {"br"}
    assert b"<img" not in body
    assert b"\x1b" not in body
    assert parsed.text.count("<img src=x onerror=alert(1)>") >= 9


def test_bars_are_as_high_as_their_figures() -> None:
    """The highest fills the chart; what wasn't delivered stands on what was, and both together are
    the source's.
    """
    days = {
        "2024-01-01": DayTally(source=40, delivered=40),
        "2024-01-02": DayTally(source=20, delivered=10),
    }
    body = html_page(msgspec.structs.replace(manifest(1), days=days)).decode()
    assert re.findall(
        r'<rect class="(\w+)" x="([\d.]+)" width="([\d.]+)" y="([\d.]+)" height="([\d.]+)"', body
    ) == [
        ("delivered", "0.15", "0.7", "0.00", "100.00"),
        ("delivered", "1.15", "0.7", "75.00", "25.00"),
        ("missing", "1.15", "0.7", "50.00", "25.00"),
    ]
    assert "not delivered 10" in Parsed(body.encode()).text


def test_a_few_bars_stay_bars() -> None:
    """A chart has room for 16 periods at least, and where all was delivered
    nothing is said to be missing.
    """
    body = html_page(manifest(5)).decode()
    assert 'viewBox="0 0 16 100"' in body
    whole = msgspec.structs.replace(
        manifest(1), days={"2024-01-01": DayTally(source=40, delivered=40)}
    )
    assert "not delivered 0" not in html_page(whole).decode()


def test_one_is_singular() -> None:
    """Of one record, event and repeat the page speaks in the singular, and of
    a rate only if it is one.
    """
    one = msgspec.structs.replace(
        manifest(0), books=RecordBooks(read=2, delivered=1, repeats=1), events=1, names={"a": 1}
    )
    text = Parsed(html_page(one)).text
    for words in (
        "1 event delivered in 3h",
        "2 records read = 1 delivered + 0 refused + 0 left out + 1 repeat",
        "event delivered 1",
        "repeat 1",
    ):
        assert words in text
    assert "(0.0/s)" not in text


def test_long_lists_are_cut_and_say_so() -> None:
    """The manifest has all of them."""
    made = msgspec.structs.replace(
        manifest(1),
        files=[FileManifest(f"{number}.json", "ab", RecordBooks()) for number in range(FILES + 7)],
        names={f"name {number}": 1 for number in range(NAMES + 5)},
    )
    text = Parsed(html_page(made)).text
    assert "And 7 more: the manifest has all." in text
    assert "(5 more names)" in text
    assert f"{FILES}.json" not in text


def test_books_that_do_not_balance_are_seen() -> None:
    """In words, not in colour alone; so is an import that isn't complete."""
    made = msgspec.structs.replace(manifest(1, ended=False), books=RecordBooks(read=9, delivered=7))
    text = Parsed(html_page(made)).text
    assert "2 missing" in text
    assert "not complete: the same command resumes it" in text


def test_it_follows_the_readers_light_and_width() -> None:
    """Dark where the system is, and laid out for a telephone."""
    body = html_page(manifest(1))
    assert b"prefers-color-scheme: dark" in body
    assert b'name="viewport" content="width=device-width' in body


def test_the_same_manifest_gives_the_same_page() -> None:
    """No clock gets into it."""
    assert html_page(manifest(3)) == html_page(manifest(3))


def test_repaired_records_have_a_tile_if_there_are_any() -> None:
    """Beside the refused ones, which they are a part of."""
    made = manifest(1)
    assert b"mended" not in html_page(made)
    made.books.repaired = 3
    assert b"<dt>of these repaired since</dt><dd>3</dd>" in html_page(made)


REPORT_FILES = {MANIFEST, JSON, PAGE}


def checkpoint() -> ImportCheckpoint:
    """Of an import that is complete."""
    return ImportCheckpoint(
        JOB, 1_750_000_000.0, 1_750_000_600.0, [], [], ImportTotals(), exhausted=True
    )


def test_all_of_them_are_written(tmp_path: Path) -> None:
    """The manifest last: where it is, the others are."""
    write_reports(manifest(2), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == REPORT_FILES
    assert read_manifest(tmp_path / MANIFEST) == manifest(2)


@cases("lost", [*sorted(REPORT_FILES), ""])
def test_what_a_kill_left_out_is_made_of_the_checkpoint(tmp_path: Path, lost: str) -> None:
    """Also instead of a manifest of a run before, that wasn't complete."""
    write_reports(manifest(2, ended=False), tmp_path)
    if lost:
        (tmp_path / lost).unlink()
    made = complete_reports(checkpoint(), tmp_path)
    assert (made.complete, made.ended) == (True, "2025-06-15T15:16:40.000Z")
    assert {path.name for path in tmp_path.iterdir()} == REPORT_FILES
    assert read_manifest(tmp_path / MANIFEST) == made


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    """It says when the import ended, which the checkpoint doesn't know."""
    first = complete_reports(checkpoint(), tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert complete_reports(checkpoint(), tmp_path) == first
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


FOLDER = Path("/state/mixpanel-1a2b3c4d")
NOW = STARTED + 75


def standing(saved: ImportCheckpoint | None, *, running: bool = False) -> ImportStatus:
    """An import in that folder."""
    return ImportStatus(FOLDER, saved, running)


def test_a_complete_import_in_words() -> None:
    """What it is, since when, its books, its events and its files."""
    saved = sample(4)
    read = saved.books.read
    delivered = saved.books.delivered
    events = sum(day.delivered for day in saved.totals.days.values())
    assert list(standing(saved).words(NOW)) == [
        "mixpanel export/*.json.gz: complete",
        f"  import {JOB.id}, in /state/mixpanel-1a2b3c4d",
        "  started 2025-06-15T15:06:40Z, last checkpoint 2025-06-15T15:06:40Z, 1m 15s ago",
        (
            f"  {read} records read = {delivered} delivered + 5 refused + 2 left out + 2 repeats: "
            "balanced"
        ),
        (
            f"  {events} events delivered, of 2024-01-01T00:00:00.000Z to "
            "2024-01-04T00:00:04.000Z; 2 of 2 files done"
        ),
    ]


@cases(
    ("ended", "running", "said"),
    [
        (True, True, "running"),
        (False, True, "running"),
        (False, False, "not complete: the same command resumes it"),
    ],
)
def test_the_state_of_one_that_runs_or_was_ended(*, ended: bool, running: bool, said: str) -> None:
    """Anyone who has the folder now is at work on it; else it waits for the command."""
    assert (
        next(standing(sample(4, ended=ended), running=running).words(NOW))
        == f"mixpanel export/*.json.gz: {said}"
    )


def test_books_that_are_off_are_said() -> None:
    """A figure that can't be is shown, not passed over."""
    saved = sample(4)
    saved.files[0].books.read += 3
    assert list(standing(saved).words(NOW))[3].endswith(": 3 missing")


def test_one_that_has_settled_nothing() -> None:
    """It is looking at its source; there is only the folder to name."""
    assert list(standing(None, running=True).words(NOW)) == [
        "mixpanel-1a2b3c4d: running, nothing is settled yet",
        "  in /state/mixpanel-1a2b3c4d",
    ]


def test_files_in_archives_are_known_once_they_are_read() -> None:
    """An archive that wasn't begun counts for one file; one that was, for those found in it."""
    files = [
        FileCheckpoint("a.zip!1.json", "x", RecordBooks(), 0, complete=True),
        FileCheckpoint("a.zip!deep.zip!2.json", "x", RecordBooks(), 0),
    ]
    contents = [SourceContent(name, 1, "d") for name in ("a.zip", "b!.zip", "c.json")]
    saved = ImportCheckpoint(JOB, STARTED, STARTED, contents, files)
    assert file_progress(saved) == (1, 4, False)
    assert list(standing(saved).words(NOW))[-1].endswith(
        "; 1 of 4 files done, as far as they are known"
    )
    saved.files.append(FileCheckpoint("b!.zip!3.json", "x", RecordBooks(), 0))
    assert file_progress(saved) == (1, 4, False)


def test_what_a_terminal_would_obey_is_not_said() -> None:
    """Names come from outside."""
    saved = sample(4)
    saved.job = type(JOB)(JOB.id, "native", "\x1b[31mred\n")
    assert "\x1b" not in "".join(standing(saved).words(NOW))


def test_how_much_of_it_is_read() -> None:
    """Against what the preflight counted, until it is complete."""
    saved = sample(4, ended=False)
    said = list(ImportStatus(FOLDER, saved, running=True, counted=saved.books.read * 4).words(NOW))
    assert (
        said[4] == f"  25% of the {saved.books.read * 4} records that were counted before it began"
    )
    assert not any(
        "%" in line
        for line in ImportStatus(FOLDER, sample(4), running=True, counted=100).words(NOW)
    )


def test_a_status_says_why_a_running_import_waits() -> None:
    """As its last checkpoint has it; of one that doesn't run it says nothing."""
    saved = sample(4)
    saved.waiting = "paused until 20:00 by --quiet-hours"
    lines = list(standing(saved, running=True).words(NOW))
    assert "  waiting: paused until 20:00 by --quiet-hours" in lines
    assert standing(saved, running=True).plain()["waiting"] == saved.waiting
    assert "paused" not in "".join(standing(saved).words(NOW))
    assert standing(saved).plain()["waiting"] == ""


def test_the_progress_for_machines() -> None:
    """All figures, also of what has settled nothing; never a folder without its state."""
    whole, empty = json.loads(
        msgspec.json.encode(
            [status.plain() for status in (standing(sample(4)), standing(None, running=True))]
        )
    )
    assert empty == {"folder": str(FOLDER), "job": None, "running": True, "complete": False}
    assert (whole["job"]["id"], whole["complete"], whole["running"]) == (JOB.id, True, False)
    assert whole["books"]["read"] == sample(4).books.read
    assert whole["books"]["difference"] == 0
    assert whole["files"] == {"done": 2, "known": 2, "all_known": True}
    assert (whole["first"], whole["written"]) == (
        "2024-01-01T00:00:00.000Z",
        "2025-06-15T15:06:40Z",
    )


def test_it_says_what_was_read_and_what_became_of_it() -> None:
    """Of each file and of all together, with times that people can read."""
    made = manifest(days=2)
    assert (made.started, made.ended) == ("2025-06-15T15:06:40.000Z", "2025-06-15T18:06:40.000Z")
    assert (made.first, made.last) == ("2024-01-01T00:00:00.000Z", "2024-01-02T00:00:06.000Z")
    assert list(made.days) == ["2024-01-01", "2024-01-02"]
    assert made.books.difference == 0
    assert made.books.read == sum(file.books.read for file in made.files)
    assert (
        made.events == sum(made.names.values()) == sum(day.delivered for day in made.days.values())
    )
    assert made.source_events == made.events + made.books.refused["rejected_400"]
    assert list(made.names.values()) == sorted(made.names.values(), reverse=True)
    assert made.complete


def test_a_running_import_is_not_complete() -> None:
    """One file that isn't read to its end is enough."""
    assert not manifest(days=1, ended=False).complete


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """A former one is replaced; people can read it as well. The same manifest gives the same
    bytes: two can be compared by anything.
    """
    path = tmp_path / MANIFEST
    write_reports(manifest(days=3), tmp_path)
    first = path.read_bytes()
    write_reports(manifest(days=1), tmp_path)
    write_reports(manifest(days=3), tmp_path)
    assert read_manifest(path) == manifest(days=3)
    assert path.read_bytes() == first
    assert path.read_text().startswith('{\n  "version": 1,')


@cases(
    ("old", "new", "words"),
    [
        ('"version": 1', '"version": 7', "it is of version 7, this forwarder reads version 1"),
        ('"complete": true', '"complete": "yes"', "Expected `bool`"),
        ('"repeats": ', '"repeats": 1', "books don't balance"),
        ('"mended": ', '"mended": 9', "books don't balance"),
        ('"events": ', '"events": 1', "days don't add up"),
        ("{", "", "malformed|Expected"),
    ],
)
def test_one_that_was_changed_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    """What doesn't add up verifies nothing."""
    write_reports(manifest(days=1), tmp_path)
    path = tmp_path / MANIFEST
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=words):
        read_manifest(path)


def test_a_missing_report_is_reported(tmp_path: Path) -> None:
    """The hint says which file is meant."""
    with pytest.raises(ConfigurationError, match="No such file") as caught:
        read_manifest(tmp_path / MANIFEST)
    assert "manifest.json" in caught.value.hint
