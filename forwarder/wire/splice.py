"""Changing a few bytes of an event and keeping all others.

A value's place is where the decoder found it: a `msgspec.Raw` is a view into the text that it was
decoded from, and the distance of the two addresses is its offset. Nothing is searched for, so a
value can't be confused with equal bytes elsewhere in the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

# what generated modules use: faster than the package around it, whose parser for C takes 1.5 MB
from _cffi_backend import FFI
from msgspec import Raw

_ffi: Final = FFI()
_address = _ffi.from_buffer
_TEXT: Final = _ffi.typeof("char *")
"""Its name would be read again each time."""
_SPACE: Final = b" \t\r\n"


class Locator:
    """Tells where values that were decoded from `text` stand in it."""

    __slots__ = ("_base", "_size")

    def __init__(self, text: bytes | Raw) -> None:
        self._base = _address(_TEXT, text)
        self._size = len(memoryview(text))

    def offset(self, value: Raw) -> int:
        """The offset of a value's first byte. Raises `ValueError` if the value isn't a view into
        the text.
        """
        offset: int = _address(_TEXT, value) - self._base
        if not 0 <= offset < self._size:
            raise ValueError("this value was decoded from another text")
        return offset

    def offsets(self, values: Sequence[Raw]) -> list[int]:
        """The offsets of several values. Raises `ValueError` if one isn't a view into the text."""
        base = self._base
        offsets: list[int] = [_address(_TEXT, value) - base for value in values]
        if offsets and not (min(offsets) >= 0 and max(offsets) < self._size):
            raise ValueError("a value was decoded from another text")
        return offsets

    def span(self, value: Raw) -> tuple[int, int]:
        """Where a value begins and ends."""
        start = self.offset(value)
        return start, start + len(bytes(value))


class Edits:
    """Replacements at places that don't overlap, made all at once."""

    __slots__ = ("_edits", "_text")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._edits: list[tuple[int, int, bytes]] = []

    def replace(self, span: tuple[int, int], new: bytes) -> None:
        """Replace what stands at `span` with `new`."""
        self._edits.append((*span, new))

    def insert_members(self, at: int, members: bytes) -> None:
        """Put members (joined by commas) at the beginning of the object whose brace
        stands at `at`.
        """
        rest = self._text[at + 1 : at + 65].lstrip(_SPACE) or self._text[at + 1 :].lstrip(_SPACE)
        self._edits.append((at + 1, at + 1, members if rest[:1] == b"}" else members + b","))

    def remove_member(self, value: tuple[int, int]) -> None:
        """Take out the member whose value stands at `value`, its key and one comma with it."""
        text = self._text
        colon = text.rindex(b":", 0, value[0])
        closing_quote = text.rindex(b'"', 0, colon)
        # no quote can stand in a key whose decoded form has none: its escapes are \u….
        start = text.rindex(b'"', 0, closing_quote)
        end = value[1]
        after = end + len(text[end:]) - len(text[end:].lstrip(_SPACE))
        if text[after : after + 1] == b",":
            end = after + 1
        else:
            before = len(text[:start].rstrip(_SPACE))
            start = before - 1 if text[before - 1 : before] == b"," else start
        self._edits.append((start, end, b""))

    def made(self) -> bytes:
        """The text with all replacements."""
        return spliced(self._text, in_order(self._edits))


class Splices(NamedTuple):
    """Replacements in the order of the text, as columns: where the bytes begin and end that are
    replaced, and what replaces them.
    """

    begins: Sequence[int]
    ends: Sequence[int]
    new: Sequence[bytes]


def in_order(edits: Iterable[tuple[int, int, bytes]]) -> Splices:
    """Replacements by their places."""
    ordered = sorted(edits)
    return Splices(*zip(*ordered, strict=True)) if ordered else Splices((), (), ())


def spliced(text: bytes, splices: Splices, start: int = 0, end: int | None = None) -> bytes:
    """The text from `start` to `end` with replacements that don't overlap."""
    begins, ends, new = splices
    pieces = [b""] * (2 * len(new) + 1)
    pieces[0::2] = [
        text[after:before] for after, before in zip((start, *ends), (*begins, end), strict=True)
    ]
    pieces[1::2] = new
    return b"".join(pieces)
