"""Log records over OTLP, from the listener to a sandbox: large requests, a full buffer, repeated
requests, and a restart.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from forwarder.core.clock import SystemClock
from forwarder.core.ports import Reason
from forwarder.sandbox import Sandbox
from tests.support.listening import RawReply, post
from tests.support.otlp import AT, JSON, PROTOBUF, export, record
from tests.support.whole import KEY, Whole, always_balanced, gzipped

MAPPING = {
    "event": ".event_name",
    "distinct_id": ".attributes.user",
    "where": '.severity != "debug"',
    "properties": {"n": ".body"},
}
HTTP = {"otlp": {"api_key": KEY, "mapping": MAPPING}, "path_prefix": ["/ingest"]}
BOTH = pytest.mark.parametrize("protobuf", [False, True], ids=["json", "protobuf"])
LARGE = 3000
"""Records of a request that the decoder process reads."""


def request(body: bytes, *headers: str, protobuf: bool, path: str = "/v1/logs") -> bytes:
    """A request with this body."""
    return post(path, body, f"Content-Type: {PROTOBUF if protobuf else JSON}", *headers)


def body_of(count: int, *, protobuf: bool, first: int = 0, **members: Any) -> bytes:
    """A request's body of so many records."""
    return export(
        *[record(n, time_unix_nano=AT + n, **members) for n in range(first, first + count)],
        protobuf=protobuf,
    )


def accepted(reply: RawReply, *, protobuf: bool) -> bool:
    """Whether the answer says that everything was accepted."""
    return (reply.status, reply.body, reply.headers["content-type"]) == (
        200,
        b"" if protobuf else b"{}",
        PROTOBUF if protobuf else JSON,
    )


@BOTH
@pytest.mark.parametrize("count", [50, LARGE], ids=["small", "large"])
async def test_records_arrive(protobuf: bool, count: int) -> None:
    """Plain and compressed, below a prefix too; what is left out isn't there, and each event is
    there once with its time.
    """
    async with Sandbox() as sandbox, Whole(sandbox.url, SystemClock(), http=HTTP) as whole:
        with always_balanced(whole.pipeline):
            first, second = (body_of(count, protobuf=protobuf, first=at) for at in (0, count))
            assert accepted(await whole.send(request(first, protobuf=protobuf)), protobuf=protobuf)
            packed = request(
                gzipped(second),
                "Content-Encoding: gzip",
                protobuf=protobuf,
                path="/ingest/v1/logs/",
            )
            assert accepted(await whole.send(packed), protobuf=protobuf)
            dull = request(body_of(5, protobuf=protobuf, severity_text="debug"), protobuf=protobuf)
            assert accepted(await whole.send(dull), protobuf=protobuf)
            await whole.emptied()
        events = await sandbox.events()
        summary = await sandbox.summary()
        assert whole.snapshot.intake_filtered_records == 5
        assert whole.snapshot.http_requests[("/v1/logs", 200)] == 3
        assert [lane.received for lane in whole.snapshot.lanes] == [{"otlp": 2 * count}]
    assert sorted(json.loads(event.properties)["n"] for event in events) == list(range(2 * count))
    assert (summary.duplicates, summary.conflicts, summary.not_ingested) == (0, 0, 0)
    assert {json.loads(event.raw)["timestamp"][:19] for event in events} == {"2026-01-01T00:00:00"}


@BOTH
@pytest.mark.parametrize("count", [50, LARGE], ids=["small", "large"])
async def test_a_request_whose_answer_was_lost(protobuf: bool, count: int) -> None:
    """The exporter sends the same bytes again: the service gets the same events twice, and none
    contradicts another.
    """
    async with Sandbox() as sandbox, Whole(sandbox.url, SystemClock(), http=HTTP) as whole:
        body = body_of(count, protobuf=protobuf)
        assert accepted(await whole.send(request(body, protobuf=protobuf)), protobuf=protobuf)
        await whole.emptied()
        assert accepted(
            await whole.send(request(gzipped(body), "Content-Encoding: gzip", protobuf=protobuf)),
            protobuf=protobuf,
        )
        await whole.emptied()
        events = await sandbox.events()
        summary = await sandbox.summary()
    assert len({event.uuid for event in events}) == count
    assert (summary.arrivals, summary.duplicates, summary.conflicts) == (2 * count, count, 0)


@BOTH
async def test_a_full_buffer(protobuf: bool) -> None:
    """503 with Retry-After and a status; when there is room again the same request is accepted."""
    small = {"max_bytes": "1MiB"}
    async with Sandbox() as sandbox:
        held: dict[str, Any] = {
            "buffer": small,
            "upstream": {"max_event": "100kB"},
            "batch": {"max_bytes": "200kB"},
            "http": HTTP,
        }
        async with Whole("http://127.0.0.1:9", **held) as whole:
            accepted_count = 0
            reply = await whole.send(request(body_of(100, protobuf=protobuf), protobuf=protobuf))
            while reply.status == 200:
                accepted_count += 100
                reply = await whole.send(
                    request(
                        body_of(100, protobuf=protobuf, first=accepted_count), protobuf=protobuf
                    )
                )
            assert (reply.status, reply.headers["content-type"]) == (
                503,
                PROTOBUF if protobuf else JSON,
            )
            assert int(reply.headers["retry-after"]) > 0
            assert b"full" in reply.body
            assert sum(lane.buffered for lane in whole.snapshot.lanes) == accepted_count
        async with Whole(sandbox.url, **held) as whole:
            for first in range(0, accepted_count + 100, 100):
                reply = await whole.send(
                    request(body_of(100, protobuf=protobuf, first=first), protobuf=protobuf)
                )
                assert accepted(reply, protobuf=protobuf)
                await whole.emptied()
        assert len(await sandbox.events()) == accepted_count + 100


