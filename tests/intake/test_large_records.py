"""Large records of a source: the decoder process reads each once; the result is kept until the
record is accepted, and is the same as that of reading on the event loop.
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
from forwarder.intake.source_intake import MAX_LARGE_RECORDS, STALE_SECONDS
from forwarder.wire.effort import INLINE
from tests.support.cases import cases
from tests.support.decoders import NO_EFFORT, InProcessDecoder
from tests.support.intakes import KEY, batch, stamped_event
from tests.support.records import RecordList, RecordsRig, record_list
from tests.support.waiters import IntakeCallback

LANE = Lane(KEY)
EVENT = {"event": "e", "distinct_id": "d", "uuid": None}
"""An incomplete event, so that it has to be stamped."""
COMPLETE_BATCH = batch(*[stamped_event()] * 9000)
"""More than `INLINE.text` bytes of complete events."""


def large_record() -> RecordList:
    """One record with one event more than are stamped on the event loop."""
    return record_list(batch(*[EVENT] * (INLINE.events + 1)))


class RecordDecoderRig(RecordsRig):
    """An intake for records with a decoder in this process."""

    def __init__(self, *, closed: bool = False, **settings: Any) -> None:
        """`closed`: the decoder doesn't answer."""
        self.in_process = InProcessDecoder(closed=closed)
        super().__init__(decoder=self.in_process, **settings)

    def offer_batch(self, records: RecordList) -> StillDecoding | None:
        """Offer a batch; return the error if it is still being decoded, None if it is accepted."""
        try:
            self.records.accept(records, IntakeCallback(), AckLevel.DELIVERED)
        except StillDecoding as error:
            return error
        return None

    async def offer_until_accepted(self, records: RecordList) -> None:
        """Offer a batch, and again each time the decoder is done."""
        while (error := self.offer_batch(records)) is not None:
            assert await self.conditions.drain(10.0), error
        assert self.balanced()

    @property
    def decoded(self) -> int:
        """How many records the decoder was given."""
        return len(self.in_process.bodies)


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[RecordDecoderRig]:
    """An intake with a decoder that answers immediately."""
    rig = RecordDecoderRig()
    yield rig
    await rig.conditions.close()


async def test_a_large_record_is_accepted_once_it_is_decoded(rig: RecordDecoderRig) -> None:
    """Its source is called back then, and its next offer is accepted as a whole."""
    records = large_record()
    error = rig.offer_batch(records)
    assert error is not None
    second_offers = []
    error.when_done(lambda: second_offers.append(rig.offer_batch(records)))
    assert rig.untouched()
    await rig.conditions.drain(10.0)
    assert second_offers == [None]
    assert rig.buffer.count(LANE) == INLINE.events + 1
    assert rig.decoded == 1


async def test_a_large_record_is_decoded_once_however_often_it_is_offered(
    rig: RecordDecoderRig,
) -> None:
    """Its source offers it again while the buffer has no room."""
    records = large_record()
    rig.offer_batch(records)
    await rig.conditions.drain(10.0)
    used = rig.buffer.used
    rig.buffer.used = rig.buffer.max_bytes - 10
    for _ in range(3):
        with pytest.raises(Backpressure):
            rig.offer_batch(records)
    rig.buffer.used = used
    await rig.offer_until_accepted(records)
    assert rig.decoded == 1


async def test_a_decoded_record_is_kept_as_long_as_its_source_offers_it(
    rig: RecordDecoderRig,
) -> None:
    """Beside others; one that wasn't offered for a minute, because its partition went elsewhere,
    say, is forgotten.
    """
    offered, forgotten = large_record(), large_record()
    rig.offer_batch(offered)
    rig.offer_batch(forgotten)
    await rig.conditions.drain(10.0)
    used = rig.buffer.used
    rig.buffer.used = rig.buffer.max_bytes - 10
    await rig.clock.advance(STALE_SECONDS - 1)
    with pytest.raises(Backpressure):
        rig.offer_batch(offered)
    await rig.clock.advance(1)
    rig.buffer.used = used
    await rig.offer_until_accepted(large_record())
    assert rig.decoded == 3
    assert rig.offer_batch(offered) is None
    await rig.offer_until_accepted(forgotten)
    assert rig.decoded == 4


