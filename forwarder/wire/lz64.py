"""LZ-String in base64, as older browser SDKs send it, decompressed up to a limit.

The format: the base64 text is a stream of bits. A code of n bits (least significant first) names an entry of a growing dictionary of
strings of UTF-16 units; codes 0 and 1 announce a new unit of 8 or 16 bits, 2 ends the stream. n grows when the dictionary fills it.
"""

from __future__ import annotations

import binascii
from typing import Final

MAX_WIRE_BYTES: Final = 1024 * 1024
"""Bodies over this are refused: browsers send a few kilobytes, and decompressing takes about a second a megabyte."""

_UNIT_8, _UNIT_16, _END = 0, 1, 2


class CorruptError(ValueError):
    """The text isn't an LZ-String stream."""


class TooLargeError(ValueError):
    """It would decompress to more than the limit."""


class _Bits:
    """Reads numbers off a stream of bits."""

    def __init__(self, data: bytes) -> None:
        self._bits = bin(int.from_bytes(b"\1" + data))[3:]
        self._at = 0

    def read(self, width: int) -> int:
        chunk = self._bits[self._at : self._at + width]
        if len(chunk) < width:
            raise CorruptError("the stream ends in the middle")
        self._at += width
        return int(chunk[::-1], 2)


def decompress(text: bytes, limit: int) -> bytes:
    """The text that was compressed, in UTF-8. A surrogate without a partner, which UTF-8 can't hold, becomes its JSON escape.

    Raises `CorruptError` for anything but an LZ-String stream, and `TooLargeError` for more than `limit` bytes, as soon as more than
    `limit` UTF-16 units come out.
    """
    try:
        bits = _Bits(_bytes_of(text))
    except binascii.Error as error:
        raise CorruptError(str(error)) from None
    units = "".join(_entries(bits, limit)).encode("utf-16-le", "surrogatepass")
    text_bytes = units.decode("utf-16-le", "surrogatepass").encode("utf-8", "backslashreplace")
    if len(text_bytes) > limit:
        raise TooLargeError
    return text_bytes


def _bytes_of(text: bytes) -> bytes:
    """The bits of the characters, filled up with zeros: LZ-String pads to a multiple of four even with three `=`, which isn't base64."""
    characters = text.replace(b"\n", b"").rstrip(b"=")
    return binascii.a2b_base64(characters + b"A" * (-len(characters) % 4))


def _entries(bits: _Bits, limit: int) -> list[str]:
    code = bits.read(2)
    if code == _END:
        return []
    previous = _new_unit(bits, code)
    entries = [previous]
    dictionary = ["", "", "", previous]
    width, room, size = 3, 4, 1
    while (code := bits.read(width)) != _END:
        if code in (_UNIT_8, _UNIT_16):
            dictionary.append(_new_unit(bits, code))
            code = len(dictionary) - 1
            room -= 1
            width, room = (width + 1, 1 << width) if room == 0 else (width, room)
        entry = _look_up(dictionary, code, previous)
        size += len(entry)
        if size > limit:
            raise TooLargeError
        entries.append(entry)
        dictionary.append(previous + entry[0])
        previous = entry
        room -= 1
        width, room = (width + 1, 1 << width) if room == 0 else (width, room)
    return entries


def _new_unit(bits: _Bits, code: int) -> str:
    if code not in (_UNIT_8, _UNIT_16):
        raise CorruptError("a stream can't begin so")
    return chr(bits.read(8 if code == _UNIT_8 else 16))


def _look_up(dictionary: list[str], code: int, previous: str) -> str:
    if code < len(dictionary):
        return dictionary[code]
    if code == len(dictionary):
        return previous + previous[0]
    raise CorruptError("an entry that doesn't exist")
