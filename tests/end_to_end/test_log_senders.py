"""Log collectors that post to the listener, with the configurations of log-recipes.md: the
requests that they make, written by us.

What each sends is taken from its own source code: the order and spelling of headers, the body's
frame, the escapes, and which answers it repeats. The programs themselves don't run here. What the
configuration decides is read from it.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import NAMESPACE_OID, uuid5

import pytest
import yaml

from forwarder.sandbox import Sandbox, SandboxOptions
from tests.support import otlp
from tests.support.listening import RawReply
from tests.support.repository import ROOT
from tests.support.upstream import OK, Upstream, plain
from tests.support.whole import KEY, Whole

RECIPES: Final = ROOT / "config" / "recipes"
FLUENT_BIT: Final[dict[str, Any]] = yaml.safe_load((RECIPES / "fluent-bit.yaml").read_text("utf-8"))
VECTOR: Final[dict[str, Any]] = yaml.safe_load((RECIPES / "vector.yaml").read_text("utf-8"))
HTTP: Final[dict[str, Any]] = FLUENT_BIT["pipeline"]["outputs"][0]
SINK: Final[dict[str, Any]] = VECTOR["sinks"]["forwarder"]
RECORDS: Final[list[dict[str, Any]]] = [
    {"event": "order placed", "user": "u-17", "total": 49.5, "items": [{"sku": "tea-1"}]},
    {"event": "signed up", "user": "Zoë 茶 😀", "plan": None, "note": 'a "quoted" \\ line\n'},
    {"event": "order placed", "user": "u-18", "total": 0.1, "ledger": 2**53 - 1},
]


def uuid(number: int) -> str:
    """That of a record."""
    return str(uuid5(NAMESPACE_OID, f"record {number}"))


def fluent_bit(records: Iterable[Mapping[str, Any]], separator: str = ",") -> bytes:
    """The request of its `http` output. The date comes first, text beyond ASCII is escaped, and a
    client of its own writes the head.
    """
    events = [
        {
            HTTP["json_date_key"]: f"2026-11-23T09:30:0{number}.123456Z",
            "event": record["event"],
            "properties": record,
            "distinct_id": record["user"],
            "api_key": KEY,
            "uuid": uuid(number),
        }
        for number, record in enumerate(records)
    ]
    texts = separator.join(json.dumps(event, separators=(",", ":")) for event in events)
    body = f"[{texts}]" if separator == "," else f" {texts} "
    packed = gzip.compress(body.encode(), mtime=0)
    head = [
        f"POST {HTTP['uri']} HTTP/1.1",
        f"Host: {HTTP['host']}:{HTTP['port']}",
        f"Content-Length: {len(packed)}",
        "User-Agent: Fluent-Bit",
        "Content-Type: application/json",
        f"Content-Encoding: {HTTP['compress']}",
        "Connection: keep-alive",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + packed


def vector(records: Iterable[Mapping[str, Any]]) -> bytes:
    """The request of its `http` sink: an array between prefix and suffix, members in order of
    their names, and headers in lower case.
    """
    events = [
        {
            "distinct_id": record["user"],
            "event": record["event"],
            "properties": record,
            "timestamp": f"2026-11-23T09:30:0{number}.123Z",
            "uuid": uuid(number),
        }
        for number, record in enumerate(records)
    ]
    texts = ",".join(
        json.dumps(event, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
        for event in events
    )
    body = f"{SINK['payload_prefix']}[{texts}]{SINK['payload_suffix']}".replace("phc_…", KEY)
    packed = gzip.compress(body.encode(), 6, mtime=0)
    address = urlsplit(SINK["uri"])
    head = [
        f"POST {address.path} HTTP/1.1",
        "content-type: application/json",
        f"content-encoding: {SINK['compression']}",
        "user-agent: Vector/0.58.0 (x86_64-unknown-linux-gnu)",
        "accept-encoding: identity",
        f"host: {address.netloc}",
        f"content-length: {len(packed)}",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + packed


SENDERS: Final = {"Fluent Bit": fluent_bit, "Vector": vector}


@pytest.mark.parametrize("sender", SENDERS)
async def test_its_events_arrive(sender: str) -> None:
    """Each record is an event with its own uuid and time, and its values are as they were."""
    async with (
        Sandbox(SandboxOptions(listen="127.0.0.1:0")) as sandbox,
        Whole(sandbox.url) as whole,
    ):
        assert_accepted(await whole.send(SENDERS[sender](RECORDS)))
        await whole.emptied()
        events = await sandbox.events()
    by_uuid = {event.uuid: event for event in events}
    assert {name: json.loads(event.properties) for name, event in by_uuid.items()} == {
        uuid(n): record for n, record in enumerate(RECORDS)
    }
    assert {event.distinct_id for event in events} == {"u-17", "Zoë 茶 😀", "u-18"}
    assert {event.timestamp[:20] for event in events} == {
        f"2026-11-23T09:30:0{number}." for number in range(3)
    }


@pytest.mark.parametrize("sender", SENDERS)
async def test_a_repeated_request_repeats_its_events(sender: str) -> None:
    """Where the answer didn't reach it, it sends the same bytes again: the
    service gets the same events.
    """
    async with (
        Sandbox(SandboxOptions(listen="127.0.0.1:0")) as sandbox,
        Whole(sandbox.url) as whole,
    ):
        for _ in range(2):
            assert_accepted(await whole.send(SENDERS[sender](RECORDS)))
        await whole.emptied()
        assert {event.uuid for event in await sandbox.events()} == {
            uuid(number) for number in range(3)
        }
        assert await sandbox.conflicts() == []


@pytest.mark.parametrize("sender", SENDERS)
async def test_log_senders_retry_while_forwarder_is_full(sender: str) -> None:
    """503 with Retry-After, which both of them repeat; then the events are accepted once."""
    request = SENDERS[sender](
        [{"event": "at last", "user": "ann", "padding": "".join(map(str, range(60_000)))}]
    )
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        Whole(upstream.url, buffer={"max_bytes": "1MiB"}) as whole,
    ):
        await whole.take(
            [b'{"event":"filler","distinct_id":"x","properties":{"p":"%b"}}' % (b"x" * 800_000)]
        )
        reply = await whole.send(request)
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        upstream.answer = lambda _: OK
        await whole.emptied()
        assert_accepted(await whole.send(request))
        await whole.emptied()
        assert sorted(upstream.delivered) == ["at last", "filler"]


@pytest.mark.parametrize("separator", ["\n", " "], ids=["json_lines", "json_stream"])
async def test_fluent_bits_other_formats_are_refused(separator: str) -> None:
    """Several JSON texts are no body: 400, so that the mistake shows at once. Fluent Bit drops
    what is answered 400.
    """
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        assert (await whole.send(fluent_bit(RECORDS, separator))).status == 400
        assert HTTP["format"] == "json"


def test_the_configurations_name_what_forwarder_needs() -> None:
    """The record becomes an event with project key, name, person and uuid; and what isn't sent yet
    is repeated indefinitely.
    """
    lua, modifier = FLUENT_BIT["pipeline"]["filters"]
    assert set(re.findall(r"[{ ](\w+) = ", lua["code"].partition("return 2")[2])) == {
        "api_key",
        "event",
        "distinct_id",
        "properties",
    }
    assert modifier["uuid_key"] == "uuid"
    assert HTTP["retry_limit"] == "no_limits"
    members = re.findall(r'^\s+"(\w+)": ', VECTOR["transforms"]["events"]["source"], re.MULTILINE)
    assert sorted(members) == ["distinct_id", "event", "properties", "timestamp", "uuid"]
    assert json.loads(SINK["payload_prefix"] + "[]" + SINK["payload_suffix"]).keys() == {
        "api_key",
        "batch",
    }
    assert SINK["buffer"]["when_full"] == "block"


COLLECTOR: Final[dict[str, Any]] = yaml.safe_load(
    (RECIPES / "otel-collector.yaml").read_text("utf-8")
)
EXPORTER: Final[dict[str, Any]] = COLLECTOR["exporters"]["otlphttp"]
OTLP: Final[dict[str, Any]] = yaml.safe_load((RECIPES / "otlp.yaml").read_text("utf-8"))
MAPPING: Final = {"otlp": {"mapping": OTLP["sources"]["http"]["otlp"]["mapping"], "api_key": KEY}}
EVENTS: Final = [
    otlp.record(
        "an order", event_name="order placed", attributes={"user.id": "u-17", "total": 49.5}
    ),
    otlp.record("no event", event_name="", attributes={"user.id": "u-17"}),
    otlp.record(
        None,
        event_name="signed up",
        attributes={"user.id": "Zoë 茶 😀", "plan": None},
        time_unix_nano=otlp.AT + 1_500_000_000,
    ),
]


def collector(records: Iterable[Mapping[str, Any]], encoding: str = "proto") -> bytes:
    """The request of the Collector's `otlphttp` exporter, as Go's client writes it."""
    packed = gzip.compress(otlp.export(*records, protobuf=encoding == "proto"), 1, mtime=0)
    address = urlsplit(EXPORTER["endpoint"])
    head = [
        "POST /v1/logs HTTP/1.1",
        f"Host: {address.netloc}",
        "User-Agent: OpenTelemetry Collector Contrib/0.140.0 (linux/amd64)",
        f"Content-Length: {len(packed)}",
        "Content-Encoding: gzip",
        f"Content-Type: {otlp.PROTOBUF if encoding == 'proto' else otlp.JSON}",
        "Accept-Encoding: gzip",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + packed


@pytest.mark.parametrize("encoding", ["proto", "json"])
async def test_the_collectors_records_arrive(encoding: str) -> None:
    """Records with a name and a user are events, the same ones if the request is repeated; the
    answer is one that it understands.
    """
    async with (
        Sandbox(SandboxOptions(listen="127.0.0.1:0")) as sandbox,
        Whole(sandbox.url, http=MAPPING) as whole,
    ):
        for _ in range(2):
            reply = await whole.send(collector(EVENTS, encoding))
            assert (reply.status, reply.headers["content-type"]) == (
                200,
                otlp.PROTOBUF if encoding == "proto" else otlp.JSON,
            )
            assert reply.body in {b"", b"{}"}  # no partial success
        await whole.emptied()
        placed, signed = await sandbox.events()
        assert await sandbox.conflicts() == []
    assert (placed.event, placed.distinct_id, placed.timestamp[:19]) == (
        "order placed",
        "u-17",
        "2026-01-01T00:00:00",
    )
    assert (signed.event, signed.distinct_id, signed.timestamp[:21]) == (
        "signed up",
        "Zoë 茶 😀",
        "2026-01-01T00:00:01.5",
    )
    assert json.loads(placed.properties) == {"user.id": "u-17", "total": 49.5, "service": "shop"}


async def test_the_collector_comes_back_while_forwarder_is_full() -> None:
    """503 with Retry-After, which it obeys; then the records are accepted once."""
    padding = "".join(map(str, range(60_000)))
    request = collector(
        [otlp.record(event_name="at last", attributes={"user.id": "ann", "padding": padding})]
    )
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        Whole(upstream.url, http=MAPPING, buffer={"max_bytes": "1MiB"}) as whole,
    ):
        await whole.take(
            [b'{"event":"filler","distinct_id":"x","properties":{"p":"%b"}}' % (b"x" * 800_000)]
        )
        reply = await whole.send(request)
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        upstream.answer = lambda _: OK
        await whole.emptied()
        # what it sent before may still be in the decoder process
        async with asyncio.timeout(60):
            while (reply := await whole.send(request)).status != 200:
                assert reply.status == 503
        await whole.emptied()
        assert sorted(upstream.delivered) == ["at last", "filler"]


def test_the_collector_retries_indefinitely() -> None:
    """It posts to forwarder's listener, gives up on nothing, and keeps its queue on disk."""
    assert urlsplit(EXPORTER["endpoint"]).netloc == OTLP["sources"]["http"]["listen"]
    assert EXPORTER["retry_on_failure"] == {"max_elapsed_time": "0s"}
    assert EXPORTER["sending_queue"]["storage"] in COLLECTOR["service"]["extensions"]
    assert COLLECTOR["service"]["pipelines"]["logs"]["exporters"] == ["otlphttp"]


def assert_accepted(reply: RawReply) -> None:
    """200, as an SDK gets it."""
    assert (reply.status, reply.body) == (200, b'{"status":"Ok"}')
