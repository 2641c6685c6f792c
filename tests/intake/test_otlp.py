"""Log records in the intake: mapped one by one, accepted together, and the same events when a
request is repeated.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forwarder.core.ack import AckLevel
from forwarder.core.errors import (
    BufferFull,
    ConfigurationError,
    DeadLettersFull,
    InvalidRequest,
    InvalidToken,
    RequestTooLarge,
    UnsupportedMedia,
)
from forwarder.core.event import Lane
from forwarder.core.ports import Fate, Incoming, OtlpHead, Reason, WhenFull
from forwarder.intake.lane_registry import LaneRegistry
from forwarder.intake.otlp import EVENTS_PER_RECORD, OtlpMapping, OtlpSource, restored
from forwarder.intake.requests import RequestReader
from forwarder.mapping import HashRule, MappingRules, TimestampRule
from forwarder.stamping.stamp_event import ReadingRules
from forwarder.wire.effort import INLINE
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT
from tests.support.decoders import InProcessDecoder, Patient
from tests.support.intakes import KEY, NOW, UUID, AllKnown, IntakeRig
from tests.support.otlp import AT, JSON, PROTOBUF, SECOND, export, record
from tests.support.waiters import IntakeCallback

LANE = Lane(KEY)
RULES = MappingRules(
    event=".event_name",
    distinct_id=".attributes.user",
    where='.severity != "debug"',
    properties={"body": ".body"},
)
BOTH = pytest.mark.parametrize("protobuf", [False, True], ids=["json", "protobuf"])
MANY = INLINE.events // EVENTS_PER_RECORD + 1
"""Records that are more than are mapped on the loop."""


def rig_of(rules: MappingRules = RULES, **settings: Any) -> IntakeRig:
    """An intake that accepts log records."""
    return IntakeRig(otlp=OtlpMapping(OtlpSource(rules, KEY)), **settings)


class OtlpExport:
    """A request with log records, and what it is answered."""

    def __init__(
        self,
        rig: IntakeRig,
        *records: Any,
        protobuf: bool = True,
        body: bytes | None = None,
        callback: IntakeCallback | None = None,
        **hints: Any,
    ) -> None:
        self.head = OtlpHead(hints.pop("authorization", b""), protobuf)
        self.callback = callback or IntakeCallback()
        self.callback.reached = rig.offer(
            export(*records, protobuf=protobuf) if body is None else body,
            self.callback,
            head=self.head,
            content_type=hints.pop("content_type", (PROTOBUF if protobuf else JSON).encode()),
            **hints,
        )
        assert rig.balanced()

    @property
    def answer(self) -> Any:
        """The answer's body: bytes in protobuf, else what its JSON says."""
        assert self.callback.code == "accepted"
        assert self.head.results is not None
        assert not self.head.results.retries
        body = self.head.results.body()
        return body if self.head.protobuf else json.loads(body)


def loads(rig: IntakeRig) -> list[dict[str, Any]]:
    """The buffered events."""
    return [json.loads(event) for event in rig.events()]


@BOTH
def test_records_become_events(protobuf: bool) -> None:
    """Each with its own time, of the configured project, with the source `otlp`, and without the
    exporter's address.
    """
    rig = rig_of()
    otlp_export = OtlpExport(
        rig,
        record("a"),
        record("b", time_unix_nano=AT + 5_000),
        protobuf=protobuf,
        client="8.8.8.8",
    )
    assert otlp_export.answer == (b"" if protobuf else {})
    first, second = loads(rig)
    assert {**first, "uuid": ""} == {
        "event": "clicked",
        "distinct_id": "ann",
        "uuid": "",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "properties": {"body": "a"},
    }
    assert second["timestamp"] == "2026-01-01T00:00:00.000005Z"
    assert first["uuid"] != second["uuid"]
    assert {(chunk.lane, chunk.source) for chunk in rig.chunks()} == {(LANE, "otlp")}
    assert rig.books.accounts[LANE].received == {"otlp": 2}