async def test_records_that_take_too_long_together_have_to_be_split(
    rig: RecordDecoderRig,
) -> None:
    """Each is then read on the event loop: none needs the decoder by itself."""
    half = batch(*[EVENT] * (INLINE.events // 2 + 1))
    with pytest.raises(TogetherTooLarge):
        rig.offer_batch(record_list(half, half))
    assert rig.offer_batch(record_list(half)) is None
    assert rig.decoded == 0


async def test_a_record_of_too_many_bytes_is_decoded_even_if_its_events_are_complete(
    rig: RecordDecoderRig,
) -> None:
    """Compressed or not: its decompressed size counts."""
    body = json.dumps(COMPLETE_BATCH).encode()
    for value in (body, gzip.compress(body)):
        await rig.offer_until_accepted(record_list(value))
    assert rig.decoded == 2
    assert rig.buffer.count(LANE) == 18_000


async def test_a_record_that_cannot_be_decoded_is_one_dead_letter(rig: RecordDecoderRig) -> None:
    """It has the record's bytes and position."""
    value = b"[" * 2_000_000
    await rig.offer_until_accepted(record_list(value, offset=7))
    (dead_letter,) = rig.dead_letters.dead_letters
    assert (dead_letter.reason, dead_letter.data, dead_letter.coordinates) == (
        Reason.UNDECODABLE,
        value,
        "kafka/events/0/7",
    )


async def test_an_event_larger_than_all_dead_letters_does_not_block_its_partition() -> None:
    """The dead letter has the record as it came: compressed, it is small enough."""
    rig = RecordDecoderRig(dead_letter_bytes=1_000_000)
    value = gzip.compress(json.dumps(batch({**EVENT, "x": "y" * 3_000_000})).encode())
    await rig.offer_until_accepted(record_list(value))
    (dead_letter,) = rig.dead_letters.dead_letters
    assert (dead_letter.reason, dead_letter.data) == (Reason.TOO_LARGE, value)
    await rig.conditions.close()


async def test_the_number_of_large_records_that_are_not_accepted_is_limited() -> None:
    """A further one isn't queued for the decoder until one of them is accepted."""
    rig = RecordDecoderRig(closed=True)
    for _ in range(MAX_LARGE_RECORDS):
        assert rig.offer_batch(large_record()) is not None
    with pytest.raises(BufferFull, match="other large records"):
        rig.offer_batch(large_record())
    await rig.conditions.close()


async def test_a_record_whose_decoding_was_interrupted_is_decoded_again(
    rig: RecordDecoderRig,
) -> None:
    """The next offer raises the reason; the one after that starts the decoder again."""
    rig.in_process.failure = Draining("the daemon ends")
    records = large_record()
    rig.offer_batch(records)
    await rig.conditions.drain(10.0)
    with pytest.raises(Draining):
        rig.offer_batch(records)
    rig.in_process.failure = None
    await rig.offer_until_accepted(records)
    assert rig.decoded == 2


@cases(
    ("value", "rules"),
    [
        (COMPLETE_BATCH, ()),
        (stamped_event(), [{"match": {"where": "[range(9)] | length > 9"}, "drop": True}]),
    ],
)
async def test_a_rejected_record_beside_one_that_needs_the_decoder_is_not_lost(
    value: Any, rules: Any
) -> None:
    """The batch has to be split, whether reading takes too long or the rules do; then both are
    accepted.
    """
    rig = RecordDecoderRig(rules=rules)
    rejected = RejectedRecord(RecordFacts("kafka/events/0/1", None), Reason.UNMAPPABLE, b"x", "why")
    with pytest.raises(TogetherTooLarge):
        rig.offer_batch(record_list(value, rejected=[rejected]))
    assert rig.decoded == 0
    await rig.offer_until_accepted(record_list(value))
    await rig.offer_until_accepted(RecordList([], rejected=[rejected]))
    assert rig.decoded == 1
    assert [dead_letter.data for dead_letter in rig.dead_letters.dead_letters] == [b"x"]
    await rig.conditions.close()


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
async def test_the_decoder_process_reads_records_as_the_event_loop_does(
    record: Any, key: str | None, ordered: bool, foreign: bool
) -> None:
    """The same chunks, byte for byte (uuids come from the record's position), the same dead
    letters, and the same count of numbers that became null.
    """
    ordering = Ordering.PER_DISTINCT_ID if ordered else Ordering.NONE
    on_loop = RecordDecoderRig(ordering=ordering)
    in_decoder = RecordDecoderRig(ordering=ordering, effort=NO_EFFORT)
    readings = []
    for rig in (on_loop, in_decoder):
        await rig.offer_until_accepted(record_list(record, api_key=key, foreign=foreign))
        chunks = [
            (chunk.lane, [event.strip() for event in chunk.events()], chunk.ids)
            for chunk in rig.chunks()
        ]
        dead_letters = sorted(
            (
                dead_letter.reason,
                dead_letter.lane or LANE,
                dead_letter.data,
                dead_letter.why,
                dead_letter.attributes,
            )
            for dead_letter in rig.dead_letters.dead_letters
        )
        readings.append((chunks, dead_letters, rig.intake.statistics().nulled_numbers))
    assert readings[0] == readings[1]
