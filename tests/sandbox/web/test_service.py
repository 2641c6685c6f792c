"""The ingestion endpoints over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from posthog import Posthog
from posthog.request import reset_sessions

from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.protocol.event_times import FUTURE
from forwarder.sandbox.store.stored_records import ArrivalKind, EventFilter
from forwarder.sandbox.web.service import EVENT_PATHS
from tests.sandbox.client import KEY, batch, event, recorded, talking
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT
from tests.support.service_times import NOW, TABLE, expected, is_near
from tests.support.spelled import SpelledEvent, spelled_events
from tests.support.waiting import in_thread

DECISION = {
    "config": {"enable_collect_everything": True},
    "toolbarParams": {},
    "errorsWhileComputingFlags": False,
    "isAuthenticated": False,
    "supportedCompression": ["gzip", "lz64"],
    "featureFlags": {},
    "featureFlagPayloads": {},
}


@cases("slash", ["", "/"])
@cases("path", EVENT_PATHS)
async def test_every_path_takes_every_shape(path: str, slash: str) -> None:
    """A batch, an array and a single event are taken on each path, with and without the slash."""
    async with talking() as client:
        for body in (
            batch(event(event="batch")),
            [event(event="array", token=KEY)],
            event(event="single", api_key=KEY),
        ):
            reply = await client.post(path + slash, body)
            assert (reply.status, reply.text) == (200, '{"status":"Ok"}')
            assert reply.headers["Content-Type"].startswith("application/json")
        assert [stored_event.event for stored_event in await client.sandbox.events()] == [
            "batch",
            "array",
            "single",
        ]


@cases("path", [*EVENT_PATHS, "/s", "/i/v1/analytics/events"])
async def test_only_post(path: str) -> None:
    """Another method is 405 and says which there is; an unknown path is 404."""
    async with talking() as client:
        reply = await client.ask("GET", f"{path}/")
        assert (reply.status, reply.headers["Allow"]) == (405, "OPTIONS,POST")
        assert (await client.post("/flag/?v=2", {})).status == 404


async def test_a_beacon_gets_no_body() -> None:
    """`beacon=1` is answered 204 (wire facts: "What SDKs send")."""
    async with talking() as client:
        reply = await client.post("/e/?beacon=1", event(token=KEY))
        assert (reply.status, reply.text) == (204, "")
        assert (await client.sandbox.summary()).events == 1


@pytest.mark.parametrize("slash", ["", "/"])
async def test_decide_has_every_field_of_the_contract(slash: str) -> None:
    """Version 3 has all fields; 1 lists flags and 2 maps them, without payloads; 4 has an object
    for each; without v it is 1.
    """
    ask = {"api_key": KEY, "distinct_id": "ann", "groups": {"company": "x"}}
    older = {name: value for name, value in DECISION.items() if name != "featureFlagPayloads"}
    newer = {
        **{name: value for name, value in older.items() if name != "featureFlags"},
        "flags": {},
    }
    async with talking() as client:
        for version, expected in (
            ("?v=3", DECISION),
            ("?v=4", newer),
            ("?v=2", older),
            ("?v=1", {**older, "featureFlags": []}),
        ):
            reply = await client.post(f"/decide{slash}{version}", ask)
            assert (reply.status, reply.json) == (200, expected)
        assert (await client.post(f"/decide{slash}", ask)).json == {**older, "featureFlags": []}
        assert (await client.post(f"/decide{slash}?v=3", {"api_key": KEY})).status == 400
        assert (await client.post(f"/decide{slash}?v=3", [])).status == 400


async def test_strict_decide_names_the_real_compressions() -> None:
    """The real service says gzip and gzip-js where the contract says gzip and lz64."""
    async with talking(SandboxOptions(strict=True)) as client:
        reply = await client.post("/decide?v=3", {"api_key": KEY, "distinct_id": "ann"})
    assert reply.json["supportedCompression"] == ["gzip", "gzip-js"]


@cases(("size", "status"), [(999, 200), (1000, 413), (1001, 413), (100_000, 413)])
@cases("pack", [bytes, gzip.compress], ids=["wire", "decompressed"])
async def test_a_body_stays_below_the_limit(
    pack: Callable[[bytes], bytes], size: int, status: int
) -> None:
    """On the wire and decompressed a body must be smaller than the limit; one that isn't leaves
    its record and the connection lives on.
    """
    raw = json.dumps(batch(event()))
    async with talking(SandboxOptions(max_body=1000)) as client:
        answer = await client.post("/batch/", pack(raw.encode() + b" " * (size - len(raw))))
        assert answer.status == status
        assert (await client.post("/batch/", batch(event()))).status == 200
        assert [request.status for request in await client.sandbox.requests()] == [status, 200]


async def test_a_body_without_a_length_stays_below_the_limit() -> None:
    """A chunked body is cut off at the limit."""
    async with Sandbox(SandboxOptions(max_body=1000)) as sandbox:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(sandbox.url.rpartition(":")[2])
        )
        writer.write(b"POST /batch/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        assert b" 413 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


@pytest.mark.slow
async def test_the_limit_is_twenty_megabytes() -> None:
    """Unless said: 20,000,000 bytes are too many (interface document, Limits 1)."""
    async with talking() as client:
        assert (await client.post("/batch/", b" " * 20_000_000)).status == 413
        replay = b'{"api_key":"%b","data":"' % KEY.encode()
        answer = await client.post("/s/", replay + b"x" * (64_000_000 - len(replay) - 2) + b'"}')
        assert answer.status == 200
        assert (await client.post("/s/", b" " * 64_000_001)).status == 413
        answer = await client.post("/batch/", json.dumps(batch(event())).encode().ljust(19_999_999))
        assert answer.status == 200


async def test_a_sender_that_goes_away() -> None:
    """A body whose end never comes leaves a record and takes nothing."""
    async with Sandbox() as sandbox:
        _, writer = await asyncio.open_connection("127.0.0.1", int(sandbox.url.rpartition(":")[2]))
        writer.write(b'POST /batch/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"api_key"')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        requests = await recorded(sandbox)
    assert [(request.status, request.error) for request in requests] == [
        (400, "the body was cut off")
    ]


async def test_a_request_is_kept_with_its_circumstances() -> None:
    """Path, query, headers without credentials, key, encoding, size and answer are there to be
    asked for.
    """
    body = gzip.compress(
        json.dumps(batch(event(), event(event=""), historical_migration=True)).encode()
    )
    async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
        secret = {"Authorization": "Bearer phx_secret", "Cookie": "s=secret"}
        await client.post("/batch/?ver=1", body, Content_Encoding="gzip", X_Test="yes", **secret)
        [request] = await client.sandbox.requests()
        assert "secret" not in (await client.ask("GET", "/sandbox/requests")).text
        [one] = await client.sandbox.events()
    assert (request.path, request.query, request.api_key, request.historical, request.encoding) == (
        "/batch/",
        "ver=1",
        KEY,
        True,
        "gzip",
    )
    assert (request.size, request.status, request.answer, request.error, request.arrivals) == (
        len(body),
        200,
        '{"status":"Ok"}',
        None,
        1,
    )
    assert (
        request.headers["x-test"],
        request.headers["authorization"],
        request.headers["cookie"],
    ) == (
        "yes",
        "hidden",
        "hidden",
    )
    assert request.received_at == one.received_at == "2026-01-01T00:00:00.000000Z"
    assert (one.request, one.index, one.historical) == (request.request, 0, True)


@cases(
    ("query", "envelope", "changes", "resolved"),
    [
        ("", {}, {}, "2026-01-01T00:00:00.000000Z"),
        ("", {}, {"timestamp": "2025-12-31T22:00:00"}, "2025-12-31T22:00:00.000000Z"),
        (
            "",
            {"sent_at": "2025-12-31T23:00:00Z"},
            {"timestamp": "2025-12-31T22:00:00Z"},
            "2025-12-31T23:00:00.000000Z",
        ),
        (
            "?_=1767222000000",
            {},
            {"timestamp": "2025-12-31T22:00:00Z"},
            "2025-12-31T23:00:00.000000Z",
        ),
        ("", {"sent_at": "2025-12-31T23:00:00Z"}, {"offset": 1500}, "2025-12-31T23:59:58.500000Z"),
        (
            "",
            {"sent_at": "2025-12-31T23:00:00Z"},
            {"timestamp": "2025-12-31T22:00:00Z", "properties": {"$ignore_sent_at": True}},
            "2025-12-31T22:00:00.000000Z",
        ),
        (
            "",
            {"sent_at": "2025-12-31T23:00:00Z"},
            {"timestamp": "2025-12-31T22:00:00Z", "properties": {"$ignore_sent_at": "yes"}},
            "2025-12-31T23:00:00.000000Z",
        ),
        (
            "",
            {"sent_at": "2025-12-31T23:00:00Z"},
            {"timestamp": "2025-12-31T22:00:00Z", "offset": 1500},
            "2025-12-31T23:59:58.500000Z",
        ),
        (
            "?_=1767222000",
            {"sent_at": "2025-12-31T23:00:00"},
            {"timestamp": "2025-12-31T22:00:00Z"},
            "2025-12-31T22:00:00.000000Z",
        ),
        ("", {}, {"timestamp": "2026-06-01T00:00:00Z"}, "2026-01-01T00:00:00.000000Z"),
    ],
)
async def test_times_are_the_services(
    query: str, envelope: dict[str, Any], changes: dict[str, Any], resolved: str
) -> None:
    """The resolved time follows the service's rules; the timestamp is kept as sent beside it (wire
    facts: Time).
    """
    async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
        await client.post(f"/batch/{query}", batch(event(**changes), **envelope))
        [stored_event] = await client.sandbox.events()
    assert stored_event.timestamp == resolved
    assert stored_event.timestamp_sent == (
        json.dumps(changes["timestamp"]) if "timestamp" in changes else None
    )


async def test_sent_at_beside_a_single_event_is_ignored() -> None:
    """The service has it in batches alone."""
    async with talking(SandboxOptions(now=lambda: MIDNIGHT)) as client:
        alone = event(timestamp="2025-12-31T22:00:00Z", api_key=KEY, sent_at="2025-12-31T23:00:00Z")
        await client.post("/e/", alone)
        [stored_event] = await client.sandbox.events()
    assert stored_event.timestamp == "2025-12-31T22:00:00.000000Z"


async def test_each_text_becomes_the_time_that_the_service_reads() -> None:
    """The whole table of them; what it doesn't read, or is too far ahead, becomes now, and the
    event says so.
    """
    sent = [event(timestamp=text) for text in TABLE]
    async with talking(SandboxOptions(now=NOW.timestamp)) as client:
        await client.post("/batch/", batch(*sent))
        shown = (await client.get("/sandbox/events?limit=10000"))["results"]
    assert [json.loads(one["timestamp_sent"]) for one in shown] == list(TABLE)
    for one, text in zip(shown, TABLE, strict=True):
        wanted = expected(text)
        read = wanted is not None and wanted <= NOW + FUTURE
        happened = datetime.fromisoformat(one["timestamp"])
        assert is_near(happened, wanted if read and wanted is not None else NOW), text
        assert (one["timestamp_note"] is None) == read, text


@settings(max_examples=15, deadline=None)
@given(sent=st.lists(spelled_events(), min_size=1, max_size=20), zipped=st.booleans())
async def test_every_byte_of_an_event_is_kept(sent: list[SpelledEvent], zipped: bool) -> None:
    """Whatever an event's spelling, what is stored and shown is what was sent."""
    raws = [one.text for one in sent]
    body = ('{"batch":[' + " , ".join(raws) + f'],"api_key":"{KEY}"}}').encode()
    async with talking() as client:
        reply = await client.post("/batch/", gzip.compress(body) if zipped else body)
        assert reply.status == 200
        stored_events = await client.sandbox.events(EventFilter(arrivals=True))
        shown = await client.get("/sandbox/events?arrivals=true")
    assert [one.raw.decode() for one in stored_events] == raws
    assert [one["raw"] for one in shown["results"]] == raws


