"""No request leaves a cycle of references, whatever its outcome: memory is freed when it is over,
not when the garbage collector runs, which it does seldom.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import pytest

from forwarder.core.ack import AckLevel
from forwarder.core.errors import Backpressure, BufferFull
from tests.support.cases import cases
from tests.support.decoders import NO_EFFORT, InProcessDecoder
from tests.support.garbage import BODY, PADDING, leaves_no_garbage, memory_traced, no_garbage
from tests.support.listening import RawConnection, chunked, post
from tests.support.otlp import AT, JSON, PROTOBUF, export, record
from tests.support.records import RecordsRig, record_list
from tests.support.upstream import OK, Fault, Upstream, failing, plain
from tests.support.waiters import IntakeCallback
from tests.support.waiting import eventually
from tests.support.whole import KEY, Whole

COUNT: Final = 8
"""Requests of each kind: of 64 KB, so that one body that stays of each request is more than the
tolerance.
"""
WARM_UP: Final = 3
"""Before them: what connections and codecs keep is there from the first one on."""
LARGE_COUNT: Final = 4
"""Of those that the decoder process reads: two of their bodies are within the tolerance, and a
fourth part of one.
"""

OTLP_MAPPING: Final = {"event": ".event_name", "distinct_id": ".attributes.user"}
OTHER_KEY: Final = "phc_anotheranother12345"


def event(name: str = "seen", **members: Any) -> dict[str, Any]:
    """An event of half a body's size, with changes."""
    return {
        "event": name,
        "distinct_id": "ann",
        "timestamp": "2025-12-31T23:00:00Z",
        "properties": {"p": PADDING},
        **members,
    }


def body(*events: dict[str, Any], key: str = KEY) -> bytes:
    """A batch of some events; by itself of a usual one and one of another name."""
    return json.dumps({"api_key": key, "batch": events or (event(), event("other"))}).encode()


def v1(*events: dict[str, Any], key: str = KEY) -> bytes:
    """The same in the v1 protocol."""
    some = [
        {**entry, "uuid": f"0190a0a0-1111-7222-8333-{number:012}", "options": {}}
        for number, entry in enumerate(events or (event(), event("other")))
    ]
    whole = {"created_at": "2026-01-01T00:00:00Z", "batch": some}
    return post(
        "/i/v1/analytics/events", json.dumps(whole).encode(), f"Authorization: Bearer {key}"
    )


def otlp(*, key: str = KEY) -> bytes:
    """The same as log records."""
    return post(
        "/v1/logs",
        export(
            *[record(PADDING, time_unix_nano=AT + number) for number in range(2)], protobuf=True
        ),
        f"Content-Type: {PROTOBUF}",
        f"Authorization: Bearer {key}",
    )


def classic(text: bytes) -> dict[str, bytes]:
    """Requests that bring a batch in all ways that a batch comes in."""
    form = b"data=" + quote(text).encode()
    return {
        "batch": post("/batch/", text),
        "gzip": post("/batch/", gzip.compress(text, 1), "Content-Encoding: gzip"),
        "form": post("/e/", form, "Content-Type: application/x-www-form-urlencoded"),
        "chunked": chunked(*[text[at : at + 20_000] for at in range(0, len(text), 20_000)]),
        "odd head": post("/batch/", text, "X-Forwarded-For: 1.2.3.4", "Origin: https://a.example"),
    }


def of_v1(text: bytes, *headers: str) -> bytes:
    """A request in the v1 protocol."""
    return post("/i/v1/analytics/events", text, f"Authorization: Bearer {KEY}", *headers)


def of_otlp(text: bytes, *headers: str, kind: str = PROTOBUF) -> bytes:
    """An export."""
    return post("/v1/logs", text, f"Content-Type: {kind}", f"Authorization: Bearer {KEY}", *headers)


def v1_and_otlp(text: bytes, *headers: str) -> dict[str, bytes]:
    """A body that neither protocol can read, by both."""
    return {
        "v1": of_v1(text, *headers),
        "otlp": of_otlp(text, *headers),
        "otlp as JSON": of_otlp(text, *headers, kind=JSON),
    }


