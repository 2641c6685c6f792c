"""Records of lines and JSON values, and rows of CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import install_extra
from forwarder.sources.files.framing import MAX_COLUMNS, NumberedRecords, frame
from forwarder.sources.files.record_blocks import DamagedContent, Framing, ReadOptions
from forwarder.sources.files.unpacking import PeekedStream
from tests.support.cases import cases
from tests.support.packed import WatchedStream

LIMIT: Final = 1 << 20


def salvaged(framed: Iterator[NumberedRecords]) -> tuple[list[tuple[int, bytes]], str]:
    """The records with their lines, and why there are no more."""
    numbered: list[tuple[int, bytes]] = []
    try:
        for records, numbers in framed:
            numbered += zip(numbers, records, strict=True)
    except DamagedContent as error:
        return numbered, str(error)
    return numbered, ""


def read(source: WatchedStream, options: ReadOptions) -> Iterator[NumberedRecords]:
    """The records of a stream."""
    return frame("x", PeekedStream(source.read), None, options)


def framed(
    framing: Framing,
    content: bytes,
    limit: int = LIMIT,
    size: int = 64,
    failure: Exception | None = None,
) -> list[tuple[int, bytes]]:
    """The records with their lines."""
    records, why = salvaged(
        read(
            WatchedStream(content, failure=failure),
            ReadOptions(framing, max_record=limit, block_bytes=size),
        )
    )
    assert why == ("" if failure is None else str(failure))
    return records


@settings(max_examples=150, deadline=None)
@given(
    content=st.text("ab\r\n\n", max_size=60).map(str.encode),
    size=st.integers(1, 30),
    limit=st.integers(1, 12),
)
def test_lines_are_those_of_split(content: bytes, size: int, limit: int) -> None:
    """However it is read, the lines are the content's parts between line feeds, without a return
    at their ends, cut to the limit.
    """
    parts = [
        (number, part.removesuffix(b"\r")) for number, part in enumerate(content.split(b"\n"), 1)
    ]
    expected = [(number, part[:limit]) for number, part in parts if part]
    records = framed(Framing.LINES, content, limit, size)
    assert records == expected


def test_a_mark_of_the_byte_order_is_no_content() -> None:
    """What Windows puts before UTF-8 is left out, once."""
    assert framed(Framing.LINES, b"\xef\xbb\xbf{}\n\xef\xbb\xbf") == [
        (1, b"{}"),
        (2, b"\xef\xbb\xbf"),
    ]
    assert framed(Framing.JSON, b"\xef\xbb\xbf[1]") == [(1, b"1")]


def test_bytes_that_are_not_utf8_are_kept() -> None:
    """Whether a record is valid is the converter's to say."""
    assert framed(Framing.LINES, b'{"a":"\xff"}\n\0\n') == [(1, b'{"a":"\xff"}'), (2, b"\0")]


def test_a_last_line_without_end_counts_only_in_a_whole_stream() -> None:
    """Where the stream broke off, half a line isn't given: it might look whole."""
    assert framed(Framing.LINES, b"1\n23") == [(1, b"1"), (2, b"23")]
    assert framed(Framing.LINES, b"1\n23", failure=DamagedContent("it is cut off")) == [(1, b"1")]


def test_a_long_line_is_never_held_whole() -> None:
    """Of a line without end, the limit's worth is kept, and reads stay small."""
    source = WatchedStream(b"x" * 300_000 + b"\nafter\n")
    result = salvaged(read(source, ReadOptions(Framing.LINES, max_record=100, block_bytes=1000)))
    assert result == ([(1, b"x" * 100), (2, b"after")], "")
    assert max(source.asked) <= 1000


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\{}[],é\n', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('b"}\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
OBJECTS: Final = st.lists(st.dictionaries(st.text('k"{', max_size=3), JSON, max_size=3), max_size=5)


