"""Counts of surveys, flags and imports."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.store.aggregates import ImportedEventKey, imported, imports
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.stored_records import ImportFilter, ListingPage
from tests.sandbox.client import KEY, UUID, SandboxClient, batch, event, talking
from tests.support.cases import cases

OTHER = "phc_another_key_000000002"


def survey(what: str, survey_id: Any, response: Any = ...) -> dict[str, Any]:
    """An event of a survey."""
    answer = {} if response is ... else {"$survey_response": response}
    return event(event=f"survey {what}", properties={"$survey_id": survey_id, **answer})


def called(flag: str, response: Any) -> dict[str, Any]:
    """A check of a flag."""
    return event(
        event="$feature_flag_called",
        properties={"$feature_flag": flag, "$feature_flag_response": response},
    )


@cases("what", ["sent", "shown", "dismissed"])
async def test_a_survey_needs_its_id(what: str) -> None:
    """By the contract an event of a survey without `$survey_id` is not ingested, and the request
    is 200; the real service doesn't look.
    """
    for strict, reasons in ((False, ["no_survey_id"] * 3), (True, [])):
        async with talking(SandboxOptions(strict=strict)) as client:
            nameless = [
                survey(what, None),
                survey(what, " "),
                event(event=f"survey {what}", properties={}),
            ]
            result = await client.post("/batch/", batch(*nameless, survey(what, "s"), event()))
            assert result.status == 200
            [request] = await client.sandbox.requests()
            assert [str(one.reason) for one in request.not_ingested] == reasons
            assert request.arrivals == 5 - len(reasons)


async def test_surveys_are_counted_by_outcome_and_response() -> None:
    """Each survey is counted by what happened to it, and its responses by how often they came; a
    repeat counts once.
    """
    repeated = {**survey("sent", "s", "good"), "uuid": UUID}
    async with talking() as client:
        events = [
            repeated,
            survey("sent", "s", "bad"),
            survey("sent", "s", "good"),
            survey("sent", "s"),
            survey("shown", "s"),
            survey("dismissed", 7),
        ]
        await client.post("/batch/", batch(*events, repeated))
        await client.post("/batch/", {**batch(survey("shown", "s")), "api_key": OTHER})
        listing = await client.get("/sandbox/surveys")
        responses = [{"response": "good", "count": 2}, {"response": "bad", "count": 1}]
        assert listing["count"] == 3
        assert {
            "survey_id": "s",
            "api_key": "phc_…0001",
            "shown": 1,
            "dismissed": 0,
            "sent": 4,
            "responses": responses,
        } in listing["results"]
        assert [
            use["survey_id"]
            for use in (await client.get(f"/sandbox/surveys?api_key={KEY}"))["results"]
        ] == ["7", "s"]
        assert (await client.get("/sandbox/events?survey_id=s"))["count"] == 6
        assert len((await client.get("/sandbox/surveys?limit=1&offset=2"))["results"]) == 1


async def test_how_flags_were_used() -> None:
    """Checks are counted by flag and response; events attributed to a flag are found by it, and so
    are its checks.
    """
    async with talking() as client:
        attributed = event(properties={"$feature/beta": "test", "$feature/other": False})
        await client.post(
            "/batch/",
            batch(
                called("beta", "test"),
                called("beta", "test"),
                called("beta", True),
                called("x", None),
                attributed,
            ),
        )
        listing = await client.get("/sandbox/flag-calls")
        assert [(use["flag"], use["calls"]) for use in listing["results"]] == [
            ("beta", 3),
            ("x", 1),
        ]
        assert listing["results"][0]["responses"] == [
            {"response": "test", "count": 2},
            {"response": True, "count": 1},
        ]
        assert listing["results"][1]["responses"] == []
        assert [use.flag for use in await client.sandbox.flag_calls()] == ["beta", "x"]
        for query, count in (
            ("feature=beta", 4),
            ("feature=other", 1),
            ("feature=none", 0),
            ("feature=x&event=seen", 0),
        ):
            assert (await client.get(f"/sandbox/events?{query}"))["count"] == count


async def test_views_and_texts() -> None:
    """Page and screen views are recorded with what they saw, and any text of an event finds it,
    whatever it is made of.
    """
    async with talking() as client:
        page = event(
            event="$pageview", properties={"$current_url": "https://shop.example.com/100%_off"}
        )
        screen = event(event="$screen", properties={"$screen_name": "Home"})
        await client.post("/batch/", batch(page, screen, event()))
        for query, names in (
            ("q=SHOP.example", ["$pageview"]),
            ("q=100%25_", ["$pageview"]),
            ("q=0__o", []),
            ("q=Home", ["$screen"]),
            ("q=", ["$pageview", "$screen", "seen"]),
            ("q=!", []),
            ("order=newest", ["seen", "$screen", "$pageview"]),
            ("order=newest&limit=1&offset=1", ["$screen"]),
        ):
            assert [
                one["event"] for one in (await client.get(f"/sandbox/events?{query}"))["results"]
            ] == names
        assert [
            one["request"]
            for one in (await client.get("/sandbox/requests?order=newest"))["results"]
        ] == [1]


JOB = "11111111-2222-5333-8444-555555555555"
OTHER_KEY = "phc_another_key_000000002"


def imported_event(number: int, day: int = 1, job: Any = JOB, **more: Any) -> dict[str, Any]:
    """One of an import's events; its uuid and its time follow from its number."""
    time = f"2024-01-{day:02}T00:{number // 60:02}:{number % 60:02}.000Z"
    return event(
        uuid=str(uuid.UUID(int=number)), timestamp=time, properties={"$import_job_id": job, **more}
    )


