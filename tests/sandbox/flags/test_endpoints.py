"""Flags over HTTP: the forms of the answers, and who gets one."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, batch, event, talking
from tests.sandbox.defining import define, flag
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT

ASK = {"api_key": KEY, "distinct_id": "ann"}
SECRET = {"Authorization": "Bearer phx_secret_of_somebody"}
OPERATORS = (
    "exact",
    "is_not",
    "icontains",
    "regex",
    "gt",
    "lt",
    "is_set",
    "is_not_set",
    "is_date_before",
    "semver_gt",
)
PATHS = [
    "/flags/definitions",
    "/flags/definitions/",
    "/api/feature_flag/local_evaluation",
    "/api/feature_flag/local_evaluation/",
]


@pytest.mark.parametrize("slash", ["", "/"])
async def test_the_forms_of_flags(slash: str) -> None:
    """Version 1 maps flags and payloads, from 2 on each flag is an object; each answer has an id
    and a time of its own.
    """
    async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
        forms: dict[str, Any] = {
            "?v=1": {"featureFlags": {}, "featureFlagPayloads": {}},
            "?v=2": {"flags": {}},
            "?v=4": {"flags": {}},
        }
        for version, expected in forms.items():
            reply = (await client.post(f"/flags{slash}{version}", ASK)).json
            assert len(reply.pop("requestId")) == 36
            assert reply == {
                **expected,
                "errorsWhileComputingFlags": False,
                "evaluatedAt": int(MIDNIGHT * 1000),
            }


async def test_flags_with_settings() -> None:
    """`config=true` adds what a browser's SDK asks for otherwise by itself."""
    async with talking() as client:
        reply = (await client.post("/flags/?v=2&config=true", ASK)).json
        assert (reply["flags"], reply["supportedCompression"], reply["hasFeatureFlags"]) == (
            {},
            ["gzip", "gzip-js"],
            False,
        )


async def test_bodies_of_flags() -> None:
    """A body may be encoded in each of the ways in which events may."""
    async with talking() as client:
        packed = gzip.compress(json.dumps({"token": KEY, "distinct_id": 7}).encode())
        for path, body, headers in (
            ("/flags/?v=2", packed, {"Content_Encoding": "gzip"}),
            ("/flags/?v=2&compression=gzip-js", packed, {}),
            ("/flags/?v=2", packed, {}),
        ):
            assert (await client.post(path, body, **headers)).status == 200


@pytest.mark.parametrize("path", ["/flags/?v=2", "/decide/?v=3"])
async def test_who_gets_no_flags(path: str) -> None:
    """A key that is missing, malformed or no one's is 401; no distinct_id and no object are 400;
    all leave a record.
    """
    refusals: list[tuple[Any, int]] = [
        ({"distinct_id": "a"}, 401),
        ({**ASK, "api_key": "phx_personal"}, 401),
        ({**ASK, "api_key": "phc_unknown"}, 401),
        ({"api_key": KEY}, 400),
        ([ASK], 400),
        (b"{", 400),
    ]
    async with talking(SandboxOptions(api_keys=frozenset({KEY}))) as client:
        for body, status in refusals:
            assert (await client.post(path, body)).status == status
        assert (await client.sandbox.summary()).refused == len(refusals)


@cases("path", ["/flags", "/flags/", "/decide", "/decide/"])
async def test_a_get_has_no_distinct_id(path: str) -> None:
    """Asked without a user, the real service answers in the same form; a key that is no one's is
    401 there too.
    """
    async with talking(SandboxOptions(api_keys=frozenset({KEY}), strict=True)) as client:
        assert (await client.ask("GET", f"{path}?v=3")).json["errorsWhileComputingFlags"] is False
        assert [
            (await client.ask("GET", f"{path}?token={key}")).status for key in (KEY, "phc_unknown")
        ] == [200, 401]
        assert {one.method for one in await client.sandbox.requests()} == {"GET"}