@BOTH
def test_a_repeated_request_repeats_its_events(protobuf: bool) -> None:
    """Byte for byte, compressed or not; records that were left out before an event don't change
    its uuid, another request does.
    """
    body = export(record("a"), record("b", severity_text="debug"), record("c"), protobuf=protobuf)
    rigs = [rig_of(), rig_of(), rig_of()]
    OtlpExport(rigs[0], body=body, protobuf=protobuf)
    OtlpExport(rigs[1], body=gzip.compress(body), protobuf=protobuf, content_encoding=b"gzip")
    OtlpExport(
        rigs[2], record("a"), record("b", severity_text="debug"), record("d"), protobuf=protobuf
    )
    assert rigs[0].events() == rigs[1].events()
    assert not {event["uuid"] for event in loads(rigs[0])} & {
        event["uuid"] for event in loads(rigs[2])
    }
    assert {event["uuid"][14] for event in loads(rigs[0])} == {"5"}


def test_a_record_without_any_time_is_a_new_event() -> None:
    """It has the time of receipt, which a repetition doesn't share; the others of its request are
    what they were.
    """
    rig = rig_of()
    body = export(record("a", time_unix_nano=0), record("b"), protobuf=True)
    OtlpExport(rig, body=body)
    OtlpExport(rig, body=body)
    timeless, timed, again, same = loads(rig)
    assert timeless["timestamp"] == again["timestamp"] == NOW
    assert (timeless["uuid"][14], again["uuid"][14]) == ("7", "7")
    assert timeless["uuid"] != again["uuid"]
    assert timed == same


def test_the_mappings_time_and_uuid_win() -> None:
    """Its time and uuid win; with its time alone the uuid can be derived as well."""
    timestamp = TimestampRule(".attributes.at", "unix")
    rig = rig_of(
        MappingRules(
            event=".event_name",
            distinct_id=".attributes.user",
            timestamp=timestamp,
            uuid=".attributes.id",
        )
    )
    untimed = record(time_unix_nano=0, attributes={"user": "ann", "at": 1_767_225_601})
    body = export(
        record(attributes={"user": "ann", "at": 1_767_225_601, "id": UUID}),
        untimed,
        record(),
        protobuf=True,
    )
    OtlpExport(rig, body=body)
    OtlpExport(rig, body=body)
    given, derived, own, *again = loads(rig)
    assert (given["uuid"], given["timestamp"]) == (UUID, "2026-01-01T00:00:01.000Z")
    assert (derived["uuid"][14], derived["timestamp"]) == ("5", "2026-01-01T00:00:01.000Z")
    assert own["timestamp"] == NOW
    assert again == [given, derived, own]


@BOTH
def test_records_that_the_mapping_filters_are_counted(protobuf: bool) -> None:
    """It is no event and no error, also where nothing else is in the request."""
    rig = rig_of()
    otlp_export = OtlpExport(
        rig, record(severity_text="debug"), record(severity_text="debug"), protobuf=protobuf
    )
    assert otlp_export.answer == (b"" if protobuf else {})
    assert rig.events() == []
    assert rig.intake.statistics().filtered_records == 2
    assert not rig.books.accounts


@BOTH
def test_a_request_without_records(protobuf: bool) -> None:
    """It is accepted."""
    rig = rig_of()
    assert OtlpExport(rig, body=b"" if protobuf else b"{}", protobuf=protobuf).answer == (
        b"" if protobuf else {}
    )
    assert rig.untouched()