def large_ways() -> dict[str, bytes]:
    """Requests that the decoder process reads, by each protocol."""
    events = [event(), event("other")] * 18
    text = body(*events)
    return {
        "large": post("/batch/", text),
        "large gzip": post("/batch/", gzip.compress(text, 1), "Content-Encoding: gzip"),
        "large v1": v1(*events),
        "large otlp": of_otlp(export(*[record(PADDING)] * 36, protobuf=True)),
        "large otlp as JSON": of_otlp(export(*[record(PADDING)] * 36, protobuf=False), kind=JSON),
    }


def every_way(key: str = KEY) -> dict[str, bytes]:
    """Requests of each entrance."""
    single = event(api_key=key, properties={"p": PADDING * 2})
    large = body(*[event() for _ in range(36)], key=key)
    return {
        **classic(body(key=key)),
        "single": post("/capture/", json.dumps(single).encode()),
        "v1": v1(key=key),
        "otlp": otlp(key=key),
        "large": post("/batch/", large),
    }


@dataclass(frozen=True)
class RequestOutcome:
    """What becomes of requests, and how the daemon is brought to it."""

    statuses: set[int]
    requests: Callable[[], Mapping[str, bytes]] = every_way
    """Made when they are sent: together they are large, and every run collects this file."""
    sections: Mapping[str, Any] = field(default_factory=dict)
    fills: bool = False
    """Whether the buffer is filled first."""
    upstream: Callable[[Upstream], Awaitable[None] | None] | None = None
    """What is done to the upstream first; None: it accepts everything."""
    before: Callable[[Whole], object] = lambda _: None
    """What is done to the daemon first."""
    buffered: int = 0
    """Bytes that may wait in the buffer at one look and not at another: those are no garbage."""


def down(upstream: Upstream) -> Awaitable[None]:
    """Nothing listens there."""
    return upstream.stop()


def answering(answer: Any) -> Callable[[Upstream], None]:
    """It answers this."""

    def set_answer(upstream: Upstream) -> None:
        upstream.answer = lambda _: answer

    return set_answer


SMALL: Final = {"max_bytes": "6MB"}
LONG: Final = "x" * 10_000
HTTP: Final = {"api_keys": [KEY], "otlp": {"api_key": KEY, "mapping": OTLP_MAPPING}}