@cases("slash", ["", "/"])
@cases("strict", [False, True])
async def test_a_get_of_flags(slash: str, strict: bool) -> None:
    """A GET of `/flags` answers as the service does, in both modes: no flags in the form of the
    version, and what a client begins with.
    """
    async with talking(SandboxOptions(now=lambda: MIDNIGHT, strict=strict)) as client:
        forms: dict[str, Any] = {
            "": {"featureFlags": {}, "featureFlagPayloads": {}},
            "?v=2": {"flags": {}},
        }
        for version, flags in forms.items():
            reply = await client.ask("GET", f"/flags{slash}{version}")
            body = reply.json
            assert (reply.status, len(body.pop("requestId"))) == (200, 36)
            assert body == {
                **flags,
                "config": {"enable_collect_everything": True},
                "toolbarParams": {},
                "isAuthenticated": False,
                "sessionRecording": False,
                "supportedCompression": ["gzip", "gzip-js"],
                "errorsWhileComputingFlags": False,
                "evaluatedAt": int(MIDNIGHT * 1000),
            }


@pytest.mark.parametrize("path", ["/api/feature_flag", "/api/feature_flag/"])
async def test_definitions_for_older_sdks(path: str) -> None:
    """posthog 1.x and posthog-node 1.3 list flags with a secret key: an empty page; without one it
    is 401.
    """
    async with talking() as client:
        reply = await client.ask("GET", f"{path}?token={KEY}", headers=SECRET)
        assert (reply.status, reply.json) == (
            200,
            {"count": 0, "next": None, "previous": None, "results": []},
        )
        assert (await client.ask("GET", f"{path}?token={KEY}")).status == 401
        assert (await client.ask("POST", path, b"{}", SECRET)).status == 405


@cases("path", PATHS)
async def test_definitions(path: str) -> None:
    """A holder of a secret key gets the definitions, with an ETag, and 304 for that one; the key
    is not kept.
    """
    async with talking() as client:
        asked = f"{path}?token={KEY}&send_cohorts"
        reply = await client.ask("GET", asked, headers=SECRET)
        assert (reply.status, reply.json) == (
            200,
            {
                "flags": [],
                "group_type_mapping": {},
                "cohorts": {},
                "minimal_flag_called_events": False,
                "property_matching_version": 1,
            },
        )
        tag = reply.headers["ETag"]
        again = await client.ask("GET", asked, headers={**SECRET, "If-None-Match": tag})
        assert (again.status, again.text, again.headers["ETag"]) == (304, "", tag)
        shown = (await client.ask("GET", "/sandbox/requests")).text
        assert "phx_secret" not in shown
        assert KEY not in shown


async def test_definitions_name_the_group_types() -> None:
    """Types of groups are numbered in the order in which they came, per project; the ETag changes
    with them.
    """
    async with talking() as client:
        before = await client.ask("GET", f"{PATHS[0]}?token={KEY}", headers=SECRET)
        groups = [
            event(event="$groupidentify", properties={"$group_type": name, "$group_key": "x"})
            for name in ("team", "company", "team")
        ]
        await client.post("/batch/", batch(*groups))
        after = await client.ask(
            "GET",
            f"{PATHS[0]}?token={KEY}",
            headers={**SECRET, "If-None-Match": before.headers["ETag"]},
        )
        assert after.json["group_type_mapping"] == {"0": "team", "1": "company"}


@cases(
    ("headers", "key"),
    [
        ({}, KEY),
        ({"Authorization": "Basic x"}, KEY),
        ({"Authorization": f"Bearer {KEY}"}, KEY),
        (SECRET, "phc_unknown"),
    ],
)
async def test_who_gets_no_definitions(headers: dict[str, str], key: str) -> None:
    """Without a secret key, or for a project that doesn't exist, it is 401 as the management
    interface says it.
    """
    async with talking(SandboxOptions(api_keys=frozenset({KEY}))) as client:
        for path in (PATHS[0], "/api/projects/@current/feature_flags/beta/remote_config"):
            reply = await client.ask("GET", f"{path}?token={key}", headers=headers)
            assert (reply.status, reply.json["type"], reply.json["attr"]) == (
                401,
                "authentication_error",
                None,
            )


