"""Expressions, each by the cheapest way that leaves the record's bytes alone: fixed values, plain
paths, and jq for the rest.

Those of one mapping that need jq are one program: jq reads the record once, which is most of what
it costs. jq writes its results itself, so that numbers which no expression touches keep all their
digits (docs/decisions/0012).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, Final

import jq
import msgspec
from msgspec import Raw, Struct

from forwarder.core.nesting import check_nesting
from forwarder.core.proposals import proposed
from forwarder.mapping.compiled import PRELUDE, Evaluate, SharedPaths, compile_expression
from forwarder.mapping.paths import Path, PathReader, parse_path
from forwarder.mapping.problems import Unmappable, glimpse, misconfigured
from forwarder.mapping.restrictions import Restricted, bounds, check_restrictions

EVALUATION_ERRORS: Final = (Unmappable, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the evaluation of an expression raises for a record."""

_NULL: Final = b"null"
_FALSE: Final = (b"", b"false")


class Expressions:
    """The expressions of a mapping; each has a slot that its value is found in.

    Values are JSON text; null and what isn't there are empty.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._constants: list[bytes] = []
        self._reader = PathReader()
        self._programmed: list[tuple[int, str, str]] = []
        self._compiled: list[tuple[int, str, Evaluate]] = []
        self._paths = SharedPaths(self._add_path)
        self._plain_condition: _PlainCondition | None = None
        self._condition: str | None = None
        self._program: Program | ConditionProgram | None = None
        self._is_simple = False
        """Whether there is neither a condition nor a program."""

    def add(self, rule: str, expression: str, *, is_object: bool = False) -> int:
        """The slot of an expression; `rule` names it below the mapping's key, `is_object`: that
        needs an object. Raises `ConfigurationError` if it can't be compiled.
        """
        slot = len(self._constants)
        fixed = _fixed(expression)
        self._constants.append(fixed or b"")
        if fixed is not None:
            return slot
        path = _plain(expression)
        if path is not None:
            self._reader.add(path, slot, rule)
            return slot
        evaluate = compile_expression(expression, self._paths, adds_objects=is_object)
        if evaluate is not None:
            self._compiled.append((slot, rule, evaluate))
            return slot
        check(f"{self._key}.{rule}", expression)
        self._programmed.append((slot, rule, expression))
        return slot

    def _add_path(self, path: Path) -> int:
        slot = len(self._constants)
        self._constants.append(b"")
        self._reader.add(path, slot, "", is_optional=True)
        return slot

    def only_where(self, expression: str) -> None:
        """Set the condition. Raises `ConfigurationError` if it can't be compiled."""
        self._plain_condition = _PlainCondition.of(expression)
        if self._plain_condition is None:
            check(f"{self._key}.where", expression)
            self._condition = expression

    def compile(self) -> None:
        """Make one program of what needs jq: after the last expression, before the first record."""
        if self._condition is not None and not self._programmed:
            self._program = ConditionProgram(self._condition)
        elif self._programmed:
            self._program = Program(
                self._condition, [(rule, expression) for _, rule, expression in self._programmed]
            )
        self._is_simple = (
            self._program is None and self._plain_condition is None and not self._compiled
        )

    def evaluate(self, record: bytes) -> Sequence[bytes] | None:
        """The values of a record, by slot; None if the condition says no.

        Raises `Unmappable`, `UnicodeDecodeError`, `RecursionError`, and msgspec's errors for a
        record that isn't a JSON object.
        """
        if not record.isascii():
            record.decode()
        if self._is_simple:
            return self._reader.read(record, self._constants.copy())
        values = self._constants.copy()
        opened = self._reader.open(record)
        if self._plain_condition is not None and not self._plain_condition.holds(record):
            return None
        if self._program is not None:
            results = self._program.run(record)
            if results is None:
                return None
            for (slot, _, _), value in zip(self._programmed, results, strict=True):
                values[slot] = b"" if value == _NULL else value
        self._reader.fill(opened, record, values)
        for slot, rule, evaluate in self._compiled:
            try:
                values[slot] = evaluate(values)
            except Unmappable as error:
                raise Unmappable(f"{rule}: {error.message.removeprefix(': ')}") from None
        return values

    def select(
        self, records: Sequence[bytes], failed: Callable[[int, Exception], object]
    ) -> list[int]:
        """The indexes of the records for which the condition, which is all there is, holds.

        A record for which it can't be evaluated is reported to `failed` with what `evaluate`
        raises. Those that need jq are read in one call: a quarter of the time is that of calls.
        """
        if len(records) > 1 and isinstance(self._program, ConditionProgram):
            verdicts = self._program.run_all(records)
            if verdicts is not None:
                return [index for index, verdict in enumerate(verdicts) if verdict]
            # one by one they say which it is, and why
        indexes: list[int] = []
        for index, record in enumerate(records):
            try:
                if self.evaluate(record) is not None:
                    indexes.append(index)
            except EVALUATION_ERRORS as error:
                failed(index, error)
        return indexes


