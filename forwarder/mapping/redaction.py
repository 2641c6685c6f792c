"""Taking fields out of a record, and replacing others with keyed hashes, before anything else sees
it.

Invariants: all other bytes of the record stay, white space and the spelling of names included. A
field is found however its name is spelled (`\\u0070assword`), each time that its object has it,
and also in the elements of arrays that stand where its path expects an object, and in a value that
stands where it expects an array of such: so `.items.email` means the same as `.items[].email`.
"""

from __future__ import annotations

import hmac
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Raw

from forwarder.mapping.ordered_edits import OrderedEdits
from forwarder.mapping.paths import Path, Step

_NAME: Final = re.compile(
    rb'[ \t\r\n]*,?[ \t\r\n]*("(?:[^"\\]++|\\.)*+"[ \t\r\n]*:[ \t\r\n]*)', re.DOTALL
)
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]|[^ \t\r\n,:"\[\]{}]++', re.DOTALL)
_BRACKET: Final = ord("[")
_BRACE: Final = ord("{")
_CLOSING_BRACKET: Final = ord("]")
_OPENING: Final = b"[{"
_OPENINGS: Final = (b"[", b"{")
_CLOSINGS: Final = (b"]", b"}")
_NULL: Final = b"null"
_decode_any = msgspec.json.Decoder().decode


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
        self.by_index = False
        """Whether its index says what happens to an element of an array."""
        self.through: _RedactedNode | None = None
        """What holds for the elements of an array that stands instead of the value."""
        self.alone: Sequence[_RedactedNode] = ()
        """What holds for the elements of an array instead of which the value stands, or an array of
        such.
        """
        self.inner: Sequence[_RedactedNode] = ()
        """What holds for the members of an object that stands there."""

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
        self.by_index = any(isinstance(step, int) for step in self.below)
        for node in self.below.values():
            node.compile()
        element = self.below.get(None)
        if element is not None:
            self.alone = (element, *element.alone)
            members = _RedactedNode()
            members.below = element.below
            self.inner = (members, *element.inner)


class Redaction:
    """Paths to drop and paths to hash."""

    def __init__(self, drop: Iterable[Path], hashed: Iterable[Path] = ()) -> None:
        self._root = _RedactedNode()
        for path in drop:
            self._root.add(path).drops = True
        for path in hashed:
            self._root.add(path).hashes = True
        self._root.compile()

    def apply(self, record: bytes, key: bytes = b"", limit: int = sys.maxsize) -> bytes:
        """The record without what is dropped, and with the hashes. Raises msgspec's errors if it
        isn't a JSON object, and `TooLong` if it would have more bytes than `limit`.
        """
        edits = OrderedEdits(record.strip(), limit)
        _Pass(edits, key).object(0, len(edits.text), (self._root,))
        return edits.made()


class _Pass:
    """One pass through a text, from its first byte to its last: each array is searched once, with
    all arrays in it, and each object once for each name of the paths that lead into it.
    """

    def __init__(self, edits: OrderedEdits, key: bytes) -> None:
        self._edits = edits
        self._text = edits.text
        self._key = key

    def _value(self, start: int, end: int, nodes: Sequence[_RedactedNode]) -> None:
        """What becomes of a value that is neither dropped nor an array."""
        text = self._text
        is_object = text[start : start + 1] == b"{"
        held = nodes if is_object else _alone(nodes)
        if is_object:
            nodes = [*nodes, *chain.from_iterable([node.inner for node in nodes])]
        if not any(node.hashes for node in held):
            if is_object:
                self.object(start, end, nodes)
            return
        value = text[start:end]
        if is_object:
            # it may be longer than the text whose part its hash becomes
            edits = OrderedEdits(value, max(self._edits.limit, len(value)))
            _Pass(edits, self._key).object(0, len(value), nodes)
            value = edits.made()
        content = hash_content(value)
        if content:
            self._edits.replace(start, end, keyed_hash(self._key, content))

    def object(self, start: int, end: int, nodes: Sequence[_RedactedNode]) -> None:
        """What becomes of the members of an object."""
        matching: dict[str, tuple[list[_RedactedNode], bool]] = {}
        wanted = {step for node in nodes for step in node.below}
        every = None in wanted
        text = self._text
        members = _Elements(self._edits, start)
        for name, at, value, after in members_of(text[start:end]):
            if not (every or name in wanted):
                members.keep(start + at, start + after)
                continue
            below_and_drops = matching.get(name)
            if below_and_drops is None:
                below = _matching(nodes, name)
                below_and_drops = matching[name] = below, any(node.drops for node in below)
            below, drops = below_and_drops
            first = text[start + value]
            if drops or (first not in _OPENING and any(node.drops for node in _alone(below))):
                members.drop(start + after)
                continue
            members.keep(start + at, start + after)
            if first == _BRACKET:
                self._array(start + value, below)
            else:
                self._value(start + value, start + after, below)

    def _array(self, start: int, nodes: Sequence[_RedactedNode]) -> None:
        """What becomes of the elements of an array, and of the arrays in it."""
        text = self._text
        tokens = _TOKEN.finditer(text, start + 1)
        array = _Array(self._edits, start, nodes)
        outer: list[_Array] = []
        for token in tokens:
            at = token.start()
            first = text[at]
            if first == _CLOSING_BRACKET:
                if not outer:
                    return
                array = outer.pop()
                array.elements.at = at + 1
                array.index += 1
                continue
            matched = array.matched if array.is_uniform else array.matching()
            if first == _BRACKET and matched and not array.drops:
                array.elements.keep(at, at)
                outer.append(array)
                array = _Array(self._edits, at, matched)
                continue
            end = token.end() if first not in _OPENING else _end_of(tokens)
            array.index += 1
            is_plain = first not in _OPENING
            if array.drops or (is_plain and any(node.drops for node in array.alone)):
                array.elements.drop(end)
                continue
            array.elements.keep(at, end)
            if array.hashes or (matched and (first == _BRACE or (is_plain and array.alone))):
                self._value(at, end, matched)


class _Array:
    """An array that a pass is in."""

    __slots__ = (
        "_nodes",
        "_through",
        "alone",
        "drops",
        "elements",
        "hashes",
        "index",
        "is_uniform",
        "matched",
    )

    def __init__(self, edits: OrderedEdits, start: int, nodes: Sequence[_RedactedNode]) -> None:
        self._nodes = nodes
        self._through = [node.through for node in nodes if node.through is not None]
        self.elements = _Elements(edits, start)
        self.index = 0
        self.is_uniform = not any(node.by_index for node in nodes)
        """Whether the same holds for all elements."""
        self._set([*self._through, *_matching(nodes, None)])

    def _set(self, nodes: Sequence[_RedactedNode]) -> None:
        self.matched = nodes
        """What holds for the next element."""
        self.drops = any(node.drops for node in nodes)
        self.hashes = any(node.hashes for node in nodes)
        self.alone = [*chain.from_iterable([node.alone for node in nodes])]
        """What holds for it if it stands instead of an array."""

    def matching(self) -> Sequence[_RedactedNode]:
        """What holds for the next element, where that depends on its index."""
        self._set([*self._through, *_matching(self._nodes, self.index)])
        return self.matched


class _Elements:
    """The members of an object, or the elements of an array, one after the other: each is kept or
    taken out; what is between them stays.
    """

    __slots__ = ("_edits", "_is_first", "_start", "at")

    def __init__(self, edits: OrderedEdits, start: int) -> None:
        self._edits = edits
        self._start = start + 1
        self._is_first = True
        self.at = start + 1
        """Where the last element ends."""

    def keep(self, start: int, end: int) -> None:
        """The next one, from its name on, stays; the first that does has no comma before it."""
        if self._is_first:
            self._is_first = False
            if self.at != self._start:
                self._edits.replace(self.at, start, b"")
        self.at = end

    def drop(self, end: int) -> None:
        """The next one is taken out, and the comma before it."""
        self._edits.replace(self.at, end, b"")
        self.at = end


def _end_of(tokens: Iterator[re.Match[bytes]]) -> int:
    """Where an array or an object ends, behind whose first bracket the tokens are."""
    depth = 1
    for token in tokens:
        kind = token[0]
        if kind in _OPENINGS:
            depth += 1
        elif kind in _CLOSINGS:
            depth -= 1
            if not depth:
                return token.end()
    raise AssertionError("an array or object that was decoded has no end")


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


def _alone(nodes: Sequence[_RedactedNode]) -> Sequence[_RedactedNode]:
    """What holds for a value that is neither an array nor an object."""
    return [*nodes, *chain.from_iterable([node.alone for node in nodes])]


def _matching(nodes: Sequence[_RedactedNode], step: Step) -> list[_RedactedNode]:
    """What holds for a member or an element; `step` None: for each."""
    steps = (None,) if step is None else (step, None)
    return [node.below[name] for node in nodes for name in steps if name in node.below]
