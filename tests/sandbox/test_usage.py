"""Surveys, flags and what else an event can be found by."""

from __future__ import annotations

from typing import Any

import pytest

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, UUID, batch, event, talking

OTHER = "phc_another_key_000000002"


def survey(what: str, survey_id: Any, response: Any = ...) -> dict[str, Any]:
    """An event of a survey."""
    answer = {} if response is ... else {"$survey_response": response}
    return event(event=f"survey {what}", properties={"$survey_id": survey_id, **answer})


def called(flag: str, response: Any) -> dict[str, Any]:
    """A check of a flag."""
    return event(event="$feature_flag_called", properties={"$feature_flag": flag, "$feature_flag_response": response})


@pytest.mark.parametrize("what", ["sent", "shown", "dismissed"])
async def test_a_survey_needs_its_id(what: str) -> None:
    """By the contract an event of a survey without `$survey_id` is not ingested, and the request is 200; the real service doesn't look."""
    for strict, reasons in ((False, ["no_survey_id"] * 3), (True, [])):
        async with talking(SandboxOptions(strict=strict)) as client:
            nameless = [survey(what, None), survey(what, " "), event(event=f"survey {what}", properties={})]
            assert (await client.post("/batch/", batch(*nameless, survey(what, "s"), event()))).status == 200
            [request] = await client.sandbox.requests()
            assert [str(one.reason) for one in request.not_ingested] == reasons
            assert request.arrivals == 5 - len(reasons)


async def test_what_became_of_surveys() -> None:
    """Each survey is counted by what happened to it, and its responses by how often they came; a repeat counts once."""
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
        assert {"survey_id": "s", "api_key": "phc_…0001", "shown": 1, "dismissed": 0, "sent": 4, "responses": responses} in listing[
            "results"
        ]
        assert [use["survey_id"] for use in (await client.get(f"/sandbox/surveys?api_key={KEY}"))["results"]] == ["7", "s"]
        assert (await client.get("/sandbox/events?survey_id=s"))["count"] == 6
        assert len((await client.get("/sandbox/surveys?limit=1&offset=2"))["results"]) == 1


async def test_how_flags_were_used() -> None:
    """Checks are counted by flag and response; events attributed to a flag are found by it, and so are its checks."""
    async with talking() as client:
        attributed = event(properties={"$feature/beta": "test", "$feature/other": False})
        await client.post(
            "/batch/", batch(called("beta", "test"), called("beta", "test"), called("beta", True), called("x", None), attributed)
        )
        listing = await client.get("/sandbox/flag-calls")
        assert [(use["flag"], use["calls"]) for use in listing["results"]] == [("beta", 3), ("x", 1)]
        assert listing["results"][0]["responses"] == [{"response": "test", "count": 2}, {"response": True, "count": 1}]
        assert listing["results"][1]["responses"] == []
        assert [use.flag for use in await client.sandbox.flag_calls()] == ["beta", "x"]
        for query, count in (("feature=beta", 4), ("feature=other", 1), ("feature=none", 0), ("feature=x&event=seen", 0)):
            assert (await client.get(f"/sandbox/events?{query}"))["count"] == count


async def test_views_and_texts() -> None:
    """Page and screen views are recorded with what they saw, and any text of an event finds it, whatever it is made of."""
    async with talking() as client:
        page = event(event="$pageview", properties={"$current_url": "https://shop.example.com/100%_off"})
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
            assert [one["event"] for one in (await client.get(f"/sandbox/events?{query}"))["results"]] == names
        assert [one["request"] for one in (await client.get("/sandbox/requests?order=newest"))["results"]] == [1]
