"""lz-string's base64 form (`compression=lz64`), as old browser libraries send it, decompressed
with a limit.

The format is LZ78 over UTF-16 units: codes of growing width, least significant bit first, packed
into base64 digits of six bits from the top. Code 0 introduces a new unit of eight bits, 1 one of
sixteen, 2 ends the text. The output is counted as it grows, before it is kept.
"""

from __future__ import annotations

from typing import Final

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_DIGITS: Final = {character: value for value, character in enumerate(_ALPHABET)}
_END: Final = 2


class BadLz64(ValueError):
    """The data is not lz-string's."""


class TooMuchText(ValueError):
    """The text reaches the limit."""


class _Bits:
    """The codes in the data, one after another."""

    def __init__(self, data: bytes) -> None:
        try:
            self._digits = [_DIGITS[character] for character in data.rstrip(b"=")]
        except KeyError:
            raise BadLz64("not base64") from None
        self._position = 0
        self._held = 0
        self._count = 0

    def take(self, width: int) -> int:
        """The next `width` bits as a number, the first bit being the least significant. Raises
        `BadLz64` at the end.
        """
        while self._count < width:
            if self._position == len(self._digits):
                raise BadLz64("cut off")
            self._held |= _REVERSED[self._digits[self._position]] << self._count
            self._count += 6
            self._position += 1
        code = self._held & ((1 << width) - 1)
        self._held >>= width
        self._count -= width
        return code


_REVERSED: Final = [int(f"{digit:06b}"[::-1], 2) for digit in range(64)]


def decompress_lz64(data: bytes, limit: int) -> bytes:
    """The text in `data` as UTF-8. Raises `TooMuchText` as soon as it reaches `limit` bytes,
    `BadLz64` if it is none.
    """
    bits = _Bits(data)
    text = "".join(_units(bits, limit))
    try:
        encoded = text.encode("utf-16", "surrogatepass").decode("utf-16").encode()
    except UnicodeError:
        raise BadLz64("a lone surrogate") from None
    if len(encoded) >= limit:
        raise TooMuchText
    return encoded


def _units(bits: _Bits, limit: int) -> list[str]:
    words: list[str] = ["", "", ""]
    width = 2
    code = bits.take(2)
    if code == _END:
        return []
    last = chr(bits.take(8 if code == 0 else 16))
    words.append(last)
    parts = [last]
    size = 1
    width = 3
    while (code := bits.take(width)) != _END:
        if code < _END:
            words.append(chr(bits.take(8 if code == 0 else 16)))
            width = max(width, len(words).bit_length())
            code = len(words) - 1
        entry = _entry(words, code, last)
        size += len(entry)
        if size >= limit:
            raise TooMuchText
        parts.append(entry)
        words.append(last + entry[0])
        width = max(width, (len(words)).bit_length())
        last = entry
    return parts


def _entry(words: list[str], code: int, last: str) -> str:
    if code < len(words):
        return words[code]
    if code == len(words):
        return last + last[0]
    raise BadLz64("an unknown code")
