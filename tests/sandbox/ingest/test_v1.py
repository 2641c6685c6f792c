"""`POST /i/v1/analytics/events`: who gets in, what of it is ingested, and what it becomes."""

from __future__ import annotations

import json
import zlib
from typing import Any
from uuid import UUID

import zstandard

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.ingest.v1 import V1_PATH
from tests.sandbox.client import KEY, SandboxClient, SandboxReply, talking
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT

HEADERS = {
    "Authorization": f"Bearer {KEY}",
    "Content-Type": "application/json",
    "User-Agent": "posthog-test/1.2.3",
    "PostHog-Sdk-Info": "posthog-test/1.2.3",
    "PostHog-Attempt": "1",
    "PostHog-Request-Id": "0190a0a0-1111-7222-8333-000000000000",
    "PostHog-Request-Timestamp": "2026-01-01T00:00:10Z",
}
LIB = '"$lib":"posthog-test","$lib_version":"1.2.3"'
AT_MIDNIGHT = SandboxOptions(now=lambda: MIDNIGHT)


def uuid(number: int) -> str:
    """One of a series."""
    return str(UUID(int=0x0190A0A0111172228333000000000000 + number))


def one(number: int = 0, **changes: Any) -> dict[str, Any]:
    """An event of this protocol; a change to `...` takes a key away."""
    full = {
        "event": "seen",
        "uuid": uuid(number),
        "distinct_id": "ann",
        "timestamp": "2026-01-01T00:00:00Z",
        "properties": {"n": 1},
    }
    return {key: value for key, value in {**full, **changes}.items() if value is not ...}


def body(*events: Any, **envelope: Any) -> dict[str, Any]:
    """A request of these events."""
    full = {"created_at": "2026-01-01T00:00:00Z", "batch": list(events), **envelope}
    return {key: value for key, value in full.items() if value is not ...}