MANY: dict[str, Any] = {
    "on": {"filters": {"groups": [{}], "payloads": {"true": {"a": 1}}}, "name": "On for all"},
    "off": {"active": False, "filters": {"groups": [{}], "payloads": {"true": "1"}}},
    "colour": {
        "filters": {
            "groups": [{"variant": "red"}],
            "multivariate": {
                "variants": [
                    {"key": "red", "rollout_percentage": 0},
                    {"key": "blue", "rollout_percentage": 100},
                ]
            },
            "payloads": {"red": "[1, 2]"},
        }
    },
    "deleted": {"deleted": True},
}
VALUES = {"on": True, "colour": "red"}
PAYLOADS = {"on": '{"a": 1}', "colour": "[1, 2]"}
BROKEN = {
    "filters": {
        "groups": [
            {"properties": [{"key": "x", "operator": "no_such", "value": 1, "type": "person"}]}
        ]
    }
}


@pytest.mark.parametrize("strict", [False, True])
async def test_each_version(strict: bool) -> None:
    """Keys, values of those that are on, values of all with payloads, objects; inactive and
    deleted flags are in none, and payloads are texts.
    """
    async with talking(SandboxOptions(strict=strict)) as client:
        await define(client, **MANY)
        forms: dict[str, Any] = {
            "/decide/": {"featureFlags": ["on", "colour"]},
            "/decide/?v=1": {"featureFlags": ["on", "colour"]},
            "/decide/?v=2": {"featureFlags": {"on": True, "colour": "red"}},
            "/decide/?v=3": {"featureFlags": VALUES, "featureFlagPayloads": PAYLOADS},
            "/flags/?v=1": {"featureFlags": VALUES, "featureFlagPayloads": PAYLOADS},
        }
        for path, expected in forms.items():
            reply = (await client.post(path, ASK)).json
            assert {
                name: value for name, value in reply.items() if name.startswith("featureFlag")
            } == expected, path
            assert reply.get("errorsWhileComputingFlags", False) is False
        for path in ("/decide/?v=4", "/flags/?v=2"):
            flags = (await client.post(path, ASK)).json["flags"]
            assert {
                key: answer["variant"] or answer["enabled"] for key, answer in flags.items()
            } == VALUES
            assert {
                key: answer["metadata"]["payload"]
                for key, answer in flags.items()
                if answer["metadata"]["payload"]
            } == PAYLOADS
            assert set(flags["on"]) == {"key", "enabled", "variant", "reason", "metadata"}
            assert flags["on"]["reason"] == {
                "code": "condition_match",
                "condition_index": 0,
                "description": "Matched condition set 1",
            }
            assert (
                flags["colour"]["metadata"]["version"],
                type(flags["colour"]["metadata"]["id"]),
            ) == (1, int)


async def test_one_flag_that_can_not_be_computed() -> None:
    """The others are right, and the answer says that it is partial: the flag is false, or an
    object that has failed.
    """
    async with talking() as client:
        await define(client, broken=BROKEN, beta={})
        for path in ("/decide/?v=3", "/flags/?v=1"):
            reply = (await client.post(path, ASK)).json
            assert (reply["featureFlags"], reply["errorsWhileComputingFlags"]) == (
                {"beta": True, "broken": False},
                True,
            )
        reply = (await client.post("/flags/?v=2", ASK)).json
        assert reply["errorsWhileComputingFlags"] is True
        assert (
            reply["flags"]["broken"]["metadata"]["id"]
            == (await client.get(f"/sandbox/flags/broken?api_key={KEY}"))["id"]
        )
        assert (
            reply["flags"]["beta"]["enabled"],
            reply["flags"]["broken"]["enabled"],
            reply["flags"]["broken"]["failed"],
        ) == (
            True,
            False,
            True,
        )
        reply = (await client.post("/flags/?v=2", {**ASK, "flag_keys_to_evaluate": ["beta"]})).json
        assert (set(reply["flags"]), reply["errorsWhileComputingFlags"]) == ({"beta"}, False)


