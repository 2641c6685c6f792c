"""Answers about flags where the service does what one might not expect, each as its code has it:
who gets which flags, in which form, and what definitions hold. The sources are named where the
sandbox has these rules (`flags/endpoints.py`, `eligible.py`, `forms.py`, `local.py`,
`secret_endpoints.py`, `failing.py`, `places.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, SandboxClient, SandboxReply, talking
from tests.sandbox.defining import SECRET, define, flag, person_is, put
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT
from tests.support.places import write_places

ANN = {"api_key": KEY, "distinct_id": "ann"}
NEEDS_BASE = flag(person_is("base", True, "flag_evaluates_to", "flag"))
BROKEN = flag(person_is("plan", 1, "no_such_operator"))
PROJECT_SETTINGS = {"hasFeatureFlags", "surveys", "analytics"}
CONTRACT = {
    "config",
    "toolbarParams",
    "errorsWhileComputingFlags",
    "isAuthenticated",
    "supportedCompression",
    "featureFlags",
    "featureFlagPayloads",
}
FAULTS = "/sandbox/faults"


@dataclass(frozen=True)
class Ask:
    """A request for a user's flags, and what is compared of its answer."""

    flags: Mapping[str, Any]
    path: str
    expected: Any
    """The values of the flags; or with `part` that member of the answer."""
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    part: str = ""


def values(answer: Mapping[str, Any]) -> Any:
    """The flags of any form, as values."""
    if "featureFlags" in answer:
        return answer["featureFlags"]
    return {
        key: one["value"] if "value" in one else one["variant"] or one["enabled"]
        for key, one in answer["flags"].items()
    }


INACTIVE = {"base": {"active": False}, "needs": NEEDS_BASE, "on": flag()}
RUNTIMES = {
    "browser": {"evaluation_runtime": "client"},
    "server": {"evaluation_runtime": "server"},
    "both": {"evaluation_runtime": "all"},
    "odd": {"evaluation_runtime": "toaster"},
}
FROM_SERVER = {"server": True, "both": True, "odd": True}
FROM_CLIENT = {"browser": True, "both": True, "odd": True}
CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0"
SURVEY = "survey-targeting-1"
VARIANT = {
    "filters": {
        "groups": [{"variant": "red"}],
        "multivariate": {"variants": [{"key": "red", "rollout_percentage": 100}]},
        "payloads": {"red": '{"a": 1}'},
    }
}


@pytest.mark.parametrize("path", ["/decide?v=1", "/decide?v=2", "/decide?v=3", "/decide?v=4"])
async def test_inactive_flags_are_in_no_answer_of_decide(path: str) -> None:
    """Nor in one of `/flags`; a flag that depends on one is off."""
    async with talking() as client:
        await define(client, **INACTIVE)
        flag_values = values((await client.post(path, ANN)).json)
        assert "base" not in flag_values
        assert "on" in flag_values
        for other in ("/flags?v=1", "/flags?v=2", "/flags?v=3"):
            flag_values = values((await client.post(other, ANN)).json)
            assert flag_values == {"needs": False, "on": True}, other


