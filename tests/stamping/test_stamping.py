"""The three ways of stamping: which request takes which, and that a fast one never lets through
what the loose one would have repaired.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.ports import Reason
from forwarder.stamping import stamp as stamping
from forwarder.stamping.stamp import stamp
from forwarder.stamping.stamp_event import StampContext
from forwarder.wire.timestamps import parse_timestamp
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT
from tests.support.intakes import NOW, UUID, stamped_event

IP = b'"8.8.8.8"'


def text_of(*events: Any) -> bytes:
    """An array of events, in Python's spacing."""
    return json.dumps(events).encode()


def read(data: bytes) -> list[dict[str, Any]]:
    """The events of a stamped chunk."""
    events: list[dict[str, Any]] = json.loads(b"[%b]" % data)
    return events


def forbid_loose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make taking the slow way a failure."""
    monkeypatch.setattr(stamping, "_stamp_loose", lambda *_: pytest.fail("the loose way"))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("offset", [{}, {"offset": None}])
def test_complete_events_are_one_piece(
    monkeypatch: pytest.MonkeyPatch, ordered: bool, offset: dict[str, Any]
) -> None:
    """Nothing to stamp: the bytes between the brackets as they are, white space too."""
    forbid_loose(monkeypatch)
    text = (
        b"[ "
        + text_of({**stamped_event(), **offset}, stamped_event(distinct_id="bob"))[1:-1]
        + b" ]"
    )
    result = stamp(text, StampContext(MIDNIGHT, ordered=ordered))
    assert (result.data, result.count) == (text[1:-1], 2)
    assert result.ids == ({"ann", "bob"} if ordered else set())


def test_an_address_is_put_in_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete events gain `$ip` without being taken apart; those that don't
    want it continue beside them.
    """
    forbid_loose(monkeypatch)
    events = [
        stamped_event(),
        stamped_event(properties={"$ip": None}),
        stamped_event(properties={"$geoip_disable": True}),
    ]
    result = stamp(text_of(*events), StampContext(MIDNIGHT, ip=IP))
    assert [event["properties"] for event in read(result.data)] == [
        {"$ip": "8.8.8.8", "a": 1},
        {"$ip": None},
        {"$geoip_disable": True},
    ]
    assert result.data.replace(b'"$ip":"8.8.8.8",', b"") == text_of(*events)[1:-1]


@cases(
    "change",
    [
        {"uuid": ""},
        {"uuid": "x"},
        {"uuid": None},
        {"uuid": 5},
        {"timestamp": ""},
        {"timestamp": None},
        {"timestamp": "x"},
        {"timestamp": 5},
        {"offset": 5},
        {"timestamp": "2025-02-30T00:00:00Z"},
    ],
)
@cases("ip", [None, IP])
@cases("ordered", [True, False])
def test_one_incomplete_event_is_completed_among_complete_ones(
    change: dict[str, Any], ip: bytes | None, ordered: bool
) -> None:
    """Wherever it stands; the others keep their stamps."""
    for place in range(3):
        events = [stamped_event(n=number) for number in range(3)]
        events[place] = stamped_event(n=place, **change)
        completed = read(
            stamp(text_of(*events), StampContext(MIDNIGHT, ip=ip, ordered=ordered)).data
        )
        assert [event["n"] for event in completed] == [0, 1, 2]
        assert all(
            parse_timestamp(event["timestamp"])
            and len(event["uuid"]) == 36
            and "offset" not in event
            for event in completed
        )
        assert [event["uuid"] == UUID for event in completed] == [
            "uuid" not in change or number != place for number in range(3)
        ]


@cases(
    "change",
    [
        {"event": ""},
        {"event": None},
        {"distinct_id": ""},
        {"distinct_id": " "},
        {"distinct_id": None},
        {"event": 5},
    ],
)
@cases("ip", [None, IP])
def test_one_bad_event_is_parted_from_the_others(change: dict[str, Any], ip: bytes | None) -> None:
    """It is handed back as it was received, the others continue."""
    bad = stamped_event(**change)
    result = stamp(text_of(stamped_event(), bad, stamped_event()), StampContext(MIDNIGHT, ip=ip))
    assert (result.count, len(read(result.data))) == (2, 2)
    assert [rejected.data for rejected in result.rejected] == [json.dumps(bad).encode()]


def test_uuids_do_not_make_up_for_each_other() -> None:
    """An empty uuid beside one of double length is repaired, although both together look like two
    good ones.
    """
    events = read(
        stamp(
            text_of(stamped_event(uuid=""), stamped_event(uuid=UUID + UUID)), StampContext(MIDNIGHT)
        ).data
    )
    assert [len(event["uuid"]) for event in events] == [36, 36]


def test_skew_makes_every_event_be_looked_at() -> None:
    """Complete events too are corrected by the sender's clock."""
    events = read(
        stamp(text_of(stamped_event()), StampContext(MIDNIGHT, has_sent_at=True, skew=60.0)).data
    )
    assert events[0]["timestamp"] == "2025-12-31T11:59:00.000Z"


@cases("room", [-1, 0])
@cases("ip", [None, IP])
@cases("alone", [True, False])
def test_the_size_limit_is_the_same_on_every_way(room: int, ip: bytes | None, alone: bool) -> None:
    """An event at the limit with its stamps continues, one byte over it
    doesn't, however it is stamped.
    """
    event = json.dumps(stamped_event()).encode()
    added = len(b'"$ip":,' + ip) if ip else 0
    text = b"[" + (event if alone else event + b"," + event) + b"]"
    result = stamp(text, StampContext(MIDNIGHT, ip=ip, max_event=len(event) + added + room))
    assert result.count == (0 if room else 1 if alone else 2)
    assert {rejected.reason for rejected in result.rejected} == (
        {Reason.TOO_LARGE} if room else set()
    )


def test_an_empty_array() -> None:
    """Has nothing to stamp."""
    for text in (b"[]", b"[ ]"):
        assert stamp(text, StampContext(MIDNIGHT)).count == 0
        assert stamp(text, StampContext(MIDNIGHT, ip=IP, ordered=True)).count == 0


TIMES = st.from_regex(
    r"\A[0-9]{4}-[01][0-9]-[0-3][0-9][Tt "
    r"_][0-2][0-9]:[0-5][0-9]:[0-6][0-9]([.,][0-9]{1,12})?([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)?\Z"
)


@given(TIMES | st.datetimes().map(str))
def test_what_the_fast_ways_take_for_a_time_is_one(text: str) -> None:
    """The typed decoder knows no form of a time that the loose way would replace."""
    try:
        stamping._decode_heads(text_of(stamped_event(timestamp=text)))
    except msgspec.ValidationError:
        return
    assert parse_timestamp(text) is not None


def test_stamps_of_an_event_that_has_none() -> None:
    """Both stamps, in front."""
    data = stamp(b'[ {"event":"e","distinct_id":"d"} ]', StampContext(MIDNIGHT)).data
    assert data.startswith(b' {"uuid":"')
    assert data.endswith(b'","timestamp":"%b","event":"e","distinct_id":"d"} ' % NOW.encode())
