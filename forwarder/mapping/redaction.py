"""Taking fields out of a record, and replacing others with keyed hashes, before anything else sees
it.

Invariants: all other bytes of the record stay, white space and the spelling of names included. A
field is found however its name is spelled (`\\u0070assword`), each time that its object has it,
and also in the elements of arrays that stand where its path expects an object: so `.items.email`
means the same as `.items[].email`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from forwarder.mapping.paths import Path, Step

_NAME: Final = re.compile(
    rb'[ \t\r\n]*,?[ \t\r\n]*("(?:[^"\\]++|\\.)*+"[ \t\r\n]*:[ \t\r\n]*)', re.DOTALL
)
_COMMA: Final = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_NULL: Final = b"null"
_decode_any = msgspec.json.Decoder().decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode


class _Name:
    """A member's name. Each is a key of its own, so that members of one name are all there, in the
    order of the text.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _named(kind: type, text: Any) -> _Name:  # noqa: ARG001 - msgspec calls it so
    return _Name(text)


_decode_members = msgspec.json.Decoder(dict[_Name, Raw], dec_hook=_named).decode


class _RedactedNode:
    """What happens to a value, and to those below it."""

    def __init__(self) -> None:
        self.drops = False
        self.hashes = False
        self.below: dict[Step, _RedactedNode] = {}
        self.through: _RedactedNode | None = None
        """What holds for the elements of an array that stands instead of the value."""

    def add(self, path: Path) -> _RedactedNode:
        """The node at a path."""
        node = self
        for step in path:
            node = node.below.setdefault(step, _RedactedNode())
        return node

    def compile(self) -> None:
        """Find out what goes through arrays."""
        names: dict[Step, _RedactedNode] = {
            step: node for step, node in self.below.items() if isinstance(step, str)
        }
        if names or self.hashes:
            self.through = _RedactedNode()
            self.through.hashes = self.hashes
            self.through.below = names
            self.through.through = self.through
        for node in self.below.values():
            node.compile()


class Redaction:
    """Paths to drop and paths to hash."""

    def __init__(self, drop: Iterable[Path], hashed: Iterable[Path] = ()) -> None:
        self._root = _RedactedNode()
        for path in drop:
            self._root.add(path).drops = True
        for path in hashed:
            self._root.add(path).hashes = True
        self._root.compile()

    def apply(self, record: bytes, key: bytes = b"") -> bytes:
        """The record without what is dropped, and with the hashes. Raises msgspec's errors if it
        isn't a JSON object.
        """
        return self._object(record.strip(), (self._root,), key)

    def _value(self, text: bytes, nodes: Sequence[_RedactedNode], key: bytes) -> bytes | None:
        """What becomes of a value; None if it is dropped."""
        if any(node.drops for node in nodes):
            return None
        first = text[:1]
        if first == b"[":
            return self._array(text, nodes, key)
        left = self._object(text, nodes, key) if first == b"{" else text
        return _hashed(left, key) if any(node.hashes for node in nodes) else left

    def _object(self, text: bytes, nodes: Sequence[_RedactedNode], key: bytes) -> bytes:
        edits = _Edits(text)
        wanted = {step for node in nodes for step in node.below}
        for name, at, start, end in members_of(text):
            if name in wanted or None in wanted:
                edits.element(
                    at, start, end, self._value(text[start:end], _matching(nodes, name), key)
                )
            else:
                edits.untouched(at, end)
        return edits.made()

    def _array(self, text: bytes, nodes: Sequence[_RedactedNode], key: bytes) -> bytes:
        edits = _Edits(text)
        through = [node.through for node in nodes if node.through is not None]
        for index, raw in enumerate(_decode_array(text)):
            match = _COMMA.match(text, edits.at)
            start = match.end() if match else edits.at
            end = start + len(memoryview(raw))
            found = [*through, *_matching(nodes, index)]
            edits.element(
                start,
                start,
                end,
                self._value(text[start:end], found, key) if found else text[start:end],
            )
        return edits.made()


def members_of(text: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Each member of an object that begins with its brace, in order: its name, and where name,
    value and its end are.

    A name that is there twice comes twice. Raises msgspec's errors if the text is no object.
    """
    at = 1
    for name, raw in _decode_members(text).items():
        match = _NAME.match(text, at)
        if match is None:
            raise AssertionError("a member that was decoded has no name")
        start = match.end()
        at = start + len(memoryview(raw))
        yield name.text, match.start(1), start, at


def hash_content(text: bytes) -> bytes:
    """What is hashed of a value: of a string its characters, of anything else its text; nothing of
    what identifies no person.
    """
    if text[:1] == b'"':
        string: str = _decode_any(text)
        return string.encode() if string.strip() else b""
    return b"" if text == _NULL else text


def keyed_hash(key: bytes, content: bytes) -> bytes:
    """The hash as JSON text."""
    return b'"%b"' % hmac.digest(key, content, "sha256").hex().encode()


def _hashed(text: bytes, key: bytes) -> bytes:
    """The hash of a value; what stands for nothing stays what it is."""
    content = hash_content(text)
    return keyed_hash(key, content) if content else text


def _matching(nodes: Sequence[_RedactedNode], step: Step) -> list[_RedactedNode]:
    """What holds for a member or an element."""
    return [node.below[each] for node in nodes for each in (step, None) if each in node.below]


class _Edits:
    """An object or an array of which elements are replaced or taken out, one after the other; what
    is between them stays.
    """

    __slots__ = ("_copied", "_empty", "_pieces", "_text", "at")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._pieces: list[bytes] = []
        self._copied = 0
        self._empty = True
        self.at = 1
        """Where the last element ends."""

    def untouched(self, start: int, end: int) -> None:
        """The next element, from its name on, stays as it is."""
        if self._empty:
            self._empty = False
            self._uncomma(start)
        self.at = end

    def element(self, start: int, value: int, end: int, new: bytes | None) -> None:
        """The next element, from its name on, gets another value; None takes it out, and the comma
        before it.
        """
        if new is None:
            self._pieces.append(self._text[self._copied : self.at])
            self._copied = end
        else:
            self.untouched(start, end)
            self._pieces += (self._text[self._copied : value], new)
            self._copied = end
        self.at = end

    def _uncomma(self, start: int) -> None:
        """The first element that stays has no comma before it, even if those before it are gone."""
        if self._copied:
            self._copied = start

    def made(self) -> bytes:
        """The text with all changes."""
        self._pieces.append(self._text[self._copied :])
        return b"".join(self._pieces)
