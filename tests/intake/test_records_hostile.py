"""Whatever records hold: a batch is accepted, each event continues or is a dead letter, and how
fast its way is makes no difference.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forwarder.core.ack import AckLevel
from forwarder.core.errors import Backpressure
from forwarder.core.event import Lane
from forwarder.core.ports import Fate, Ordering, Reason
from forwarder.intake import record_reader
from tests.support.cases import cases
from tests.support.intakes import KEY, UUID, stamped_event
from tests.support.records import AT, RecordList, RecordsRig
from tests.support.waiters import IntakeCallback

TEXTS = st.sampled_from(["ann", "", " ", "b\u00e9a", "x" * 300, "nul\0"])
TIMES = st.sampled_from(
    [
        "2026-01-01T00:00:00Z",
        "2026-01-01",
        "Thu, 01 Jan 2026 00:00:00 GMT",
        "no time",
        "2026-01-01T00:00:00.5",
    ]
)
UUIDS = st.sampled_from([UUID, UUID.upper(), UUID.replace("-", ""), f"{{{UUID}}}", "no uuid", ""])
KEYS = st.sampled_from([KEY, "phc_other", "phx_personal", "", "\u2603", "x" * 70])
OTHERS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.lists(st.integers(), max_size=2)
    | st.just({})
)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "token": KEYS | OTHERS,
        "distinct_id": TEXTS | OTHERS,
        "alias": TEXTS | OTHERS,
        "$anon_distinct_id": TEXTS,
        "$ip": TEXTS,
    },
)
EVENTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "event": TEXTS | OTHERS,
        "distinct_id": TEXTS | OTHERS,
        "$distinct_id": TEXTS | OTHERS,
        "uuid": UUIDS | OTHERS,
        "timestamp": TIMES | OTHERS,
        "api_key": KEYS | OTHERS,
        "token": KEYS | OTHERS,
        "$token": KEYS | OTHERS,
        "sent_at": TIMES | OTHERS,
        "offset": OTHERS,
        "historical_migration": OTHERS,
        "properties": PROPERTIES | OTHERS,
    },
)
STAMPED = st.fixed_dictionaries(
    {"api_key": st.sampled_from([KEY, KEY, None, "phc_other"])},
    optional={
        "distinct_id": TEXTS,
        "uuid": UUIDS,
        "properties": PROPERTIES,
        "$distinct_id": TEXTS,
        "token": st.none(),
        "p": OTHERS,
    },
).map(lambda changes: stamped_event(**changes))
"""Events that are complete, most of them."""
ALMOST_GOOD = st.builds(lambda changes: stamped_event(**changes), EVENTS)


def encoded(value: Any) -> bytes:
    """As JSON, with every character as it is."""
    return json.dumps(value, ensure_ascii=False).encode()


DAMAGES = st.sampled_from([b"}", b'"', b"\\ud800", b"NaN", b"{},", b"\xff"])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A record of which some bytes were changed, taken out or doubled."""
    data = bytearray(draw(RECORDS_OF_EVENTS))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=3) | DAMAGES)
    return bytes(data)


RECORDS_OF_EVENTS = st.one_of(
    (EVENTS | ALMOST_GOOD).map(encoded),
    (EVENTS | ALMOST_GOOD).map(lambda event: encoded(event).replace(b"}", b"} ")),
    st.lists(ALMOST_GOOD | OTHERS, max_size=3).map(encoded),
    st.lists(ALMOST_GOOD, max_size=3).map(
        lambda events: encoded({"api_key": KEY, "batch": events})
    ),
    ALMOST_GOOD.map(lambda event: gzip.compress(encoded(event), mtime=0)),
)
RECORDS = RECORDS_OF_EVENTS | damaged() | st.binary(max_size=40)
UNITS = st.builds(
    RecordList,
    st.lists(RECORDS, max_size=6) | st.lists(STAMPED.map(encoded), min_size=1, max_size=4),
    api_key=st.sampled_from([KEY, None, "phx_personal"]),
    at=st.sampled_from([AT, None, float("nan"), 1e15, 0.0]),
    distinct_id=st.sampled_from([None, "key", " ", "\ud800"]),
    header_key=st.sampled_from([None, "phc_header", ""]),
)


