"""What the sandbox shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from forwarder.contract.endpoints import ENDPOINTS
from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, SandboxClient, batch, event, talking
from tests.support.clock import MIDNIGHT

OTHER = "phc_another_key_000000002"


def uuid(number: int) -> str:
    """One of a series."""
    return f"0190a0a0-1111-7222-8333-{number:012}"


@pytest_asyncio.fixture
async def filled() -> AsyncIterator[SandboxClient]:
    """A sandbox with six events of two projects, a repeat, a conflict, one that was not ingested
    and a refused request.
    """
    async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
        events = [
            event(
                event=f"e{n % 2}",
                distinct_id=f"u{n}",
                uuid=uuid(n),
                timestamp=f"2025-12-0{n + 1}T12:00:00Z",
            )
            for n in range(5)
        ]
        await client.post("/batch/", batch(*events))
        await client.post(
            "/capture",
            {
                **event(event="other", uuid=uuid(9), timestamp="2025-12-09T12:00:00+01:00"),
                "api_key": OTHER,
            },
        )
        await client.post(
            "/batch",
            batch(
                events[0],
                {**events[1], "properties": {"n": 2}},
                event(event=None),
                historical_migration=True,
            ),
        )
        await client.post("/batch/", b'{"batch":')
        yield client


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", [0, 1, 2, 3, 4, 9]),
        ("event=e0", [0, 2, 4]),
        ("distinct_id=u3", [3]),
        (f"uuid={uuid(2)}", [2]),
        (f"uuid={uuid(2).upper().replace('-', '')}", [2]),
        ("uuid=nonsense", []),
        (f"api_key={OTHER}", [9]),
        ("api_key=phc_…0002", []),
        ("since=2025-12-03T12:00:00Z", [2, 3, 4, 9]),
        ("since=2025-12-03T13:00:00%2B01:00", [2, 3, 4, 9]),
        ("since=2025-12-03T13:00:00+01:00", [2, 3, 4, 9]),
        ("until=2025-12-03T12:00:00Z", [0, 1]),
        ("since=2025-12-02&until=2025-12-04", [1, 2]),
        ("historical=false", [0, 1, 2, 3, 4, 9]),
        ("historical=true", []),
        ("historical=true&arrivals=true", [0, 1]),
        ("arrivals=true", [0, 1, 2, 3, 4, 9, 0, 1]),
        ("request=2", [9]),
        ("event=e0&distinct_id=u3", []),
        ("event=", []),
        ("limit=2", [0, 1]),
        ("limit=2&offset=4", [4, 9]),
        ("limit=x&offset=-1", [0, 1, 2, 3, 4, 9]),
        ("limit=-5", [0, 1, 2, 3, 4, 9]),
        ("limit=0", []),
        ("offset=9", []),
        ("limit=99999999999999999999&offset=٣", [0, 1, 2, 3, 4, 9]),
        ("event='%20OR%201%3D1%20--", []),
    ],
)
async def test_filters_of_events(filled: SandboxClient, query: str, numbers: list[int]) -> None:
    """Each filter, several together, and pages; a limit or offset that is none is the default."""
    listing = await filled.get(f"/sandbox/events?{query}")
    assert [int(shown["uuid"][-1]) for shown in listing["results"]] == numbers
    if "limit" not in query and "offset" not in query:
        assert listing["count"] == len(numbers)


@pytest.mark.parametrize("query", ["limit=2", "limit=2&offset=5", "offset=100", "limit=0"])
async def test_count_is_of_everything(filled: SandboxClient, query: str) -> None:
    """`count` is how many there are, not how many are on the page."""
    assert (await filled.get(f"/sandbox/events?{query}"))["count"] == 6


async def test_a_time_that_is_none(filled: SandboxClient) -> None:
    """`since=yesterday` is 400, by name."""
    reply = await filled.ask("GET", "/sandbox/events?since=yesterday")
    assert (reply.status, reply.text) == (400, "since is not an ISO 8601 time")


@pytest.mark.parametrize(
    ("query", "requests"),
    [
        ("", [1, 2, 3, 4]),
        ("path=/batch", [1, 3, 4]),
        ("path=/batch/", [1, 3, 4]),
        ("path=/capture/", [2]),
        ("status=400", [4]),
        ("status=200&path=/batch/", [1, 3]),
        (f"api_key={KEY}", [1, 3]),
        ("limit=1&offset=1", [2]),
    ],
)
async def test_filters_of_requests(filled: SandboxClient, query: str, requests: list[int]) -> None:
    """Each filter, and pages; a path with or without its slash."""
    assert [
        shown["request"] for shown in (await filled.get(f"/sandbox/requests?{query}"))["results"]
    ] == requests


async def test_a_request_shows_what_was_not_ingested(filled: SandboxClient) -> None:
    """The events of it that were left out are there with reason and bytes; a refused request with
    what was said.
    """
    _, _, third, fourth = (await filled.get("/sandbox/requests"))["results"]
    assert [(it["index"], it["reason"]) for it in third["not_ingested"]] == [(2, "no_name")]
    assert '"event": null' in third["not_ingested"][0]["raw"]
    assert third["arrivals"] == 2
    assert (fourth["status"], fourth["error"]) == (400, fourth["answer"])
    assert fourth["error"].startswith("the body is not JSON")


async def test_conflicts_show_both(filled: SandboxClient) -> None:
    """A conflict is shown with the first event of its uuid."""
    listing = await filled.get("/sandbox/conflicts")
    [conflict] = listing["results"]
    assert (listing["count"], conflict["uuid"]) == (1, uuid(1))
    assert (conflict["first"]["properties"], conflict["second"]["properties"]) == (
        {"n": 1},
        {"n": 2},
    )
    assert (conflict["second"]["first"], conflict["second"]["kind"]) == (
        conflict["first"]["arrival"],
        "conflict",
    )
    assert await filled.get("/sandbox/conflicts?offset=1") == {"count": 1, "results": []}


async def test_the_summary(filled: SandboxClient) -> None:
    """The figures add up: arrivals are events, duplicates and conflicts."""
    arrived = {
        "requests": 4,
        "arrivals": 8,
        "events": 6,
        "duplicates": 1,
        "conflicts": 1,
        "not_ingested": 1,
    }
    expected = {**arrived, "persons": 6, "groups": 0, "refused": 1}
    assert await filled.get("/sandbox/summary") == expected


async def test_keys_are_masked(filled: SandboxClient) -> None:
    """No listing shows a whole project key, though it can be asked for with one."""
    await filled.post(f"/batch/?token={KEY}", batch(event()))
    for listing in ("events", "requests", "conflicts"):
        text = (await filled.ask("GET", f"/sandbox/{listing}?arrivals=true&api_key={KEY}")).text
        assert KEY not in text
        assert OTHER not in text
    assert (await filled.get("/sandbox/events"))["results"][0]["api_key"] == "phc_…0001"


async def test_a_personal_key_is_masked_where_it_does_not_belong() -> None:
    """One in the query of a request that is refused for it isn't shown either."""
    async with talking() as client:
        assert (await client.post("/e/?token=phx_personalpersonal99", event())).status == 401
        [request] = (await client.get("/sandbox/requests"))["results"]
    assert request["query"] == "token=phx_…al99"


