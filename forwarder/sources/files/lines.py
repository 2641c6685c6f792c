"""Records of text: a line each, or a JSON value each.

What a framer gives are neighbouring records with their lines, about a read's worth at a time. It knows no JSON but its brackets and
strings: whether a record is one is the converter's to say, so that neither invalid UTF-8 nor a cut line ends a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Final

from forwarder.sources.files.guarded import GuardedStream
from forwarder.sources.files.records import LineRecords

NumberedRecords = tuple[Sequence[bytes], Sequence[int]]
"""Neighbouring records, and the line of each."""

BOM: Final = b"\xef\xbb\xbf"
_TOKEN: Final = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([{}\[\]"]|\Z)', re.DOTALL)
"""Up to the next bracket outside strings, the quote of a string whose end is still to come, or the end."""
_OPENING: Final = frozenset({b"{", b"["})
_CLOSING: Final = frozenset({b"}", b"]"})
_BETWEEN: Final = b" \t\r\n,"


def read_lines(stream: GuardedStream, limit: int, size: int) -> Iterator[NumberedRecords]:
    """A record a line, ended by LF or CRLF. Empty lines count, but are no records.

    A line over the limit is cut to it. The last line needs no end, but where the stream is cut off it is left out: it might look whole.
    """
    rest, number = bytearray(), 1
    for data in read_chunks(stream, size):
        end = data.rfind(b"\n") + 1
        if not end:
            rest += data[: max(0, limit + 1 - len(rest))]
            continue
        begin = data.find(b"\n") if len(rest) > limit else 0  # what follows of a line that is too long is left out
        whole = (bytes(rest) + data[begin:end]) if rest else data[:end]
        records, numbers, count = _split(whole, number, limit)
        number += count
        if records:
            yield records, numbers
        rest = bytearray(data[end:][: limit + 1])
    if rest and stream.failure is None:
        records, numbers, _ = _split(bytes(rest) + b"\n", number, limit)
        if records:
            yield records, numbers


def _split(whole: bytes, number: int, limit: int) -> tuple[Sequence[bytes], Sequence[int], int]:
    """The records of whole lines, their numbers, and how many lines there are."""
    if b"\r" in whole:
        whole = whole.replace(b"\r\n", b"\n")
    ended = [*BytesIO(whole)]  # searches for line feeds several times as fast as `split` does
    count = len(ended)
    numbers: Sequence[int] = range(number, number + count)
    if len(whole) <= limit and b"\n" not in ended:
        return LineRecords(whole, ended), numbers, count
    records = [line[:-1][:limit] for line in ended]
    if not all(records):
        numbers = [number + index for index, record in enumerate(records) if record]
        records = [record for record in records if record]
    return records, numbers, count


def read_values(stream: GuardedStream, limit: int, size: int) -> Iterator[NumberedRecords]:
    """A record for each element of arrays, or for each object outside them, over any number of lines.

    Whatever else stands between them is a record too, which no format takes. The stream fails if its last array or object has no end.
    """
    scanner = _Scanner(limit)
    for data in read_chunks(stream, size):
        scanner.scan(data)
        if scanner.records:
            yield scanner.take()
    scanner.flush_gap(len(scanner.buffer))
    if scanner.records:
        yield scanner.take()
    if scanner.is_inside and stream.failure is None:
        stream.failure = "it ends inside a JSON value"


class _Scanner:
    """Finds the ends of values.

    Invariants: `begin` is where in `buffer` the current value starts (depth > 0), or what stands between two (depth 0); `line` is the line
    of `counted`; tokens before `position` are done.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.buffer = b""
        self._begin = self._position = self._counted = 0
        self._depth, self._in_array = 0, False
        self._line = self._first_line = 1
        self._cut = b""
        """The start of a value that is too long."""
        self.records: list[bytes] = []
        self._lines: list[int] = []

    @property
    def is_inside(self) -> bool:
        return self._depth > 0 or self._in_array

    def take(self) -> NumberedRecords:
        taken = self.records, self._lines
        self.records, self._lines = [], []
        return taken

    def scan(self, data: bytes) -> None:
        self.buffer += data
        for token in _TOKEN.finditer(self.buffer, self._position):
            self._position = start = token.start(1)
            byte = token.group(1)
            if byte in _OPENING:
                self._open(start, byte)
            elif byte in _CLOSING:
                self._close(start, byte)
            else:
                break
        self._drop_done(self._position)

    def _open(self, start: int, byte: bytes) -> None:
        if self._depth == 0:
            self.flush_gap(start)
            if byte == b"[" and not self._in_array:
                self._in_array, self._begin = True, start + 1
                return
            self._begin, self._first_line = start, self._line_at(start)
        self._depth += 1

    def _close(self, start: int, byte: bytes) -> None:
        if self._depth > 1:
            self._depth -= 1
        elif self._depth == 1:
            self._depth = 0
            self._give((self._cut or self.buffer[self._begin : start + 1])[: self._limit], self._first_line)
            self._begin, self._cut = start + 1, b""
        elif byte == b"]" and self._in_array:
            self.flush_gap(start)
            self._in_array, self._begin = False, start + 1

    def flush_gap(self, end: int) -> None:
        """What stands between two values, if it is more than a comma."""
        if self._depth == 0:
            whole = self._cut or self.buffer[self._begin : end]
            gap = whole.strip(_BETWEEN)
            if gap:
                self._give(gap[: self._limit], self._line_at(end if self._cut else self._begin + whole.index(gap)))
            self._begin, self._cut = end, b""

    def _give(self, record: bytes, line: int) -> None:
        self.records.append(record)
        self._lines.append(line)

    def _line_at(self, position: int) -> int:
        self._line += self.buffer.count(b"\n", self._counted, position)
        self._counted = max(position, self._counted)
        return self._line

    def _drop_done(self, done: int) -> None:
        """Forget what was given, and what of a value is too long."""
        keep = self._begin
        if len(self.buffer) - keep > self._limit:
            self._cut = self._cut or self.buffer[keep : keep + self._limit]
            keep = done
        self._line_at(keep)
        self.buffer = self.buffer[keep:]
        self._counted -= keep
        self._position -= keep
        self._begin = 0
        if len(self.buffer) > self._limit + 1:  # one string: of it, the quote is enough, and the backslash that the next byte belongs to
            escaped = (len(self.buffer) - len(self.buffer.rstrip(b"\\"))) % 2
            self._line_at(len(self.buffer))
            self.buffer = b'"' + b"\\" * escaped
            self._counted = len(self.buffer)


def read_chunks(stream: GuardedStream, size: int) -> Iterator[bytes]:
    """What a stream holds, without the mark of its byte order."""
    first = True
    while data := stream.read(size):
        if first:
            first, data = False, data.removeprefix(BOM)
        yield data
