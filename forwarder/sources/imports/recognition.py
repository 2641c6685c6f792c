"""What a file that doesn't fit a format looks like: an export of another vendor, a table, a page
of errors, text in another encoding.

Each format says itself what its records look like (`ImportFormat.recognizes`). A file's first
bytes are looked at, after it is unpacked, and up to `SAMPLE` of its records. A guess is made only
where at least half of these look like one format.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO, StringIO
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from forwarder.core.proposals import proposed
from forwarder.sources.files.framing import frame, rows_of
from forwarder.sources.files.record_blocks import (
    BrokenSource,
    DamagedContent,
    Framing,
    ReadOptions,
    SourceFile,
)
from forwarder.sources.files.source import FileSource
from forwarder.sources.files.transcoding import guess_encoding
from forwarder.sources.files.unpacking import PeekedStream
from forwarder.sources.imports.format import ImportFormat
from forwarder.telemetry.readable import plain, plural

SAMPLE: Final = 200
"""Records by which a file is recognized."""
SHOWN: Final = 20
"""Files that are looked at."""
HEAD: Final = 256 << 10
_COLUMNS: Final = 30
_ROWS: Final = 50
_LONGEST: Final = 300
_CELL: Final = Raw(b'""')
_DELIMITERS: Final = ",;\t|"
_PAGE: Final = re.compile(rb"(?:<!doctype html|<html|<head|<body)", re.IGNORECASE)
_TITLE: Final = re.compile(rb"<title[^>]*>\s*(.{1,100}?)\s*</title>", re.IGNORECASE | re.DOTALL)
_WRAPPED: Final = re.compile(
    rb'\s*\{(?:\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[-\w.]+|\{[^{}]*\})\s*,)*\s*"([^"\\]{1,60})"\s*:\s*'
    rb"\[\s*\{"
)
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_AGAIN: Final = "Download it again: what came isn't the export."


class FileLooks(Struct, frozen=True):
    """What a file looks like."""

    text: str
    """Such as `Segment's logs`, or `an empty file`."""
    advice: str = ""
    """What to do with what is of no format: a sentence."""
    format: str = ""
    """The name of the format that it looks like; empty if it is none."""
    options: tuple[str, ...] = ()
    """The options that reading it needs."""
    framing: str = ""
    """How its records are separated, if not as the format's usual ones."""
    given: tuple[str, ...] = ()
    """Options with which it was read, as these are written."""

    def todo(self, chosen: str) -> str:
        """What to do, where another format or other options were chosen: a sentence, or nothing."""
        if self.format and self.format != chosen:
            options = "".join(f" {option}" for option in self.options)
            return f"Try `{proposed(f'import {self.format} …{options}')}`."
        missing = " ".join(
            option
            for option in (*self.options, self.framing)
            if option and option not in self.given
        )
        return f"Add {missing}." if missing else self.advice


class UnfitFile(Struct, frozen=True):
    """A file of which no record fits the format."""

    file: str
    records: int
    """That were converted, none of which fits."""
    looks: FileLooks
    why: str = ""
    """Why the first of them doesn't."""


