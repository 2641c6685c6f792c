"""Every odd body of `interface.md` put to the sandbox, to the strict sandbox and to forwarder: the
answers are those of the table.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import aiohttp
import pytest

from forwarder.core.clock import SystemClock
from forwarder.sandbox import Sandbox, SandboxOptions
from tests.contract.tables import Row, plain, rows, spans
from tests.contract.test_ingestion import address
from tests.support.waiting import eventually
from tests.support.whole import Whole

KEY: Final = "phc_odd_bodies_0001"
ODD: Final = rows("Odd bodies")
MORE: Final = rows("Accepted by forwarder alone")
LIMIT: Final = 4096
_names: Final = count()


@dataclass(frozen=True, slots=True)
class Odd:
    """One body, to be sent in one way."""

    call: str
    body: bytes
    name: str
    """Of its event, if it has one that can be seen."""


def _odds(row: Row) -> Iterator[Odd]:
    for text in spans(row["body"]):
        for call in row["of"].split(", "):
            name = f"odd-{next(_names)}"
            yield Odd(call, text.replace("KEY", KEY).replace("NAME", name).encode(), name)


def _id(row: Row) -> str:
    return f"{row['of'].split(',')[0]}-{spans(row['body'])[0][:60]}"


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: a sandbox by the contract, one that is strict, and forwarder before a
    sandbox of its own.
    """

    session: aiohttp.ClientSession
    sandbox: Sandbox
    strict: Sandbox
    behind: Sandbox
    daemon: Whole

    async def status(self, side: str, odd: Odd) -> int:
        """What one of them answers."""
        url = {
            "sandbox": self.sandbox.url,
            "strict": self.strict.url,
            "forwarder": f"http://{self.daemon.pipeline.addresses[0]}",
        }[side]
        headers = {"Content-Type": "application/json"}
        async with self.session.post(
            url + address(odd.call), data=io.BytesIO(odd.body), headers=headers
        ) as answer:
            await answer.read()
            return answer.status

    async def answers(self, odds: Sequence[Odd]) -> dict[str, list[int]]:
        """The statuses of all, by side."""
        return {
            side: [await self.status(side, odd) for odd in odds]
            for side in ("sandbox", "forwarder", "strict")
        }


@asynccontextmanager
async def sides(**http: Any) -> AsyncIterator[Sides]:
    """All of them, until the end."""
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(
            Sandbox(SandboxOptions(max_body=http.get("max_body", 20_000_000)))
        )
        strict = await stack.enter_async_context(Sandbox(SandboxOptions(strict=True)))
        behind = await stack.enter_async_context(Sandbox(SandboxOptions()))
        daemon = Whole(
            behind.url,
            SystemClock(),
            http=http,
            passthrough={"connect_timeout": "10s", "flags_timeout": "10s"},
        )
        await stack.enter_async_context(daemon)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Sides(session, sandbox, strict, behind, daemon)


async def _names_in(sandbox: Sandbox) -> Counter[str]:
    return Counter(event.event for event in await sandbox.events())


@pytest.mark.parametrize("row", ODD, ids=map(_id, ODD))
async def test_answers_are_alike(row: Row) -> None:
    """Sandbox and forwarder answer as documented, and alike; the strict sandbox as documented; the
    same events are ingested.
    """
    odds = list(_odds(row))
    async with sides() as tried:
        answers = await tried.answers(odds)
        assert answers == {
            side: [int(row[column])] * len(odds)
            for side, column in (
                ("sandbox", "status"),
                ("forwarder", "status"),
                ("strict", "strict"),
            )
        }
        await eventually(lambda: all(lane.buffered == 0 for lane in tried.daemon.snapshot.lanes))
        ingested = Counter(odd.name for odd in odds if row["ingested"] == "yes")
        assert await _names_in(tried.sandbox) == ingested
        assert await _names_in(tried.behind) == ingested
        if row["ingested"] == "no" and row["status"] == "200" and row["of"] != "decide":
            assert sum(lane.total_dead for lane in tried.daemon.snapshot.lanes) == len(odds)


@pytest.mark.parametrize("row", MORE, ids=map(_id, MORE))
async def test_what_forwarder_accepts_alone(row: Row) -> None:
    """What the sandbox rejects whole and forwarder accepts is delivered, in
    a form that is accepted.
    """
    odds = list(_odds(row))
    async with sides() as tried:
        answers = await tried.answers(odds)
        assert set(answers["sandbox"]) == {int(row["status"])}
        assert set(answers["forwarder"]) == {int(row["forwarder"])}
        await eventually(lambda: all(lane.buffered == 0 for lane in tried.daemon.snapshot.lanes))
        assert set(await _names_in(tried.behind)) == {odd.name for odd in odds}
        assert (await tried.behind.summary()).refused == 0


def test_rows_are_read() -> None:
    """The tables have what this module looks for."""
    assert {row["ingested"] for row in ODD} == {"yes", "no"}
    assert {call for row in (*ODD, *MORE) for call in row["of"].split(", ")} == {
        "capture",
        "batch",
        "decide",
    }
    assert all(spans(row["body"]) and plain(row["status"]).isdecimal() for row in (*ODD, *MORE))


@pytest.mark.parametrize("limit", [LIMIT, pytest.param(20_000_000, marks=pytest.mark.slow)])
async def test_the_largest_body(limit: int) -> None:
    """A body has to be smaller than the limit: one of exactly that size is 413 on both sides, one
    byte less is accepted.
    """
    start = b'{"api_key":"%b","padding":"' % KEY.encode()
    end = b'","batch":[{"event":"big","distinct_id":"a"}]}'
    async with sides(max_body=limit) as tried:
        for size, status in ((limit - 1, 200), (limit, 413), (limit + 1, 413)):
            odd = Odd("batch", start + b"x" * (size - len(start) - len(end)) + end, "big")
            assert len(odd.body) == size
            assert {side: await tried.status(side, odd) for side in ("sandbox", "forwarder")} == {
                "sandbox": status,
                "forwarder": status,
            }


async def test_an_event_of_a_survey_without_its_survey() -> None:
    """Both sides answer 200; the sandbox doesn't ingest it and says why; forwarder delivers it,
    and the service decides.
    """
    async with sides() as tried:
        body = (
            b'{"api_key":"%b","event":"survey sent","distinct_id":"a","properties":{}}'
            % KEY.encode()
        )
        odd = Odd("capture", body, "survey sent")
        assert await tried.answers([odd]) == {"sandbox": [200], "forwarder": [200], "strict": [200]}
        await eventually(lambda: sum(lane.delivered for lane in tried.daemon.snapshot.lanes) == 1)
        for sandbox in (tried.sandbox, tried.behind):
            assert (await sandbox.summary()).not_ingested == 1
            (request,) = await sandbox.requests()
            assert [unnamed.reason for unnamed in request.not_ingested] == ["no_survey_id"]
        assert [event.event for event in await tried.strict.events()] == ["survey sent"]
