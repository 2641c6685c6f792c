"""Where an event is, asked of a running pipeline."""

from __future__ import annotations

import aiohttp
import msgspec

from forwarder.admin.event_lookup import Sighting, WantedUuid, find_in_memory
from forwarder.admin.server import AdminServer
from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.telemetry.labels import lane_label
from tests.support.snapshots import FULL
from tests.support.upstream import Upstream
from tests.support.whole import KEY, Whole, event

LABEL = lane_label(Lane(KEY))


def uuid_of(raw: bytes) -> WantedUuid:
    """The event's uuid."""
    return WantedUuid.parse(msgspec.json.decode(raw)["uuid"])


async def test_an_event_is_followed_from_waiting_to_gone() -> None:
    """It waits for its batch, is being sent, and is available no more once it was delivered."""
    first = event("first")
    second = event("second")
    async with Upstream() as upstream, Whole(upstream.url, batch={"max_age": "1h"}) as whole:
        await whole.take([first, second])
        (sighting,) = whole.pipeline.explain(uuid_of(first))
        assert (sighting.lane, sighting.where) == (LABEL, "waiting")
        assert abs(sighting.since - whole.clock.now()) < 60
        assert whole.pipeline.explain(uuid_of(event("third"))) == []
        whole.pipeline.stop_accepting()
        assert await whole.pipeline.drain(10)
        assert whole.pipeline.explain(uuid_of(first)) == []


def test_dead_letters_in_memory_are_explained() -> None:
    """Those in a file are looked for there; these end with the process, so that only it can tell
    of them.
    """
    letters = [
        DeadLetter(Reason.REFUSED, Lane(KEY), event("refused"), 7.0, "400"),
        DeadLetter(Reason.INVALID_EVENT, None, b"[", 8.0),
    ]
    sightings = find_in_memory(uuid_of(event("refused")), MemoryBuffer(1000), [], letters)
    assert sightings == [Sighting(LABEL, "dead letter", 7.0, "refused", "400")]


async def test_an_event_in_flight_is_being_sent() -> None:
    """What delivery has taken from the buffer is distinguished from what waits."""
    raw = event("held up")
    async with Whole("http://127.0.0.1:9") as whole:
        await whole.take([raw])
        await whole.until(
            lambda: (
                [sighting.where for sighting in whole.pipeline.explain(uuid_of(raw))] == ["sending"]
            )
        )


async def test_the_admin_server_answers_without_project_keys() -> None:
    """`/explain` says lane, place and time as JSON; a wrong question is an error, and without a
    source of answers there is no such page.
    """
    reported = Sighting(LABEL, "waiting", 1000.0)
    asked: list[WantedUuid] = []

    def explain(wanted: WantedUuid) -> list[Sighting]:
        asked.append(wanted)
        return [reported]

    server = AdminServer(lambda: FULL, explain)
    deaf = AdminServer(lambda: FULL)
    await server.start("127.0.0.1:0")
    await deaf.start("127.0.0.1:0")
    async with aiohttp.ClientSession() as client:
        wanted = uuid_of(event("any"))
        async with client.get(
            f"http://{server.address}/explain", params={"uuid": wanted.text.upper()}
        ) as answer:
            assert msgspec.json.decode(await answer.read(), type=list[Sighting]) == [reported]
        assert [uuid.text for uuid in asked] == [wanted.text]
        async with client.get(
            f"http://{server.address}/explain", params={"uuid": "rubbish"}
        ) as answer:
            assert (answer.status, await answer.text()) == (400, "'rubbish' is not a UUID\n")
        async with client.get(
            f"http://{deaf.address}/explain", params={"uuid": wanted.text}
        ) as answer:
            assert answer.status == 404
    await server.close()
    await deaf.close()
