"""Expressions, each by the cheapest way that leaves the record's bytes alone: fixed values, plain paths, and jq for all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from forwarder.mapping import program
from forwarder.mapping.paths import Path, parse_path
from forwarder.mapping.reading import Reader

_NULL: Final = b"null"
_FALSE: Final = (b"", b"false")


class Expressions:
    """The expressions of a mapping; each has a slot that its value is found in.

    Values are JSON text; null and what isn't there are empty.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._constants: list[bytes] = []
        self._reader = Reader()
        self._programmed: list[tuple[int, str, str]] = []
        self._plain_condition: Reader | None = None
        self._condition: str | None = None
        self._program: program.Program | None = None

    def add(self, rule: str, expression: str) -> int:
        """The slot of an expression; `rule` names it below the mapping's key. Raises `ConfigurationError` if it can't be compiled."""
        slot = len(self._constants)
        fixed = _fixed(expression)
        self._constants.append(fixed or b"")
        if fixed is not None:
            return slot
        path = _plain(expression)
        if path is not None:
            self._reader.add(path, slot, rule)
            return slot
        program.check(f"{self._key}.{rule}", expression)
        self._programmed.append((slot, rule, expression))
        return slot

    def only_where(self, expression: str) -> None:
        """Set the condition. Raises `ConfigurationError` if it can't be compiled."""
        path = _plain(expression)
        if path is not None:
            self._plain_condition = Reader()
            self._plain_condition.add(path, 0, "where")
        else:
            program.check(f"{self._key}.where", expression)
            self._condition = expression

    def compile(self) -> None:
        """Make one program of what needs jq: after the last expression, before the first record."""
        if self._programmed or self._condition is not None:
            self._program = program.Program(self._condition, [(rule, expression) for _, rule, expression in self._programmed])

    def evaluate(self, record: bytes) -> Sequence[bytes] | None:
        """The values of a record, by slot; None if the condition says no.

        Raises `Unmappable`, `UnicodeDecodeError`, `RecursionError`, and msgspec's errors for a record that isn't a JSON object.
        """
        if not record.isascii():
            record.decode()
        found = self._reader.open(record)
        if self._plain_condition is not None and not _is_true(self._plain_condition, record):
            return None
        values = self._constants.copy()
        if self._program is not None:
            results = self._program.run(record)
            if results is None:
                return None
            for (slot, _, _), value in zip(self._programmed, results, strict=True):
                values[slot] = b"" if value == _NULL else value
        self._reader.fill(found, record, values)
        return values


def _is_true(condition: Reader, record: bytes) -> bool:
    values = [b""]
    condition.fill(condition.open(record), record, values)
    return values[0] not in _FALSE


def _plain(expression: str) -> Path | None:
    path = parse_path(expression)
    return None if path is None or None in path else path


def _fixed(expression: str) -> bytes | None:
    """The JSON text that an expression is; empty for null; None if it is none."""
    text = expression.strip().encode()
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return b"" if text == _NULL else text
