"""The `/status` page for a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from forwarder.admin.page import page
from forwarder.telemetry.snapshot import LogFile, Snapshot, State, Upstream, UpstreamState
from tests.support.snapshots import FULL, GOOD, HALTED, LOGS

VOID = {"meta", "br", "link", "img"}
OWN = {
    "status/icon.svg",
    "status/base.css",
    "status/status.css",
    "status/status.js",
    "status",
    "metrics",
}


class PageReader(HTMLParser):
    """Collects the text, and checks that every element is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.addresses: set[str] = set()
        self.texts: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses |= {value or "" for name, value in attrs if name in ("src", "href")}
        self.texts |= {value or "" for name, value in attrs if name not in ("src", "href")}
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += " ".join(data.split()) + (" " if data.strip() else "")


def read(snapshot: Snapshot) -> PageReader:
    """The page as a browser would see it."""
    reader = PageReader()
    reader.feed(page(snapshot))
    assert not reader.open
    assert reader.addresses <= OWN
    return reader


def test_page_tells_the_facts() -> None:
    """State, flow, lanes, halts with what to do, upstream and warnings can be read on it."""
    text = read(FULL).text
    for fact in (
        "running, ready",
        "9.8.7",
        "1,230",
        "1,150",
        "2.0 MiB of 64.0 MiB",
        GOOD.label,
        "refused 7",
        "1m 15s",
        "up 1h 1m",
    ):
        assert fact in text
    for fact in (
        "unknown_key",
        "401 from <b>/decide</b>",
        "Check the project key.",
        "for 1h 11m , next probe in 12s",
    ):
        assert fact in text
    assert "30 events of this lane are buffered, not lost." in text
    for fact in ("https://analytics.example.com", "connection refused", "upstream is down"):
        assert fact in text
    assert "/batch" in text


def test_one_is_singular() -> None:
    """Of one event, request and connection the page speaks in the singular."""
    lane = replace(HALTED, received={"http": 1}, buffered=1)
    text = read(
        replace(
            FULL,
            lanes=(lane,),
            in_flight=1,
            connections=1,
            passthrough_requests={("/flags", 200): 1},
        )
    ).text
    for words in (
        "1 event of this lane is buffered",
        "1 event received",
        "1 event buffered",
        "1 request in flight",
        "1 open connection",
    ):
        assert words in text
    assert "1 request for flags" in text


def test_a_busy_daemon_has_no_warning_color() -> None:
    """Amber and red are for what needs a person: full lanes, retries, answers of the past and
    harmless drops have none.
    """
    busy = replace(
        GOOD,
        received={"http": 1_000_000},
        delivered=959_997,
        buffered=40_000,
        oldest_age=0.8,
        dead_lettered={},
        dropped={"operator": 3},
    )
    calm = replace(
        FULL,
        lanes=(busy,),
        warnings=(),
        notices=("lane x is sent again in 3s",),
        upstream=Upstream("u", UpstreamState.UP),
        kafka=(),
        logs=(),
        workers=(),
    )
    assert not {"warn", "bad"} & {word for names in read(calm).texts for word in names.split()}
    assert "lane x is sent again in 3s" in read(calm).text


def test_the_header_is_not_all_green_beside_trouble() -> None:
    """It counts what is halted, delayed or down, where daemon and upstream are well."""

    def states(snapshot: Snapshot) -> list[tuple[str, str]]:
        return re.findall(
            r'<span class="pill (\w*)">([^<]*)', page(snapshot).partition("<main>")[0]
        )

    up = replace(FULL, upstream=Upstream("http://up", UpstreamState.UP), kafka=(), logs=())
    well = replace(up, lanes=(GOOD,))
    assert states(well) == [("good", "running, ready"), ("good", "upstream up")]
    late = replace(GOOD, label="phc_…late", oldest_age=4000.0)
    troubled = replace(up, lanes=(GOOD, HALTED, late))
    assert states(troubled)[2:] == [("bad", "1 lane halted"), ("warn", "1 lane delayed")]
    failed = replace(FULL.logs[0], state="failed")
    assert ("bad", "1 source down") in states(replace(well, logs=(failed,)))


def test_dead_letters_come_with_their_command() -> None:
    """Only where there are any."""
    command = "<code>forwarder dead-letters ls</code>"
    assert command in page(FULL)
    assert command not in page(replace(FULL, lanes=()))


def test_times_are_relative_and_exact() -> None:
    """A time says how long ago it is, in an element that has the exact one as
    its value and its title.
    """
    exact = (
        '<time datetime="2026-01-01T01:01:04Z" title="2026-01-01 01:01:04 UTC" data-ago>1s '
        "ago</time>"
    )
    assert exact in page(replace(FULL, kafka=(replace(FULL.kafka[0], last_commit=FULL.now - 1),)))
    oldest = '<time datetime="2026-01-01T00:59:50Z" title="2026-01-01 00:59:50 UTC">1m 15s</time>'
    assert page(replace(FULL, lanes=(GOOD,))).count(oldest) == 2


