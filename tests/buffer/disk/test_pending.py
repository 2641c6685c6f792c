"""What is offered becomes records: nothing is lost or changed, a lane's order is kept, and only
what may be put together is.
"""

from __future__ import annotations

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from forwarder.buffer.disk.pending import MERGE_BELOW, MERGED_BYTES, merge
from forwarder.core.errors import Backpressure
from forwarder.core.event import NO_IDS, Ack, Chunk, Lane

LANES: Final = st.sampled_from([Lane("phc_a"), Lane("phc_b"), Lane("phc_b", historical=True)])


class _NoCallback:
    def __call__(self, error: Backpressure | None) -> None:
        """No one waits."""


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    """Small and large ones, with and without ids, someone who waits, and a
    dead letter that they were.
    """
    name = draw(st.integers(0, 10**6))
    size = draw(st.sampled_from([0, 100, MERGE_BELOW - 100, MERGE_BELOW, MERGED_BYTES]))
    data = b",".join(
        b'{"event":"%d","p":"%b"}' % (name, b"x" * size) for _ in range(draw(st.integers(1, 3)))
    )
    ids = draw(st.sampled_from([NO_IDS, frozenset("a")]))
    ack = draw(st.sampled_from([None, Ack(1, _NoCallback())]))
    chunk = Chunk(
        draw(LANES),
        data,
        data.count(b'"event"'),
        ids,
        0.0,
        draw(st.sampled_from(["http", "logs"])),
        ack,
    )
    chunk.origin = draw(st.sampled_from([0, 0, 7]))
    return chunk


@given(offered=st.lists(st.lists(chunks(), min_size=1, max_size=3), max_size=12))
def test_records_hold_what_was_offered(offered: list[list[Chunk]]) -> None:
    """Each lane's events in order, byte for byte; what has ids, an ack or an origin, or is large,
    stays by itself.
    """
    records = list(merge([(group, None, 0) for group in offered]))
    everything = [chunk for group in offered for chunk in group]
    for lane in {chunk.lane for chunk in everything}:
        mine = [chunk for chunk in everything if chunk.lane == lane]
        its = [record for record in records if record.lane == lane]
        assert b",".join(b"".join(record.data) for record in its) == b",".join(
            chunk.data for chunk in mine
        )
        assert sum(record.count for record in its) == sum(chunk.count for chunk in mine)
    for record in records:
        assert record.size == len(b"".join(record.data))
        alone = len(record.data) == 1
        assert alone or not (record.ids or record.ack or record.origin)
        assert alone or record.size < MERGED_BYTES + MERGE_BELOW
        assert alone or all(len(piece) < MERGE_BELOW for piece in record.data)
    named = {(record.source, record.lane) for record in records}
    assert named == {(chunk.source, chunk.lane) for chunk in everything}
