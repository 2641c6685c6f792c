"""The wiring: what settings become, how a pipeline starts, reloads and ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.ports import Reason
from forwarder.daemon.pipeline import build
from forwarder.telemetry.snapshot import State
from tests.support.certificates import make_certificate
from tests.support.clock import FakeClock
from tests.support.listening import post
from tests.support.otlp import PROTOBUF, export, record
from tests.support.upstream import Upstream, plain
from tests.support.whole import KEY, Whole, batch, events, settings

NOWHERE = "http://127.0.0.1:9"
LIVE = Lane(KEY)
HISTORICAL = Lane(KEY, historical=True)


@pytest.mark.slow
def test_unconfigured_parts_are_not_imported() -> None:
    """A daemon with a memory buffer loads no Kafka client, no SQLite, no disk buffer and no
    import; nor do the modules of its workers.
    """
    script = "import sys, forwarder.daemon.daemon, forwarder.workers.worker; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = (
        "aiokafka",
        "sqlite3",
        "forwarder.buffer.disk",
        "forwarder.sources.kafka",
        "forwarder.sources.imports",
        "forwarder.sandbox",
    )
    assert [name for name in loaded if name.startswith(heavy)] == []


async def test_an_authority_that_cant_be_read_is_one_clear_error(
    tmp_path: Path, clock: FakeClock
) -> None:
    """It names the setting and says what to give."""
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "absent.pem"):
        with pytest.raises(ConfigurationError, match=r"upstream.ca_file") as caught:
            build(settings(NOWHERE, upstream={"ca_file": str(path)}), clock)
        assert caught.value.hint


async def test_a_port_in_use_leaves_nothing_behind(clock: FakeClock) -> None:
    """A start that fails can be closed, and then nothing runs and nothing is left."""
    with socket.socket() as busy_socket:
        busy_socket.bind(("127.0.0.1", 0))
        busy_socket.listen()
        pipeline = build(
            settings(NOWHERE, http={"listen": f"127.0.0.1:{busy_socket.getsockname()[1]}"}), clock
        )
        with pytest.raises(ConfigurationError):
            await pipeline.start()
        assert pipeline.snapshot().state is State.STARTING
        assert await pipeline.close() == []
    assert clock.pending == 0


async def test_a_pipeline_that_was_never_started_can_be_closed(clock: FakeClock) -> None:
    """Nothing was taken, so nothing is left."""
    assert await build(settings(NOWHERE), clock).close() == []


async def test_states_follow_each_other(clock: FakeClock) -> None:
    """Starting, running, draining; ready only while it runs."""
    async with Upstream() as upstream:
        pipeline = build(settings(upstream.url), clock)
        seen = [(pipeline.snapshot().state, pipeline.snapshot().ready)]
        await pipeline.start()
        seen.append((pipeline.snapshot().state, pipeline.snapshot().ready))
        pipeline.stop_accepting()
        seen.append((pipeline.snapshot().state, pipeline.snapshot().ready))
        assert await pipeline.drain(1.0)
        assert await pipeline.close() == []
    assert seen == [(State.STARTING, False), (State.RUNNING, True), (State.DRAINING, False)]
    assert clock.pending == 0


async def test_undelivered_events_of_a_drain_become_dead_letters(clock: FakeClock) -> None:
    """Waiting and between attempts alike, each event once, with when it was received; the buffer
    is empty and the books balance.
    """
    sent = events(7)
    async with (
        Upstream(lambda _: plain(500)) as upstream,
        Whole(upstream.url, clock, batch={"max_events": 3, "max_age": "60s"}) as whole,
    ):
        received_at = clock.now()
        await whole.take(sent)
        await whole.until(lambda: whole.snapshot.upstream_requests.get("500", 0) >= 2)
    assert sorted(letter.data for letter in whole.left) == sorted(sent)
    assert {(letter.reason, letter.lane, letter.at) for letter in whole.left} == {
        (Reason.UNDELIVERED_AT_EXIT, LIVE, received_at)
    }
    (lane,) = whole.snapshot.lanes
    assert (dict(lane.dead_lettered), lane.buffered, lane.difference) == (
        {"undelivered_at_exit": 7},
        0,
        0,
    )
    assert whole.snapshot.buffer_bytes == 0


@pytest.mark.parametrize("seconds", [-86_400.0, 86_400.0], ids=["back", "forward"])
async def test_a_clock_that_is_set_does_not_hold_up_delivery(
    seconds: float, clock: FakeClock
) -> None:
    """When the system's clock is corrected by a day, what waits is delivered as if nothing had
    happened, its timestamps unchanged.
    """
    async with Upstream() as upstream, Whole(upstream.url, clock) as whole:
        await whole.take([b'{"event":"before","distinct_id":"ann"}'])
        clock.step(seconds)
        await whole.take([b'{"event":"after","distinct_id":"ann"}'])
        await clock.advance(5)
        await upstream.until(lambda: len(upstream.delivered) == 2)
        await whole.emptied()
        stamps = {
            event["event"]: event["timestamp"]
            for request in upstream.requests
            for event in request.events
        }
        assert stamps["before"] == "2026-01-01T00:00:00.000Z"


class Reloaded:
    """A pipeline that is given other settings."""

    def __init__(self, whole: Whole, url: str) -> None:
        self.whole = whole
        self.url = url

    def __call__(self, **sections: Any) -> list[str]:
        return self.whole.pipeline.reload(settings(self.url, **sections))


async def test_live_settings_take_effect_at_once(clock: FakeClock) -> None:
    """Project keys and batch limits change with a reload, and no restart is asked for."""
    async with (
        Upstream() as upstream,
        Whole(upstream.url, clock, http={"api_keys": ["phc_theoldkey12345678"]}) as whole,
    ):
        reload = Reloaded(whole, upstream.url)
        assert (await whole.send(post("/batch/", batch(events(4))))).status == 401
        assert (
            reload(
                http={"api_keys": [KEY], "listen": whole.settings.sources.http.listen},
                batch={"max_events": 2},
            )
            == []
        )
        await whole.take(events(4))
        await whole.emptied()
        assert [len(request.names) for request in upstream.requests] == [2, 2]
        answer = await whole.send(post("/batch/", batch(events(1), "phc_theoldkey12345678")))
        assert answer.status == 401


async def test_the_key_of_otlp_is_allowed(clock: FakeClock) -> None:
    """Whatever keys senders may use: it is configured. Another one needs a restart, and so does
    the whole section.
    """
    mapping = {"event": ".event_name", "distinct_id": ".attributes.user"}
    http = {"api_keys": ["phc_theoldkey12345678"], "otlp": {"api_key": KEY, "mapping": mapping}}
    sent = post("/v1/logs", export(record(), protobuf=True), f"Content-Type: {PROTOBUF}")
    async with Upstream() as upstream, Whole(upstream.url, clock, http=http) as whole:
        assert (await whole.send(sent)).status == 200
        other = {**http, "otlp": {"api_key": "phc_otherother123456", "mapping": mapping}}
        assert Reloaded(whole, upstream.url)(http=other) == ["sources.http.otlp.api_key"]
        assert (await whole.send(sent)).status == 200
        await whole.emptied()
        assert {request.api_key for request in upstream.requests} == {KEY}


async def test_settings_that_need_a_restart_are_logged_at_each_reload(clock: FakeClock) -> None:
    """A second reload of the same file says so again: the process still runs with the
    old values.
    """
    async with Upstream() as upstream, Whole(upstream.url, clock) as whole:
        reload = Reloaded(whole, upstream.url)
        assert reload(buffer={"max_bytes": "32MiB"}) == ["buffer.max_bytes"]
        assert reload(buffer={"max_bytes": "32MiB"}) == ["buffer.max_bytes"]
        assert whole.snapshot.buffer_limit_bytes == 64 * 1024 * 1024
        assert reload() == []


async def test_the_file_of_keys_is_live(clock: FakeClock, tmp_path: Path) -> None:
    """Anyone who reads the configuration reads the keys in it: another file needs no restart."""
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    async with Upstream() as upstream, Whole(upstream.url, clock) as whole:
        assert (
            Reloaded(whole, upstream.url)(http={"api_keys": [KEY], "api_keys_file": str(keys)})
            == []
        )


async def test_a_limit_that_needs_a_restart_changes_no_batch(clock: FakeClock) -> None:
    """`upstream.max_body` is said to need a restart, so bodies keep to the old one."""
    async with Upstream() as upstream, Whole(upstream.url, clock) as whole:
        assert Reloaded(whole, upstream.url)(upstream={"max_body": "1kB"}) == ["upstream.max_body"]
        await whole.take(events(50))
        await whole.emptied()
        assert len(upstream.requests) == 1


async def test_a_smaller_number_of_lanes_leaves_those_that_are_there(clock: FakeClock) -> None:
    """After the reload no new lane gets in; the ones that hold events continue."""
    keys = [f"phc_lanenumber{number:08}" for number in range(4)]
    async with (
        Upstream(lambda _: plain(503, retry_after="3600")) as upstream,
        Whole(upstream.url, clock) as whole,
    ):
        for key in keys[:3]:
            await whole.take(events(1), key)
        assert Reloaded(whole, upstream.url)(http={"max_lanes": 2}) == []
        await whole.take(events(1, "more"), keys[0])
        assert (await whole.send(post("/batch/", batch(events(1), keys[3])))).status == 503


async def test_other_certificate_files_need_a_restart(clock: FakeClock, tmp_path: Path) -> None:
    """They are named, and no file of theirs is read."""
    certificate = make_certificate(tmp_path)
    mine = {"cert_file": str(certificate.cert_file), "key_file": str(certificate.key_file)}
    async with Upstream() as upstream, Whole(upstream.url, clock, http={"tls": mine}) as whole:
        other = {
            "cert_file": str(tmp_path / "absent.pem"),
            "key_file": str(tmp_path / "absent.key"),
        }
        with capture_logs() as logs:
            for _ in range(2):
                changed = Reloaded(whole, upstream.url)(http={"tls": other})
                assert changed == ["sources.http.tls.cert_file", "sources.http.tls.key_file"]
        assert logs == []