OUTCOMES: Final = {
    "accepted": RequestOutcome({200}),
    "accepted on disk": RequestOutcome({200}, sections={"buffer": {"kind": "disk"}}),
    "delivered": RequestOutcome({200}, sections={"buffer": {"ack": "delivered"}}),
    "not acknowledged": RequestOutcome(
        {200, 503},
        sections={"buffer": {"ack": "delivered", "ack_timeout": "100ms"}},
        upstream=answering(plain(500)),
    ),
    "buffer full": RequestOutcome({503}, sections={"buffer": SMALL}, fills=True, upstream=down),
    "disk buffer full": RequestOutcome(
        {503}, sections={"buffer": {"kind": "disk", "max_bytes": "20MB"}}, fills=True, upstream=down
    ),
    "buffer full for two destinations": RequestOutcome(
        {503},
        lambda: {name: request for name, request in every_way().items() if name != "large"},
        sections={
            "buffer": SMALL,
            "upstream": {"url": ""},
            "upstreams": [
                {"name": "a", "url": "http://127.0.0.1:9", "verify_keys": False},
                {"name": "b", "url": "http://127.0.0.1:9", "verify_keys": False},
            ],
            "routes": [{"to": ["a", "b"]}],
        },
        fills=True,
    ),
    "buffer full, with rules": RequestOutcome(
        {200, 503},
        sections={"buffer": SMALL, "rules": [{"match": {"event": "other"}, "drop": True}]},
        fills=True,
        upstream=down,
    ),
    "newest dropped": RequestOutcome(
        {200, 413},
        sections={"buffer": {**SMALL, "when_full": "drop_newest"}},
        fills=True,
        upstream=down,
    ),
    "oldest dropped": RequestOutcome(
        {200, 413},
        sections={"buffer": {**SMALL, "when_full": "drop_oldest"}},
        fills=True,
        upstream=down,
    ),
    "oldest dropped on disk": RequestOutcome(
        {200, 503},
        sections={"buffer": {"kind": "disk", "max_bytes": "40MB", "when_full": "drop_oldest"}},
        fills=True,
        upstream=down,
        buffered=40_000_000,
    ),
    "buffer full, large": RequestOutcome(
        {503}, large_ways, sections={"buffer": SMALL}, fills=True, upstream=down
    ),
    "dropped by rule, large": RequestOutcome(
        {200},
        large_ways,
        sections={"rules": [{"match": {"event": "*"}, "drop": True}]},
    ),
    "some dropped by rule, buffer full, large": RequestOutcome(
        {503},
        large_ways,
        sections={
            "buffer": SMALL,
            "rules": [{"match": {"event": "other"}, "drop": True}],
        },
        fills=True,
        upstream=down,
    ),
    "dropped by rule": RequestOutcome(
        {200}, sections={"rules": [{"match": {"event": "*"}, "drop": True}]}
    ),
    "rule that fails": RequestOutcome(
        {200, 503},
        sections={
            "rules": [{"match": {"event": "*", "where": ".properties.p | tonumber"}, "drop": True}],
            "dead_letters": {"max_bytes": "1MB"},
        },
    ),
    "draining": RequestOutcome({503}, before=lambda whole: whole.pipeline.stop_accepting()),
    "unknown key": RequestOutcome({401, 503}, lambda: every_way(OTHER_KEY)),
    "too large": RequestOutcome({413}, sections={"http": {"max_body": "40kB"}}),
    "too large unpacked": RequestOutcome(
        {413},
        lambda: {
            "gzip": post("/batch/", gzip.compress(b" " * 30_000_000, 1), "Content-Encoding: gzip"),
            "v1": v1(event(properties={"p": "x" * 10**6})),
        },
        sections={"http": {"max_body": "1MB"}},
    ),
    "never fits": RequestOutcome(
        {413}, lambda: classic(body(*[event()] * 30)), sections={"buffer": {"max_bytes": "1MiB"}}
    ),
    "never fits, by v1 and OTLP": RequestOutcome(
        {413, 200},
        lambda: {
            "v1": v1(*[event()] * 30),
            "otlp": of_otlp(export(*[record(PADDING)] * 30, protobuf=True)),
        },
        sections={"buffer": {"max_bytes": "1MiB"}},
    ),
    "too large unpacked, by v1 and OTLP": RequestOutcome(
        {413},
        lambda: v1_and_otlp(gzip.compress(b" " * 30_000_000 + body(), 1), "Content-Encoding: gzip"),
        sections={"http": {"max_body": "1MB"}},
    ),
    "unreadable, by v1 and OTLP": RequestOutcome({400}, lambda: v1_and_otlp(body()[:-2])),
    "no events, by v1 and OTLP": RequestOutcome(
        {400, 200},
        lambda: v1_and_otlp(json.dumps({"batch": PADDING * 2, "resourceLogs": PADDING}).encode()),
    ),
    "nested too deep, by v1 and OTLP": RequestOutcome(
        {400}, lambda: v1_and_otlp(b'{"batch":' * 8_000 + b"1" + b"}" * 8_000)
    ),
    "damaged gzip, by v1 and OTLP": RequestOutcome(
        {400}, lambda: v1_and_otlp(b"\x1f\x8b" + body(), "Content-Encoding: gzip")
    ),
    "unknown encoding, by OTLP": RequestOutcome(
        {415}, lambda: {"otlp": of_otlp(body(), "Content-Encoding: compress")}
    ),
    "unknown type, by OTLP": RequestOutcome(
        {415}, lambda: {"otlp": of_otlp(body(), kind="text/plain")}
    ),
    "no key": RequestOutcome({401}, lambda: {"v1": post("/i/v1/analytics/events", body())}),
    "not mapped, by OTLP": RequestOutcome(
        {200},
        lambda: {"otlp": of_otlp(export(*[record(PADDING, attributes={})] * 2, protobuf=True))},
        sections={"dead_letters": {"max_bytes": "1MB"}},
    ),
    "dead letters full, by v1 and OTLP": RequestOutcome(
        {200, 503, 413},
        lambda: {
            "v1": v1(event("", properties={"p": PADDING * 2})),
            "otlp": of_otlp(export(*[record(PADDING, attributes={})] * 2, protobuf=True)),
        },
        sections={"dead_letters": {"max_bytes": "500kB"}},
    ),
    "no JSON": RequestOutcome(
        {400}, lambda: {**classic(body()[:-2]), "v1": v1().replace(b'"batch": [', b'"batch": ]')}
    ),
    "no events": RequestOutcome(
        {400}, lambda: classic(json.dumps({"api_key": KEY, "batch": PADDING}).encode())
    ),
    "nested too deep": RequestOutcome(
        {400}, lambda: classic(b'{"a":' * 20_000 + b"1" + b"}" * 20_000)
    ),
    "damaged gzip": RequestOutcome(
        {400}, lambda: {"gzip": post("/batch/", b"\x1f\x8b" + body(), "Content-Encoding: gzip")}
    ),
    "unknown encoding": RequestOutcome(
        {415}, lambda: {"v1": v1().replace(b"Host:", b"Content-Encoding: compress\r\nHost:")}
    ),
    "unknown path": RequestOutcome({404}, lambda: {"post": post("/nowhere", body())}),
    "wrong method": RequestOutcome(
        {405}, lambda: {"put": post("/batch/", body()).replace(b"POST", b"PUT", 1)}
    ),
    "dead-lettered at receipt": RequestOutcome(
        {200},
        lambda: {
            **classic(body(event(""), event(distinct_id=None))),
            "v1": v1(event("")),
            "alone": post("/capture/", json.dumps(event("", api_key=KEY)).encode()),
        },
        sections={"dead_letters": {"max_bytes": "1MB"}},
    ),
    "dead letters full": RequestOutcome(
        {200, 413, 503},
        lambda: classic(body(event(properties={"p": "\ud800" + PADDING * 2}))),
        sections={"dead_letters": {"max_bytes": "1MB"}},
    ),
    "upstream refuses": RequestOutcome(
        {200, 503}, sections={"buffer": SMALL}, fills=True, upstream=answering(plain(400, "no"))
    ),
    "upstream fails": RequestOutcome(
        {200, 503},
        sections={"buffer": SMALL, "upstream": {"compression": "none"}},
        fills=True,
        upstream=answering(failing(Fault.RESET)),
    ),
    "upstream hangs": RequestOutcome(
        {200, 503},
        sections={"buffer": SMALL, "upstream": {"compression": "none", "timeout": "1s"}},
        fills=True,
        upstream=answering(failing(Fault.HANG)),
        buffered=6_000_000,
    ),
    "passed through": RequestOutcome({200}, lambda: {"flags": post("/flags/", body())}),
    "passed through in vain": RequestOutcome(
        {502, 503}, lambda: {"flags": post("/flags/", body())}, upstream=down
    ),
    "passed through too large": RequestOutcome(
        {413},
        lambda: {
            "flags": post("/flags/", body()),
            "chunked": chunked(*[b"x" * 20_000] * 6, path="/flags/"),
        },
        sections={"passthrough": {"max_body": "40kB"}},
    ),
    "bad chunks": RequestOutcome(
        {400}, lambda: {"chunked": chunked(body()).replace(b"\r\n0\r\n\r\n", b"\r\nzz\r\n\r\n")}
    ),
    "no HTTP": RequestOutcome({400}, lambda: {"head": b"POST /batch/ HTTP/1.1\r\n" + b"\0" * BODY}),
    "head too large": RequestOutcome(
        {431}, lambda: {"head": post("/batch/", b"{}", *[f"X-{n}: {LONG}" for n in range(10)])}
    ),
    "upgrade": RequestOutcome(
        {200}, lambda: {"batch": post("/batch/", body(), "Connection: upgrade", "Upgrade: x")}
    ),
}


