"""Snapshots and what follows from them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from forwarder.telemetry.snapshot import (
    Histogram,
    LaneSnapshot,
    balanced,
    by_label,
    unbalanced,
    without_credentials,
)
from tests.support.snapshots import FULL, GOOD, HALTED

counts = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 1000), max_size=3)
lanes = st.builds(
    LaneSnapshot,
    label=st.sampled_from(["x", "y", "other"]),
    received=counts,
    delivered=st.integers(0, 1000),
    buffered=st.integers(0, 1000),
    dead_lettered=counts,
    dropped=counts,
    oldest_age=st.none() | st.floats(0, 1000),
)


def test_books_that_balance() -> None:
    """The books balance when received is delivered, buffered, dead-lettered and
    dropped together.
    """
    assert balanced(FULL)


def test_a_missing_event_is_found() -> None:
    """One event unaccounted for puts its lane's books off by one, and no other's."""
    lost = replace(GOOD, delivered=GOOD.delivered - 1)
    snapshot = replace(FULL, lanes=(lost, HALTED))
    assert not balanced(snapshot)
    assert unbalanced(snapshot) == [lost]
    assert lost.difference == 1


def test_an_event_counted_twice_is_found() -> None:
    """The buffer's own count is what is compared: one too many shows as a negative difference."""
    assert replace(GOOD, buffered=GOOD.buffered + 1).difference == -1


@given(st.lists(lanes, max_size=12))
def test_lanes_of_one_label_are_put_together(several: list[LaneSnapshot]) -> None:
    """Putting together lanes of one label loses no event, gives each label once, and keeps the
    oldest age.
    """
    merged = by_label(several)
    assert len({lane.label for lane in merged}) == len(merged)
    assert [lane.label for lane in merged] == list(dict.fromkeys(lane.label for lane in several))
    for figure in (
        "total_received",
        "delivered",
        "buffered",
        "total_dead",
        "total_dropped",
        "difference",
    ):
        assert sum(getattr(lane, figure) for lane in merged) == sum(
            getattr(lane, figure) for lane in several
        )
    assert max((lane.oldest_age or 0 for lane in merged), default=0) == max(
        (lane.oldest_age or 0 for lane in several), default=0
    )


def test_a_halt_is_kept_when_lanes_are_put_together() -> None:
    """Of lanes that share a label the first halted one tells why."""
    first = replace(GOOD, label="other")
    second = replace(HALTED, label="other")
    (merged,) = by_label([first, second])
    assert (merged.halted, merged.why, merged.hint) == (HALTED.halted, HALTED.why, HALTED.hint)


def test_histogram_accumulates() -> None:
    """Prometheus' buckets hold everything up to their bound; the last holds all."""
    histogram = Histogram((0.5, 1.0), (3, 0, 2), 4.0)
    assert histogram.cumulative() == [("0.5", 3.0), ("1.0", 3.0), ("+Inf", 5.0)]
    assert histogram.count == 5


def test_credentials_are_cut_off() -> None:
    """An upstream's address is shown without user, password and query."""
    assert (
        without_credentials("https://user:secret@example.com:8443/x?key=secret#y")
        == "https://example.com:8443/x"
    )
