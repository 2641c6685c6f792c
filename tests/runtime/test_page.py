"""The `/status` page for a browser."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from forwarder.runtime.page import page
from forwarder.telemetry.snapshot import Snapshot, State
from tests.support.snapshots import FULL, GOOD, HALTED

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Collects the text, and checks that every element is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.tags: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {"src", "href", "onclick"} & {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def read(snapshot: Snapshot) -> Reader:
    """The page as a browser would see it."""
    reader = Reader()
    reader.feed(page(snapshot))
    assert not reader.open
    return reader


def test_page_tells_the_facts() -> None:
    """State, flow, lanes, halts with what to do, upstream and warnings can be read on it."""
    text = read(FULL).text
    for fact in ("running, ready", "9.8.7", "1,230", "1,150", "2.0 MiB of 64.0 MiB", GOOD.label, "7 refused", "1m 15s", "up 1h 1m"):
        assert fact in text
    for fact in ("unknown_key", "401 from <b>/decide</b>", "Check the project key.", "for 1h 11m, next probe in 12s"):
        assert fact in text
    for fact in ("https://analytics.example.com", "connection refused", "upstream is down"):
        assert fact in text
    assert "/batch" in text


def test_page_runs_nothing_that_came_from_outside() -> None:
    """The upstream's words are text: markup in them is shown, not obeyed; the page needs no script and no other file."""
    evil = replace(HALTED, label="<script>x", why="<script>alert(1)</script>", hint='"><img src=x>')
    reader = read(replace(FULL, lanes=(evil,), warnings=("<script>",)))
    assert not reader.tags & {"script", "img", "link", "iframe", "b"}
    assert "<script>alert(1)</script>" in reader.text


def test_page_follows_light_and_dark() -> None:
    """The page declares both colour schemes."""
    assert "color-scheme:light dark" in page(FULL)
    assert "prefers-color-scheme:dark" in page(FULL)


def test_page_says_why_nothing_is_taken() -> None:
    """A daemon that isn't ready says so, and why."""
    text = read(replace(FULL, state=State.DRAINING, ready=False, not_ready=("draining",))).text
    assert "draining, not ready" in text
    assert "Takes nothing: draining" in text


def test_page_shows_books_that_are_off() -> None:
    """A lane whose books don't balance stands out."""
    assert "off by 1" in read(replace(FULL, lanes=(replace(GOOD, buffered=39),))).text


def test_page_of_a_fresh_daemon() -> None:
    """Before the first event there are no empty tables."""
    reader = read(Snapshot("1", State.STARTING, 0.0, 0.0))
    assert "None yet." in reader.text
    assert "table" not in reader.tags


def test_workers_are_listed_where_there_are_several() -> None:
    """Each worker has a row, with why it is away; a daemon of one process has no such table."""
    text = read(FULL).text
    assert "worker-1" in text
    assert "away: it was ended by SIGKILL" in text
    assert "Workers" not in read(replace(FULL, workers=())).text
