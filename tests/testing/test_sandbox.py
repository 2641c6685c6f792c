"""The sandbox as tests ask it, without pytest's fixtures."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forwarder.sandbox.flags.definitions import parse_flag
from forwarder.testing.process import ServerFailed
from forwarder.testing.sandbox import (
    FILTERS,
    AnalyticsSandbox,
    SandboxEvent,
    flag_definition,
    running_sandbox,
)
from tests.support.cases import cases
from tests.support.documents import page

DOCUMENT = page("sandbox")


@pytest.fixture(scope="module")
def server() -> Iterator[AnalyticsSandbox]:
    """One for all tests of this file."""
    with running_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(server: AnalyticsSandbox) -> AnalyticsSandbox:
    """The same, empty."""
    server.clear()
    return server


def post(sandbox: AnalyticsSandbox, path: str, body: object) -> Any:
    """The answer to a request."""
    request = urllib.request.Request(sandbox.url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def send(
    sandbox: AnalyticsSandbox,
    event: str,
    properties: Mapping[str, object],
    distinct_id: str = "ann",
) -> None:
    """Send an event."""
    post(
        sandbox,
        "/capture/",
        {
            "api_key": sandbox.api_key,
            "event": event,
            "distinct_id": distinct_id,
            "properties": properties,
        },
    )


@pytest.mark.slow
def test_what_arrived_is_shown(sandbox: AnalyticsSandbox) -> None:
    """Events by member and by key, those that match, persons, groups, and requests."""
    send(sandbox, "signup", {"plan": "pro"})
    send(sandbox, "login", {"$set": {"name": "Bob"}}, "bob")
    send(
        sandbox,
        "$groupidentify",
        {"$group_type": "company", "$group_key": "acme", "$group_set": {"seats": 3}},
    )
    [event] = sandbox.events(event="signup")
    assert (event.event, event["distinct_id"], event.properties, event.uuid) == (
        "signup",
        "ann",
        {"plan": "pro"},
        event["uuid"],
    )
    assert datetime.fromisoformat(event.timestamp) <= datetime.now(UTC)
    assert [stored_event.event for stored_event in sandbox.wait_for(3)] == [
        "signup",
        "login",
        "$groupidentify",
    ]
    assert [
        stored_event.event
        for stored_event in sandbox.events(distinct_id="bob", api_key=sandbox.api_key)
    ] == ["login"]
    assert [person["properties"] for person in sandbox.persons(distinct_id="bob")] == [
        {"name": "Bob"}
    ]
    assert [group["group_key"] for group in sandbox.groups()] == ["acme"]
    assert [request["path"] for request in sandbox.requests(status=200)] == ["/capture/"] * 3
    with pytest.raises(AttributeError, match="the event has no 'name'"):
        _ = event.name
    sandbox.clear()
    assert (sandbox.events(), sandbox.persons(), sandbox.requests()) == ([], [], [])


@pytest.mark.slow
def test_a_misspelt_filter(sandbox: AnalyticsSandbox) -> None:
    """It would match every event: a test would pass whatever arrives."""
    send(sandbox, "signup", {})
    for look in (sandbox.events, sandbox.wait_for):
        with pytest.raises(TypeError, match=r"there is no filter 'evnt', did you mean event\?"):
            look(evnt="login")
    with pytest.raises(TypeError, match=r"no filter 'distinct', did you mean distinct_id\?"):
        sandbox.persons(distinct="ann")
    with pytest.raises(TypeError, match=r"no filter 'type', did you mean group_type\?"):
        sandbox.groups(type="company")
    with pytest.raises(TypeError, match=r"no filter 'state', did you mean status\?"):
        sandbox.requests(state=200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("members", "error", "said"),
    [
        ({"variant": "blue"}, TypeError, "'variant': a variant, or .* is the value"),
        ({"variants": {"a": 50, "b": 50}}, TypeError, "'variants': a variant, or .* is the value"),
        ({"rolout": 50}, TypeError, r"'rolout': did you mean rollout\?"),
        ({"rollout_percentage": 50}, TypeError, r"'rollout_percentage': did you mean rollout\?"),
        ({"propertys": {"a": 1}}, TypeError, r"'propertys': did you mean properties\?"),
        ({"actve": False}, TypeError, r"'actve': did you mean active\?"),
        ({"xyz": 1}, TypeError, "'xyz': known here: api_key, "),
        ({"filters": {}, "rollout": 5}, TypeError, "'rollout' makes the filters of a flag"),
        ({"value": {"filters": {}}, "payload": 0}, TypeError, "'payload' makes the filters"),
        (
            {"filters": {"group": []}},
            RuntimeError,
            r"filters\.group: .* mean filters\.groups\?",
        ),
        (
            {"value": {"filters": {"groups": [{"rollout": 5}]}}},
            RuntimeError,
            r"\.groups\[0\]\.rollout: .*did you mean .*\.groups\[0\]\.rollout_percentage\?",
        ),
    ],
)
def test_a_misspelt_member_of_a_flag(
    sandbox: AnalyticsSandbox, members: dict[str, Any], error: type[Exception], said: str
) -> None:
    """The flag would be on for everyone: a test would pass whatever the application does."""
    with pytest.raises(error, match=said):
        sandbox.set_flag("new-checkout", **members)
    assert flags(sandbox) == ({}, {})


@pytest.mark.slow
def test_a_flag_that_is_not_there(sandbox: AnalyticsSandbox) -> None:
    """It can't be removed; the error says which there are."""
    sandbox.set_flag("new-checkout")
    with pytest.raises(RuntimeError, match=r"no flag 'checkout'\. The project has new-checkout\."):
        sandbox.remove_flag("checkout")


