"""Chunks: what they cost, and their events as they were received."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import CHUNK_OVERHEAD, EVENT_OVERHEAD, Batch, Chunk, Lane, Where
from forwarder.core.ports import Reason, dead_letters_of
from tests.support.cases import cases

LANE = Lane("phc_corecorecore1234")
EVENTS = [
    b'{"event":"a","n":1.0}',
    b'{ "big" : 123456789012345678901234567890 }',
    '{"ünï":"},{"}'.encode(),
    rb'{"s":"\ud83d\ude00\/"}',
    b"{}",
]


def chunk(*events: bytes, at: float = 0.0, ids: frozenset[str] = frozenset()) -> Chunk:
    """The events as one chunk."""
    return Chunk(LANE, b",".join(events), len(events), ids, at)


def test_a_lane_is_live_unless_said_otherwise() -> None:
    """And live and historical events of a key are two lanes."""
    assert Lane("phc_x") == Lane("phc_x", historical=False) != Lane("phc_x", historical=True)


def test_the_cost_covers_what_holding_takes() -> None:
    """An event of a few bytes costs far more than those: limits in bytes
    would mean nothing otherwise.
    """
    assert chunk(b"{}", b"{}").cost == len(b"{},{}") + CHUNK_OVERHEAD + 2 * EVENT_OVERHEAD


@given(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=12))
def test_events_come_out_byte_for_byte(events: list[bytes]) -> None:
    """Numbers, escapes, order of keys and inner white space are kept."""
    assert chunk(*events).events() == events


@given(
    st.lists(
        st.tuples(st.sampled_from(EVENTS), st.text(" \t\r\n", max_size=3)), min_size=2, max_size=6
    )
)
def test_white_space_between_events_belongs_to_none(padded: list[tuple[bytes, str]]) -> None:
    """It counts as bytes of the chunk, and of no event."""
    data = b",".join(space.encode() + event + space.encode() for event, space in padded)
    assert Chunk(LANE, data, len(padded), frozenset(), 0.0).events() == [
        event for event, _ in padded
    ]


def test_a_batch_knows_its_count_its_age_and_its_ids() -> None:
    """They are those of its chunks together; the age is the oldest event's, whatever the order of
    the chunks.
    """
    chunks = (
        chunk(b"{}", b"{}", at=7.0, ids=frozenset({"a", "b"})),
        chunk(b"{}", at=5.0, ids=frozenset({"b", "c"})),
    )
    batch = Batch(LANE, chunks, 100)
    assert (batch.count, batch.received_at) == (3, 5.0)
    assert batch.ids() == {"a", "b", "c"}


@cases("space", [b"", b" ", b"\n\t"])
def test_a_lone_event_is_its_chunk(space: bytes) -> None:
    """Also with white space around it, which is JSON and not worth a second parse."""
    assert Chunk(LANE, space + b"{}", 1, frozenset(), 0.0).events()[0].strip() == b"{}"


class Placed(Chunk):
    """A chunk that is in a record on disk."""

    @property
    def place(self) -> tuple[int, int]:
        return 7, 3


class Sourced(Chunk):
    """A chunk whose source knows where each event was."""

    def where(self, index: int) -> Where:
        return Where(f"a.json:{index + 1}", (1, index), "{}")


def test_a_letter_says_where_its_event_was() -> None:
    """By the chunk's place on disk, or as its source says; else nothing."""
    made = [
        kind(Lane("phc_1"), b"{}, {}", 2, frozenset(), 0.0) for kind in (Chunk, Placed, Sourced)
    ]
    letters = [
        [
            (letter.coordinates, letter.place, letter.attributes)
            for letter in dead_letters_of(chunk, Reason.REFUSED, "no", 1.0)
        ]
        for chunk in made
    ]
    assert letters == [
        [("", None, ""), ("", None, "")],
        [("", (7, 3), ""), ("", (7, 4), "")],
        [("a.json:1", (1, 0), "{}"), ("a.json:2", (1, 1), "{}")],
    ]