class ReconnectingSender:
    """Sends requests, over a connection that is opened again where it was closed."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._client: RawConnection | None = None

    async def send(self, request: bytes) -> int:
        """The status of the answer."""
        client = self._client = self._client or await self._whole.connect()
        with suppress(ConnectionError):  # it was answered before all was read
            await client.send(request)
        reply = await client.reply()
        if reply.headers.get("connection") == "close":
            await self.close()
        return reply.status

    async def abort(self, request: bytes) -> None:
        """Send a part of it, and reset the connection."""
        client = await self._whole.connect()
        await client.send(request)
        await eventually(lambda: self._whole.pipeline._parts.listener.statistics().connections)
        client.writer.transport.abort()
        await client.close()

    async def close(self) -> None:
        """End the connection."""
        client = self._client
        self._client = None
        if client is not None:
            await client.close()


async def quiet(whole: Whole) -> None:
    """Wait until the daemon has forgotten the connections, and nothing is in progress."""
    parts = whole.pipeline._parts
    await eventually(lambda: not parts.listener.statistics().connections)
    for destination in parts.destinations:
        await destination.stores.committer.settle()


def whole_of(outcome: RequestOutcome, upstream: Upstream) -> Whole:
    """A daemon in its settings."""
    sections = dict(outcome.sections)
    http = {**HTTP, **sections.pop("http", {})}
    return Whole(upstream.url, http=http, **sections)


async def fill(sender: ReconnectingSender, whole: Whole) -> None:
    """Send until the buffer is full, with smaller and smaller requests."""
    for size in (4, 1):
        text = json.dumps({"api_key": KEY, "batch": [event() for _ in range(size)]}).encode()
        small = post("/batch/", text)
        before = -1
        while (held := whole.snapshot.buffer_bytes) > before:
            before = held
            await sender.send(small)


USUAL: Final = (
    *("accepted", "accepted on disk", "not acknowledged", "buffer full", "dropped by rule"),
    *("oldest dropped", "rule that fails", "too large unpacked", "no JSON", "damaged gzip"),
    *("unreadable, by v1 and OTLP", "dead-lettered at receipt", "not mapped, by OTLP"),
    *("upstream refuses", "upstream fails", "passed through", "dropped by rule, large"),
)
"""One of each kind, for `make test`."""


@pytest.mark.parametrize(  # together they would exceed a test's time
    "name",
    [name if name in USUAL else pytest.param(name, marks=pytest.mark.long) for name in OUTCOMES],
)
async def test_an_outcome_leaves_nothing_to_the_garbage_collector(name: str) -> None:
    """After some requests of each entrance that end so, their bodies are freed, though nothing is
    collected.
    """
    outcome = OUTCOMES[name]
    with memory_traced():
        await check(name, outcome)


async def check(name: str, outcome: RequestOutcome) -> None:
    """Bring it about with each request, and look for garbage."""
    async with Upstream(lambda _: OK, keeps=False) as upstream:
        waiting = None if outcome.upstream is None else outcome.upstream(upstream)
        if waiting is not None:
            await waiting
        async with whole_of(outcome, upstream) as whole:
            sender = ReconnectingSender(whole)
            if outcome.fills:
                await fill(sender, whole)
            outcome.before(whole)
            for way, request in outcome.requests().items():
                count = LARGE_COUNT if way.startswith("large") else COUNT

                async def act(count: int = count, way: str = way, request: bytes = request) -> None:
                    statuses = {await answered(sender, request, outcome) for _ in range(count)}
                    await sender.close()
                    await settled(whole, outcome)
                    assert statuses <= outcome.statuses, f"{way}: {statuses}"

                await act(WARM_UP)
                await leaves_no_garbage(f"{name}, {way}", act, len(request) + outcome.buffered)


async def answered(sender: ReconnectingSender, request: bytes, outcome: RequestOutcome) -> int:
    """The status of a request that is repeated where a busy machine hadn't the time for it, unless
    that is what the outcome looks like.
    """
    statuses = [await sender.send(request)]
    while statuses[-1] == 503 and 503 not in outcome.statuses and len(statuses) < 5:
        statuses.append(await sender.send(request))
    return statuses[-1]


async def settled(whole: Whole, outcome: RequestOutcome) -> None:
    """Wait until nothing is in progress, and what can be delivered is."""
    await quiet(whole)
    if outcome.statuses == {200} and outcome.upstream is None:
        await whole.emptied()


async def test_an_aborted_upload_leaves_nothing_to_the_garbage_collector() -> None:
    """Plain, in chunks, and in flight through to the upstream."""
    uploads = [post("/batch/", body()), chunked(body()), post("/flags/", body())]
    with memory_traced():
        async with Upstream(keeps=False) as upstream, Whole(upstream.url, http=HTTP) as whole:
            sender = ReconnectingSender(whole)
            for upload in uploads:

                async def act(upload: bytes = upload) -> None:
                    for _ in range(COUNT):
                        await sender.abort(upload[: len(upload) // 2])
                    await quiet(whole)

                await act()
                await leaves_no_garbage(f"aborted {upload[:20]!r}", act)


async def test_a_stalled_upload_leaves_nothing_to_the_garbage_collector() -> None:
    """It is answered 408, whatever it is of."""
    uploads = {
        **every_way(),
        **{name: request for name, request in large_ways().items() if name == "large v1"},
        "head": b"POST /batch/ HTTP/1.1\r\nX-Long: " + LONG.encode() * 2,
        "flags": post("/flags/", body()),
    }

    async def stall(whole: Whole, upload: bytes) -> int:
        client = await whole.connect()
        await client.send(upload[: len(upload) // 2])
        status = (await client.reply()).status
        await client.close()
        return status

    with memory_traced():
        async with Upstream(keeps=False) as upstream, Whole(upstream.url, http=HTTP) as whole:

            async def stalled() -> None:
                replies = [stall(whole, upload) for upload in uploads.values() for _ in range(4)]
                assert set(await asyncio.gather(*replies)) == {408}
                await quiet(whole)

            await stalled()
            await leaves_no_garbage("stalled", stalled)


RECORDS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "accepted or full": (record_list(event()), {"max_bytes": 1_000_000}),
    "no JSON": (record_list(PADDING.encode() * 2), {}),
    "too large": (record_list(event()), {"max_event": 20_000}),
    "too large together": (record_list(*[event()] * 40), {"max_bytes": 1_000_000}),
    "dead letters full": (record_list(event("")), {"dead_letter_bytes": 200_000}),
    "dropped by rule": (
        record_list(event()),
        {"rules": [{"match": {"event": "seen"}, "drop": True}]},
    ),
}


@cases("name", RECORDS, ids=str)
async def test_a_record_leaves_nothing_to_the_garbage_collector(name: str) -> None:
    """Whether it is accepted or not, and however often its source repeats it."""
    records, options = RECORDS[name]
    rig = RecordsRig(**options)

    def accept() -> None:
        with suppress(Backpressure):  # its source repeats it
            rig.records.accept(records, IntakeCallback(), AckLevel.MEMORY)

    with memory_traced():
        for _ in range(40):
            accept()
        with no_garbage(name, largest=2 << 20):
            for _ in range(COUNT):
                accept()
    await rig.conditions.close()


async def test_a_large_record_leaves_nothing_to_the_garbage_collector() -> None:
    """Though its source asks for it again and again, and it can't be decoded in the end."""
    decoder = InProcessDecoder(closed=True)
    rig = RecordsRig(decoder=decoder, effort=NO_EFFORT)
    records = record_list(event())
    decoder.failure = BufferFull("busy")

    def accept() -> str:
        try:
            rig.records.accept(records, IntakeCallback(), AckLevel.MEMORY)
        except Backpressure as error:
            return error.code
        return ""

    with memory_traced():
        assert accept() == "still_decoding"
        with no_garbage("large"):
            assert {accept() for _ in range(COUNT)} == {"still_decoding"}
            decoder.open()
            assert await rig.conditions.drain(10.0)
            assert accept() == "buffer_full"
    await rig.conditions.close()
