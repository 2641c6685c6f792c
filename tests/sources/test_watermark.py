"""The watermark, compared with a naive model that remembers every offset."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.sources.hand_over import Span, Watermark


@dataclass
class Naive:
    """Every offset that was read, and whether it is settled."""

    position: int
    read: int
    records: dict[int, bool] = field(default_factory=dict)

    def open(self, offsets: list[int]) -> None:
        """Read these."""
        self.records |= dict.fromkeys(offsets, False)
        self.read = offsets[-1] + 1

    def settle(self, offsets: list[int]) -> None:
        """They are settled."""
        self.records |= dict.fromkeys(offsets, True)

    def rewind(self, offset: int) -> None:
        """Read again from there."""
        self.records = {
            position: settled for position, settled in self.records.items() if position < offset
        }
        self.read = offset

    def committable(self) -> int:
        """The first offset that isn't settled; what was read up to if all are."""
        return min(
            (offset for offset, settled in self.records.items() if not settled), default=self.read
        )


@given(st.integers(0, 2**40), st.data())
def test_the_watermark_equals_a_naive_model(start: int, data: st.DataObject) -> None:
    """Whatever is left out between units and whatever order they are settled in, no unsettled
    record is ever passed, each span is reported once, in order, and when all are settled nothing
    is left behind.
    """
    watermark = Watermark(start)
    naive = Naive(start, start)
    opened: list[tuple[Span, list[int]]] = []
    passed: list[Span] = []
    for _ in range(data.draw(st.integers(0, 40), label="steps")):
        what = data.draw(
            st.sampled_from(["open", "open", "settle", "settle", "pass by", "split", "rewind"]),
            label="what",
        )
        if what == "open":
            first = watermark.read + data.draw(st.integers(0, 5), label="left out")
            steps = data.draw(st.lists(st.integers(1, 3), max_size=4), label="between records")
            offsets = [first]
            for step in steps:
                offsets.append(offsets[-1] + step)
            opened.append((watermark.open(first, offsets[-1] + 1, len(offsets)), offsets))
            naive.open(offsets)
        elif what == "settle" and opened:
            span, offsets = opened.pop(data.draw(st.integers(0, len(opened) - 1), label="which"))
            passed += watermark.settle(span)
            naive.settle(offsets)
        elif what == "split" and any(len(offsets) > 1 for _, offsets in opened):
            span, offsets = data.draw(
                st.sampled_from([pair for pair in opened if len(pair[1]) > 1]), label="which"
            )
            at = data.draw(st.integers(1, len(offsets) - 1), label="where")
            opened.remove((span, offsets))
            opened += [
                (span, offsets[:at]),
                (watermark.split(span, offsets[at - 1] + 1, at), offsets[at:]),
            ]
        elif what == "rewind" and opened:
            span, offsets = data.draw(st.sampled_from(opened), label="which")
            gone = set(watermark.rewind(span, offsets[0]))
            opened = [pair for pair in opened if pair[0] not in gone]
            naive.rewind(offsets[0])
        elif what == "pass by":
            naive.read = watermark.read + data.draw(st.integers(0, 3), label="passed by")
            watermark.pass_by(naive.read)
        _agree(watermark, naive)
    for span, offsets in opened:
        passed += watermark.settle(span)
        naive.settle(offsets)
        _agree(watermark, naive)
    assert watermark.position == watermark.read
    assert [span.end for span in passed] == sorted({span.end for span in passed})
    assert {span.end for span in passed} >= {span.end for span, _ in opened}


def _agree(watermark: Watermark, naive: Naive) -> None:
    unsettled = [offset for offset, settled in naive.records.items() if not settled]
    assert watermark.read == naive.read
    assert watermark.outstanding == bool(unsettled)
    # a gap right before the first unsettled record may be passed or not: nothing is in it
    between = [
        offset for offset in naive.records if watermark.position <= offset < naive.committable()
    ]
    assert watermark.position <= naive.committable()
    assert all(offset >= watermark.position for offset in unsettled)
    if unsettled:
        # a whole unit is settled at once, so what is settled before the first unsettled record is
        # settled here, but for its own unit
        assert watermark.window >= len(
            [offset for offset in naive.records if offset >= min(unsettled)]
        )
        assert not between
    else:
        assert watermark.position == naive.read
        assert watermark.window == 0


def test_the_highest_offset_is_not_it() -> None:
    """A unit that is settled before an earlier one moves nothing: with the highest settled offset
    its records would be committed.
    """
    watermark = Watermark(100)
    first, second, third = (watermark.open(at, at + 10, 10) for at in (100, 110, 120))
    assert watermark.settle(third) == []
    assert watermark.position == 100
    assert watermark.settle(first) == [first]
    assert watermark.position == 110
    assert watermark.settle(second) == [second, third]
    assert watermark.position == 130


def test_the_window_counts_from_the_first_unsettled_record() -> None:
    """What is settled beyond the first unsettled unit still counts: a restart would
    read it again.
    """
    watermark = Watermark(0)
    first, second, third = (watermark.open(at, at + 10, 7) for at in (0, 10, 20))
    watermark.settle(second)
    assert watermark.window == 21
    watermark.settle(first)
    assert watermark.window == 7
    watermark.settle(third)
    assert (watermark.window, watermark.outstanding) == (0, False)


def test_offsets_without_records_are_passed() -> None:
    """Marks of transactions move the position once nothing is outstanding, at once or when the
    last unit is settled.
    """
    watermark = Watermark(5)
    assert watermark.pass_by(7)
    assert watermark.position == 7
    span = watermark.open(7, 9, 2)
    assert not watermark.pass_by(10)
    assert watermark.position == 7
    watermark.settle(span)
    assert watermark.position == 10
    assert not watermark.pass_by(3)


def test_units_come_in_order() -> None:
    """Offsets that were read before aren't taken for new ones."""
    watermark = Watermark(0)
    watermark.open(3, 8, 5)
    with pytest.raises(ValueError, match="don't follow"):
        watermark.open(7, 9, 2)
    with pytest.raises(ValueError, match="don't follow"):
        watermark.open(9, 9, 0)


def test_settling_twice_is_settling_once() -> None:
    """A second word about the same unit moves nothing and counts nothing."""
    watermark = Watermark(0)
    first = watermark.open(0, 1, 1)
    second = watermark.open(1, 2, 1)
    watermark.settle(second)
    assert watermark.settle(second) == []
    assert (watermark.position, watermark.window) == (0, 2)
    watermark.settle(first)
    assert watermark.settle(first) == []
    assert (watermark.position, watermark.window) == (2, 0)


def test_a_rewind_forgets_what_was_read_after_it() -> None:
    """A unit that is to be read again takes all after it along, settled or not; what was settled
    before stays so.
    """
    watermark = Watermark(0)
    first, second, third = (watermark.open(at, at + 10, 10) for at in (0, 10, 20))
    watermark.settle(third)
    assert watermark.rewind(second, 10) == [third, second]
    assert (watermark.read, watermark.position, watermark.window) == (10, 0, 10)
    watermark.settle(first)
    assert watermark.position == 10
    watermark.settle(second)
    assert watermark.position == 10
