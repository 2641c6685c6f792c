"""`forwarder generate`: what it prints, asks and exits with."""

from __future__ import annotations

import json
from signal import SIGINT

import pytest

from tests.support.commands import invoked, running
from tests.support.upstream import Upstream, plain

KEY = ["--api-key", "phc_loadloadloadload1234"]


@pytest.fixture
def in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command can run beside its target, in a thread: only a main thread hears signals."""
    monkeypatch.setattr("forwarder.cli.generate.stop_on_signals", lambda _: None)


@pytest.mark.usefixtures("in_thread")
async def test_sums_are_printed() -> None:
    """What was sent and accepted, at which rate, how it was answered, how long answers took."""
    async with Upstream() as upstream:
        upstream.script.append(plain(503, "full", retry_after="0"))
        load = ["--count", "60", "--rate", "unlimited", "--batch", "20", "--users", "5"]
        done = await invoked("generate", "--to", upstream.url, *KEY, *load)
        assert (done.code, done.err) == (0, "")
        assert sum(len(request.events) for request in upstream.requests) == 80
    assert done.out.startswith(
        f"Sending to {upstream.url}: as fast as possible, 5 users, 20 events a request\n"
    )
    assert [line.split()[0] for line in done.out.splitlines()[-4:]] == [
        "sent",
        "accepted",
        "answers",
        "latency",
    ]
    assert "answers    200: 3, 503: 1\n" in done.out


@pytest.mark.usefixtures("in_thread")
async def test_sums_as_json() -> None:
    """One document on standard output; how far it is, is on standard error."""
    async with Upstream() as upstream:
        load = ["--count", "60", "--rate", "1M/s", "--batch", "20", "--output", "json"]
        done = await invoked("generate", "--to", upstream.url, *KEY, *load)
    sums = json.loads(done.out)
    assert (done.code, sums["to"]) == (0, upstream.url)
    assert (sums["sent"], sums["accepted"], sums["answers"]) == (60, 60, {"200": 3})
    assert sums["latency_seconds"]["p99"] >= sums["latency_seconds"]["p50"] > 0
    assert done.err.startswith(f"Sending to {upstream.url}: ")


@pytest.mark.slow
async def test_ctrl_c_ends_the_load_and_prints_the_sums() -> None:
    """Without a terminal a line is written every few seconds; the exit code says whether every
    event was accepted.
    """
    async with (
        Upstream() as upstream,
        running("generate", "--to", upstream.url, *KEY, "--rate", "100") as load,
    ):
        await load.line("events accepted", "p50", "answers 200:")
        load.send(SIGINT)
        assert await load.ended() == 0
    assert load.lines[-1].startswith("latency ")


@pytest.mark.usefixtures("in_thread")
async def test_rejected_events_are_exit_code_1() -> None:
    """And are counted."""
    async with Upstream(lambda _: plain(401, "unknown")) as upstream:
        done = await invoked("generate", "--to", upstream.url, *KEY, "--count", "10")
    assert done.code == 1
    assert "10 rejected" in done.out


@pytest.mark.usefixtures("in_thread")
async def test_a_target_that_is_not_there_is_exit_code_3() -> None:
    """Before anything is sent."""
    done = await invoked("generate", "--to", "http://127.0.0.1:9", *KEY)
    assert done.code == 3
    assert "Error: nothing accepts events at http://127.0.0.1:9: " in done.err
    assert "`forwarder run`" in done.err


async def test_another_machine_is_asked_about() -> None:
    """Generated events would become data of its project; without an answer nothing is sent."""
    done = await invoked("generate", "--to", "http://service.invalid", *KEY)
    assert done.code == 1
    assert (
        "Generated events become data of a project at http://service.invalid. Send them? [y/N]"
        in done.err
    )
