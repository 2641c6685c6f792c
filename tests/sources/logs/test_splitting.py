"""Whole records from bytes: however they come in pieces, and from wherever reading resumes, the
records and their offsets are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.patterns import LinearPattern
from forwarder.sources.logs.splitting import LogRecords, Splitter

MAX: Final = 64
START: Final = LinearPattern(rb"^\d")


def plain(offset: int) -> Splitter:
    """A record a line."""
    return Splitter(offset, MAX)


def multiline(offset: int) -> Splitter:
    """A record from a line that begins with a digit to the next one."""
    return Splitter(offset, MAX, START)


def cri(offset: int) -> Splitter:
    """CRI's lines."""
    return Splitter(offset, MAX, cri=True)


def cri_multiline(offset: int) -> Splitter:
    """Records of several lines in containers."""
    return Splitter(offset, MAX, START, cri=True)


KINDS: Final = [plain, multiline, cri, cri_multiline]
LINES: Final = st.sampled_from(
    [
        *(
            b"",
            b"a",
            b"1 a",
            b"  at b",
            b"x" * 63,
            b"y" * 64,
            b"z" * 65,
            b"w" * 200,
            b"5" * 64,
            b"\xef\xbb\xbf1",
            b"a\rb",
            b"\xff\x00",
        ),
        *(
            b"t stdout F 1 whole",
            b"t stdout P 1 part",
            b"t stderr P 2 part",
            b"t stderr F rest",
            b"t stdout F ",
            b"t stdout F",
            b"t stderr P",
        ),
        *(b"\0\0", b"\0\0a", b"\0" * 100 + b"b", b"\0" + b"c" * 70, b"\0t stdout F 3"),
        *(
            b"t stdout P:x " + b"p" * 60,
            b"t stderr F " + b"q" * 80,
            b"t stdout F   at c",
            b"t stdin F 1",
        ),
    ]
)
FILES: Final = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n"])), max_size=30).map(
    lambda lines: b"".join(line + end for line, end in lines)
)
TAILS: Final = st.one_of(st.just(b""), LINES)


def all_of(
    splitter: Splitter, feeds: Iterable[bytes]
) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]], list[LogRecords]]:
    """The records and the overlong ones of some feeds and the end, and what was given at each."""
    given = [splitter.feed(data, 0.0) for data in feeds]
    given.append(splitter.finish())
    records = [pair for output in given for pair in zip(output.offsets, output.values, strict=True)]
    return records, [pair for output in given for pair in output.overlong], given


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The data in pieces."""
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(bounds)]


def naive(data: bytes) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """What plain lines are, a line at a time."""
    records = []
    overlong = []
    offset = 0
    for line in data.split(b"\n"):
        value = line.removesuffix(b"\r")
        if offset == 0:
            value = value.removeprefix(b"\xef\xbb\xbf")
        stripped = value.lstrip(b"\0")
        begin = offset + len(value) - len(stripped)
        if len(stripped) > MAX:
            overlong.append((begin, stripped[:MAX]))
        elif stripped:
            records.append((begin, stripped))
        offset += len(line) + 1
    return records, overlong


@given(FILES, TAILS, st.lists(st.integers(0, 2000), max_size=12))
def test_plain_lines_are_what_a_simple_loop_finds(
    data: bytes, tail: bytes, places: Sequence[int]
) -> None:
    """With their offsets; an unfinished line is whole at the end."""
    records, overlong, _ = all_of(plain(0), cut(data + tail, places))
    assert (records, overlong) == naive(data + tail)


@pytest.mark.parametrize("kind", KINDS)
@given(FILES, TAILS, st.lists(st.integers(0, 2000), max_size=12))
def test_records_dont_depend_on_how_reads_are_split(
    kind: Callable[[int], Splitter], data: bytes, tail: bytes, places: Sequence[int]
) -> None:
    """All at once, in pieces, or a byte at a time."""
    data += tail
    whole = all_of(kind(0), [data])
    pieces = all_of(kind(0), cut(data, places))
    bytewise = all_of(kind(0), [data[at : at + 1] for at in range(len(data))])
    assert pieces[:2] == whole[:2] == bytewise[:2]
    ends = [output.end for output in pieces[2]]
    assert ends == sorted(ends)
    assert ends[-1] == len(data)
    assert sum(output.lines for output in pieces[2]) == data.count(b"\n") + (
        data.rpartition(b"\n")[2].strip(b"\0") != b""
    )
    offsets = [offset for offset, _ in whole[0]]
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("kind", KINDS)
@given(FILES, TAILS, st.lists(st.integers(0, 2000), max_size=12))
def test_reading_resumes_anywhere(
    kind: Callable[[int], Splitter], data: bytes, tail: bytes, places: Sequence[int]
) -> None:
    """A new splitter that begins at an `end` gives the records that had not come, and no other."""
    data += tail
    records, overlong, _ = all_of(kind(0), [data])
    splitter = kind(0)
    read_records = list[tuple[int, bytes]]()
    long = list[tuple[int, bytes]]()
    for piece in cut(data, places):
        given = splitter.feed(piece, 0.0)
        read_records += zip(given.offsets, given.values, strict=True)
        long += given.overlong
        more, longer, _ = all_of(kind(given.end), [data[given.end :]])
        assert read_records + more == records
        assert long + longer == overlong


@pytest.mark.parametrize("kind", KINDS)
@given(FILES)
def test_memory_is_bounded(kind: Callable[[int], Splitter], data: bytes) -> None:
    """Whatever comes, and however long nothing of it is whole."""
    splitter = kind(0)
    for line in data.splitlines(keepends=True):
        splitter.feed(line, 0.0)
        assert splitter.held <= 4 * MAX + 800
    for _ in range(10):
        splitter.feed(b"x" * 1000, 0.0)
        assert splitter.held <= 5 * MAX + 800


def test_an_unfinished_line_is_kept() -> None:
    """Until its end comes; the position stays before it."""
    splitter = Splitter(100, MAX)
    assert splitter.feed(b"one\ntw", 0.0) == LogRecords([b"one"], [100], 104, [], 1)
    assert splitter.held == 2
    assert splitter.feed(b"o", 0.0) == LogRecords([], [], 104, [], 0)
    assert splitter.feed(b"\r\n\n", 0.0) == LogRecords([b"two"], [104], 110, [], 2)
    assert splitter.finish() == LogRecords([], [], 110, [], 0)


def test_an_overlong_line() -> None:
    """Its first bytes are given when it has ended; its rest isn't kept."""
    splitter = Splitter(0, 4)
    assert splitter.feed(b"ab\ncdefghi", 0.0) == LogRecords([b"ab"], [0], 3, [], 1)
    for _ in range(100):
        assert splitter.feed(b"j" * 100, 0.0).end == 3
        assert splitter.held == 6
    assert splitter.feed(b"\nk\n", 0.0) == LogRecords([b"k"], [10_011], 10_013, [(3, b"cdef")], 2)
    assert splitter.feed(b"l" * 9, 0.0).end == 10_013
    assert splitter.finish() == LogRecords([], [], 10_022, [(10_013, b"llll")], 1)


