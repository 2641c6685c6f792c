"""What some senders write that isn't JSON: NaN and Infinity, and lone surrogates (wire facts, trap
18), and CESU-8 for UTF-8.

NaN and Infinity outside strings become null. A lone surrogate can't be repaired without changing
the event: it is masked, by the same number of bytes, so that the rest of its request can be read,
and its event found by comparing.

The texts may be hostile: nothing runs Python code for each string, escape or number, and the
results take a few times the text's size. A text that stays invalid whatever is repaired may come
out in any form: it is rejected all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from forwarder.core.errors import InvalidRequest

_PIECE_BYTES: Final = 64 * 1024
"""Bytes repaired at a time: cut at its quotes, a text takes some twenty times its size."""

_NON_FINITE: Final = (b"NaN", b"-Infinity", b"Infinity")
"""In the order in which they are replaced: what stands for one never completes a later one."""
_BEGINNINGS: Final = tuple(
    sorted(
        {word[:length] for word in _NON_FINITE for length in range(1, len(word))},
        key=len,
        reverse=True,
    )
)
"""What a piece must not end with, longest first."""
_BACKSLASH = b"\\\\"
_QUOTE = b'\\"'
_FOR_BACKSLASH = b"\1"
_FOR_QUOTE = b"\2"
"""Stand for escapes of one piece; JSON contains no control characters, not even in strings."""

_BACKSLASH_BIT, _U_BIT, _D_BIT, _HIGH_BIT, _LOW_BIT, _HEX_BIT = range(6)
_CLASSES: Final = bytes(
    sum(
        (chr(byte) in characters) << bit
        for bit, characters in enumerate(
            ("\\", "u", "dD", "89abAB", "cdefCDEF", "0123456789abcdefABCDEF")
        )
    )
    for byte in range(256)
)
"""What a byte can be in an escaped surrogate, a bit for each: a high one is `\ud83d`, say, and a
low one `\ude00`.
"""
_ESCAPE_BYTES: Final = 6
_CONTEXT: Final = 2 * _ESCAPE_BYTES
"""No more bytes before and behind a piece say what a surrogate at its ends is."""
_ASCII: Final = re.compile(rb"[\x00-\x7f]")
_JOINED_AT_ONCE: Final = 64 * 1024


def null_non_finite_numbers(text: bytes, null: bytes = b"null") -> tuple[bytes, int]:
    """The JSON text with each NaN and Infinity outside strings as `null`, and how many
    there were.
    """
    if (
        (b"NaN" not in text and b"Infinity" not in text)
        or _FOR_BACKSLASH in text
        or _FOR_QUOTE in text
    ):
        return text, 0
    repaired = bytearray()
    count = 0
    within_string = False
    for piece in _pieces(text):
        escaped = b"\\" in piece
        plain = (
            piece.replace(_BACKSLASH, _FOR_BACKSLASH).replace(_QUOTE, _FOR_QUOTE)
            if escaped
            else piece
        )
        parts = plain.split(b'"')
        outside = b'"'.join(parts[within_string::2])
        nulled, times = _null(outside, null)
        if times:
            parts[within_string::2] = nulled.split(b'"')
            joined = b'"'.join(parts)
            repaired += (
                joined.replace(_FOR_QUOTE, _QUOTE).replace(_FOR_BACKSLASH, _BACKSLASH)
                if escaped
                else joined
            )
            count += times
        else:
            repaired += piece
        within_string ^= len(parts) % 2 == 0
    return bytes(repaired), count


def _null(text: bytes, null: bytes) -> tuple[bytes, int]:
    count = 0
    for word in _NON_FINITE:
        number = text.count(word)
        if number:
            count += number
            text = text.replace(word, null)
    return text, count


def _pieces(text: bytes) -> Iterator[bytes]:
    """The text in pieces that cut neither an escape nor a number that isn't finite."""
    start = 0
    while len(text) - start > _PIECE_BYTES:
        piece = text[start : start + _PIECE_BYTES]
        if not piece.endswith(_NON_FINITE):
            piece = piece.removesuffix(next(filter(piece.endswith, _BEGINNINGS), b""))
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = piece[:-1]
        yield piece
        start += len(piece)
    yield text[start:]


def join_surrogates(text: bytes) -> bytes:
    """UTF-8 text in which each surrogate pair that was written as two characters of three bytes
    (CESU-8) is the one character of four.

    Older versions of the browser SDK write characters above U+FFFF so before base64 (wire facts).
    Works in pieces that end before an ASCII character, because each takes several times its size
    while it is converted. Raises `InvalidRequest` for what is neither UTF-8 nor this.
    """
    joined = bytearray()
    start = 0
    try:
        while start < len(text):
            match = _ASCII.search(text, start + _JOINED_AT_ONCE)
            end = len(text) if match is None else match.start()
            characters = text[start:end].decode("utf-8", "surrogatepass")
            joined += characters.encode("utf-16-le", "surrogatepass").decode("utf-16-le").encode()
            start = end
    except UnicodeError:
        raise InvalidRequest("the body isn't UTF-8") from None
    return bytes(joined)


def mask_lone_surrogates(text: bytes) -> bytes:
    """The JSON text, as long as before, with each escaped surrogate that has no
    partner as U+FFFD.
    """
    if (b"\\ud" not in text and b"\\uD" not in text) or _FOR_BACKSLASH in text:
        return text
    # what begins with a backslash now is an escape
    plain = text.replace(_BACKSLASH, 2 * _FOR_BACKSLASH)
    masked = bytearray()
    for start in range(0, len(plain), _PIECE_BYTES):
        context = min(start, _CONTEXT)
        piece = plain[start - context : start + _PIECE_BYTES + _CONTEXT]
        masked += (
            _mask(piece)[context : context + _PIECE_BYTES]
            if b"\\u" in piece
            else piece[context : context + _PIECE_BYTES]
        )
    return bytes(masked).replace(2 * _FOR_BACKSLASH, _BACKSLASH)


def _mask(text: bytes) -> bytes:
    """`mask_lone_surrogates` by arithmetic: the text is one number, and so is what is known of all
    its bytes (a bit at a time).
    """
    classes = int.from_bytes(text.translate(_CLASSES), "little")
    ones = int.from_bytes(b"\1" * len(text), "little")

    def flags(place: int, bit: int) -> int:
        """1 for each byte that has, `place` bytes further on, a byte of this class."""
        return classes >> 8 * place + bit & ones

    surrogates = (
        flags(0, _BACKSLASH_BIT)
        & flags(1, _U_BIT)
        & flags(2, _D_BIT)
        & flags(4, _HEX_BIT)
        & flags(5, _HEX_BIT)
    )
    if not surrogates:
        return text
    high = surrogates & flags(3, _HIGH_BIT)
    low = surrogates & flags(3, _LOW_BIT)
    pairs = high & low >> 8 * _ESCAPE_BYTES
    lone = (high | low) ^ pairs ^ pairs << 8 * _ESCAPE_BYTES
    if not lone:
        return text
    digits = (lone << 16) * 0x01010101  # all four of each
    masked = int.from_bytes(text, "little") & ~(digits * 0xFF) | (lone << 16) * int.from_bytes(
        b"fffd", "little"
    )
    return masked.to_bytes(len(text), "little")