@BOTH
def test_a_record_that_is_no_event_is_rejected_alone(protobuf: bool) -> None:
    """The others are accepted; it becomes a dead letter with the record as the rules see it, and
    the answer says how many and why.
    """
    rig = rig_of()
    otlp_export = OtlpExport(
        rig,
        record("a"),
        record("b", event_name=""),
        record("c", attributes={}),
        record("d"),
        protobuf=protobuf,
    )
    assert [event["properties"]["body"] for event in loads(rig)] == ["a", "d"]
    if protobuf:
        assert otlp_export.answer.startswith(b"\x0a")
        assert b"\x08\x02" in otlp_export.answer
    else:
        partial = otlp_export.answer["partialSuccess"]
        assert partial["rejectedLogRecords"] == "2"
        assert partial["errorMessage"].startswith("2 log records are no events")
        assert "unmappable: event: " in partial["errorMessage"]
    letters = {letter.reason: letter for letter in rig.dead_letters.dead_letters}
    assert set(letters) == {Reason.UNMAPPABLE, Reason.MISSING_DISTINCT_ID}
    unmappable = letters[Reason.UNMAPPABLE]
    assert (unmappable.lane, unmappable.source) == (LANE, "otlp")
    log_record = json.loads(unmappable.data)
    assert (log_record["body"], log_record["resource"], log_record["event_name"]) == (
        "b",
        {"service.name": "shop"},
        None,
    )
    assert rig.figures(LANE) == (4, 2, {Reason.UNMAPPABLE: 1, Reason.MISSING_DISTINCT_ID: 1}, {})


def test_without_room_for_dead_letters_nothing_is_accepted() -> None:
    """An unmappable record is never dropped: the exporter comes again."""
    rig = rig_of(dead_letter_bytes=60_000)
    huge = record("x" * 20_000, event_name="")
    with suppress(DeadLettersFull):
        for _ in range(10):
            OtlpExport(rig, huge)
    with pytest.raises(DeadLettersFull):
        OtlpExport(rig, record("a"), huge)
    assert rig.events() == []


@cases(
    "authorization", [b"", b"Bearer " + KEY.encode(), b"bearer " + KEY.encode(), b"Basic dXNlcjpw"]
)
def test_the_project_is_the_configured_one(authorization: bytes) -> None:
    """A request needn't name it, and may, as a bearer token. It is allowed, whatever other senders
    may use.
    """
    rig = rig_of()
    OtlpExport(rig, record(), authorization=authorization)
    assert [chunk.lane for chunk in rig.chunks()] == [LANE]


def test_a_request_for_another_project() -> None:
    """It was meant for someone else."""
    rig = rig_of()
    with pytest.raises(InvalidToken, match="bearer token"):
        OtlpExport(rig, record(), authorization=b"Bearer phc_other")
    assert rig.untouched()


@cases(
    ("body", "content_type", "kind"),
    [
        (b"\x0a\xff", PROTOBUF, InvalidRequest),
        (b"[]", JSON, InvalidRequest),
        (b"", JSON, InvalidRequest),
        (b"{}", "text/plain", UnsupportedMedia),
        (gzip.compress(b"\0" * 3000, mtime=0), PROTOBUF, RequestTooLarge),
    ],
)
def test_invalid_requests_are_rejected(
    body: bytes, content_type: str, kind: type[Exception]
) -> None:
    """It is rejected, and leaves nothing behind."""
    rig = rig_of(max_body=2000)
    with pytest.raises(kind):
        OtlpExport(
            rig, body=body, protobuf=content_type == PROTOBUF, content_type=content_type.encode()
        )
    assert rig.untouched()


def test_too_large_an_event_is_rejected_alone() -> None:
    """An event over upstream.max_event becomes a dead letter."""
    rig = rig_of(max_event=1000)
    otlp_export = OtlpExport(rig, record("a"), record("x" * 2000), protobuf=False)
    assert [event["properties"]["body"] for event in loads(rig)] == ["a"]
    assert "too_large" in otlp_export.answer["partialSuccess"]["errorMessage"]


def test_a_full_buffer_rejects_all() -> None:
    """Nothing of the request is accepted, and it may come again as it is."""
    rig = rig_of(max_bytes=20_000)
    body = export(
        *[record("x" * 100, time_unix_nano=AT + number) for number in range(15)], protobuf=True
    )
    for _ in range(2):
        OtlpExport(rig, body=body)
    with pytest.raises(BufferFull):
        OtlpExport(rig, body=body)
    assert len(rig.events()) == 30


