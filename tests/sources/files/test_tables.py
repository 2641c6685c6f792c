"""Rows of CSV and Parquet become JSON objects."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.guarded import GuardedStream
from forwarder.sources.files.options import DamagedContent, ReadOptions
from forwarder.sources.files.tables import MAX_COLUMNS, read_csv, read_parquet
from tests.support.packed import Watched


def rows(
    content: bytes, options: ReadOptions | None = None, delimiter: str = ",", failure: Exception | None = None
) -> list[tuple[int, bytes]]:
    """The records of CSV with their lines."""
    stream = GuardedStream(b"", Watched(content, failure=failure))
    found = read_csv(stream, options or ReadOptions(block_bytes=7), delimiter)
    return [pair for records, numbers in found for pair in zip(numbers, records, strict=True)]


def test_rows_are_objects_of_texts_with_the_line_they_begin_on() -> None:
    """Line breaks within quotes count, empty lines are skipped, and so is the mark of the byte order."""
    content = b'\xef\xbb\xbfid,note\r\n1,"a\r\nb ""c"""\r\n\r\n2,\xc3\xa9\n3,last'
    expected = [(2, {"id": "1", "note": 'a\r\nb "c"'}), (5, {"id": "2", "note": "é"}), (6, {"id": "3", "note": "last"})]
    assert [(line, json.loads(record)) for line, record in rows(content)] == expected


def test_the_dialect_can_be_said() -> None:
    """Another delimiter and another quote."""
    found = rows(b"a;b\n'1;2';3\n", ReadOptions(quote="'"), ";")
    assert found == [(2, b'{"a":"1;2","b":"3"}')]


def test_rows_that_fit_no_object_are_given_as_they_are() -> None:
    """Too short, too long, not UTF-8: they are refused where they stand, and the rows after them are read."""
    content = b"a,b\n1\n1,2,3\n\xff,2\n1,2\n"
    assert rows(content) == [(2, b"1"), (3, b"1,2,3"), (4, b"\xff,2"), (5, b'{"a":"1","b":"2"}')]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b",".join(b"%d" % number for number in range(500_000)), "has 500,000 columns, of at most 16,384"),
        (b",".join([b"x" * 1000 + b"%d" % number for number in range(2000)]), "more than 1 MiB together"),
        (b",".join([b"%d" % number for number in range(MAX_COLUMNS - 1)] + [b"7"]), "names '7' twice"),
    ],
    ids=["columns", "names", "twice"],
)
def test_columns_are_bounded(header: bytes, why: str) -> None:
    """Nothing is made of a header that no export has; the file is told as broken."""
    stream = GuardedStream(b"", Watched(header + b"\n1,2\n"))
    assert list(read_csv(stream, ReadOptions(), ",")) == []
    assert stream.failure is not None
    assert why in stream.failure


def test_as_many_columns_as_a_spreadsheet_has() -> None:
    """Are read."""
    header, row = (b",".join(b"%d" % number for number in range(MAX_COLUMNS)) for _ in range(2))
    [(_, record)] = rows(header + b"\n" + row + b"\n", ReadOptions())
    assert len(json.loads(record)) == MAX_COLUMNS


def test_an_open_quote_takes_no_more_than_the_limit() -> None:
    """What it swallowed is one refused record, and reading goes on behind it."""
    filler = b"x,y\n" * 400
    found = rows(b'a,b\n1,"open\n' + filler + b"1,2\n", ReadOptions(max_record=1000, block_bytes=1 << 16))
    assert found[0] == (2, (b'1,"open\n' + filler)[:1000])
    assert found[-1][1] == b'{"a":"1","b":"2"}'


def test_an_open_quote_at_the_end_is_refused_or_cut_off() -> None:
    """In a whole file the row is refused; where the stream broke off it isn't given."""
    assert rows(b'a,b\n1,"2\n') == [(2, b'1,"2')]
    assert rows(b'a,b\n1,2\n1,"2\n', failure=DamagedContent("it is cut off")) == [(2, b'{"a":"1","b":"2"}')]
    assert rows(b"a,b\n1,2\n1,2", failure=DamagedContent("it is cut off")) == [(2, b'{"a":"1","b":"2"}')]


