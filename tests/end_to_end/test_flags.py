"""Flags end to end: what the official Python SDK decides from the definitions is what the sandbox
answers, directly and through forwarder.

The SDK is the version of `requirements/dev.txt`, unchanged. Where it can't decide a flag by itself
(what it isn't given about a visitor, what only the service has), nothing is compared; the table of
`test_flag_operators.py` has these cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
import pytest
from posthog.feature_flags import PROPERTY_OPERATORS

from forwarder.core.clock import SystemClock
from forwarder.sandbox import Sandbox
from tests.support.flag_answers import (
    DECIDE,
    FLAGS,
    FlagAnswers,
    ask,
    ask_all,
    decide,
    define,
    differences,
    of_those_answered,
    python_sdk,
)
from tests.support.flags import ODD, SURE, FlagMaker, FlagProject, Visitor, visitors
from tests.support.waiting import in_thread
from tests.support.whole import KEY, Whole

SEED: Final = 12
"""One whose flags are on for some visitors and off for others, whatever the operator."""
VISITORS: Final = 200
"""So many that the SDK decides each operator's flag both ways."""
MANY: Final = 1000
PART: Final = 10
"""Every tenth visitor is asked about by each further way."""


@dataclass
class FlagService:
    """A sandbox with a project's flags, and a forwarder before it."""

    project: FlagProject
    direct: str
    forwarder: str
    session: aiohttp.ClientSession

    def local(self, visitors: Sequence[Visitor]) -> list[FlagAnswers]:
        """What the SDK decides by the definitions that it gets through forwarder. Blocks."""
        with python_sdk(self.forwarder, KEY) as client:
            return decide(client, visitors)

    async def ask_all(self, url: str, path: str, visitors: Sequence[Visitor]) -> list[FlagAnswers]:
        """What is answered about each visitor."""
        return await ask_all(self.session, url, KEY, path, visitors)


@asynccontextmanager
async def flag_service(project: FlagProject) -> AsyncIterator[FlagService]:
    """A sandbox and a forwarder in this process, whose answers may take as long
    as a busy machine needs.
    """
    slow = {"connect_timeout": "10s", "flags_timeout": "20s"}
    async with (
        Sandbox() as sandbox,
        Whole(sandbox.url, SystemClock(), passthrough=slow) as whole,
        aiohttp.ClientSession() as session,
    ):
        await define(session, sandbox.url, KEY, project)
        yield FlagService(project, sandbox.url, f"http://{whole.address}", session)


def test_every_operator_of_the_sdk_is_tried() -> None:
    """The flags have each operator that the SDK knows."""
    assert set(SURE) == set(ODD) == set(PROPERTY_OPERATORS)


@pytest.mark.parametrize("count", [VISITORS, pytest.param(MANY, marks=pytest.mark.long)])
async def test_the_sdk_decides_as_the_service_does(count: int) -> None:
    """Each flag that the SDK decides for each of many visitors has that value and payload in
    `/flags` and `/decide`, by either way; inactive flags, and those for browsers alone, are in
    neither.
    """
    people = visitors(count, SEED)
    async with flag_service(FlagMaker(SEED).project()) as service:
        decided = await in_thread(lambda: service.local(people))
        assert unvaried(service.project, decided) == []
        answered = await service.ask_all(service.direct, FLAGS, people)
        usual = of_those_answered(service.project, decided)
        assert differences(usual, answered, people) == []
        assert {frozenset(answer.values) for answer in answered} == {service.project.answered}
        assert not any(answer.failed for answer in answered)
        for number, (url, path) in enumerate(
            [(service.direct, DECIDE), (service.forwarder, FLAGS), (service.forwarder, DECIDE)]
        ):
            again = await service.ask_all(url, path, people[number::PART])
            assert again == answered[number::PART]


def unvaried(project: FlagProject, decided: Sequence[FlagAnswers]) -> list[str]:
    """Families, and operators of conditions, of which the SDK decided none, or only one way."""
    values: dict[str, Counter[str]] = {}
    for key in project.by_key:
        family = key.rpartition("-")[0] or key
        values.setdefault(family, Counter()).update(
            str(answer.values[key]) for answer in decided if key in answer.values
        )
    # the SDK can't decide what it isn't told
    one_way = {"operator-is_set", "operator-is_not_set", "switched"}
    return [
        family for family, counts in values.items() if len(counts) < (1 if family in one_way else 2)
    ]


