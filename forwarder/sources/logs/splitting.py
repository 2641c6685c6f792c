"""Whole records with their offsets from the bytes of a file: a line each, several lines from one
that matches a pattern, or CRI's parts.

Invariants:
- The bytes alone decide which records there are, not how they are cut into feeds; only `overdue`
  depends on a clock.
- Nothing is open at `LogRecords.end`: a new splitter that begins there gives the rest of the
  records.
- Records come in the order of their offsets: one behind an open record of another stream waits for
  it.
- Of each record at most `max_record` bytes are kept, and of all that wait together `_HELD` times
  as many.

Lines end by LF or CRLF. Empty lines are skipped; inside a record of several lines they stay. NULs
before a line are no part of it: a file that is truncated while its writer doesn't append has a
hole there. A line of CRI is `<time> <stream> <tags> <content>`: the parts (tag P) of a stream are
joined until its next F, and the record has the header of its first.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from typing import Final, NamedTuple

from forwarder.core.patterns import LinearPattern

_BOM: Final = b"\xef\xbb\xbf"
_HOLE: Final = b"\0"
_CRI: Final = re.compile(rb"([^ ]+ (stdout|stderr) )([PF])(?::[^ ]*)?(?: |\Z)")
_HEADERS: Final = (b" stdout F ", b" stderr F ")
"""What most lines of CRI have after their times, of 30 bytes."""
_WHOLE: Final = re.compile(rb"[^ ]+ (?:stdout|stderr) F .", re.DOTALL)
_HELD: Final = 2
"""Where an open record and those behind it have more bytes than so many of the largest, the open
one is closed as it is.
"""
_WAITING: Final = 200
"""What a record that is kept costs beside its bytes."""


class LogRecords(NamedTuple):
    """Whole records, in order."""

    values: Sequence[bytes]
    """The records without line ends; the lines of one that has several are separated by LF."""
    offsets: Sequence[int]
    """Where each begins in the (decompressed) file."""
    end: int
    """The offset after the last of them: where reading resumes after a restart."""
    overlong: Sequence[tuple[int, bytes]]
    """Records over the limit: the offset of each, and its first `max_record` bytes."""
    lines: int
    """Lines of the file that ended, empty ones too."""


@dataclass(slots=True)
class _KeptRecord:
    """A record of which lines may be missing, or that waits behind one."""

    offset: int
    stream: bytes | None
    """None: not of CRI's form, and complete."""
    fed: float
    """When its last line came."""
    data: bytearray
    """At most `max_record` bytes of it."""
    overlong: bool = False
    partial: bool = False
    """Whether its last line has a rest to come (CRI's P)."""
    blank: int = 0
    """Empty lines after its last one."""
    whole: bool = False


