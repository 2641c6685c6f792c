"""The benchmark's requests are what they claim to be."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from benchmarks.bodies import API_KEY, LIVE, NUMBER, Request, Shape, Variant, ring
from benchmarks.events import MARKER, EventMaker
from tests.support.cases import cases


def decoded(request: Request) -> dict[str, Any]:
    """A request's body as an object."""
    value = json.loads(request.body())
    assert isinstance(value, dict)
    return value


@cases("variant", Variant)
@cases("count", [1, 50])
def test_each_event_is_marked_once(variant: Variant, count: int) -> None:
    """The sink's way of counting gives the number of events."""
    [request] = ring(variant, count, limit=0)[:1]
    assert request.body().count(MARKER) == request.events == count


@cases(("variant", "low", "high"), [("stamped", 540, 640), ("sdk", 540, 640), ("tiny", 55, 65)])
def test_events_have_the_size_that_is_said(variant: str, low: int, high: int) -> None:
    """Events are of about 600 bytes, or 60, whatever brings them."""
    request = ring(Variant(variant), 1000, limit=0)[0]
    assert low < len(request.body()) / request.events < high


def test_the_announced_length_is_the_body() -> None:
    """Content-Length is exact, with text that is not ASCII too."""
    head, _, body = bytes(ring(Variant.STAMPED, 50, limit=0)[0].data).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert not body.isascii()


@cases("variant", Variant)
def test_a_number_has_its_place(variant: Variant) -> None:
    """In the name of the last event, which the sink still counts once."""
    request = ring(variant, 3, limit=0, numbered=True)[0]
    request.data[request.number : request.number + NUMBER] = b"0001234"
    first, _, last = decoded(request)["batch"]
    assert last["event"].endswith("~lv~0001234")
    assert LIVE.decode() not in first["event"]
    assert request.body().count(MARKER) == 3


def test_the_variants_bring_what_they_are_named_for() -> None:
    """Stamped events have uuid and timestamp, bare ones neither; the SDK's body carries `sent_at`
    where the request says.
    """
    stamped, bare, sdk = (
        ring(variant, 2, limit=0)[0] for variant in (Variant.STAMPED, Variant.BARE, Variant.SDK)
    )
    fields = [
        [key in json.dumps(decoded(request)["batch"]) for key in ("uuid", "timestamp")]
        for request in (stamped, bare)
    ]
    assert fields == [[True, True], [False, False]]
    assert decoded(sdk)["sent_at"] == sdk.data[sdk.sent_at : sdk.sent_at + 32].decode()
    assert b"X-Forwarded-For" in sdk.data


def test_single_events_and_arrays() -> None:
    """A single event stands alone, with its key or, as an array's, without; several stand in the
    envelope or in an array.
    """
    single, bare_single = (ring(Variant.STAMPED, 1, shape, limit=0)[0] for shape in Shape)
    assert decoded(single)["api_key"] == API_KEY
    assert "api_key" not in decoded(bare_single)
    assert len(json.loads(ring(Variant.STAMPED, 3, Shape.ARRAY, limit=0)[0].body())) == 3


def test_the_same_seed_makes_the_same_events() -> None:
    """Runs can be compared: the generator depends on its seed alone."""
    beginning = datetime(2026, 1, 1, tzinfo=UTC)
    first, second = (
        [maker.event() for _ in range(20)]
        for maker in (EventMaker(7, beginning), EventMaker(7, beginning))
    )
    assert first == second
    assert len({event["distinct_id"] for event in first}) > 1
