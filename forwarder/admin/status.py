"""The `/status` document: a snapshot as JSON, and back.

Invariants: `parse(encode(snapshot))` equals the snapshot; unknown fields are ignored and missing ones have defaults, so that a command
of one version understands the daemon of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from forwarder.core.errors import ForwarderError
from forwarder.telemetry.snapshot import Snapshot, balanced


class NotAStatus(ForwarderError):
    """What answered isn't forwarder's admin server."""

    code = "not_a_status"


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as plain JSON values, with what follows from it: `balanced`, and per lane `difference`."""
    plain: dict[str, Any] = msgspec.to_builtins(replace(snapshot, http_requests={}, passthrough_requests={}, rejected_requests={}))
    plain["http_requests"] = _listed(snapshot.http_requests)
    plain["passthrough_requests"] = _listed(snapshot.passthrough_requests)
    rejected = snapshot.rejected_requests.items()
    plain["rejected_requests"] = [{"path": path, "reason": reason, "count": count} for (path, reason), count in rejected]
    plain["balanced"] = balanced(snapshot)
    for lane, entry in zip(snapshot.lanes, plain["lanes"], strict=True):
        entry["difference"] = lane.difference
    return plain


def encode(snapshot: Snapshot) -> bytes:
    """The document, as JSON."""
    return msgspec.json.format(msgspec.json.encode(document(snapshot)), indent=2)


def parse(body: bytes) -> Snapshot:
    """The snapshot that a `/status` document was made of. Raises `NotAStatus`."""
    try:
        plain = msgspec.json.decode(body, type=dict[str, Any])
        requests = _counted(plain.pop("http_requests", []))
        passed = _counted(plain.pop("passthrough_requests", []))
        listed = msgspec.convert(plain.pop("rejected_requests", []), list[_Rejected])
        snapshot = msgspec.convert(plain, Snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotAStatus(f"the answer isn't a status document: {error}", hint="Is this the address of forwarder's admin server?") from error
    rejected = {(entry.path, entry.reason): entry.count for entry in listed}
    return replace(snapshot, http_requests=requests, passthrough_requests=passed, rejected_requests=rejected)


def _listed(requests: Mapping[tuple[str, int], int]) -> list[dict[str, str | int]]:
    return [{"path": path, "code": code, "count": count} for (path, code), count in requests.items()]


def _counted(listed: object) -> dict[tuple[str, int], int]:
    """Raises `msgspec.ValidationError` if it isn't what `_listed` makes."""
    return {(entry.path, entry.code): entry.count for entry in msgspec.convert(listed, list[_Requests])}


class _Requests(msgspec.Struct):
    path: str
    code: int
    count: int


class _Rejected(msgspec.Struct):
    path: str
    reason: str
    count: int