async def send(client: SandboxClient, content: Any, **headers: str | None) -> SandboxReply:
    """Send a body: bytes as they are, anything else as JSON. A header that is None is left out."""
    changed = {**HEADERS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return await client.ask(
        "POST", V1_PATH, data, {name: value for name, value in changed.items() if value is not None}
    )


async def test_events_are_ingested() -> None:
    """Each event has its result under its uuid, and is kept in the classic shape, with the SDK's
    name and the request's.
    """
    async with talking(AT_MIDNIGHT) as client:
        reply = await send(
            client, body(one(1), one(2, properties=..., uuid=uuid(2).upper(), distinct_id=" bob "))
        )
        assert (reply.status, reply.json) == (
            200,
            {"results": {uuid(1): {"result": "ok"}, uuid(2): {"result": "ok"}}},
        )
        first, second = await client.sandbox.events()
    assert (first.uuid, first.event, first.distinct_id, first.api_key, first.timestamp) == (
        uuid(1),
        "seen",
        "ann",
        KEY,
        "2025-12-31T23:59:50.000000Z",
    )
    assert first.properties == f'{{"n": 1,{LIB}}}'
    assert first.raw.decode() == (
        f'{{"event":"seen","uuid":"{uuid(1)}","distinct_id":"ann","timestamp":"2026-01-01T00:0'
        f'0:00Z","properties":{first.properties}}}'
    )
    assert (second.uuid, second.distinct_id, second.properties) == (uuid(2), "bob", f"{{{LIB}}}")
    assert json.loads(second.raw)["distinct_id"] == "bob"


async def test_what_stands_beside_the_properties() -> None:
    """Session, window and options become properties behind those that were sent, whose text stays;
    what isn't known is left out.
    """
    options = {
        "cookieless_mode": "TRUE",
        "disable_skew_correction": 1,
        "product_tour_id": 7,
        "process_person_profile": "0",
        "more": {},
    }
    sent = '{"big":12345678901234567890123, "one":1.0}'
    event = json.dumps(one(session_id="s", window_id="w", options=options, unknown=1)).replace(
        '{"n": 1}', sent
    )
    text = f'{{"created_at":"2026-01-01T00:00:00Z","batch":[{event}]}}'
    async with talking(AT_MIDNIGHT) as client:
        assert (await send(client, text.encode())).status == 200
        [kept] = await client.sandbox.events()
        assert kept.timestamp == "2026-01-01T00:00:00.000000Z"
        assert kept.properties.startswith(sent[:-1] + ",")
        promoted = {
            key: value for key, value in json.loads(kept.properties).items() if key.startswith("$")
        }
        assert promoted == {
            "$session_id": "s",
            "$window_id": "w",
            "$cookieless_mode": True,
            "$ignore_sent_at": True,
            "$product_tour_id": "7",
            "$process_person_profile": False,
            "$lib": "posthog-test",
            "$lib_version": "1.2.3",
        }
        assert "unknown" not in kept.raw.decode()
        assert (await client.sandbox.summary()).persons == 0


@cases(
    ("change", "details"),
    [
        ({"event": ""}, "missing_event_name"),
        ({"event": "é" * 101}, "event_name_too_long"),
        ({"event": "$performance_event"}, "dropped_performance_event"),
        ({"distinct_id": " \t"}, "missing_distinct_id"),
        ({"distinct_id": "x" * 201}, "distinct_id_too_large"),
        ({"timestamp": "2026-01-01T00:00:00"}, "invalid_event_timestamp"),
        ({"timestamp": "yesterday"}, "invalid_event_timestamp"),
        ({"timestamp": "2026-13-01T00:00:00Z"}, "invalid_event_timestamp"),
        ({"properties": [1]}, "malformed_event_properties"),
        ({"properties": None}, "malformed_event_properties"),
        ({"options": [1]}, "invalid_options"),
        ({"options": {"cookieless_mode": "perhaps"}}, "invalid_options"),
        ({"options": {"product_tour_id": 1.5}}, "invalid_options"),
        ({"event": "survey sent"}, "no_survey_id"),
    ],
)
async def test_an_event_that_is_dropped(change: dict[str, Any], details: str) -> None:
    """What is wrong with one event is that event's result; the others are ingested, and the record
    says why it isn't.
    """
    async with talking() as client:
        reply = await send(client, body(one(1), one(2, **change)))
        assert (reply.status, reply.json["results"][uuid(2)]) == (
            200,
            {"result": "drop", "details": details},
        )
        assert reply.json["results"][uuid(1)] == {"result": "ok"}
        [request] = await client.sandbox.requests()
        assert (request.arrivals, len(request.not_ingested)) == (1, 1)


async def test_what_the_real_service_does_otherwise() -> None:
    """With `--strict` a survey needs no id, an event over 1 MiB is dropped, and an unknown key's
    events are answered `ok` and dropped.
    """
    async with talking(SandboxOptions(strict=True, api_keys=frozenset({KEY}))) as client:
        large = one(2, properties={"x": "x" * 1_048_576})
        reply = await send(client, body(one(1, event="survey sent"), large))
        assert [result["result"] for result in reply.json["results"].values()] == ["ok", "drop"]
        reply = await send(client, body(one(3)), Authorization="Bearer phc_unknown")
        assert reply.json == {"results": {uuid(3): {"result": "ok"}}}
        assert [
            str(it.reason)
            for request in await client.sandbox.requests()
            for it in request.not_ingested
        ] == [
            "event_too_big",
            "unknown_key",
        ]


@cases(
    ("content", "tag"),
    [
        (b"", "empty_body"),
        (b"{", "request_parsing_error"),
        (b"[]", "request_parsing_error"),
        (b"\xff", "request_parsing_error"),
        (body(one(), created_at=...), "request_parsing_error"),
        (body(one(), created_at=7), "request_parsing_error"),
        (body(one(), created_at="yesterday"), "invalid_batch"),
        (body(batch=...), "request_parsing_error"),
        (body(batch={}), "request_parsing_error"),
        (body(one(), historical_migration="true"), "request_parsing_error"),
        (body(), "empty_batch"),
        (body("seen"), "request_parsing_error"),
        (body(one(event=...)), "request_parsing_error"),
        (body(one(distinct_id=7)), "request_parsing_error"),
        (body(one(timestamp=...)), "request_parsing_error"),
        (body(one(session_id=7)), "request_parsing_error"),
        (body(one(uuid=...)), "request_parsing_error"),
        (body(one(uuid=" ")), "missing_event_uuid"),
        (body(one(uuid="x")), "invalid_event_uuid"),
        (body(one(1), one(2), one(1)), "duplicate_event_uuid"),
        (
            b'{"created_at":"2026-01-01T00:00:00Z","created_at":"2026-01-01T00:00:00Z","batch":[]}',
            "request_parsing_error",
        ),
    ],
)
async def test_a_request_that_is_refused(content: Any, tag: str) -> None:
    """What isn't of the form is 400 as a whole, and says so to programs and to people."""
    async with talking() as client:
        reply = await send(client, content)
        assert (reply.status, reply.json["error"]) == (400, tag)
        assert reply.json["error_description"]
        assert (await client.sandbox.summary()).arrivals == 0
        assert [request.status for request in await client.sandbox.requests()] == [400]


@cases(
    ("headers", "status", "tag"),
    [
        ({"Authorization": None}, 401, "missing_authorization"),
        ({"Authorization": "Basic x"}, 400, "invalid_header_value"),
        ({"Authorization": "Bearer phx_personal"}, 401, "invalid_api_token"),
        ({"Authorization": "Bearer phc_unknown"}, 401, "invalid_api_token"),
        ({"PostHog_Sdk_Info": None}, 400, "missing_required_headers"),
        ({"Content_Type": None}, 400, "missing_required_headers"),
        ({"Content_Type": "text/plain"}, 415, "unsupported_content_type"),
        ({"Content_Encoding": "lz4"}, 415, "unsupported_encoding"),
        ({"Content_Encoding": "gzip"}, 400, "request_decoding_error"),
        ({"PostHog_Attempt": "0"}, 400, "invalid_header_value"),
        ({"PostHog_Request_Id": "x"}, 400, "invalid_header_value"),
        ({"PostHog_Request_Timestamp": "now"}, 400, "invalid_header_value"),
    ],
)
async def test_headers(headers: dict[str, str | None], status: int, tag: str) -> None:
    """The key and what the protocol's headers say are checked first."""
    async with talking(SandboxOptions(api_keys=frozenset({KEY}))) as client:
        reply = await send(client, body(one()), **headers)
        assert (reply.status, reply.json["error"]) == (status, tag)
        assert KEY not in (await client.ask("GET", "/sandbox/requests")).text


async def test_encodings_and_the_limit() -> None:
    """A body may be compressed as its header says, in any case of letters, and stays below the
    limit also then.
    """
    content = json.dumps(body(one())).encode()
    async with talking(SandboxOptions(max_body=len(content) + 1)) as client:
        for name, data in (
            ("ZSTD", zstandard.ZstdCompressor().compress(content)),
            ("deflate", zlib.compress(content)),
        ):
            assert (await send(client, data, Content_Encoding=name)).status == 200
        assert [request.encoding for request in await client.sandbox.requests()] == [
            "zstd",
            "deflate",
        ]
        reply = await send(client, zlib.compress(content + b"   "), Content_Encoding="deflate")
        assert (reply.status, reply.json["error"]) == (413, "payload_too_large")
        reply = await send(client, content + b"   ")
        assert (reply.status, reply.json["error"]) == (413, "payload_too_large")


async def test_repeats_and_history() -> None:
    """An event that comes again is a duplicate, as in the classic protocol; a batch of a migration
    is marked as one.
    """
    async with talking(AT_MIDNIGHT) as client:
        for content in (
            body(one(1)),
            body(one(1), one(2), historical_migration=True),
            body(one(1, properties={"n": 2})),
        ):
            assert (await send(client, content)).status == 200
        summary = await client.sandbox.summary()
        assert (summary.events, summary.duplicates, summary.conflicts) == (2, 1, 1)
        assert [kept.historical for kept in await client.sandbox.events()] == [False, True]


async def test_clocks() -> None:
    """The difference of the clocks is taken off; what is more than 23 hours in the future is now;
    an SDK without a version is no SDK.
    """
    async with talking(AT_MIDNIGHT) as client:
        times = [
            one(1, timestamp="2026-01-01T01:00:10.5+01:00"),
            one(2, timestamp="2026-01-03T00:00:00Z"),
            one(3, timestamp="0001-01-01T00:00:00Z"),
        ]
        assert (await send(client, body(*times), PostHog_Sdk_Info="posthog")).status == 200
        kept = await client.sandbox.events()
        times_kept = [event.timestamp[:23] for event in kept]
        assert times_kept == [
            "2026-01-01T00:00:00.500",
            "2026-01-01T00:00:00.000",
            "2026-01-01T00:00:00.000",
        ]
        assert "$lib" not in kept[0].properties
