"""Whatever bytes come in: a request is taken or refused in words, the books balance, and what was
taken is one valid upstream body.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, Final

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ForwarderError
from forwarder.core.ports import Incoming, RequestIntake
from forwarder.daemon.pipeline import Pipeline, build
from forwarder.telemetry.snapshot import balanced
from forwarder.wire.envelope import body_pieces
from tests.support.clock import FakeClock
from tests.support.listening import post
from tests.support.upstream import OK, Answer, Upstream, plain
from tests.support.waiters import IntakeCallback
from tests.support.whole import KEY, Whole, batch, event, gzipped
from tests.support.whole import settings as configured

TIMES: Final = ["2026-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([KEY, "phx_personal", "", " ", "\0", "\ud800", *TIMES])
)
names = st.sampled_from(
    [
        "event",
        "distinct_id",
        "$distinct_id",
        "uuid",
        "timestamp",
        "offset",
        "properties",
        "token",
        "api_key",
        "$token",
        "$ip",
        "alias",
    ]
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=8,
)
an_event = st.dictionaries(names, values, max_size=8)
usual_event = st.builds(lambda extra: {"event": "e", "distinct_id": "d", **extra}, an_event)
some_events = st.lists(an_event | usual_event | values, max_size=5)
envelopes = st.builds(
    lambda events, more: {"api_key": KEY, "batch": events, **more},
    some_events,
    st.dictionaries(
        st.sampled_from(["sent_at", "historical_migration", "api_key", "batch", "token"]),
        values,
        max_size=2,
    ),
)
documents = envelopes | envelopes | some_events | an_event | values
WRAPPINGS: Final = [
    lambda body: body,
    gzipped,
    base64.b64encode,
    lambda body: base64.b64encode(gzipped(body)),
    lambda body: b"data=" + base64.b64encode(body),
]
SPLINTERS: Final = [b'"', b"{", b"]", b",", b"\\ud800", b"NaN", b"1e999"]
NESTED: Final = b'{"api_key":"%b","batch":[{"event":"e","distinct_id":"d","properties":%b%b}]}' % (
    KEY.encode(),
    b"[" * 5000,
    b"]" * 5000,
)


@st.composite
def requests(draw: st.DrawFn) -> Incoming:
    """Something that may once have been a request."""
    document: Any = draw(documents)
    body = json.dumps(document, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body)))
        body = (
            body[:at]
            + draw(st.binary(max_size=3) | st.sampled_from(SPLINTERS))
            + body[at + draw(st.integers(0, 2)) :]
        )
    body = draw(st.sampled_from(WRAPPINGS))(body)
    return Incoming(
        body,
        query=draw(
            st.sampled_from(
                [
                    b"",
                    b"compression=gzip-js",
                    b"compression=lz64",
                    b"compression=base64",
                    b"data=e30",
                    b"%%%&data=",
                ]
            )
        ),
        content_type=draw(
            st.sampled_from([b"", b"application/json", b"application/x-www-form-urlencoded"])
        ),
        content_encoding=draw(st.sampled_from([b"", b"gzip", b"br", b"lz64"])),
        client=draw(st.sampled_from([None, "93.184.216.34", "2001:db8::1"])),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=4), st.sampled_from(["none", "per_distinct_id"]))
@example([Incoming(b"[" * 100_000)], "none")
@example([Incoming(NESTED)], "none")
@example(
    [
        Incoming(
            b'{"api_key":"%b","event":"e","distinct_id":"d","offset":1e308,"timestamp":5}'
            % KEY.encode()
        )
    ],
    "none",
)
def test_any_bytes_are_answered(incoming: list[Incoming], ordering: str) -> None:
    """No input raises anything but the errors that are answered; every event is in the buffer or
    accounted for; each batch is valid.
    """
    pipeline = build(configured("http://127.0.0.1:9", delivery={"ordering": ordering}), FakeClock())
    try:
        feed(pipeline, incoming)
    finally:
        asyncio.run(pipeline._parts.destinations[0].stores.close())


def feed(pipeline: Pipeline, incoming: list[Incoming]) -> None:
    """Give a pipeline that isn't started all of it, and look at what it would send."""
    intake = pipeline._parts.intake
    buffer = pipeline._parts.destinations[0].stores.buffer
    for request in incoming:
        before = pipeline.snapshot().lanes
        error = offered(intake, request)
        if error is not None:
            assert error.message
            assert pipeline.snapshot().lanes == before
        assert balanced(pipeline.snapshot())
    for lane in buffer.waiting_lanes():
        made = pipeline._parts.destinations[0].batcher.next(lane, 0.0, flush=True)
        assert made is not None
        body = b"".join(body_pieces(made))
        assert len(body) == made.size
        sent = msgspec.json.decode(body)
        assert len(sent["batch"]) == made.count
        assert sent["api_key"] == lane.api_key
        for arrived in sent["batch"]:
            assert arrived["event"]
            assert len(arrived["uuid"]) >= 32
            assert isinstance(arrived["timestamp"], str)
            assert "offset" not in arrived or not isinstance(arrived["offset"], int | float)


def offered(intake: RequestIntake, incoming: Incoming) -> ForwarderError | None:
    """What a request is refused with; None if it was taken."""
    try:
        intake.accept(incoming, IntakeCallback())
    except ForwarderError as error:
        return error
    return None


async def test_accepted_nesting_can_be_delivered() -> None:
    """Whatever depth the listener takes, all that is done to the event later (cutting, ordering,
    splitting) copes with it too.
    """
    accepted_events: list[bytes] = []
    too_many: Answer = plain(413)
    upstream = Upstream(
        lambda request: OK if request.body.count(b'"event":"deep') <= 1 else too_many
    )
    async with (
        upstream,
        Whole(
            upstream.url, delivery={"ordering": "per_distinct_id"}, batch={"max_events": 7}
        ) as whole,
    ):
        for depth in range(400, 1000, 4):
            raw = [
                event(
                    f"deep-{depth}-{number}",
                    "ann",
                    properties=b'{"p":%b%b}' % (b"[" * depth, b"]" * depth),
                )
                for number in range(2)
            ]
            reply = await whole.send(post("/batch/", batch(raw)))
            assert reply.status in (200, 400)
            accepted_events += raw if reply.status == 200 else []
        assert len(accepted_events) >= 100
        await whole.until(lambda: whole.total(lambda lane: lane.delivered) == len(accepted_events))
        assert balanced(whole.snapshot)
