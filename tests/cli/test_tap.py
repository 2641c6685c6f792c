"""`forwarder tap`: what a person and a program read of a running daemon's events."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from forwarder.admin.server import AdminServer
from forwarder.core.taps import TapPoint
from forwarder.telemetry.labels import key_label
from tests.support.commands import invoked, running
from tests.support.listening import post
from tests.support.upstream import Upstream
from tests.support.whole import KEY, Whole, batch, event


@dataclass
class TappedDaemon:
    """A pipeline with its admin server."""

    whole: Whole
    admin: AdminServer
    address: str

    async def tapped(self) -> None:
        """Wait until a tap is open."""
        await self.whole.until(lambda: point(self.whole).tap)


def point(whole: Whole) -> TapPoint:
    """Where the events of its first destination pass."""
    return whole.pipeline._parts.destinations[0].taps


@asynccontextmanager
async def watched(whole: Whole) -> AsyncIterator[TappedDaemon]:
    """Its admin server beside it."""
    async with whole:
        admin = AdminServer(whole.pipeline.snapshot, whole.pipeline.explain, whole.pipeline.tap)
        await admin.start("127.0.0.1:0")
        yield TappedDaemon(whole, admin, admin.address)
        await admin.close()


@pytest.fixture
async def daemon() -> AsyncIterator[TappedDaemon]:
    """Both running."""
    async with Upstream() as upstream, watched(Whole(upstream.url)) as running_one:
        yield running_one


async def test_a_line_for_each_event(daemon: TappedDaemon) -> None:
    """Received, delivered, dead-lettered: with label, name, id and properties, and without what
    controls a terminal; Ctrl-C ends it.
    """
    whole = daemon.whole
    address = daemon.address
    async with running("tap", "--admin", address) as tap:
        await daemon.tapped()
        await whole.take(
            [
                event("order placed", "anna\x1b[31m", properties=b'{"total":5,"token":"x"}'),
                b'{"distinct_id":"b"}',
            ]
        )
        line = await tap.line(
            "received",
            key_label(KEY),
            "http",
            "order placed",
            "anna\\u001b[31m",
            '{"total": 5, "token": "…"}',
        )
        assert "\x1b" not in line
        await tap.line("dead-lettered", "-  b", "missing_event: the event has no name")
        await tap.line("delivered", "order placed")
        tap.send(signal.SIGINT)
        assert await tap.ended() == 130
    await whole.until(lambda: point(whole).tap is None)


@pytest.mark.parametrize("output", ["text", "json"])
async def test_each_destination_has_a_line(output: str) -> None:
    """In the lane's label as in `status`, and as a field of its own for programs."""
    own = {KEY: "phc_destinationsown"}
    async with Upstream() as us, Upstream() as eu:
        upstreams = [
            {"name": "us", "url": us.url, "verify_keys": False},
            {"name": "eu", "url": eu.url, "verify_keys": False, "api_keys": own},
        ]
        several = Whole(
            "", upstream={"url": ""}, upstreams=upstreams, routes=[{"to": ["us", "eu"]}]
        )
        async with (
            watched(several) as daemon,
            running("tap", "--admin", daemon.address, "--output", output) as tap,
        ):
            await daemon.tapped()
            await daemon.whole.take([event("x", "anna")])
            await daemon.whole.emptied()
            lines = [await tap.line("x") for _ in range(4)]
    shown = [(KEY, "us"), (own[KEY], "eu")]
    for outcome in ("received", "delivered"):
        for key, name in shown:
            if output == "text":
                wanted = [f" {outcome} ", f" {key_label(key)}@{name} http  x  anna "]
            else:
                wanted = [
                    f'"{outcome}", "lane": "{key_label(key)}"',
                    f'"destination": "{name}"',
                ]
            assert [line for line in lines if all(part in line for part in wanted)], lines