async def test_the_sdk_asks() -> None:
    """Without definitions the SDK asks, and reads the same from the answers
    that it would decide itself.
    """
    people = visitors(20, SEED)
    async with flag_service(FlagMaker(SEED).project()) as service:

        def asked() -> list[FlagAnswers]:
            with python_sdk(service.forwarder, KEY, None) as client:
                return decide(client, people, locally=False)

        decided = await in_thread(lambda: service.local(people))
        reported = await in_thread(asked)
        usual = of_those_answered(service.project, decided)
        assert differences(usual, reported, people) == []
        assert {frozenset(answer.values) for answer in reported} == {service.project.answered}


async def test_exceptions_of_the_sdks_local_decisions() -> None:
    """The first exception: of a flag of groups that another depends on, the SDK asks whether the
    person would have it.

    The service, and posthog-node, decide it as they do by itself: no one is in a company here, so
    it is off, and so is what needs it.
    """
    everybody = {"properties": [], "rollout_percentage": 100}
    of_companies = {
        "key": "of-companies",
        "active": True,
        "filters": {"groups": [everybody], "aggregation_group_type_index": 0},
    }
    needs = {"key": "of-companies", "type": "flag", "value": True, "operator": "flag_evaluates_to"}
    needing = {
        "key": "needs",
        "active": True,
        "filters": {"groups": [{**everybody, "properties": [needs]}]},
    }
    alone = [Visitor("ann", {}, {}, {})]
    async with flag_service(FlagProject([of_companies, needing], [])) as service:
        decided = await in_thread(lambda: service.local(alone))
        assert decided[0].values == {"of-companies": False, "needs": True}
        for url in (service.direct, service.forwarder):
            assert (await service.ask_all(url, FLAGS, alone))[0].values == {
                "of-companies": False,
                "needs": False,
            }


async def test_the_sdk_does_not_look_at_the_runtime() -> None:
    """Another exception: the SDK decides a flag for browsers alone as any other. The service
    leaves it out for a server, and has it off for flags that depend on it.
    """
    everybody = {"properties": [], "rollout_percentage": 100}
    for_browsers = {
        "key": "for-browsers",
        "active": True,
        "evaluation_runtime": "client",
        "filters": {"groups": [everybody]},
    }
    needs = {"key": "for-browsers", "type": "flag", "value": True, "operator": "flag_evaluates_to"}
    needing = {
        "key": "needs",
        "active": True,
        "filters": {"groups": [{**everybody, "properties": [needs]}]},
    }
    alone = [Visitor("ann", {}, {}, {})]
    async with flag_service(FlagProject([for_browsers, needing], [])) as service:
        decided = await in_thread(lambda: service.local(alone))
        assert decided[0].values == {"for-browsers": True, "needs": True}
        browser = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/128.0"}
        for url in (service.direct, service.forwarder):
            assert (await service.ask_all(url, FLAGS, alone))[0].values == {"needs": False}
            there = await ask(service.session, url, KEY, FLAGS, alone[0].request, **browser)
            assert there.values == {"for-browsers": True, "needs": True}


async def test_the_sdk_has_no_payload_for_who_opted_out() -> None:
    """The last exception: who opted out of an early access feature gets its payload of the
    service alone.
    """
    feature = {
        "key": "dark",
        "active": True,
        "filters": {
            "groups": [{"properties": [], "rollout_percentage": 100}],
            "feature_enrollment": True,
            "payloads": {"true": "7"},
        },
    }
    alone = [Visitor("ann", {"$feature_enrollment/dark": False}, {}, {})]
    async with flag_service(FlagProject([feature], [])) as service:
        assert await in_thread(lambda: service.local(alone)) == [FlagAnswers({"dark": False}, {})]
        for url in (service.direct, service.forwarder):
            answered = await service.ask_all(url, FLAGS, alone)
            assert answered == [FlagAnswers({"dark": False}, {"dark": 7})]