class _PlainCondition:
    """A condition that needs no jq."""

    def __init__(self, reader: PathReader, slots: int, evaluate: Evaluate) -> None:
        self._reader = reader
        self._slots = slots
        self._evaluate = evaluate

    @classmethod
    def of(cls, expression: str) -> _PlainCondition | None:
        """The condition that an expression is; None if it needs jq."""
        reader = PathReader()
        path = _plain(expression)
        if path is not None:
            reader.add(path, 0, "where")
            return cls(reader, 1, itemgetter(0))
        slots = count()

        def add_path(path: Path) -> int:
            slot = next(slots)
            reader.add(path, slot, "where", is_optional=True)
            return slot

        evaluate = compile_expression(expression, SharedPaths(add_path))
        return None if evaluate is None else cls(reader, next(slots), evaluate)

    def holds(self, record: bytes) -> bool:
        """Whether it is neither false nor null for a record. Raises `Unmappable`, and msgspec's
        errors.
        """
        values = [b""] * self._slots
        self._reader.fill(self._reader.open(record), record, values)
        try:
            return self._evaluate(values) not in _FALSE
        except Unmappable as error:
            raise Unmappable(f"where: {error.message.removeprefix('where: ')}") from None


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


_PRELUDE: Final = f'{PRELUDE} def now: error("now would differ each time that the record is read");'
_BOUNDED: Final = "(try [limit(2; (\n{}\n\n))] catch {{error: (tostring | .[:200])}})"
"""At most two results are made: an expression may have endlessly many. The empty line ends a
comment, also one with a backslash.
"""
_FALSE_IN_JQ: Final = (b"null", b"false")


class _Failed(Struct, gc=False):
    """An expression that raised."""

    error: str


_decode = msgspec.json.Decoder(list[list[Raw] | _Failed]).decode


def check(key: str, expression: str) -> None:
    """Raises `ConfigurationError` if jq can't compile the expression, or it may not be used; `key`
    is its setting.
    """
    try:
        check_restrictions(expression)
        jq.compile(f"{PRELUDE}\n{expression}")
        jq.compile(f"{_PRELUDE}{bounds(expression)} {_BOUNDED.format(expression)}")
    except Restricted as error:
        raise misconfigured(key, f"{glimpse(expression)}: {error}", error.hint) from error
    except ValueError as error:
        said = (
            str(error)
            .removeprefix("jq: error: ")
            .partition(" at <top-level>")[0]
            .partition("\n")[0]
        )
        raise misconfigured(
            key, f"jq can't compile {glimpse(expression)}: {said}", _hint(expression)
        ) from error


def _hint(expression: str) -> str:
    word = expression.strip()
    if word.replace("_", "").replace(" ", "").replace("-", "").replace("$", "").isalnum():
        return (
            f"""A fixed text has quotes of its own: '"{word}"'. """
            f"A field of the record begins with a dot: {_field(word)}"
        )
    tries = f"`{proposed('mapping try')}` tries them."
    return (
        'Expressions are jq: .user.id is a field, "fixed" a text, .level == "error" a '
        f"condition; {tries}"
    )


