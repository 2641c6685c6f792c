"""A search for events that take long: each takes a bounded number of steps, whatever its members
are and wherever it comes from.

Steps are interpreted instructions; requests of very many events are read by the decoder process.
"""

from __future__ import annotations

from typing import Final

from hypothesis import example, given, target
from hypothesis import strategies as st

from forwarder.core.ack import AckLevel
from forwarder.core.errors import ForwarderError
from forwarder.core.ports import Ordering, V1Head
from tests.support.intakes import KEY
from tests.support.records import RecordsRig, record_list
from tests.support.steps import count_steps
from tests.support.waiters import IntakeCallback

FEW = 20
MANY = 60
STEPS_AN_EVENT: Final = 6000
"""Half as much again as the slowest takes: an event of v1 with a mail's date, NaN and Infinity."""

MEMBERS: Final = st.sampled_from(
    [
        *(
            b'"event":"e"',
            b'"event":5',
            b'"event":""',
            b'"distinct_id":"d"',
            b'"distinct_id":NaN',
            b'"distinct_id":{"a":[1]}',
        ),
        *(
            b'"$distinct_id":" "',
            b'"uuid":"x"',
            b'"uuid":"0190a0a0-1111-7222-8333-444455556666"',
            b'"uuid":null',
        ),
        *(
            b'"timestamp":"2026-01-01T00:00:00Z"',
            b'"timestamp":"Thu Nov 22 17:05:02 2026"',
            b'"timestamp":"a b, c d e f"',
        ),
        *(
            b'"timestamp":"Mon, 22 Nov 2026 17:05:02 +0000"',
            b'"timestamp":5',
            b'"offset":5',
            b'"offset":1e308',
            b'"offset":-0.1',
        ),
        *(
            b'"properties":{}',
            b'"properties":{"$ip":1,"alias":"a","$anon_distinct_id":"b"}',
            b'"properties":{"$ignore_sent_at":true}',
        ),
        *(
            b'"properties":{"token":"phc_good","distinct_id":"d"}',
            b'"properties":5',
            b'"$set":{"a":"\\ud800"}',
            b'"a":[NaN,-Infinity]',
        ),
        *(
            b'"token":"phc_good"',
            b'"api_key":"phc_b"',
            b'"session_id":"s"',
            b'"options":{"cookieless_mode":"1"}',
            b'"options":[]',
        ),
    ]
)
EVENTS: Final = st.lists(MEMBERS, max_size=7).map(
    lambda members: b"{%b}" % b",".join(members)
) | st.sampled_from([b"1", b"null", b'""', b"[]", b"NaN", b'"\\ud800"', b"[[]]"])
HEADS: Final = st.sampled_from(
    [b'{"api_key":"phc_good",', b'{"sent_at":"2020-01-01T00:00:00Z","api_key":"phc_good",', b"{"]
)
DATED: Final = (
    b'{"event":"e","distinct_id":"d","uuid":"x","offset":5,"timestamp":"Thu Nov 22 17:05:02 '
    b'2026","properties":{}}'
)

MAILED: Final = (
    b'{"event":"e","distinct_id":"d","timestamp":"Mon, 22 Nov 2026 17:05:02 +0000",'
    b'"properties":{},"a":[NaN,-Infinity]}'
)


def steps(head: bytes, event: bytes, count: int, *, way: str) -> int:
    """The steps that a request of so many events takes."""
    rig = RecordsRig(ordering=Ordering.PER_DISTINCT_ID)
    text = head + b'"batch":[%b]}' % b",".join([event] * count)

    def run() -> None:
        try:
            if way == "records":
                rig.records.accept(record_list(text), IntakeCallback(), AckLevel.MEMORY)
            else:
                rig.take(
                    text,
                    client="8.8.8.8",
                    head=V1Head(b"Bearer " + KEY.encode(), b"lib/1") if way == "v1" else None,
                )
        except ForwarderError:
            return

    return count_steps(run)


@given(HEADS, EVENTS, st.sampled_from(["http", "v1", "records"]))
@example(b'{"api_key":"phc_good",', b"{}", "http")
@example(b'{"api_key":"phc_good",', b"1", "records")
@example(b'{"sent_at":"2020-01-01T00:00:00Z","api_key":"phc_good",', DATED, "http")
@example(b"{", DATED.replace(b"{", b'{"token":"phc_good",', 1), "records")
@example(b'{"api_key":"phc_good",', MAILED, "v1")
def test_each_event_takes_few_steps(head: bytes, event: bytes, way: str) -> None:
    """No event takes more than a few, nor more the more others there are."""
    per_event = (steps(head, event, MANY, way=way) - steps(head, event, FEW, way=way)) / (
        MANY - FEW
    )
    target(per_event, label=way)
    assert per_event < STEPS_AN_EVENT
