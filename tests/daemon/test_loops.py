"""Forwarders one behind the other: a chain brings events to the service, a loop halts and resumes
once it is gone.
"""

from __future__ import annotations

import pytest

from forwarder.core.outcome import HaltReason
from tests.support.listening import RawReply, post
from tests.support.switch import Switch
from tests.support.upstream import Upstream, plain
from tests.support.whole import Whole, accepted, events

PATIENT = {"connect_timeout": "30s", "flags_timeout": "5m"}
"""Limits for flag calls that hold on a busy machine, too, whose clock is fast."""


def is_halted(whole: Whole) -> bool:
    """Whether its only lane is halted by a loop."""
    return [lane.halted for lane in whole.snapshot.lanes] == [HaltReason.LOOP]


def in_the_books(whole: Whole) -> int:
    """How many events it received."""
    return whole.total(lambda lane: sum(lane.received.values()))


async def flags(whole: Whole) -> RawReply:
    """A flag call of an application."""
    return await whole.send(post("/decide?v=3", b'{"api_key":"phc_x","distinct_id":"u"}'))


async def test_a_chain_of_three() -> None:
    """Events and flag calls reach the service, each once, and each request says which forwarders
    it has passed.
    """
    async with (
        Upstream() as service,
        Whole(service.url, passthrough=PATIENT) as last,
        Whole(f"http://{last.address}", passthrough=PATIENT) as middle,
        Whole(f"http://{middle.address}", passthrough=PATIENT) as first,
    ):
        for hop in (first, middle, first):
            await hop.take(events(20, prefix=f"{hop.address}-{in_the_books(first)}-"))
        await last.until(lambda: sum(accepted(service).values()) == 60)
        assert (await flags(first)).status == 200
        sinks = [hop.pipeline._parts.destinations[0].sink for hop in (last, middle, first)]
        instances = [sink._path.instance for sink in sinks if sink is not None]
        assert set(accepted(service).values()) == {1}
        assert service.decides[-1].headers["forwarder-path"] == f"3; {', '.join(instances)}"
        assert not any(
            lane.halted for whole in (first, middle, last) for lane in whole.snapshot.lanes
        )


async def test_a_loop_through_a_proxy_halts_and_resumes() -> None:
    """Nothing circles: the events stay, the reason is said, and once the proxy leads elsewhere
    they are delivered, each once.
    """
    async with (
        Upstream() as service,
        Switch() as proxy,
        Whole(proxy.url, passthrough=PATIENT) as whole,
    ):
        proxy.lead_to(whole.address)
        await whole.take(events(50))
        await whole.until(lambda: is_halted(whole))
        assert in_the_books(whole) == 50
        [lane] = whole.snapshot.lanes
        assert "HTTP 508" in lane.why
        assert "upstream.url" in lane.hint
        call = await flags(whole)
        assert (call.status, call.headers["forwarder-error"]) == (508, "loop")
        proxy.lead_to(service.url)
        await whole.emptied()
        assert sorted(accepted(service)) == sorted(events(50))
        assert set(accepted(service).values()) == {1}


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_a_loop_of_two_halts_and_resumes(kind: str) -> None:
    """Whichever of the two sees its own id; no event is lost or circles, and flag calls end too."""
    async with (
        Upstream() as service,
        Switch() as proxy,
        Whole(proxy.url, buffer={"kind": kind}, passthrough=PATIENT) as second,
        Whole(f"http://{second.address}", buffer={"kind": kind}, passthrough=PATIENT) as first,
    ):
        proxy.lead_to(first.address)
        await first.take(events(30))
        await second.until(lambda: is_halted(second))
        await second.take(events(30, prefix="direct"))
        assert (in_the_books(first), in_the_books(second)) == (30, 60)
        assert (await flags(first)).status == 508
        proxy.lead_to(service.url)
        await second.emptied()
        await first.emptied()
        assert sorted(accepted(service)) == sorted([*events(30), *events(30, prefix="direct")])
        assert set(accepted(service).values()) == {1}


async def test_an_unrelated_508_is_tried_again() -> None:
    """Only a forwarder's own 508 halts."""
    async with Upstream() as service, Whole(service.url) as whole:
        service.script += [plain(508, "too many redirects behind here")] * 3
        await whole.take(events(3))
        await whole.emptied()
        assert len(service.requests) == 4
