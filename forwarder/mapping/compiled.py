"""Expressions beside plain paths that need no jq: they are compiled to Python, and copy values byte
for byte.

- `.a // .b // "none"`: the first value that is neither null nor false.
- `{"page_view": "$pageview"}[.name // ""]`: the value that a constant object has under a text.
- `entries(.params)`, `entries(.params).page`: the object that an array of keys with values stands
  for, also with values by their type, as GA4 exports them:
  `{"key": "page", "value": {"string_value": "/tea"}}`; or one of its members.
- `[.user, .time]`: an array.
- `. + .more`: the members of several objects, where an object is needed.

Each means what it means in jq, for which `PRELUDE` defines `entries`; what isn't of these forms is
left to jq.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from forwarder.mapping.paths import LEADS_NOWHERE, PATH, Path, parse_path
from forwarder.mapping.problems import Unmappable, described

PRELUDE: Final = """def entries(f): f | if . == null then null else
reduce .[] as $each ({}; ($each.value | if type == "object" then
    .string_value // ((.int_value // .float_value // .double_value)
        | if type == "string" then (tonumber? // .) else . end)
    else . end) as $value
  | if $value == null then . else .[$each.key] = $value end) end;"""
"""What of this jq doesn't know."""

Evaluate = Callable[[Sequence[bytes]], bytes]
"""Makes the value of an expression, as JSON text (empty: null), of the values of its paths. Raises
`Unmappable`.
"""
_SPACE: Final = re.compile(r"\s*")
_CONSTANT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|true|false|null')
_TABLE: Final = re.compile(r"\{[^{}\[\]]*\}")
_ENTRIES: Final = re.compile(r"entries\s*\(")
_NUMBER: Final = re.compile(rb'"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"').fullmatch
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode
_FALSE: Final = b"false"


_NOTHING: Final = Raw(b"null")


class _Value(Struct, gc=False):
    string_value: Raw = _NOTHING
    int_value: Raw = _NOTHING
    float_value: Raw = _NOTHING
    double_value: Raw = _NOTHING


class _Entry(Struct, gc=False):
    key: str
    value: _Value


class _AnyEntry(Struct, gc=False):
    key: str
    value: Raw = _NOTHING


_decode_typed: Final = msgspec.json.Decoder(list[_Entry]).decode
_decode_any: Final = msgspec.json.Decoder(list[_AnyEntry]).decode
_decode_value: Final = msgspec.json.Decoder(_Value).decode
_NULL: Final = b"null"


class SharedPaths:
    """What the compiled expressions of one mapping have in common: the paths that they read."""

    def __init__(self, add: Callable[[Path], int]) -> None:
        """`add` gives the index at which the value of a path comes."""
        self._add = add
        self._slots: dict[Path, int] = {}
        self._entries: dict[Path, Callable[[bytes], dict[str, Raw]]] = {}

    def slot(self, path: Path) -> int:
        """The index at which its value comes."""
        if path not in self._slots:
            self._slots[path] = self._add(path)
        return self._slots[path]

    def entries(self, path: Path) -> Callable[[bytes], dict[str, Raw]]:
        """What makes an object of the array at a path: once a record, however many expressions
        need it.
        """
        if path not in self._entries:
            self._entries[path] = _remember_last(_object_of)
        return self._entries[path]


def _remember_last(make: Callable[[bytes], dict[str, Raw]]) -> Callable[[bytes], dict[str, Raw]]:
    last: tuple[bytes, dict[str, Raw]] = (b"", {})

    def made(text: bytes) -> dict[str, Raw]:
        nonlocal last
        if last[0] is not text:
            last = (text, make(text))
        return last[1]

    return made


def compile_expression(
    text: str, paths: SharedPaths, *, adds_objects: bool = False
) -> Evaluate | None:
    """What evaluates an expression of the forms above; None if it is of another form.
    `adds_objects`: an object is needed, so that `+` can be nothing else than their sum.
    """
    parser = _Parser(text, adds_objects=adds_objects)
    try:
        made = parser.whole()
    except _OtherForm:
        return None
    return made(paths)


class _OtherForm(Exception):
    """The expression is none of these forms."""


_Make = Callable[[SharedPaths], Evaluate]


class _Parser:
    def __init__(self, text: str, *, adds_objects: bool) -> None:
        self._text = text
        self._adds_objects = adds_objects
        self._at = 0

    def whole(self) -> _Make:
        """The expression, which is all of the text."""
        alternatives = self._alternatives()
        self._match(_SPACE)
        if self._at < len(self._text):
            raise _OtherForm
        return alternatives

    def _alternatives(self) -> _Make:
        alternatives = [self._summed()]
        while self._take("//"):
            alternatives.append(self._summed())
        return alternatives[0] if len(alternatives) == 1 else _first(alternatives)

    def _summed(self) -> _Make:
        terms = [self._term()]
        while self._adds_objects and self._take("+"):
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else _sum(terms)

    def _term(self) -> _Make:
        self._match(_SPACE)
        if (table := self._match(_TABLE)) is not None:
            if not self._take("["):
                raise _OtherForm
            made = _lookup(table, self._alternatives())
            self._need("]")
            return made
        if self._match(_ENTRIES) is not None:
            path = self._path()
            self._need(")")
            member = self._match(PATH)
            return _entries(path) if member is None else _entry(path, parse_path(member))
        if self._take("["):
            members = [self._alternatives()]
            while self._take(","):
                members.append(self._alternatives())
            self._need("]")
            return _array(members)
        if (constant := self._match(_CONSTANT)) is not None:
            return _constant(constant)
        return _read(self._path())

    def _path(self) -> Path:
        self._match(_SPACE)
        text = self._match(PATH)
        path = None if text is None else parse_path(text)
        if path is None or None in path:
            raise _OtherForm
        return path

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def _take(self, sign: str) -> bool:
        self._match(_SPACE)
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise _OtherForm


def _constant(text: str) -> _Make:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:  # jq's own strings: "\(.a)"
        raise _OtherForm from None
    value = b"" if text == "null" else text.encode()
    return lambda _: lambda _: value


def _read(path: Path) -> _Make:
    def make(paths: SharedPaths) -> Evaluate:
        slot = paths.slot(path)

        def read(values: Sequence[bytes]) -> bytes:
            value = values[slot]
            if value[:1] == LEADS_NOWHERE:
                raise Unmappable(value[1:].decode())
            return value

        return read

    return make


def _first(made: Sequence[_Make]) -> _Make:
    def make(paths: SharedPaths) -> Evaluate:
        *before, last = [maker(paths) for maker in made]

        def first(values: Sequence[bytes]) -> bytes:
            for evaluate in before:
                value = evaluate(values)
                if value and value != _FALSE:
                    return value
            return last(values)

        return first

    return make


def _lookup(table: str, index: _Make) -> _Make:
    try:
        members = msgspec.json.decode(table, type=dict[str, Raw])
    except msgspec.DecodeError:
        raise _OtherForm from None
    known = {name: b"" if value == _NOTHING else bytes(value) for name, value in members.items()}

    def make(paths: SharedPaths) -> Evaluate:
        key = index(paths)

        def lookup(values: Sequence[bytes]) -> bytes:
            text = key(values)
            if text[:1] != b'"':
                raise Unmappable(f"{described(text)} is no text, which names in an object are")
            return known.get(_decode_text(text), b"")

        return lookup

    return make


def _array(made: Sequence[_Make]) -> _Make:
    def make(paths: SharedPaths) -> Evaluate:
        evaluated = [maker(paths) for maker in made]
        return lambda values: (
            b"[%b]" % b",".join([expression(values) or _NULL for expression in evaluated])
        )

    return make


def _entries(path: Path) -> _Make:
    read = _read(path)

    def make(paths: SharedPaths) -> Evaluate:
        value = read(paths)
        object_of = paths.entries(path)

        def entries(values: Sequence[bytes]) -> bytes:
            text = value(values)
            return _encode(object_of(text)) if text else b""

        return entries

    return make


def _entry(path: Path, member: Path | None) -> _Make:
    """The value that such an object has under one name."""
    if member is None or len(member) != 1 or not isinstance(member[0], str):
        raise _OtherForm
    name = member[0]
    read = _read(path)

    def make(paths: SharedPaths) -> Evaluate:
        value = read(paths)
        object_of = paths.entries(path)

        def entry(values: Sequence[bytes]) -> bytes:
            text = value(values)
            raw_value = object_of(text).get(name) if text else None
            return b"" if raw_value is None else bytes(raw_value)

        return entry

    return make


def _object_of(text: bytes) -> dict[str, Raw]:
    """The object that an array of keys with values stands for. Raises `Unmappable`."""
    members: dict[str, Raw] = {}
    try:
        for entry in _decode_typed(text):
            value = entry.value
            if value.string_value != _NOTHING:
                members[entry.key] = value.string_value
            elif (number := _number_of(value)) is not None:
                members[entry.key] = number
    except msgspec.ValidationError:  # others among them, or only those
        return _any_object_of(text)
    return members


def _number_of(value: _Value) -> Raw | None:
    for number in (value.int_value, value.float_value, value.double_value):
        if number != _NOTHING and bytes(number) != _FALSE:
            return Raw(bytes(number)[1:-1]) if _NUMBER(number) else number
    return None


def _any_object_of(text: bytes) -> dict[str, Raw]:
    members: dict[str, Raw] = {}
    try:
        for entry in _decode_any(text):
            value: Raw | None = entry.value
            if bytes(entry.value)[:1] == b"{":
                typed = _decode_value(entry.value)
                value = typed.string_value if typed.string_value != _NOTHING else _number_of(typed)
            if value is not None and value != _NOTHING:
                members[entry.key] = value
    except msgspec.ValidationError as error:
        raise Unmappable(f"entries: {described(text)} is no array of keys and values") from error
    return members


def _sum(made: Sequence[_Make]) -> _Make:
    def make(paths: SharedPaths) -> Evaluate:
        evaluated = [maker(paths) for maker in made]

        def merge(values: Sequence[bytes]) -> bytes:
            members: dict[str, Any] = {}
            for evaluate in evaluated:
                value = evaluate(values)
                if value and value[:1] != b"{":
                    raise Unmappable(f"{described(value)} has no members that can be added")
                members.update(_decode_members(value) if value else {})
            return _encode(members)

        return merge

    return make
