"""Flags and cohorts over HTTP: set, shown, changed, deleted, and who gets what and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, batch, event, talking
from tests.sandbox.defining import define, flag, person_is, put, values
from tests.support import management as seed
from tests.support.cases import cases
from tests.support.management import seeded

FULL: dict[str, Any] = {
    "id": 4711,
    "key": "checkout",
    "name": "The new checkout",
    "active": True,
    "deleted": False,
    "filters": {
        "groups": [{"properties": [], "rollout_percentage": 100, "variant": None}],
        "multivariate": {"variants": [{"key": "red", "rollout_percentage": 100}]},
        "payloads": {"red": '{"colour": "#f00"}'},
        "aggregation_group_type_index": None,
    },
    "ensure_experience_continuity": False,
    "version": 9,
    "tags": [1, {"a": None}],
}


async def test_the_services_form() -> None:
    """A definition comes back as it was set, other fields too; it decides at once."""
    async with talking() as client:
        assert (await put(client, "flags/checkout", FULL)).json == FULL
        assert await client.get(f"/sandbox/flags/checkout?api_key={KEY}") == FULL
        assert await values(client) == {"checkout": "red"}


@cases(
    ("content", "on"),
    [
        ({"active": True}, True),
        ({}, True),
        ({"filters": {}}, True),
        ({"filters": {"properties": [person_is("plan", "pro")]}}, False),
        ({"rollout_percentage": 0}, False),
        ({"filters": {"rollout_percentage": 0}}, False),
        ({"filters": {"groups": []}}, False),
        ({"filters": {"groups": [{}]}}, True),
        ({"active": None, "name": None, "version": None, "id": None}, True),
    ],
)
async def test_missing_members_of_a_flag_are_filled_in(content: dict[str, Any], on: bool) -> None:
    """A short form is enough; without groups of conditions it is the older one, with an empty list
    of them no one has the flag.
    """
    async with talking() as client:
        stored_flag = (await put(client, "flags/beta", content)).json
        assert set(stored_flag) >= {
            "id",
            "key",
            "name",
            "active",
            "deleted",
            "filters",
            "version",
            "ensure_experience_continuity",
        }
        assert (stored_flag["key"], stored_flag["version"], type(stored_flag["id"])) == (
            "beta",
            1,
            int,
        )
        assert await values(client) == {"beta": on}


async def test_setting_again() -> None:
    """The id stays, the version grows, and the definitions of one project are none of another's."""
    async with talking() as client:
        first = (await put(client, "flags/beta", flag())).json
        second = (await put(client, "flags/beta", {"active": False})).json
        assert (second["id"], second["version"]) == (first["id"], 2)
        other = f"/sandbox/flags/beta?api_key={KEY}2"
        assert (await client.ask("GET", other)).status == 404
        await client.ask("PUT", other, b"{}")
        assert (await client.get("/sandbox/flags"))["count"] == 2
        assert await values(client) == {}


@cases(
    ("content", "attr"),
    [
        (b"{", None),
        (b"", None),
        (b"[" * 100_000, None),
        (b'{"filters": NaN}', None),
        (b'{"name": "\\ud800"}', None),
        ([], None),
        ({"key": "other"}, "key"),
        ({"id": "7"}, "id"),
        ({"id": True}, "id"),
        ({"version": 1.5}, "version"),
        ({"active": "yes"}, "active"),
        ({"filters": []}, "filters"),
        ({"filters": {"groups": {}}}, "filters.groups"),
        (
            {"filters": {"groups": [{"rollout_percentage": 101}]}},
            "filters.groups[0].rollout_percentage",
        ),
        (
            {"filters": {"groups": [{"properties": [{"value": 1}]}]}},
            "filters.groups[0].properties[0].key",
        ),
        (
            {"filters": {"groups": [], "multivariate": {"variants": [{}]}}},
            "filters.multivariate.variants[0].key",
        ),
    ],
)
async def test_invalid_flags(content: Any, attr: str | None) -> None:
    """An invalid definition is 400 with the place of the fault, and leaves what is there."""
    async with talking() as client:
        await define(client, beta=flag())
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        reply = await client.ask("PUT", f"/sandbox/flags/beta?api_key={KEY}", body)
        assert (reply.status, reply.json["type"], reply.json["attr"]) == (
            400,
            "validation_error",
            attr,
        )
        assert await values(client) == {"beta": True}