@BOTH
async def test_partial_success_names_rejected_records(protobuf: bool) -> None:
    """Partial success, also of a large request; what was rejected is among the dead letters as the
    mapping sees it.
    """
    async with Sandbox() as sandbox, Whole(sandbox.url, SystemClock(), http=HTTP) as whole:
        for count in (10, LARGE):
            records = [
                record(n, time_unix_nano=AT + count + n, **({"event_name": ""} if n < 2 else {}))
                for n in range(count)
            ]
            reply = await whole.send(
                request(export(*records, protobuf=protobuf), protobuf=protobuf)
            )
            assert reply.status == 200
            assert b"2 log records are no events" in reply.body
        await whole.emptied()
        letters = await whole.letters()
        assert len(await sandbox.events()) == LARGE + 10 - 4
        (lane,) = whole.snapshot.lanes
        assert lane.dead_lettered == {Reason.UNMAPPABLE.value: 4}
    assert sorted(json.loads(data)["body"] for data, _ in letters) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request(b"\xff", protobuf=True), 400),
        (request(b"\xff" * 300_000, protobuf=True), 400),
        (request(b"{", protobuf=False), 400),
        (request(b"\x08\x01", protobuf=True), 400),
        (request(b"\x08\x01" * 300_000, protobuf=True), 400),
        (request(b'{"resource_logs":[{}]}', protobuf=False), 400),
        (request(b"", protobuf=False), 400),
        (request(b"", "Content-Encoding: gzip", protobuf=True), 400),
        (request(gzipped(b"\x08\x01"), "Content-Encoding: gzip", protobuf=True), 400),
        (request(gzipped(b"{}")[:-9], "Content-Encoding: gzip", protobuf=False), 400),
        (request(body_of(1, protobuf=True), "Authorization: Bearer phc_other", protobuf=True), 401),
        (request(gzipped(b"\0" * 30_000_000), "Content-Encoding: gzip", protobuf=True), 413),
        (
            request(
                export(
                    *[record(n) for n in range(150)], protobuf=True, resource={"r": "x" * 1_000_000}
                ),
                protobuf=True,
            ),
            413,
        ),
        (post("/v1/logs", b"{}", "Content-Type: text/plain"), 415),
        (b"GET /v1/logs HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (request(b"{}", protobuf=False, path="/v1/traces"), 404),
    ],
    ids=[
        "bytes",
        "many bytes",
        "json",
        "no field",
        "many times no field",
        "no member",
        "nothing",
        "nothing in gzip",
        "gzip of no field",
        "gzip cut off",
        "key",
        "bomb",
        "too much",
        "type",
        "method",
        "traces",
    ],
)
async def test_invalid_otlp_requests_are_rejected(asked: bytes, status: int) -> None:
    """None of these is to be repeated, and the next request is accepted as ever."""
    async with Sandbox() as sandbox, Whole(sandbox.url, SystemClock(), http=HTTP) as whole:
        reply = await whole.send(asked)
        assert (reply.status, "retry-after" in reply.headers) == (status, False)
        assert accepted(
            await whole.send(request(body_of(1, protobuf=True), protobuf=True)), protobuf=True
        )
        await whole.emptied()
        assert len(await sandbox.events()) == 1


@pytest.mark.parametrize("protobuf", [False, True])
async def test_an_empty_request_succeeds(protobuf: bool) -> None:
    """A request without telemetry is one, compressed or not."""
    body = export(protobuf=protobuf)
    async with Sandbox() as sandbox, Whole(sandbox.url, SystemClock(), http=HTTP) as whole:
        for asked in (
            request(body, protobuf=protobuf),
            request(gzipped(body), "Content-Encoding: gzip", protobuf=protobuf),
        ):
            assert accepted(await whole.send(asked), protobuf=protobuf)


async def test_answered_log_records_survive_a_crash() -> None:
    """With a disk buffer and `ack: disk` an answer of 200 holds over a crash."""
    buffer = {"kind": "disk", "ack": "disk", "max_bytes": "64MiB"}
    async with (
        Sandbox() as sandbox,
        Whole(sandbox.url, SystemClock(), http=HTTP, buffer=buffer) as whole,
    ):
        for first in (0, LARGE):
            assert accepted(
                await whole.send(
                    request(body_of(LARGE, protobuf=True, first=first), protobuf=True)
                ),
                protobuf=True,
            )
        await whole.restart(crash=True)
        await whole.emptied()
        numbers = {json.loads(event.properties)["n"] for event in await sandbox.events()}
        assert (await sandbox.summary()).conflicts == 0
    assert numbers == set(range(2 * LARGE))