def _field(word: str) -> str:
    return f".{word}" if word.isidentifier() else f'.["{word}"]'


class Program:
    """A condition, if there is one, and expressions, each with the name of its
    rule. All have been checked.
    """

    def __init__(self, condition: str | None, expressions: Sequence[tuple[str, str]]) -> None:
        self._rules = [rule for rule, _ in expressions]
        self._has_condition = condition is not None
        results = f"[{', '.join([_BOUNDED.format(expression) for _, expression in expressions])}]"
        if condition is not None:
            is_false = 'type == "array" and length == 1 and (.[0] | not)'
            results = (
                f"{_BOUNDED.format(condition)} as $where | if $where | {is_false} then "
                f"[$where] else [$where] + {results} end"
            )
        everything = "\n".join([condition or "", *(expression for _, expression in expressions)])
        self._program: Any = jq.compile(f"{_PRELUDE}{bounds(everything)} {results} | tojson")

    def run(self, record: bytes) -> list[bytes] | None:
        """The value of each expression as JSON text; None if the condition is false or null.

        Raises `Unmappable` if one raises, or doesn't give one result.
        """
        try:
            texts = self._program.input_text(record.decode()).all()
        except ValueError as error:
            raise Unmappable(f"jq: {glimpse(str(error))}") from error
        if not texts:
            raise Unmappable("jq: it ended without a result")
        written = texts[0].encode()
        check_nesting(written)
        results = _decode(written)
        if self._has_condition:
            if _single("where", results[0]) in _FALSE_IN_JQ:
                return None
            del results[0]
        return [_single(rule, result) for rule, result in zip(self._rules, results, strict=True)]


_VERDICTS: Final = """try [label $__end | foreach (
{}

) as $each (0; . + 1; ($each | not | not), if . > 1 then break $__end else empty end)]
catch {{error: (tostring | .[:200])}}"""
"""Whether each of at most two results is true; cheaper than `_BOUNDED`, and no JSON is written."""


class ConditionProgram:
    """A condition alone, which has been checked."""

    def __init__(self, condition: str) -> None:
        self._program: Any = jq.compile(
            f"{_PRELUDE}{bounds(condition)} {_VERDICTS.format(condition)}"
        )

    def run_all(self, records: Sequence[bytes]) -> list[bool] | None:
        """For each record whether the condition holds; None if one can't be read, or the condition
        not be evaluated for it.
        """
        try:
            outputs = self._program.input_text(b"\n".join(records).decode()).all()
        except ValueError:  # UnicodeDecodeError is one, too
            return None
        if len(outputs) != len(records) or not all(
            result in ([True], [False]) for result in outputs
        ):
            return None
        return [result[0] for result in outputs]

    def run(self, record: bytes) -> list[bytes] | None:
        """Nothing if the condition holds; None if it is false or null. Raises as `Program.run`."""
        try:
            (output,) = self._program.input_text(record.decode()).all()
        except UnicodeDecodeError:
            raise
        except ValueError as error:
            raise Unmappable(f"jq: {glimpse(str(error))}") from error
        if isinstance(output, dict):
            raise Unmappable(f"where: jq: {glimpse(output['error'])}")
        if len(output) != 1:
            raise Unmappable(f"where: {_wrong_count(len(output))}")
        return [] if output[0] else None


def _wrong_count(results: int) -> str:
    return f"the expression gives {'several results' if results else 'no result'}; one is needed"


def _single(rule: str, result: list[Raw] | _Failed) -> bytes:
    if isinstance(result, _Failed):
        raise Unmappable(f"{rule}: jq: {glimpse(result.error)}")
    if len(result) != 1:
        raise Unmappable(f"{rule}: {_wrong_count(len(result))}")
    return bytes(result[0])
