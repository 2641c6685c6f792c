"""What `forwarder dead-letters` prints.

Invariant: project keys are shown by their labels, and an event's own text with everything masked that looks like a key; what a terminal
would obey is shown as an escape.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from forwarder.cli.dead_letter_files import LetterFile
from forwarder.cli.dead_letter_origin import attributes_of, origin_lines, without_keys
from forwarder.cli.output import console
from forwarder.cli.visible import visible, visible_lines
from forwarder.core.event import Lane
from forwarder.core.secrets import mask_secrets
from forwarder.deadletter.selection import DeadLetterContent, DeadLetterSummary
from forwarder.imports.batching import SOURCE
from forwarder.telemetry.readable import duration, size

_LONGEST_WHY: Final = 80
_LONGEST_WHERE: Final = 50


def letters(count: int) -> str:
    """So many letters."""
    return "1 dead letter" if count == 1 else f"{count:,} dead letters"


def print_table(found: Sequence[tuple[LetterFile, DeadLetterSummary]], total: int, now: float) -> None:
    """A row a letter, the newest first. Those of an import have the record's file and line where others have their lane."""
    if not found:
        console().print(Text("No dead letters.", style="dim"))
        return
    table = Table(box=None, pad_edge=True, header_style="dim")
    placed = any(letter.source == SOURCE for _, letter in found)
    for name in ("number", "age", "reason", *(["where"] if placed else ["lane"]), "event", "size", "why"):
        right = name in ("number", "age", "size")
        table.add_column(name, justify="right" if right else "left", overflow="ellipsis", no_wrap=name != "why")
    for file, letter in found:
        age = duration(now - letter.at)
        where = _end_of(letter.coordinates) if placed else letter.label
        row = (file.name(letter.number), age, letter.reason, where, letter.event or "", size(letter.size), _why(letter))
        table.add_row(*(Text(visible(cell)) for cell in row))
    out = console()
    out.print(table)
    more = f"; {len(found):,} of them are shown, --limit shows more" if total > len(found) else ""
    out.print(Text(f"{letters(total)}{more}"))


def _end_of(coordinates: str) -> str:
    """A long path without its beginning: the line is at its end."""
    return coordinates if len(coordinates) <= _LONGEST_WHERE else f"…{coordinates[1 - _LONGEST_WHERE :]}"


def _why(letter: DeadLetterSummary) -> str:
    """Why it is one, and what was asked to be done with it."""
    mark, note = letter.mark and f"[{letter.mark}]", letter.note and f"(replay: {letter.note})"
    return mask_secrets(" ".join(filter(None, (mark, letter.why[:_LONGEST_WHY], note))))


def as_json(found: Sequence[tuple[LetterFile, DeadLetterSummary]], total: int) -> str:
    """The same for programs."""
    document = {"count": total, "results": [plain(file, letter) for file, letter in found]}
    return json.dumps(document, indent=2, ensure_ascii=False)


def plain(file: LetterFile, letter: DeadLetterSummary) -> dict[str, Any]:
    """A letter for programs; times as ISO 8601, sizes in bytes."""
    return {
        "number": file.name(letter.number),
        "reason": letter.reason,
        "lane": letter.label,
        "at": _time(letter.at),
        "why": mask_secrets(letter.why),
        "source": letter.source,
        "coordinates": letter.coordinates,
        "attributes": attributes_of(letter.attributes, letter.lane),
        "event": letter.event,
        "distinct_id": letter.distinct_id,
        "uuid": letter.uuid,
        "bytes": letter.size,
        "mark": letter.mark,
        "rate": letter.rate,
        "note": letter.note,
        "file": str(file.path),
    }


def print_letter(file: LetterFile, letter: DeadLetterSummary, content: DeadLetterContent) -> None:
    """Everything about a letter, and its event."""
    out = console()
    changed = "" if content.intact else "; not those that were written: the disk has changed them"
    shown = {**plain(file, letter), "bytes": f"{letter.size:,}{changed}"}
    origin = origin_lines(shown.pop("attributes"))
    for name, value in (*shown.items(), *origin):
        if value not in (None, ""):
            out.print(Text(f"{visible(name):>12}  {visible(str(value))}"), soft_wrap=True)
    out.print(Text(readable(content.data, letter.lane)), soft_wrap=True)
    if content.replacement is not None:
        out.print(Text("to be sent in its place:"))
        out.print(Text(readable(content.replacement, letter.lane)), soft_wrap=True)


def letter_as_json(file: LetterFile, letter: DeadLetterSummary, content: DeadLetterContent) -> str:
    """Everything about a letter, for programs; bytes that are no text in base64."""
    document = {**plain(file, letter), "intact": content.intact, **_data("data", content.data, letter.lane)}
    if content.replacement is not None:
        document |= _data("replacement", content.replacement, letter.lane)
    return json.dumps(document, indent=2, ensure_ascii=False)


def readable(data: bytes, lane: Lane | None) -> str:
    """An event's text for a terminal, without keys."""
    return visible_lines(without_keys(data.decode("utf-8", "backslashreplace"), lane))


def _data(name: str, data: bytes, lane: Lane | None) -> dict[str, str]:
    try:
        return {name: without_keys(data.decode(), lane)}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
