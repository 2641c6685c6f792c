"""How much work is done in one go."""

from __future__ import annotations

import pytest

from forwarder.wire.effort import TooMuchWork, check_effort

LIMIT = 1200


def test_an_array_is_read_no_further_than_its_first_event_too_many() -> None:
    """Six requests of 200,000 events each, read to their ends, kept everyone waiting for 90 ms."""
    unread = b"this isn't JSON"
    with pytest.raises(TooMuchWork):
        check_effort(b"[%b%b" % (b"{}," * (LIMIT + 1), unread), LIMIT)


def test_commas_inside_events_are_no_events() -> None:
    """Where there are many commas, they are looked at."""
    check_effort(b'[{"a":"%b"}]' % (b"," * 2 * LIMIT), LIMIT)
    check_effort(b"[%b]" % b",".join([b"{}"] * LIMIT), LIMIT)


def test_a_long_array_of_other_things_is_too_much() -> None:
    """Another process says what is wrong with it."""
    with pytest.raises(TooMuchWork):
        check_effort(b"[%b]" % b",".join([b"0"] * (LIMIT + 1)), LIMIT)