async def test_too_large() -> None:
    """A body that is too large is 413; a cohort of 100,000 e-mail addresses is not."""
    async with talking() as client:
        addresses = [f"person{number}@example.com" for number in range(100_000)]
        await put(
            client,
            "cohorts/7",
            {"filters": {"properties": {"type": "AND", "values": [person_is("email", addresses)]}}},
        )
        await define(client, beta=flag(person_is("id", 7, "in", "cohort")))
        assert await values(client, person_properties={"email": addresses[-1]}) == {"beta": True}
        answer = await client.ask("PUT", f"/sandbox/flags/beta?api_key={KEY}", b" " * 10_000_000)
        assert answer.status == 413


@cases(
    ("path", "attr"),
    [
        ("flags/beta", "api_key"),
        ("flags/beta?api_key=phx_personal", "api_key"),
        ("flags/beta?api_key=phc_unknown", "api_key"),
        (f"cohorts/x?api_key={KEY}", "id"),
        (f"cohorts/0?api_key={KEY}", "id"),
        (f"cohorts/{'9' * 30}?api_key={KEY}", "id"),
        (f"flags/{'x' * 500}?api_key={KEY}", "key"),
    ],
)
async def test_unknown_projects_and_invalid_ids_are_400(path: str, attr: str) -> None:
    """A project that doesn't exist, and an id that is none, are 400."""
    async with talking(SandboxOptions(api_keys=frozenset({KEY}))) as client:
        reply = await client.ask("PUT", f"/sandbox/{path}", b"{}")
        assert (reply.status, reply.json["attr"]) == (400, attr)


async def test_odd_keys() -> None:
    """Any text is a key, if it is encoded in the path."""
    async with talking() as client:
        for key in ("a b", "ü/x", "100%", "'; --"):
            assert (await put(client, f"flags/{quote(key, safe='')}", flag())).json["key"] == key
            assert (await values(client))[key] is True


async def test_deleting() -> None:
    """A deleted flag is in no answer; a second time it is 404."""
    async with talking() as client:
        await define(client, a=flag(), b=flag())
        path = f"/sandbox/flags/a?api_key={KEY}"
        assert [(await client.ask("DELETE", path)).status for _ in range(2)] == [204, 404]
        assert await values(client) == {"b": True}
        assert (await client.ask("GET", path)).status == 404


@cases(
    ("method", "path"),
    [
        ("PUT", "flags/a"),
        ("DELETE", "flags/a"),
        ("PATCH", "flags"),
        ("PUT", "cohorts/1"),
        ("DELETE", "cohorts/1"),
        ("PUT", "group-types"),
    ],
)
@cases("header", [("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")])
async def test_pages_of_other_sites(method: str, path: str, header: tuple[str, str]) -> None:
    """They can change nothing."""
    async with talking() as client:
        await define(client, a=flag())
        reply = await client.ask(
            method, f"/sandbox/{path}?api_key={KEY}&id=1", b"{}", dict([header])
        )
        assert reply.status == 403
        assert await values(client) == {"a": True}


