"""Where an import's batches go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forwarder.config.settings import UpstreamSettings
from forwarder.core.clock import SystemClock
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Batch, Chunk
from forwarder.core.outcome import Reply
from forwarder.imports.target import PacedSink, UpstreamRefuses, check_key, open_target
from forwarder.sources.imports.pacing import ImportPace, QuietHours
from forwarder.wire.envelope import envelope_size
from tests.imports.imports import LANE, line
from tests.support.clock import FakeClock, settle
from tests.support.upstream import UNAUTHORIZED, Upstream, plain


def batch() -> Batch:
    """One event."""
    chunk = Chunk(LANE, line(0), 1, frozenset(), 0.0)
    return Batch(LANE, (chunk,), envelope_size(LANE, (chunk,)))


async def send(upstream: Upstream, via: str = "") -> Reply:
    """Send a batch by the target of an import."""
    sink = open_target(UpstreamSettings.parse({"url": upstream.url}), via, SystemClock())
    try:
        return await sink.send(batch())
    finally:
        await sink.close()


async def test_the_service_gets_compressed_batches() -> None:
    """As from the daemon."""
    async with Upstream() as upstream:
        assert (await send(upstream)).status == 200
    assert upstream.requests[0].headers["content-encoding"] == "gzip"
    assert "forwarder-ack" not in upstream.requests[0].headers


async def test_a_daemon_is_asked_to_answer_once_the_service_has_them() -> None:
    """Its own 200 alone would mean less."""
    async with Upstream() as upstream, Upstream() as daemon:
        assert (await send(upstream, via=daemon.url)).status == 200
    assert not upstream.requests
    assert daemon.requests[0].headers["forwarder-ack"] == "delivered"
    assert "content-encoding" not in daemon.requests[0].headers


@pytest.mark.parametrize("via", ["", "http://127.0.0.1:1"])
def test_certificates_that_can_t_be_read_are_told(tmp_path: Path, via: str) -> None:
    """By either way, before anything is sent."""
    settings = UpstreamSettings.parse({"url": "https://eu.example.com", "ca_file": str(tmp_path / "none.pem")})
    with pytest.raises(ConfigurationError, match=r"none\.pem"):
        open_target(settings, via, SystemClock())


@pytest.mark.parametrize(
    ("answer", "told"),
    [(UNAUTHORIZED, "doesn't know the project key phc_…5678"), (plain(404), "answered HTTP 404"), (plain(500), "answered HTTP 500")],
)
async def test_an_import_doesn_t_begin_on_a_key_that_isn_t_known(answer: Any, told: str) -> None:
    """Nor where nobody can say: what is dropped there can't be seen later."""
    async with Upstream(decide=lambda _: answer) as upstream:
        sink = open_target(UpstreamSettings.parse({"url": upstream.url}), "", SystemClock())
        with pytest.raises(UpstreamRefuses, match=told) as refused:
            await check_key(sink, LANE.api_key, upstream.url)
        await sink.close()
    assert LANE.api_key not in str(refused.value)


async def test_an_address_where_nobody_is_is_told() -> None:
    """With what went wrong."""
    sink = open_target(UpstreamSettings.parse({"url": "http://127.0.0.1:1"}), "", SystemClock())
    with pytest.raises(UpstreamRefuses, match=r"http://127\.0\.0\.1:1 can't be reached"):
        await check_key(sink, LANE.api_key, "http://127.0.0.1:1")
    await sink.close()


class Answers:
    """A sink with prepared answers."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.sent = 0

    async def send(self, _: Batch) -> Reply:
        """The next answer."""
        self.sent += 1
        return self.replies.pop(0)


async def test_nothing_is_sent_in_quiet_hours() -> None:
    """Also what delivery wants sent again; cancelling ends the wait."""
    clock, inner = FakeClock(), Answers(Reply(200))
    sink = PacedSink(inner, ImportPace(1.0, quiet=QuietHours.parse("00:00-01:00")), clock)  # type: ignore[arg-type]  # a part of one
    sending = asyncio.create_task(sink.send(batch()))
    given_up = asyncio.create_task(sink.send(batch()))
    await clock.advance(3599.0)
    assert inner.sent == 0
    given_up.cancel()
    await clock.advance(2.0)
    assert (await sending).status == 200
    assert inner.sent == 1
    assert clock.pending == 0


async def test_after_a_429_nothing_is_sent_for_as_long_as_it_asks() -> None:
    """And then slower."""
    clock, inner = FakeClock(), Answers(Reply(429, retry_after=30.0), Reply(200))
    pace = ImportPace(100.0)
    sink = PacedSink(inner, pace, clock)  # type: ignore[arg-type]  # a part of one
    assert (await sink.send(batch())).status == 429
    again = asyncio.create_task(sink.send(batch()))
    await clock.advance(29.0)
    assert inner.sent == 1
    await clock.advance(1.0)
    await settle()
    assert again.done()
    assert pace.slowdown.share(clock.monotonic()) == pytest.approx(0.5)