def test_page_runs_nothing_that_came_from_outside() -> None:
    """The upstream's words are text: markup in them is shown, not obeyed; the page loads nothing
    but its own files.
    """
    evil = replace(
        HALTED, label='<script>x" onclick="y', why="<script>alert(1)</script>", hint='"><img src=x>'
    )
    answers = {('/<i>"', 200): 1}
    reader = read(
        replace(
            FULL,
            lanes=(evil,),
            warnings=("<script>",),
            http_requests=answers,
            passthrough_requests=answers,
        )
    )
    assert (
        page(FULL).count("<script")
        == page(replace(FULL, lanes=(evil,), warnings=("<script>",))).count("<script")
        == 1
    )
    assert not reader.tags & {"iframe", "b", "i"}
    assert "<script>alert(1)</script>" in reader.text
    assert 'received <script>x" onclick="y' in reader.texts


def test_page_is_whole_without_scripts() -> None:
    """Everything is in the page itself; a browser without scripts asks for it again by itself, one
    with scripts doesn't flash.
    """
    refresh = '<noscript><meta http-equiv="refresh" content="5"></noscript>'
    assert refresh in page(FULL)
    assert "http-equiv" not in page(FULL).replace(refresh, "")


def test_lanes_that_need_a_hand_come_first() -> None:
    """Of many lanes the halted ones are on top, in the table and above it; the
    others keep their order.
    """
    lanes = [replace(GOOD, label=f"lane-{number}") for number in range(200)]
    text = read(replace(FULL, lanes=(*lanes, HALTED))).text
    order = [text.rindex(label) for label in (HALTED.label, "lane-0", "lane-1", "lane-199")]
    assert order == sorted(order)
    assert "Lanes (201)" in text


def test_figures_say_what_they_count() -> None:
    """What rates are made of has a name of its own for each lane and for all together."""
    names = read(FULL).texts
    assert {
        "received all",
        "delivered all",
        "passed all",
        f"received {GOOD.label}",
        f"delivered {HALTED.label}",
    } <= names


def test_what_is_passed_through() -> None:
    """Calls that go past the buffer are counted, and those that failed stand out."""
    text = read(replace(FULL, passthrough_requests={("/flags", 200): 120, ("/flags", 503): 3})).text
    assert "123 requests for flags and assets" in text
    assert "3 of them failed" in text
    assert "/flags" in text


def test_rejected_requests() -> None:
    """Which requests were rejected has a table with the reasons; without any there is none."""
    text = read(replace(FULL, rejected_requests={("/e", "undecodable"): 1234})).text
    assert "Rejected requests" in text
    assert "undecodable" in text
    assert "1,234" in text
    assert "Rejected requests" not in read(replace(FULL, rejected_requests={})).text


def test_page_says_why_nothing_is_accepted() -> None:
    """A daemon that isn't ready says so, and why."""
    text = read(replace(FULL, state=State.DRAINING, ready=False, not_ready=("draining",))).text
    assert "draining, not ready" in text
    assert "Accepts nothing: draining" in text


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


def test_log_sources_and_their_files() -> None:
    """Each source has a row with its state and why; each file its position, lag and last line,
    which is text whatever is in it.
    """
    reader = read(FULL)
    for fact in (
        "Files of web",
        "/var/log/nginx/access.log",
        "9,000",
        "10,000",
        "1000 B",
        'GET /<script>"',
        "5s ago",
        "closed",
    ):
        assert fact in reader.text
    for fact in (
        "1 file can't be opened",
        "/var/log/<b>/secret.log",
        "Let forwarder's user read it.",
        "ended",
        "unmatched 30",
    ):
        assert fact in reader.text
    assert "open 3 unreadable 1 rotated (rename) 5" in reader.text
    assert "failed 3" in reader.text
    assert "lines web" in reader.texts
    assert not reader.tags & {"b"}
    assert "Logs" not in read(replace(FULL, logs=())).text


def test_thousands_of_files_stay_readable() -> None:
    """The 20 files with the largest lag are shown, the largest first, and how many
    more there are.
    """
    files = tuple(LogFile(f"/pods/{number}.log", lag=number) for number in range(200))
    text = read(replace(FULL, logs=(replace(LOGS, files=files, followed=5000),))).text
    assert text.count("/pods/") == 20
    assert text.index("/pods/199.log") < text.index("/pods/198.log") < text.index("/pods/180.log")
    assert "and 4,980 more" in text
