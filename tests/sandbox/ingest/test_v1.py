"""`POST /i/v1/analytics/events`: which requests are accepted, which of their events are ingested,
and how these are stored.
"""

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
    """A valid uuid, another one for each number."""
    return str(UUID(int=0x0190A0A0111172228333000000000000 + number))


def v1_event(number: int = 0, **changes: Any) -> dict[str, Any]:
    """An event of this protocol, with these changes; `...` removes a key."""
    full = {
        "event": "seen",
        "uuid": uuid(number),
        "distinct_id": "ann",
        "timestamp": "2026-01-01T00:00:00Z",
        "properties": {"n": 1},
    }
    return {key: value for key, value in {**full, **changes}.items() if value is not ...}


def body(*events: Any, **envelope: Any) -> dict[str, Any]:
    """The body of a request with these events; `...` removes a key."""
    full = {"created_at": "2026-01-01T00:00:00Z", "batch": list(events), **envelope}
    return {key: value for key, value in full.items() if value is not ...}


async def send(client: SandboxClient, content: Any, **headers: str | None) -> SandboxReply:
    """Send a body: bytes as they are, anything else as JSON. None removes a header."""
    changes = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {name: value for name, value in {**HEADERS, **changes}.items() if value is not None}
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return await client.ask("POST", V1_PATH, data, sent)


