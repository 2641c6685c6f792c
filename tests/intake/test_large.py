"""Large bodies: which they are, that they take turns and are bounded, and that they end as they
would have ended at once.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote

import brotli  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.core.ack import AckLevel
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    ForwarderError,
    InvalidRequest,
    InvalidToken,
    RequestTooLarge,
)
from forwarder.core.event import Lane
from forwarder.core.ports import DropReason, Incoming, Ordering, Reason, V1Head
from forwarder.core.shares import LEAST
from forwarder.intake.decoder_jobs import MAX_REJECTED, PIECE_BYTES, PIECE_EVENTS
from forwarder.intake.large import MAX_OF_SENDER, MAX_WAITING, WAIT_SECONDS
from forwarder.wire.effort import INLINE
from tests.support.cases import cases
from tests.support.clock import FakeClock
from tests.support.decoders import NO_EFFORT, InProcessDecoder, Patient
from tests.support.intakes import KEY, IntakeRig, batch, stamped_event
from tests.support.waiting import tick

LANE = Lane(KEY)
EVENT = {"event": "e", "distinct_id": "d"}


def large_body(events: int = 12_000) -> bytes:
    """A body that is large by its size alone."""
    return json.dumps(batch(*[stamped_event()] * events)).encode()


class DecoderRig(IntakeRig):
    """An intake with a decoder that a test opens."""

    def __init__(self, **settings: Any) -> None:
        self.here = InProcessDecoder(closed=settings.pop("closed", False))
        super().__init__(decoder=self.here, **settings)

    async def answer(self, body: bytes, waiter: Patient | None = None, **hints: Any) -> Patient:
        """Offer a body and wait for its answer."""
        waiter = waiter or Patient()
        waiter.reached = self.offer(body, waiter, **hints)
        if not waiter.reached:
            await waiter.called.wait()
        await self.conditions.drain(10.0)
        assert self.balanced()
        return waiter


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[DecoderRig]:
    """An intake with a decoder that works at once."""
    rig = DecoderRig()
    yield rig
    await rig.conditions.close()


@pytest_asyncio.fixture
async def shut() -> AsyncIterator[DecoderRig]:
    """An intake with a decoder that works when it is opened."""
    rig = DecoderRig(closed=True)
    yield rig
    await rig.conditions.close()


async def test_a_small_body_is_read_without_the_decoder_process(rig: DecoderRig) -> None:
    """A thousand events that need stamps are worked on at once."""
    body = json.dumps(batch(*[EVENT] * 1000)).encode()
    assert (await rig.answer(body)).code == "accepted"
    assert (await rig.answer(gzip.compress(body), content_encoding=b"gzip")).code == "accepted"
    assert rig.here.bodies == []


@pytest.mark.parametrize(
    ("body", "hints"),
    [
        (large_body(), {}),
        (gzip.compress(large_body()), {"content_encoding": b"gzip"}),
        (zstandard.compress(large_body()), {"content_encoding": b"zstd"}),
        (brotli.compress(large_body(), quality=1), {"content_encoding": b"br"}),
        (zlib.compress(large_body()), {"content_encoding": b"deflate"}),
        (
            b"data=" + quote(large_body()).encode(),
            {"content_type": b"application/x-www-form-urlencoded"},
        ),
        (base64.b64encode(large_body()), {}),
        (gzip.compress(large_body()), {"head": V1Head(b"Bearer " + KEY.encode())}),
    ],
    ids=["plain", "gzip", "zstd", "br", "deflate", "form", "base64", "v1"],
)
async def test_a_large_body_is_read_by_the_decoder_process(
    rig: DecoderRig, body: bytes, hints: dict[str, Any]
) -> None:
    """Whatever it is wrapped in; its events are buffered in pieces that are quick to work with."""
    waiter = await rig.answer(body, **hints)
    assert waiter.code == "accepted"
    assert waiter.postponed > WAIT_SECONDS
    assert len(rig.here.bodies) == 1
    assert rig.buffer.count(LANE) == 12_000
    assert all(
        len(chunk.data) <= PIECE_BYTES and chunk.count <= PIECE_EVENTS for chunk in rig.chunks()
    )


async def test_the_pieces_of_a_large_body_count_as_one_lane() -> None:
    """Where there is room for one lane only, and for the shares that they count
    against together.
    """
    rig = DecoderRig(max_lanes=1, max_bytes=8_000_000)
    assert (await rig.answer(large_body(20_000))).code == "accepted"
    (failure,) = (await rig.answer(large_body(20_000))).failures
    assert isinstance(failure, Backpressure)
    assert rig.buffer.count(LANE) == 20_000


@pytest.mark.parametrize(
    "body",
    [
        batch(*[{**EVENT, "uuid": None}] * (INLINE.events + 1)),
        batch(*[EVENT] * (5 * INLINE.events + 1)),
        [{**EVENT, "api_key": KEY}] * (INLINE.events + 1),
        batch(*[{}] * (INLINE.events + 1)),
    ],
    ids=["replaced", "stamps", "keys", "invalid"],
)
async def test_many_events_that_need_work_are_a_large_body(rig: DecoderRig, body: Any) -> None:
    """Few bytes can take long too."""
    assert (await rig.answer(json.dumps(body).encode())).code == "accepted"
    assert len(rig.here.bodies) == 1


async def test_a_long_text_is_repaired_by_the_decoder_process(rig: DecoderRig) -> None:
    """NaN in a body over the bound is found by the decoder; in a small one at once."""
    text = json.dumps(
        batch({**EVENT, "properties": {"a": ["x" * 100] * 3000, "b": float("nan")}})
    ).encode()
    assert (await rig.answer(text)).code == "accepted"
    assert len(rig.here.bodies) == 1
    assert rig.intake.statistics().nulled_numbers == 1
    assert (
        await rig.answer(json.dumps(batch({**EVENT, "properties": {"b": float("nan")}})).encode())
    ).code == "accepted"
    assert len(rig.here.bodies) == 1


async def test_a_compression_bomb_is_rejected_by_the_decoder_process(rig: DecoderRig) -> None:
    """A few bytes of brotli stand for more than a body may have."""
    bomb = brotli.compress(b"[" + b" " * 21_000_000, quality=1)
    (failure,) = (await rig.answer(bomb, content_encoding=b"br")).failures
    assert isinstance(failure, RequestTooLarge)
    assert rig.untouched()


@cases(
    ("body", "hints"),
    [
        (b'{"api_key":"phc_other","batch":[' + b" " * 2_000_000, {}),
        (
            b'{"historical_migration":false , "token" : "phc_other", "batch":[' + b" " * 2_000_000,
            {},
        ),
        (
            gzip.compress(b'{"api_key":"phc_other","batch":[' + b" " * 2_000_000),
            {"content_encoding": b"gzip"},
        ),
        (
            brotli.compress(b'{"api_key":"phc_other","batch":[' + b" " * 2_000_000, quality=1),
            {"content_encoding": b"br"},
        ),
        (
            b"data=%7B%22api_key%22%3A%22phc_other%22%2C" + b"%" * 300_000,
            {"content_type": b"application/x-www-form-urlencoded"},
        ),
        (base64.b64encode(b'{"api_key":"phc_other","batch":[' + b" " * 2_000_000), {}),
        (zstandard.compress(b'{"api_key":"phc_other","batch":[' + b" " * 2_000_000), {}),
    ],
    ids=["plain", "spaced", "gzip", "br", "form", "base64", "zstd"],
)
async def test_a_key_that_is_not_allowed_costs_nothing(body: bytes, hints: dict[str, Any]) -> None:
    """Where the first bytes show the project key, it is checked before anything else."""
    rig = DecoderRig(api_keys=[KEY])
    with pytest.raises(InvalidToken):
        rig.offer(body, Patient(), **hints)
    assert rig.here.bodies == []


async def test_senders_take_turns(shut: DecoderRig) -> None:
    """One that has brought many large bodies doesn't keep another waiting for all of them."""
    first = [Patient("greedy") for _ in range(3)]
    for number, waiter in enumerate(first):
        shut.offer(large_body(12_000 + number), waiter)
    other = Patient("modest")
    shut.offer(large_body(11_000), other)
    shut.here.open()
    await shut.conditions.drain(10.0)
    sizes = [len(body) for body in shut.here.bodies]
    assert sizes.index(len(large_body(11_000))) == 1
    assert [waiter.code for waiter in [*first, other]] == ["accepted"] * 4


