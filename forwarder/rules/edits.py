"""Changes to one event: values that are set, members that are renamed, fields that are removed or
hashed. All other bytes stay.

A name that an object has twice is changed each time, so that whichever a reader takes is the
changed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from forwarder.mapping.paths import Path, spelled
from forwarder.mapping.problems import Unmappable, described
from forwarder.mapping.redaction import Redaction, members_of
from forwarder.wire.splice import Edits

Names = tuple[str, ...]
"""A path of members' names only."""
_NULL: Final = b"null"
_encode = msgspec.json.Encoder().encode


class EventEdit(Protocol):
    """A change to events."""

    def may_change(self, text: bytes) -> bool:
        """Whether events in a text may be changed; quick, and true if in doubt."""

    def apply(self, event: bytes) -> bytes:
        """The event with the change; the same bytes if it needs none. Raises `Unmappable`,
        `RecursionError` and msgspec's errors.
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
        self._needles = [_Needle(each[-1]) for each in names if each] if all(names) else None
        self._redaction = Redaction(remove, hashed)
        self._key = key

    def may_change(self, text: bytes) -> bool:
        """See `EventEdit`."""
        return self._needles is None or any(needle.may_be_in(text) for needle in self._needles)

    def apply(self, event: bytes) -> bytes:
        """See `EventEdit`."""
        return self._redaction.apply(event, self._key)


class SetValues:
    """Values are set."""

    def __init__(self, values: Sequence[tuple[Names, bytes]]) -> None:
        """Each path with its value as JSON text."""
        self._values = values

    # A value is also set in an event that has none, whatever its text.
    def may_change(self, text: bytes) -> bool:  # noqa: ARG002
        """See `EventEdit`."""
        return True

    def apply(self, event: bytes) -> bytes:
        """See `EventEdit`."""
        for path, value in self._values:
            event = with_value(event, path, value)
        return event


class RenameFields:
    """Members get other paths."""

    def __init__(self, paths: Sequence[tuple[Names, Names]]) -> None:
        self._paths = paths
        self._needles = [_Needle(old[-1]) for old, _ in paths]

    def may_change(self, text: bytes) -> bool:
        """See `EventEdit`."""
        return any(needle.may_be_in(text) for needle in self._needles)

    def apply(self, event: bytes) -> bytes:
        """See `EventEdit`."""
        for old, new in self._paths:
            event = _moved(event, old, new)
        return event


def with_value(text: bytes, path: Names, value: bytes, done: Names = ()) -> bytes:
    """An object with a value at a path; objects on the way are created, and stand at the
    beginning. Raises `Unmappable`.

    `done`: the path of the object itself.
    """
    name = path[0]
    rest = path[1:]
    edits = Edits(text)
    is_there = False
    for each, _, start, end in members_of(text):
        if each != name:
            continue
        is_there = True
        old = text[start:end]
        if not rest:
            edits.replace((start, end), value)
        elif old == _NULL:
            edits.replace((start, end), _nested(rest, value))
        elif old[:1] == b"{":
            edits.replace((start, end), with_value(old, rest, value, (*done, name)))
        else:
            raise Unmappable(
                f"{spelled((*done, name))} is {described(old)}, which has no {spelled(rest[:1])}"
            )
    if not is_there:
        edits.insert_members(0, _encode(name) + b":" + _nested(rest, value))
    return edits.made()


def _nested(path: Names, value: bytes) -> bytes:
    for name in reversed(path):
        value = b"{%b:%b}" % (_encode(name), value)
    return value


def _moved(event: bytes, old: Names, new: Names) -> bytes:
    """The event in which what was at one path is at another, in place of what was there."""
    if old[:-1] == new[:-1]:
        return _renamed(event, old, new[-1])
    value = _value_at(event, old)
    return event if value is None else with_value(Redaction([old]).apply(event), new, value)


def _renamed(text: bytes, old: Names, name: str) -> bytes:
    found = [(at, start, end) for each, at, start, end in members_of(text) if each == old[0]]
    if not found:
        return text
    if len(old) > 1:
        edits = Edits(text)
        for _, start, end in found:
            if text[start : start + 1] == b"{":
                edits.replace((start, end), _renamed(text[start:end], old[1:], name))
        return edits.made()
    text = Redaction([(name,)]).apply(text)
    edits = Edits(text)
    for each, at, start, _ in members_of(text):
        if each == old[0]:
            edits.replace((at, at + len(text[at:start].rstrip()[:-1].rstrip())), _encode(name))
    return edits.made()


def _value_at(text: bytes, path: Names) -> bytes | None:
    """The value that counts: the last one. None if there is none."""
    found = None
    for each, _, start, end in members_of(text):
        if each == path[0]:
            found = text[start:end]
    if found is None or len(path) == 1:
        return found
    return _value_at(found, path[1:]) if found[:1] == b"{" else None
