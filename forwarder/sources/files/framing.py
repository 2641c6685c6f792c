"""Records from bytes: a line each, a JSON value each, or a row of CSV or Parquet as a JSON object.

A framer yields neighbouring records with their line numbers, about one read's worth at a time, and
raises `DamagedContent` after the last of them. Of JSON it knows only brackets and strings: its
readers decide whether a record is valid, so neither invalid UTF-8 nor a cut line ends a file.
Every CSV value is text; Parquet values have types. A CSV row that can't become an object (of
another length than the header, or not UTF-8) is passed on as it was read.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from io import BytesIO, StringIO
from itertools import chain, starmap
from typing import Any, BinaryIO, Final

import msgspec

from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import install_extra
from forwarder.sources.files.record_blocks import (
    NO_QUOTE,
    DamagedContent,
    Framing,
    LineRecords,
    ReadOptions,
    RowRecords,
    reason,
)
from forwarder.sources.files.unpacking import FAILURES, PeekedStream

NumberedRecords = tuple[Sequence[bytes], Sequence[int]]
"""Neighbouring records, and the line of each."""
_BOM: Final = b"\xef\xbb\xbf"
_COMPRESSED: Final = (
    *(".gz", ".zst", ".bz2", ".zip", ".gzip", ".zstd"),
    *(".br", ".lz4", ".sz", ".snappy"),
)
_TOKEN: Final = re.compile(
    rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([{}\[\]"]|\Z)', re.DOTALL
)
"""Up to the next bracket outside strings, the quote of a string whose end is
still to come, or the end.
"""
_OPENING: Final = frozenset({b"{", b"["})
_BRACKETS: Final = _OPENING | {b"}", b"]"}
MAX_COLUMNS: Final = 16_384
"""Of a CSV file: as many as a spreadsheet has. More are the wrong delimiter, or no CSV."""
_MAX_NAMES: Final = 1 << 20
"""Bytes of all names together: each row has them in its record."""
_ROWS: Final = 64
"""Rows that become records together: few enough that all that is made of them is in a core's cache.
"""
_FEW_LINES: Final = 1 << 15
"""Bytes."""
_NO_FIELD: Final = re.compile(r'["\\\x00-\x1f\x7f]|^$').search
"""A name that a struct can't have for a field."""
_TO_JSON: Final = msgspec.json.Encoder(decimal_format="number")


def frame(
    name: str, stream: PeekedStream, seekable: BinaryIO | None, options: ReadOptions
) -> Generator[NumberedRecords]:
    """The records of an open file. `seekable`: the file, if it is Parquet. Raises `DamagedContent`
    after the last good ones.
    """
    if stream.head.startswith(_BOM):
        stream.read(len(_BOM))
    begin = stream.head.removeprefix(_BOM).lstrip(b" \t\r\n")
    framing = framing_of(name, options)
    if framing is Framing.AUTO and (
        begin.startswith(b"[") or begin.split(b"\n", 1)[0].strip() == b"{"
    ):
        framing = Framing.JSON
    if seekable is not None:
        yield from _read_parquet(seekable)
    elif framing is Framing.PARQUET:
        stream.give_back(stream.read(1))  # raises why nothing of it can be read, if so
        raise DamagedContent("it isn't a Parquet file")
    elif framing is Framing.CSV:
        yield from _read_csv(stream, options, delimiter_of(name, options))
    else:
        yield from (_read_values if framing is Framing.JSON else _read_lines)(stream, options)


def _uncompressed(name: str) -> str:
    """The name of a file in lower case, without those of compressions."""
    name = name.lower()
    while name.endswith(_COMPRESSED):
        name = name.rpartition(".")[0]
    return name


def framing_of(name: str, options: ReadOptions) -> Framing:
    """How the records of a file of this name are separated; AUTO: it depends on its content."""
    is_table = options.framing is Framing.AUTO and _uncompressed(name).endswith((".csv", ".tsv"))
    return Framing.CSV if is_table else options.framing


def delimiter_of(name: str, options: ReadOptions) -> str:
    """What separates the cells of a table in a file of this name."""
    return options.delimiter or ("\t" if _uncompressed(name).endswith(".tsv") else ",")


def is_unquoted(delimiter: str, options: ReadOptions) -> bool:
    """Whether the cells of a table are read without quotes. Between tabs they have some only if
    the options say so: such files are mostly written without any, and one quotation mark at the
    beginning of a text would take in the rows up to the next one.
    """
    return options.quote == NO_QUOTE or (not options.quote and delimiter == "\t")


