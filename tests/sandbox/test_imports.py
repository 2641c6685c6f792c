"""What came of an import: counted by day, and its uuids page by page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.imports import ImportedEvent, imported, imports
from forwarder.sandbox.selection import ImportFilter, Page
from forwarder.sandbox.store import Store
from tests.sandbox.client import KEY, Client, batch, event, talking

JOB = "11111111-2222-5333-8444-555555555555"
OTHER_KEY = "phc_another_key_000000002"


def imported_event(number: int, day: int = 1, job: Any = JOB, **more: Any) -> dict[str, Any]:
    """One of an import's events; its uuid and its time follow from its number."""
    time = f"2024-01-{day:02}T00:{number // 60:02}:{number % 60:02}.000Z"
    return event(uuid=str(UUID(int=number)), timestamp=time, properties={"$import_job_id": job, **more})


async def pages(client: Client, query: str) -> list[list[str]]:
    """The uuids of each page, one after the other."""
    found, after = [], ""
    while True:
        page = await client.get(f"/sandbox/import-events?{query}&after={after}")
        found.append([one["uuid"] for one in page["results"]])
        if page["next"] is None:
            return found
        after = page["next"]


async def test_what_came_is_counted_by_day() -> None:
    """Events once, repeats and conflicts apart, each on the day of its own time."""
    async with talking() as client:
        await client.post("/batch/", batch(imported_event(1), imported_event(2), imported_event(3, day=2)))
        await client.post("/batch/", batch(imported_event(2), imported_event(3, day=4), imported_event(1, plan="pro")))
        listing = await client.get("/sandbox/imports")
        [same] = await client.sandbox.imports()
    days = [
        {"day": "2024-01-01", "events": 2, "duplicates": 1, "conflicts": 1},
        {"day": "2024-01-02", "events": 1, "duplicates": 0, "conflicts": 0},
        {"day": "2024-01-04", "events": 0, "duplicates": 0, "conflicts": 1},
    ]
    counts = {"events": 3, "duplicates": 1, "conflicts": 2}
    assert listing == {"count": 1, "results": [{"job": JOB, "api_key": "phc_…0001", **counts, "days": days}]}
    assert [asdict(day) for day in same.days] == days


async def test_imports_and_projects_are_told_apart() -> None:
    """By name and by key; what says no import, or none that is text, belongs to none."""
    async with talking() as client:
        of_none = (imported_event(3, job=None), imported_event(4, job=7))
        await client.post("/batch/", batch(imported_event(1), imported_event(2, job="b"), *of_none))
        await client.post("/batch/", {**batch(imported_event(1), event()), "api_key": OTHER_KEY})
        for query, counts in {"": [1, 1, 1], f"import={JOB}": [1, 1], f"import={JOB}&api_key={KEY}": [1], "import=x": []}.items():
            listing = await client.get(f"/sandbox/imports?{query}")
            assert [each["events"] for each in listing["results"]] == counts
            assert listing["count"] == len(counts)
        part = await client.get("/sandbox/imports?order=newest&limit=1&offset=1")
        assert [(each["job"], each["api_key"]) for each in part["results"]] == [(JOB, "phc_…0001")]
        assert (await client.get("/sandbox/events?import=b"))["count"] == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
async def test_uuids_come_page_by_page(limit: int) -> None:
    """Each event once and none left out, in the order of time wherever a page ends, also among events of the same time."""
    some = [imported_event(number) for number in (5, 3, 9)]
    same_time = [{**imported_event(number), "timestamp": "2024-01-01T00:00:04Z"} for number in (40, 20, 30, 10)]
    expected = [str(UUID(int=number)) for number in (3, 10, 20, 30, 40, 5, 9)]
    async with talking() as client:
        await client.post("/batch/", batch(*some, *same_time, some[0], imported_event(9, day=3), imported_event(1, job="b")))
        found = await pages(client, f"import={JOB}&limit={limit}")
    assert [uuid for page in found for uuid in page] == expected
    assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)


@pytest.mark.parametrize("after", ["", "_", "x", "2024-01-01T00:00:01.000000Z", "2024-01-01T00:00:01.000000Z_zzz", "%00_%F0"])
async def test_a_page_after_anything(after: str) -> None:
    """What isn't from a page before is compared as text; nothing fails."""
    async with talking() as client:
        await client.post("/batch/", batch(imported_event(1), imported_event(2)))
        page = await client.get(f"/sandbox/import-events?import={JOB}&after={after}&limit=0")
    assert page == {"next": None, "results": []}


async def test_the_newer_protocol_brings_imports_too() -> None:
    """Whatever path an event came by, the property says what it belongs to."""
    stamp = "2024-01-01T00:00:00Z"
    headers = {
        "Authorization": f"Bearer {KEY}",
        "PostHog_Sdk_Info": "x/1",
        "PostHog_Attempt": "1",
        "PostHog_Request_Id": str(UUID(int=9)),
        "PostHog_Request_Timestamp": stamp,
        "User_Agent": "x",
        "Content_Type": "application/json",
    }
    async with talking() as client:
        reply = await client.post("/i/v1/analytics/events", {"created_at": stamp, "batch": [imported_event(1)]}, **headers)
        assert reply.status == 200, reply.text
        assert await pages(client, f"import={JOB}") == [[str(UUID(int=1))]]


async def test_a_kill_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """What was committed is there after the next start, with its import, and the same bytes again are repeats."""
    options = SandboxOptions(database=tmp_path / "x.db")
    sent = batch(*(imported_event(number) for number in range(1, 50)))
    for turn in range(3):
        async with talking(options) as client:
            await client.post("/batch/", sent)
            [found] = (await client.get("/sandbox/imports"))["results"]
        assert (found["events"], found["duplicates"], found["conflicts"]) == (49, 49 * turn, 0)


@pytest.mark.parametrize("wanted", [ImportFilter(JOB), ImportFilter(JOB, KEY)])
def test_both_questions_read_the_index_alone(wanted: ImportFilter) -> None:
    """No event of a million is touched for them, and a page is found without passing those before it."""
    store = Store(None)
    asked: list[str] = []
    store.connection.set_trace_callback(asked.append)
    imports(store, wanted, Page())
    imported(store, wanted, ImportedEvent("2024", ""), 10)
    store.connection.set_trace_callback(None)
    counting, paging = (" ".join(row[3] for row in store.select(f"EXPLAIN QUERY PLAN {statement}", [])) for statement in asked)
    store.close()
    assert "COVERING INDEX imported (import_job=?)" in counting
    assert paging.startswith("SEARCH events USING COVERING INDEX imported (import_job=? AND ")
    assert "TEMP B-TREE" not in paging
