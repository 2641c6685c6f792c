"""The sum of several workers' snapshots."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from forwarder.telemetry.labels import OTHER, UNDECODABLE
from forwarder.telemetry.snapshot import (
    LOG_FILES,
    Histogram,
    LaneSnapshot,
    LogFile,
    LogSourceState,
    Snapshot,
    State,
    Upstream,
    UpstreamState,
    balanced,
)
from forwarder.workers.merging import LabelLimit, WorkerShare, merge
from tests.support.snapshots import FULL, GOOD, LOGS

COUNTS = st.integers(0, 1000)
LABELS = st.sampled_from(["phc_…aaaa#1", "phc_…bbbb#2", "phc_…cccc#3", OTHER, UNDECODABLE])
REASONS = st.sampled_from(["refused", "too_large"])


def member(number: int, snapshot: Snapshot = FULL, **how: bool) -> WorkerShare:
    """A worker's share."""
    return WorkerShare(f"worker-{number}", snapshot, **how)


@st.composite
def balanced_lanes(draw: st.DrawFn) -> LaneSnapshot:
    """A lane whose books balance."""
    delivered = draw(COUNTS)
    buffered = draw(COUNTS)
    dead = draw(st.dictionaries(REASONS, COUNTS))
    dropped = draw(st.dictionaries(REASONS, COUNTS))
    total = delivered + buffered + sum(dead.values()) + sum(dropped.values())
    received = (
        {"http": total}
        if draw(st.booleans())
        else {"http": total // 3, "kafka": total - total // 3}
    )
    return LaneSnapshot(draw(LABELS), received, delivered, buffered, dead, dropped)


def shown(lanes: list[LaneSnapshot]) -> Snapshot:
    """A snapshot with those lanes, as many of one label as there are."""
    return replace(FULL, lanes=tuple(lanes))


@given(st.lists(st.lists(balanced_lanes(), max_size=6), min_size=1, max_size=5))
def test_sums_of_balanced_books_balance(workers: list[list[LaneSnapshot]]) -> None:
    """Whatever the workers hold, if each one's books balance so do all together, and no event is
    lost in adding them up.
    """
    merged = merge(
        [member(number, shown(lanes)) for number, lanes in enumerate(workers)], LabelLimit(2)
    )
    assert balanced(merged)
    every = [lane for lanes in workers for lane in lanes]
    for figure in ("total_received", "delivered", "buffered", "total_dead", "total_dropped"):
        assert sum(getattr(lane, figure) for lane in merged.lanes) == sum(
            getattr(lane, figure) for lane in every
        )
    assert len({lane.label for lane in merged.lanes}) == len(merged.lanes)


def test_books_that_are_off_stay_off() -> None:
    """One worker's missing event is missing in the sum."""
    off = replace(GOOD, delivered=GOOD.delivered - 1)
    assert not balanced(merge([member(0), member(1, shown([off]))]))


def test_one_alone_is_itself() -> None:
    """Nothing that a worker shows is left out: the sum of one is that one."""
    assert merge([member(0)]) == replace(FULL, workers=())


def test_figures_are_added_up() -> None:
    """Counters, gauges and histograms of two workers are their sums; what they have in common is
    said once.
    """
    merged = merge([member(0), member(1)])
    assert (merged.buffer_bytes, merged.buffer_limit_bytes) == (
        2 * FULL.buffer_bytes,
        2 * FULL.buffer_limit_bytes,
    )
    assert (merged.concurrency_limit, merged.in_flight, merged.connections) == (16.0, 4, 10)
    assert merged.upstream_requests == {"200": 24, "connection_refused": 6}
    assert merged.http_requests == {("/batch", 200): 48, ("/e", 400): 2}
    assert merged.rejected_requests == {("/e", "undecodable"): 2, ("/static", "upstream"): 4}
    assert merged.passthrough_requests == {("/flags", 200): 14, ("/static", 503): 4}
    assert merged.request_duration == Histogram((0.1, 1.0), (20, 4, 6), 15.0)
    assert merged.addresses == FULL.addresses
    assert merged.warnings == FULL.warnings
    assert [lane.label for lane in merged.lanes] == [lane.label for lane in FULL.lanes]
    assert merged.lanes[1].halted == FULL.lanes[1].halted
    assert (merged.state, merged.ready) == (State.RUNNING, True)


def test_histograms_without_buckets_add_nothing() -> None:
    """A worker that has sent nothing yet, or counts in other buckets, leaves the others' histogram
    as it is.
    """
    fresh = replace(FULL, request_duration=Histogram())
    assert merge([member(0, fresh), member(1)]).request_duration == FULL.request_duration
    assert merge([member(0), member(1, fresh)]).request_duration == FULL.request_duration


def test_one_that_takes_is_enough_to_be_ready() -> None:
    """The daemon takes events as long as one worker does; that another can't is a warning that
    names it.
    """
    full = replace(FULL, ready=False, not_ready=("the buffer is full",))
    merged = merge([member(0, full), member(1)])
    assert merged.ready
    assert not merged.not_ready
    assert "worker-0: the buffer is full" in " ".join(merged.warnings)


def test_none_that_takes_is_not_ready() -> None:
    """When no worker can take the reasons are said, once if they are the same."""
    full = replace(FULL, ready=False, not_ready=("the buffer is full",))
    merged = merge([member(0, full), member(1, full)])
    assert (merged.ready, merged.not_ready) == (False, ("the buffer is full",))


def test_one_without_a_listener_makes_nothing_ready() -> None:
    """A worker that only empties a directory takes no events, however well it is; its limit isn't
    room for more.
    """
    full = replace(FULL, ready=False, not_ready=("the buffer is full",))
    merged = merge([member(0, full), member(7, listens=False)])
    assert not merged.ready
    assert merged.buffer_limit_bytes == FULL.buffer_limit_bytes
    assert merged.memory_bytes == FULL.memory_bytes
    assert merged.memory_limit_bytes == FULL.memory_limit_bytes


def test_one_that_is_away_keeps_its_books_and_nothing_else() -> None:
    """The last that was seen of a worker whose process is gone: its books count, its connections
    and requests in flight don't.
    """
    merged = merge([member(0), member(1, there=False)])
    assert sum(lane.buffered for lane in merged.lanes) == 2 * sum(
        lane.buffered for lane in FULL.lanes
    )
    assert (merged.connections, merged.in_flight, merged.concurrency_limit) == (
        FULL.connections,
        FULL.in_flight,
        FULL.concurrency_limit,
    )
    assert merged.ready
    alone = merge([member(1, there=False)])
    assert not alone.ready


def test_words_are_said_with_who_says_them() -> None:
    """A warning of one worker names it."""
    merged = merge(
        [
            member(0, replace(FULL, warnings=("both", "mine"))),
            member(1, replace(FULL, warnings=("both",))),
        ]
    )
    assert merged.warnings == ("both", "worker-0: mine")


def test_what_workers_keep_on_disk_is_summed() -> None:
    """Events that were found and letters that are required are added up; where letters are is
    described by what their places have in common.
    """
    one, other = (
        replace(FULL, dead_letters_path=f"/var/lib/forwarder/worker-{number}/dead-letters.db")
        for number in (0, 1)
    )
    merged = merge([member(0, one), member(1, other)])
    assert (merged.dead_letters_path, merged.dead_letters_wanted, merged.buffer_found) == (
        "/var/lib/forwarder",
        6,
        140,
    )
    assert merge([member(0, one)]).dead_letters_path == one.dead_letters_path
    assert merge([member(0, replace(FULL, dead_letters_path=""))]).dead_letters_path == ""


def test_an_upstream_that_fails_for_one_fails() -> None:
    """The upstream's state is the worst that any worker sees."""
    up = replace(FULL, upstream=Upstream("https://a.example.com", UpstreamState.UP))
    unknown = replace(FULL, upstream=Upstream("https://a.example.com"))
    assert merge([member(0, up), member(1)]).upstream == FULL.upstream
    assert merge([member(0, unknown), member(1, up)]).upstream.state is UpstreamState.UP
    assert merge([member(0, unknown)]).upstream.state is UpstreamState.UNKNOWN


def test_labels_are_bounded_and_kept() -> None:
    """So many lanes as one process would show keep their label for good; those that come later
    share `other`, `none` stays.
    """
    labels = LabelLimit(2)
    assert [labels(label) for label in ("a", "b", "c", UNDECODABLE, "a", OTHER)] == [
        "a",
        "b",
        OTHER,
        UNDECODABLE,
        "a",
        OTHER,
    ]


def test_a_name_goes_with_its_label() -> None:
    """A lane without a label of its own shares `other` with lanes of any name."""
    limit = LabelLimit(1)
    lanes = [LaneSnapshot(f"phc_…{name}#123456", name=name) for name in ("shop", "blog")]
    merged = merge([member(0, shown(lanes)), member(1, shown(lanes))], limit)
    assert [lane.shown for lane in merged.lanes] == ["shop", OTHER]


def test_log_sources_are_those_of_the_worker_that_reads_them() -> None:
    """Other workers have none. While that worker is away its counts stay, its files and its lag
    aren't known.
    """
    other = replace(FULL, logs=())
    assert merge([member(0), member(1, other)]).logs == FULL.logs
    away = merge([member(0, there=False), member(1, other)]).logs[0]
    assert (away.state, away.why, away.files, away.lag, away.lines) == (
        "starting",
        "",
        (),
        0,
        LOGS.lines,
    )


def test_files_of_a_log_source_are_bounded() -> None:
    """Those with the most unread bytes stay, then those that were read last; each once."""
    files = [
        LogFile(f"/{number}", lag=number % 3, last_read=float(number))
        for number in range(LOG_FILES)
    ]
    one = replace(LOGS, files=tuple(files))
    two = replace(LOGS, files=(*files[:2], LogFile("/far", lag=9)))
    (merged, *_) = merge(
        [member(0, replace(FULL, logs=(one,))), member(1, replace(FULL, logs=(two,)))]
    ).logs
    assert len(merged.files) == len(set(merged.files)) == LOG_FILES
    assert [file.path for file in merged.files[:3]] == ["/far", "/197", "/194"]
    assert files[0] not in merged.files
    assert LogSourceState("x").reads is False