async def test_what_waits_is_bounded_in_number_by_sender_and_in_all(shut: DecoderRig) -> None:
    """No place: come again later."""
    body = gzip.compress(large_body())
    for _ in range(MAX_OF_SENDER):
        shut.offer(body, Patient("greedy"))
    with pytest.raises(BufferFull, match="too many large requests"):
        shut.offer(body, Patient("greedy"))
    for number in range(MAX_WAITING - MAX_OF_SENDER):
        shut.offer(body, Patient(number))
    with pytest.raises(BufferFull, match="too many large requests"):
        shut.offer(body, Patient("late"))


@pytest.mark.slow
async def test_what_waits_is_bounded_in_bytes() -> None:
    """Bytes that wait for the decoder count with those that are received, and leave room for
    others again when it is done.
    """
    rig = DecoderRig(closed=True, max_bytes=4_000_000, max_body=4_000_000)
    body = large_body(15_000)
    rig.offer(body, Patient("a"))
    assert rig.headroom.decoding == len(body)
    room = 2 * (4_000_000 + LEAST) + LEAST
    for number in range((room - 2 * len(body)) // len(body)):
        rig.offer(body, Patient(number))
    with pytest.raises(BufferFull, match="too much is buffered"):
        rig.offer(body, Patient("late"))
    rig.here.open()
    await rig.conditions.drain(10.0)
    assert rig.headroom.decoding == 0
    await rig.conditions.close()


async def test_waiting_for_a_turn_ends(shut: DecoderRig) -> None:
    """Who has waited for too long is asked to come back; the one that is worked on continues."""
    first = Patient("a")
    second = Patient("b")
    shut.offer(large_body(), first)
    shut.offer(large_body(), second)
    await tick()
    await shut.clock.advance(WAIT_SECONDS)
    assert isinstance(second.failures[0], BufferFull)
    shut.here.open()
    await shut.conditions.drain(10.0)
    assert first.code == "accepted"
    assert shut.buffer.count(LANE) == 12_000


async def test_small_requests_of_others_do_not_wait(shut: DecoderRig) -> None:
    """While a large body is decoded, everyone else is answered at once."""
    shut.offer(large_body(), Patient())
    assert shut.offer(batch(EVENT), Patient()) is True


async def test_requests_of_one_connection_keep_their_order(shut: DecoderRig) -> None:
    """What comes behind a large body on the same connection is accepted behind it."""
    connection = object()
    first = Patient(origin=connection)
    second = Patient(origin=connection)
    shut.offer(large_body(), first)
    assert shut.offer(batch({**EVENT, "event": "last"}), second) is False
    shut.here.open()
    await shut.conditions.drain(10.0)
    assert (first.code, second.code) == ("accepted", "accepted")
    assert json.loads(shut.events()[-1])["event"] == "last"
    assert shut.offer(batch(EVENT), Patient(origin=connection)) is True


async def test_a_body_whose_client_disconnected_is_not_decoded(shut: DecoderRig) -> None:
    """A body whose connection is gone before its turn isn't decoded; one that is being decoded
    isn't accepted.
    """
    first = Patient("a")
    second = Patient("b")
    shut.offer(large_body(), first)
    shut.offer(large_body(), second)
    await tick()
    first.origin = second.origin = None
    shut.here.open()
    await shut.conditions.drain(10.0)
    assert len(shut.here.bodies) == 1
    assert shut.untouched()


async def test_closing_asks_all_senders_to_come_back(shut: DecoderRig) -> None:
    """Those that wait, and the one whose body is being decoded."""
    waiters = [Patient("a"), Patient("b")]
    for waiter in waiters:
        shut.offer(large_body(), waiter)
    await tick()
    await shut.conditions.close()
    assert [[type(failure).__name__ for failure in waiter.failures] for waiter in waiters] == [
        ["Draining"]
    ] * 2
    assert shut.untouched()


async def test_draining_waits_for_large_bodies(shut: DecoderRig) -> None:
    """New requests are rejected; those that were complete before are accepted still."""
    waiter = Patient()
    shut.offer(large_body(), waiter)
    shut.conditions.draining = True
    drained = asyncio.ensure_future(shut.conditions.drain(10.0))
    await tick()
    assert not drained.done()
    shut.here.open()
    assert await drained
    assert waiter.code == "accepted"


async def test_an_unexpected_decoder_error_is_answered_500(rig: DecoderRig) -> None:
    """What no one foresaw comes to the listener as it is, which says 500."""
    rig.here.failure = RuntimeError("a mistake")
    (failure,) = (await rig.answer(large_body())).failures
    assert isinstance(failure, RuntimeError)
    assert rig.untouched()


async def test_of_very_many_rejected_events_some_are_kept_and_all_are_counted(
    rig: DecoderRig,
) -> None:
    """50,000 events without anything: dead letters as far as they may be kept, the others dropped,
    with 200.
    """
    rig = DecoderRig(dead_letter_bytes=1 << 30)
    assert (await rig.answer(json.dumps(batch(*[{}] * 50_000)).encode())).code == "accepted"
    received, buffered, letters, dropped = rig.figures(LANE)
    assert (received, buffered) == (50_000, 0)
    assert letters == {Reason.MISSING_EVENT: MAX_REJECTED}
    assert dropped == {DropReason.INVALID_OVERFLOW: 50_000 - MAX_REJECTED}


async def test_good_events_with_too_many_poisoned_ones_are_not_accepted(rig: DecoderRig) -> None:
    """What the service would ingest may not be dropped, so the request is rejected as a whole."""
    poisoned = b'{"event":"\\ud800","distinct_id":"d"}'
    body = b'{"api_key":"%b","batch":[%b]}' % (
        KEY.encode(),
        b",".join([poisoned] * (MAX_REJECTED + 1)),
    )
    (failure,) = (await rig.answer(body)).failures
    assert isinstance(failure, RequestTooLarge)
    assert rig.untouched()


# The same as at once

_names = st.sampled_from(["click", "", "ü", "\ud800", "$identify", "x" * 300])
_events = st.fixed_dictionaries(
    {"event": _names},
    optional={
        "distinct_id": st.sampled_from(["ann", "", " ", 7, None, "\0", "y" * 250]),
        "uuid": st.sampled_from(["0190a0a0-1111-7222-8333-444455556666", "no", None]),
        "timestamp": st.sampled_from(["2025-12-31T12:00:00Z", "soon", None]),
        "offset": st.sampled_from([10, -1.5]),
        "api_key": st.sampled_from([KEY, "phc_two"]),
        "properties": st.dictionaries(
            st.sampled_from(["$ip", "$anon_distinct_id", "alias", "n"]),
            st.sampled_from(["bob", 1, float("nan"), "\ud800", None]),
        ),
    },
)
_bodies = st.builds(
    lambda envelope, events, shape: {"array": events, "one": (events or [{}])[0]}.get(
        shape, {**envelope, "batch": events}
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "api_key": st.sampled_from([KEY, "phc_two", "", 5]),
            "sent_at": st.just("2026-01-01T02:00:00Z"),
            "historical_migration": st.booleans(),
        },
    ),
    st.lists(_events | st.sampled_from([5, "text", None]), max_size=6),
    st.sampled_from(["batch", "batch", "array", "one"]),
)
_wraps = st.sampled_from(["plain", "gzip", "base64", "form", "zstd", "br"])


