"""Large records of a source: read by the decoder process, kept until they are taken, and the same
as if they had been read at once.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.core.ack import AckLevel
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    Draining,
    StillDecoding,
    TogetherTooLarge,
)
from forwarder.core.event import Lane
from forwarder.core.ports import Ordering, Reason
from forwarder.core.record_intake import RecordFacts, RejectedRecord
from forwarder.intake.source_intake import MAX_LARGE
from forwarder.wire.effort import INLINE
from tests.support.cases import cases
from tests.support.decoders import NOTHING, HereDecoder
from tests.support.intakes import KEY, batch, stamped_event
from tests.support.records import RecordList, RecordsRig, record_list
from tests.support.waiters import IntakeCallback

LANE = Lane(KEY)
EVENT = {"event": "e", "distinct_id": "d", "uuid": None}


def large(events: int = INLINE.events + 1) -> RecordList:
    """One record with more events, of which each is stamped by itself, than are stamped at once."""
    return record_list(batch(*[EVENT] * events))


class RecordDecoderRig(RecordsRig):
    """An intake for records with a decoder that a test opens."""

    def __init__(self, **more: Any) -> None:
        self.here = HereDecoder(closed=more.pop("closed", False))
        super().__init__(decoder=self.here, **more)

    def try_to_take(self, records: RecordList) -> StillDecoding | None:
        """Offer a batch; what says that it is still being decoded, if it is."""
        try:
            self.records.accept(records, IntakeCallback(), AckLevel.DELIVERED)
        except StillDecoding as error:
            return error
        return None

    async def take_all(self, records: RecordList) -> None:
        """Offer a batch until it is taken."""
        while (error := self.try_to_take(records)) is not None:
            assert await self.conditions.drain(10.0), error
        assert self.balanced()


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[RecordDecoderRig]:
    """An intake with a decoder that works at once."""
    rig = RecordDecoderRig()
    yield rig
    await rig.conditions.close()


async def test_a_large_record_is_accepted_once_it_is_decoded(rig: RecordDecoderRig) -> None:
    """Its source is notified when there is; then all of it is taken at once."""
    records = large()
    called = []
    error = rig.try_to_take(records)
    assert error is not None
    error.when_done(lambda: called.append(rig.try_to_take(records)))
    assert rig.untouched()
    await rig.conditions.drain(10.0)
    assert called == [None]
    assert rig.buffer.count(LANE) == INLINE.events + 1
    assert len(rig.here.bodies) == 1


async def test_a_large_record_is_decoded_once_however_long_it_waits_for_room(
    rig: RecordDecoderRig,
) -> None:
    """While the buffer is full it comes again and again."""
    records = large()
    rig.try_to_take(records)
    await rig.conditions.drain(10.0)
    rig.buffer.used, free = rig.buffer.max_bytes - 10, rig.buffer.used
    for _ in range(3):
        with pytest.raises(Backpressure):
            rig.records.accept(records, IntakeCallback(), AckLevel.DELIVERED)
    rig.buffer.used = free
    await rig.take_all(records)
    assert len(rig.here.bodies) == 1


async def test_records_that_take_too_long_together_are_split(
    rig: RecordDecoderRig,
) -> None:
    """None of them goes to the decoder for the others' sake."""
    half = batch(*[EVENT] * (INLINE.events // 2 + 1))
    with pytest.raises(TogetherTooLarge):
        rig.try_to_take(record_list(half, half))
    assert rig.try_to_take(record_list(half)) is None
    assert rig.here.bodies == []


async def test_a_record_over_the_bound_is_large_even_if_it_is_complete(
    rig: RecordDecoderRig,
) -> None:
    """As it is, and as what a few bytes stand for."""
    body = json.dumps(batch(*[stamped_event()] * 9000)).encode()
    for value in (body, gzip.compress(body)):
        await rig.take_all(record_list(value))
    assert len(rig.here.bodies) == 2
    assert rig.buffer.count(LANE) == 18_000


async def test_a_record_that_cannot_be_read_is_one_dead_letter(rig: RecordDecoderRig) -> None:
    """With the bytes that came, and where they were."""
    value = b"[" * 2_000_000
    await rig.take_all(record_list(value, offset=7))
    (letter,) = rig.dead_letters.dead_letters
    assert (letter.reason, letter.data, letter.coordinates) == (
        Reason.UNDECODABLE,
        value,
        "kafka/events/0/7",
    )


async def test_an_event_that_no_dead_letters_could_hold_does_not_stop_its_partition() -> None:
    """A few bytes stand for an event that is larger than all dead letters together may be: the
    record is kept as it came.
    """
    rig = RecordDecoderRig(dead_letter_bytes=1_000_000)
    value = gzip.compress(json.dumps(batch({**EVENT, "x": "y" * 3_000_000})).encode())
    await rig.take_all(record_list(value))
    (letter,) = rig.dead_letters.dead_letters
    assert (letter.reason, letter.data) == (Reason.TOO_LARGE, value)
    await rig.conditions.close()


async def test_records_that_are_decoded_and_find_no_room_are_few() -> None:
    """Further ones wait until those are taken."""
    rig = RecordDecoderRig(closed=True)
    for _ in range(MAX_LARGE):
        assert rig.try_to_take(large()) is not None
    with pytest.raises(BufferFull, match="other large records"):
        rig.try_to_take(large())
    await rig.conditions.close()


async def test_a_record_whose_decoding_was_ended_is_decoded_again(rig: RecordDecoderRig) -> None:
    """What kept it from being read is reported once."""
    rig.here.failure = Draining("the daemon ends")
    records = large()
    rig.try_to_take(records)
    await rig.conditions.drain(10.0)
    with pytest.raises(Draining):
        rig.try_to_take(records)
    rig.here.failure = None
    await rig.take_all(records)
    assert len(rig.here.bodies) == 2


_values = st.sampled_from([1, "x", None, float("nan"), "\ud800", {"token": "phc_two"}])
_events = st.fixed_dictionaries(
    {},
    optional={
        "event": st.sampled_from(["e", "", "\ud800", None]),
        "distinct_id": st.sampled_from(["ann", "", 5]),
        "uuid": st.sampled_from(["0190a0a0-1111-7222-8333-444455556666", "no"]),
        "timestamp": st.sampled_from(["2025-12-31T12:00:00Z", "soon"]),
        "api_key": st.sampled_from([KEY, "phc_two", "", 5]),
        "properties": st.dictionaries(st.sampled_from(["alias", "token", "n"]), _values),
    },
)
_batches = st.builds(lambda events: batch(*events), st.lists(_events, max_size=4))
_records = st.one_of(_events, st.lists(_events | st.just(7), max_size=4), _batches)


@given(
    record=_records,
    key=st.sampled_from([KEY, None, "phc_\0"]),
    ordered=st.booleans(),
    foreign=st.booleans(),
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
async def test_the_decoder_process_reads_records_as_the_daemon_does(
    record: Any, key: str | None, ordered: bool, foreign: bool
) -> None:
    """Byte for byte: uuids come from its place; and its dead letters."""
    ordering = Ordering.PER_DISTINCT_ID if ordered else Ordering.NONE
    found = []
    for rig in (
        RecordDecoderRig(ordering=ordering),
        RecordDecoderRig(ordering=ordering, effort=NOTHING),
    ):
        await rig.take_all(record_list(record, api_key=key, foreign=foreign))
        chunks = [
            (chunk.lane, [event.strip() for event in chunk.events()], chunk.ids)
            for chunk in rig.chunks()
        ]
        letters = sorted(
            (each.reason, each.lane or LANE, each.data, each.why, each.attributes)
            for each in rig.dead_letters.dead_letters
        )
        found.append((chunks, letters, rig.intake.statistics().nulled_numbers))
    assert found[0] == found[1]


@cases(
    ("value", "rules"),
    [
        (batch(*[stamped_event()] * 9000), ()),
        (stamped_event(), [{"match": {"where": "[range(9)] | length > 9"}, "drop": True}]),
    ],
)
async def test_rejected_records_beside_a_large_one_are_kept(value: Any, rules: Any) -> None:
    """They come again one by one."""
    rig = RecordDecoderRig(rules=rules)
    refused = RejectedRecord(RecordFacts("kafka/events/0/1", None), Reason.UNMAPPABLE, b"x", "why")
    both = record_list(value)
    both.rejected = [refused]
    with pytest.raises(TogetherTooLarge):
        rig.try_to_take(both)
    assert rig.here.bodies == []
    await rig.take_all(record_list(value))
    await rig.take_all(RecordList([], rejected=[refused]))
    assert len(rig.here.bodies) == 1
    assert [letter.data for letter in rig.dead_letters.dead_letters] == [b"x"]
    await rig.conditions.close()
