"""Hundreds of events through each encoding and shape that senders use, into a sandbox: what
arrives is what was sent.

The wall clock stands still, so that each event's time can be known beforehand (wire facts: Time).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote_plus

import msgspec
import pytest

from forwarder.sandbox import Sandbox, SandboxOptions
from tests.support.clock import MIDNIGHT, FakeClock
from tests.support.listening import post
from tests.support.lz64 import compress
from tests.support.whole import KEY, Whole, gzipped

NOW: Final = datetime.fromtimestamp(MIDNIGHT, UTC)
AHEAD: Final = timedelta(seconds=90)
"""By how much the clock of some senders is wrong."""
COUNT: Final = 560
"""Events of each test: after 28 the kinds of events and of properties are combined in all ways,
twenty times over.
"""


class EncodedArrival(msgspec.Struct):
    """An event as it arrived, its values as raw bytes."""

    event: msgspec.Raw
    distinct_id: msgspec.Raw
    properties: msgspec.Raw
    uuid: str
    timestamp: str
    offset: msgspec.Raw | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """An event as it was sent, and what must arrive."""

    name: str
    person: str
    properties: bytes
    members: bytes
    uuid: str | None
    timestamp: str | None
    """The text that must arrive; None: one that stands for `moment`."""
    moment: datetime

    def written(self, more: bytes = b"") -> bytes:
        """Its JSON."""
        head = b'{"event":%b,"distinct_id":%b,' % (
            json.dumps(self.name).encode(),
            json.dumps(self.person).encode(),
        )
        return head + more + self.members + b'"properties":%b}' % self.properties


PROPERTIES: Final = [
    b'{"n":%d,"big":12345678901234567890123,"one":1.0,"e":1E+2}',
    '{"n":%d,"name":"Zoë 茶碗","esc":"\\u00e9\\/\\ud83d\\ude00"}'.encode(),
    b'{ "n" : %d , "z":null,"a":[1, 2,{"b" : [ ]}], "z":true }',
    b'{"n":%d,"$set":{"email":"a@example.com"},"timestamp":"not ours","uuid":"nor this"}',
]


def sent(number: int, *, skewed: bool) -> Sent:
    """The event of that number: of seven kinds, by what it carries and lacks."""
    properties = PROPERTIES[number % len(PROPERTIES)] % number
    uuid = f"0189{number:04x}-0000-4000-8000-{number:012x}"
    shift = AHEAD if skewed else timedelta(0)
    moment = NOW - timedelta(minutes=number % 1000)
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    identity = b'"uuid":"%b",' % uuid.encode()
    naive = stamp.removesuffix("Z")
    far = (moment + timedelta(hours=3)).replace(tzinfo=None).isoformat() + "+03:00"

    def made(members: bytes, timestamp: str | None, own: str | None, moment: datetime) -> Sent:
        return Sent(
            f"event {number}",
            f"person-{number % 97}",
            properties,
            members,
            own,
            None if skewed else timestamp,
            moment,
        )

    kind = number % 7
    if kind == 0:
        return made(identity + b'"timestamp":"%b",' % stamp.encode(), stamp, uuid, moment - shift)
    if kind == 1:
        return made(b"", None, None, NOW)
    if kind == 2:
        return made(
            b'"offset":%d,' % (number * 7), None, None, NOW - timedelta(milliseconds=number * 7)
        )
    if kind == 3:
        return made(b'"timestamp":"%b",' % naive.encode(), naive, None, moment - shift)
    if kind == 4:
        return made(b'"timestamp":"%b",' % far.encode() + identity, far, uuid, moment - shift)
    if kind == 5:
        return made(b'"timestamp":"soon","uuid":"",', None, None, NOW)
    return made(b'"uuid":null,"timestamp":null,', None, None, NOW)


def envelope(events: list[Sent], *, skewed: bool) -> bytes:
    """A batch object; `sent_at` says what the sender's clock showed."""
    more = b'"sent_at":"%b",' % (NOW + AHEAD).isoformat().encode() if skewed else b""
    return b'{"api_key":"%b",%b"batch":[%b]}' % (
        KEY.encode(),
        more,
        b",".join(event.written() for event in events),
    )


FORM: Final = "Content-Type: application/x-www-form-urlencoded"
TEXT: Final = "Content-Type: text/plain"


def form(data: bytes, more: str = "") -> bytes:
    """A form with the data in it."""
    return f"data={quote_plus(data)}{more}".encode()


ENCODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "plain": lambda body: post("/batch/", body, "Content-Type: application/json"),
    "gzip-header": lambda body: post("/batch", gzipped(body), "Content-Encoding: gzip"),
    "gzip-query": lambda body: post(
        "/e/?compression=gzip-js&_=1767225600000&ver=1.0", gzipped(body), TEXT
    ),
    "gzip-magic": lambda body: post("/e/", gzipped(body), TEXT),
    "base64": lambda body: post("/i/v0/e/?compression=base64", base64.b64encode(body), TEXT),
    "form": lambda body: post("/e/?compression=base64", form(base64.b64encode(body)), FORM),
    "form-spaces": lambda body: post(
        "/e/?compression=base64", b"data=" + base64.b64encode(body), FORM
    ),
    "form-gzip": lambda body: post(
        "/capture/", form(base64.b64encode(gzipped(body)), "&compression=gzip-js"), FORM
    ),
    "double-base64": lambda body: post(
        "/track/", form(base64.b64encode(base64.b64encode(body))), FORM
    ),
}


