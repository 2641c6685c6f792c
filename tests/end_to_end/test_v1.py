"""The official Python SDK in its v1 mode, unchanged, through forwarder into a sandbox."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import brotli  # type: ignore[import-untyped]
import msgspec
import pytest
from posthog import Posthog
from posthog.capture_v1 import CaptureV1Error
from posthog.request import reset_sessions

from forwarder.core.ports import DropReason
from forwarder.sandbox import Sandbox
from tests.support.listening import post
from tests.support.upstream import OK, Answer, Request, Upstream, plain
from tests.support.waiting import in_thread
from tests.support.whole import KEY, Whole, always_balanced

PATH = "/i/v1/analytics/events"
UUID = "0190a0a0-1111-7222-8333-444455556666"
OTHER = "0190a0a0-1111-7222-8333-444455556667"
COMPRESSIONS = ["none", "gzip", "deflate", "zstd"]


class V1Tap:
    """Notes what the application's events were, and what the SDK says went wrong."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.errors: list[Exception] = []

    def note(self, message: dict[str, Any]) -> dict[str, Any]:
        """Called by the SDK before each event is sent; changes nothing."""
        self.events[str(message["uuid"])] = message
        return message

    def fail(self, error: Exception, batch: object) -> None:
        """Called by the SDK for a batch that it gives up."""
        self.errors.append(error.with_traceback(None))  # its frames hold the connection


def client_of(address: str, tap: V1Tap, key: str = KEY, **options: Any) -> Posthog:
    """The SDK in its v1 mode."""
    options = {"flush_interval": 0.05, "max_retries": 1, **options}
    return Posthog(
        key,
        host=f"http://{address}",
        capture_mode="v1",
        before_send=tap.note,
        on_error=tap.fail,
        disable_geoip=False,
        **options,
    )


def talk(client: Posthog, count: int = 20) -> list[str]:
    """What an application does with it; the uuids of the events."""
    uuids: list[str | None] = []
    for number in range(count):
        properties = {
            "n": 2**60 + number,
            "text": "Zoë 茶碗 \u2028",
            "$session_id": f"s-{number}",
            "$window_id": f"w-{number}",
            "$process_person_profile": number % 2 == 0,
            "$set": {"email": "a@example.com"},
        }
        uuids.append(
            client.capture("page seen", distinct_id=f"person-{number % 5}", properties=properties)
        )
    uuids.append(client.alias("person-1", "loyal-1"))
    uuids.append(
        client.group_identify("company", "c-1", {"name": "Müller & Söhne"}, distinct_id="person-1")
    )
    uuids.append(client.set(distinct_id="person-1", properties={"email": "a@example.com"}))
    client.shutdown()
    reset_sessions()
    return [uuid for uuid in uuids if uuid]


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_every_event_arrives_once_and_with_the_properties_it_was_given(
    compression: str,
) -> None:
    """The SDK is content; at the service the events are classic ones, with all that the SDK had
    moved out of their properties.
    """
    tap = V1Tap()
    async with Sandbox() as sandbox, Whole(sandbox.url, upstream={"verify_keys": True}) as whole:
        with always_balanced(whole.pipeline):
            uuids = await in_thread(
                lambda: talk(client_of(whole.address, tap, capture_compression=compression))
            )
            await whole.emptied()
        summary = await sandbox.summary()
        arrived = await sandbox.events()
        requests = await sandbox.requests()
    assert tap.errors == []
    assert sorted(event.uuid for event in arrived) == sorted(uuids)
    assert (summary.duplicates, summary.conflicts, summary.not_ingested) == (0, 0, 0)
    assert {request.path.partition("?")[0] for request in requests} == {"/batch/", "/decide"}
    for event in arrived:
        reported = tap.events[event.uuid]
        written = msgspec.json.decode(event.raw)
        moved = {key: reported[key] for key in ("$set", "$set_once") if key in reported}
        expected = msgspec.json.decode(
            msgspec.json.encode({**moved, **reported["properties"]}, enc_hook=str)
        )
        assert written["properties"] == expected
        assert not {"options", "session_id", "window_id"} & set(written)


async def test_a_wrong_key_is_refused_as_the_sdk_reads_it() -> None:
    """401 ends the SDK's attempts at once, and its error says why."""
    tap = V1Tap()
    async with Sandbox() as sandbox, Whole(sandbox.url, http={"api_keys": [KEY]}) as whole:
        await in_thread(lambda: talk(client_of(whole.address, tap, key="phc_other")))
    assert tap.errors
    for error in tap.errors:
        assert isinstance(error, CaptureV1Error)
        assert (error.status, error.attempts) == (401, 1)
        assert "api_keys" in str(error)


async def test_only_what_was_not_delivered_in_time_comes_again() -> None:
    """At the level `delivered`: of a request of which a part is delivered when the time is over,
    the SDK repeats the rest alone.
    """
    tap = V1Tap()
    count = 30

    def answer(_: Request) -> Answer:
        return (
            OK
            if whole.pipeline._parts.listener.statistics().requests.get((PATH, 200))
            or len(upstream.requests) == 1
            else plain(500)
        )

    options: dict[str, Any] = {
        "buffer": {"ack": "delivered", "ack_timeout": "20s"},
        "batch": {"max_events": 10},
        "delivery": {"concurrency": 1},
    }
    upstream = Upstream(answer)
    async with upstream, Whole(upstream.url, **options) as whole:
        with always_balanced(whole.pipeline):
            uuids = await in_thread(
                lambda: talk(
                    client_of(whole.address, tap, flush_at=100, flush_interval=5), count - 3
                )
            )
            await whole.emptied()
        withdrawn = whole.total(lambda lane: lane.dropped.get(DropReason.WITHDRAWN, 0))
        requests = whole.pipeline._parts.listener.statistics().requests
    arrived = Counter(event["uuid"] for request in upstream._answered for event in request.events)
    assert tap.errors == []
    assert requests == {(PATH, 200): 2}
    assert withdrawn == 10
    assert [arrived[uuid] for uuid in uuids] == [1] * 10 + [2] * 10 + [1] * 10


async def test_browsers_and_others_may_send_brotli() -> None:
    """The one encoding that the Python SDK doesn't have; a bad event beside good ones is
    reported to its sender.
    """
    good = {
        "event": "good",
        "uuid": UUID,
        "distinct_id": "ann",
        "timestamp": "2026-01-01T00:00:00Z",
        "options": {},
    }
    events = [good, {**good, "event": "", "uuid": OTHER}]
    body = brotli.compress(
        json.dumps({"created_at": "2026-01-01T00:00:00Z", "batch": events}).encode()
    )
    async with Sandbox() as sandbox, Whole(sandbox.url) as whole:
        reply = await whole.send(
            post(PATH, body, f"Authorization: Bearer {KEY}", "Content-Encoding: br")
        )
        await whole.emptied()
        arrived = await sandbox.events()
    assert [event.event for event in arrived] == ["good"]
    assert json.loads(reply.body)["results"] == {
        UUID: {"result": "ok"},
        OTHER: {"result": "drop", "details": "missing_event_name"},
    }
