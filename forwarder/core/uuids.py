"""UUIDs as text: those that are derived from names, the same each time a name is read, and new
ones (RFC 9562, sections 5.5 and 5.7).
"""

from __future__ import annotations

import os
from binascii import hexlify
from collections.abc import Sequence
from hashlib import sha1
from struct import Struct
from typing import Final

_VARIANTS: Final = dict(
    zip([b"%x" % digit for digit in range(16)], [b"8", b"9", b"a", b"b"] * 4, strict=True)
)
"""The digit that holds the variant, by the one that it replaces."""
_FORM: Final = b"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_DIGITS_AT: Final = [at for at, each in enumerate(_FORM.decode()) if each == "x"]
_VERSION_AT: Final = 14
_VARIANT_AT: Final = 19
_SHA1_DIGITS: Final = 40
_TO_VARIANT: Final = bytes.maketrans(b"0123456789abcdef", b"89ab" * 4)
_split: Final = Struct("8s4sx3sc3s12s8x").unpack
"""The digits of a SHA-1 as those of a UUID, without the one that its version replaces."""


def uuid5(namespace: bytes, name: bytes) -> bytes:
    """The UUID of version 5 (RFC 9562, section 5.5) as text, in a fifth of the time of
    `uuid.uuid5`; `namespace`: the 16 bytes of one.
    """
    return as_uuid5(sha1(namespace + name, usedforsecurity=False).digest())


def as_uuid5(digest: bytes) -> bytes:
    """The UUID of version 5, as text, that the SHA-1 of a namespace and a name makes."""
    first, second, third, variant, fourth, last = _split(hexlify(digest))
    # `%` takes longer
    return b"".join(
        (first, b"-", second, b"-5", third, b"-", _VARIANTS[variant], fourth, b"-", last)
    )


def uuids5(
    namespace: bytes, names: Sequence[bytes], before: bytes = b"", after: bytes = b""
) -> list[bytes]:
    """The UUIDs of version 5 of several names, each between `before` and `after`.

    Each digit is put into all of them at once, which takes half of the time.
    """
    whole = bytes(_joined(namespace, names, before, after))
    size = len(before) + len(_FORM) + len(after)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def uuid_texts5(namespace: bytes, names: Sequence[bytes]) -> list[str]:
    """The same as text."""
    whole = _joined(namespace, names).decode()
    return [whole[at : at + len(_FORM)] for at in range(0, len(whole), len(_FORM))]


def _joined(
    namespace: bytes, names: Sequence[bytes], before: bytes = b"", after: bytes = b""
) -> bytearray:
    digits = hexlify(
        b"".join([sha1(namespace + name, usedforsecurity=False).digest() for name in names])
    )
    begin = len(before)
    size = len(before) + len(_FORM) + len(after)
    texts = bytearray((before + _FORM + after) * len(names))
    for digit, at in enumerate(_DIGITS_AT):
        texts[begin + at :: size] = digits[digit::_SHA1_DIGITS]
    texts[begin + _VERSION_AT :: size] = b"5" * len(names)
    texts[begin + _VARIANT_AT :: size] = texts[begin + _VARIANT_AT :: size].translate(_TO_VARIANT)
    return texts


_RANDOM_FORM: Final = b"-7xxx-yxxx-xxxxxxxxxxxx"
_RANDOM_AT: Final = [at for at, each in enumerate(_RANDOM_FORM.decode()) if each == "x"]
_Y_AT: Final = _RANDOM_FORM.index(b"y")
_RANDOM_BYTES: Final = 10


def new_uuid7(now: float) -> bytes:
    """A new UUID of version 7; `now` in seconds."""
    time = _milliseconds(now)
    random = hexlify(os.urandom(_RANDOM_BYTES))
    variant = _VARIANTS[random[:1]]
    return b"".join(
        (
            time[:8],
            b"-",
            time[8:],
            b"-7",
            random[1:4],
            b"-",
            variant,
            random[4:7],
            b"-",
            random[7:19],
        )
    )


def new_uuids7(now: float, count: int, before: bytes = b"", after: bytes = b"") -> list[bytes]:
    """So many new UUIDs of version 7, each between `before` and `after`; `now` in seconds. Each
    digit is put into all of them at once.
    """
    time = _milliseconds(now)
    text = b"%b%b-%b%b%b" % (before, time[:8], time[8:], _RANDOM_FORM, after)
    size = len(text)
    begin = len(text) - len(after) - len(_RANDOM_FORM)
    texts = bytearray(text) * count
    random = hexlify(os.urandom(_RANDOM_BYTES * count))
    for digit, at in enumerate(_RANDOM_AT, 1):
        texts[begin + at :: size] = random[digit :: 2 * _RANDOM_BYTES]
    texts[begin + _Y_AT :: size] = random[:: 2 * _RANDOM_BYTES].translate(_TO_VARIANT)
    whole = bytes(texts)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _milliseconds(now: float) -> bytes:
    return b"%012x" % (int(now * 1000) & 0xFFFF_FFFF_FFFF)