ROWS: dict[str, Ask] = {
    "runtime_of_a_server_sdk": Ask(
        RUNTIMES, "/flags?v=2", FROM_SERVER, headers={"User-Agent": "posthog-python/7.0.0"}
    ),
    "runtime_of_a_mobile_sdk": Ask(
        RUNTIMES, "/flags?v=2", FROM_CLIENT, headers={"User-Agent": "posthog-react-native/4.1 x"}
    ),
    "runtime_of_a_browser": Ask(
        RUNTIMES, "/decide?v=3", FROM_CLIENT, headers={"User-Agent": CHROME}
    ),
    "runtime_of_a_tool": Ask(
        RUNTIMES,
        "/flags?v=2",
        FROM_SERVER,
        headers={"User-Agent": "curl/8.5", "Origin": "https://a.example"},
    ),
    "runtime_by_a_header_of_browsers": Ask(
        RUNTIMES,
        "/flags?v=2",
        FROM_CLIENT,
        headers={"User-Agent": "x", "Origin": "https://a.example"},
    ),
    "runtime_of_anything_else": Ask(
        RUNTIMES, "/flags?v=2", FROM_SERVER, headers={"User-Agent": "posthog-cobol/1.0"}
    ),
    "runtime_of_an_sdk_without_version": Ask(
        RUNTIMES, "/flags?v=2", FROM_SERVER, headers={"User-Agent": "posthog-js/"}
    ),
    "runtime_that_the_body_says": Ask(
        RUNTIMES,
        "/flags?v=2",
        FROM_CLIENT,
        {"evaluation_runtime": "Client"},
        {"User-Agent": "posthog-go/1.5"},
    ),
    "runtime_of_every_kind": Ask(
        RUNTIMES, "/flags?v=2", {**FROM_CLIENT, "server": True}, {"evaluation_runtime": "all"}
    ),
    "a_flag_of_another_runtime_is_off_for_others": Ask(
        {"base": {"evaluation_runtime": "client"}, "needs": NEEDS_BASE},
        "/flags?v=2",
        {"needs": False},
    ),
    "a_failed_flag_is_false_in_maps": Ask(
        {"broken": BROKEN, "on": flag()}, "/decide?v=3", {"broken": False, "on": True}
    ),
    "a_failed_flag_is_false_in_maps_of_flags": Ask(
        {"broken": BROKEN, "on": flag()}, "/flags?v=1", {"broken": False, "on": True}
    ),
    "a_failed_flag_is_not_among_those_that_are_on": Ask(
        {"broken": BROKEN, "on": flag()}, "/decide?v=2", {"on": True}
    ),
    "a_failed_flag_has_no_value": Ask(
        {"broken": BROKEN, "on": flag()}, "/flags?v=3", {"broken": None, "on": True}
    ),
    "flags_without_version_are_objects": Ask({"on": flag()}, "/flags", {"on": True}, part="flags"),
    "flags_without_version_have_settings": Ask({}, "/flags/", True, part="elementsChainAsString"),
    "flags_with_settings_alone_are_a_map": Ask(
        {"on": flag()}, "/flags?config=false", {"on": True}, part="featureFlags"
    ),
    "a_typed_record_from_version_3_on": Ask({"red": VARIANT}, "/flags?v=4", {"red": "red"}),
    "disabled_flags_need_no_user": Ask(
        {"on": flag()}, "/flags?v=2", {}, {"disable_flags": True, "distinct_id": None}
    ),
    "no_contexts_are_no_filter": Ask(
        {"app": {"evaluation_contexts": ["app"]}},
        "/flags?v=2",
        {"app": True},
        {"evaluation_contexts": []},
    ),
    "a_flag_of_another_context_is_off_for_others": Ask(
        {"base": {"evaluation_contexts": ["app"]}, "needs": NEEDS_BASE},
        "/flags?v=2",
        {"needs": False},
        {"evaluation_contexts": ["site"]},
    ),
    "a_version_that_is_no_number_is_the_first": Ask(
        {"on": flag()}, "/decide?v=abc", ["on"], part="featureFlags"
    ),
    "a_version_that_is_no_number_of_flags": Ask(
        {"on": flag()}, "/flags?v=2.0", {"on": True}, part="featureFlags"
    ),
    "a_version_below_the_first": Ask({"on": flag()}, "/decide?v=-3", ["on"], part="featureFlags"),
    "a_version_with_a_sign": Ask({"on": flag()}, "/flags?v=%2B2", {"on": True}, part="flags"),
    "a_version_of_too_many_digits": Ask(
        {"on": flag()}, "/flags?v=4294967298", {"on": True}, part="featureFlags"
    ),
    "a_version_by_its_whole_name": Ask(
        {"on": flag()}, "/flags?version=2", {"on": True}, part="flags"
    ),
    "an_empty_version_is_none": Ask({"on": flag()}, "/flags?v=", {"on": True}, part="flags"),
    "flags_of_surveys_alone": Ask(
        {SURVEY: flag(), "on": flag()},
        "/flags?v=2&only_evaluate_survey_feature_flags=true",
        {SURVEY: True},
    ),
    "flags_of_surveys_alone_by_a_bare_parameter": Ask(
        {SURVEY: flag(), "on": flag()},
        "/decide?v=3&only_evaluate_survey_feature_flags",
        {SURVEY: True},
    ),
    "flags_of_surveys_and_others": Ask(
        {SURVEY: flag(), "on": flag()},
        "/flags?v=2&only_evaluate_survey_feature_flags=off",
        {SURVEY: True, "on": True},
    ),
}