def _wrapped(body: Any, how: str) -> tuple[bytes, dict[str, Any]]:
    data = json.dumps(body).encode()
    if how == "gzip":
        return gzip.compress(data), {}
    if how == "base64":
        return base64.b64encode(data), {}
    if how == "form":
        return b"data=" + quote(data).encode(), {
            "content_type": b"application/x-www-form-urlencoded"
        }
    if how == "zstd":
        return zstandard.compress(data), {}
    if how == "br":
        return brotli.compress(data), {"content_encoding": b"br"}
    return data, {}


async def _outcome(rig: IntakeRig, body: bytes, hints: dict[str, Any]) -> tuple[Any, ...]:
    """Everything that can be seen of an intake after a body, but for new uuids."""
    waiter = Patient()
    head = hints.get("v1")
    answer = ""
    try:
        if not rig.intake.accept(Incoming(body, **hints), waiter):
            await waiter.called.wait()
            answer = (
                ""
                if not waiter.failures
                else f"{type(waiter.failures[0]).__name__}: {waiter.failures[0]}"
            )
    except ForwarderError as error:
        answer = f"{type(error).__name__}: {error}"
    await rig.conditions.drain(10.0)
    if isinstance(rig.decoder, InProcessDecoder) and not answer:
        assert rig.decoder.bodies
    lanes = {
        lane: (
            [
                _seen(event)
                for chunk in rig.chunks()
                if chunk.lane == lane
                for event in chunk.events()
            ],
            _ids(rig, lane),
        )
        for lane in rig.buffer.waiting_lanes()
    }
    letters = sorted(
        (letter.reason, letter.lane, letter.data, letter.why)
        for letter in rig.dead_letters.dead_letters
    )
    results = None if answer or head is None or head.results is None else head.results.body()
    assert rig.balanced()
    return answer, lanes, letters, rig.intake.statistics().nulled_numbers, results