async def test_events_are_answered_ok_and_stored_in_the_classic_shape() -> None:
    """The answer has a result for each uuid. The SDK's name and version become properties; uuid and
    distinct_id are normalized.
    """
    async with talking(AT_MIDNIGHT) as client:
        reply = await send(
            client,
            body(
                v1_event(1), v1_event(2, properties=..., uuid=uuid(2).upper(), distinct_id=" bob ")
            ),
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


async def test_session_window_and_options_become_properties() -> None:
    """They come after the properties that were sent, whose text is unchanged. Unknown members of
    event and options are left out.
    """
    options = {
        "cookieless_mode": "TRUE",
        "disable_skew_correction": 1,
        "product_tour_id": 7,
        "process_person_profile": "0",
        "more": {},
    }
    properties = '{"big":12345678901234567890123, "one":1.0}'
    event = json.dumps(v1_event(session_id="s", window_id="w", options=options, unknown=1)).replace(
        '{"n": 1}', properties
    )
    text = f'{{"created_at":"2026-01-01T00:00:00Z","batch":[{event}]}}'
    async with talking(AT_MIDNIGHT) as client:
        assert (await send(client, text.encode())).status == 200
        [stored] = await client.sandbox.events()
        assert stored.timestamp == "2026-01-01T00:00:00.000000Z"
        assert stored.properties.startswith(properties[:-1] + ",")
        added = {
            key: value
            for key, value in json.loads(stored.properties).items()
            if key.startswith("$")
        }
        assert added == {
            "$session_id": "s",
            "$window_id": "w",
            "$cookieless_mode": True,
            "$ignore_sent_at": True,
            "$product_tour_id": "7",
            "$process_person_profile": False,
            "$lib": "posthog-test",
            "$lib_version": "1.2.3",
        }
        assert "unknown" not in stored.raw.decode()
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
async def test_an_invalid_event_gets_the_result_drop_and_others_are_ingested(
    change: dict[str, Any], details: str
) -> None:
    """The sandbox's record of the request counts it as not ingested."""
    async with talking() as client:
        reply = await send(client, body(v1_event(1), v1_event(2, **change)))
        assert (reply.status, reply.json["results"][uuid(2)]) == (
            200,
            {"result": "drop", "details": details},
        )
        assert reply.json["results"][uuid(1)] == {"result": "ok"}
        [request] = await client.sandbox.requests()
        assert (request.arrivals, len(request.not_ingested)) == (1, 1)


async def test_strict_is_like_the_service_about_surveys_large_events_and_unknown_keys() -> None:
    """With `--strict`, a survey event needs no id, an event over 1 MiB is dropped, and events of an
    unknown key are answered `ok` and dropped.
    """
    async with talking(SandboxOptions(strict=True, api_keys=frozenset({KEY}))) as client:
        large = v1_event(2, properties={"x": "x" * 1_048_576})
        reply = await send(client, body(v1_event(1, event="survey sent"), large))
        assert [result["result"] for result in reply.json["results"].values()] == ["ok", "drop"]
        reply = await send(client, body(v1_event(3)), Authorization="Bearer phc_unknown")
        assert reply.json == {"results": {uuid(3): {"result": "ok"}}}
        reasons = []
        for request in await client.sandbox.requests():
            reasons += [str(event.reason) for event in request.not_ingested]
        assert reasons == ["event_too_big", "unknown_key"]


@cases(
    ("content", "tag"),
    [
        (b"", "empty_body"),
        (b"{", "request_parsing_error"),
        (b"[]", "request_parsing_error"),
        (b"\xff", "request_parsing_error"),
        (body(v1_event(), created_at=...), "request_parsing_error"),
        (body(v1_event(), created_at=7), "request_parsing_error"),
        (body(v1_event(), created_at="yesterday"), "invalid_batch"),
        (body(batch=...), "request_parsing_error"),
        (body(batch={}), "request_parsing_error"),
        (body(v1_event(), historical_migration="true"), "request_parsing_error"),
        (body(), "empty_batch"),
        (body("seen"), "request_parsing_error"),
        (body(v1_event(event=...)), "request_parsing_error"),
        (body(v1_event(distinct_id=7)), "request_parsing_error"),
        (body(v1_event(timestamp=...)), "request_parsing_error"),
        (body(v1_event(session_id=7)), "request_parsing_error"),
        (body(v1_event(uuid=...)), "request_parsing_error"),
        (body(v1_event(uuid=" ")), "missing_event_uuid"),
        (body(v1_event(uuid="x")), "invalid_event_uuid"),
        (body(v1_event(1), v1_event(2), v1_event(1)), "duplicate_event_uuid"),
        (
            b'{"created_at":"2026-01-01T00:00:00Z","created_at":"2026-01-01T00:00:00Z","batch":[]}',
            "request_parsing_error",
        ),
    ],
)
async def test_an_invalid_body_is_answered_400_with_error_and_description(
    content: Any, tag: str
) -> None:
    """None of its events is ingested."""
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
async def test_missing_and_invalid_headers_are_answered_with_their_error(
    headers: dict[str, str | None], status: int, tag: str
) -> None:
    """The project key is in no record of the request."""
    async with talking(SandboxOptions(api_keys=frozenset({KEY}))) as client:
        reply = await send(client, body(v1_event()), **headers)
        assert (reply.status, reply.json["error"]) == (status, tag)
        assert KEY not in (await client.ask("GET", "/sandbox/requests")).text


async def test_a_compressed_body_is_accepted_if_it_is_below_the_limit_decompressed() -> None:
    """The name of the encoding may be in upper case."""
    content = json.dumps(body(v1_event())).encode()
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


async def test_repeated_events_are_duplicates_and_migrated_ones_historical() -> None:
    """As in the classic protocol, an event that is sent again with other content is a conflict."""
    async with talking(AT_MIDNIGHT) as client:
        for content in (
            body(v1_event(1)),
            body(v1_event(1), v1_event(2), historical_migration=True),
            body(v1_event(1, properties={"n": 2})),
        ):
            assert (await send(client, content)).status == 200
        summary = await client.sandbox.summary()
        assert (summary.events, summary.duplicates, summary.conflicts) == (2, 1, 1)
        assert [event.historical for event in await client.sandbox.events()] == [False, True]


async def test_timestamps_are_corrected_for_skew_and_impossible_ones_become_the_present() -> None:
    """The skew of the sender's clock is subtracted. A timestamp over 23 hours in the future, or
    before the year 1 after that, becomes the present. An SDK without a version adds no properties.
    """
    async with talking(AT_MIDNIGHT) as client:
        events = [
            v1_event(1, timestamp="2026-01-01T01:00:10.5+01:00"),
            v1_event(2, timestamp="2026-01-03T00:00:00Z"),
            v1_event(3, timestamp="0001-01-01T00:00:00Z"),
        ]
        assert (await send(client, body(*events), PostHog_Sdk_Info="posthog")).status == 200
        stored = await client.sandbox.events()
        assert [event.timestamp[:23] for event in stored] == [
            "2026-01-01T00:00:00.500",
            "2026-01-01T00:00:00.000",
            "2026-01-01T00:00:00.000",
        ]
        assert "$lib" not in stored[0].properties
