"""Rows as JSON objects: CSV, of which every value is text, and Parquet, whose values have types.

A CSV row that no object can be made of (of another length than the header, or not UTF-8) is given as it was read, to be refused.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any, BinaryIO, Final

import msgspec

from forwarder.sources.files.guarded import FAILURES, GuardedStream, reason
from forwarder.sources.files.lines import NumberedRecords, read_chunks
from forwarder.sources.files.objects import missing_extra
from forwarder.sources.files.options import ReadOptions

MAX_COLUMNS: Final = 16_384
"""Of a CSV file: as many as a spreadsheet has. More are the wrong delimiter, or no CSV."""
_MAX_NAMES: Final = 1 << 20
"""Bytes of all names together: each row has them in its record."""
_ROWS: Final = 1024
_NO_FIELD: Final = re.compile(r'["\\\x00-\x1f\x7f]|^$').search
"""Names that structs can't have for their fields."""
_TO_JSON: Final = msgspec.json.Encoder(decimal_format="number")


class _CsvLines:
    """Lines of text for the csv module, remembered until their row is complete. Bytes that aren't UTF-8 survive as lone surrogates.

    Lines are counted by the csv module (`line_num`), and a row's text is put together only if it is asked for.
    """

    def __init__(self, stream: GuardedStream, limit: int, size: int) -> None:
        self._stream, self._limit, self._size = stream, limit, size
        self.begun = 0
        """How many lines there are before the row that is read; what was before them is forgotten."""
        self._first = 0
        self._lines: list[str] = []  # from `_first` on
        self.has_ended = False

    def __iter__(self) -> Iterator[str]:
        rest = b""
        for data in read_chunks(self._stream, self._size):
            whole = rest + data
            end = whole.rfind(b"\n") + 1
            if end:
                yield from self._taken(self._split(whole[:end]))
            rest = whole[end:][: self._limit + 1]
        if rest and self._stream.failure is None:
            yield from self._taken([_text(rest[: self._limit])])
        self.has_ended = True

    def _split(self, whole: bytes) -> list[str]:
        """Whole lines; what is too long is cut."""
        found = list(BytesIO(whole))
        if len(whole) > self._limit:
            found = [line if len(line) <= self._limit else line[:-1][: self._limit] + b"\n" for line in found]
        return list(map(_text, found))

    def _taken(self, lines: list[str]) -> list[str]:
        del self._lines[: self.begun - self._first]
        self._first = self.begun
        self._lines += lines
        return lines

    def row(self, end: int) -> bytes:
        """The bytes of the row from `begun` to the line before this one, without its line break."""
        raw = "".join(self._lines[self.begun - self._first : end - self._first]).encode("utf-8", "surrogateescape")
        return raw.rstrip(b"\r\n")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def read_csv(stream: GuardedStream, options: ReadOptions, delimiter: str) -> Iterator[NumberedRecords]:
    """A record a row; the first row has the names. The line is the row's first."""
    csv.field_size_limit(options.max_record)  # it is the module's, not the reader's, and too small by default
    source = _CsvLines(stream, options.max_record, options.block_bytes)
    rows = csv.reader(source, delimiter=delimiter, quotechar=options.quote)
    header: list[str] | None = None
    encode = _encoder([])
    records: list[bytes] = []
    numbers: list[int] = []
    size = 0
    while True:
        begun = source.begun = rows.line_num
        try:
            row = next(rows, None)
        except csv.Error:
            row = []
        if row is None or (source.has_ended and stream.failure is not None):
            break  # a row that ends with the stream has an open quote: it was cut off, or else is refused
        if not row and not source.row(rows.line_num):
            continue
        if header is None:
            header = row
            if failure := _wrong_header(header):
                stream.failure = failure
                return
            encode = _encoder(header)
            continue
        record = (None if source.has_ended else encode(row)) or source.row(rows.line_num)[: options.max_record]
        records.append(record)
        numbers.append(begun + 1)
        size += len(record)
        if size >= options.block_bytes:
            yield records, numbers
            records, numbers, size = [], [], 0
    if records:
        yield records, numbers


