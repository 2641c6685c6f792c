"""How a dead letter that was mended, and sent again, is counted: in the books of its file, and in the totals of its job.

The record stays among those that were refused, by its reason: that is what the source has. `RecordBooks.mended` says how many of them have
arrived since. Days, digests, names and times count the events, so that what is delivered is what the service holds.

Invariants: a letter is counted once, with its number in `ImportTotals.replayed`, which is saved with the counts: a letter that is there
after a kill, and counted, is removed, and not sent again. `DayTally.source` never counts an event twice. No more records are mended than
were refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.moments import day_of
from forwarder.sources.imports.tallies import DayTally, ImportTotals, RecordBooks


@dataclass(frozen=True, slots=True)
class ReplayedLetter:
    """A letter of which every event is settled."""

    number: int
    arrived: Sequence[FinishedEvent]
    refused: Sequence[FinishedEvent] = ()
    """By the service; they are letters of their own now."""
    day: str = ""
    """If it held an event: the UTC day under which the source has it. Empty if it held a record, of which no event was counted."""
    is_last: bool = False
    """Whether no letter is left of its record."""


def count_replayed(letter: ReplayedLetter, books: Sequence[RecordBooks], totals: ImportTotals) -> None:
    """Count a letter; `books` are those of its file, and what else sums them up."""
    if letter.day:
        totals.days.setdefault(letter.day, DayTally()).source -= 1  # counted when it was refused; perhaps it is of another day now
    for event in letter.arrived:
        totals.days.setdefault(day_of(event.time), DayTally()).arrived([event.uuid])
        totals.named([event.event])
        totals.spans(event.time, event.time)
    for event in letter.refused:
        totals.days.setdefault(day_of(event.time), DayTally()).source += 1
    if letter.is_last and all(each.unmended > 0 for each in books):
        for each in books:
            each.mended += 1
    totals.replayed.append(letter.number)
