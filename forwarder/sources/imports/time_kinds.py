"""How the times of records are written: with a zone or without, or as an epoch in one unit or another.

Only a look beside the real reading (`times`), for the preflight: where it sees nothing it says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, defstruct

_ABSENT: Final = Raw(b"null")
_ZONE: Final = re.compile(rb"(?:UTC|GMT|[0-9 ][+-][0-9]{2}(?::?[0-9]{2})?(?::?[0-9]{2})?)$", re.IGNORECASE)
_DATE: Final = len("2026-01-31")
_EPOCH: Final = re.compile(rb"[0-9]{1,19}(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?")
_MAIL: Final = re.compile(rb"(?:[A-Za-z]{3},? )?[0-9]{1,2} [A-Za-z]{3} [0-9]{4} [0-9:]+(?P<zone> .+)?")
_DATE_WITHOUT_HYPHENS: Final = len("20260131")


class TimeKind(StrEnum):
    """How a time is written."""

    ZONE = "with_zone"
    NO_ZONE = "without_zone"
    SECONDS = "epoch_seconds"
    MILLISECONDS = "epoch_milliseconds"
    MICROSECONDS = "epoch_microseconds"


def kind_of(value: bytes) -> TimeKind | None:
    """How a time is written, from its JSON; None if it isn't one in a form that is known."""
    if value[:1] != b'"':
        return _epoch(value)
    text = value[1:-1].strip()
    if text.replace(b".", b"", 1).isdigit() and len(text) != _DATE_WITHOUT_HYPHENS:
        return _epoch(text)
    if found := _MAIL.fullmatch(text):
        return TimeKind.ZONE if found["zone"] else TimeKind.NO_ZONE
    if not text[:4].isdigit():
        return None
    named = text[-1:] in b"zZ" or _ZONE.search(text[_DATE:])
    return TimeKind.ZONE if named and len(text) > _DATE else TimeKind.NO_ZONE


def _epoch(digits: bytes) -> TimeKind | None:
    if not _EPOCH.fullmatch(digits):
        return None
    number = float(digits)  # the bounds are those of `times`
    return TimeKind.SECONDS if number <= 1e10 else TimeKind.MILLISECONDS if number <= 1e13 else TimeKind.MICROSECONDS


class TimeInspector:
    """Looks where records have their time: `name`, or `name.name` for one level down. The first name that has a value counts."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._paths = [field.split(".", 1) for field in fields]
        outer = sorted({path[0] for path in self._paths})
        self._numbers = {name: f"f{number}" for number, name in enumerate(outer)}
        self._decode = _decoder(outer) if outer else None
        self._inner = {path[1]: _decoder([path[1]]) for path in self._paths if len(path) > 1}

    def kind(self, record: bytes) -> TimeKind | None:
        """How the record's time is written; None if it isn't seen."""
        if self._decode is None:
            return None
        try:
            return self._first(self._decode(record))
        except (ValueError, RecursionError):  # of msgspec: what can't be read is refused elsewhere
            return None

    def _first(self, fields: Any) -> TimeKind | None:
        for outer, *inner in self._paths:
            value: Raw = getattr(fields, self._numbers[outer])
            if inner and value is not _ABSENT:
                value = self._inner[inner[0]](value).f0
            if bytes(value) not in (b"null", b'""'):
                return kind_of(bytes(value))
        return None


def _decoder(names: Sequence[str]) -> Any:
    """Of an object's fields with these names, whatever characters they have."""
    numbered = {f"f{number}": name for number, name in enumerate(names)}
    fields = [(number, Raw, _ABSENT) for number in numbered]
    return msgspec.json.Decoder(defstruct("Fields", fields, rename=numbered, gc=False)).decode