async def test_the_listing(tmp_path: Path) -> None:
    """A flag's row has its project and how often it was checked; keys are
    masked; the filters select.
    """
    async with talking(seed.seeded(tmp_path)) as client:
        called = event(
            event="$feature_flag_called",
            properties={"$feature_flag": seed.FLAG, "$feature_flag_response": True},
        )
        await client.post("/batch/", {"api_key": seed.TOKEN, "batch": [called]})
        await client.ask(
            "PUT", f"/sandbox/flags/other?api_key={seed.SECOND_TOKEN}", b'{"name": "Of the app"}'
        )
        listing = await client.get("/sandbox/flags")
        first, second = listing["results"]
        assert (first["key"], first["project"], first["calls"], first["active"]) == (
            seed.FLAG,
            seed.PROJECT,
            1,
            True,
        )
        assert first["definition"]["filters"]["groups"] == [
            {"properties": [], "rollout_percentage": 100}
        ]
        assert seed.TOKEN not in json.dumps(listing)
        for query, expected in (
            (f"api_key={seed.SECOND_TOKEN}", ["other"]),
            (f"project={seed.SECOND_PROJECT}", ["other"]),
            ("text=of+THE", ["other"]),
            ("text=et", [seed.FLAG]),
            ("offset=1", ["other"]),
            ("project=99", []),
        ):
            assert [
                row["key"] for row in (await client.get(f"/sandbox/flags?{query}"))["results"]
            ] == expected, query
        assert second["name"] == "Of the app"
        [cohort] = (await client.get("/sandbox/cohorts"))["results"]
        assert (cohort["id"], cohort["definition"]["distinct_ids"]) == (seed.COHORT, ["ann"])


@cases(
    ("path", "content", "attr", "proposed"),
    [
        ("flags/beta", {"variants": {}}, "variants", "filters.multivariate.variants"),
        (
            "flags/beta",
            {"filters": {"groups": [{"rolout": 5}]}},
            "filters.groups[0].rolout",
            "filters.groups[0].rollout_percentage",
        ),
        ("cohorts/7", {"static": True}, "static", "is_static"),
    ],
)
async def test_a_misspelt_member(path: str, content: Any, attr: str, proposed: str) -> None:
    """It is rejected, with the one that was meant: the flag would be on for everyone."""
    async with talking() as client:
        reply = await put(client, path, content)
        assert (reply.status, reply.json["attr"]) == (400, attr)
        assert reply.json["detail"] == f"there is no such member, did you mean {proposed}?"
        assert await values(client) == {}


async def patch(client: Any, number: int, changes: Any) -> Any:
    """Change a flag as the page does."""
    return await client.ask("PATCH", f"/sandbox/flags?id={number}", json.dumps(changes).encode())


async def test_changing_a_flag() -> None:
    """The page turns a flag on and off and changes its rollout, of all conditions or of one."""
    async with talking() as client:
        await define(
            client, beta={"filters": {"groups": [{"properties": [person_is("plan", "pro")]}, {}]}}
        )
        [row] = (await client.get("/sandbox/flags"))["results"]
        assert (await patch(client, row["id"], {"active": False})).json["active"] is False
        assert await values(client) == {}
        answer = await patch(client, row["id"], {"active": True, "rollout_percentage": 0})
        changed = answer.json["definition"]
        assert [group["rollout_percentage"] for group in changed["filters"]["groups"]] == [0, 0]
        assert changed["version"] == 3
        assert await values(client) == {"beta": False}
        await patch(client, row["id"], {"rollout_percentage": 100, "condition": 1})
        assert await values(client) == {"beta": True}
        for number, changes, status in (
            (row["id"], {"rollout_percentage": 101}, 400),
            (row["id"], {"condition": 2, "rollout_percentage": 1}, 400),
            (row["id"], {"key": "x"}, 400),
            (row["id"], [], 400),
            (row["id"], {"active": "no"}, 400),
            (999, {"active": False}, 404),
        ):
            assert (await patch(client, number, changes)).status == status, changes
        assert await values(client) == {"beta": True}


