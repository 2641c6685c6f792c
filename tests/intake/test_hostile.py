"""Hostile requests: what costs far more than its size, what only a later decoder would fail at,
and everything else.
"""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.errors import ForwarderError, InvalidRequest, InvalidToken, RequestTooLarge
from forwarder.core.ports import Ordering
from forwarder.wire.identity import ids_of
from tests.support.cases import cases
from tests.support.intakes import UUID, IntakeRig


def deeper(frames: int, data: bytes) -> frozenset[str]:
    """The ids of an event, looked up so many calls further down."""
    return deeper(frames - 1, data) if frames else ids_of(data)


@cases("element", [b"{}", b"0", b'{"token":"k"}', b"[]", b'""', b"null"])
@cases("front", [b"[", b'{"api_key":"k","batch":[', b'{"api_key":"k","x":"\\ud800","batch":['])
def test_millions_of_tiny_events_cost_little(element: bytes, front: bytes) -> None:
    """A request with far more events than could be held is refused before anything is
    made of each.
    """
    rig = IntakeRig(max_bytes=1_000_000)
    body = front + b",".join([element] * 200_000) + (b"]" if front == b"[" else b"]}")
    tracemalloc.start()
    with pytest.raises((RequestTooLarge, InvalidRequest)):
        rig.take(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * len(body) + 500_000
    assert rig.untouched()


NESTED = {
    "property": b'[{"token":"k","event":"e","distinct_id":"d","properties":{"x":%b}}]',
    "offset": b'[{"token":"k","event":"e","distinct_id":"d","offset":%b}]',
    "token": b'[{"token":%b,"event":"e","distinct_id":"d"}]',
    "id": b'{"api_key":"k","batch":[{"event":"e","distinct_id":%b}]}',
    "alias": b'{"api_key":"k","batch":[{"event":"e","distinct_id":"d","properties":{"alias":%b}}]}',
    "properties": b'{"api_key":"k","event":"e","distinct_id":"d","properties":%b}',
    "complete": b'{"api_key":"k","event":"e","distinct_id":"d","uuid":"'
    + UUID.encode()
    + b'","timestamp":"2025-12-31T00:00:00Z","x":%b}',
    "sent_at": b'{"api_key":"k","sent_at":%b,"event":"e","distinct_id":"d"}',
}


@cases("place", NESTED)
@cases("ordering", [Ordering.NONE, Ordering.PER_DISTINCT_ID])
def test_accepted_events_can_be_decoded_again(place: str, ordering: Ordering) -> None:
    """However deep it is nested, an event is refused at receipt, or a delivery with a deeper stack
    can still read it.
    """
    for depth in range(850, 1000):
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            rig = IntakeRig(ordering=ordering)
            try:
                rig.take(NESTED[place] % (opening * depth + b"1" + closing * depth))
            except (InvalidRequest, InvalidToken):
                continue
            assert all(deeper(30, event) for event in rig.events())


SCRAPS = st.sampled_from(
    [
        b"1",
        b"NaN",
        b'"x"',
        b'"\\ud800"',
        b"null",
        b"1e999",
        b"-0",
        b"9" * 400,
        b'"2026-01-01"',
        b'"0001-01-01T00:00:00+14:00"',
        b'""',
        b"{}",
        b"true",
        b"[]",
    ]
)
NAMES = st.sampled_from(
    [
        b"event",
        b"distinct_id",
        b"$distinct_id",
        b"uuid",
        b"timestamp",
        b"offset",
        b"properties",
        b"token",
        b"api_key",
        b"batch",
        b"sent_at",
        b"$ip",
        b"$geoip_disable",
        b"alias",
        b"\\u006fffset",
        b"historical_migration",
    ]
)


def _object(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return b"{" + b",".join([b'"%b":%b' % pair for pair in pairs]) + b"}"


HOSTILE = st.recursive(
    SCRAPS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda values: b"[" + b",".join(values) + b"]")
        | st.lists(st.tuples(NAMES, inner), max_size=6).map(_object)
    ),
    max_leaves=12,
)


@given(
    HOSTILE | st.binary(max_size=60),
    st.sampled_from([None, "8.8.8.8"]),
    st.sampled_from(list(Ordering)),
    st.booleans(),
)
def test_a_hostile_request_is_accepted_or_rejected(
    scrap: bytes, client: str | None, ordering: Ordering, framed: bool
) -> None:
    """Never another error; and whatever was taken is valid JSON upstream, in books that balance."""
    rig = IntakeRig(ordering=ordering)
    body = (
        (
            b'{"api_key":"k","sent_at":"2026-01-02","batch":[{"event":"e","distinct_id":"d","offse'
            b't":1},%b]}'
        )
        % scrap
        if framed
        else scrap
    )
    try:
        rig.take(body, client=client)
    except ForwarderError:
        assert rig.untouched()
        return
    for chunk in rig.chunks():
        events = json.loads(b"[%b]" % chunk.data)
        assert len(events) == chunk.count
        assert all(
            isinstance(event, dict) and event["event"] and event["uuid"] and event["timestamp"]
            for event in events
        )
    assert rig.balanced()
