"""What an upstream's JSON parser may reject in an event that ours accepts.

Parsers differ: serde_json and Go reject numbers that overflow a double, simdjson rejects integers
of more than 64 bits, Jackson numbers of more than 1,000 characters, Python integers of more than
4,300 digits; the allowed depth is 64 (.NET), 100 (Ruby), 128 (serde_json), 512 (PHP), 1,000
(Jackson, Python) or 1,024 (orjson, simdjson) with the two levels of the envelope; databases reject
NUL. So a finding is a suspicion, and no reason by itself to reject an event: only the upstream's
answer is.

Invariants: nothing is changed; the cost is linear in the event's bytes; `Inspection` can pause
within an event.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from enum import StrEnum
from math import isinf
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

from forwarder.wire.identity import first_byte


class Oddity(StrEnum):
    """What strict parsers may reject. The value completes the sentence "the event has …"."""

    NUMBER_OVERFLOW = "a number too large for a double"
    LONG_INTEGER = "an integer of more than 308 digits"
    WIDE_INTEGER = "an integer of more than 64 bits"
    UNSIGNED_INTEGER = "an integer of more than 63 bits"
    LONG_NUMBER = "a number of more than 1,000 characters"
    VERY_LONG_NUMBER = "a number of more than 4,300 characters"
    NESTED_60 = "more than 60 levels of nesting"
    NESTED_95 = "more than 95 levels of nesting"
    NESTED_120 = "more than 120 levels of nesting"
    NESTED_500 = "more than 500 levels of nesting"
    NESTED_990 = "more than 990 levels of nesting"
    NUL = "the character NUL in a string"
    CONTROL_CHARACTER = "a control character in a string"
    LONE_SURROGATE = "half a surrogate pair in a string"
    NOT_UTF8 = "bytes that are not UTF-8"
    DUPLICATE_KEY = "one key twice"
    ODD_PROPERTIES = "properties that are not an object"
    NOT_JSON = "bytes that are not JSON"


Kind: TypeAlias = tuple[Oddity, ...]
"""Events with the same oddities are of one kind."""


class Suspicion(NamedTuple):
    """All that an event has of what strict parsers may reject."""

    oddities: Kind
    degrees: tuple[int, ...]
    """Of each oddity how far it goes (digits, powers of ten, levels); 0 for those of which there
    is no more or less.
    """

    @property
    def words(self) -> str:
        """What the event has."""
        return " and ".join(self.oddities)

    def is_as_odd_as(self, other: Suspicion) -> bool:
        """Whether a parser that rejects `other` for what it has in common with this one must
        reject this one too.
        """
        return self.oddities == other.oddities and all(
            mine >= its for mine, its in zip(self.degrees, other.degrees, strict=True)
        )


LONGEST_DIGITS: Final = 308
"""An integer with more digits overflows a double, or nearly."""

_DEPTHS: Final = (60, 95, 120, 500, 990)
_NESTED: Final = (
    Oddity.NESTED_60,
    Oddity.NESTED_95,
    Oddity.NESTED_120,
    Oddity.NESTED_500,
    Oddity.NESTED_990,
)
_LENGTHS: Final = ((4300, Oddity.VERY_LONG_NUMBER), (1000, Oddity.LONG_NUMBER))
_SAFE_DIGITS: Final = 18
_SIGNED: Final = 2**63
_UNSIGNED: Final = 2**64
_STEP: Final = 1024
"""Tokens between two pauses: a few milliseconds."""

_SIMPLIFIED: Final = bytes.maketrans(b"E123456789" + bytes(range(32)), b"e000000000" + b"\1" * 32)
_PLUS: Final = b"+"
"""For a search that costs nearly nothing: all digits are 0, all control characters 1, and there is
no plus.
"""
_LONG_DIGITS: Final = b"0" * (_SAFE_DIGITS + 1)
_DIGIT: Final = ord("0")
_EXPONENT: Final = b"e000"
_LONGEST_EXPONENT: Final = 39
_ENDS: Final = b",}] \1"
"""What follows a number, simplified."""
_MANY_DIGITS: Final = b"0" * 200
"""With fewer digits and a power of ten of two digits, no number overflows a double."""
_OVERFLOWS: Final = frozenset({Oddity.NUMBER_OVERFLOW, Oddity.LONG_INTEGER})
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
_ESCAPED: Final = re.compile(
    rb"\\u(?:00(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])|[dD][89a-fA-F])"
)
"""An escaped control character or surrogate, or the backslash before it is one itself."""
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2"
    rb"})|(u0000)"
    rb"|(u00(?:0[1-7bBeEfF]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F]))|.)",
    re.DOTALL,
)
_ESCAPES: Final = (Oddity.LONE_SURROGATE, Oddity.NUL, Oddity.CONTROL_CHARACTER)
"""Of the groups of `_ESCAPE`."""
_TOKEN: Final = re.compile(
    rb'"((?:[^"\\]++|\\.)*+)"|(-?[0-9][0-9.eE+-]*+)|([{\[])|([}\]])', re.DOTALL
)
_STRING = 1
_NUMBER = 2
_OPENING = 3
"""Groups of `_TOKEN`."""
_COLON: Final = re.compile(rb"[ \t\r\n]*:")

_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_encode: Final = msgspec.json.encode


def suspicion_of(event: bytes) -> Suspicion | None:
    """What strict parsers may reject in an event; None if there is nothing."""
    return Inspection(event).finish()


def may_overflow(text: bytes) -> bool:
    """Whether a number in a text may overflow a double; the answer for any number of events
    together costs next to nothing.
    """
    simplified = text.translate(_SIMPLIFIED, _PLUS)
    return _MANY_DIGITS in simplified or _has_large_exponent(simplified)


def overflow_of(event: bytes) -> str | None:
    """What number in an event overflows a double, or nearly, in words; None if none does."""
    suspicion = suspicion_of(event) if may_overflow(event) else None
    overflows = (
        []
        if suspicion is None
        else [oddity for oddity in suspicion.oddities if oddity in _OVERFLOWS]
    )
    return " and ".join(overflows) or None


class Inspection:
    """The inspection of one event in steps."""

    __slots__ = ("_found", "_steps")

    def __init__(self, event: bytes) -> None:
        self._found: dict[Oddity, int] = {}
        self._steps = self._inspect(event)

    def step(self) -> bool:
        """Do a part of the work; whether there is more."""
        return next(self._steps, False)

    def finish(self) -> Suspicion | None:
        """Do what is left of the work."""
        while self.step():
            pass
        return self.result()

    def result(self) -> Suspicion | None:
        """What was found."""
        oddities = sorted(self._found, key=list(Oddity).index)
        return (
            Suspicion(tuple(oddities), tuple([self._found[oddity] for oddity in oddities]))
            if oddities
            else None
        )

    def _inspect(self, event: bytes) -> Iterator[bool]:
        if not event.isascii() and not _is_utf8(event):
            self._note(Oddity.NOT_UTF8)
        try:
            members = _decode_members(event)
        except (ValueError, RecursionError):  # of msgspec and of UTF-8
            if not self._found:
                self._note(Oddity.NOT_JSON)
            members = {}
        if "properties" in members and first_byte(members["properties"]) != b"{":
            self._note(Oddity.ODD_PROPERTIES)
        if _is_conspicuous(event) or not _is_plain(members, len(event)):
            yield True
            yield from self._read(event)

    def _read(self, event: bytes) -> Iterator[bool]:
        """Read all tokens."""
        controls = _CONTROL.search(event) is not None
        depth = deepest = 0
        keys: set[bytes] = set()
        for number, token in enumerate(_TOKEN.finditer(event), 1):
            kind = token.lastindex
            if kind == _STRING:
                text = token[1]
                if b"\\u" in text or controls:
                    yield from self._read_string(text)
                if depth == 1 and _COLON.match(event, token.end()):
                    if text in keys:
                        self._note(Oddity.DUPLICATE_KEY)
                    keys.add(text)
            elif kind == _NUMBER:
                text = token[2]
                if len(text) > _SAFE_DIGITS or b"e" in text or b"E" in text:
                    self._read_number(text)
            elif kind == _OPENING:
                depth += 1
                deepest = max(deepest, depth)
            else:
                depth -= 1
            if number % _STEP == 0:
                yield True
        grade = bisect_left(_DEPTHS, deepest)
        if grade:
            self._note(_NESTED[grade - 1], deepest)

    def _read_string(self, text: bytes) -> Iterator[bool]:
        control = _CONTROL.search(text)
        if control is not None:
            self._note(Oddity.NUL if control[0] == b"\0" else Oddity.CONTROL_CHARACTER)
        if _ESCAPED.search(text) is None:
            return
        for number, escape in enumerate(_ESCAPE.finditer(text), 1):
            if escape.lastindex is not None:
                self._note(_ESCAPES[escape.lastindex - 1])
            if number % _STEP == 0:
                yield True

    def _read_number(self, text: bytes) -> None:
        size = len(text)
        for length, oddity in _LENGTHS:
            if size > length:
                self._note(oddity, size)
                break
        digits = text.removeprefix(b"-")
        if digits.isdigit():
            self._read_integer(text, len(digits))
        elif size > _LENGTHS[0][0]:
            self._note(Oddity.NUMBER_OVERFLOW, size)
        elif isinf(float(text)):
            self._note(Oddity.NUMBER_OVERFLOW, _power(digits))

    def _read_integer(self, text: bytes, digits: int) -> None:
        if digits > LONGEST_DIGITS:
            self._note(Oddity.LONG_INTEGER, digits)
        elif digits > _SAFE_DIGITS:
            value = int(text)
            if not -_SIGNED <= value < _UNSIGNED:
                self._note(Oddity.WIDE_INTEGER, digits)
            elif value >= _SIGNED:
                self._note(Oddity.UNSIGNED_INTEGER)

    def _note(self, oddity: Oddity, degree: int = 0) -> None:
        self._found[oddity] = max(degree, self._found.get(oddity, 0))


def _is_utf8(event: bytes) -> bool:
    try:
        event.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_conspicuous(event: bytes) -> bool:
    """Whether the event has something that only odd events have, or that looks like it."""
    simplified = event.translate(_SIMPLIFIED, _PLUS)
    return (
        _LONG_DIGITS in simplified
        or _has_large_exponent(simplified)
        or b"\1" in simplified
        or b"\x7f" in simplified
        or (b"\\u" in event and _ESCAPED.search(event) is not None)
        or (b"\xc2" in event and _CONTROL.search(event) is not None)
        or event.count(b"{") + event.count(b"[") > _DEPTHS[0]
    )


def _has_large_exponent(simplified: bytes) -> bool:
    """Whether there is an exponent of three digits or more, at the end of a value: digits of UUIDs
    often look like one.
    """
    # compares an e first, which is rarer than a digit: half of the time of `find`
    at = simplified.rfind(_EXPONENT)
    while at > 0:
        if (
            simplified[at - 1] == _DIGIT
            and simplified[at + len(_EXPONENT) : at + _LONGEST_EXPONENT].lstrip(b"0")[:1] in _ENDS
        ):
            return True
        at = simplified.rfind(_EXPONENT, 0, at)
    return False


def _is_plain(members: dict[str, Raw], size: int) -> bool:
    """Whether an event of this size with these members has no second member of any of their names:
    nothing of it is unaccounted for.

    White space is as encoders write it, nowhere or after each comma and colon; otherwise the
    answer is no.
    """
    count = len(members)
    accounted = (
        1
        + sum([len(memoryview(value)) for value in members.values()])
        + sum([len(_encode(key)) for key in members])
        + 2 * count
    )
    return size in (accounted, accounted + 2 * count - 1)


def _power(digits: bytes) -> int:
    """The power of ten that a number is about as large as."""
    mantissa, _, exponent = digits.lower().partition(b"e")
    whole = mantissa.partition(b".")[0].lstrip(b"0")
    return len(whole) + int(exponent[:_SAFE_DIGITS] or b"0")
