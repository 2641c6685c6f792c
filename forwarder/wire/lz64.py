"""LZ-String in base64, as older browser SDKs send it, decompressed up to a limit.

The format: the base64 text is a stream of bits. A code of n bits (least significant first) names
an entry of a growing dictionary of strings of UTF-16 units; codes 0 and 1 announce a new unit of 8
or 16 bits, 2 ends the stream. n grows when the dictionary fills it.
"""

from __future__ import annotations

import binascii
from typing import Final

from forwarder.core.error_text import error_text

MAX_WIRE_BYTES: Final = 1024 * 1024
"""Bodies over this are rejected: browsers send a few kilobytes, and decompressing takes about 0.3
seconds a megabyte.
"""

_END: Final = 2
_REVERSED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Each byte with its bits in the other order."""
_READ_BYTES: Final = 32
_MOST_BITS: Final = 64
"""More than a code and a new unit behind it have."""


class CorruptError(ValueError):
    """The text isn't an LZ-String stream."""


class TooLargeError(ValueError):
    """It would decompress to more than the limit."""


def decompress(text: bytes, limit: int) -> bytes:
    """The text that was compressed, in UTF-8. A surrogate without a partner, which UTF-8 can't
    hold, becomes its JSON escape.

    Raises `CorruptError` for anything but an LZ-String stream, and `TooLargeError` for more than
    `limit` bytes, as soon as more than `limit` UTF-16 units come out.
    """
    try:
        data = _bytes_of(text)
    except binascii.Error as error:
        raise CorruptError(error_text(error)) from None
    units = "".join(_entries(data, limit)).encode("utf-16-le", "surrogatepass")
    text_bytes = units.decode("utf-16-le", "surrogatepass").encode("utf-8", "backslashreplace")
    if len(text_bytes) > limit:
        raise TooLargeError
    return text_bytes


def _bytes_of(text: bytes) -> bytes:
    """The bits of the characters, filled up with zeros: LZ-String pads to a multiple of four even
    with three `=`, which isn't base64.
    """
    characters = text.replace(b"\n", b"").rstrip(b"=")
    return binascii.a2b_base64(characters + b"A" * (-len(characters) % 4))


def _entries(data: bytes, limit: int) -> list[str]:
    """The entries that the codes name. One loop over local variables: a call for each code would
    take longer than the code does.
    """
    # the first bit of the stream is the lowest now, and so is that of each code
    data = data.translate(_REVERSED)
    bits = held = at = size = 0
    previous = ""
    entries: list[str] = []
    dictionary = ["", "", ""]
    width = 2
    room = 1
    while True:
        if held < _MOST_BITS:
            bits |= int.from_bytes(data[at : at + _READ_BYTES], "little") << held
            held += 8 * len(data[at : at + _READ_BYTES])
            at += _READ_BYTES
        code = bits & (1 << width) - 1
        bits >>= width
        held -= width
        if code < _END:
            unit_bits = 16 if code else 8
            dictionary.append(chr(bits & (1 << unit_bits) - 1))
            bits >>= unit_bits
            held -= unit_bits
            code = len(dictionary) - 1
            room -= 1
            if not room:
                room = 1 << width
                width += 1
        elif code == _END and held >= 0:
            return entries
        if held < 0:
            raise CorruptError("the stream ends in the middle")
        if code < len(dictionary):
            entry = dictionary[code]
        elif code == len(dictionary) and previous:
            entry = previous + previous[0]
        else:
            raise CorruptError("an entry that doesn't exist")
        size += len(entry)
        if size > limit:
            raise TooLargeError
        entries.append(entry)
        if previous:
            dictionary.append(previous + entry[0])
            room -= 1
            if not room:
                room = 1 << width
                width += 1
        previous = entry