@settings(max_examples=100, deadline=None)
@given(
    objects=OBJECTS,
    size=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
    is_array=st.booleans(),
)
def test_objects_of_an_array_or_in_a_row_are_found(
    objects: list[Any], size: int, indent: int | None, is_array: bool
) -> None:
    """Over however many lines they are written, and whatever is in their strings."""
    texts = [json.dumps(value, indent=indent, ensure_ascii=False) for value in objects]
    content = (f"[\n{','.join(texts)}\n]\n" if is_array else "\n".join(texts)).encode()
    records = framed(Framing.JSON, content, LIMIT, size)
    assert [record.decode() for _, record in records] == texts
    assert [content.split(b"\n")[line - 1].count(b"{") > 0 for line, _ in records] == [True] * len(
        texts
    )


@cases("size", [1, 7, 64])
def test_lines_of_values_are_where_they_begin(size: int) -> None:
    """The line is that of the opening bracket; what is no object is a record too, for the
    converter to refuse.
    """
    content = b'\n[ {"a":\n1}, null ,\n"text",[\n2], {"b":2}\n,3]\n oops [{}]'
    expected = [
        (2, b'{"a":\n1}'),
        (3, b'null ,\n"text"'),
        (4, b"[\n2]"),
        (5, b'{"b":2}'),
        (6, b"3"),
        (7, b"oops"),
        (7, b"{}"),
    ]
    assert framed(Framing.JSON, content, LIMIT, size) == expected


@pytest.mark.parametrize("size", [16, 1000])
def test_values_over_the_limit_are_cut_and_those_after_them_are_read(size: int) -> None:
    """A long string with escapes, and a long list, don't hide where their object ends."""
    long = b'{"a":"' + b'\\"}\\\\' * 300 + b'"}'
    wide = b'{"a":[' + b'{"b":1},' * 300 + b"2]}"
    records = framed(Framing.JSON, b"[" + long + b",\n" + wide + b",\n{}]", 50, size)
    assert records == [(1, long[:50]), (2, wide[:50]), (3, b"{}")]


@cases("content", [b'[{"a":1},', b'[{"a":1},{"b"', b'{"a":1}{"b":"'])
def test_values_without_an_end_are_a_failure(content: bytes) -> None:
    """What was whole is given, and then the stream fails."""
    records, why = salvaged(read(WatchedStream(content), ReadOptions(Framing.JSON, block_bytes=4)))
    assert ([record for _, record in records], why) == ([b'{"a":1}'], "it ends inside a JSON value")


@settings(max_examples=100, deadline=None)
@given(
    objects=OBJECTS,
    size=st.integers(1, 30),
    limit=st.integers(1, 20),
    indent=st.sampled_from([None, 1]),
)
def test_a_limit_cuts_values_and_changes_nothing_else(
    objects: list[Any], size: int, limit: int, indent: int | None
) -> None:
    """The same objects on the same lines, cut."""
    content = ("[" + ",".join(json.dumps(value, indent=indent) for value in objects) + "]").encode()
    whole = framed(Framing.JSON, content, LIMIT, size)
    assert framed(Framing.JSON, content, limit, size) == [
        (line, record[:limit]) for line, record in whole
    ]


CSV = ReadOptions(Framing.CSV)
SMALL = replace(CSV, block_bytes=7)


def rows(
    content: bytes, options: ReadOptions = SMALL, failure: Exception | None = None
) -> list[tuple[int, bytes]]:
    """The records of CSV with their lines."""
    records, why = salvaged(read(WatchedStream(content, failure=failure), options))
    assert why == ("" if failure is None else str(failure))
    return records


def test_rows_are_objects_of_texts_with_the_line_they_begin_on() -> None:
    """Line breaks within quotes count, empty lines are skipped, and so is
    the mark of the byte order.
    """
    content = b'\xef\xbb\xbfid,note\r\n1,"a\r\nb ""c"""\r\n\r\n2,\xc3\xa9\n3,last'
    expected = [
        (2, {"id": "1", "note": 'a\r\nb "c"'}),
        (5, {"id": "2", "note": "é"}),
        (6, {"id": "3", "note": "last"}),
    ]
    assert [(line, json.loads(record)) for line, record in rows(content)] == expected