def test_filters_are_those_of_the_sandbox() -> None:
    """The names that the documentation of the sandbox lists, and those that all listings have."""
    [row] = [
        line
        for line in DOCUMENT.read_text().splitlines()
        if line.startswith("| `GET /sandbox/events` |")
    ]
    assert set(re.findall("`([a-z_]+)`", row.rsplit("|", 2)[1])) == FILTERS - {
        "limit",
        "offset",
        "order",
    }


@pytest.mark.slow
def test_many_events_are_all_shown(
    sandbox: AnalyticsSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, unless a limit is given."""
    monkeypatch.setattr("forwarder.testing.sandbox.PAGE", 2)
    for number in range(5):
        send(sandbox, "seen", {"number": number})
    assert [
        stored_event.properties["number"] for stored_event in sandbox.wait_for(3, event="seen")
    ] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert [
        stored_event.properties["number"] for stored_event in sandbox.events(limit=3, offset=1)
    ] == [1, 2, 3]


@pytest.mark.slow
def test_waiting_fails_with_what_arrived(sandbox: AnalyticsSandbox) -> None:
    """It says what did arrive; none are there at once."""
    send(sandbox, "login", {})
    with pytest.raises(
        AssertionError,
        match=r"0 of 1 event with event 'signup' .* The sandbox has 1 event: login 1\.",
    ):
        sandbox.wait_for(event="signup", timeout=0)
    assert sandbox.wait_for(0, event="signup") == []


def flags(
    sandbox: AnalyticsSandbox, distinct_id: str = "ann", **more: object
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a person gets: values and payloads."""
    answer = post(
        sandbox, "/decide/?v=3", {"api_key": sandbox.api_key, "distinct_id": distinct_id, **more}
    )
    return answer["featureFlags"], answer["featureFlagPayloads"]


@pytest.mark.slow
def test_flags_are_set(sandbox: AnalyticsSandbox) -> None:
    """On, off, a variant with its payload, for some persons, replaced, removed; and all of them
    are removed with the rest.
    """
    sandbox.set_flag("on")
    sandbox.set_flag("off", False)
    assert sandbox.set_flag("button", "blue", payload={"size": 3})["key"] == "button"
    sandbox.set_flag("team", properties={"plan": ["pro", "team"]})
    assert flags(sandbox) == (
        {"on": True, "off": False, "button": "blue", "team": False},
        {"button": '{"size": 3}'},
    )
    assert flags(sandbox, person_properties={"plan": "team"})[0]["team"] is True
    sandbox.set_flag("on", rollout=0)
    sandbox.remove_flag("button")
    assert flags(sandbox)[0] == {"on": False, "off": False, "team": False}
    sandbox.set_flag("a/b %", {"a": 50, "b": 50})
    assert {flags(sandbox, f"person {number}")[0]["a/b %"] for number in range(40)} == {"a", "b"}
    everyone = {"groups": [{"properties": [], "rollout_percentage": 100}]}
    sandbox.set_flag({"key": "whole", "active": True, "filters": everyone})
    sandbox.set_flag("given", {"active": True, "filters": everyone})
    sandbox.set_flag("members", False, filters=everyone)
    sandbox.set_flag("inactive", active=False)
    flag_values = flags(sandbox)[0]
    assert [flag_values.get(key) for key in ("whole", "given", "members", "inactive")] == [
        True,
        True,
        True,
        None,
    ]
    with pytest.raises(RuntimeError, match="PUT /sandbox/flags/bad was answered 400: "):
        sandbox.set_flag("bad", rollout=101)
    sandbox.clear()
    assert flags(sandbox) == ({}, {})
    assert sandbox.set_flag("of another", api_key="phc_of_another_project")["key"] == "of another"
    assert flags(sandbox) == ({}, {})


@pytest.mark.slow
def test_faults_and_clock(sandbox: AnalyticsSandbox) -> None:
    """They are those of the endpoints."""
    sandbox.fail_next(429, times=2, retry_after=3, body={"a": 1})
    sandbox.delay_next(0.5, path="/decide", when="after")
    sandbox.reset_next(seconds=30)
    first, *members = sandbox.faults()
    assert [first[name] for name in ("status", "times", "retry_after", "body", "when")] == [
        429,
        2,
        3,
        {"a": 1},
        "before",
    ]
    assert (members[0]["delay"], members[0]["path"], members[0]["when"]) == (
        0.5,
        ["/decide"],
        "after",
    )
    assert (members[1]["reset"], members[1]["seconds"]) == (True, 30)
    sandbox.clear_faults()
    assert sandbox.faults() == []
    with pytest.raises(RuntimeError, match="POST /sandbox/faults was answered 400: status: "):
        sandbox.fail_next(99)
    before = sandbox.clock
    assert sandbox.move_clock("1h") - before >= timedelta(hours=1)
    assert sandbox.move_clock(timedelta(minutes=1)) - before >= timedelta(minutes=61)
    assert sandbox.move_clock(now=before + timedelta(days=1)) - before < timedelta(
        days=1, minutes=1
    )


@pytest.mark.slow
def test_a_sandbox_that_does_not_start() -> None:
    """The error has what it said."""
    with pytest.raises(
        ServerFailed,
        match=(
            r"forwarder sandbox ended with exit code 2 instead of starting\.\nIts output:\n"
            r".*nonexistent"
        ),
    ):
        running_sandbox("--seed", "/nonexistent/seed.yaml").__enter__()


@pytest.mark.slow
def test_a_sandbox_that_has_ended() -> None:
    """A call says so, and what it had written."""
    with running_sandbox() as sandbox:
        assert sandbox._server is not None
        sandbox._server.stop()
        with pytest.raises(
            ServerFailed,
            match=r"does not answer GET /sandbox/events: .*\nIts output:\nSandbox listening on",
        ):
            sandbox.events()


@cases(
    ("given", "filters"),
    [
        (
            {},
            {
                "groups": [{"properties": [], "rollout_percentage": 100, "variant": None}],
                "payloads": {},
                "multivariate": None,
            },
        ),
        (
            {"value": False},
            {
                "groups": [{"properties": [], "rollout_percentage": 0, "variant": None}],
                "payloads": {},
                "multivariate": None,
            },
        ),
        (
            {"value": "test", "payload": {"a": 1}, "rollout": 50},
            {
                "groups": [{"properties": [], "rollout_percentage": 50, "variant": None}],
                "payloads": {"test": '{"a": 1}'},
                "multivariate": {"variants": [{"key": "test", "rollout_percentage": 100}]},
            },
        ),
        (
            {"value": {"a": 30, "b": 70}, "payload": {"a": 1, "b": 2}},
            {
                "groups": [{"properties": [], "rollout_percentage": 100, "variant": None}],
                "payloads": {"a": "1", "b": "2"},
                "multivariate": {
                    "variants": [
                        {"key": "a", "rollout_percentage": 30},
                        {"key": "b", "rollout_percentage": 70},
                    ]
                },
            },
        ),
        (
            {"payload": "x", "properties": {"plan": ["pro", "team"]}},
            {
                "groups": [
                    {
                        "properties": [
                            {
                                "key": "plan",
                                "value": ["pro", "team"],
                                "operator": "exact",
                                "type": "person",
                            }
                        ],
                        "rollout_percentage": 100,
                        "variant": None,
                    }
                ],
                "payloads": {"true": '"x"'},
                "multivariate": None,
            },
        ),
        (
            {"properties": [{"key": "age", "value": 18, "operator": "gte"}]},
            {
                "groups": [
                    {
                        "properties": [
                            {"key": "age", "value": 18, "operator": "gte", "type": "person"}
                        ],
                        "rollout_percentage": 100,
                        "variant": None,
                    }
                ],
                "payloads": {},
                "multivariate": None,
            },
        ),
    ],
)
def test_a_flag_has_the_services_form(given: dict[str, Any], filters: dict[str, Any]) -> None:
    """As the sandbox reads it."""
    made = flag_definition("beta", **given)
    assert made == {"key": "beta", "name": "beta", "active": True, "filters": filters}
    parse_flag(made)


def test_an_event_is_a_mapping() -> None:
    """With its members as attributes."""
    event = SandboxEvent({"event": "seen", "properties": {"n": 1}})
    assert (event.event, event["properties"], dict(event)) == (
        "seen",
        {"n": 1},
        {"event": "seen", "properties": {"n": 1}},
    )