@cases(
    "body",
    [
        {"groups": []},
        {"person_properties": "x"},
        {"group_properties": {"company": 1}},
        {"flag_keys_to_evaluate": "beta"},
        {"flag_keys_to_evaluate": [1]},
        {"evaluation_contexts": {}},
    ],
)
async def test_fields_of_the_wrong_type(body: dict[str, Any]) -> None:
    """They are 400; null is as if it weren't there."""
    async with talking() as client:
        await define(client, beta={})
        assert (await client.post("/flags/?v=2", {**ASK, **body})).status == 400
        assert (await client.post("/flags/?v=2", {**ASK, **dict.fromkeys(body)})).status == 200


@cases(
    "value",
    [
        None,
        [],
        {},
        [[[]]],
        {"a": {"b": None}},
        1e308,
        -0.0,
        10**400,
        "",
        "\u0000",
        "\ud800",
        "x" * 100_000,
        True,
        [None, {"a": []}],
    ],
)
async def test_hostile_values(value: Any) -> None:
    """Whatever a property, a group or an id is, the answer is one."""
    async with talking() as client:
        groups = {
            "groups": [
                {"properties": [{"key": "a", "operator": operator, "value": "1", "type": "person"}]}
                for operator in OPERATORS
            ]
        }
        await define(
            client,
            person={"filters": groups},
            company={"filters": {"groups": [{}], "aggregation_group_type_index": 0}},
        )
        asked = {
            "groups": {"company": value},
            "person_properties": {"a": value},
            "group_properties": {"company": {"a": value}},
            "$anon_distinct_id": value,
            "$device_id": value,
        }
        reply = await client.post("/decide/?v=3", {**ASK, **asked})
        assert (reply.status, reply.json["featureFlags"].keys() - {"person"}) == (200, {"company"})
        assert (await client.post("/flags/?v=2", {**ASK, "distinct_id": value})).status == (
            400 if value is None else 200
        )


async def test_a_flag_of_remote_configuration() -> None:
    """Its payload comes by key or id; of a flag without one, and of none, it is 404."""
    async with talking() as client:
        remote = {
            "is_remote_configuration": True,
            "filters": {"groups": [{}], "payloads": {"true": '{"limit": 7}'}},
        }
        await define(
            client,
            limits=remote,
            beta=MANY["on"],
            empty={"is_remote_configuration": True},
            bare=flag(),
        )
        number = (await client.get(f"/sandbox/flags/limits?api_key={KEY}"))["id"]
        path = "/api/projects/@current/feature_flags/{}/remote_config?token=" + KEY
        for name in ("limits", number):
            reply = await client.ask("GET", path.format(name), headers=SECRET)
            assert (reply.status, json.loads(reply.json)) == (200, {"limit": 7})
        assert [
            (await client.ask("GET", path.format(name), headers=SECRET)).status
            for name in ("bare", "x", "99")
        ] == [404, 404, 404]
        empty = await client.ask("GET", path.format("empty"), headers=SECRET)
        assert (empty.status, empty.text) == (200, "")


@cases("payload", [{"a": 1}, 0, False])
@cases(("strict", "status"), [(False, 200), (True, 404)])
async def test_the_payload_of_any_flag(strict: bool, status: int, payload: object) -> None:
    """A flag needn't be one of remote configuration; the real service requires it."""
    async with talking(SandboxOptions(strict=strict)) as client:
        await define(client, beta=flag(payloads={"true": payload}))
        reply = await client.ask(
            "GET",
            f"/api/projects/@current/feature_flags/beta/remote_config?token={KEY}",
            headers=SECRET,
        )
        assert (reply.status, reply.json == payload) == (status, not strict)


async def test_a_flags_payload() -> None:
    """One flag's payload for everyone: there is no such flag."""
    async with talking() as client:
        reply = await client.ask(
            "GET",
            f"/api/projects/@current/feature_flags/beta/remote_config?token={KEY}",
            headers=SECRET,
        )
        assert (reply.status, reply.json["code"]) == (404, "not_found")