def _read_lines(stream: PeekedStream, options: ReadOptions) -> Iterator[NumberedRecords]:
    """A record a line, ended by LF or CRLF. Empty lines count, but are no records. A line over the
    limit is cut to it.
    """
    limit = options.max_record
    number = 1
    for text in _whole_lines(stream, options):
        whole = text.replace(b"\r\n", b"\n") if b"\r" in text else text
        ended = [*BytesIO(whole)]  # searches for line feeds several times as fast as `split` does
        numbers = range(number, number := number + len(ended))
        if len(whole) <= limit and b"\n" not in ended:
            yield LineRecords(whole, ended), numbers
        elif lines := [
            (line[:-1][:limit], at)
            for line, at in zip(ended, numbers, strict=True)
            if line != b"\n"
        ]:
            yield [record for record, _ in lines], [at for _, at in lines]


def _whole_lines(stream: PeekedStream, options: ReadOptions) -> Iterator[bytes]:
    """The text in whole lines. Of a line over the limit, little more than the limit is kept.

    The last line needs no end, but where the stream is cut off it is left
    out: it might seem complete.
    """
    limit = options.max_record
    rest = bytearray()
    while data := stream.read(options.block_bytes):
        end = data.rfind(b"\n") + 1
        if not end:
            rest += data[: max(0, limit + 1 - len(rest))]
            continue
        # what follows of a line that is too long is left out
        begin = data.find(b"\n") if len(rest) > limit else 0
        yield (bytes(rest) + data[begin:end]) if rest else data[:end]
        rest = bytearray(data[end:][: limit + 1])
    if rest:
        yield bytes(rest) + b"\n"


def _read_values(stream: PeekedStream, options: ReadOptions) -> Iterator[NumberedRecords]:
    """A record for each element of arrays, or for each object outside them, over any number of
    lines.

    Whatever else stands between them is a record too. It is a failure if the last array or object
    has no end.
    """
    scanner = _Scanner(options.max_record)
    while data := stream.read(options.block_bytes):
        scanner.scan(data)
        yield from scanner.drain()
    scanner.flush_gap(len(scanner.buffer))
    yield from scanner.drain()
    if scanner.depth or scanner.in_array:
        raise DamagedContent("it ends inside a JSON value")


