"""The upstream goes away under the SDKs, and comes back: what was answered 200 arrives, flags fail
in their time, definitions continue.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from forwarder.telemetry.snapshot import balanced
from tests.sdks.conftest import ready
from tests.sdks.flagged import FLAG, Flagged
from tests.sdks.outcomes import AI_LANE, held_as, identity
from tests.sdks.rig import SECRET, chain, program
from tests.sdks.toolchains import missing
from tests.sdks.variants import FIRST, Variant, for_each
from tests.support.waiting import pause

COUNT = 900
OUTAGE = 20.0
"""Seconds in which nothing listens upstream."""
OF_A_PROCESS = [variant for variant in FIRST if variant.sdk != "js"]
"""posthog-js has its outage, of as long, in test_older.py."""
every_variant = for_each(OF_A_PROCESS)
SOME = 50
FLAGS_TIMEOUT = 0.7
SLACK = 1.5


@pytest.fixture(scope="module")
def outages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseException | None]:
    """What went wrong, by variant: they have their outages at the same time. Those whose tools
    this machine lacks are left out.
    """
    present = [variant for variant in OF_A_PROCESS if missing(variant.sdk) is None]
    for variant in present:
        ready(variant.sdk)
    return asyncio.run(_outages(present, tmp_path_factory.mktemp("outages")))


@every_variant
def test_every_event_answered_200_arrives(
    variant: Variant, outages: dict[str, BaseException | None]
) -> None:
    """A third of the events is sent before, a third in 20 s in which nothing listens upstream, a
    third after: all are there, once.
    """
    wrong = outages[variant.name]
    if wrong is not None:
        raise wrong


async def _outages(variants: list[Variant], place: Path) -> dict[str, BaseException | None]:
    for variant in variants:
        (place / variant.name).mkdir()
    ended = await asyncio.gather(
        *(_outage(variant, place / variant.name) for variant in variants), return_exceptions=True
    )
    return dict(zip((variant.name for variant in variants), ended, strict=True))


async def _outage(variant: Variant, place: Path) -> None:
    service = Flagged(place / "sandbox.sqlite")
    async with chain(place, service) as tried:
        options = (*variant.options, "--parts", "3", "--secret-key", SECRET)
        async with program(
            variant.sdk, tried.host, place / "journal", *options, count=COUNT
        ) as sender:
            await sender.said()
            await tried.emptied()
            await service.stop()
            sender.go_on()
            during, _ = await asyncio.gather(sender.said(), pause(OUTAGE))
            await tried.holding(COUNT // 3 - 10)
            await service.start()
            sender.go_on()
            await sender.said()
            journal = await tried.finish(sender, COUNT)
        snapshot = await tried.emptied()
        events = await service.sandbox.events()
        summary = await service.sandbox.summary()
    assert during["enabled"] is True
    assert "given up" not in sender.errors
    assert held_as(journal, events) == Counter(map(identity, journal))
    assert len(journal) >= COUNT
    assert (summary.conflicts, summary.not_ingested, balanced(snapshot)) == (0, 0, True)


@every_variant
def test_definitions_are_still_served(variant: Variant, tmp_path: Path) -> None:
    """An application that starts while nothing listens upstream gets the definitions that another
    one had, and decides by them.
    """
    asyncio.run(_definitions(variant, tmp_path))


async def _definitions(variant: Variant, place: Path) -> None:
    service = Flagged(place / "sandbox.sqlite")
    async with chain(place, service, FORWARDER_PASSTHROUGH__DEFINITIONS_MAX_AGE="0s") as tried:
        for when in ("before", "during"):
            async with program(
                variant.sdk,
                tried.host,
                place / when,
                *variant.options,
                "--secret-key",
                SECRET,
                count=SOME,
            ) as sender:
                answer = await sender.said()
                await tried.finish(sender, SOME)
            assert answer["enabled"] is True, when
            assert answer.get("definitions", [FLAG]) == [FLAG], when
            await service.stop()
        await service.start()
        await tried.emptied()


@every_variant
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "gone"])
def test_flag_calls_fail_in_their_time(variant: Variant, silent: bool, tmp_path: Path) -> None:
    """An application that asks for a flag while the upstream is gone, or silent, continues without
    it before its SDK would give up.
    """
    asyncio.run(_flags(variant, tmp_path, silent=silent))


async def _flags(variant: Variant, place: Path, *, silent: bool) -> None:
    service = Flagged(place / "sandbox.sqlite")
    async with chain(
        place, service, FORWARDER_PASSTHROUGH__FLAGS_TIMEOUT=f"{FLAGS_TIMEOUT}s"
    ) as tried:
        service.silent = silent
        if not silent:
            await service.stop()
        async with program(
            variant.sdk, tried.host, place / "journal", *variant.options, count=SOME
        ) as sender:
            answer = await sender.said()
            journal = [
                line for line in await tried.finish(sender, SOME) if line["event"] != AI_LANE
            ]
        if not silent:
            await service.start()
        await tried.emptied()
        events = [event for event in await service.sandbox.events() if event.event != AI_LANE]
    assert not answer["enabled"]
    assert answer["seconds"] < (FLAGS_TIMEOUT if silent else 0.0) + SLACK
    assert held_as(journal, events) == Counter(map(identity, journal))
