"""A tiny LZ-String encoder, so that tests can make `compression=lz64` bodies as old browser
libraries do.

Written from the format's description alone and sharing nothing with the decoder: an LZ78
dictionary over UTF-16 units, codes of growing width with the least significant bit first, six bits
a base64 digit, padded with `=` to a multiple of four digits.
"""

from __future__ import annotations

from typing import Final

_DIGITS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


class _Encoder:
    """The dictionary, and the bits written so far."""

    def __init__(self) -> None:
        self.bits: list[str] = []
        self._codes: dict[str, int] = {}
        self._announced: set[str] = set()
        self._next = 3
        self._width = 2
        self._room = 2

    def _write(self, value: int, width: int) -> None:
        self.bits.append(format(value, f"0{width}b")[::-1])

    def _use_room(self) -> None:
        self._room -= 1
        if self._room == 0:
            self._room = 1 << self._width
            self._width += 1

    def learn(self, text: str) -> None:
        """Give an entry the next code."""
        self._codes[text] = self._next
        self._next += 1

    def knows(self, text: str) -> bool:
        """Whether the dictionary has the entry."""
        return text in self._codes

    def add_unit(self, unit: str) -> None:
        """Learn a new unit, which is to be announced where it is first written."""
        self.learn(unit)

    def write(self, entry: str) -> None:
        """Write an entry's code, announcing a unit that wasn't written before."""
        if len(entry) == 1 and entry not in self._announced:
            self._announced.add(entry)
            wide = ord(entry) > 0xFF
            self._write(int(wide), self._width)
            self._write(ord(entry), 16 if wide else 8)
            self._use_room()
        else:
            self._write(self._codes[entry], self._width)
        self._use_room()

    def end(self) -> str:
        """Write the end, and all bits as base64."""
        self._write(2, self._width)
        bits = "".join(self.bits) + "0"
        bits += "0" * (-len(bits) % 6)
        digits = "".join(_DIGITS[int(bits[at : at + 6], 2)] for at in range(0, len(bits), 6))
        return digits + "=" * (-len(digits) % 4)


def units_of(text: str) -> str:
    """The text as JavaScript sees it: a character outside the basic plane is two surrogates."""
    data = text.encode("utf-16-le", "surrogatepass")
    return "".join(chr(data[at] | data[at + 1] << 8) for at in range(0, len(data), 2))


def compress(text: str) -> bytes:
    """What `LZString.compressToBase64` makes of a text."""
    encoder = _Encoder()
    current = ""
    for unit in units_of(text):
        if not encoder.knows(unit):
            encoder.add_unit(unit)
        if encoder.knows(current + unit):
            current += unit
            continue
        encoder.write(current)
        encoder.learn(current + unit)
        current = unit
    if current:
        encoder.write(current)
    return encoder.end().encode()