class _Scanner:
    """Finds the ends of values.

    Invariants: `begin` is where in `buffer` the current value starts (depth > 0), or what stands
    between two (depth 0); `line` is the line of `counted`; tokens before `position` are done.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.buffer = b""
        self._begin = self._position = self._counted = 0
        self.depth = 0
        self.in_array = False
        self._line = self._first_line = 1
        self._cut = b""
        """The start of a value that is too long."""
        self._records: list[bytes] = []
        self._lines: list[int] = []

    def drain(self) -> Iterator[NumberedRecords]:
        if self._records:
            yield self._records, self._lines
            self._records = []
            self._lines = []

    def scan(self, data: bytes) -> None:
        self.buffer += data
        for token in _TOKEN.finditer(self.buffer, self._position):
            self._position = start = token.start(1)
            byte = token.group(1)
            if byte not in _BRACKETS:
                break
            if self.depth:
                self.depth += 1 if byte in _OPENING else -1
                if not self.depth:
                    self._give(
                        (self._cut or self.buffer[self._begin : start + 1])[: self._limit],
                        self._first_line,
                    )
                    self._begin = start + 1
                    self._cut = b""
            elif byte in _OPENING or (byte == b"]" and self.in_array):
                self.flush_gap(start)
                if byte == b"{" or (byte == b"[" and self.in_array):
                    self.depth = 1
                    self._begin = start
                    self._first_line = self._line_at(start)
                else:
                    self.in_array = byte == b"["
                    self._begin = start + 1
        keep = self._begin
        # of a value that is too long, its start is enough
        if len(self.buffer) - keep > self._limit:
            self._cut = self._cut or self.buffer[keep : keep + self._limit]
            keep = self._position
        self._line_at(keep)
        self.buffer = self.buffer[keep:]
        self._counted -= keep
        self._position -= keep
        self._begin = 0
        # one string: of it, the quote is enough, and the backslash that the next byte belongs to
        if len(self.buffer) > self._limit + 1:
            escaped = (len(self.buffer) - len(self.buffer.rstrip(b"\\"))) % 2
            self._line_at(len(self.buffer))
            self.buffer = b'"' + b"\\" * escaped
            self._counted = len(self.buffer)

    def flush_gap(self, end: int) -> None:
        """What stands between two values, if it is more than a comma."""
        if self.depth == 0:
            whole = self._cut or self.buffer[self._begin : end]
            if gap := whole.strip(b" \t\r\n,"):
                self._give(
                    gap[: self._limit],
                    self._line_at(end if self._cut else self._begin + whole.index(gap)),
                )
            self._begin = end
            self._cut = b""

    def _give(self, record: bytes, line: int) -> None:
        self._records.append(record)
        self._lines.append(line)

    def _line_at(self, position: int) -> int:
        self._line += self.buffer.count(b"\n", self._counted, position)
        self._counted = max(position, self._counted)
        return self._line


def _read_csv(
    stream: PeekedStream, options: ReadOptions, delimiter: str
) -> Iterator[NumberedRecords]:
    """A record a row; the first row has the names, unless `options` do. The line is the row's
    first. Bytes that aren't UTF-8 survive as lone surrogates.
    """
    # The limit is the module's, not the reader's, and too small by default.
    csv.field_size_limit(options.max_record)
    lines = _CsvLines(stream, options)
    reader = rows_of(chain.from_iterable(lines), delimiter, options)
    make: Callable[..., Any] | None = None
    most = 1
    failures: list[DamagedContent] = []
    is_done = False
    names: Sequence[str] = options.header
    if names:
        make, most = _row_type(names), _rows_at_once(names, options)
    made = list[bytes | list[bytes]]()
    numbers = list[int]()
    size = 0
    table: list[list[str]] = []
    while not is_done:
        rows = list[list[str]]()
        ends = list[int]()
        try:
            for row in reader:
                rows.append(row)
                ends.append(reader.line_num)
                if len(rows) == most or reader.line_num == lines.count:
                    break
            else:
                is_done = True
        except csv.Error:
            rows.append([])
            ends.append(reader.line_num)
        except DamagedContent as error:
            failures.append(error)
            is_done = True
        if make is None and rows and (rows[0] or lines.between(lines.done, ends[0])):
            names = rows[0]
            make, most = _row_type(names), _rows_at_once(names, options)
        elif make is not None:
            some, begins = _encoded_rows(
                rows, ends, lines, make, is_open=lines.have_ended and not is_done
            )
            made.append(some)
            table += rows
            numbers += begins
            size += len(some) if isinstance(some, bytes) else sum(map(len, some))
        if ends:
            lines.pass_to(ends[-1])
        if numbers and (is_done or size >= options.block_bytes):
            yield _joined(made, names, table), numbers
            made = []
            numbers = []
            size = 0
            table = []
    if failures:
        raise failures.pop()  # this frame, which its traceback leads to, must not hold it


def rows_of(lines: Iterable[str], delimiter: str, options: ReadOptions) -> Any:
    """What reads the rows of lines: a reader of `csv`."""
    if is_unquoted(delimiter, options):
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    return csv.reader(lines, delimiter=delimiter, quotechar=options.quote or '"')


def _rows_at_once(names: Sequence[str], options: ReadOptions) -> int:
    """How many rows become records together: each record repeats the names of the columns."""
    return min(_ROWS, options.block_bytes // (sum(map(len, names)) + 1) + 1)


def _joined(
    made: Sequence[bytes | list[bytes]], names: Sequence[str], rows: Sequence[Sequence[str]]
) -> Sequence[bytes]:
    """Records, some of them as lines, as one sequence; if all are lines,
    they are those of the rows.
    """
    if any(isinstance(piece, list) for piece in made):
        return [
            record
            for piece in made
            for record in (piece if isinstance(piece, list) else piece.splitlines())
        ]
    text = b"".join(made)  # type: ignore[arg-type]  # all are lines
    return RowRecords(text, [*BytesIO(text)], names, rows)


class _CsvLines(Iterator[list[str]]):
    """The lines of a table, many at once. They are known until the rows that
    they are parts of are done.
    """

    def __init__(self, stream: PeekedStream, options: ReadOptions) -> None:
        self._texts = (part for text in _whole_lines(stream, options) for part in _parts(text))
        self._limit = options.max_record
        self._lines: list[str] = []
        self.done = self.count = 0
        """How many come before those that are known, and how many there were so far."""
        self.have_ended = False

    def __next__(self) -> list[str]:
        whole = next(self._texts, None)
        if whole is None:
            self.have_ended = True
            raise StopIteration
        text = (
            whole
            if len(whole) <= self._limit
            else b"".join(line[:-1][: self._limit] + b"\n" for line in BytesIO(whole))
        )
        lines = [*StringIO(text.decode("utf-8", "surrogateescape"), newline="\n")]
        self._lines += lines
        self.count += len(lines)
        return lines

    def between(self, first: int, end: int) -> bytes:
        """Some lines as they were read, without the last one's end."""
        text = "".join(self._lines[first - self.done : end - self.done])
        return text.encode("utf-8", "surrogateescape").rstrip(b"\r\n")[: self._limit]

    def pass_to(self, end: int) -> None:
        """Forget the lines before this one."""
        del self._lines[: end - self.done]
        self.done = end