@cases("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
async def test_answers(row: Ask) -> None:
    """Each row: a request, and which flags it gets."""
    async with talking() as client:
        for key, content in row.flags.items():
            assert (await put(client, f"flags/{key}", content)).status == 200
        body = json.dumps({**ANN, **row.body}).encode()
        reply = await client.ask("POST", row.path, body, row.headers)
        assert reply.status == 200, reply.text
        answer = reply.json[row.part] if row.part else values(reply.json)
        if row.part == "flags":
            answer = {key: one["enabled"] for key, one in answer.items()}
        assert answer == row.expected


UUID = "0190a0a0-1111-7222-8333-444455556666"
RULE = {"id": UUID, "rule_type": "targeted_release", "value": 7}
OF_PROS = {"targeting": {"properties": [person_is("plan", "pro")]}}


async def test_typed_records_of_rules() -> None:
    """The reasons are those of rules, which name the rule; a value is nowhere but in `value`. Other
    forms have the older reasons.
    """
    filters = {"version": 2, "return_type": "number", "default_value": 1}
    async with talking() as client:
        await define(client, size={"filters": {**filters, "rules": [{**RULE, **OF_PROS}]}})
        for plan, value, reason, rule in (
            (
                "pro",
                7,
                ("targeting_match", 0, "Matched rule 1"),
                {"rule_type": RULE["rule_type"], "rule_id": UUID},
            ),
            ("free", 1, ("no_rule_match", None, "No rule matched"), {}),
        ):
            asked = {**ANN, "person_properties": {"plan": plan}}
            one = (await client.post("/flags/?v=3", asked)).json["flags"]["size"]
            assert (one["value"], tuple(one["reason"].values())) == (value, reason)
            metadata = one["metadata"]
            assert (metadata["payload"], metadata["config_version"]) == (None, 2)
            assert {
                key: metadata[key]
                for key in ("rule_type", "rule_id", "variant_key")
                if key in metadata
            } == rule
            older = (await client.post("/flags/?v=2", asked)).json["flags"]["size"]
            assert older["metadata"]["payload"] == str(value)
            assert older["reason"]["code"].endswith("condition_match")


async def test_typed_records() -> None:
    """A value in place of `enabled` and `variant`, and what the form of the flag is."""
    async with talking() as client:
        await define(client, red=VARIANT, broken=BROKEN)
        flags = (await client.post("/flags/?v=4", ANN)).json["flags"]
        assert set(flags["red"]) == {"key", "value", "reason", "metadata"}
        metadata = flags["red"]["metadata"]
        assert (metadata["config_version"], metadata["variant_key"]) == (1, "red")
        assert (metadata["payload"], metadata["has_experiment"]) == ('{"a": 1}', False)
        assert set(flags["broken"]) == {"key", "value", "failed", "reason", "metadata"}
        assert flags["broken"]["failed"] is True
        older = (await client.post("/decide?v=4", ANN)).json["flags"]["red"]
        assert set(older) == {"key", "enabled", "variant", "reason", "metadata"}


@cases(
    ("headers", "properties", "expected"),
    [
        ({"X-Forwarded-For": "10.0.0.1, 203.0.113.9"}, {}, False),
        ({"X-Forwarded-For": "203.0.113.9, 10.0.0.1"}, {}, True),
        ({"X-Forwarded-For": "203.0.113.9"}, {"$geoip_country_code": None}, True),
        ({"X-Forwarded-For": "203.0.113.9"}, {"$geoip_country_code": "FR"}, False),
    ],
)
async def test_the_first_address_alone_has_the_place(
    headers: dict[str, str], properties: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    """Private or not; and what the request has as null of the place is filled in."""
    async with talking(SandboxOptions(geoip=write_places(tmp_path / "p.mmdb"))) as client:
        await define(client, german=flag(person_is("$geoip_country_code", "DE")))
        body = json.dumps({**ANN, "person_properties": properties}).encode()
        reply = await client.ask("POST", "/decide?v=3", body, headers)
        assert reply.json["featureFlags"] == {"german": expected}


@cases(
    ("path", "contract", "settings", "absent"),
    [
        ("/decide", CONTRACT - {"featureFlagPayloads"}, True, {"errorsWhileComputingFlags"}),
        ("/decide?v=2", CONTRACT - {"featureFlagPayloads"}, True, {"errorsWhileComputingFlags"}),
        ("/decide?v=3", CONTRACT, True, set()),
        (
            "/decide?v=3&config=false",
            CONTRACT,
            False,
            {"config", "toolbarParams", "isAuthenticated", "supportedCompression"},
        ),
    ],
)
async def test_decide_by_the_contract_and_strictly(
    path: str, contract: set[str], settings: bool, absent: set[str]
) -> None:
    """By the contract its fields alone; strictly the request's id, the time, the settings of the
    project, and no word of errors in versions 1 and 2.
    """
    async with talking() as client:
        await define(client, on=flag())
        assert set((await client.post(path, ANN)).json) == contract
    async with talking(SandboxOptions(strict=True, now=lambda: MIDNIGHT)) as client:
        await define(client, on=flag())
        answer = (await client.post(path, ANN)).json
        assert answer.keys() >= (contract - absent) | {"requestId", "evaluatedAt"}
        assert answer.keys().isdisjoint(absent)
        assert answer["evaluatedAt"] == int(MIDNIGHT * 1000)
        assert answer.keys().isdisjoint(PROJECT_SETTINGS) is not settings


@cases("path", ["/flags?v=2", "/decide?v=3", "/flags"])
@cases(
    ("key", "code"),
    [
        (None, "not_authenticated"),
        ("", "not_authenticated"),
        ("phc_unknown", "authentication_failed"),
        ("phx_personal", "authentication_failed"),
        (7, "authentication_failed"),
    ],
)
async def test_a_bad_key_is_answered_in_json_strictly(path: str, key: object, code: str) -> None:
    """By the contract in plain text, as all failures are there."""
    for strict in (True, False):
        options = SandboxOptions(api_keys=frozenset({KEY}), strict=strict)
        async with talking(options) as client:
            reply = await client.post(path, {**ANN, "api_key": key})
            assert reply.status == 401
            if strict:
                assert reply.json.keys() == {"type", "code", "detail", "attr"}
                assert (reply.json["type"], reply.json["code"]) == ("authentication_error", code)
            else:
                assert reply.headers["Content-Type"].startswith("text/plain")


@cases("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400])
async def test_an_invalid_number_is_null(number: str) -> None:
    """A condition sees null. By the contract NaN is not JSON."""
    body = (
        f'{{"api_key": "{KEY}", "distinct_id": "ann", "person_properties": {{"n": {number}}}}}'
    ).encode()
    async with talking(SandboxOptions(strict=True)) as client:
        await define(
            client, below=flag(person_is("n", 10, "lt")), above=flag(person_is("n", 10, "gt"))
        )
        reply = await client.post("/decide?v=3", body)
        assert reply.json["featureFlags"] == {"below": False, "above": False}
    async with talking() as client:
        plain = await client.post("/decide?v=3", body)
        assert plain.status == (200 if number[0] == "1" else 400)


@cases(
    ("body", "plain"),
    [
        ({"distinct_id": True}, 200),
        ({"distinct_id": ["ann"]}, 200),
        ({"distinct_id": None, "$distinct_id": {}}, 400),
        ({"disable_flags": "true"}, 200),
        ({"geoip_disable": 1}, 200),
        ({"device_id": 7}, 200),
        ({"$anon_distinct_id": {}}, 200),
        ({"evaluation_runtime": 1}, 400),
        ({"flag_keys_to_evaluate": "on"}, 400),
    ],
)
async def test_wrong_types_are_rejected_strictly(body: dict[str, Any], plain: int) -> None:
    """By the contract an id may be any JSON."""
    for strict in (True, False):
        async with talking(SandboxOptions(strict=strict)) as client:
            for path in ("/flags?v=2", "/decide?v=3"):
                reply = await client.post(path, {**ANN, **body})
                assert reply.status == (400 if strict else plain), (strict, path)


async def test_the_id_of_a_request_is_the_callers() -> None:
    """If it is a UUID."""
    async with talking() as client:
        for sent, expected in ((UUID, True), ("my-request", False)):
            reply = await client.post("/flags?v=2", ANN, X_Request_ID=sent)
            assert (reply.json["requestId"] == sent) is expected


async def definitions(
    client: SandboxClient, headers: Mapping[str, str] = SECRET, query: str = ""
) -> SandboxReply:
    """What an SDK gets, of a project."""
    return await client.ask("GET", f"/flags/definitions?token={KEY}{query}", headers=headers)


async def test_definitions_leave_out_flags_of_surveys_and_encrypted_ones(tmp_path: Path) -> None:
    """Those of remote configuration are there, and the flag that a survey is linked to."""
    entry = {
        "api_key": KEY,
        "flags": [
            {"key": "zeta", "is_remote_configuration": True},
            {"key": "secret", "is_remote_configuration": True, "has_encrypted_payloads": True},
            {"key": "linked"},
            {"key": "internal"},
        ],
        "surveys": [
            {
                "name": "How was it?",
                "linked_flag_key": "linked",
                "internal_targeting_flag_key": "internal",
                "targeting_flag_filters": {"groups": [{}]},
            }
        ],
        "experiments": [
            {"name": "Colours", "feature_flag_key": "colours"},
            {"name": "Gone", "feature_flag_key": "linked", "deleted": True},
        ],
    }
    path = tmp_path / "seed.json"
    path.write_text(json.dumps({"projects": [entry]}))
    async with talking(SandboxOptions(seed=path)) as client:
        answer = (await definitions(client)).json
        assert [(one["key"], one["has_experiment"]) for one in answer["flags"]] == [
            ("colours", True),
            ("linked", False),
            ("zeta", False),
        ]
        assert (answer["minimal_flag_called_events"], answer["property_matching_version"]) == (
            False,
            1,
        )


@cases("query", ["", "&send_cohorts", "&send_cohorts=false"])
async def test_definitions_always_have_the_cohorts(query: str) -> None:
    """Whether an SDK asks for them or not; conditions on them stay as they are."""
    pro = {"type": "AND", "values": [person_is("plan", "pro")]}
    member = person_is("id", 1, "in", "cohort")
    async with talking() as client:
        await put(client, "cohorts/1", {"filters": {"properties": pro}})
        await define(client, pros=flag(member))
        answer = (await definitions(client, query=query)).json
        assert answer["cohorts"] == {"1": pro}
        assert answer["flags"][0]["filters"]["groups"][0]["properties"] == [member]


async def test_a_dependency_that_is_left_out_has_no_order() -> None:
    """What an SDK isn't given it can't evaluate first."""
    async with talking() as client:
        await define(client, base={"has_encrypted_payloads": True}, needs=NEEDS_BASE)
        [needs] = (await definitions(client)).json["flags"]
        assert needs["filters"]["groups"][0]["properties"][0]["dependency_chain"] == []


async def test_definitions_have_a_weak_etag() -> None:
    """304 for who has it, weak or strong; a list of them is compared as a whole."""
    async with talking() as client:
        tag = (await definitions(client)).headers["ETag"]
        assert tag.startswith('W/"')
        statuses = [
            (await definitions(client, {**SECRET, "If-None-Match": known})).status
            for known in (tag, tag.removeprefix("W/"), tag[3:-1], f'"x", {tag}', '"x"')
        ]
        assert statuses == [304, 304, 304, 200, 200]


def seeded(tmp_path: Path) -> SandboxOptions:
    """A sandbox with personal keys: one with the scope to read flags, one without."""
    scopes = {"reads": "feature_flag:read", "writes": "feature_flag:write", "lacks": "project:read"}
    keys = [
        {"key": f"phx_test_{name}_flags_00001", "scopes": [scope]} for name, scope in scopes.items()
    ]
    path = tmp_path / "seed.json"
    content = {
        "organizations": [
            {
                "name": "Ours",
                "members": [
                    {"email": "a@example.com", "level": "owner", "personal_api_keys": keys}
                ],
                "projects": [{"name": "Shop", "api_key": KEY}],
            },
            {
                "name": "Theirs",
                "members": [
                    {
                        "email": "b@example.com",
                        "level": "owner",
                        "personal_api_keys": [
                            {"key": "phx_test_other_flags_00001", "scopes": ["*"]}
                        ],
                    }
                ],
            },
        ]
    }
    path.write_text(json.dumps(content))
    return SandboxOptions(seed=path)


@cases(
    ("secret", "status"),
    [
        ("phx_test_reads_flags_00001", 200),
        ("phx_test_writes_flags_00001", 200),
        ("phs_any_secret_of_the_project", 200),
        ("phx_test_lacks_flags_00001", 403),
        ("phx_test_other_flags_00001", 401),
        ("phx_nobody_has_this_key", 401),
        (KEY, 401),
    ],
)
async def test_definitions_need_the_scope(secret: str, status: int, tmp_path: Path) -> None:
    """Of a member of the project's organization; so does the payload of a flag."""
    async with talking(seeded(tmp_path)) as client:
        await define(client, on=flag(payloads={"true": "1"}))
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await definitions(client, headers)).status == status
        path = f"/api/projects/@current/feature_flags/on/remote_config?token={KEY}"
        assert (await client.ask("GET", path, headers=headers)).status == status


async def test_definitions_of_no_project() -> None:
    """A personal key is good for several, so that the query must name one."""
    async with talking() as client:
        reply = await client.ask("GET", "/flags/definitions", headers=SECRET)
        assert (reply.status, reply.json["attr"]) == (400, "token")


async def fail(client: SandboxClient, kind: str, **more: Any) -> None:
    """Set a fault of flags."""
    reply = await client.post(FAULTS, {"flags": kind, "times": 100, **more})
    assert reply.status == 201, reply.text


@cases("strict", [False, True])
@cases(
    ("path", "flags"),
    [
        ("/flags?v=2", {"flags": {}}),
        ("/flags/?v=4", {"flags": {}}),
        ("/flags?v=1", {"featureFlags": {}, "featureFlagPayloads": {}}),
        ("/decide?v=3", {"featureFlags": {}, "featureFlagPayloads": {}}),
        ("/decide?v=1", {"featureFlags": []}),
    ],
)
async def test_over_quota_there_are_no_flags(
    path: str, flags: dict[str, Any], strict: bool
) -> None:
    """It is 200 with a note; a key that is no one's stays 401, and who wants no flags has no
    note.
    """
    options = SandboxOptions(api_keys=frozenset({KEY}), strict=strict)
    async with talking(options) as client:
        await define(client, on=flag())
        await fail(client, "over_quota")
        reply = await client.post(path, ANN)
        assert (reply.status, reply.json["quotaLimited"]) == (200, ["feature_flags"])
        assert reply.json.items() >= flags.items()
        assert reply.json.get("errorsWhileComputingFlags", False) is False
        assert (await client.post(path, {**ANN, "api_key": "phc_unknown"})).status == 401
        disabled = await client.post(path, {**ANN, "disable_flags": True})
        assert (disabled.status, "quotaLimited" in disabled.json) == (200, False)
        assert (await client.ask("GET", "/flags?v=2")).status == 200
        [_, limited, *_] = await client.sandbox.requests()
        assert limited.status == 401 or limited.error == "a fault: over quota"


@cases(
    ("kind", "status", "code"),
    [("over_quota", 402, "payment_required"), ("rate_limited", 429, "rate_limit_exceeded")],
)
@cases("path", ["/flags/definitions", "/api/feature_flag/local_evaluation/"])
async def test_definitions_fail_as_the_service_lets_them(
    path: str, kind: str, status: int, code: str
) -> None:
    """Over the quota 402, at too high a rate 429, both in JSON."""
    async with talking() as client:
        await fail(client, kind)
        reply = await client.ask("GET", f"{path}?token={KEY}", headers=SECRET)
        assert (reply.status, reply.json["code"], reply.json["attr"]) == (status, code, None)


@cases(("kind", "status"), [("rate_limited", 429), ("unavailable", 503)])
async def test_flags_fail(kind: str, status: int) -> None:
    """All of them, or those of a path; events continue, and pages of any origin may read it."""
    async with talking() as client:
        await fail(client, kind, path="/flags")
        reply = await client.post("/flags/?v=2", ANN, Origin="https://a.example")
        assert reply.status == status
        assert reply.headers["Access-Control-Allow-Origin"] == "https://a.example"
        assert (await client.post("/decide?v=3", ANN)).status == 200
        await client.ask("DELETE", FAULTS)
        await fail(client, kind)
        assert (await client.post("/decide?v=3", ANN)).status == status
        assert (await definitions(client)).status == status
        sent = {**ANN, "event": "seen"}
        assert (await client.post("/capture/", sent)).status == 200


@cases(
    ("fault", "words"),
    [
        ({"flags": "over_quota", "status": 503}, "exclude each other"),
        ({"flags": "over_quota", "when": "after"}, "instead of the endpoint"),
        ({"flags": "over_quota", "path": "/batch"}, "is for the paths"),
        ({"flags": "unavailable", "path": "/flags*"}, "is for the paths"),
        ({"flags": "over_quota", "retry_after": 1}, "belong to a status"),
        ({"flags": "broke"}, "over_quota"),
    ],
)
async def test_what_is_no_fault_of_flags(fault: dict[str, Any], words: str) -> None:
    """It is 400 with what is wrong."""
    async with talking() as client:
        reply = await client.post(FAULTS, fault)
        assert (reply.status, words in reply.text) == (400, True), reply.text
