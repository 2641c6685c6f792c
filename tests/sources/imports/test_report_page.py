"""The report of an import as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest

from forwarder.sources.imports.checkpoint import ImportJob
from forwarder.sources.imports.manifest import FileManifest, ImportManifest
from forwarder.sources.imports.report_page import FILES, NAMES, page
from forwarder.sources.imports.tallies import DayTally, RecordBooks, RefusalExample
from tests.sources.imports.samples.manifests import manifest

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
    text = Parsed(page(manifest(60))).text
    for expected in (
        "269 events delivered in 3h",
        "278 records read = 269 delivered + 5 refused + 2 left out + 2 repeats",
        "balanced",
        "Events per day, source against delivered",
        "2024-01-01: source 3, delivered 2",
        "export/0.json.gz:17",
        "there is no `time`",
        "<script>alert(1)</script>",
        "--person-properties set_once",
    ):
        assert expected in text


@pytest.mark.parametrize("days", [0, 1, 60, 700, 2500])
def test_it_is_well_formed_and_stands_alone(days: int) -> None:
    """Every element is closed; nothing is loaded from anywhere, nothing runs; each period has its bars."""
    parsed = Parsed(page(manifest(days)))
    assert parsed.open == []
    assert not {"script", "img", "link", "iframe", "object", "a", "base"} & set(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name.startswith("on") or name in ("src", "href", "srcset", "action")]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'") in parsed.attributes
    assert not re.search(rb"//|@import|url\(", page(manifest(days)))
    assert parsed.tags.count("rect") == {0: 0, 1: 2, 60: 120, 700: 200, 2500: 166}[days]


def test_what_comes_from_outside_is_text() -> None:
    """Wherever it stands, it makes no element and ends none."""
    body = page(hostile())
    parsed, harmless = Parsed(body), Parsed(page(manifest(1)))
    assert parsed.open == []
    assert set(parsed.tags) <= set(harmless.tags) | {"br"}
    assert b"<img" not in body
    assert b"\x1b" not in body
    assert parsed.text.count("<img src=x onerror=alert(1)>") >= 9


def test_bars_are_as_high_as_their_figures() -> None:
    """The highest fills the chart; where all was delivered both bars end at the same height."""
    days = {"2024-01-01": DayTally(source=40, delivered=40), "2024-01-02": DayTally(source=20, delivered=10)}
    body = page(msgspec.structs.replace(manifest(1), days=days)).decode()
    assert re.findall(r'<rect class="(\w+)"[^>]* height="([\d.]+)"', body) == [
        ("source", "100.00"),
        ("delivered", "100.00"),
        ("source", "50.00"),
        ("delivered", "25.00"),
    ]


def test_long_lists_are_cut_and_say_so() -> None:
    """The manifest has all of them."""
    made = msgspec.structs.replace(
        manifest(1),
        files=[FileManifest(f"{number}.json", "ab", RecordBooks()) for number in range(FILES + 7)],
        names={f"name {number}": 1 for number in range(NAMES + 5)},
    )
    text = Parsed(page(made)).text
    assert "And 7 more: the manifest has all." in text
    assert "(5 more names)" in text
    assert f"{FILES}.json" not in text


def test_books_that_do_not_balance_are_seen() -> None:
    """In words, not in colour alone; so is an import that isn't complete."""
    made = msgspec.structs.replace(manifest(1, ended=False), books=RecordBooks(read=9, delivered=7))
    text = Parsed(page(made)).text
    assert "2 missing" in text
    assert "not complete: the same command goes on with it" in text


def test_it_follows_the_readers_light_and_width() -> None:
    """Dark where the system is, and laid out for a telephone."""
    body = page(manifest(1))
    assert b"prefers-color-scheme: dark" in body
    assert b'name="viewport" content="width=device-width' in body


def test_the_same_manifest_gives_the_same_page() -> None:
    """No clock gets into it."""
    assert page(manifest(3)) == page(manifest(3))


def test_mended_records_have_a_tile_if_there_are_any() -> None:
    """Beside the refused ones, which they are a part of."""
    made = manifest(1)
    assert b"mended" not in page(made)
    made.books.mended = 3
    assert b"<dt>of these mended since</dt><dd>3</dd>" in page(made)