async def delivered(
    requests: list[bytes], expected: list[Sent], clock: FakeClock, *, ip: bool = False
) -> None:
    """Send the requests through a forwarder into a sandbox, and compare everything that arrives."""
    async with (
        Sandbox(SandboxOptions(now=clock.now)) as sandbox,
        Whole(sandbox.url, clock) as whole,
    ):
        for request in requests:
            reply = await whole.send(request)
            assert (reply.status, reply.body) == (200, b'{"status":"Ok"}')
        await whole.emptied()
        summary = await sandbox.summary()
        assert (summary.events, summary.duplicates, summary.conflicts, summary.not_ingested) == (
            len(expected),
            0,
            0,
            0,
        )
        arrived = {event.event: event for event in await sandbox.events()}
    assert len(arrived) == len(expected)
    for event in expected:
        stored = arrived[event.name]
        seen = msgspec.json.decode(stored.raw, type=EncodedArrival)
        assert (stored.event, stored.distinct_id) == (event.name, event.person)
        assert bytes(seen.properties) == event.properties
        assert seen.uuid == (event.uuid or seen.uuid)
        assert stored.uuid == seen.uuid
        assert len(seen.uuid) == 36
        assert seen.offset is None
        assert seen.timestamp == (event.timestamp or seen.timestamp)
        assert datetime.fromisoformat(stored.timestamp) == event.moment
    assert len({event.uuid for event in arrived.values()}) == len(expected)


def in_parts(expected: list[Sent], size: int) -> list[list[Sent]]:
    """The events of each request."""
    return [expected[start : start + size] for start in range(0, len(expected), size)]


@pytest.mark.parametrize("skewed", [False, True], ids=["right clock", "wrong clock"])
@pytest.mark.parametrize("encoding", list(ENCODINGS))
async def test_events_arrive_as_they_were_sent(
    encoding: str, skewed: bool, clock: FakeClock
) -> None:
    """Names, ids, uuids and the bytes of the properties are unchanged, times are as the rules say,
    and no uuid came twice.
    """
    expected = [sent(number, skewed=skewed) for number in range(COUNT)]
    bodies = [envelope(part, skewed=skewed) for part in in_parts(expected, 200)]
    await delivered([ENCODINGS[encoding](body) for body in bodies], expected, clock)


async def test_events_in_lz64(clock: FakeClock) -> None:
    """The old browser SDK's own compression, in forms of fifty events."""
    expected = [sent(number, skewed=False) for number in range(COUNT)]
    bodies = [envelope(part, skewed=False) for part in in_parts(expected, 50)]
    requests = [
        post("/e/", form(compress(body.decode()), "&compression=lz64"), FORM) for body in bodies
    ]
    await delivered(requests, expected, clock)


@pytest.mark.parametrize("place", [b'"token":"%b",', b'"api_key":"%b",', b'"$token":"%b",'])
async def test_events_as_arrays(place: bytes, clock: FakeClock) -> None:
    """A bare array, each event with its own key, wherever that stands."""
    expected = [sent(number, skewed=False) for number in range(COUNT)]
    bodies = [
        b",".join(event.written(place % KEY.encode()) for event in part)
        for part in in_parts(expected, 200)
    ]
    await delivered(
        [post("/e/", gzipped(b"[%b]" % body), TEXT) for body in bodies], expected, clock
    )


async def test_single_events(clock: FakeClock) -> None:
    """One event a request, as `/capture/` has it."""
    expected = [sent(number, skewed=False) for number in range(COUNT)]
    requests = [
        post("/capture/", event.written(b'"api_key":"%b",' % KEY.encode())) for event in expected
    ]
    await delivered(requests, expected, clock)


async def test_the_senders_address_is_added_and_nothing_else(clock: FakeClock) -> None:
    """Behind a trusted proxy each event gains `$ip`; every other byte of its properties stays."""
    expected = [sent(number, skewed=False) for number in range(20)]
    request = post("/batch/", envelope(expected, skewed=False), "X-Forwarded-For: 93.184.216.34")
    async with Sandbox(SandboxOptions(now=clock.now)) as sandbox:
        async with Whole(sandbox.url, clock, http={"trusted_proxies": ["127.0.0.1"]}) as whole:
            assert (await whole.send(request)).status == 200
            await whole.emptied()
        arrived = {event.event: event for event in await sandbox.events()}
    for event in expected:
        properties = bytes(
            msgspec.json.decode(arrived[event.name].raw, type=EncodedArrival).properties
        )
        assert properties == event.properties.replace(b"{", b'{"$ip":"93.184.216.34",', 1)
