"""Whatever comes in: no 500, no hang, no connection left, nothing in the loop's exception handler;
and cuts change nothing.

`listening` makes sure of all but the hang at the end of each example; `Client.ended` has a limit
for that.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.core.errors import BufferFull, InvalidRequest
from forwarder.core.ports import Incoming
from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.connection import HttpConnection, ListenerState
from tests.support.cases import cases
from tests.support.listening import FakeHttpIntake, listening, post, turns

pytestmark = pytest.mark.slow

POLICY = HttpPolicy(max_body=100, max_headers=12, max_header_bytes=600, max_url=60)
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
KNOWN = {100, 200, 204, 400, 404, 405, 408, 413, 414, 417, 431, 503, 505}
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

PATHS = [
    "/batch/",
    "/e",
    "/e/?beacon=1",
    "/capture?a=b",
    "/nowhere",
    "http://a/e/",
    "*",
    "/e/?" + "x" * 80,
]
HEADERS = [
    "Host: b",
    "Connection: close",
    "Connection: keep-alive",
    "Connection: Upgrade",
    "Upgrade: h2c",
    "Expect: 100-continue",
    "Expect: x",
    "Origin: https://a.example",
    "Content-Type: text/plain",
    "Content-Encoding: gzip",
    "Content-Length: 3",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "X-Forwarded-For: 8.8.8.8, 127.0.0.1",
    "Access-Control-Request-Method: POST",
    "X: " + "y" * 100,
    "X-Empty:",
]


def by_body(incoming: Incoming) -> Exception | None:
    """Refusals for some bodies."""
    return {b"4": InvalidRequest("no"), b"5": BufferFull("full")}.get(incoming.body[:1])


@st.composite
def requests(draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    """A request that is valid or nearly so."""
    method = draw(st.sampled_from(["POST"] * 6 + ["GET", "OPTIONS", "HEAD", "CONNECT", "PUT"]))
    version = draw(st.sampled_from(["1.1"] * 6 + ["1.0"]))
    lines = [
        f"{method} {draw(st.sampled_from(PATHS))} HTTP/{version}",
        "Host: a",
        *draw(st.lists(st.sampled_from(HEADERS), max_size=4)),
    ]
    body: bytes = draw(
        st.one_of(st.binary(max_size=30), st.sampled_from([b"4", b"5", b"x" * 100, b"x" * 101]))
    )
    if draw(st.booleans()):
        lines.append(f"Content-Length: {len(body)}")
    elif draw(st.booleans()):
        lines.append("Transfer-Encoding: chunked")
        size = draw(st.integers(1, 40))
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        trailer = draw(st.sampled_from([b"", b"X: y\r\n", b"Origin: https://b.example\r\n"]))
        body = (
            b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks])
            + b"0\r\n"
            + trailer
            + b"\r\n"
        )
    else:
        body = b""
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@st.composite
def mutated(draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    """Requests in which some bytes are replaced, lost, inserted or repeated."""
    raw = bytearray(b"".join(draw(st.lists(requests(), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        until = at + draw(st.integers(0, 8))
        odd = draw(
            st.sampled_from(
                [
                    b"",
                    b"\r",
                    b"\n",
                    b"\x00",
                    b" ",
                    b":",
                    b"\xff",
                    b"0",
                    b"\r\n\r\n",
                    bytes(raw[at:until]) * 2,
                ]
            )
        )
        raw[at : until if draw(st.booleans()) else at] = odd
    return bytes(raw)


async def _check_survival(raw: bytes, seed: int = 0) -> None:
    async with listening(POLICY) as to:
        to.intake.refuse = by_body
        client = await to.connect()
        client.writer.write(raw[:seed])
        await turns(2)
        client.writer.write(raw[seed:])
        client.writer.write_eof()
        try:
            answers = await client.ended()
        except ConnectionResetError:
            answers = b""
        assert {int(status) for status in STATUS.findall(answers)} <= KNOWN
        await to.until(lambda: to.listener.statistics().connections == 0)
        assert (await to.ask(post())).status == 200


@FUZZ
@given(st.one_of(st.binary(max_size=400), st.text(max_size=200).map(str.encode)))
async def test_random_bytes(raw: bytes) -> None:
    """Random bytes are answered or not, and do no harm."""
    await _check_survival(raw)


@FUZZ
@given(mutated(), st.integers(0, 100))
async def test_mutated_requests(raw: bytes, cut: int) -> None:
    """Requests that are damaged are answered by the rules, and do no harm."""
    await _check_survival(raw, cut)


@FUZZ
@given(st.lists(requests(), min_size=1, max_size=8), st.integers(0, 300))
async def test_pipelines(pipeline: list[bytes], cut: int) -> None:
    """Many requests at once are answered by the rules, and do no harm."""
    await _check_survival(b"".join(pipeline), cut)


class RecordingTransport(asyncio.Transport):
    """A transport that keeps what is written until it is ended."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it. Writing after the end would be a mistake."""
        assert not self.ended
        self.written += data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The peer is a trusted proxy."""
        return ("127.0.0.1", 1)

    def can_write_eof(self) -> bool:
        """As TCP can."""
        return True

    def write_eof(self) -> None:
        """No more answers."""
        self.ended = True

    def close(self) -> None:
        """No more answers."""
        self.ended = True

    abort = close

    def pause_reading(self) -> None:
        """Never asked for: nothing blocks here."""
        raise AssertionError

    def resume_reading(self) -> None:
        """Nothing was paused."""


def _conversation(
    pieces: list[bytes], shared: ListenerState | None = None
) -> tuple[bytes, bool, list[Incoming]]:
    intake = FakeHttpIntake(refuse=by_body)
    shared = shared or ListenerState(POLICY, intake)
    shared.accept = intake.accept
    recorder = RecordingTransport()
    protocol = HttpConnection(shared)
    protocol.connection_made(recorder)
    for piece in pieces:
        protocol.data_received(piece)
    protocol.connection_lost(None)
    assert shared.headroom.receiving == 0
    return bytes(recorder.written), recorder.ended, intake.accepted


def late(incoming: Incoming) -> bool:
    """About half of the bodies that are taken are acknowledged later."""
    return sum(incoming.body) % 2 == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=6), st.data())
def test_late_answers_are_the_same_answers(pipeline: list[bytes], data: st.DataObject) -> None:
    """Whenever and in whatever order requests are acknowledged, what is written is what it would
    be if all were at once.
    """
    expected = _conversation(pipeline)
    intake = FakeHttpIntake(refuse=by_body, later=late)
    shared = ListenerState(POLICY, intake)
    recorder = RecordingTransport()
    protocol = HttpConnection(shared)
    protocol.connection_made(recorder)
    for piece in pipeline:
        protocol.data_received(piece)
        for _ in range(data.draw(st.integers(0, len(intake.waiters)))):
            intake.waiters.pop(data.draw(st.integers(0, len(intake.waiters) - 1)))(None)
    for waiter in data.draw(st.permutations(intake.waiters)):
        waiter(None)
    protocol.connection_lost(None)
    assert shared.headroom.receiving == 0
    assert (bytes(recorder.written), recorder.ended, intake.accepted) == expected


CORS = re.compile(rb"(Access-Control-[\w-]+: [^\r]*|Vary: Origin)\r\n")


def _comparable(
    conversation: tuple[bytes, bool, list[Incoming]],
) -> tuple[bytes, bool, list[Incoming]]:
    """Leaves out what may differ: how much of a head that is no HTTP was
    read when that was noticed.
    """
    written, ended, incoming = conversation
    return CORS.sub(b"", written) if b"This is not HTTP" in written else written, ended, incoming


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(requests(), min_size=1, max_size=6).map(b"".join), mutated()), st.data())
def test_cuts_change_nothing(raw: bytes, data: st.DataObject) -> None:
    """However the bytes are cut into pieces, the answers, the end and what is taken
    are the same.
    """
    whole = _comparable(_conversation([raw]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert _comparable(_conversation([piece for piece in pieces if piece])) == whole
    assert _comparable(_conversation([raw[at : at + 1] for at in range(len(raw))])) == whole


def test_what_came_before_a_head_is_not_its_bodys_delay() -> None:
    """One read with requests of more bytes than a header may have, and the head of another: it is
    waited for, however it is cut.
    """
    usual = b"POST /batch/ HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n" + b"x" * 10
    raw = (
        usual * (POLICY.max_header_bytes // len(usual) + 2)
        + b"POST /batch/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"
    )
    written, ended, _ = _conversation([raw])
    assert (b" 431 " in written, ended) == (False, False)
    assert _conversation([raw[:-10], raw[-10:]])[:2] == (written, ended)


@settings(max_examples=200, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=6), st.integers(1, 400))
def test_memory_of_heads_changes_nothing(pipeline: list[bytes], cut: int) -> None:
    """A listener that has seen all these heads, whole and in pieces, answers exactly like one that
    has seen none.
    """
    shared = ListenerState(POLICY, FakeHttpIntake())
    for request in pipeline * 2:
        _conversation([request], shared)
    for first in pipeline:
        for second in pipeline:
            _conversation([piece for piece in (first[:cut], first[cut:], second) if piece], shared)
    assert _conversation(pipeline, shared) == _conversation([b"".join(pipeline)])


def test_a_lost_connection_leaves_no_cycle() -> None:
    """A connection that is gone is gone at once: nothing waits for the garbage collector."""
    intake = FakeHttpIntake(later=lambda incoming: incoming.body == b"xx")
    shared = ListenerState(POLICY, intake)
    protocol = HttpConnection(shared)
    protocol.connection_made(RecordingTransport())
    protocol.data_received(post() + post(body=b"xx") + b"POST")
    assert len(intake.waiters) == 1
    intake.waiters.clear()
    gc.collect()
    gc.disable()
    try:
        protocol.connection_lost(None)
        del protocol
        assert not [thing for thing in gc.get_objects() if isinstance(thing, HttpConnection)]
    finally:
        gc.enable()


@cases("raw", [b"", b"\r\n" * 1000, b"\n", b"\x00" * 10_000])
async def test_nothing_in_particular(raw: bytes) -> None:
    """Empty lines and zeros."""
    await _check_survival(raw)