async def pages(client: SandboxClient, query: str) -> list[list[str]]:
    """The uuids of each page, one after the other."""
    uuid_pages = []
    after = ""
    while True:
        page = await client.get(f"/sandbox/import-events?{query}&after={after}")
        uuid_pages.append([one["uuid"] for one in page["results"]])
        if page["next"] is None:
            return uuid_pages
        after = page["next"]


async def test_events_are_counted_by_day() -> None:
    """Events once, repeats and conflicts apart, each on the day of its own time."""
    async with talking() as client:
        await client.post(
            "/batch/", batch(imported_event(1), imported_event(2), imported_event(3, day=2))
        )
        await client.post(
            "/batch/",
            batch(imported_event(2), imported_event(3, day=4), imported_event(1, plan="pro")),
        )
        listing = await client.get("/sandbox/imports")
        [same] = await client.sandbox.imports()
    days = [
        {"day": "2024-01-01", "events": 2, "duplicates": 1, "conflicts": 1},
        {"day": "2024-01-02", "events": 1, "duplicates": 0, "conflicts": 0},
        {"day": "2024-01-04", "events": 0, "duplicates": 0, "conflicts": 1},
    ]
    counts = {"events": 3, "duplicates": 1, "conflicts": 2}
    assert listing == {
        "count": 1,
        "results": [{"job": JOB, "api_key": "phc_…0001", **counts, "days": days}],
    }
    assert [asdict(day) for day in same.days] == days


async def test_imports_and_projects_are_distinguished() -> None:
    """By name and by key; what says no import, or none that is text, belongs to none."""
    async with talking() as client:
        of_none = (imported_event(3, job=None), imported_event(4, job=7))
        await client.post("/batch/", batch(imported_event(1), imported_event(2, job="b"), *of_none))
        await client.post("/batch/", {**batch(imported_event(1), event()), "api_key": OTHER_KEY})
        for query, counts in {
            "": [1, 1, 1],
            f"import={JOB}": [1, 1],
            f"import={JOB}&api_key={KEY}": [1],
            "import=x": [],
        }.items():
            listing = await client.get(f"/sandbox/imports?{query}")
            assert [import_job["events"] for import_job in listing["results"]] == counts
            assert listing["count"] == len(counts)
        part = await client.get("/sandbox/imports?order=newest&limit=1&offset=1")
        assert [(import_job["job"], import_job["api_key"]) for import_job in part["results"]] == [
            (JOB, "phc_…0001")
        ]
        assert (await client.get("/sandbox/events?import=b"))["count"] == 1


@cases("limit", [1, 2, 3, 7, 8, 100])
async def test_uuids_come_page_by_page(limit: int) -> None:
    """Each event once and none left out, in the order of time wherever a page ends, also among
    events of the same time.
    """
    some = [imported_event(number) for number in (5, 3, 9)]
    same_time = [
        {**imported_event(number), "timestamp": "2024-01-01T00:00:04Z"}
        for number in (40, 20, 30, 10)
    ]
    expected = [str(uuid.UUID(int=number)) for number in (3, 10, 20, 30, 40, 5, 9)]
    async with talking() as client:
        await client.post(
            "/batch/",
            batch(*some, *same_time, some[0], imported_event(9, day=3), imported_event(1, job="b")),
        )
        uuid_pages = await pages(client, f"import={JOB}&limit={limit}")
    assert [uuid for page in uuid_pages for uuid in page] == expected
    assert [len(page) for page in uuid_pages[:-1]] == [limit] * (len(uuid_pages) - 1)


@cases(
    "after",
    ["", "_", "x", "2024-01-01T00:00:01.000000Z", "2024-01-01T00:00:01.000000Z_zzz", "%00_%F0"],
)
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
        "PostHog_Request_Id": str(uuid.UUID(int=9)),
        "PostHog_Request_Timestamp": stamp,
        "User_Agent": "x",
        "Content_Type": "application/json",
    }
    async with talking() as client:
        reply = await client.post(
            "/i/v1/analytics/events", {"created_at": stamp, "batch": [imported_event(1)]}, **headers
        )
        assert reply.status == 200, reply.text
        assert await pages(client, f"import={JOB}") == [[str(uuid.UUID(int=1))]]


async def test_a_kill_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """What was committed is there after the next start, with its import, and the same bytes again
    are repeats.
    """
    options = SandboxOptions(database=tmp_path / "x.db")
    sent = batch(*(imported_event(number) for number in range(1, 50)))
    for turn in range(3):
        async with talking(options) as client:
            await client.post("/batch/", sent)
            [import_job] = (await client.get("/sandbox/imports"))["results"]
        assert (import_job["events"], import_job["duplicates"], import_job["conflicts"]) == (
            49,
            49 * turn,
            0,
        )


@pytest.mark.parametrize("wanted", [ImportFilter(JOB), ImportFilter(JOB, KEY)])
def test_both_questions_read_the_index_alone(wanted: ImportFilter) -> None:
    """No event of a million is touched for them, and a page is found without
    passing those before it.
    """
    store = Store(None)
    asked: list[str] = []
    store.connection.set_trace_callback(asked.append)
    imports(store, wanted, ListingPage())
    imported(store, wanted, ImportedEventKey("2024", ""), 10)
    store.connection.set_trace_callback(None)
    counting, paging = (
        " ".join(row[3] for row in store.select(f"EXPLAIN QUERY PLAN {statement}", []))
        for statement in asked
    )
    store.close()
    assert "COVERING INDEX imported (import_job=?)" in counting
    assert paging.startswith("SEARCH events USING COVERING INDEX imported (import_job=? AND ")
    assert "TEMP B-TREE" not in paging
