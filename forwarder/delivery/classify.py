"""Classifies the upstream's replies: the table of outcomes, a branch for each row. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final

import msgspec

from forwarder.core.outcome import (
    Bisect,
    Delivered,
    Halt,
    HaltReason,
    Outcome,
    Reply,
    Retry,
    Scope,
    Split,
)
from forwarder.core.secrets import mask_secrets

MAX_WORDS: Final = 200
"""Most characters of the upstream's answer that are quoted."""

_HALTS: Final = {
    401: HaltReason.UNKNOWN_KEY,
    403: HaltReason.FORBIDDEN,
    404: HaltReason.WRONG_ADDRESS,
    405: HaltReason.WRONG_ADDRESS,
}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\s]+")


class DeliveryWarning(StrEnum):
    """Oddities of an answer that counts as delivered (closed set; documented in
    docs/explanation/delivery.md).
    """

    OTHER_2XX = "other_2xx"
    """Another 2xx than 200."""
    ODD_BODY = "odd_body"
    """200 with a body that is neither empty nor JSON."""
    QUOTA_LIMITED = "quota_limited"
    """The upstream says that the project is over its quota: it may drop the events."""


def classify(reply: Reply, *, html_before: bool = False, secret: str = "") -> Outcome:
    """What `reply` means for the batch. `html_before`: the lane's last answer was a web page;
    `secret`, and whatever else looks like a key or like credentials, isn't quoted.
    """
    status = reply.status
    if status is None:
        return Retry(_cut(reply.error, secret), Scope.UPSTREAM, reply.retry_after or 0.0)
    why = summarize(reply, secret)
    if reply.loop:
        return Halt(HaltReason.LOOP, why)
    if status == 200:
        return _ok(reply, html_before, why)
    if 200 < status < 300:
        return Delivered(DeliveryWarning.OTHER_2XX)
    if 300 <= status < 400:
        return Halt(HaltReason.WRONG_ADDRESS, why)
    if status == 503:
        return Retry(why, Scope.UPSTREAM, reply.retry_after or 0.0)
    if status in (408, 425, 429) or status >= 500 or status < 200:
        return Retry(why, Scope.LANE, reply.retry_after or 0.0)
    if status == 413:
        return Split(why)
    if status == 400:
        return Bisect(why)
    return Halt(_HALTS.get(status, HaltReason.REJECTED), why)


def is_web_page(reply: Reply) -> bool:
    """Whether the answer is 200 with a web page: the mark of a captive proxy."""
    return (
        reply.status == 200 and reply.content_type.partition(";")[0].strip().lower() == "text/html"
    )


def summarize(reply: Reply, secret: str = "") -> str:
    """The reply in one line: the status and the beginning of the answer, without control
    characters, `secret` and whatever else looks like a key or like credentials.
    """
    said = _cut(reply.body.decode("utf-8", "replace"), secret)
    if reply.location and reply.status is not None and 300 <= reply.status < 400:
        return f"HTTP {reply.status}, a redirect to {_cut(reply.location, secret)}"
    return f"HTTP {reply.status}: {said}" if said else f"HTTP {reply.status}"


# FBT001: the table of outcomes calls it once, by position.
def _ok(reply: Reply, html_before: bool, why: str) -> Outcome:  # noqa: FBT001
    if is_web_page(reply):
        return (
            Halt(HaltReason.CAPTIVE_PROXY, why)
            if html_before
            else Retry(why, Scope.LANE, reply.retry_after or 0.0, overload=False)
        )
    if not reply.body.strip():
        return Delivered()
    try:
        said: Any = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Delivered(DeliveryWarning.ODD_BODY)
    if isinstance(said, dict) and said.get("quota_limited"):
        return Delivered(DeliveryWarning.QUOTA_LIMITED)
    return Delivered()


def _cut(text: str, secret: str) -> str:
    if secret:
        text = text.replace(secret, "…")
    return _CONTROL.sub(" ", mask_secrets(text[: 4 * MAX_WORDS])).strip()[:MAX_WORDS]