def unfit_table(files: Sequence[UnfitFile], more: int) -> Iterator[RenderableType]:
    """The files that don't fit, with what they look like; and how many there are beside them."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("file", "looks like", "records that fit"):
        table.add_column(title, overflow="fold")
    for file in files:
        table.add_row(_plain(file.file), _plain(file.looks.text), f"0 of {file.records:,}")
    yield table
    yield from (
        Text(f"  {why}", style="dim")
        for why in dict.fromkeys(_plain(file.why).plain for file in files if file.why)
    )
    if more:
        yield Text(f"and {plural(more, 'more file')}")
    yield Text()


def _plain(text: str) -> Text:
    shown = plain(text[: _LONGEST + 1])
    return Text(shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…")


def looks_of(
    source: FileSource, names: Iterable[str], formats: Sequence[ImportFormat[Any]]
) -> dict[str, FileLooks]:
    """What some files of a source look like, by their names, as far as that can be read: the
    source is opened again.
    """
    wanted = set(names)
    looks = dict[str, FileLooks]()
    for file in source.files():
        if file.name in wanted:
            given = (_delimiter(source.options.delimiter), f"--framing {source.options.framing}")
            looks[file.name] = msgspec.structs.replace(_looks(source, file, formats), given=given)
        if len(looks) == len(wanted):
            break
    return looks


def _looks(source: FileSource, file: SourceFile, formats: Sequence[ImportFormat[Any]]) -> FileLooks:
    head, is_whole = source.peek(file, HEAD)
    if head.startswith(b"PAR1"):
        try:
            with source.blocks(file) as blocks:
                rows = [row for block in islice(blocks, 1) for row in block.records[:SAMPLE]]
        except BrokenSource as error:
            return FileLooks(error.reason)
        return _of_objects(_objects(rows), formats, "Parquet")
    return looks_of_text(head, formats, is_whole=is_whole)


def looks_of_text(
    head: bytes, formats: Sequence[ImportFormat[Any]], *, is_whole: bool = True
) -> FileLooks:
    """What a file with these first bytes looks like; `is_whole`: they are all of it."""
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not begin:
        return FileLooks(
            "an empty file" if not head else "an empty file (only white space)",
            "Export it again, or leave it out.",
        )
    encoding = guess_encoding(head)
    if encoding is None:
        return FileLooks("binary data", "Leave it out, or name the file that was meant.")
    if encoding.startswith(("utf-16", "utf-32")):
        return FileLooks(f"text in {encoding}", options=(f"--encoding {encoding}",))
    if _PAGE.match(begin):
        title = _TITLE.search(head)
        named = f" ({title[1].decode(errors='replace')})" if title else ""
        return FileLooks(f"an HTML page{named}", _AGAIN)
    if begin.startswith(b"<"):
        return FileLooks("XML, such as an object store's error", _AGAIN)
    find = _of_json if begin[:1] in b"{[" else _of_other_text
    looks = find(head, formats, is_whole=is_whole)
    if encoding.startswith("utf-8"):
        return looks
    options = (*looks.options, f"--encoding {encoding}")
    return msgspec.structs.replace(
        looks, text=f"{looks.text}, not in UTF-8 but perhaps in {encoding}", options=options
    )


def _of_json(head: bytes, formats: Sequence[ImportFormat[Any]], *, is_whole: bool) -> FileLooks:
    objects = _objects(_records(head, Framing.LINES, is_whole=is_whole)) or _objects(
        _records(head, Framing.JSON, is_whole=is_whole)
    )
    if objects and head.lstrip()[:1] == b"[":
        return _of_objects(objects, formats, "a JSON array")
    wrapped = _WRAPPED.match(head)
    looks = (
        _of_objects(objects, formats, "JSON lines")
        if objects
        else FileLooks("text that begins like JSON and isn't")
    )
    if looks.format or wrapped is None:
        return looks
    name = wrapped[1].decode(errors="replace")
    return FileLooks(
        f"one JSON object whose field {name!r} is a list",
        f"Split it first: jq -c '.[\"{name}\"][]'.",
    )


def _of_other_text(
    head: bytes, formats: Sequence[ImportFormat[Any]], *, is_whole: bool
) -> FileLooks:
    sniffed = sniff_delimiter(head, is_whole=is_whole)
    if sniffed is None:
        return FileLooks(
            "text that is neither JSON nor a table",
            "Name the files of the export, without those beside them.",
        )
    delimiter, names = sniffed
    for form in formats:
        reading = form.reading()
        if delimiter == reading.get("delimiter") and len(names) == len(reading.get("header", ())):
            return FileLooks(form.looks_like, format=form.name)
    columns = names[:_COLUMNS]
    fitting = [form for form in formats if form.recognizes(dict.fromkeys(names, _CELL))]
    tables = [form for form in formats if form.framings[0] is Framing.CSV and not form.mapping_file]
    table = next(iter([form for form in fitting if Framing.CSV in form.framings] + tables), None)
    named = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}[delimiter]
    text = f"a table (CSV, separated by {named}) with the columns {', '.join(columns)}"
    return FileLooks(
        text,
        format=table.name if table else "",
        options=() if delimiter == "," else (_delimiter(delimiter),),
    )


def _delimiter(character: str) -> str:
    """The option that names it."""
    return "--delimiter '{}'".format(character.replace("\t", r"\t"))


def sniff_delimiter(head: bytes, *, is_whole: bool = True) -> tuple[str, list[str]] | None:
    """What separates the cells of a text that looks like a table, and the first row of these; None
    if it doesn't.
    """
    text = head.decode("utf-8-sig", "replace")
    best: tuple[str, list[str]] | None = None
    for delimiter in _DELIMITERS:
        rows = _rows(text, delimiter, is_whole=is_whole)
        lengths = Counter(map(len, rows))
        columns = len(rows[0]) if len(rows) > 1 else 0
        if lengths[columns] * 10 >= len(rows) * 9 and columns > (len(best[1]) if best else 1):
            best = delimiter, rows[0]
    return best


def _rows(text: str, delimiter: str, *, is_whole: bool) -> list[list[str]]:
    """The first rows of a table; the last one is left out if it may be cut off."""
    rows = list[list[str]]()
    reader = rows_of(StringIO(text, newline=""), delimiter, ReadOptions())
    with suppress(csv.Error):  # a cell that is too long
        for row in reader:
            rows.append(row)
            if len(rows) > _ROWS:
                break
        else:
            rows = rows if is_whole else rows[:-1]
    return [row for row in rows[:_ROWS] if row]


def _records(head: bytes, framing: Framing, *, is_whole: bool) -> list[bytes]:
    """The first records of a text; the last one is left out if it may be cut off."""
    stream = PeekedStream(BytesIO(head).read)
    sample = list[bytes]()
    try:
        for records, _ in frame("", stream, None, ReadOptions(framing=framing)):
            sample += records
    except DamagedContent:
        """It is cut off."""
    if not is_whole and framing is Framing.LINES:
        sample = sample[:-1]
    return sample[:SAMPLE]


def _objects(records: Iterable[bytes]) -> list[dict[str, Raw]]:
    objects = []
    for record in records:
        try:
            objects.append(_decode_members(record))
        except (ValueError, RecursionError):  # msgspec's errors are such, too
            continue
    return objects


def other_format(
    records: Iterable[bytes], formats: Sequence[ImportFormat[Any]], chosen: str
) -> ImportFormat[Any] | None:
    """The format that some records look like, if that isn't the chosen one."""
    form = _format_of(_objects(records), formats)
    return None if form is None or form.name == chosen else form