def test_dropped_when_full() -> None:
    """Where the configuration says that new events are dropped, they are, and the exporter isn't
    asked to repeat them.
    """
    rig = rig_of(max_bytes=20_000, when_full=WhenFull.DROP_NEWEST)
    for number in range(9):
        OtlpExport(rig, *[record("x" * 100, time_unix_nano=AT + number) for _ in range(15)])
    received, buffered, _, dropped = rig.figures(LANE)
    assert received == 135
    assert buffered + sum(dropped.values()) == 135
    assert dropped


def test_acknowledged_when_delivered() -> None:
    """At that level the answer waits for the events, and says the same."""
    rig = rig_of(ack=AckLevel.DELIVERED)
    otlp_export = OtlpExport(rig, record("a"), record("b", event_name=""), protobuf=False)
    assert otlp_export.callback.code == "waiting"
    (chunk,) = rig.chunks()
    rig.buffer.queue(LANE).popleft()
    rig.books.deliver(LANE, 1)
    rig.buffer.settle([chunk], Fate.DELIVERED)
    assert otlp_export.answer["partialSuccess"]["rejectedLogRecords"] == "1"


# What is large


@pytest_asyncio.fixture
async def large() -> AsyncIterator[tuple[IntakeRig, InProcessDecoder]]:
    """An intake with a decoder."""
    decoder = InProcessDecoder()
    rig = rig_of(decoder=decoder)
    yield rig, decoder
    await rig.conditions.close()


async def answered(rig: IntakeRig, *records: Any, **options: Any) -> OtlpExport:
    """A request that the decoder may have to read."""
    waiter = Patient()
    otlp_export = OtlpExport(rig, *records, callback=waiter, **options)
    if not waiter.reached:
        await waiter.called.wait()
    if waiter.failures:
        raise waiter.failures[0]
    return otlp_export


def some(count: int) -> list[dict[str, Any]]:
    """Records, of which every third is left out and every fifth is unmappable."""
    return [
        record(
            number,
            time_unix_nano=AT + number * SECOND,
            **({"severity_text": "debug"} if number % 3 == 2 else {}),
        )
        | ({"event_name": ""} if number % 5 == 4 else {})
        for number in range(count)
    ]


@BOTH
async def test_many_records_go_to_the_decoder_process(
    large: tuple[IntakeRig, InProcessDecoder], protobuf: bool
) -> None:
    """What comes of them is what would have come of them on the loop."""
    rig, decoder = large
    there = await answered(rig, *some(MANY), protobuf=protobuf, client="8.8.8.8")
    assert len(decoder.bodies) == 1
    here = rig_of()
    at_once = OtlpExport(here, *some(MANY), protobuf=protobuf, client="8.8.8.8")
    assert rig.events() == here.events()
    assert there.answer == at_once.answer
    assert rig.intake.statistics().filtered_records == here.intake.statistics().filtered_records > 0
    assert rig.figures(LANE) == here.figures(LANE)
    assert [letter.data for letter in rig.dead_letters.dead_letters] == [
        letter.data for letter in here.dead_letters.dead_letters
    ]
    assert {chunk.source for chunk in rig.chunks()} == {"otlp"}


async def test_a_small_request_is_read_without_the_decoder_process(
    large: tuple[IntakeRig, InProcessDecoder],
) -> None:
    """One of as many records as may be mapped on the loop."""
    rig, decoder = large
    await answered(rig, *some(MANY - 1))
    assert decoder.bodies == []