async def test_properties_are_shown_as_sent() -> None:
    """Numbers beyond a double, repeated keys and escapes stand in the listing
    as they stood in the body.
    """
    properties = (
        r'{"big":123456789012345678901234567890,"one":1.0,"e":1E+5,"a":1,"a":2,"s":"\u00e9\/",'
        r'"out":1e999}'
    )
    async with talking() as client:
        body = (
            f'{{"api_key":"{KEY}","batch":[{{"event":"e","distinct_id":"a","properties": '
            f"{properties} }}]}}"
        )
        await client.post("/batch/", body.encode())
        text = (await client.ask("GET", "/sandbox/events")).text
    assert f'"properties": {properties}' in text


async def test_forgetting(filled: SandboxClient) -> None:
    """DELETE forgets events, requests and conflicts."""
    assert (await filled.ask("DELETE", "/sandbox/events")).status == 204
    assert set((await filled.get("/sandbox/summary")).values()) == {0}
    for listing in ("events?arrivals=true", "requests", "conflicts"):
        assert await filled.get(f"/sandbox/{listing}") == {"count": 0, "results": []}


async def test_the_rest() -> None:
    """The index names every endpoint, `/livez` answers, and nothing else of /sandbox is there."""
    async with talking() as client:
        index: Any = (await client.ask("GET", "/")).text
        for path in (
            "/decide",
            "/batch/",
            "/capture/",
            "/sandbox/events",
            "/sandbox/requests",
            "/sandbox/conflicts",
            "/sandbox/summary",
        ):
            assert path in index
        assert all(f"{endpoint.method:<6} {endpoint.path}\n" in index for endpoint in ENDPOINTS)
        assert (await client.ask("GET", "/livez")).status == 200
        assert (await client.ask("GET", "/sandbox/nothing")).status == 404