@pytest.mark.parametrize("output", ["text", "json"])
async def test_a_key_with_a_name_is_shown_and_selected_by_it(output: str) -> None:
    """In place of the label for people, beside it for programs."""
    other = "phc_theotherproject1"
    async with Upstream() as upstream:
        named = Whole(upstream.url, http={"api_keys": {"shop": KEY, "blog": other}})
        async with (
            watched(named) as daemon,
            running(
                *("tap", "--admin", daemon.address, "--output", output),
                *("--key", "shop", "--outcome", "received"),
            ) as tap,
        ):
            await daemon.tapped()
            for key, name in ((other, "read"), (KEY, "ordered")):
                await daemon.whole.send(post("/batch/", batch([event(name, "anna")], key)))
            line = await tap.line("ordered")
        if output == "text":
            assert " received      shop http  ordered  anna  " in line
        else:
            assert f'"lane": "{key_label(KEY)}", "lane_name": "shop"' in line
        assert not [tap_line for tap_line in tap.lines if "read" in tap_line]


async def test_an_expression_is_evaluated_for_each_event(daemon: TappedDaemon) -> None:
    """What it makes of an event is a line of JSON; what raises is reported and the next event
    shown; `--limit` counts what is shown.
    """
    whole = daemon.whole
    address = daemon.address
    options = ("--outcome", "received", "--key", KEY, "--event", "o*", "--limit", "2")
    expression = "select(.data.properties.total != 7) | [.event, .data.properties.total + 1]"
    async with running("tap", "--admin", address, *options, "--jq", expression) as tap:
        await daemon.tapped()
        for total in (b"5", b"7", b'"text"', b"6"):
            await whole.take(
                [event(f"o{total.decode()}", properties=b'{"total":%b}' % total), event("another")]
            )
        assert json.loads(await tap.line("o5")) == ["o5", 6]
        await tap.line("jq: ", "cannot be added")
        assert json.loads(await tap.line("o6")) == ["o6", 7]
        assert await tap.ended() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], "…@example.com"),
        (["--output", "json"], "…@example.com"),
        (["--jq", 'select(.distinct_id == "anna@example.com") | .distinct_id'], "…@example.com"),
        (["--show-emails"], "anna@example.com"),
    ],
)
async def test_addresses_are_masked(daemon: TappedDaemon, options: list[str], shown: str) -> None:
    """A person's e-mail address is shown only on request; an expression can still select by it."""
    async with running("tap", "--admin", daemon.address, *options) as tap:
        await daemon.tapped()
        await daemon.whole.take([event("x", "anna@example.com")])
        line = await tap.line("example.com")
    assert shown in line
    assert ("anna@" in line) is (shown == "anna@example.com")


async def test_a_daemon_that_ends_ends_the_tap(daemon: TappedDaemon) -> None:
    """With exit code 3 and what to do; so does one that isn't there."""
    async with running("tap", "--admin", daemon.address, "--output", "json") as tap:
        await daemon.tapped()
        await daemon.whole.take([event("e")])
        assert json.loads(await tap.line('"received"'))["data"]["event"] == "e"
        await daemon.admin.close()
        await tap.line("ended the stream")
        assert await tap.ended() == 3
    done = await invoked("tap", "--admin", daemon.address)
    assert (done.code, "no daemon answers" in done.err) == (3, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--jq", ".a |"], "jq can't compile"),
        (["--jq", "repeat(1)"], "it may never end"),
        (["--jq", "env"], "environment"),
        (["--outcome", "lost"], "--outcome"),
        (["--source", "mail"], "--source"),
        (["--rate", "0"], "--rate"),
        (["--event", ""], "a parameter is empty"),
    ],
)
async def test_wrong_usage(daemon: TappedDaemon, options: list[str], said: str) -> None:
    """Exit code 2, before anything is shown."""
    done = await invoked("tap", "--admin", daemon.address, *options)
    assert (done.code, said in done.err, done.out) == (2, True, "")
