"""What a daemon says of itself at its start and at its end: where it listens, where events wait, and what was left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from forwarder.config.settings import Settings
from forwarder.core.errors import ForwarderError
from forwarder.core.ports import DeadLetter, Reason
from forwarder.daemon.state_files import buffers_if_any
from forwarder.telemetry.labels import LaneLabels
from forwarder.telemetry.readable import size
from forwarder.telemetry.snapshot import Snapshot

_log = structlog.get_logger(__name__)


def held(snapshot: Snapshot) -> int:
    """Events in the buffer, waiting or in flight."""
    return sum(lane.buffered for lane in snapshot.lanes)


def announce_addresses(settings: Settings, snapshot: Snapshot, admin: str) -> None:
    """Say where it listens, and where it delivers to."""
    _log.info(
        "listening",
        ingestion=list(snapshot.addresses) or [settings.sources.http.listen],
        admin=admin,
        upstream=snapshot.upstream.url,
        **({"workers": len(snapshot.workers)} if snapshot.workers else {}),
    )


def announce_buffer(settings: Settings, snapshot: Snapshot, path: Path) -> None:
    """Say where events wait, and what that means; `path` is the directory of a disk buffer."""
    if settings.buffer.kind == "disk":
        _log.info(
            "events wait on disk",
            path=str(path),
            found=snapshot.buffer_found,
            meaning=f"Events wait on disk, at {path}, in at most {size(snapshot.buffer_limit_bytes)}: they outlive this process. "
            f"{snapshot.buffer_found} events were found there.",
        )
        return
    _log.warning(
        "events wait in memory",
        meaning=f"Events wait in memory, at most {size(snapshot.buffer_limit_bytes)}: what the upstream hasn't taken is lost "
        f"if this process is killed, and when it stops after {settings.shutdown.drain_timeout:g} s of draining "
        + (f"it becomes dead letters, at {snapshot.dead_letters_path}." if snapshot.dead_letters_path else "it is lost too."),
        keys={"kind": "buffer.kind", "size": "buffer.max_bytes", "drain": "shutdown.drain_timeout"},
    )
    _announce_unused(settings.buffer.path)


def _announce_unused(path: Path) -> None:
    """Say that a disk buffer's files are there, which a memory buffer doesn't read: events may wait in them."""
    try:
        unused = buffers_if_any(path)
    except ForwarderError:  # another user's: nobody here has written there
        return
    if unused:
        _log.warning(
            "the files of a disk buffer aren't used",
            paths=list(map(str, unused)),
            meaning="`buffer.kind` is memory: what waits in these files isn't delivered.",
            hint=f"`forwarder buffer ls {path}` says what waits there, `forwarder buffer drain {path}` delivers it.",
        )


def name_what_waits(snapshot: Snapshot, path: Path) -> None:
    """Say what a disk buffer keeps for the next start."""
    _log.info(
        "events wait on disk for the next start",
        events=held(snapshot),
        path=str(path),
        lanes={lane.label: lane.buffered for lane in snapshot.lanes if lane.buffered},
    )


def name_what_is_left(left: Sequence[DeadLetter], kept_at: str) -> None:
    """Say what memory held, undelivered; `kept_at` is where the dead letters are kept, empty if they are in memory only."""
    labels = LaneLabels()
    counts = Counter(labels.label(letter.lane) for letter in left)
    oldest = min(letter.at for letter in left)
    kept = (
        f"These events became dead letters, which are kept at {kept_at}: "
        f"`forwarder dead-letters replay --reason {Reason.UNDELIVERED_AT_EXIT}` sends them again."
        if kept_at
        else "These events became dead letters. Dead letters are in memory only, for want of a directory: they end with this process."
    )
    _log.error(
        "events were left behind",
        undelivered=len(left),
        lanes=dict(counts),
        oldest=datetime.fromtimestamp(oldest, UTC).isoformat(timespec="seconds"),
        reason=Reason.UNDELIVERED_AT_EXIT,
        meaning=kept,
        hint="Give the drain more time with `shutdown.drain_timeout`, and see why the upstream didn't take them."
        + ("" if kept_at else " Give the dead letters a directory with `dead_letters.path`."),
    )
