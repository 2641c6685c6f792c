"""The edits of rules as plain recursion: each value is cut out, changed and put back, level by
level. What it takes grows with the nesting, and nothing bounds what it makes; that is what the
product does without. It is the model that tests compare the product with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from forwarder.mapping.paths import Path, Step
from forwarder.mapping.redaction import hash_content, keyed_hash, members_of

Names = tuple[str, ...]
_COMMA: Final = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


class CannotSet(Exception):
    """What stands on the way is no object."""


class _Node:
    """What happens to a value, and to those below it."""

    def __init__(self) -> None:
        self.drops = False
        self.hashes = False
        self.below: dict[Step, _Node] = {}
        self.through: _Node | None = None

    def add(self, path: Path) -> _Node:
        node = self
        for step in path:
            node = node.below.setdefault(step, _Node())
        return node

    def compile(self) -> None:
        names: dict[Step, _Node] = {
            step: node for step, node in self.below.items() if isinstance(step, str)
        }
        if names or self.hashes:
            self.through = _Node()
            self.through.hashes = self.hashes
            self.through.below = names
            self.through.through = self.through
        for node in self.below.values():
            node.compile()


class PlainRedaction:
    """Paths to drop and paths to hash."""

    def __init__(self, drop: Iterable[Path], hashed: Iterable[Path] = ()) -> None:
        self._root = _Node()
        for path in drop:
            self._root.add(path).drops = True
        for path in hashed:
            self._root.add(path).hashes = True
        self._root.compile()

    def apply(self, record: bytes, key: bytes = b"") -> bytes:
        """The record without what is dropped, and with the hashes."""
        return self._object(record.strip(), (self._root,), key)

    def _value(self, text: bytes, nodes: Sequence[_Node], key: bytes) -> bytes | None:
        if any(node.drops for node in nodes):
            return None
        if text[:1] == b"[":
            return self._array(text, nodes, key)
        elements = _elements(nodes)
        if text[:1] == b"{":
            for element in elements:
                inner = _Node()
                inner.below = element.below
                nodes = [*nodes, inner]
        else:
            if any(node.drops for node in elements):
                return None
            nodes = [*nodes, *elements]
        left = self._object(text, nodes, key) if text[:1] == b"{" else text
        content = hash_content(left) if any(node.hashes for node in nodes) else b""
        return keyed_hash(key, content) if content else left

    def _object(self, text: bytes, nodes: Sequence[_Node], key: bytes) -> bytes:
        pieces = _Pieces(text)
        for name, at, start, end in members_of(text):
            matched = _matching(nodes, name)
            value = text[start:end]
            pieces.add(at, start, end, self._value(value, matched, key) if matched else value)
        return pieces.joined()

    def _array(self, text: bytes, nodes: Sequence[_Node], key: bytes) -> bytes:
        pieces = _Pieces(text)
        through = [node.through for node in nodes if node.through is not None]
        for index, raw in enumerate(_decode_array(text)):
            match = _COMMA.match(text, pieces.at)
            start = match.end() if match else pieces.at
            end = start + len(memoryview(raw))
            matched = [*through, *_matching(nodes, index)]
            value = text[start:end]
            pieces.add(start, start, end, self._value(value, matched, key) if matched else value)
        return pieces.joined()


def _elements(nodes: Sequence[_Node]) -> list[_Node]:
    """What would hold for the elements of an array, or of arrays in it, in place of the value."""
    elements = [node.below[None] for node in nodes if None in node.below]
    return [*elements, *_elements(elements)] if elements else []


def _matching(nodes: Sequence[_Node], step: Step) -> list[_Node]:
    return [node.below[branch] for node in nodes for branch in (step, None) if branch in node.below]


class _Pieces:
    """The elements of an object or an array, one after the other."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._pieces: list[bytes] = []
        self._copied = 0
        self._empty = True
        self.at = 1

    def add(self, start: int, value: int, end: int, new: bytes | None) -> None:
        if new is None:
            self._pieces.append(self._text[self._copied : self.at])
        else:
            if self._empty and self._copied:
                self._copied = start
            self._empty = False
            self._pieces += (self._text[self._copied : value], new)
        self._copied = self.at = end

    def joined(self) -> bytes:
        return b"".join([*self._pieces, self._text[self._copied :]])


def plain_set(text: bytes, path: Names, value: bytes) -> bytes:
    """An object with a value at a path."""
    name, *rest = path
    pieces = _Pieces(text)
    is_there = False
    for key, at, start, end in members_of(text):
        old = new = text[start:end]
        if key == name:
            is_there = True
            if not rest:
                new = value
            elif old == b"null":
                new = _nested(rest, value)
            elif old[:1] == b"{":
                new = plain_set(old, tuple(rest), value)
            else:
                raise CannotSet
        pieces.add(at, start, end, new)
    made = pieces.joined()
    if is_there:
        return made
    member = _encode(name) + b":" + _nested(rest, value)
    return b"{" + member + (b"" if text[1:].lstrip() == b"}" else b",") + text[1:]


def _nested(path: Sequence[str], value: bytes) -> bytes:
    for name in reversed(path):
        value = b"{%b:%b}" % (_encode(name), value)
    return value


def plain_rename(text: bytes, old: Names, new: Names) -> bytes:
    """What was at one path is at another, in place of what was there."""
    if old[:-1] != new[:-1]:
        value = _value_at(text, old)
        return text if value is None else plain_set(PlainRedaction([old]).apply(text), new, value)
    if old[0] not in [key for key, *_ in members_of(text)]:
        return text
    if len(old) == 1:
        text = PlainRedaction([new]).apply(text)
    pieces = [text[:1]]
    copied = 1
    for key, at, start, end in members_of(text):
        if key == old[0] and len(old) == 1:
            rest = text[at:start].rstrip()[:-1]
            pieces += (text[copied:at], _encode(new[0]), text[at + len(rest.rstrip()) : end])
        elif key == old[0] and text[start : start + 1] == b"{":
            pieces += (text[copied:start], plain_rename(text[start:end], old[1:], new[1:]))
        else:
            continue
        copied = end
    return b"".join([*pieces, text[copied:]])


def _value_at(text: bytes, path: Names) -> bytes | None:
    value = None
    for key, _, start, end in members_of(text):
        if key == path[0]:
            value = text[start:end]
    if value is None or len(path) == 1:
        return value
    return _value_at(value, path[1:]) if value[:1] == b"{" else None
