"""The log's bytes: what is encoded is decoded, what is damaged isn't; ranges of events against
plain sets; marks and books.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from forwarder.buffer.disk.format import (
    SEGMENT_HEADER_SIZE,
    RecordKind,
    SegmentHeader,
    decode_meta,
    decode_record_header,
    decode_segment_header,
    encode_meta,
    encode_record_header,
    encode_segment_header,
)
from forwarder.buffer.disk.log_books import LogBooks
from forwarder.buffer.disk.reading import (
    Damage,
    FoundRecord,
    events_of,
    newest_generation,
    overlap,
    read_records,
    records,
    remaining,
    slices,
)
from forwarder.core.event import Lane
from forwarder.core.ports import DropReason, Fate
from tests.support.disk_logs import LogWriter

U32: Final = st.integers(0, 2**32 - 1)
U64: Final = st.integers(0, 2**64 - 1)
HEADERS: Final = st.builds(SegmentHeader, U32, U64, U64, st.floats(allow_nan=False))
FIELDS: Final = st.fixed_dictionaries(
    {
        "size": U32,
        "body_crc": U32,
        "meta": st.binary(max_size=300),
        "flags": st.integers(0, 255),
        "events": U32,
        "sequence": U64,
        "first": U32,
        "received_at": st.floats(allow_nan=False),
        "origin": U64,
        "moved_from": U64,
    }
)
RANGES: Final = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=8)
LANES: Final = st.sampled_from([None, Lane("phc_a"), Lane("phc_b"), Lane("phc_b", historical=True)])


def indexes(ranges: list[tuple[int, int]]) -> set[int]:
    """The events that some ranges name."""
    return {index for first, count in ranges for index in range(first, first + count)}


@given(header=HEADERS, bit=st.integers(0, 8 * 44 - 1))
def test_a_segment_header_is_read_as_it_was_written_or_not_at_all(
    header: SegmentHeader, bit: int
) -> None:
    """Any bit of it that is turned is noticed."""
    data = bytearray(encode_segment_header(header))
    assert len(data) == SEGMENT_HEADER_SIZE
    assert decode_segment_header(bytes(data)) == header
    data[bit // 8] ^= 1 << bit % 8
    assert decode_segment_header(bytes(data)) is None
    assert decode_segment_header(bytes(data[:20])) is None


@given(kind=st.sampled_from(RecordKind), fields=FIELDS, generation=U64, data=st.data())
def test_a_record_header_is_read_as_it_was_written_or_not_at_all(
    kind: RecordKind, fields: dict[str, Any], generation: int, data: st.DataObject
) -> None:
    """With its meta; any bit of either that is turned is noticed, and so is another generation."""
    raw = encode_record_header(generation, kind, **fields)
    header = decode_record_header(raw, 0, generation)
    assert header is not None
    expected = {**fields, "kind": kind, "meta_size": len(fields["meta"]), "generation": generation}
    assert {name: getattr(header, name) for name in expected if name != "meta"} == {
        k: v for k, v in expected.items() if k != "meta"
    }
    assert header.length == len(raw) + fields["size"]
    assert decode_record_header(raw, 0, generation ^ 1) is None
    assert decode_record_header(raw[:-1], 0, generation) is None
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    turned = bytearray(raw)
    turned[bit // 8] ^= 1 << bit % 8
    assert decode_record_header(bytes(turned), 0, generation) is None


@given(
    label=st.sampled_from(["http", "delivered", ""]),
    api_key=st.text().filter(lambda key: len(key.encode("utf-8", "replace")) < 500),
)
def test_meta_is_read_as_it_was_written(label: str, api_key: str) -> None:
    """Any project key that UTF-8 can say."""
    try:
        meta = encode_meta(label, api_key)
    except UnicodeEncodeError:
        return
    assert decode_meta(meta) == (label, api_key)


@given(bodies=st.lists(st.binary(max_size=200), max_size=8), rest=st.binary(max_size=100))
def test_records_are_found_one_after_the_other(bodies: list[bytes], rest: bytes) -> None:
    """What follows them is no damage: zeros, or what an earlier use of the file left."""
    old = encode_record_header(4, RecordKind.DATA, size=3, body_crc=crc32(b"old")) + b"old"
    new = b"".join(
        encode_record_header(5, RecordKind.DATA, size=len(body), body_crc=crc32(body), sequence=1)
        + body
        for body in bodies
    )
    items = list(records(bytes(SEGMENT_HEADER_SIZE) + new + rest + old, 5))
    assert [bytes(item.body) for item in items if isinstance(item, FoundRecord)] == bodies
    assert not [item for item in items if isinstance(item, Damage)]
    assert newest_generation(new + rest + old) == (5 if bodies else 4)


@given(first=st.integers(0, 30), count=st.integers(1, 20), gone=RANGES)
def test_range_differences_and_intersections(
    first: int, count: int, gone: list[tuple[int, int]]
) -> None:
    """What is left and what is in common, whether the ranges overlap or not."""
    all_of_it = set(range(first, first + count))
    left = remaining(first, count, gone)
    assert indexes(left) == all_of_it - indexes(gone)
    assert sum(size for _, size in left) == len(indexes(left))
    assert left == sorted(left)
    assert indexes(overlap(first, count, gone)) == all_of_it & indexes(gone)


@given(
    first=st.integers(0, 30),
    gone=RANGES,
    names=st.lists(st.text(max_size=5), min_size=1, max_size=12),
    space=st.sampled_from(["", " ", "\n"]),
)
def test_slices_are_the_events_of_ranges(
    first: int, gone: list[tuple[int, int]], names: list[str], space: str
) -> None:
    """Each range's events, byte for byte, joined by commas."""
    events = [msgspec.json.encode({"event": name}) for name in names]
    body = f"{space},{space}".encode().join(events)
    wanted = remaining(first, len(events), gone)
    pieces = slices(body, first, len(events), wanted)
    assert [
        event
        for piece, (_, count) in zip(pieces, wanted, strict=True)
        for event in events_of(piece, count)
    ] == [events[index - first] for index in sorted(indexes(wanted))]


