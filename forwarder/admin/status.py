"""The `/status` document: a snapshot as JSON, and back.

Invariants: `parse(encode(snapshot))` equals the snapshot; unknown fields are ignored and missing
ones have defaults, so that a command of one version understands the daemon of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from forwarder.core.errors import ForwarderError
from forwarder.telemetry.snapshot import KEYED_COUNTS, Snapshot, balanced

_ORDER: Final = (
    *("version", "state", "started_at", "now", "name", "required", "key_labels", "lanes"),
    *("buffer_kind", "...", "buffer_found", "dead_letters_path", "dead_letters_wanted"),
    *("kafka", "logs", "workers", "destinations"),
)
_PLACES: Final = {name: place for place, name in enumerate(_ORDER)}
"""People read the document: what a reader looks for first is at its beginning, and lists are at
its end. All other fields are between, in the order of their classes.
"""


class NotAStatus(ForwarderError):
    """What answered isn't forwarder's admin server."""

    code = "not_a_status"


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as plain JSON values, with what follows from it: `balanced`,
    and per lane `difference`.
    """
    without: dict[str, Any] = {name: {} for name in KEYED_COUNTS}
    plain: dict[str, Any] = msgspec.to_builtins(replace(snapshot, **without))
    for name, parts in KEYED_COUNTS.items():
        counts: Mapping[tuple[Any, ...], int] = getattr(snapshot, name)
        plain[name] = [
            {**dict(zip(parts, key, strict=True)), "count": count} for key, count in counts.items()
        ]
    plain = _ordered(plain)
    plain["destinations"] = [_ordered(destination) for destination in plain["destinations"]]
    plain["balanced"] = balanced(snapshot)
    for lane, entry in zip(snapshot.lanes, plain["lanes"], strict=True):
        entry["difference"] = lane.difference
    return plain


def _ordered(plain: Mapping[str, Any]) -> dict[str, Any]:
    between = _PLACES["..."]
    return {name: plain[name] for name in sorted(plain, key=lambda n: _PLACES.get(n, between))}


def encode(snapshot: Snapshot) -> bytes:
    """The document, as JSON."""
    return msgspec.json.format(msgspec.json.encode(document(snapshot)), indent=2)


def parse(body: bytes) -> Snapshot:
    """The snapshot that a `/status` document was made of. Raises `NotAStatus`."""
    try:
        plain = msgspec.json.decode(body, type=dict[str, Any])
        counts: dict[str, Any] = {
            name: _counted(plain.pop(name, []), parts) for name, parts in KEYED_COUNTS.items()
        }
        return replace(msgspec.convert(plain, Snapshot), **counts)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = (
            "Name the address of forwarder's admin server: its setting is `admin.listen`, "
            "127.0.0.1:8321 by default."
        )
        raise NotAStatus(
            "what answers there is not forwarder's admin server, or one of another version",
            hint=hint,
        ) from error


def _counted(listed: object, parts: tuple[str, ...]) -> dict[tuple[Any, ...], int]:
    """Counts by their keys. Raises `msgspec.ValidationError` if it isn't what
    `document` makes of them.
    """
    kinds = [(part, int if part == "code" else str) for part in parts]
    entry = msgspec.defstruct("entry", [*kinds, ("count", int)])
    entries = msgspec.convert(listed, list[entry])  # type: ignore[valid-type]
    rows = [msgspec.structs.astuple(item) for item in entries]
    return {row[:-1]: row[-1] for row in rows}