@pytest.mark.parametrize(
    "body",
    [
        export(record("x" * INLINE.encoded), protobuf=True),
        export(
            *[record(number) for number in range(50)], protobuf=True, resource={"r": "x" * 30_000}
        ),
        export(
            *[record(number) for number in range(10)],
            protobuf=True,
            resource={f"r{number}": 1 for number in range(4_000)},
        ),
        export(record([0] * 20_000), protobuf=True),
        gzip.compress(export(record("x" * 3_000_000), protobuf=True), mtime=0),
    ],
    ids=["bytes", "repeated resource", "repeated attributes", "values", "compressed"],
)
async def test_expensive_records_go_to_the_decoder_process(
    large: tuple[IntakeRig, InProcessDecoder], body: bytes
) -> None:
    """A large text, a resource that each record repeats, and a record of many values."""
    rig, decoder = large
    await answered(rig, body=body, content_encoding=b"gzip" if body[:2] == b"\x1f\x8b" else b"")
    assert len(decoder.bodies) == 1
    assert rig.events() or rig.dead_letters.dead_letters


async def test_the_decoder_process_finds_the_same_errors(
    large: tuple[IntakeRig, InProcessDecoder],
) -> None:
    """A large body that is no request, and one that would become too much."""
    rig, _ = large
    with pytest.raises(InvalidRequest):
        await answered(rig, body=b"\xff" * 300_000)
    with pytest.raises(RequestTooLarge):
        await answered(
            rig,
            body=export(
                *[record(number) for number in range(150)],
                protobuf=True,
                resource={"r": "x" * 1_000_000},
            ),
        )
    assert rig.untouched()


def test_the_mapping_goes_to_another_process(tmp_path: Path) -> None:
    """Every rule with it, also the file of the salt."""
    (tmp_path / "salt").write_text("secret")
    rules = MappingRules(
        event=".event_name",
        distinct_id=".attributes.user",
        timestamp=TimestampRule(".time", "iso", "UTC"),
        properties={"body": ".body"},
        set=".attributes",
        groups={"company": ".resource.company"},
        drop=(".trace_id",),
        hash=HashRule(
            (".attributes.user",),
            tmp_path / "salt",
            daily=True,
            combine={"visitor": (".body", ".scope.name")},
        ),
    )
    here = OtlpMapping(OtlpSource(rules, KEY))
    there = restored(here.encoded)
    assert there.api_key == KEY
    assert there.encoded == here.encoded
    reader = RequestReader(ReadingRules(), LaneRegistry(1, {}, AllKnown()))
    body = export(record(), protobuf=True)
    made = [
        mapping.of_request(OtlpHead(protobuf=True))
        .read(reader, body, Incoming(b""), MIDNIGHT, INLINE)
        .chunks[0]
        .data
        for mapping in (here, there)
    ]
    assert made[0] == made[1]
    assert b"secret" not in here.encoded


def test_a_rule_that_cant_be_used() -> None:
    """Its setting is named."""
    with pytest.raises(ConfigurationError, match=r"sources\.http\.otlp\.mapping\.event"):
        OtlpMapping(OtlpSource(MappingRules(event=".a ||"), KEY))


async def test_a_request_behind_a_large_one_is_one_of_log_records() -> None:
    """Of its source, without the address of who exports, and for its own project."""
    decoder = InProcessDecoder(closed=True)
    rig = rig_of(decoder=decoder)
    connection = object()
    first = Patient(origin=connection)
    assert not OtlpExport(rig, *some(MANY), callback=first, client="8.8.8.8").callback.reached
    second = Patient(origin=connection)
    assert not OtlpExport(rig, *some(1), callback=second, client="8.8.8.8").callback.reached
    with pytest.raises(InvalidToken):
        OtlpExport(
            rig, *some(1), callback=Patient(origin=connection), authorization=b"Bearer phc_another"
        )
    decoder.open()
    await rig.conditions.drain(10.0)
    assert (first.code, second.code, len(decoder.bodies)) == ("accepted", "accepted", 2)
    assert {chunk.source for chunk in rig.chunks()} == {"otlp"}
    assert not any("$ip" in event["properties"] for event in loads(rig))
    await rig.conditions.close()