def _wrong_header(header: Sequence[str]) -> str | None:
    if not header:
        return "the first row can't be read"
    if len(header) > MAX_COLUMNS:
        return f"the first row has {len(header):,} columns, of at most {MAX_COLUMNS:,}: is the delimiter right?"
    if sum(map(len, header)) > _MAX_NAMES:
        return "the names in the first row have more than 1 MiB together: is it a header?"
    if len(set(header)) < len(header):
        twice, _ = Counter(header).most_common(1)[0]
        return f"the first row names {twice!r} twice"
    try:
        "".join(header).encode()
    except UnicodeEncodeError:
        return "the first row isn't UTF-8"
    return None


def _encoder(header: Sequence[str]) -> Callable[[Sequence[str]], bytes | None]:
    """What makes the JSON object of a row, if there can be one. Structs are encoded in a third of the time of dicts."""
    width, to_json = len(header), _TO_JSON.encode
    make = _maker(header)

    def encode(row: Sequence[str]) -> bytes | None:
        if len(row) != width:
            return None
        try:
            return to_json(make(*row))
        except UnicodeEncodeError:
            return None

    return encode


def _maker(header: Sequence[str]) -> Callable[..., Any]:
    """What takes the cells of a row, and is encoded as an object of these names."""
    if not any(map(_NO_FIELD, header)):
        fields = [(f"cell{at}", str, msgspec.field(name=name)) for at, name in enumerate(header)]
        return msgspec.defstruct("Row", fields, gc=False)
    return lambda *row: dict(zip(header, row, strict=True))


def read_parquet(file: BinaryIO, stream: GuardedStream) -> Iterator[NumberedRecords]:
    """A record a row, and its number for a line.

    Instants become ISO 8601 in UTC with a `Z`. What the file calls local time has no zone, and gets none: the option `time_offset` has it.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 -- an optional dependency
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise missing_extra("Parquet files", "pyarrow") from None
    row = 1
    try:
        with parquet.ParquetFile(file, pre_buffer=False) as opened:
            schema = pa.schema([field.with_type(_plain(pa, field.type)) for field in opened.schema_arrow])
            for batch in opened.iter_batches(batch_size=_ROWS, use_threads=False):
                plain = pa.Table.from_batches([batch]).cast(schema, safe=False)
                records = _encoded(pa, plain)
                if records:
                    yield records, range(row, row + len(records))
                row += len(records)
    except (*FAILURES, pa.ArrowException) as error:
        stream.failure = f"the Parquet file is damaged, or of a kind that can't be read: {reason(error)}"


def _encoded(pa: Any, table: Any) -> list[bytes]:
    try:
        return [_TO_JSON.encode(each) for each in _rows(pa, table)]
    except (ValueError, OverflowError) as error:  # text that isn't UTF-8, a time that no calendar has
        if table.num_rows == 1:
            return [f"a row that can't be read: {reason(error)}".encode()]  # no JSON: it is refused
        return [record for row in range(table.num_rows) for record in _encoded(pa, table.slice(row, 1))]


def _rows(pa: Any, table: Any) -> list[dict[str, Any]]:
    has_maps = any(pa.types.is_map(field.type) for field in table.schema)
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="lossy") if has_maps else table.to_pylist()
    return rows


def _plain(pa: Any, kind: Any) -> Any:
    """A type whose values Python has: times to the microsecond, instants in UTC, the same inside lists and structs."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_dictionary(kind):
        return _plain(pa, kind.value_type)
    if types.is_struct(kind):
        return pa.struct([kind.field(index).with_type(_plain(pa, kind.field(index).type)) for index in range(kind.num_fields)])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(pa, kind.value_type)))
    return kind
