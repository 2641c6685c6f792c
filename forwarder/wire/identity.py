"""Whose event it is: the project key, and the ids that order is kept by.

The rules are the service's. Top-level `distinct_id` or `$distinct_id` beats the one in
`properties`; NUL becomes U+FFFD; 200 characters count; only white space is missing. A value that
is no string becomes text in two ways:
- The event's own id is what serde_json writes of the parsed value: `1e2` is `100.0`, `1.50` is
  `1.5`, the members of an object are sorted (PostHog/posthog, `RawEvent::extract_distinct_id` in
  rust/common/types/src/event.rs, commit 6e2cafdd7036eb228b9907aa8cc3576579e49f25).
- The second id, which is merged with it, is what `String()` of JavaScript makes of that: `1e2` is
  `100` (its `handleIdentifyOrAlias`, person-merge-service.ts).
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw, Struct, field

from forwarder.core.errors import InvalidToken, NoKey

ABSENT: Final = Raw(b"")
"""Stands for a key that isn't there; no JSON value is empty."""

MAX_ID_CHARACTERS: Final = 200


class OrderingIds(Protocol):
    """The ids that an event's properties name beside its own."""

    @property
    def alias(self) -> Raw:
        """The second id of `$create_alias`."""

    @property
    def anonymous(self) -> Raw:
        """The second id of `$identify`."""


class SecondIds(Struct, gc=False):
    """The ids that `properties` may hold: the event's own, and the second one that it names
    (docs/explanation/delivery.md, Ordering).
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
_encode_sorted = msgspec.json.Encoder(order="sorted").encode

_MAX_UNSIGNED: Final = 2**64
_MIN_SIGNED: Final = -(2**63)
_LONGEST_INTEGER: Final = 20
"""Characters of the longest integer of 64 bits."""
_ODD_NUMBER: Final = re.compile(rb"[0-9]{19}|-0(?![0-9.eE])|[eE]\+?[0-9]{3}")
"""What may be an integer that serde_json reads as a float, or a number that no float holds."""
_LEAST_PLAIN: Final = 1e-6
_MOST_PLAIN: Final = 1e21
"""Between these JavaScript writes numbers without an exponent."""


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
        return canonical_id(_written(data))
    text = str(_decode_any(data))
    return "" if not text or text.isspace() else canonical_id(text)


def second_id_text(raw: Raw) -> str:
    """The id that the JSON value of `alias` or `$anon_distinct_id` stands for; empty as in
    `id_text`.
    """
    first = first_byte(raw)
    if first in (b"", b'"', b"n"):
        return id_text(raw)
    return canonical_id(_javascript_text(json.loads(bytes(raw), parse_int=float)))


def _written(data: bytes) -> str:
    """A JSON value as serde_json writes it."""
    if len(data) < _LONGEST_INTEGER and data.isdigit():
        return data.decode()
    odd = _ODD_NUMBER.search(data) is not None
    value = json.loads(data, parse_int=_integer) if odd else _decode_any(data)
    return _encode_sorted(value).decode()


def _integer(text: str) -> float:
    """An integer; one that has over 64 bits, or is a negative zero, is a float."""
    if text == "-0" or len(text) > _LONGEST_INTEGER:
        return float(text)
    value = int(text)
    return value if _MIN_SIGNED <= value < _MAX_UNSIGNED else float(value)


def _javascript_text(value: Any) -> str:
    """What `String()` makes of a JSON value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "[object Object]"
    if isinstance(value, list):
        return ",".join(["" if item is None else _javascript_text(item) for item in value])
    return _javascript_number(value)


def _javascript_number(value: float) -> str:
    if value == 0:
        return "0"
    shortest = repr(value)
    if not _LEAST_PLAIN <= abs(value) < _MOST_PLAIN:
        return shortest.replace("e-0", "e-")
    return format(Decimal(shortest), "f").removesuffix(".0")


def second_ids(properties: Raw) -> SecondIds:
    """The ids in an event's properties; none where those aren't an object."""
    return _decode_second_ids(properties) if first_byte(properties) == b"{" else SecondIds()


def second_texts(inner: OrderingIds) -> list[str]:
    """The ids that an event names beside its own."""
    return [*filter(None, map(second_id_text, (inner.alias, inner.anonymous)))]


def ids_of(event: bytes) -> frozenset[str]:
    """Every id that an event is ordered with: its own, and the one that it merges into it or
    claims.

    Raises `msgspec.DecodeError` if the event isn't a JSON object.
    """
    members = _decode(event)
    inner = second_ids(members.properties)
    own = (
        id_text(members.distinct_id)
        or id_text(members.dollar_distinct_id)
        or id_text(inner.distinct_id)
    )
    return frozenset([own, *second_texts(inner)]) - {""}


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
