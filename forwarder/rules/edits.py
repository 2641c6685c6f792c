"""Changes to one event: values that are set, members that are renamed, fields that are removed or
hashed. All other bytes stay.

Each path is one pass through the event, whose replacements are made at once, and the pass ends as
soon as the event would be longer than it may be: a name that is there often can't make much of it.
A name that an object has twice is changed each time, so that whichever a reader takes is the
changed one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from forwarder.mapping.ordered_edits import OrderedEdits
from forwarder.mapping.paths import Path, spelled
from forwarder.mapping.problems import Unmappable, described
from forwarder.mapping.redaction import Redaction, members_of

Names = tuple[str, ...]
"""A path of members' names only."""
_NULL: Final = b"null"
_CLOSING_BRACE: Final = re.compile(rb"[ \t\r\n]*+\}")
_encode = msgspec.json.Encoder().encode


class EventEdit(Protocol):
    """A change to events."""

    passes: int
    """How often it goes through an event, or does what takes as long."""

    def may_change(self, text: bytes) -> bool:
        """Whether events in a text may be changed; quick, and true if in doubt."""

    def apply(self, event: bytes, limit: int) -> bytes:
        """The event with the change; the same bytes if it needs none. Raises `Unmappable`,
        `RecursionError`, msgspec's errors, and `TooLong` if it would have over `limit` bytes.
        """


class _Needle:
    """Whether a member's name may occur in a text, however it is spelled there."""

    def __init__(self, name: str) -> None:
        self._text = _encode(name)[1:-1]
        self._escapable = "/" in name

    def may_be_in(self, text: bytes) -> bool:
        return self._text in text or b"\\u" in text or (self._escapable and b"\\/" in text)


class Redact:
    """Fields are removed, or replaced by keyed hashes."""

    def __init__(
        self, remove: Sequence[Path], hashed: Sequence[Path] = (), key: bytes = b""
    ) -> None:
        """`key` is that of the hashes."""
        paths = [*remove, *hashed]
        names = [[step for step in path if isinstance(step, str)] for path in paths]
        self._needles = [_Needle(name[-1]) for name in names if name] if all(names) else None
        self._redaction = Redaction(remove, hashed)
        self._key = key
        self.passes = 3 if hashed else 1

    def may_change(self, text: bytes) -> bool:
        return self._needles is None or any(needle.may_be_in(text) for needle in self._needles)

    def apply(self, event: bytes, limit: int) -> bytes:
        return self._redaction.apply(event, self._key, limit)


class SetValues:
    """Values are set."""

    def __init__(self, values: Sequence[tuple[Names, bytes]]) -> None:
        """Each path with its value as JSON text."""
        self._values = values
        self.passes = len(values)

    # A value is also set in an event that has none, whatever its text.
    def may_change(self, text: bytes) -> bool:  # noqa: ARG002
        return True

    def apply(self, event: bytes, limit: int) -> bytes:
        for path, value in self._values:
            event = with_value(event, path, value, limit)
        return event


class RenameFields:
    """Members get other paths."""

    def __init__(self, paths: Sequence[tuple[Names, Names]]) -> None:
        self.passes = 3 * len(paths)
        self._moves = [_Move(old, new) for old, new in paths]
        self._needles = [_Needle(old[-1]) for old, _ in paths]

    def may_change(self, text: bytes) -> bool:
        return any(needle.may_be_in(text) for needle in self._needles)

    def apply(self, event: bytes, limit: int) -> bytes:
        for move in self._moves:
            event = move.apply(event, limit)
        return event


def with_value(text: bytes, path: Names, value: bytes, limit: int) -> bytes:
    """An object with a value at a path; objects on the way are created, and stand at the
    beginning. Raises `Unmappable`, and `TooLong` if it would have over `limit` bytes.
    """
    edits = OrderedEdits(text, limit)
    _set(edits, (0, len(text)), path, 0, value)
    return edits.made()


def _set(edits: OrderedEdits, span: tuple[int, int], path: Names, depth: int, value: bytes) -> None:
    """Set the value in the object at `span`, to which the first `depth` names of the path lead."""
    text = edits.text
    base = span[0]
    name = path[depth]
    rest = path[depth + 1 :]
    is_there = False
    for other, _, start, end in members_of(text[slice(*span)]):
        if other != name:
            continue
        is_there = True
        place = base + start, base + end
        if not rest:
            edits.replace(*place, value)
            continue
        old = text[slice(*place)]
        if old == _NULL:
            edits.replace(*place, _nested(rest, value))
        elif old[:1] == b"{":
            _set(edits, place, path, depth + 1, value)
        else:
            way = path[: depth + 1]
            raise Unmappable(
                f"{spelled(way)} is {described(old)}, which has no {spelled(rest[:1])}"
            )
    if not is_there:
        member = _encode(name) + b":" + _nested(rest, value)
        is_empty = _CLOSING_BRACE.match(text, base + 1) is not None
        edits.replace(base + 1, base + 1, member if is_empty else member + b",")


def _nested(path: Names, value: bytes) -> bytes:
    for name in reversed(path):
        value = b"{%b:%b}" % (_encode(name), value)
    return value


class _Move:
    """What is at one path comes to another, in place of what was there."""

    def __init__(self, old: Names, new: Names) -> None:
        self._old = old
        self._new = new
        self._removal = Redaction([old])
        self._is_rename = old[:-1] == new[:-1]
        self._clearance = Redaction([new[-1:]])

    def apply(self, event: bytes, limit: int) -> bytes:
        if self._is_rename:
            edits = OrderedEdits(event, limit)
            self._rename(edits, (0, len(event)), 0)
            return edits.made()
        value = _value_at(event, self._old)
        if value is None:
            return event
        return with_value(self._removal.apply(event), self._new, value, limit)

    def _rename(self, edits: OrderedEdits, span: tuple[int, int], depth: int) -> None:
        """Rename the member in the object at `span`, to which the first `depth` names lead."""
        text = edits.text[slice(*span)]
        name = self._old[depth]
        found = [(start, end) for member, _, start, end in members_of(text) if member == name]
        if not found:
            return
        base = span[0]
        if depth < len(self._old) - 1:
            for start, end in found:
                if text[start : start + 1] == b"{":
                    self._rename(edits, (base + start, base + end), depth + 1)
            return
        left = OrderedEdits(self._clearance.apply(text), edits.limit)
        text = left.text
        new = _encode(self._new[-1])
        for member, at, start, _ in members_of(text):
            if member == name:
                left.replace(at, at + len(text[at:start].rstrip()[:-1].rstrip()), new)
        edits.replace(*span, left.made())


def _value_at(text: bytes, path: Names) -> bytes | None:
    """The value that counts: the last one. None if there is none."""
    found = None
    for member, _, start, end in members_of(text):
        if member == path[0]:
            found = start, end
    if found is None:
        return None
    value = text[slice(*found)]
    if len(path) == 1:
        return value
    return _value_at(value, path[1:]) if value[:1] == b"{" else None
