"""What the scheduler hands to what writes: one run of a batch export, and how its writing may fail.

A job is fixed when its run is made. A retried, interrupted or continued run has the same `origin`
and `selection`, so that what it writes again replaces what is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Selection:
    """The arrivals that a run exports: those with `since <= time < before`, up to the arrival
    `arrival`, without what an earlier run had.

    An earlier run had what has its time before `done_before` and arrived by `done_arrival`. Times
    are texts of `protocol.times.format_time`, which sort as the times do.
    """

    since: str | None
    """None: from the first event."""
    before: str | None
    """None: without end."""
    arrival: int
    """The last arrival that counts."""
    done_before: str | None = None
    """None: no earlier run had anything."""
    done_arrival: int = 0


@dataclass(frozen=True, slots=True)
class ExportJob:
    """One run of a batch export, as it is written."""

    origin: str
    """The id of the first run of the same work: what the names of files and parts follow from."""
    run: str
    project: int
    api_key: str
    """The project's key."""
    model: str
    """`events` or `persons`; another one is an `ExportMisconfigured`."""
    destination: Mapping[str, Any]
    """`{type, config}`, secrets included."""
    filters: Any
    """As it is stored: a list of property conditions, or an object; an
    empty one selects everything.
    """
    selection: Selection
    cursor: str
    """What the last `progress` said; empty: from the beginning."""
    first: str
    last: str
    """The interval's times, `[first, last)`, for names."""


@dataclass(frozen=True, slots=True)
class DestinationPolicy:
    """Where destinations may be."""

    export_root: Path | None = None
    """The folder that folders of exports are in; None: a destination can't be a folder."""
    allow_private: bool = False
    """Allow private, loopback and link-local addresses."""


class DestinationFailed(Exception):
    """The destination failed, and may work later. The message is shown to
    people and has no secrets.
    """


class ExportMisconfigured(Exception):
    """The export can't work until its configuration is changed. The message is shown to people and
    has no secrets.
    """


Progress: TypeAlias = Callable[[str, int, int], Awaitable[None]]
"""Called after each durable part with the cursor behind it, the records written and the records in
all, the earlier parts' included.
"""
ExportRecords: TypeAlias = Callable[[ExportJob, Progress], Awaitable[None]]
"""Writes what a job selects from its cursor on. Raises `DestinationFailed` or
`ExportMisconfigured`; cancellation writes no more.
"""
