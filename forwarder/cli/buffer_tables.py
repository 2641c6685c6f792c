"""What `forwarder buffer` prints: the content of workers' directories, and what is damaged in them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from forwarder.cli.output import console
from forwarder.inspect.buffer_contents import BufferContent, Flaw, LaneContent, QuarantinedFile
from forwarder.telemetry.readable import duration, size
from forwarder.telemetry.snapshot import LaneSnapshot


def print_contents(contents: Sequence[BufferContent]) -> None:
    """A table for each worker's directory, and the total."""
    out, now = console(), time.time()
    for content in contents:
        out.print(_head(content))
        out.print(_table(content.lanes, now) if content.lanes else Text("  No events wait.", style="dim"))
        for line in (*_flaws(content.flaws), *_aside(content.aside)):
            out.print(Text(line, style="yellow"), soft_wrap=True)
    events, used = sum(content.events for content in contents), sum(content.bytes for content in contents)
    out.print(Text(f"{_events(events)} in all, {size(used)}"))


def verdict(contents: Iterable[BufferContent]) -> Iterator[str]:
    """What is wrong with each worker's directory, or that nothing is."""
    for content in contents:
        if content.damaged:
            yield f"{content.directory}: damaged; what can be read: {_events(content.events)}"
        else:
            yield f"{content.directory}: whole, {_events(content.events)}"
        yield from _flaws(content.flaws)
        yield from _aside(content.aside)


def left_lines(lanes: Iterable[LaneSnapshot]) -> Iterator[str]:
    """Which lanes still hold events, and why."""
    for lane in lanes:
        why = f": halted, {lane.halted}" + (f" ({lane.why})" if lane.why else "") if lane.halted else ""
        yield f"! lane {lane.label} still has {_events(lane.buffered)}{why}"
        if lane.hint:
            yield f"    what to do: {lane.hint}"


def as_json(contents: Sequence[BufferContent]) -> dict[str, Any]:
    """The same for programs; times as ISO 8601, sizes in bytes."""
    return {
        "directories": [_plain(content) for content in contents],
        "events": sum(content.events for content in contents),
        "bytes": sum(content.bytes for content in contents),
    }


def _head(content: BufferContent) -> Text:
    text = Text(str(content.directory), style="bold")
    if content.process is not None:
        text.append(f" (in use by process {content.process})" if content.process else " (in use by another process)", style="default")
    return text


def _table(lanes: Iterable[LaneContent], now: float) -> Table:
    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column("lane", no_wrap=True)
    for name in ("events", "bytes", "oldest", "kind"):
        table.add_column(name, justify="right")
    for lane in lanes:
        oldest = "" if lane.oldest is None else duration(max(0.0, now - lane.oldest))
        table.add_row(Text(lane.label), f"{lane.events:,}", size(lane.bytes), oldest, "historical" if lane.historical else "live")
    return table


def _flaws(flaws: Iterable[Flaw]) -> Iterator[str]:
    for flaw in flaws:
        place = f" at {flaw.offset}, {flaw.size} bytes" if flaw.size else ""
        events = f" ({_events(flaw.events)})" if flaw.events else ""
        yield f"! {flaw.file}{place}: {flaw.what}{events}" + (", found before and copied aside" if flaw.known else "")


def _aside(files: Sequence[QuarantinedFile]) -> Iterator[str]:
    if files:
        yield f"! moved or copied aside because it couldn't be read ({len(files)}; docs/buffer.md says what to do with it):"
        yield from (f"    {file.file}, {size(file.size)}, {_iso(file.at)}" + (f": {file.what}" if file.what else "") for file in files)


def _plain(content: BufferContent) -> dict[str, Any]:
    return {
        "directory": str(content.directory),
        "in_use": content.process is not None,
        "process": content.process or None,
        "lanes": [
            {
                "lane": lane.label,
                "historical": lane.historical,
                "events": lane.events,
                "bytes": lane.bytes,
                "oldest": None if lane.oldest is None else _iso(lane.oldest),
            }
            for lane in content.lanes
        ],
        "events": content.events,
        "bytes": content.bytes,
        "damage": [_flaw(flaw) for flaw in content.flaws],
        "aside": [{"file": str(file.file), "size": file.size, "at": _iso(file.at), "what": file.what} for file in content.aside],
    }


def _flaw(flaw: Flaw) -> dict[str, Any]:
    place = {"file": str(flaw.file), "offset": flaw.offset, "size": flaw.size}
    return {**place, "what": flaw.what, "events": flaw.events, "known": flaw.known}


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count:,} events"


def _iso(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")
