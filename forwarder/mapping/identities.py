"""Whose event it is and which: the distinct_id and the uuid of a mapped event."""

from __future__ import annotations

import hashlib
import re
from typing import Final
from uuid import UUID

import msgspec

from forwarder.mapping.problems import Unmappable, described

NATURAL_KEYS: Final = UUID("3f0d6f0e-6a55-4bb0-9c7e-6a1c2f1f5d83")
"""Namespace of the uuids that are made from natural keys. Never to be changed: a record that is read again has to give the same one."""

_HYPHENATED: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_UUID: Final = re.compile(rf"(?:urn:uuid:)?{_HYPHENATED}|\{{{_HYPHENATED}\}}|[0-9a-fA-F]{{32}}")
_NUMBER_STARTS: Final = b"-0123456789"
_decode_string = msgspec.json.Decoder(str).decode


def distinct_id(value: bytes) -> bytes:
    """A value as a distinct_id, JSON text: a string as it is, a number as the string of its own text; empty if it says nothing.

    Raises `Unmappable` for anything else.
    """
    return b"" if not _text("distinct_id", value).strip() else value if value[:1] == b'"' else b'"%b"' % value


def uuid(value: bytes, name: str) -> bytes:
    """A value as an event's uuid, JSON text; empty if it says nothing.

    A UUID stays what it is; from any other text, a natural key of the source `name`, one is derived. Raises `Unmappable` for what is
    neither a string nor a number.
    """
    text = _text("uuid", value).strip()
    if not text:
        return b""
    return b'"%b"' % (text.encode() if _UUID.fullmatch(text) else _derived(f"{name}/{text}"))


def _derived(name: str) -> bytes:
    """The UUID of version 5 for a name; what `uuid.uuid5` gives, in a fifth of its time."""
    digest = bytearray(hashlib.sha1(NATURAL_KEYS.bytes + name.encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex().encode()
    return b"-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _text(rule: str, value: bytes) -> str:
    if not value:
        return ""
    if value[:1] == b'"':
        return _decode_string(value)
    if value[:1] in _NUMBER_STARTS:
        return value.decode()
    raise Unmappable(f"{rule}: the expression gives {described(value)}; a string or a number is needed")
