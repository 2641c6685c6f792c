"""Whose event it is: the project key, and the ids that order is kept by.

The rules are the service's (wire facts: How the service decodes a body): top-level `distinct_id`
or `$distinct_id` beats the one in `properties`; what isn't a string is written as JSON text; NUL
becomes U+FFFD; 200 characters count; only white space is missing.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.core.errors import InvalidToken, NoKey

ABSENT: Final = Raw(b"")
"""Stands for a key that isn't there; no JSON value is empty."""

MAX_ID_CHARACTERS: Final = 200


class SecondIds(Struct, gc=False):
    """The ids that `properties` may hold: the event's own, and the second one that it names
    (architecture: Order).
    """

    distinct_id: Raw = ABSENT
    alias: Raw = ABSENT
    anonymous: Raw = field(name="$anon_distinct_id", default=ABSENT)


class Identified(Struct, gc=False):
    """An event's ids, whatever their type."""

    distinct_id: Raw = ABSENT
    dollar_distinct_id: Raw = field(name="$distinct_id", default=ABSENT)
    properties: Raw = ABSENT


_decode = msgspec.json.Decoder(Identified).decode
_decode_second_ids = msgspec.json.Decoder(SecondIds).decode
_decode_any = msgspec.json.Decoder().decode


def first_byte(raw: Raw) -> bytes:
    """The first byte of a value, which tells its type; empty for `ABSENT`."""
    return bytes(memoryview(raw)[:1])


def canonical_id(text: str) -> str:
    """An id as the service stores it."""
    return text.replace("\0", "\ufffd")[:MAX_ID_CHARACTERS]


def id_text(raw: Raw) -> str:
    """The id that a JSON value stands for; empty where it is absent, null or white space."""
    data = bytes(raw)
    if not data or data == b"null":
        return ""
    if data[:1] != b'"':
        return canonical_id(data.decode("utf-8", "replace"))
    text = str(_decode_any(data))
    return "" if not text or text.isspace() else canonical_id(text)


def second_ids(properties: Raw) -> SecondIds:
    """The ids in an event's properties; none where those aren't an object."""
    return _decode_second_ids(properties) if first_byte(properties) == b"{" else SecondIds()


def ids_of(event: bytes) -> frozenset[str]:
    """Every id that an event is ordered with: its own, and the one that it merges into it or
    claims.

    Raises `msgspec.DecodeError` if the event isn't a JSON object.
    """
    found = _decode(event)
    inner = second_ids(found.properties)
    own = (
        id_text(found.distinct_id)
        or id_text(found.dollar_distinct_id)
        or id_text(inner.distinct_id)
    )
    return frozenset(filter(None, (own, id_text(inner.alias), id_text(inner.anonymous))))


MAX_TOKEN_BYTES: Final = 64
PERSONAL_KEY_PREFIX: Final = "phx_"


def check_token(token: str) -> str:
    """The token, if it can be a project key. Raises `InvalidToken`, without quoting it: it may be
    a secret sent to the wrong place.
    """
    if not token:
        raise NoKey("no project key: send api_key (or token)")
    if token.startswith(PERSONAL_KEY_PREFIX):
        raise InvalidToken(
            "this is a personal API key, which must stay secret; send the project's key"
        )
    if len(token) > MAX_TOKEN_BYTES or not token.isascii() or "\0" in token:
        raise InvalidToken(
            f"malformed project key: it must be ASCII, at most {MAX_TOKEN_BYTES} bytes"
        )
    return token
