"""Senders with made-up project keys don't take what a known key needs: the buffer's bytes, its
lanes, the dead letters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.end_to_end.test_memory import fill
from tests.support.listening import post
from tests.support.upstream import OK, UNAUTHORIZED, Answer, Request, Upstream, plain
from tests.support.waiting import FastClock, eventually
from tests.support.whole import KEY, Whole, accepted, batch, events

LIMIT: Final = 4_000_000
CHECKED: Final = {"verify_keys": True}
MADE_UP: Final = ("phc_madeupmadeupmade1", "phc_madeupmadeupmade2")


def small(kind: str) -> dict[str, Any]:
    """Settings with a small buffer."""
    return {
        "buffer": {"kind": kind, "max_bytes": LIMIT},
        "batch": {"max_bytes": "200kB", "max_age": "100ms"},
        "upstream": CHECKED,
    }


class UpstreamOutage:
    """An upstream that is away for a while."""

    def __init__(self) -> None:
        self.away = False
        self.upstream = Upstream(lambda _: self.answer(OK), decide=self.decide)

    def answer(self, usual: Answer) -> Answer:
        """500 while it is away."""
        return plain(500) if self.away else usual

    def decide(self, request: Request) -> Answer:
        """Only one key is good."""
        return self.answer(OK if request.api_key == KEY else UNAUTHORIZED)


async def flood(whole: Whole, name: str) -> None:
    """Two made-up keys send until both get 503."""
    for key in MADE_UP:
        await fill(whole, key, f"{name}-{key[-1]}-")


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_made_up_keys_do_not_lock_out_a_verified_one(kind: str) -> None:
    """Not in an outage, and not after a restart in it, with senders of made-up keys first: all
    that the good key sends is accepted.
    """
    outage = UpstreamOutage()
    async with (
        outage.upstream as upstream,
        Whole(upstream.url, FastClock(10), **small(kind)) as whole,
    ):
        good = events(1, "first")
        await whole.take(good)
        await whole.emptied()
        outage.away = True
        for restart in (False, True):
            if restart:
                await whole.restart(crash=kind == "disk")
                outage.away = True
            await flood(whole, f"flood{restart}")
            for number in range(20):
                raw = events(100, f"good{restart}{number}-", padding=100)
                await whole.take(raw)
                good += raw
            await flood(whole, f"more{restart}")
            await whole.take(raw := events(1, f"last{restart}"))
            good += raw
        outage.away = False
        await eventually(
            lambda: not any(lane.buffered for lane in whole.snapshot.lanes if lane.halted is None)
        )
    left = {letter.data for letter in whole.left}
    arrived = accepted(upstream)
    if kind == "disk":
        assert {event for event in good if event not in arrived} == set()
    else:  # what was in memory at the restart is among the dead letters
        assert {
            event
            for event in good
            if event not in arrived and b"goodFalse" not in event and b"lastFalse" not in event
        } - left == set()
    assert set(arrived.values()) == {1}


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_one_key_may_fill_seven_eighths(kind: str) -> None:
    """Verified, configured, or while no key is known; and all of it arrives."""
    for sections in (small(kind), {**small(kind), "http": {"api_keys": [KEY]}}):
        outage = UpstreamOutage()
        outage.away = True
        async with (
            outage.upstream as upstream,
            Whole(upstream.url, FastClock(10), **sections) as whole,
        ):
            sent = await fill(whole, KEY, "a", size=20)
            assert 0.98 * 7 / 8 * LIMIT < whole.snapshot.buffer_bytes <= 7 / 8 * LIMIT
            outage.away = False
            await whole.emptied()
            assert accepted(upstream) == dict.fromkeys(sent, 1)


async def test_before_any_key_is_known_the_reserve_is_kept_for_the_first() -> None:
    """A first start in an outage can't tell good keys from made-up ones; but the one that is
    verified first finds room, and gets in.
    """
    outage = UpstreamOutage()
    outage.away = True
    async with (
        outage.upstream as upstream,
        Whole(upstream.url, FastClock(50), **small("memory")) as whole,
    ):
        await flood(whole, "early")
        await fill(whole, MADE_UP[0], "small", size=1)
        response = await whole.send(post("/batch/", batch(events(1, "good", padding=300))))
        assert response.status == 503
        outage.away = False
        await eventually(lambda: any(request.api_key == KEY for request in upstream.decides))

        async def accept() -> bool:
            answer = await whole.send(post("/batch/", batch(events(1, "good", padding=300))))
            return answer.status == 200

        while not await accept():
            await whole.clock.sleep(1.0)
        await eventually(lambda: set(events(1, "good", padding=300)) <= set(accepted(upstream)))


async def test_made_up_keys_leave_lanes_to_a_known_one() -> None:
    """They fill half of `max_lanes`, and no more."""
    outage = UpstreamOutage()
    settings = {**small("memory"), "http": {"max_lanes": 10}}
    async with outage.upstream as upstream, Whole(upstream.url, FastClock(10), **settings) as whole:
        await whole.take(events(1, "first"))
        await whole.emptied()
        outage.away = True
        statuses = [
            (
                await whole.send(post("/batch/", batch(events(1), f"phc_madeupmadeup{number}")))
            ).status
            for number in range(20)
        ]
        assert statuses == [200] * 5 + [503] * 15
        await whole.take(events(1, "second"))


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_a_large_event_is_kept_or_its_sender_keeps_it(kind: str, tmp_path: Path) -> None:
    """An event of 2 MB is never answered 200 and dropped: it is a dead letter, 503 while there is
    no room, or 413 where there never is.
    """
    large = events(1, "large", padding=2_000_000)
    for limit, statuses in (("4MiB", [200, 503]), ("2MB", [413, 413])):
        letters = {"max_bytes": limit, "path": tmp_path / limit}
        async with (
            Upstream() as upstream,
            Whole(upstream.url, FastClock(1), buffer={"kind": kind}, dead_letters=letters) as whole,
        ):
            for expected in statuses:
                reply = await whole.send(post("/batch/", batch([*large, *events(1)])))
                assert reply.status == expected
                assert ("retry-after" in reply.headers) is (expected == 503)
            assert whole.total(lambda lane: lane.total_dropped) == 0
            assert [data for data, _ in await whole.letters()] == large * statuses.count(200)
            assert whole.total(lambda lane: lane.total_received) == 2 * statuses.count(200)


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_nameless_events_do_not_get_other_senders_rejected(kind: str) -> None:
    """A sender that fills the share of what is rejected at receipt, and continues: others' batches
    are accepted, with a large event too.
    """
    settings: dict[str, Any] = {
        "buffer": {"kind": kind},
        "dead_letters": {"max_bytes": "32MiB"},
        "http": {"api_keys": [KEY, MADE_UP[0]]},
    }
    nameless = batch(
        [b'{"distinct_id":"d","properties":{"p":"%b"}}' % (b"x" * 200_000)] * 20, MADE_UP[0]
    )
    large = events(1, "large", padding=2_000_000)
    async with Upstream() as upstream, Whole(upstream.url, FastClock(1), **settings) as whole:
        for _ in range(3):
            assert (await whole.send(post("/batch/", nameless))).status == 200
        assert whole.total(lambda lane: lane.dropped.get("invalid_overflow", 0)) > 0
        await whole.take([*large, *events(1)])
        await whole.take([b'{"event":"no id"}', *events(1, "more")])
        await eventually(lambda: set(accepted(upstream)) == {*events(1), *events(1, "more")})
        assert large[0] in [data for data, _ in await whole.letters()]
