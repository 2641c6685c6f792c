"""Apart from the stamps, every byte of every event is kept; the ways of stamping agree with each
other and with ordering.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.ports import Ordering
from forwarder.stamping.stamp import StampedEvents, stamp
from forwarder.stamping.stamp_event import StampContext, StampedEvent, stamp_event
from forwarder.wire.identity import ids_of
from tests.support.clock import MIDNIGHT
from tests.support.intakes import KEY, IntakeRig
from tests.support.spelled import SpelledEvent, spelled_events

pytestmark = pytest.mark.slow

IP = "8.8.8.8"
IPS = st.sampled_from([None, IP])


def receipt(ip: str | None = None, *, ordered: bool = True) -> StampContext:
    """A receipt at the fake clock's beginning."""
    return StampContext(
        MIDNIGHT, ip=None if ip is None else json.dumps(ip).encode(), ordered=ordered
    )


def top(event: bytes) -> dict[str, Any]:
    """The members of an event, read by another decoder."""
    members: dict[str, Any] = json.loads(event)
    return members


def parted(stamped: StampedEvents) -> list[bytes]:
    """The events, one by one."""
    return [
        bytes(raw) for raw in msgspec.json.decode(b"[%b]" % stamped.data, type=list[msgspec.Raw])
    ]


@given(st.lists(spelled_events(), min_size=1, max_size=4), IPS)
def test_every_byte_is_kept(events: list[SpelledEvent], ip: str | None) -> None:
    """Spacing, escapes, key order, duplicate keys, big integers, `1.0`, `-0`: all as they were;
    the reference puts in the stamps alone.
    """
    text = "[" + ",".join(event.text for event in events) + "]"
    stamped = stamp(text.encode(), receipt(ip))
    assert stamped.count == len(events)
    for spelled, event in zip(events, parted(stamped), strict=True):
        members = top(event)
        assert event.decode() == spelled.stamped(members["uuid"], members["timestamp"], ip)


@given(st.lists(spelled_events(), min_size=1, max_size=4), IPS, st.sampled_from(list(Ordering)))
def test_every_byte_is_kept_through_the_whole_intake(
    events: list[SpelledEvent], ip: str | None, ordering: Ordering
) -> None:
    """The same for whole requests: a batch, and each event alone with its key in front."""
    rig = IntakeRig(ordering=ordering)
    rig.take(
        f'{{"api_key":"{KEY}","batch":[{",".join(event.text for event in events)}]}}'.encode(),
        client=ip,
    )
    front = f'"api_key":"{KEY}",'
    for event in events:
        rig.take(b"{" + front.encode() + event.text[1:].encode(), client=ip)
    buffered_events = rig.events()
    assert len(buffered_events) == 2 * len(events)
    for spelled, data in zip(events, buffered_events[: len(events)], strict=True):
        assert data.decode() == spelled.stamped(top(data)["uuid"], top(data)["timestamp"], ip)
    for spelled, data in zip(events, buffered_events[len(events) :], strict=True):
        assert data.decode().replace(front, "", 1) == spelled.stamped(
            top(data)["uuid"], top(data)["timestamp"], ip
        )


@given(
    st.lists(spelled_events(complete=True, with_properties=True), min_size=1, max_size=4),
    IPS,
    st.booleans(),
)
def test_fast_and_slow_parsers_agree(
    events: list[SpelledEvent], ip: str | None, ordered: bool
) -> None:
    """An event that fits several ways leaves each of them with the same bytes, and the request
    with the same ordering keys.
    """
    text = ("[" + ",".join(event.text for event in events) + "]").encode()
    fast = stamp(text, receipt(ip, ordered=ordered))
    loose = [stamp_event(event.text.encode(), receipt(ip, ordered=ordered)) for event in events]
    stamped_events = [result for result in loose if isinstance(result, StampedEvent)]
    assert [stamped.data for stamped in stamped_events] == parted(fast)
    assert fast.ids == (
        frozenset().union(*[stamped.ids for stamped in stamped_events]) if ordered else frozenset()
    )


@given(st.lists(spelled_events() | spelled_events(complete=True), min_size=1, max_size=4), IPS)
def test_ordering_keys_are_those_of_the_stamped_events(
    events: list[SpelledEvent], ip: str | None
) -> None:
    """What is collected at receipt is what a batch that is cut later finds
    in the events themselves.
    """
    stamped = stamp(("[" + ",".join(event.text for event in events) + "]").encode(), receipt(ip))
    assert stamped.ids == frozenset().union(*[ids_of(event) for event in parted(stamped)])


@given(spelled_events() | spelled_events(complete=True))
def test_stamping_twice_changes_nothing(event: SpelledEvent) -> None:
    """A stamped event needs no stamp: another forwarder behind this one leaves it alone."""
    once = stamp(f"[{event.text}]".encode(), receipt(IP))
    again = stamp(
        b"[" + once.data + b"]", StampContext(MIDNIGHT + 5000, ip=b'"9.9.9.9"', ordered=True)
    )
    assert parted(again) == parted(once)
