"""What the sender learns of each event."""

from __future__ import annotations

import json
from typing import Any

from forwarder.core.ports import DropReason, Fate
from forwarder.wire.v1_results import Results


def answer_of(results: Results) -> dict[str, Any]:
    """The results as a sender reads them."""
    answer: dict[str, Any] = json.loads(results.body())["results"]
    return answer


def test_all_is_well() -> None:
    """Each key has `ok`, without details, in the order of the events."""
    results = Results([b'"b"', b'"a"'])
    assert results.body() == b'{"results":{"b":{"result":"ok"},"a":{"result":"ok"}}}'
    assert not results.retries
    assert Results([]).body() == b'{"results":{}}'


def test_each_has_its_own() -> None:
    """Warnings add up, a drop stands, and what has no key isn't in the answer."""
    results = Results([b'"a"', b'"b"', b'"c"', b""])
    results.warn(0, "one")
    results.warn(0, "two")
    results.drop(1, "why")
    results.warn(1, "late")
    results.replaced(3, "new")
    assert answer_of(results) == {
        "a": {"result": "warning", "details": "one,two"},
        "b": {"result": "drop", "details": "why"},
        "c": {"result": "ok"},
    }


def test_of_two_with_one_uuid_the_worse_counts() -> None:
    """A key that stands for two events is a warning at least: the service may take them for one."""
    results = Results([b'"a"', b'"a"', b'"b"', b'"b"', b'"b"'])
    results.drop(4, "why")
    assert answer_of(results) == {
        "a": {"result": "warning", "details": "duplicate_uuid"},
        "b": {"result": "drop", "details": "why"},
    }


def test_what_was_delivered_need_not_come_again() -> None:
    """When the time is over: delivered is ok, dead letters are dropped, what wasn't sent or isn't
    confirmed has to come again.
    """
    results = Results([b'"a"', b'" b "', b'"c"', b'"d"', b'"\\ud800"', b'"f"'])
    results.drop(4, "lone_surrogate")
    results.replaced(5, "new")
    results.settled(b'{"uuid":"b"}, {"uuid":"new"}', Fate.DELIVERED)
    results.settled(b'{"uuid":"a"}', Fate.DEAD_LETTERED)
    results.settled(b'{"uuid":"c"}', DropReason.WITHDRAWN)
    assert results.retry_rest([b'{"uuid":"c"}'])
    assert results.retries
    assert answer_of(results) == {
        "a": {"result": "drop", "details": "dead_letter"},
        " b ": {"result": "ok"},
        "c": {"result": "retry", "details": "not_delivered"},
        "d": {"result": "retry", "details": "not_confirmed"},
        "\ud800": {"result": "drop", "details": "lone_surrogate"},
        "f": {"result": "warning", "details": "uuid_replaced"},
    }


def test_nothing_came_to_an_end() -> None:
    """Then there is nothing to tell event by event: the whole request has to come again."""
    results = Results([b'"a"', b'"b"'])
    assert not results.retry_rest([b'{"uuid":"a"}'])
    assert not results.retries


def test_a_full_buffer_drops_what_isn_t_dropped_yet() -> None:
    """Each event keeps the reason that came first."""
    results = Results([b'"a"', b'"b"'])
    results.drop(0, "why")
    results.drop_rest("buffer_full")
    assert answer_of(results) == {
        "a": {"result": "drop", "details": "why"},
        "b": {"result": "drop", "details": "buffer_full"},
    }


def test_two_events_with_one_uuid_come_to_an_end_one_by_one() -> None:
    """When one of them was delivered, the other has to come again: no one has it."""
    results = Results([b'"a"', b'"a"', b'"b"'])
    results.settled(b'{"uuid":"a"}', Fate.DELIVERED)
    assert results.retry_rest([b'{"uuid":"a"},{"uuid":"b"}'])
    assert {key: outcome["result"] for key, outcome in answer_of(results).items()} == {
        "a": "retry",
        "b": "retry",
    }


def test_events_without_a_key_have_no_retry() -> None:
    """Then the request has to come again as a whole; one without a key that came
    to an end is no hindrance.
    """
    for settled, possible in ((b'{"uuid":"a"}', False), (b'{"uuid":"new"}', True)):
        results = Results([b'"a"', b""])
        results.replaced(1, "new")
        results.settled(settled, Fate.DELIVERED)
        assert results.retry_rest([]) is possible
        assert results.retries is possible
