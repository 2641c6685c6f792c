"""Finds the position of each value in a JSON text, so that an event's bytes are stored exactly as
they were sent.

The standard library's scanner recognizes values; positions come from walking objects and arrays
one level at a time. Nothing is serialized from a parsed value: big integers, `1.0`, key order,
duplicate keys, escapes and white space survive because the text is cut, not rebuilt. The scanner
is stricter than `json.loads` (no NaN, no Infinity) and reports numbers that no double can hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from forwarder.core.nesting import is_deeper

_WHITE_SPACE: Final = re.compile(r"[ \t\n\r]*").match
_LONGEST_INTEGER: Final = 4000
"""Digits that Python converts to an integer without complaint; longer ones
no double can hold anyway.
"""


class InvalidJson(ValueError):
    """The text is not JSON; the message says where it stops being so."""


class JsonMember(NamedTuple):
    """One `"key": value` of an object, and the position of the value in the text."""

    key: str
    value: Any
    start: int
    end: int


class JsonScanner:
    """Walks one JSON text. `infinite` is set whenever a number too large for
    a double has been passed. With `lenient` such numbers, NaN and Infinity are null.
    """

    def __init__(self, text: str, *, lenient: bool = False) -> None:
        self.text = text
        self.infinite = False
        self._lenient = lenient
        self._is_deep = is_deeper(text.encode("utf-8", "surrogatepass"))
        self._decoder = json.JSONDecoder(
            parse_float=self._float, parse_int=self._int, parse_constant=self._constant
        )

    def first(self) -> int:
        """Where the text's value begins. Raises `InvalidJson` if there is none."""
        return self._skip(0)

    def finish(self, end: int) -> None:
        """Nothing but white space may follow `end`. Raises `InvalidJson`."""
        if self._after(end) != len(self.text):
            raise InvalidJson(f"unexpected text at character {end}")

    def value(self, start: int) -> tuple[Any, int]:
        """The value that begins at `start`, and where it ends. Raises `InvalidJson`."""
        if self._is_deep:
            raise InvalidJson("nested too deeply")
        try:
            return self._decoder.raw_decode(self.text, start)
        except ValueError as error:
            raise InvalidJson(str(error)) from None

    def members(self, start: int) -> tuple[list[JsonMember], int]:
        """The members of the object that begins at `start`, duplicates included, and where it
        ends. Raises `InvalidJson`.
        """
        members: list[JsonMember] = []
        at = self._skip(start + 1)
        if self.text[at] == "}":
            return members, at + 1
        while True:
            key, at = self._key(at)
            value, end = self.value(at)
            members.append(JsonMember(key, value, at, end))
            at, more = self._separator(end, "}")
            if not more:
                return members, at

    def elements(self, start: int, read: Callable[[int], int]) -> int:
        """Give `read` the beginning of each element of the array at `start`; it answers where the
        element ends. Returns the array's end.
        """
        at = self._skip(start + 1)
        if self.text[at] == "]":
            return at + 1
        more = True
        while more:
            at, more = self._separator(read(at), "]")
        return at

    def _key(self, at: int) -> tuple[str, int]:
        if self.text[at] != '"':
            raise InvalidJson(f"a key is missing at character {at}")
        key, at = self.value(at)
        at = self._skip(at)
        if self.text[at] != ":":
            raise InvalidJson(f"a colon is missing at character {at}")
        return key, self._skip(at + 1)

    def _separator(self, at: int, closing: str) -> tuple[int, bool]:
        at = self._skip(at)
        character = self.text[at]
        if character == closing:
            return at + 1, False
        if character != ",":
            raise InvalidJson(f"a comma is missing at character {at}")
        return self._skip(at + 1), True

    def _skip(self, at: int) -> int:
        if at < len(self.text) and self.text[at] > " ":
            return at  # what senders write has next to no white space
        at = self._after(at)
        if at >= len(self.text):
            raise InvalidJson("the text ends too early")
        return at

    def _after(self, at: int) -> int:
        match = _WHITE_SPACE(self.text, at)
        return match.end() if match else at

    def _constant(self, name: str) -> None:
        if not self._lenient:
            raise InvalidJson(f"{name} is not JSON")

    def _float(self, digits: str) -> float | None:
        number = float(digits)
        if math.isfinite(number):
            return number
        self.infinite = True
        return None if self._lenient else number

    def _int(self, digits: str) -> int | float | None:
        if len(digits) <= 300:
            return int(digits)
        return (
            self._float(digits)
            if len(digits) > _LONGEST_INTEGER or math.isinf(float(digits))
            else int(digits)
        )