class Splitter:
    """The records of one open file, from an offset on."""

    def __init__(
        self,
        offset: int,
        max_record: int,
        start: LinearPattern | None = None,
        max_wait: float = 5.0,
        *,
        cri: bool = False,
    ) -> None:
        """`start`: what is found in the first line of each record, where records have several
        lines (in its content, of CRI).

        `max_wait`: seconds that such a record, or a part of CRI, waits for more (see `overdue`).
        """
        self._offset = offset
        """Where the line begins that hasn't ended."""
        self._tail = bytearray()
        """Its first bytes: up to two more than `max_record`, as many as its end may have."""
        self._skipped = 0
        """How many more it has."""
        self._max = max_record
        self._start = start
        self._max_wait = max_wait
        self._cri = cri
        self._open: dict[bytes, _KeptRecord] = {}
        """By stream; without CRI there is one."""
        self._records: deque[_KeptRecord] = deque()
        """Those from the first open one on."""
        self._kept = 0

    @property
    def held(self) -> int:
        """Bytes that are kept."""
        return len(self._tail) + self._kept

    @property
    def due(self) -> float | None:
        """When the first of the records that wait for more will have waited `max_wait`; None while
        none waits.
        """
        if not self._open:
            return None
        return min(record.fed for record in self._open.values()) + self._max_wait

    def feed(self, data: bytes, now: float) -> LogRecords:
        """The records that are whole with `data`, which follows what was fed before; `now` counts
        seconds.

        There may be none; `end` moves past empty lines, too.
        """
        stop = data.rfind(b"\n") + 1
        if not stop:
            self._keep(data)
            return self._result([], [], [], 0)
        begin = self._offset
        text = data[:stop]
        overlong = []
        if self._skipped:  # of the line that is too long only the end is looked for
            overlong = [(begin, bytes(self._tail[: self._max]))]
            rest = text.find(b"\n") + 1
            begin += len(self._tail) + self._skipped + rest
            text = text[rest:]
        elif self._tail:
            text = bytes(self._tail) + text
        self._offset = begin + len(text)
        self._tail.clear()
        self._skipped = 0
        self._keep(data[stop:])
        return self._split(text, begin, overlong, now)

    def overdue(self, now: float) -> LogRecords:
        """The records that have waited `max_wait` seconds for more: they are whole as they are."""
        for record in [*self._open.values()]:
            if now >= record.fed + self._max_wait:
                self._close(record)
        return self._result(*self._drain([], [], []), 0)

    def finish(self) -> LogRecords:
        """The rest, at the file's end: an unfinished line, and what waits for more, is whole."""
        begin = self._offset
        tail = bytes(self._tail)
        self._offset += len(tail) + self._skipped
        overlong = [(begin, tail[: self._max])] if self._skipped else []
        text = tail + b"\n" if tail and not overlong else b""
        self._tail.clear()
        self._skipped = 0
        records = self._split(text, begin, overlong, 0.0)
        for record in [*self._open.values()]:
            self._close(record)
        return self._result(
            *self._drain([*records.values], [*records.offsets], [*records.overlong]), records.lines
        )

    def _keep(self, data: bytes) -> None:
        """Keep the beginning of a line, or more of it."""
        if not self._tail and not self._skipped:
            whole = len(data)
            data = data.lstrip(_HOLE)
            self._offset += whole - len(data)
        room = self._max + 2 - len(self._tail)
        self._tail += data[:room]
        self._skipped += max(0, len(data) - room)

    def _result(
        self,
        values: Sequence[bytes],
        offsets: Sequence[int],
        overlong: Sequence[tuple[int, bytes]],
        lines: int,
    ) -> LogRecords:
        return LogRecords(
            values,
            offsets,
            self._records[0].offset if self._records else self._offset,
            overlong,
            lines,
        )

    def _split(
        self, text: bytes, begin: int, overlong: list[tuple[int, bytes]], now: float
    ) -> LogRecords:
        """The records of whole lines; `overlong`: a line before them that is too long."""
        ended = [*BytesIO(text)]  # finds line feeds several times as fast as `split` does
        offsets = [*accumulate(map(len, ended), initial=begin)]
        del offsets[-1]
        values = [line[:-1] for line in ended]
        lines = len(overlong) + len(values)
        if b"\r" in text:
            values = [value.removesuffix(b"\r") for value in values]
        if begin == 0 and text.startswith(_BOM):
            values[0] = values[0].removeprefix(_BOM)
        if _HOLE in text:
            pairs = [
                (value.lstrip(_HOLE), at + len(value))
                for value, at in zip(values, offsets, strict=True)
            ]
            values = [value for value, _ in pairs]
            offsets = [end - len(value) for value, end in pairs]
        if self._start is not None or (
            self._cri and (self._records or overlong or not _are_whole(values))
        ):
            return self._result(*self._join(values, offsets, overlong, now), lines)
        if b"" in values or (len(text) > self._max and max(map(len, values)) > self._max):
            pairs = list(zip(values, offsets, strict=True))
            overlong += [(at, value[: self._max]) for value, at in pairs if len(value) > self._max]
            values = [value for value, _ in pairs if 0 < len(value) <= self._max]
            offsets = [at for value, at in pairs if 0 < len(value) <= self._max]
        return self._result(values, offsets, overlong, lines)

    def _join(
        self, lines: list[bytes], begins: list[int], cut: list[tuple[int, bytes]], now: float
    ) -> tuple[list[bytes], list[int], list[tuple[int, bytes]]]:
        """The records that lines make together; `cut`: a line before them, of
        which the rest was skipped.
        """
        values: list[bytes] = []
        offsets: list[int] = []
        overlong: list[tuple[int, bytes]] = []
        pairs = [
            (line[: self._max], offset, len(line) > self._max)
            for line, offset in zip(lines, begins, strict=True)
        ]
        for line, offset, is_cut in [*((line, offset, True) for offset, line in cut), *pairs]:
            self._take(line, offset, now, cut=is_cut)
            self._drain(values, offsets, overlong)
            while self._kept > _HELD * self._max + _WAITING and self._records:
                self._close(self._records[0])
                self._drain(values, offsets, overlong)
        return values, offsets, overlong

    def _take(self, line: bytes, offset: int, now: float, *, cut: bool) -> None:
        """Add a line to the record that it belongs to."""
        header = b""
        stream = b""
        partial = False
        content = line
        if self._cri:
            match = _CRI.match(line)
            if match is None:
                if line:
                    foreign = self._begin(None, offset, now)
                    self._add(foreign, line, cut=cut)
                    foreign.whole = True
                return
            header = match[1] + b"F "
            stream = match[2]
            partial = match[3] == b"P"
            content = line[match.end() :]
        record = self._open.get(stream)
        if record is not None and not record.partial and content:
            if self._start is None or self._start.search(content):
                self._close(record)
                record = None
            else:
                self._add(record, b"\n" * (record.blank + 1))
                record.blank = 0
        if record is None:
            if not content and not partial:
                return
            record = self._open[stream] = self._begin(stream, offset, now)
            self._add(record, header)
        elif not content and not record.partial:
            record.blank += 1
            return
        self._add(record, content, cut=cut)
        record.partial = partial
        record.fed = now
        if not partial and self._start is None:
            self._close(record)

    def _begin(self, stream: bytes | None, offset: int, now: float) -> _KeptRecord:
        record = _KeptRecord(offset, stream, now, bytearray())
        self._records.append(record)
        self._kept += _WAITING
        return record

    def _add(self, record: _KeptRecord, data: bytes, *, cut: bool = False) -> None:
        room = self._max - len(record.data)
        record.overlong |= cut or len(data) > room
        record.data += data[:room]
        self._kept += min(room, len(data))

    def _close(self, record: _KeptRecord) -> None:
        record.whole = True
        if record.stream is not None:
            del self._open[record.stream]

    def _drain(
        self, values: list[bytes], offsets: list[int], overlong: list[tuple[int, bytes]]
    ) -> tuple[list[bytes], list[int], list[tuple[int, bytes]]]:
        """Add the records before the first open one to these."""
        while self._records and self._records[0].whole:
            record = self._records.popleft()
            data = bytes(record.data)
            self._kept -= len(data) + _WAITING
            if record.overlong:
                overlong.append((record.offset, data))
            else:
                values.append(data)
                offsets.append(record.offset)
        return values, offsets, overlong


def _are_whole(lines: Sequence[bytes]) -> bool:
    """Whether all lines of CRI are records as they are: no parts, no further
    tags, none without content.
    """
    odd = [line for line in lines if line[30:40] not in _HEADERS or len(line) == 40]
    return all(map(_WHOLE.match, odd))
