"""Failpoints: named places at which tests make the process fail, or kill it.

The environment variable `FORWARDER_FAILPOINTS` arms them: a comma-separated list of `name=action`
or `name=action@N`, where the action is `kill` (SIGKILL), `enospc` or `eio` (raises such an
`OSError`), taken at the N-th passing only, or at each one without `@N`. `FORWARDER_FAILPOINTS_LOG`
names a file to which each action appends the failpoint's name.

A failpoint costs nothing while none is armed: it is `if failpoints.ARMED: failpoints.hit("name")`,
a test of an empty dict.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

NAMES: Final = frozenset(
    {
        "opening.read",  # the log was read, nothing is changed yet
        "opening.written",  # the new segment with its checkpoint was written
        "commit.begin",  # before the first byte of a group
        "commit.written",  # a group was written, not synced
        "commit.synced",  # synced, not acknowledged
        "checkpoint.written",  # a segment's first records were written, not synced
        "settle.marked",  # events are settled in memory, their marks not written
        "bisect.cut",  # a chunk was cut in parts
        "compaction.read",  # the rest of a segment was read, not copied
        "compaction.moved",  # the copy is synced; the segment isn't free yet
        "dead_letters.begin",  # before dead letters are written
        "dead_letters.committed",  # they are committed, the marks of their events aren't written
        "archive.spooling",  # before bytes of a file of the archive are written aside
        "archive.copied",  # they are in its folder under a name that begins with a dot, not synced
        "archive.renamed",  # the file has its name; the folder isn't synced
        "archive.published",  # the file is complete and durable; its events aren't settled
        "replay.held",  # a dead letter is in the buffer, and not yet removed from the store
    }
)


class Action(StrEnum):
    """What an armed failpoint does."""

    KILL = "kill"
    ENOSPC = "enospc"
    EIO = "eio"


ARMED: Final[dict[str, tuple[Action, int | None]]] = {}
"""Armed failpoints: the action, and at which passing (None: at each)."""

_passings: Final[dict[str, int]] = {}


def arm(text: str) -> None:
    """Arm the failpoints in `text`, and no others. Raises `ValueError` for
    an unknown name or action.
    """
    armed: dict[str, tuple[Action, int | None]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, deed = item.partition("=")
        action, _, passing = deed.partition("@")
        if name not in NAMES:
            raise ValueError(f"there is no failpoint {name!r}")
        armed[name] = (Action(action), int(passing) if passing else None)
    ARMED.clear()
    ARMED.update(armed)
    _passings.clear()


def hit(name: str) -> None:
    """Pass the failpoint `name`. Raises `OSError` or kills the process if it is armed."""
    armed = ARMED.get(name)
    if armed is None:
        return
    action, passing = armed
    _passings[name] = _passings.get(name, 0) + 1
    if passing is not None and _passings[name] != passing:
        return
    _log(name)
    if action is Action.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    number = errno.ENOSPC if action is Action.ENOSPC else errno.EIO
    raise OSError(number, os.strerror(number))


def arm_from_environment(environment: Mapping[str, str]) -> None:
    """Arm the failpoints in the environment. Raises `ValueError` as `arm` does."""
    arm(environment.get("FORWARDER_FAILPOINTS", ""))


def _log(name: str) -> None:
    log = os.environ.get("FORWARDER_FAILPOINTS_LOG")
    if log:
        with Path(log).open("a", encoding="ascii") as file:
            file.write(f"{name}\n")
