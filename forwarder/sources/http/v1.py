"""The headers of the v1 protocol: which the intake is told, and which go back (docs/v1.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from forwarder.core.ports import V1Head

AUTHORIZATION: Final = b"authorization"
SDK_INFO: Final = b"posthog-sdk-info"
REQUEST_ID: Final = b"posthog-request-id"
REQUEST_TIMESTAMP: Final = b"posthog-request-timestamp"

EXPOSED_V1: Final = b"Retry-After, PostHog-Request-Id"
"""What a page may read of an answer."""

_REQUEST_ID: Final = re.compile(rb"[0-9A-Za-z_.:{}-]{1,128}")

_Lines: TypeAlias = Sequence[tuple[bytes, bytes]]


def v1_head(lines: _Lines) -> V1Head:
    """What the intake has to know of a request's headers."""
    return V1Head(_value(lines, AUTHORIZATION), _value(lines, SDK_INFO), _value(lines, REQUEST_TIMESTAMP))


def echoed(lines: _Lines) -> bytes:
    """The header line that names the request as its sender did; nothing if that can't be echoed safely."""
    request_id = _value(lines, REQUEST_ID)
    return b"PostHog-Request-Id: %b\r\n" % request_id if _REQUEST_ID.fullmatch(request_id) else b""


def _value(lines: _Lines, name: bytes) -> bytes:
    """A header's value; several make a list, as everywhere in HTTP."""
    return b", ".join([value for each, value in lines if each.lower() == name])