def _format_of(
    objects: Sequence[dict[str, Raw]], formats: Sequence[ImportFormat[Any]]
) -> ImportFormat[Any] | None:
    """The format that at least half of some objects look like."""
    counts = Counter(form.name for fields in objects for form in formats if form.recognizes(fields))
    for name, count in counts.most_common(1):
        if count * 2 >= len(objects):
            return next(form for form in formats if form.name == name)
    return None


def _of_objects(
    objects: Sequence[dict[str, Raw]], formats: Sequence[ImportFormat[Any]], kind: str
) -> FileLooks:
    if (form := _format_of(objects, formats)) is not None:
        if kind == "JSON lines":
            return FileLooks(form.looks_like, format=form.name)
        return FileLooks(
            f"{form.looks_like}, as {kind}",
            format=form.name,
            framing="--framing json" if kind == "a JSON array" else "",
        )
    fields = ", ".join(
        list(dict.fromkeys(name for members in objects[:SAMPLE] for name in members))[:_COLUMNS]
    )
    if not objects:
        return FileLooks(f"{kind} without records")
    rules = next((candidate.name for candidate in formats if candidate.takes_mapping), "")
    advice = f"Try `{proposed(f'import {rules} …')}` with rules of your own." if rules else ""
    return FileLooks(
        f"{kind} with the {'columns' if kind == 'Parquet' else 'fields'} {fields}", advice
    )
