"""Protocols of their own that routes can have, v1 and OTLP: what the intake needs of a head, and
how answers are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from forwarder.core.headers import HeaderLine, value_of
from forwarder.core.ports import OtlpHead, V1Head
from forwarder.sources.http.protocol.answers import EXPOSED, EXPOSED_V1, HttpAnswer, in_json
from forwarder.wire.otlp import JSON_TYPE, PROTOBUF_TYPE, status_message

_REQUEST_ID: Final = re.compile(rb"[0-9A-Za-z_.:{}-]{1,128}")


@dataclass(frozen=True, slots=True)
class RouteProtocol:
    """A protocol whose answers say what became of the events of a request."""

    read: Callable[[Sequence[HeaderLine]], tuple[V1Head | OtlpHead, bytes]]
    """What the intake needs of the head, and the header lines that every answer repeats."""
    error: Callable[[HttpAnswer], HttpAnswer]
    """An error as its SDKs read it; other answers as they are."""
    content_type: bytes = JSON_TYPE
    """Of the answers with results."""
    exposed: bytes = EXPOSED
    """Headers of an answer that a page may read."""


def _read_v1(lines: Sequence[HeaderLine]) -> tuple[V1Head, bytes]:
    """As in docs/reference/v1.md. The request's name is repeated if that can be done safely."""
    request_id = value_of(lines, b"posthog-request-id")
    head = V1Head(
        value_of(lines, b"authorization"),
        value_of(lines, b"posthog-sdk-info"),
        value_of(lines, b"posthog-request-timestamp"),
    )
    return head, b"PostHog-Request-Id: %b\r\n" % request_id if _REQUEST_ID.fullmatch(
        request_id
    ) else b""


# FBT001: the table below binds `protobuf` once for each route, by position.
def _read_otlp(
    protobuf: bool,  # noqa: FBT001
    lines: Sequence[HeaderLine],
) -> tuple[OtlpHead, bytes]:
    return OtlpHead(value_of(lines, b"authorization"), protobuf), b""


# FBT001: the table below binds `protobuf` once for each route, by position.
@lru_cache(maxsize=256)
def _otlp_error(protobuf: bool, answer: HttpAnswer) -> HttpAnswer:  # noqa: FBT001
    if answer.status < 400:
        return answer
    return answer.with_body(
        status_message(answer.text, protobuf=protobuf), PROTOBUF_TYPE if protobuf else JSON_TYPE
    )


V1: Final = RouteProtocol(_read_v1, in_json, exposed=EXPOSED_V1)
OTLP_JSON: Final = RouteProtocol(partial(_read_otlp, False), partial(_otlp_error, False))
OTLP_PROTOBUF: Final = RouteProtocol(
    partial(_read_otlp, True), partial(_otlp_error, True), PROTOBUF_TYPE
)