@given(
    steps=st.lists(
        st.tuples(LANES, st.sampled_from(["receive", "settle", "drop"]), st.integers(1, 50)),
        max_size=30,
    )
)
def test_books_survive_their_writing(steps: list[tuple[Lane | None, str, int]]) -> None:
    """They are the sums of what happened, also once they were written and read; merging adds."""
    books = LogBooks()
    sums = Counter[tuple[Lane | None, str]]()
    for lane, step, count in steps:
        if step == "receive":
            books.receive(lane, "http", count)
        elif step == "settle" and lane is not None:
            books.settle(lane, Fate.DELIVERED, count)
            books.settle(lane, Fate.DEAD_LETTERED, count)
        else:
            books.drop(lane, DropReason.DAMAGED, count)
        sums[lane, "drop" if lane is None and step == "settle" else step] += count
    again = LogBooks.of_plain(msgspec.json.decode(msgspec.json.encode(books.plain())))
    again.merge(LogBooks())
    for lane in {lane for lane, _, _ in steps}:
        account = again.lanes[lane]
        assert (account.received.get("http", 0), account.delivered) == (
            sums[lane, "receive"],
            sums[lane, "settle"],
        )
        assert account.dropped.get("damaged", 0) == sums[lane, "drop"]
        assert account.open == sums[lane, "receive"] - sums[lane, "settle"] - sums[lane, "drop"]


def test_a_stretch_whose_records_are_gone_is_one_damage(tmp_path: Path) -> None:
    """Zeros where records were, as a disk that forgot its last writes leaves them: what is before
    them is read, and reading ends behind them.
    """
    log = LogWriter(tmp_path)
    first = log.events(Lane("phc_a"), [b'{"n":1}'])
    gone = log.events(Lane("phc_a"), [b'{"n":2}'])
    with log.path.open("r+b") as file:
        file.seek(gone)
        file.write(bytes(log.at - gone))
        file.flush()
        record, damage = read_records(file.fileno(), 1, first, log.at)
    assert isinstance(record, FoundRecord)
    assert bytes(record.body) == b'{"n":1}'
    assert damage == Damage(gone, log.at - gone, "records that are gone")
