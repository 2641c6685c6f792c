"""Client versions that are still in use, through an outage of 20 s and through refusals: what was
answered 200 arrives unchanged.
"""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta

import pytest

from forwarder.telemetry.snapshot import balanced
from tests.sdks import conftest
from tests.sdks.older import CLIENTS, PARTS, OlderSdk, OlderSdksRun, run
from tests.sdks.toolchains import missing

TEXT = "Zoë 茶碗 😀"
NO_UUID = {"js-lite-2.5", "go-1.2", "rs-0.3"}
"""Clients whose events have no uuid: one that they repeat because an answer
came late is a second event.
"""
KEEPS_SENT_AT = {"rs-0.30", "node-3.6", "node-4.18", "js-lite-2.5"}
"""Clients that repeat a request with the `sent_at` of its first attempt, unmarked: its events are
moved by as long as it was refused.
"""
SLACK = 15
"""Seconds between an SDK building a request and its arrival, on a machine that is busy; less than
the outage, far less than an hour.
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> OlderSdksRun:
    """The run of all clients, once. Clients whose tools this machine lacks are left out."""
    present = [client for client in CLIENTS if missing(client.sdk) is None]
    for sdk in sorted({client.sdk for client in present}):
        conftest.ready(sdk)
    return asyncio.run(run(present, tmp_path_factory.mktemp("older") / "sandbox.sqlite"))


every_client = pytest.mark.parametrize(
    "client",
    [pytest.param(client, id=client.name, marks=pytest.mark.timeout(480)) for client in CLIENTS],
)


def _skip_where_absent(client: OlderSdk) -> None:
    conftest.ready(client.sdk)


@every_client
def test_everything_answered_200_arrives(client: OlderSdk, outcome: OlderSdksRun) -> None:
    """Each event of a request that was answered 200 is in the sandbox once, under one uuid."""
    _skip_where_absent(client)
    answered = client.marks & outcome.answered
    assert answered - outcome.events.keys() == set(), "missing"
    if client.name not in NO_UUID:
        assert {mark for mark in answered if len(outcome.events[mark]) != 1} == set(), "twice"
    assert client.marks_until(PARTS - 1) - answered == set(), "never sent"
    if not client.gives_up:
        assert client.marks - answered == set(), "never sent"
        assert client.marks & outcome.delays.keys(), "never refused"


@every_client
def test_text_is_unchanged(client: OlderSdk, outcome: OlderSdksRun) -> None:
    """Characters beyond the basic plane arrive as they were written, whatever
    encoding the client chose.
    """
    _skip_where_absent(client)
    texts = {
        json.loads(event.properties)["text"]
        for mark in client.marks
        for event in outcome.events.get(mark, [])
    }
    assert texts == {TEXT}


@every_client
def test_times_are_right(client: OlderSdk, outcome: OlderSdksRun) -> None:
    """An event has the time at which it happened: also where the client's clock is an hour ahead,
    and where it was repeated.
    """
    _skip_where_absent(client)
    wrong = {}
    for mark in client.marks:
        for event in outcome.events.get(mark, []):
            off = abs(_time(event.timestamp) - _time(json.loads(event.properties)["at"]))
            delay = outcome.delays.get(mark, 0.0) if client.name in KEEPS_SENT_AT else 0.0
            if off > timedelta(seconds=SLACK + delay):
                wrong[mark] = off
    assert wrong == {}


@pytest.mark.parametrize(
    "client", [client for client in CLIENTS if client.in_browser], ids=lambda client: client.name
)
@pytest.mark.timeout(480)
def test_people_are_known(client: OlderSdk, outcome: OlderSdksRun) -> None:
    """What `people.set` and its successors say of a person is known of it."""
    _skip_where_absent(client)
    person = outcome.persons[f"user-{client.name}"]
    assert person.get("plan") == "pro 😀"
    if "lite" not in client.name:
        assert person.get("first_seen") == "2026-01-01"


@pytest.mark.timeout(480)
def test_nothing_is_rejected(outcome: OlderSdksRun) -> None:
    """No request with events was rejected, no uuid came with two contents, and the
    books balance.
    """
    assert outcome.rejected == []
    assert (outcome.summary.conflicts, outcome.summary.not_ingested) == (0, 0)
    assert balanced(outcome.snapshot)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
