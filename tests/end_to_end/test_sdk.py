"""The official Python SDK, unchanged, sends through forwarder into a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from posthog import Posthog
from posthog.request import reset_sessions

from forwarder.sandbox import Sandbox
from tests.support.upstream import OK, Upstream, plain
from tests.support.waiting import in_thread
from tests.support.whole import KEY, Whole, always_balanced

NOTICES = 40


def talk(client: Posthog) -> list[str]:
    """What an application does with it; the uuids of the events, in order."""
    uuids = []
    for number in range(NOTICES):
        properties = {
            "n": number,
            "big": 2**60 + number,
            "half": 0.5,
            "text": "Zoë 茶碗 \u2028",
            "nested": {"list": [1, None, {}]},
        }
        uuids.append(
            client.capture("page seen", distinct_id=f"person-{number % 5}", properties=properties)
        )
    uuids.append(client.alias("person-1", "loyal-1"))
    uuids.append(
        client.group_identify("company", "c-1", {"name": "Müller & Söhne"}, distinct_id="person-1")
    )
    uuids.append(client.set(distinct_id="person-1", properties={"email": "a@example.com"}))
    end(client)
    return [uuid for uuid in uuids if uuid]


class TransportTap:
    """Notes the bodies that the SDK hands to its transport, as it hands them over."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}

    def note(self, message: dict[str, Any]) -> dict[str, Any]:
        """Called by the SDK before each event is sent; changes nothing."""
        self.events[str(message["uuid"])] = message
        return message


@pytest.mark.parametrize("gzip", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "threaded"])
async def test_every_event_of_the_sdk_arrives_once_and_unchanged(sync: bool, gzip: bool) -> None:
    """In each mode: no event is missing, doubled or in conflict, and each property has the value
    that the SDK gave it.
    """
    tap = TransportTap()
    async with Sandbox() as sandbox, Whole(sandbox.url, upstream={"verify_keys": True}) as whole:
        with always_balanced(whole.pipeline):
            client = Posthog(
                KEY,
                host=f"http://{whole.address}",
                sync_mode=sync,
                gzip=gzip,
                flush_interval=0.05,
                before_send=tap.note,
                capture_mode="v0",
            )
            uuids = await in_thread(lambda: talk(client))
            await whole.emptied()
        summary = await sandbox.summary()
        arrived = await sandbox.events()
        requests = await sandbox.requests()
    assert len(uuids) == NOTICES + 3
    assert sorted(event.uuid for event in arrived) == sorted(uuids)
    assert (summary.duplicates, summary.conflicts, summary.not_ingested) == (0, 0, 0)
    assert {request.path.partition("?")[0] for request in requests} == {"/batch/", "/decide"}
    for event in arrived:
        notices = tap.events[event.uuid]
        assert (event.event, event.distinct_id) == (notices["event"], notices["distinct_id"])
        assert msgspec.json.decode(event.raw)["properties"] == msgspec.json.decode(
            msgspec.json.encode(notices["properties"], enc_hook=str)
        )


@pytest.mark.parametrize("gzip", [False, True], ids=["plain", "gzip"])
async def test_the_sdks_bytes_are_kept(gzip: bool) -> None:
    """The properties that arrive are those that the SDK wrote, byte for byte: beside a direct
    delivery of the same body nothing differs.
    """
    async with Sandbox() as direct, Sandbox() as behind, Whole(behind.url) as whole:
        sent = await in_thread(lambda: twice(direct.url, f"http://{whole.address}", gzip=gzip))
        await whole.emptied()
        written = {event.uuid: event for event in await direct.events()}
        arrived = {event.uuid: event for event in await behind.events()}
    assert set(written) == set(arrived) == sent
    for uuid, event in arrived.items():
        assert raw_properties(event.raw) == raw_properties(written[uuid].raw)
        assert (event.event, event.distinct_id) == (written[uuid].event, written[uuid].distinct_id)


def twice(direct: str, behind: str, *, gzip: bool) -> set[str]:
    """The same events to two addresses; their uuids."""
    uuids = set()
    for host in (direct, behind):
        client = Posthog(KEY, host=host, sync_mode=True, gzip=gzip, capture_mode="v0")
        for number in range(10):
            uuid = f"0189{number:04x}-0000-4000-8000-{number:012x}"
            properties = {"n": number, "one": 1.0, "text": "Zoë 茶碗", "huge": 12345678901234567890}
            client.capture("seen", distinct_id="ann", properties=properties, uuid=uuid)
            uuids.add(uuid)
        end(client)
    return uuids


def end(client: Posthog) -> None:
    """Send what is queued, and close the connections, which the SDK keeps for the whole process."""
    client.shutdown()
    reset_sessions()


def raw_properties(raw: bytes) -> bytes:
    """An event's properties as they stand in it."""
    return bytes(msgspec.json.decode(raw, type=_Event).properties)


class _Event(msgspec.Struct):
    properties: msgspec.Raw


async def test_the_sdk_waits_while_forwarder_is_full() -> None:
    """Answered 503 with Retry-After, the SDK comes back, and nothing is lost on its side either."""
    errors: list[Exception] = []
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        Whole(upstream.url, buffer={"max_bytes": "1MiB"}) as whole,
    ):
        filler = [
            b'{"event":"filler","distinct_id":"x","properties":{"p":"%b"}}' % (b"x" * 800_000)
        ]
        await whole.take(filler)
        client = Posthog(
            KEY,
            host=f"http://{whole.address}",
            on_error=collect(errors),
            max_retries=10,
            capture_mode="v0",
        )
        client.capture(
            "at last",
            distinct_id="ann",
            properties={"p": "x" * 200_000},
            uuid="01890000-0000-4000-8000-000000000001",
        )
        await whole.until(lambda: whole.snapshot.http_requests.get(("/batch", 503), 0) > 0)
        upstream.answer = lambda _: OK
        await in_thread(lambda: end(client))
        await whole.emptied()
        assert sorted(upstream.delivered) == ["at last", "filler"]
    assert errors == []


def collect(errors: list[Exception]) -> Callable[[Exception, Any], None]:
    """What the SDK reports as lost."""
    return lambda error, _: errors.append(error)
