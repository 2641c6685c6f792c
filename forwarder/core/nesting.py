"""How deep JSON may be nested: a limit of ours, the same on every Python and wherever it is read.

The decoders' own limits are the interpreter's: on Python 3.11 about 990 levels less the frames on
the stack, on 3.12 1,500 or 10,000, on 3.13 10,000. `MAX_NESTING` is below all of them, so a text
within it never exhausts a decoder, and one beyond it is rejected before a decoder's answer counts.

Invariants: a text that isn't JSON is as deep as its longest beginning that is; the work is linear
in the text's bytes, and nearly none for a text with few brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final

MAX_NESTING: Final = 800
"""Lists and objects within one another, in the text of a request's body or of a record."""
MAX_FLAT: Final = 2 * MAX_NESTING
"""JSON of no more bytes is not too deep: each level has a beginning and an end."""

_ARRAY: Final = b"["
_OBJECT: Final = b"{"
_EMPTY: Final = b"[]"
_KEPT: Final = b'"[]{}'
_DROPPED: Final = bytes(sorted(set(range(256)) - set(_KEPT)))
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_STRING: Final = re.compile(b'"[^"]*"?')
_STEPS: Final = bytes.maketrans(b"[]", b"\x01\xff")
"""Of each bracket how it changes the depth, as a signed byte."""
_TOGETHER: Final = 16
"""Texts whose brackets are counted together: few enough that most have no more than one may."""
_COUNTED: Final = 64 * 1024
"""Brackets whose depths are counted at once."""


def check_nesting(text: bytes, limit: int = MAX_NESTING) -> None:
    """Raises `RecursionError`, as a decoder does, for a text of more than `limit` levels."""
    if is_deeper(text, limit):
        raise RecursionError(f"over {limit} levels of nesting")


def is_deeper(text: bytes, limit: int = MAX_NESTING) -> bool:
    """Whether a text has more than `limit` levels."""
    return len(text) > limit and has_brackets(text, limit) and _is_deeper(text, limit)


def any_deeper(texts: Sequence[bytes]) -> bool:
    """Whether one of some texts has more than `MAX_NESTING` levels; counts the brackets of several
    at once.
    """
    return any(
        has_brackets(b"".join(few), MAX_NESTING) and any(map(is_deeper, few))
        for few in (texts[start : start + _TOGETHER] for start in range(0, len(texts), _TOGETHER))
    )


def are_deeper(text: memoryview, starts: Iterable[int], levels: int) -> bool:
    """Whether valid JSON has more than `MAX_NESTING` levels with the `levels` that each of
    `starts`, in order, is within; at none of them a string is open.

    A text with many small events has many brackets, but few from one start to the next.
    """
    limit = MAX_NESTING - levels
    return len(text) > MAX_FLAT and any(
        is_deeper(text[start:end].tobytes(), limit)
        for start, end in pairwise((0, *starts, len(text)))
    )


def has_brackets(text: bytes, limit: int) -> bool:
    """Whether a text has more than `limit` opening brackets."""
    # to replace is five times as fast as to count where there are few
    arrays = len(text) - len(text.replace(_ARRAY, b"", limit + 1))
    return arrays > limit or (
        arrays + len(text) - len(text.replace(_OBJECT, b"", limit + 1 - arrays)) > limit
    )


def _is_deeper(text: bytes, limit: int) -> bool:
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # what is left of most strings is their quotes
    text = text.translate(_BRACKETS, _DROPPED).replace(b'""', b"")
    brackets = _STRING.sub(b"", text) if b'"' in text else text
    # without what holds nothing there is less to count, and one level less at most each time
    rest = brackets.replace(_EMPTY, b"").replace(_EMPTY, b"")
    deepest = _deepest(rest, limit)
    return deepest > limit or (deepest + 2 > limit and _deepest(brackets, limit) > limit)


def _deepest(brackets: bytes, limit: int) -> int:
    """How deep brackets go; beyond `limit` they aren't counted."""
    depth = deepest = 0
    for start in range(0, len(brackets), _COUNTED):
        steps = memoryview(brackets[start : start + _COUNTED].translate(_STEPS)).cast("b")
        depths = [*accumulate(steps, initial=depth)]
        deepest = max(deepest, max(depths))  # noqa: PLW3301 -- unpacking takes longer
        if deepest > limit:
            break
        depth = depths[-1]
    return deepest