async def test_many_senders_at_once() -> None:
    """Requests of several connections at once are each kept whole and in their own order, and each
    repeat is found.
    """
    async with talking() as client:

        async def send(sender: int) -> None:
            for number in range(10):
                events = [
                    event(
                        distinct_id=str(sender),
                        uuid=f"00000000-0000-4000-8000-{sender:04}{number:04}{index:04}",
                    )
                    for index in range(20)
                ]
                for _ in range(2):
                    assert (await client.post("/batch/", batch(*events))).status == 200

        await asyncio.gather(*[send(sender) for sender in range(8)])
        summary = await client.sandbox.summary()
        stored_events = await client.sandbox.events(EventFilter(arrivals=True))
    assert (summary.requests, summary.events, summary.duplicates, summary.conflicts) == (
        160,
        1600,
        1600,
        0,
    )
    assert [one.index for one in stored_events] == list(range(20)) * 160
    for sender in range(8):
        mine = [
            one.uuid
            for one in stored_events
            if one.distinct_id == str(sender) and one.kind is ArrivalKind.NEW
        ]
        assert mine == sorted(mine)


@cases("strict", [True, False])
@cases("zipped", [True, False])
async def test_the_official_sdk_sends_straight_to_it(strict: bool, zipped: bool) -> None:
    """The Python SDK, unchanged: what it captures arrives with the uuids that it gave out."""
    errors: list[object] = []

    def talk(url: str) -> list[str | None]:
        client = Posthog(
            KEY,
            host=url,
            gzip=zipped,
            on_error=lambda error, _: errors.append(error),
            capture_mode="v0",
        )
        sent = [
            client.capture("bought", distinct_id="ann", properties={"n": n, "text": "Zoë"})
            for n in range(25)
        ]
        sent.append(client.set(distinct_id="ann", properties={"plan": "pro"}))
        sent.append(client.alias("anonymous", "ann"))
        client.shutdown()
        reset_sessions()
        return sent

    async with Sandbox(SandboxOptions(strict=strict, api_keys=frozenset({KEY}))) as sandbox:
        sent = await in_thread(lambda: talk(sandbox.url))
        stored_events = await sandbox.events()
        summary = await sandbox.summary()
    assert errors == []
    assert [one.uuid for one in stored_events] == sent
    assert {one.event for one in stored_events} == {"bought", "$set", "$create_alias"}
    assert (summary.conflicts, summary.duplicates, summary.not_ingested) == (0, 0, 0)