def test_the_dialect_can_be_said() -> None:
    """Another delimiter and another quote."""
    records = rows(b"a;b\n'1;2';3\n", replace(CSV, delimiter=";", quote="'"))
    assert records == [(2, b'{"a":"1;2","b":"3"}')]


def test_rows_that_fit_no_object_are_given_as_they_are() -> None:
    """Too short, too long, not UTF-8: they are refused where they stand, and the rows after them
    are read.
    """
    content = b"a,b\n1\n1,2,3\n\xff,2\n1,2\n"
    assert rows(content) == [(2, b"1"), (3, b"1,2,3"), (4, b"\xff,2"), (5, b'{"a":"1","b":"2"}')]


@cases(
    ("header", "why"),
    [
        (
            b",".join(b"%d" % number for number in range(500_000)),
            "has 500,000 columns, of at most 16,384",
        ),
        (
            b",".join([b"x" * 1000 + b"%d" % number for number in range(2000)]),
            "more than 1 MiB together",
        ),
        (
            b",".join([b"%d" % number for number in range(MAX_COLUMNS - 1)] + [b"7"]),
            "names '7' twice",
        ),
    ],
    ids=["columns", "names", "twice"],
)
def test_columns_are_bounded(header: bytes, why: str) -> None:
    """Nothing is made of a header that no export has; the file is reported as broken."""
    records, failure = salvaged(read(WatchedStream(header + b"\n1,2\n"), CSV))
    assert records == []
    assert why in failure


def test_as_many_columns_as_a_spreadsheet_has() -> None:
    """Are read."""
    header, row = (b",".join(b"%d" % number for number in range(MAX_COLUMNS)) for _ in range(2))
    [(_, record)] = rows(header + b"\n" + row + b"\n", CSV)
    assert len(json.loads(record)) == MAX_COLUMNS


def test_an_open_quote_takes_no_more_than_the_limit() -> None:
    """What it swallowed is one refused record, and reading continues behind it."""
    filler = b"x,y\n" * 400
    records = rows(
        b'a,b\n1,"open\n' + filler + b"1,2\n", replace(CSV, max_record=1000, block_bytes=1 << 16)
    )
    assert records[0] == (2, (b'1,"open\n' + filler)[:1000])
    assert records[-1][1] == b'{"a":"1","b":"2"}'


def test_an_open_quote_at_the_end_is_refused_or_cut_off() -> None:
    """In a whole file the row is refused; where the stream broke off it isn't given."""
    assert rows(b'a,b\n1,"2\n') == [(2, b'1,"2')]
    assert rows(b'a,b\n1,2\n1,"2\n', failure=DamagedContent("it is cut off")) == [
        (2, b'{"a":"1","b":"2"}')
    ]
    assert rows(b"a,b\n1,2\n1,2", failure=DamagedContent("it is cut off")) == [
        (2, b'{"a":"1","b":"2"}')
    ]


@pytest.mark.parametrize(
    ("content", "failure"),
    [
        (b"a,b,a\n1,2,3\n", "the first row names 'a' twice"),
        (b"\xff,b\n", "the first row isn't UTF-8"),
    ],
)
def test_a_header_that_names_no_columns_is_a_failure(content: bytes, failure: str) -> None:
    """Guessing which of two columns is meant would be worse."""
    assert salvaged(read(WatchedStream(content), CSV)) == ([], failure)


CELL = st.text('ab",;\r\n é', max_size=6)


@settings(max_examples=80, deadline=None)
@given(table=st.lists(st.tuples(CELL, CELL), max_size=6), size=st.integers(1, 20))
def test_what_the_csv_module_writes_is_read(table: list[tuple[str, str]], size: int) -> None:
    """Whatever is in the cells, and however it is read."""
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("first", "second"), *table])
    records = rows(text.getvalue().encode(), replace(CSV, block_bytes=size))
    assert [tuple(json.loads(record).values()) for _, record in records] == table


