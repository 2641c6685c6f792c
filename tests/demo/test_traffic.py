"""The demo's story."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import install_extra
from forwarder.demo.traffic import connect, play, story
from tests.support.sdk import RecordingSdk


def story_of(visitors: int | None, limit: int | None = None, **how: Any) -> RecordingSdk:
    """What the SDK was asked to send."""
    sdk = RecordingSdk()
    play(sdk, islice(story(visitors, **how), limit), set(), threading.Event())
    return sdk


def test_story_is_the_same_for_the_same_seed() -> None:
    """Apart from the uuids, the same seed tells the same story, another seed another one."""

    def without_uuids(sdk: RecordingSdk) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in event.items() if key != "uuid"} for event in sdk.events
        ]

    assert without_uuids(story_of(20)) == without_uuids(story_of(20))
    assert without_uuids(story_of(20, seed=1)) != without_uuids(story_of(20, seed=2))


def test_story_holds_what_breaks_on_the_way() -> None:
    """An anonymous visitor becomes known, ids are aliased, groups described; there are big
    integers and text beyond ASCII.
    """
    events = story_of(60).events
    assert {
        "$pageview",
        "product added",
        "$identify",
        "signed up",
        "order placed",
        "$create_alias",
        "$groupidentify",
    } == {event["event"] for event in events}
    identify = next(event for event in events if event["event"] == "$identify")
    assert identify["properties"]["$anon_distinct_id"] in {event["distinct_id"] for event in events}
    assert any(event["properties"].get("order_id", 0) > 2**53 for event in events)
    assert not str(events).isascii()
    assert 300 <= len(events) <= 600


def test_story_without_end() -> None:
    """The live form continues for as long as it is listened to."""
    assert len(story_of(None, limit=5000).events) == 5000


def test_every_event_has_a_uuid_that_is_remembered() -> None:
    """What was sent can be found again at the other end."""
    sdk = RecordingSdk()
    sent = set[str]()
    play(sdk, story(5), sent, threading.Event())
    assert sent == {event["uuid"] for event in sdk.events}
    assert len(sent) == len(sdk.events)


@pytest.mark.parametrize("pause", [0.0, 0.001])
def test_play_can_be_stopped(pause: float) -> None:
    """After `stop` nothing more is sent, with a pause between events as without."""
    stop = threading.Event()
    sdk = RecordingSdk(after=lambda count: stop.set() if count == 7 else None)
    play(sdk, story(None), set(), stop, pause)
    assert len(sdk.events) == 7


def test_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the SDK the error says what to install."""
    monkeypatch.setitem(sys.modules, "posthog", None)
    with pytest.raises(ConfigurationError) as raised:
        connect("http://127.0.0.1:1")
    assert raised.value.hint == install_extra("demo")


def test_calls_are_those_of_the_real_sdk() -> None:
    """What the story asks of an SDK is what the official one offers."""
    client = connect("http://127.0.0.1:1")
    methods: list[Callable[..., object]] = [
        client.capture,
        client.alias,
        client.group_identify,
        client.shutdown,
    ]
    assert all(callable(method) for method in methods)
    client.shutdown()
