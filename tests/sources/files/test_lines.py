"""Records of text are told from each other, whatever they contain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.files.guarded import GuardedStream
from forwarder.sources.files.lines import NumberedRecords, read_lines, read_values
from forwarder.sources.files.options import DamagedContent
from tests.support.packed import Watched

Framer = Callable[[GuardedStream, int, int], Iterator[NumberedRecords]]
LIMIT: Final = 1 << 20


def framed(framer: Framer, content: bytes, limit: int = LIMIT, size: int = 64, failure: Exception | None = None) -> list[tuple[int, bytes]]:
    """The records with their lines."""
    stream = GuardedStream(b"", Watched(content, failure=failure))
    return [pair for records, numbers in framer(stream, limit, size) for pair in zip(numbers, records, strict=True)]


@settings(max_examples=150, deadline=None)
@given(content=st.text("ab\r\n\n", max_size=60).map(str.encode), size=st.integers(1, 30), limit=st.integers(1, 12))
def test_lines_are_those_of_split(content: bytes, size: int, limit: int) -> None:
    """However it is read, the lines are the content's parts between line feeds, without a return at their ends, cut to the limit."""
    parts = [(number, part.removesuffix(b"\r")) for number, part in enumerate(content.split(b"\n"), 1)]
    expected = [(number, part[:limit]) for number, part in parts if part]
    found = framed(read_lines, content, limit, size)
    assert found == expected


def test_a_mark_of_the_byte_order_is_no_content() -> None:
    """What Windows puts before UTF-8 is left out, once."""
    assert framed(read_lines, b"\xef\xbb\xbf{}\n\xef\xbb\xbf") == [(1, b"{}"), (2, b"\xef\xbb\xbf")]
    assert framed(read_values, b"\xef\xbb\xbf[1]") == [(1, b"1")]


def test_bytes_that_are_not_utf8_are_kept() -> None:
    """Whether a record is valid is the converter's to say."""
    assert framed(read_lines, b'{"a":"\xff"}\n\0\n') == [(1, b'{"a":"\xff"}'), (2, b"\0")]


def test_a_last_line_without_end_counts_only_in_a_whole_stream() -> None:
    """Where the stream broke off, half a line isn't given: it might look whole."""
    assert framed(read_lines, b"1\n23") == [(1, b"1"), (2, b"23")]
    assert framed(read_lines, b"1\n23", failure=DamagedContent("it is cut off")) == [(1, b"1")]


def test_a_long_line_is_never_held_whole() -> None:
    """Of a line without end, the limit's worth is kept, and reads stay small."""
    source = Watched(b"x" * 300_000 + b"\nafter\n")
    found = [pair for records, numbers in read_lines(GuardedStream(b"", source), 100, 1000) for pair in zip(numbers, records, strict=True)]
    assert found == [(1, b"x" * 100), (2, b"after")]
    assert max(source.asked) <= 1000


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\{}[],é\n', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('b"}\\', max_size=3), inner, max_size=3),
    max_leaves=6,
)
OBJECTS: Final = st.lists(st.dictionaries(st.text('k"{', max_size=3), JSON, max_size=3), max_size=5)


@settings(max_examples=100, deadline=None)
@given(objects=OBJECTS, size=st.integers(1, 40), indent=st.sampled_from([None, 1]), is_array=st.booleans())
def test_objects_of_an_array_or_in_a_row_are_found(objects: list[Any], size: int, indent: int | None, is_array: bool) -> None:
    """Over however many lines they are written, and whatever is in their strings."""
    texts = [json.dumps(each, indent=indent, ensure_ascii=False) for each in objects]
    content = (f"[\n{','.join(texts)}\n]\n" if is_array else "\n".join(texts)).encode()
    found = framed(read_values, content, LIMIT, size)
    assert [record.decode() for _, record in found] == texts
    assert [content.split(b"\n")[line - 1].count(b"{") > 0 for line, _ in found] == [True] * len(texts)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_lines_of_values_are_where_they_begin(size: int) -> None:
    """The line is that of the opening bracket; what is no object is a record too, for the converter to refuse."""
    content = b'\n[ {"a":\n1}, null ,\n"text",[\n2], {"b":2}\n,3]\n oops [{}]'
    expected = [(2, b'{"a":\n1}'), (3, b'null ,\n"text"'), (4, b"[\n2]"), (5, b'{"b":2}'), (6, b"3"), (7, b"oops"), (7, b"{}")]
    assert framed(read_values, content, LIMIT, size) == expected


@pytest.mark.parametrize("size", [16, 1000])
def test_values_over_the_limit_are_cut_and_those_after_them_are_read(size: int) -> None:
    """A long string with escapes, and a long list, don't hide where their object ends."""
    long = b'{"a":"' + b'\\"}\\\\' * 300 + b'"}'
    wide = b'{"a":[' + b'{"b":1},' * 300 + b"2]}"
    found = framed(read_values, b"[" + long + b",\n" + wide + b",\n{}]", 50, size)
    assert found == [(1, long[:50]), (2, wide[:50]), (3, b"{}")]


@pytest.mark.parametrize("content", [b'[{"a":1},', b'[{"a":1},{"b"', b'{"a":1}{"b":"'])
def test_values_without_an_end_are_a_failure(content: bytes) -> None:
    """What was whole is given, and then the stream fails."""
    stream = GuardedStream(b"", Watched(content))
    assert [record for records, _ in read_values(stream, LIMIT, 4) for record in records] == [b'{"a":1}']
    assert stream.failure == "it ends inside a JSON value"


@settings(max_examples=100, deadline=None)
@given(objects=OBJECTS, size=st.integers(1, 30), limit=st.integers(1, 20), indent=st.sampled_from([None, 1]))
def test_a_limit_cuts_values_and_changes_nothing_else(objects: list[Any], size: int, limit: int, indent: int | None) -> None:
    """The same objects on the same lines, cut."""
    content = ("[" + ",".join(json.dumps(each, indent=indent) for each in objects) + "]").encode()
    whole = framed(read_values, content, LIMIT, size)
    assert framed(read_values, content, limit, size) == [(line, record[:limit]) for line, record in whole]