def test_nuls_before_a_line_are_no_part_of_it() -> None:
    """The hole that a truncated file has in front of what is written next, however large it is."""
    splitter = Splitter(0, MAX)
    assert splitter.feed(b"\0" * 1000, 0.0) == LogRecords([], [], 1000, [], 0)
    assert splitter.held == 0
    assert splitter.feed(b"\0\0one\ntwo\n", 0.0) == LogRecords(
        [b"one", b"two"], [1002, 1006], 1010, [], 2
    )


def test_records_of_several_lines() -> None:
    """Each begins where the pattern is found; lines before the first are a record; empty lines
    stay inside.
    """
    splitter = Splitter(0, 1000, START, 5.0)
    given = splitter.feed(b"tail of\nan old one\n1 Error\n  at a\n\n\n  at b\n\n2 next\n", 10.0)
    assert given.values == [b"tail of\nan old one", b"1 Error\n  at a\n\n\n  at b"]
    assert given.offsets == [0, 19]
    assert given.end == 44
    assert splitter.overdue(14.9) == LogRecords([], [], 44, [], 0)
    assert splitter.overdue(15.0) == LogRecords([b"2 next"], [44], 51, [], 0)
    assert splitter.overdue(100.0) == LogRecords([], [], 51, [], 0)
    assert splitter.feed(b"  at c\n", 100.0).end == 51
    assert splitter.finish() == LogRecords([b"  at c"], [51], 58, [], 0)


def test_a_record_of_several_lines_over_the_limit() -> None:
    """It is cut; the next one isn't."""
    splitter = Splitter(0, 10, START)
    given = splitter.feed(b"1 abc\n" + b"defgh\n" * 100 + b"2\n3\n", 0.0)
    assert given.overlong == [(0, b"1 abc\ndefg")]
    assert given.values == [b"2"]


def test_parts_of_cri_are_joined_by_stream() -> None:
    """The record has the first part's header; those behind an open one wait,
    and so does the position.
    """
    splitter = Splitter(0, 1000, cri=True)
    first = b"t1 stdout P ab\nt2 stderr F whole\nt3 stdout P cd\n"
    assert splitter.feed(first, 0.0) == LogRecords([], [], 0, [], 3)
    given = splitter.feed(b"t4 stdout F \nt5 stdout F e\nnot of CRI\n", 0.0)
    assert given.values == [
        b"t1 stdout F abcd",
        b"t2 stderr F whole",
        b"t5 stdout F e",
        b"not of CRI",
    ]
    assert given.offsets == [0, 15, 61, 75]
    assert given.end == 86


def test_a_part_of_cri_without_an_end() -> None:
    """It is whole when its time is over, or when too much waits behind it."""
    splitter = Splitter(0, 1000, None, 5.0, cri=True)
    splitter.feed(b"t stdout P ab\nt stderr F c\n", 0.0)
    assert splitter.overdue(5.0).values == [b"t stdout F ab", b"t stderr F c"]
    splitter.feed(b"t stdout P ab\n", 10.0)
    behind = splitter.feed(b"t stderr F c\n" * 100, 10.0)
    assert behind.values[:2] == [b"t stdout F ab", b"t stderr F c"]
    assert len(behind.values) == 101


def test_records_of_several_lines_in_containers() -> None:
    """The pattern is searched in the content; lines of other streams don't belong to it."""
    splitter = Splitter(0, 1000, START, cri=True)
    lines = (
        b"t stdout F 1 Error\nt stderr F 7 other\nt stdout F   at a\nt stdout P   at \nt "
        b"stdout F b\nt stdout F 2\n"
    )
    given = splitter.feed(lines, 0.0)
    assert given.values == [b"t stdout F 1 Error\n  at a\n  at b"]
    assert splitter.finish().values == [b"t stderr F 7 other", b"t stdout F 2"]
