"""What `forwarder mapping try` finds out about each record, and prints.

Invariant: a record is called sent only if nothing on its way to the buffer would make a dead letter of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from rich.text import Text

from forwarder.cli.output import console
from forwarder.core.event import split_events
from forwarder.core.ports import Reason
from forwarder.core.secrets import mask_secrets
from forwarder.mapping import Mapping, NotJson, Unmappable
from forwarder.wire.identity import ABSENT, id_text, second_ids

_RECORDS_TIME: Final = "the record's own time"
_PLACE: Final = "derived from the record's place"
_KEY: Final = "the record's key"


class Outcome(StrEnum):
    """What would become of a record."""

    SENT = "sent"
    SKIPPED = "skipped"
    REFUSED = "refused"


class _Head(Struct, gc=False):
    """What the intake would look at."""

    distinct_id: Raw = ABSENT
    timestamp: Raw = ABSENT
    uuid: Raw = ABSENT
    properties: Raw = ABSENT


_decode_head = msgspec.json.Decoder(_Head).decode


@dataclass(frozen=True, slots=True)
class Result:
    """One record: what would be sent for it, and what of that the intake would derive (by member); or the dead letter's reason, and why."""

    line: int
    outcome: Outcome
    events: Sequence[tuple[bytes, dict[str, str]]] = ()
    reason: Reason | None = None
    why: str = ""


@dataclass(slots=True)
class Tally:
    """How many records would fare how."""

    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))

    @property
    def refused(self) -> int:
        """Records that would become dead letters."""
        return self.counts[Outcome.REFUSED]

    def counted(self, results: Iterable[Result]) -> Iterator[Result]:
        """The results, counted as they pass."""
        for result in results:
            self.counts[result.outcome] += 1
            yield result


class Trial:
    """A mapping, and what else decides about its source's records."""

    def __init__(self, mapping: Mapping, *, key_is_distinct_id: bool, max_event: int) -> None:
        self._mapping = mapping
        self._key_is_distinct_id = key_is_distinct_id
        self._max_event = max_event

    def results(self, lines: Iterable[bytes]) -> Iterator[Result]:
        """What would become of each line; empty ones are passed over."""
        for number, line in enumerate(lines, 1):
            record = line.strip()
            if record:
                yield self.result(number, record)

    def result(self, line: int, record: bytes) -> Result:
        """What would become of a record."""
        try:
            mapped = self._mapping.map_record(record)
        except (NotJson, Unmappable) as error:
            reason = Reason.UNDECODABLE if isinstance(error, NotJson) else Reason.UNMAPPABLE
            return Result(line, Outcome.REFUSED, reason=reason, why=error.message)
        if mapped is None:
            return Result(line, Outcome.SKIPPED, why="where")
        events = [bytes(raw) for raw in split_events(mapped)] if mapped[:1] == b"[" else [mapped]
        for event in events:
            if len(event) > self._max_event:
                return Result(line, Outcome.REFUSED, reason=Reason.TOO_LARGE, why=f"{len(event):,} bytes are more than upstream.max_event")
            if not self._key_is_distinct_id and not _own_id(_decode_head(event)):
                return Result(line, Outcome.REFUSED, reason=Reason.MISSING_DISTINCT_ID, why="distinct_id: the expression gives nothing")
        return Result(line, Outcome.SENT, [(event, _derived(_decode_head(event))) for event in events])


def _own_id(head: _Head) -> str:
    return id_text(head.distinct_id) or id_text(second_ids(head.properties).distinct_id)


def _derived(head: _Head) -> dict[str, str]:
    derived = {} if _own_id(head) else {"distinct_id": _KEY}
    if head.timestamp is ABSENT:
        derived["timestamp"] = _RECORDS_TIME
    if head.uuid is ABSENT:
        derived["uuid"] = _PLACE
    return derived


def print_result(result: Result) -> None:
    """One record for a person."""
    out = console()
    if result.outcome is Outcome.REFUSED:
        out.print(Text(f"line {result.line}: not sent, {result.reason}: {mask_secrets(result.why)}", style="red"), soft_wrap=True)
    elif result.outcome is Outcome.SKIPPED:
        out.print(Text(f"line {result.line}: skipped by where", style="dim"), soft_wrap=True)
    for event, derived in result.events:
        out.print(Text(f"line {result.line}: sent", style="green"))
        out.print(Text(mask_secrets(msgspec.json.format(event, indent=2).decode())), soft_wrap=True)
        for name, origin in derived.items():
            out.print(Text(f"  {name}: {origin}", style="dim"), soft_wrap=True)


def print_tally(tally: Tally) -> None:
    """The end, for a person."""
    total = sum(tally.counts.values())
    records = "1 record" if total == 1 else f"{total:,} records"
    figures = {"sent": tally.counts[Outcome.SENT], "skipped by where": tally.counts[Outcome.SKIPPED], "not sent": tally.refused}
    console().print(Text(f"{records}: {', '.join(f'{count:,} {what}' for what, count in figures.items())}"))


def as_json(results: Sequence[Result], tally: Tally) -> str:
    """The same for programs."""
    counts = {str(outcome): count for outcome, count in tally.counts.items()}
    document = {"count": len(results), **counts, "results": [_plain(result) for result in results]}
    return mask_secrets(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _plain(result: Result) -> dict[str, Any]:
    return {
        "line": result.line,
        "outcome": result.outcome,
        "reason": result.reason,
        "why": result.why,
        "events": [{"event": Raw(event), "derived": derived} for event, derived in result.events],
    }
