"""Why no event was made of a record, in few words: of what the record holds no more than a glimpse
is shown, and no key.
"""

from __future__ import annotations

from typing import Final

from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.secrets import mask_secrets

_GLIMPSE: Final = 60
_MASKED_AT_ONCE: Final = 500
"""Bytes that are looked at for keys: a key that is cut here isn't shown anyway."""
_KINDS: Final = {
    b'"': "the string",
    b"{": "an object",
    b"[": "an array",
    b"t": "the boolean",
    b"f": "the boolean",
}


class Unmappable(ForwarderError):
    """The rules make no event of this record. The message begins with the rule's name."""

    code = "unmappable"


class NotJson(ForwarderError):
    """The record is no JSON text."""

    code = "not_json"


def glimpse(text: str) -> str:
    """The beginning of a text, without keys, on one line."""
    masked = " ".join(mask_secrets(text[:_MASKED_AT_ONCE]).split())
    return masked if len(masked) <= _GLIMPSE else f"{masked[:_GLIMPSE]}…"


def described(value: bytes) -> str:
    """A JSON value for a person: its kind, and what it says if it is short."""
    if not value:
        return "nothing"
    kind = _KINDS.get(value[:1], "the number")
    return (
        kind
        if kind.startswith("an ")
        else f"{kind} {glimpse(value[: 4 * _MASKED_AT_ONCE].decode('utf-8', 'replace'))}"
    )


def misconfigured(key: str, problem: str, hint: str) -> ConfigurationError:
    """The error for a rule that can't be used; `key` is the whole name of its setting."""
    return ConfigurationError(f"{key}: {problem}", hint=hint)
