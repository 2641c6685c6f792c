"""Which signals are requests to stop."""

from __future__ import annotations

from forwarder.core.stop_requests import StopRequests


def test_signals_within_a_second_are_one_request() -> None:
    """The second counts from the signal that made the request, so that one who presses Ctrl-C
    again and again is heard.
    """
    times = [5.0, 5.05, 5.9, 6.0, 6.0, 6.5, 7.5]
    requests = StopRequests(iter(times).__next__)
    assert [requests.count() for _ in times] == [1, 0, 0, 2, 0, 0, 3]