def _parts(text: bytes) -> Iterator[bytes]:
    """Whole lines in parts of a few."""
    start = 0
    while start < len(text):
        end = text.rfind(b"\n", start, start + _FEW_LINES) + 1 or text.index(b"\n", start) + 1
        yield text[start:end]
        start = end


def _encoded_rows(
    rows: Sequence[list[str]],
    ends: Sequence[int],
    lines: _CsvLines,
    make: Callable[..., Any],
    *,
    is_open: bool,
) -> tuple[bytes | list[bytes], list[int]]:
    """The records of rows, as lines if all are good, and their first lines. `ends`: their last
    lines.

    `is_open`: the last row ends with the file, within a quote.
    """
    begins = [lines.done, *ends[:-1]] if ends else []
    if all(rows) and not is_open:
        try:
            return _TO_JSON.encode_lines([*starmap(make, rows)]), [begin + 1 for begin in begins]
        except (TypeError, ValueError):  # one has another length than the header, or isn't UTF-8
            pass
    records: list[bytes] = []
    numbers: list[int] = []
    for at, (row, begin, end) in enumerate(zip(rows, begins, ends, strict=True), 1):
        if not row and not lines.between(begin, end):
            continue
        try:
            record = (
                lines.between(begin, end)
                if is_open and at == len(rows)
                else _TO_JSON.encode(make(*row))
            )
        except (TypeError, ValueError):
            record = lines.between(begin, end)
        records.append(record)
        numbers.append(begin + 1)
    return records, numbers


def _row_type(header: Sequence[str]) -> Callable[..., Any]:
    """What makes an object of a row's cells. Raises `DamagedContent` if the
    header names no columns.
    """
    if not header:
        raise DamagedContent("the first row can't be read")
    if len(header) > MAX_COLUMNS:
        raise DamagedContent(
            f"the first row has {len(header):,} columns, of at most {MAX_COLUMNS:,}: is the "
            "delimiter right?"
        )
    if sum(map(len, header)) > _MAX_NAMES:
        raise DamagedContent(
            "the names in the first row have more than 1 MiB together: is it a header?"
        )
    name, count = Counter(header).most_common(1)[0]
    if count > 1:
        raise DamagedContent(f"the first row names {name!r} twice")
    try:
        "".join(header).encode()
    except UnicodeEncodeError:
        raise DamagedContent("the first row isn't UTF-8") from None
    if any(map(_NO_FIELD, header)):
        return lambda *row: dict(zip(header, row, strict=True))
    # structs are encoded in a third of the time of dicts
    return msgspec.defstruct(
        "Row",
        [(f"cell{at}", str, msgspec.field(name=name)) for at, name in enumerate(header)],
        gc=False,
    )


def _read_parquet(file: BinaryIO) -> Iterator[NumberedRecords]:
    """A record a row, and its number for a line.

    Instants become ISO 8601 in UTC with a `Z`. What the file calls local time gets no zone.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 -- an optional dependency
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "Parquet files can't be read without pyarrow", hint=install_extra("import")
        ) from None
    row = 1
    try:
        with parquet.ParquetFile(file, pre_buffer=False) as opened:
            schema = pa.schema(
                [field.with_type(_plain(pa, field.type)) for field in opened.schema_arrow]
            )
            for batch in opened.iter_batches(batch_size=1024, use_threads=False):
                if records := _encoded(pa, pa.Table.from_batches([batch]).cast(schema, safe=False)):
                    yield records, range(row, row + len(records))
                row += len(records)
    except (*FAILURES, pa.ArrowException) as error:
        raise DamagedContent(
            f"the Parquet file is damaged, or of a kind that can't be read: {reason(error)}"
        ) from None


def _encoded(pa: Any, table: Any) -> list[bytes]:
    has_maps = any(pa.types.is_map(field.type) for field in table.schema)
    try:
        rows = table.to_pylist(maps_as_pydicts="lossy") if has_maps else table.to_pylist()
        return [_TO_JSON.encode(row) for row in rows]
    except (ValueError, OverflowError) as error:
        # text that isn't UTF-8, a time that no calendar has
        if table.num_rows == 1:
            return [f"a row that can't be read: {reason(error)}".encode()]  # isn't JSON
        return [
            record for row in range(table.num_rows) for record in _encoded(pa, table.slice(row, 1))
        ]


def _plain(pa: Any, kind: Any) -> Any:
    """A type whose values Python has: times to the microsecond, instants in UTC, the same inside
    lists and structs.
    """
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
        return pa.struct(
            [
                kind.field(index).with_type(_plain(pa, kind.field(index).type))
                for index in range(kind.num_fields)
            ]
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(pa, kind.value_type)))
    return kind
