"""What some senders write that isn't JSON: NaN and Infinity, and lone surrogates (wire facts, trap 18).

NaN and Infinity outside strings become null. A lone surrogate can't be mended without changing the event: it is masked, by the
same number of bytes, so that the rest of its request can be read, and its event found by comparing.

The texts may be hostile: neither the expressions (possessive) nor the results (one growing array) take more than a few times their size.
"""

from __future__ import annotations

import re
from array import array
from typing import Final

_STRING_OR_NUMBER: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?Infinity\b|NaN\b', re.DOTALL)
_SURROGATE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL
)
_MASK: Final = b"\\ufffd"
_QUOTE: Final = ord('"')


def null_non_finite_numbers(text: bytes) -> tuple[bytes, int]:
    """The JSON text with each NaN and Infinity outside strings as null, and how many there were."""
    mended, places = null_places(text)
    return mended, len(places)


def null_places(text: bytes) -> tuple[bytes, array[int]]:
    """The JSON text with each NaN and Infinity outside strings as null, and where in it those nulls stand, in their order."""
    places = array("I")
    if b"NaN" not in text and b"Infinity" not in text:
        return text, places
    mended = bytearray()
    at = 0
    for match in _STRING_OR_NUMBER.finditer(text):
        start = match.start()
        if text[start] != _QUOTE:
            mended += text[at:start]
            places.append(len(mended))
            mended += b"null"
            at = match.end()
    mended += text[at:]
    return bytes(mended), places


def mask_lone_surrogates(text: bytes) -> bytes:
    """The JSON text, as long as before, with each escaped surrogate that has no partner as U+FFFD."""
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    masked = bytearray(text)
    for match in _SURROGATE.finditer(text):
        start, end = match.span()
        if end - start == len(_MASK):
            masked[start:end] = _MASK
    return bytes(masked)
