"""What the query says about its sender's clock: corrected where that is certain, and nowhere else."""

from __future__ import annotations

import pytest

from forwarder.wire.sender_clock import UNKNOWN, SenderClock, read_sender_clock

NOW = 1_767_225_600.0
AHEAD, BEHIND = b"_=1767229200000", b"_=1767222000000"


@pytest.mark.parametrize("query", [b"", b"ip=1&ver=1.57.2", b"_=", b"_=now", b"_=-5", b"_=123456789012345", b"a_=1767229200000"])
def test_nothing_is_known_without_a_time(query: bytes) -> None:
    """No `_`, or one that isn't a number of milliseconds, says nothing."""
    assert read_sender_clock(query, NOW) == UNKNOWN


@pytest.mark.parametrize(("query", "sent_at"), [(AHEAD, NOW + 3600), (BEHIND, NOW - 3600), (b"v=1&retry_count=0&" + BEHIND, NOW - 3600)])
def test_a_first_attempt_tells_the_clock(query: bytes, sent_at: float) -> None:
    """`_` counts as `sent_at`, whichever way the clock is wrong."""
    assert read_sender_clock(query, NOW) == SenderClock(sent_at)


@pytest.mark.parametrize("mark", [b"&retry_count=2", b"&beacon=1"])
def test_what_may_be_late_shows_only_a_clock_that_is_ahead(mark: bytes) -> None:
    """A repeated request and a beacon may carry the time of an earlier attempt, which can't lie in the future."""
    assert read_sender_clock(AHEAD + mark, NOW).sent_at == NOW + 3600
    assert read_sender_clock(BEHIND + mark, NOW).sent_at is None


def test_offsets_of_a_repeated_request_count_from_its_first_attempt() -> None:
    """They were measured then; those of a beacon, which seldom is late, count from its receipt."""
    assert read_sender_clock(BEHIND + b"&retry_count=1", NOW).offset_base == NOW - 3600
    assert read_sender_clock(BEHIND + b"&beacon=1", NOW).offset_base is None
