"""What the cells of tables stand for, which are texts as they are read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from forwarder.core.nesting import check_nesting
from forwarder.core.ports import Reason
from forwarder.sources.imports.format import RecordRefused
from forwarder.sources.imports.values import check_utf8

BOOLEANS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
"""How a yes or no is written, in any case."""

_is_number: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
_is_short_number: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?").fullmatch
"""Most are such, and none of them is too large."""
_WORD: Final = re.compile(r"[a-z]+")
_EMPTY: Final = Raw(b'""')
_NULL: Final = Raw(b"null")
_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode


def read_json(cell: str) -> Raw:
    """A JSON value as it is written. Raises ValueError (msgspec's errors are) or RecursionError."""
    check_nesting(cell.encode())
    return _decode_raw(one_line(cell))


def read_number(cell: str) -> Raw:
    """A number as it is written, as in JSON. Raises ValueError."""
    if not _is_short_number(cell) and (not _is_number(cell) or math.isinf(float(cell))):
        raise ValueError(cell)
    return Raw(cell.encode())


def read_boolean(cell: str) -> bool:
    """A yes or no. Raises KeyError."""
    return BOOLEANS[cell.lower()]


def one_line(cell: str) -> str | bytes:
    """JSON of several lines on one, because events are kept a line each."""
    return msgspec.json.format(cell.encode(), indent=-1) if "\n" in cell or "\r" in cell else cell


def check_row(record: bytes) -> None:
    """Raise `RecordRefused` for a row that couldn't become an object, as it had other cells than
    the header.
    """
    if not record.lstrip().startswith(b"{"):
        check_utf8(record)
        raise RecordRefused(
            Reason.UNDECODABLE,
            "the row has more or fewer cells than the header, or a quote without an end",
        )


@dataclass(frozen=True, slots=True)
class TableCells:
    """Which columns of a table that is mapped hold something else than texts."""

    numbers: Set[str] = frozenset()
    booleans: Set[str] = frozenset()
    json: Set[str] = frozenset()
    tables: Sequence[str] = ()
    """Names of tables, of which a file's name may have one."""

    def reader(self) -> Callable[[bytes, str], bytes]:
        """What makes of a row, a JSON object of texts, and the name of its file the record for the
        rules: without empty cells, and with numbers, booleans and JSON in place of their texts. A
        text that isn't what its column should hold stays one. Its table, if it is known, is the
        only member of `$table`.

        It raises `RecordRefused` for a row that isn't an object, and msgspec's errors.
        """
        readers: dict[str, Callable[[str], Any]] = {
            **dict.fromkeys(self.numbers, read_number),
            **dict.fromkeys(self.booleans, read_boolean),
            **dict.fromkeys(self.json, read_json),
        }

        table_of = lru_cache(maxsize=64)(self._table_of)

        def read(row: bytes, file: str) -> bytes:
            check_row(row)
            members: dict[str, Any] = {
                name: value
                for name, value in _decode_members(row).items()
                if value not in (_EMPTY, _NULL)
            }
            for name in readers.keys() & members.keys():
                text = bytes(members[name])
                if text[:1] != b'"':  # of a source that isn't a table
                    continue
                try:
                    members[name] = readers[name](_decode_text(text).strip())
                except (ValueError, KeyError, RecursionError):
                    continue
            if table := table_of(file):
                members["$table"] = {table: True}
            return _encode(members)

        return read

    def _table_of(self, file: str) -> str:
        """The table that the name of a file has, the last one in it; empty if there is none."""
        words = [word for word in _WORD.findall(file.lower()) if word in self.tables]
        return words[-1] if words else ""