async def test_evaluations_show_value_and_reason() -> None:
    """For a person each flag has its value, the reason, and what each condition says; what can't
    be computed says why.
    """
    async with talking() as client:
        unknown = {"key": "x", "operator": "no_such_operator", "value": 1, "type": "person"}
        await define(
            client,
            pro={
                "filters": {
                    "groups": [
                        flag(person_is("plan", "pro"))["filters"]["groups"][0],
                        {"rollout_percentage": 0},
                    ]
                }
            },
            off={"active": False},
            broken=flag(unknown),
        )
        await client.post("/batch/", batch(event(properties={"$set": {"plan": "pro"}})))
        path = f"/sandbox/evaluations?api_key={KEY}&distinct_id="
        pro, off, broken = (await client.get(path + "ann"))["results"]
        assert (pro["enabled"], pro["reason"]["code"], pro["reason"]["condition_index"]) == (
            True,
            "condition_match",
            0,
        )
        assert [condition["matched"] for condition in pro["conditions"]] == [True, False]
        assert all(condition["why"] for condition in pro["conditions"])
        assert (off["enabled"], off["reason"]["code"]) == (False, "flag_disabled")
        assert broken["error"]
        assert [
            evaluation["key"]
            for evaluation in (await client.get(f"{path}ann&limit=1&offset=1"))["results"]
        ] == ["off"]
        by_flag = await client.get(f"/sandbox/evaluations?flag={pro['id']}&distinct_id=bob")
        assert by_flag["results"][0]["enabled"] is False
        said = quote(json.dumps({"plan": "pro"}))
        answer = await client.get(f"{path}bob&person_properties={said}")
        assert answer["results"][0]["enabled"] is True


@cases(
    ("query", "status"),
    [
        ("distinct_id=ann", 400),
        (f"api_key={KEY}", 400),
        (f"api_key={KEY}&distinct_id=ann&groups=[]", 400),
        (f"api_key={KEY}&distinct_id=ann&person_properties={{", 400),
        ("flag=99&distinct_id=ann", 404),
        ("flag=x&distinct_id=ann", 400),
        (f"api_key={KEY}&distinct_id=ann&group_properties={{}}", 200),
    ],
)
async def test_evaluations_without_a_person(query: str, status: int) -> None:
    """A question without a person or a project is 400."""
    async with talking() as client:
        assert (await client.ask("GET", f"/sandbox/evaluations?{query}")).status == status


async def test_an_evaluation_fixes_nothing() -> None:
    """Looking at a person leaves no trace: no request, no person."""
    async with talking() as client:
        await define(client, a={"ensure_experience_continuity": True})
        await client.get(f"/sandbox/evaluations?api_key={KEY}&distinct_id=ann")
        summary = await client.sandbox.summary()
        assert (summary.requests, summary.persons) == (0, 0)


@cases(
    ("wanted", "keys"),
    [
        ("", [seed.FLAG, "banner"]),
        ("text=BANN", ["banner"]),
        (f"project={seed.PROJECT}", [seed.FLAG, "banner"]),
        (f"project={seed.SECOND_PROJECT}", []),
        (f"organization={seed.ORGANIZATION}&text=beta", [seed.FLAG]),
        (f"organization={seed.OTHER}", []),
    ],
)
async def test_flags_are_listed_by_what_they_belong_to(
    tmp_path: Path, wanted: str, keys: list[str]
) -> None:
    """A listing of flags can be restricted to one, to a project or an organization, and to a text;
    each names its project.
    """
    async with talking(seeded(tmp_path)) as client:
        await client.ask("PUT", f"/sandbox/flags/banner?api_key={seed.TOKEN}", b"{}")
        listing = await client.get(f"/sandbox/flags?{wanted}")
        assert [flag["key"] for flag in listing["results"]] == keys
        for flag in listing["results"]:
            assert (flag["project"], flag["project_name"]) == (seed.PROJECT, "Shop")
            assert (await client.get(f"/sandbox/flags?{wanted}&id={flag['id']}"))["results"] == [
                flag
            ]


async def test_a_persons_flags_by_the_listings_id(tmp_path: Path) -> None:
    """A person who is named by the id of the listing has the flags of the own project, as under
    the own distinct id.
    """
    async with talking(seeded(tmp_path)) as client:
        await client.post(
            "/batch/", {**batch(event(event="$identify", distinct_id="ann")), "api_key": seed.TOKEN}
        )
        person: dict[str, Any] = (await client.get("/sandbox/persons"))["results"][0]
        listing = await client.get(f"/sandbox/evaluations?person={person['id']}")
        assert [evaluation["key"] for evaluation in listing["results"]] == [seed.FLAG]
        assert listing == await client.get(
            f"/sandbox/evaluations?api_key={seed.TOKEN}&distinct_id=ann"
        )
        assert (await client.ask("GET", "/sandbox/evaluations?person=nobody")).status == 404
