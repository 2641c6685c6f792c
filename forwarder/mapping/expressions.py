"""Expressions, each by the cheapest way that leaves the record's bytes alone: fixed values, plain
paths, and jq for the rest.

`PathReader` reads the values at paths by one typed pass a level, as the record's own bytes; none
becomes a Python object. Where a name is there twice the last one counts, as it does for jq. What
isn't there, and null, is empty.

The expressions of one mapping that need jq are one program: jq reads the record once, which is most
of what it costs. jq writes its results itself, so that numbers which no expression touches keep all
their digits (docs/decisions/0012).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, Final

import jq
import msgspec
from msgspec import Raw, Struct

from forwarder.core.nesting import MAX_FLAT, check_nesting
from forwarder.core.proposals import proposed
from forwarder.mapping.compiled import PRELUDE, Evaluate, SharedPaths, compile_expression
from forwarder.mapping.paths import LEADS_NOWHERE, Path, Step, parse_path, spelled
from forwarder.mapping.problems import Unmappable, described, glimpse, misconfigured
from forwarder.mapping.restrictions import Restricted, bounds, check_restrictions

EVALUATION_ERRORS: Final = (Unmappable, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the evaluation of an expression raises for a record."""

_NULL: Final = b"null"
_FALSE: Final = (b"", b"false")
_ABSENT: Final = Raw(b"")
_decode_array = msgspec.json.Decoder(list[Raw]).decode


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


class PathReader:
    """Reads the values at some paths of a record."""

    def __init__(self) -> None:
        self._root = _PathNode(())
        self.open: Callable[[bytes], Sequence[Raw]] = _opener([])
        self._leaves: Sequence[tuple[int, int]] | None = None
        """The members by their indexes, and the slot of each, where each is read into one, and
        nothing below or beside them is read.
        """

    def add(self, path: Path, slot: int, rule: str, *, is_optional: bool = False) -> None:
        """Read the value at `path` into `slot`; `rule` is whose error it is if there can't be any.
        `is_optional`: such an error comes as the value (`LEADS_NOWHERE`). Before the first record
        only.
        """
        node = self._root
        for step in path:
            node.is_optional = node.is_optional and is_optional
            node = node.child(step, rule)
        node.slots.append(slot)
        self._root.compile()
        self.open = _opener(self._root.names)
        leaves = [(index, leaf) for index, leaf, _ in self._root.leaves if leaf is not None]
        self._leaves = leaves if len(leaves) == len(self._root.children) else None

    def read(self, record: bytes, values: list[bytes]) -> list[bytes]:
        """Open a record, and put its values into their slots. Raises what both raise."""
        opened = self.open(record)
        if self._leaves is None:
            self.fill(opened, record, values)
            return values
        for index, leaf in self._leaves:
            text = bytes(opened[index])
            if text != _NULL:
                values[leaf] = text
        for slot in self._root.slots:
            values[slot] = record.strip()
        return values

    def fill(self, opened: Sequence[Raw], record: bytes, values: list[bytes]) -> None:
        """Put the values of a record into their slots; `opened` is what `open` gave of it (it
        raises msgspec's errors).

        Raises `Unmappable` where a path leads into something that has no such members, as jq does.
        """
        root = self._root
        for slot in root.slots:
            values[slot] = record.strip()
        if root.elements:
            raise root.wrong(b"{", root.elements[0][1])
        for index, leaf, child in root.leaves:
            if leaf is None:
                child.read(opened[index], values)
            elif (text := bytes(opened[index])) != _NULL:
                values[leaf] = text


class _PathNode:
    """A place in the record that paths lead to or through."""

    def __init__(self, path: Path, rule: str = "") -> None:
        self.path = path
        self.rule = rule
        self.slots: list[int] = []
        self.children: dict[Step, _PathNode] = {}
        self.names: list[str] = []
        self.members: list[_PathNode] = []
        self.leaves: list[tuple[int, int | None, _PathNode]] = []
        """The members by their indexes, each with its slot if it is read into
        one, and has nothing below.
        """
        self.elements: list[tuple[int, _PathNode]] = []
        self.is_optional = True
        """Whether all paths through it are."""
        self._open: Callable[[Raw], Sequence[Raw]] | None = None

    def child(self, step: Step, rule: str) -> _PathNode:
        """The node below; a new one is the rule's."""
        if step not in self.children:
            self.children[step] = _PathNode((*self.path, step), rule)
        self.children[step].rule = self.children[step].rule or rule
        return self.children[step]

    def compile(self) -> None:
        """Make the decoders."""
        named = [(step, child) for step, child in self.children.items() if isinstance(step, str)]
        self.names = [step for step, _ in named]
        self.members = [child for _, child in named]
        self.elements = [
            (step, child) for step, child in self.children.items() if isinstance(step, int)
        ]
        self._open = _opener(self.names) if named else None
        for child in self.children.values():
            child.compile()
        self.leaves = [
            (
                index,
                member.slots[0] if len(member.slots) == 1 and not member.children else None,
                member,
            )
            for index, member in enumerate(self.members)
        ]

    def read(self, raw: Raw, values: list[bytes]) -> None:
        """Put this value, and what is wanted below it, into the slots."""
        text = bytes(raw)
        if not text or text == _NULL:
            return
        for slot in self.slots:
            values[slot] = text
        if self._open is not None:
            if text[:1] != b"{":
                self._fail(text, self.members[0], values)
                return
            opened = self._open(raw)
            for index, _, child in self.leaves:
                child.read(opened[index], values)
        if self.elements:
            self._read_elements(raw, text, values)

    def _read_elements(self, raw: Raw, text: bytes, values: list[bytes]) -> None:
        if text[:1] != b"[":
            self._fail(text, self.elements[0][1], values)
            return
        elements = _decode_array(raw)
        for index, child in self.elements:
            if index < len(elements):
                child.read(elements[index], values)

    def _fail(self, text: bytes, child: _PathNode, values: list[bytes]) -> None:
        """This value can't have such a child: raise that, or put it into the slots below."""
        if not self.is_optional:
            raise self.wrong(text, child)
        self._fill_below(LEADS_NOWHERE + self.wrong(text, child).message.encode(), values)

    def _fill_below(self, value: bytes, values: list[bytes]) -> None:
        for child in self.children.values():
            for slot in child.slots:
                values[slot] = value
            child._fill_below(value, values)

    def wrong(self, text: bytes, child: _PathNode) -> Unmappable:
        """The error for a value that can't have such a child."""
        return Unmappable(
            f"{child.rule}: {spelled(self.path)} is {described(text)}, which has no "
            f"{spelled(child.path[-1:])}"
        )


def _opener(names: Sequence[str]) -> Callable[[bytes | Raw], Sequence[Raw]]:
    """What decodes an object, and gives the values of these members."""
    fields = [
        (f"m{at}", Raw, msgspec.field(name=name, default=_ABSENT)) for at, name in enumerate(names)
    ]
    try:
        decode = msgspec.json.Decoder(msgspec.defstruct("Members", fields, gc=False)).decode
    except ValueError:  # a name that would have to be escaped
        return _dict_opener(names)
    astuple = msgspec.structs.astuple
    return lambda text: astuple(decode(text))


def _dict_opener(names: Sequence[str]) -> Callable[[bytes | Raw], Sequence[Raw]]:
    decode = msgspec.json.Decoder(dict[str, Raw]).decode

    def opened(text: bytes | Raw) -> Sequence[Raw]:
        members = decode(text)
        return [members.get(name, _ABSENT) for name in names]

    return opened


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
        if len(written) > MAX_FLAT:
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
