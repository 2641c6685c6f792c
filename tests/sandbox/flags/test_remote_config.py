"""What a browser's SDK asks before it begins, and from another origin."""

from __future__ import annotations

import json

import pytest

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.flags.remote_config import LIST_PATHS
from forwarder.sandbox.web.service import _GET_HANDLERS, POST_HANDLERS
from tests.sandbox.client import KEY, batch, event, talking
from tests.sandbox.defining import define
from tests.support.cases import cases

ORIGIN = "https://shop.example.com"


async def test_settings() -> None:
    """The settings of a project: everything that could be on is off, and events
    go where they are taken.
    """
    async with talking() as client:
        for slash in ("", "/"):
            settings = (await client.ask("GET", f"/array/{KEY}/config{slash}?ip=0")).json
            assert (
                settings["token"],
                settings["sessionRecording"],
                settings["surveys"],
                settings["siteApps"],
            ) == (KEY, False, False, [])
            answer = await client.post(settings["analytics"]["endpoint"], batch(event()))
            assert answer.status == 200
        assert KEY not in (await client.ask("GET", "/sandbox/requests")).text


async def test_settings_of_a_project_with_flags() -> None:
    """`hasFeatureFlags` is true where a flag is active, or SDKs would not ask for any."""
    async with talking() as client:
        path = f"/array/{KEY}/config"
        for flags, expected in (
            ({"a": {"active": False}}, False),
            ({"b": {"deleted": True}}, False),
            ({"c": {}}, True),
        ):
            await define(client, **flags)
            assert (await client.get(path))["hasFeatureFlags"] is expected
            script = await client.ask("GET", f"{path}.js")
            assert f'"hasFeatureFlags": {json.dumps(expected)}' in script.text
        answer = await client.post("/flags/?v=2&config=true", {"token": KEY, "distinct_id": "ann"})
        assert answer.json["hasFeatureFlags"] is True


async def test_settings_as_a_script() -> None:
    """The script leaves the same settings where the SDK looks for them."""
    async with talking() as client:
        reply = await client.ask("GET", f"/array/{KEY}/config.js")
        assert reply.headers["Content-Type"].startswith("application/javascript")
        before, _, rest = reply.text.partition("]=")
        assert before.endswith(f"[{json.dumps(KEY)}")
        left = json.loads(rest.partition("})(window._POSTHOG_REMOTE_CONFIG")[0])
        assert left == {
            "config": (await client.ask("GET", f"/array/{KEY}/config")).json,
            "siteApps": [],
        }


@cases(
    "path",
    ["/array/{}/config", "/array/{}/config.js", *[f"{path}/?token={{}}" for path in LIST_PATHS]],
)
async def test_whose_settings_there_are(path: str) -> None:
    """A project that doesn't exist is 404, a key that can't be one 401; a
    script in a key stays text.
    """
    async with talking(SandboxOptions(api_keys=frozenset({KEY, "</script>"}))) as client:
        answers = [
            (await client.ask("GET", path.format(key))).status
            for key in (KEY, "phc_unknown", "phx_personal")
        ]
        assert answers == [200, 404, 401]
        assert "</script>" not in (await client.ask("GET", "/array/%3C%2Fscript%3E/config.js")).text


async def test_lists() -> None:
    """What else a browser's SDK asks for is there, and empty."""
    async with talking() as client:
        lists = [(await client.ask("GET", f"{path}/?token={KEY}")).json for path in LIST_PATHS]
        assert lists == [
            {"surveys": [], "survey_config": None},
            {"earlyAccessFeatures": []},
            {"product_tours": []},
            {"experiments": []},
        ]


@cases("path", ["/static/recorder.js", "/static/1.2.3/array.js?v=1", f"/array/{KEY}/array.js"])
async def test_bundles(path: str) -> None:
    """The SDK's own bundles are not here, and the answer says where they come from."""
    async with talking() as client:
        reply = await client.ask("GET", path)
        assert (reply.status, "posthog-js" in reply.text) == (404, True)
        assert [one.status for one in await client.sandbox.requests()] == [404]


@cases(
    "path",
    [path.format(token=KEY, project="1", key="x") for path in {**POST_HANDLERS, **_GET_HANDLERS}],
)
async def test_other_origins_may_ask(path: str) -> None:
    """A page of another origin may send to each endpoint whatever its browser asks for, and is not
    recorded for asking.
    """
    asking = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,posthog-attempt",
    }
    async with talking() as client:
        for slash in ("", "/"):
            reply = await client.ask("OPTIONS", path + slash, headers=asking)
            assert reply.status == 200
            assert reply.headers["Access-Control-Allow-Origin"] == ORIGIN
            assert reply.headers["Access-Control-Allow-Headers"] == "authorization,posthog-attempt"
            assert {"GET", "POST"} <= set(reply.headers["Access-Control-Allow-Methods"].split(", "))
        assert await client.sandbox.requests() == []


async def test_other_origins_may_read_answers() -> None:
    """Every answer of the service says who may read it, refusals too; what the sandbox shows says
    nothing of the kind.
    """
    async with talking(SandboxOptions(max_body=100)) as client:
        for body in (batch(event()), b"{", b"x" * 200):
            reply = await client.post("/e/", body, Origin=ORIGIN)
            assert (reply.headers["Access-Control-Allow-Origin"], reply.headers["Vary"]) == (
                ORIGIN,
                "Origin",
            )
        assert (
            "Access-Control-Allow-Origin" not in (await client.post("/e/", batch(event()))).headers
        )
        assert (
            "Access-Control-Allow-Origin"
            not in (await client.ask("GET", "/sandbox/events", headers={"Origin": ORIGIN})).headers
        )


@pytest.mark.parametrize("strict", [False, True])
async def test_replays_are_accepted_and_dropped(strict: bool) -> None:
    """A part of a replay is checked and recorded; it makes no event."""
    snapshot = {
        "event": "$snapshot",
        "properties": {"token": KEY, "distinct_id": "ann", "$snapshot_data": []},
    }
    async with talking(SandboxOptions(strict=strict, api_keys=frozenset({KEY}))) as client:
        assert (await client.post("/s/?compression=gzip-js", [snapshot])).status == 400
        reply = await client.post("/s/?ver=1", [snapshot])
        assert (reply.status, reply.json) == (200, {"status": "Ok"})
        assert (await client.post("/s/?beacon=1", [snapshot])).status == 204
        unknown = {**snapshot, "properties": {"token": "phc_unknown"}}
        assert (await client.post("/s/", unknown)).status == (200 if strict else 401)
        summary = await client.sandbox.summary()
        assert (summary.requests, summary.arrivals, summary.persons) == (4, 0, 0)


async def test_events_of_language_models() -> None:
    """`/i/v0/ai/batch/` takes a batch as `/batch/` does."""
    async with talking() as client:
        answer = await client.post("/i/v0/ai/batch/", batch(event(event="$ai_generation")))
        assert answer.status == 200
        assert [one.event for one in await client.sandbox.events()] == ["$ai_generation"]