def parquet_file(columns: dict[str, Any]) -> io.BytesIO:
    """A Parquet file in memory."""
    made = io.BytesIO()
    parquet.write_table(pa.table(columns), made, row_group_size=2)
    made.seek(0)
    return made


def parquet_rows(file: io.BytesIO) -> Iterator[NumberedRecords]:
    """The records of a Parquet file."""
    return frame("x", PeekedStream(file.read), file, ReadOptions())


def parquet_records(file: io.BytesIO) -> tuple[list[tuple[int, Any]], str]:
    """The rows with their numbers, and why there are no more."""
    records, failure = salvaged(parquet_rows(file))
    return [(number, json.loads(record)) for number, record in records], failure


def test_parquet_rows_keep_their_types() -> None:
    """Instants are ISO 8601 in UTC whatever their unit and zone, local times have no zone, also
    within lists and structs.
    """
    time = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    columns = {
        "zoned": pa.array([time], pa.timestamp("ns", "Europe/Paris")),
        "local": pa.array([time.replace(tzinfo=None)], pa.timestamp("ns")),
        "seen": pa.array(
            [[{"at": time}]], pa.list_(pa.struct([("at", pa.timestamp("ms", "UTC"))]))
        ),
        "name": pa.array(["é"]).dictionary_encode(),
        "price": pa.array([Decimal("1.10")]),
        "day": pa.array([date(2025, 1, 2)]),
        "none": pa.array([None], pa.int64()),
        "big": pa.array([2**62 + 1]),
        "traits": pa.array([[("plan", "pro")]], pa.map_(pa.string(), pa.string())),
    }
    expected = {
        "zoned": "2025-01-02T03:04:05.678901Z",
        "local": "2025-01-02T03:04:05.678901",
        "seen": [{"at": "2025-01-02T03:04:05.678000Z"}],
        "name": "é",
        "price": 1.10,
        "day": "2025-01-02",
        "none": None,
        "big": 2**62 + 1,
        "traits": {"plan": "pro"},
    }
    assert parquet_records(parquet_file(columns)) == ([(1, expected)], "")


def test_parquet_rows_are_numbered_from_one() -> None:
    """The number continues over batches and groups of rows."""
    records, failure = parquet_records(parquet_file({"n": list(range(2500))}))
    assert (records, failure) == ([(n + 1, {"n": n}) for n in range(2500)], "")


def test_parquet_rows_that_no_object_can_be_made_of_are_refused_alone() -> None:
    """Text that isn't UTF-8 and times that no calendar has don't stop the rows around them."""
    text = pa.array([b"a", b"\xff", b"b", b"c"]).view(pa.string())
    file = parquet_file(
        {"text": text, "at": pa.array([0, 0, 1 << 60, 0]).view(pa.timestamp("us", "UTC"))}
    )
    (records, numbers), *rest = parquet_rows(file)
    assert (list(numbers), rest) == ([1, 2, 3, 4], [])
    good = b'{"text":"a","at":"1970-01-01T00:00:00Z"}'
    other = b'{"text":"c","at":"1970-01-01T00:00:00Z"}'
    assert (records[0], records[3]) == (good, other)
    assert [record.startswith(b"a row that can't be read: ") for record in records] == [
        False,
        True,
        True,
        False,
    ]


def test_a_cut_parquet_file_is_a_failure() -> None:
    """Its directory is at the end, so nothing of it can be read."""
    records, failure = parquet_records(io.BytesIO(parquet_file({"n": [1, 2, 3]}).getvalue()[:-20]))
    assert records == []
    assert failure.startswith("the Parquet file is damaged")


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is part of the extra `import`."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match="without pyarrow") as caught:
        list(parquet_rows(io.BytesIO()))
    assert caught.value.hint == install_extra("import")