def outcome(records: RecordList, ordering: Ordering) -> list[Any]:
    """Everything that comes of a batch, in order. Taking it raises nothing, and the
    books balance.
    """
    rig = RecordsRig(ordering=ordering, max_event=2_000)
    callback = IntakeCallback()
    unit = rig.records.accept(records, callback, AckLevel.DELIVERED)
    callback.reached = unit is None
    assert rig.balanced()
    letters = [
        (letter.reason, letter.lane, letter.data, letter.coordinates, letter.why)
        for letter in rig.dead_letters.dead_letters
    ]
    assert not [why for *_, why in letters if why.startswith("unforeseen")]
    chunks = [
        (chunk.lane, [event.strip() for event in chunk.events()], chunk.ids, chunk.count)
        for chunk in rig.chunks()
    ]
    assert all(len(events) == count for _, events, _, count in chunks)
    for lane in list(rig.buffer.waiting_lanes()):
        queue = rig.buffer.queue(lane)
        while queue:
            chunk = queue.popleft()
            rig.books.deliver(lane, chunk.count)
            rig.buffer.settle([chunk], Fate.DELIVERED)
    assert callback.code == "accepted"
    assert rig.buffer.used == 0
    return [chunks, letters]


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(records=UNITS, ordering=st.sampled_from([Ordering.NONE, Ordering.PER_DISTINCT_ID]))
def test_any_record_is_accepted(records: RecordList, ordering: Ordering) -> None:
    """Nothing is raised; a second reading yields the same bytes."""
    assert outcome(records, ordering) == outcome(records, ordering)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(records=UNITS, ordering=st.sampled_from([Ordering.NONE, Ordering.PER_DISTINCT_ID]))
@example(
    records=RecordList([encoded(stamped_event(api_key="", uuid=None))]), ordering=Ordering.NONE
)
def test_fast_and_slow_parsers_of_records_agree(records: RecordList, ordering: Ordering) -> None:
    """Records are as they would be if each were read by itself through the wire, byte for byte."""
    fast = outcome(records, ordering)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_reader, "all_plain", lambda *_, **__: None)
        patch.setattr(record_reader, "plain_or_none", lambda values, _: [None] * len(values))
        slow = outcome(records, ordering)
    assert fast[1] == slow[1]
    assert sorted(fast[0], key=repr) == sorted(slow[0], key=repr)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(records=UNITS)
def test_only_backpressure_is_ever_raised(records: RecordList) -> None:
    """In a buffer that has hardly any room, with hardly any for dead letters:
    and then nothing was taken.
    """
    rig = RecordsRig(max_bytes=6_000, dead_letter_bytes=2_000, max_lanes=2)
    try:
        rig.records.accept(records, IntakeCallback(), AckLevel.DELIVERED)
    except Backpressure:
        assert rig.untouched()
        assert rig.dead_letters.statistics().bytes == 0
    assert rig.balanced()


def test_each_record_is_decoded_by_itself() -> None:
    """Two broken ones that together would be good, and one that is two, are dead letters."""
    good = encoded(stamped_event())
    rig = RecordsRig()
    rig.records.accept(
        RecordList([good[:30], good[30:], b"%b,%b" % (good, good), good]),
        IntakeCallback(),
        AckLevel.DELIVERED,
    )
    assert [letter.reason for letter in rig.dead_letters.dead_letters] == [Reason.UNDECODABLE] * 3
    assert rig.buffer.count(Lane(KEY)) == 1


@cases("depth", [100, 400, 499, 600, 3_000])
def test_nesting_makes_no_difference(depth: int) -> None:
    """What is nested too deep for a later decoder is a dead letter; all else can be cut between
    its events and settled.
    """
    deep = (
        b'{"event":"a","distinct_id":"x","uuid":"%b","timestamp":"2026-01-01T00:00:00Z","p":%b1%b}'
    )
    records = RecordList(
        [deep % (UUID.encode(), b"[" * depth, b"]" * depth), encoded(stamped_event())]
    )
    chunks, letters = outcome(records, Ordering.PER_DISTINCT_ID)
    assert sum(count for *_, count in chunks) + len(letters) == 2