def _ids(rig: IntakeRig, lane: Lane) -> frozenset[str]:
    return frozenset().union(*[chunk.ids for chunk in rig.chunks() if chunk.lane == lane])


def _seen(event: bytes) -> bytes:
    """An event without what is new each time it is stamped."""
    members = json.loads(event)
    uuid = str(members.get("uuid", ""))
    return (
        event.strip()
        if uuid.startswith("0190a0a0-1111")
        else event.strip().replace(uuid.encode(), b"?")
    )


@given(
    body=_bodies, how=_wraps, ordered=st.booleans(), client=st.sampled_from([None, "203.0.113.7"])
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
async def test_the_decoder_process_reads_bodies_as_the_daemon_does(
    body: Any, how: str, ordered: bool, client: str | None
) -> None:
    """Byte for byte, letters, ids and errors too."""
    data, hints = _wrapped(body, how)
    ordering = Ordering.PER_DISTINCT_ID if ordered else Ordering.NONE
    here = IntakeRig(ordering=ordering)
    there = IntakeRig(ordering=ordering, decoder=InProcessDecoder(), effort=NO_EFFORT)
    assert await _outcome(here, data, {**hints, "client": client}) == await _outcome(
        there, data, {**hints, "client": client}
    )


@given(events=st.lists(_events, max_size=5), level=st.sampled_from([None, AckLevel.MEMORY]))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
async def test_the_decoder_process_reads_v1_bodies_as_the_daemon_does(
    events: list[Any], level: AckLevel | None
) -> None:
    """With a result for each event."""
    data = json.dumps({"batch": events}).encode()
    rigs = IntakeRig(), IntakeRig(decoder=InProcessDecoder(), effort=NO_EFFORT)
    here, there = [
        await _outcome(
            rig, data, {"head": V1Head(b"Bearer " + KEY.encode(), b"lib/1.0"), "ack": level}
        )
        for rig in rigs
    ]
    assert here == there


async def test_the_decoder_process_raises_the_same_errors(rig: DecoderRig) -> None:
    """Of each kind one."""
    for body, kind in [
        (b"[" * 2_000_000, InvalidRequest),
        (b'{"api_key": 5, "batch": [' + b" " * 2_000_000 + b"{}]}", InvalidToken),
    ]:
        (failure,) = (await rig.answer(body)).failures
        assert type(failure) is kind


class SlowClock(FakeClock):
    """A clock on which 15 ms pass whenever it is asked for the time."""

    asked = 0

    def now(self) -> float:
        """Wall-clock seconds."""
        self.asked += 1
        return super().now() + self.asked * 0.015


ODD: Final = {**EVENT, "timestamp": "soon"}
"""An event that is rewritten by itself."""


async def test_requests_of_one_turn_of_the_loop_have_one_budget() -> None:
    """Once those before have taken long, what would take a quarter as long as a request may is
    decoded elsewhere, whatever it takes its time for; usual ones are accepted at once, and so is
    all in the next turn.
    """
    rig = DecoderRig(clock=SlowClock(), closed=True)
    slow = json.dumps(batch(*[ODD] * 1000)).encode()
    usual = json.dumps(batch(*[stamped_event()] * 1000)).encode()
    reached = [rig.offer(body, Patient()) for body in (slow, slow, slow, usual)]
    assert reached == [True, True, False, True]
    await tick()
    assert rig.offer(slow, Patient())
    rig.here.open()
    await rig.conditions.drain(10.0)
    assert rig.figures(LANE).received == 5000
    assert rig.balanced()
    await rig.conditions.close()
