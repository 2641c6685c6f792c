"""Where a dead letter's record came from, for a person and for programs: topic, partition, offset, key and headers.

Invariant: what looks like a key is masked here, too; bytes that are no text are shown as such, and never written to a terminal as they are.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, Final

from forwarder.core.event import Lane
from forwarder.core.secrets import mask_key, mask_secrets

_SHOWN_BYTES: Final = 32


def without_keys(text: str, lane: Lane | None) -> str:
    """The text with everything masked that is the lane's key or looks like one."""
    if lane is not None and lane.api_key:
        text = text.replace(lane.api_key, mask_key(lane.api_key))
    return mask_secrets(text)


def attributes_of(text: str, lane: Lane | None) -> dict[str, Any] | None:
    """What a letter's source knows of it, without keys; None if nothing."""
    try:
        found = json.loads(without_keys(text, lane)) if text else None
    except ValueError:
        return {"text": without_keys(text, lane)}
    return found if isinstance(found, dict) else None


def origin_lines(attributes: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """The same for a person, a name and a value a line."""
    for name, value in (attributes or {}).items():
        if name == "headers":
            pairs = value.items() if isinstance(value, dict) else value or ()
            yield from (("header", f"{_shown(key)}: {_shown(each)}") for key, each in pairs)
        else:
            yield name, _shown(value)


def _shown(value: Any) -> str:
    """Text as it is, as far as it can be printed; bytes in hexadecimal digits."""
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        return _hexadecimal(value["base64"])
    if isinstance(value, str) and value.isprintable():
        return value
    return "(none)" if value is None else json.dumps(value)


def _hexadecimal(text: str) -> str:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        return text
    return f"({len(data)} bytes) {data[:_SHOWN_BYTES].hex(' ')}{' …' if len(data) > _SHOWN_BYTES else ''}"