@pytest.mark.parametrize(
    ("content", "failure"), [(b"a,b,a\n1,2,3\n", "the first row names 'a' twice"), (b"\xff,b\n", "the first row isn't UTF-8")]
)
def test_a_header_that_names_no_columns_is_a_failure(content: bytes, failure: str) -> None:
    """Guessing which of two columns is meant would be worse."""
    stream = GuardedStream(b"", Watched(content))
    assert list(read_csv(stream, ReadOptions(), ",")) == []
    assert stream.failure == failure


CELL = st.text('ab",;\r\n é', max_size=6)


@settings(max_examples=80, deadline=None)
@given(table=st.lists(st.tuples(CELL, CELL), max_size=6), size=st.integers(1, 20))
def test_what_the_csv_module_writes_is_read(table: list[tuple[str, str]], size: int) -> None:
    """Whatever is in the cells, and however it is read."""
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("first", "second"), *table])
    found = rows(text.getvalue().encode(), ReadOptions(block_bytes=size))
    assert [tuple(json.loads(record).values()) for _, record in found] == table


def parquet_file(columns: dict[str, Any]) -> io.BytesIO:
    """A Parquet file in memory."""
    made = io.BytesIO()
    parquet.write_table(pa.table(columns), made, row_group_size=2)
    made.seek(0)
    return made


def parquet_records(file: io.BytesIO) -> tuple[list[tuple[int, Any]], str | None]:
    """The rows with their numbers, and why there are no more."""
    stream = GuardedStream(b"", file)
    found = [pair for records, numbers in read_parquet(file, stream) for pair in zip(numbers, map(json.loads, records), strict=True)]
    return found, stream.failure


def test_parquet_rows_keep_their_types() -> None:
    """Instants are ISO 8601 in UTC whatever their unit and zone, local times have no zone, also within lists and structs."""
    time = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    columns = {
        "zoned": pa.array([time], pa.timestamp("ns", "Europe/Paris")),
        "local": pa.array([time.replace(tzinfo=None)], pa.timestamp("ns")),
        "seen": pa.array([[{"at": time}]], pa.list_(pa.struct([("at", pa.timestamp("ms", "UTC"))]))),
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
    assert parquet_records(parquet_file(columns)) == ([(1, expected)], None)


def test_parquet_rows_are_numbered_from_one() -> None:
    """The number goes on over batches and groups of rows."""
    found, failure = parquet_records(parquet_file({"n": list(range(2500))}))
    assert (found, failure) == ([(n + 1, {"n": n}) for n in range(2500)], None)


def test_parquet_rows_that_no_object_can_be_made_of_are_refused_alone() -> None:
    """Text that isn't UTF-8 and times that no calendar has don't stop the rows around them."""
    text = pa.array([b"a", b"\xff", b"b", b"c"]).view(pa.string())
    file = parquet_file({"text": text, "at": pa.array([0, 0, 1 << 60, 0]).view(pa.timestamp("us", "UTC"))})
    (records, numbers), *rest = read_parquet(file, GuardedStream(b"", file))
    assert (list(numbers), rest) == ([1, 2, 3, 4], [])
    good, other = b'{"text":"a","at":"1970-01-01T00:00:00Z"}', b'{"text":"c","at":"1970-01-01T00:00:00Z"}'
    assert (records[0], records[3]) == (good, other)
    assert [record.startswith(b"a row that can't be read: ") for record in records] == [False, True, True, False]


def test_a_cut_parquet_file_is_a_failure() -> None:
    """Its directory is at the end, so nothing of it can be read."""
    found, failure = parquet_records(io.BytesIO(parquet_file({"n": [1, 2, 3]}).getvalue()[:-20]))
    assert found == []
    assert failure is not None
    assert failure.startswith("the Parquet file is damaged")


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is part of the extra `import`."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match="without pyarrow") as caught:
        list(read_parquet(io.BytesIO(), GuardedStream(b"", io.BytesIO())))
    assert "pipx install --force '.[import]'" in caught.value.hint
