"""What `forwarder dead-letters` prints: tables, one letter, and the same for programs.

Invariant: project keys are shown by their names or labels, everything in an event that looks like
a key is masked, and control characters are escaped.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from forwarder.cli.output import visible, visible_lines
from forwarder.cli.tables import console
from forwarder.core.event import Lane
from forwarder.core.secrets import mask_secrets
from forwarder.core.stamps import utc_text
from forwarder.deadletter.selection import DeadLetterContent, DeadLetterSummary
from forwarder.inspect.dead_letters import WorkerDeadLetters
from forwarder.sources.imports.blocks import SOURCE
from forwarder.telemetry.labels import LaneNames
from forwarder.telemetry.readable import duration, plural, size

_MAX_WHY: Final = 80
_MAX_WHERE: Final = 50
_MAX_BYTES: Final = 32


def dead_letter_count(count: int) -> str:
    """`3 dead letters`."""
    return plural(count, "dead letter")


def print_table(
    rows: Sequence[tuple[WorkerDeadLetters, DeadLetterSummary]],
    total: int,
    lanes: LaneNames,
    now: float,
    place: str,
) -> None:
    """Print a row per letter. For those of an import, the record's file and line stand in place of
    the lane. `place` is where they were looked for, if the command chose it.
    """
    there = f" in {place}" if place else ""
    others = ". Those of another configuration: --config FILE" if place else ""
    if not rows:
        console().print(Text(f"No dead letters{there}{others}.", style="dim"), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=True, header_style="dim")
    imported = any(dead_letter.source == SOURCE for _, dead_letter in rows)
    for name in (
        "number",
        "age",
        "reason",
        "where" if imported else "lane",
        "event",
        "size",
        "why",
    ):
        right = name in ("number", "age", "size")
        table.add_column(
            name, justify="right" if right else "left", overflow="ellipsis", no_wrap=name != "why"
        )
    for file, dead_letter in rows:
        age = duration(now - dead_letter.at)
        where = (
            _end_of(without_keys(dead_letter.coordinates, dead_letter.lane))
            if imported
            else lanes.show(dead_letter.label)
        )
        row = (
            file.name(dead_letter.number),
            age,
            dead_letter.reason,
            where,
            without_keys(dead_letter.event or "", dead_letter.lane),
            size(dead_letter.size),
            _why(dead_letter),
        )
        table.add_row(*(Text(visible(cell)) for cell in row))
    out = console()
    out.print(table)
    more = f"; {len(rows):,} shown, --limit shows more" if total > len(rows) else ""
    out.print(Text(f"{dead_letter_count(total)}{there}{more}{others}"), soft_wrap=True)


def print_dead_letter(
    file: WorkerDeadLetters,
    dead_letter: DeadLetterSummary,
    content: DeadLetterContent,
    lanes: LaneNames,
) -> None:
    """Print everything about a letter, and its event."""
    out = console()
    changed = "" if content.intact else "; damaged: they differ from the bytes that were written"
    shown = {
        **dead_letter_as_json(file, dead_letter, lanes),
        "bytes": f"{dead_letter.size:,}{changed}",
    }
    origin = origin_lines(shown.pop("attributes"))
    for name, value in (*shown.items(), *origin):
        if value not in (None, ""):
            out.print(Text(f"{visible(name):>12}  {visible(str(value))}"), soft_wrap=True)
    out.print(Text(readable(content.data, dead_letter.lane)), soft_wrap=True)
    if content.replacement is not None:
        out.print(Text("to be sent in its place:"))
        out.print(Text(readable(content.replacement, dead_letter.lane)), soft_wrap=True)


def dead_letter_as_json(
    file: WorkerDeadLetters, dead_letter: DeadLetterSummary, lanes: LaneNames
) -> dict[str, Any]:
    """A letter for programs, without keys: times in ISO 8601, sizes in bytes."""

    def masked(text: str | None) -> str | None:
        return text and without_keys(text, dead_letter.lane)

    return {
        "number": file.name(dead_letter.number),
        "reason": dead_letter.reason,
        "lane": dead_letter.label,
        **lanes.beside(dead_letter.label),
        "at": utc_text(dead_letter.at, "milliseconds"),
        "why": masked(dead_letter.why),
        "source": dead_letter.source,
        "coordinates": masked(dead_letter.coordinates),
        "attributes": attributes_of(dead_letter.attributes, dead_letter.lane),
        "event": masked(dead_letter.event),
        "distinct_id": masked(dead_letter.distinct_id),
        "uuid": masked(dead_letter.uuid),
        "bytes": dead_letter.size,
        "mark": dead_letter.mark,
        "rate": dead_letter.rate,
        "note": masked(dead_letter.note),
        "file": str(file.path),
    }


def content_as_json(
    file: WorkerDeadLetters,
    dead_letter: DeadLetterSummary,
    content: DeadLetterContent,
    lanes: LaneNames,
) -> dict[str, Any]:
    """A dead letter with its event for programs, without keys; what isn't UTF-8 in base64."""
    document = {
        **dead_letter_as_json(file, dead_letter, lanes),
        "intact": content.intact,
        **_data_as_json("data", content.data, dead_letter.lane),
    }
    if content.replacement is not None:
        document |= _data_as_json("replacement", content.replacement, dead_letter.lane)
    return document


def readable(data: bytes, lane: Lane | None) -> str:
    """An event's text for a terminal, without keys."""
    return visible_lines(without_keys(data.decode("utf-8", "backslashreplace"), lane))


def without_keys(text: str, lane: Lane | None) -> str:
    """The text with the lane's key, and everything that looks like a key, masked."""
    return mask_secrets(text, "" if lane is None else lane.api_key)


def attributes_of(text: str, lane: Lane | None) -> dict[str, Any] | None:
    """What the source has recorded of a letter, without keys; None if nothing."""
    try:
        attributes = json.loads(without_keys(text, lane)) if text else None
    except ValueError:
        return {"text": without_keys(text, lane)}
    return attributes if isinstance(attributes, dict) else None


def origin_lines(attributes: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """The same for a person: names and values."""
    for name, value in (attributes or {}).items():
        if name == "headers":
            pairs = value.items() if isinstance(value, dict) else value or ()
            yield from (("header", f"{_printable(key)}: {_printable(text)}") for key, text in pairs)
        else:
            yield name, _printable(value)


def _end_of(coordinates: str) -> str:
    """A long path without its beginning, as its end has the line."""
    return coordinates if len(coordinates) <= _MAX_WHERE else f"…{coordinates[1 - _MAX_WHERE :]}"


def _why(dead_letter: DeadLetterSummary) -> str:
    mark = dead_letter.mark and f"[{dead_letter.mark}]"
    note = dead_letter.note and f"(replay: {without_keys(dead_letter.note, dead_letter.lane)})"
    why = without_keys(dead_letter.why, dead_letter.lane)[:_MAX_WHY]
    return " ".join(filter(None, (mark, why, note)))


def _data_as_json(name: str, data: bytes, lane: Lane | None) -> dict[str, str]:
    try:
        return {name: without_keys(data.decode(), lane)}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _printable(value: Any) -> str:
    """Text as it is, as far as it is printable; bytes in hexadecimal."""
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
    return (
        f"({len(data)} bytes) {data[:_MAX_BYTES].hex(' ')}{' …' if len(data) > _MAX_BYTES else ''}"
    )
