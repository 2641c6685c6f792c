"""The preflight of a whole source: every record is converted and finished as the import would, and looked at instead of sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from forwarder.imports.request import ChosenFormat
from forwarder.sources.files.options import BrokenSource
from forwarder.sources.files.records import RecordBlock
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.events import Converter, ImportedEvent, RecordRefused
from forwarder.sources.imports.filters import left_out
from forwarder.sources.imports.finishing import EventFinisher
from forwarder.sources.imports.formats.mixpanel import MixpanelConverter
from forwarder.sources.imports.policy import EventFilters, FinishPolicy
from forwarder.sources.imports.preflight import Preflight
from forwarder.sources.imports.preflight_raw import PreflightItem, preflight_items
from forwarder.sources.imports.preflight_report import PreflightReport, PreflightTerms
from forwarder.sources.imports.raw_events import RawConverter
from forwarder.sources.imports.raw_finishing import RawEventFinisher

Look = Callable[[RecordBlock], Iterator[PreflightItem]]


def run_preflight(
    source: FileSource,
    chosen: ChosenFormat,
    finish: FinishPolicy,
    *,
    filters: EventFilters,
    terms: PreflightTerms,
    told: Callable[[int, int], None],
) -> tuple[PreflightReport, tuple[BrokenSource, ...]]:
    """What is known of a source once all of it was read, and the files that couldn't be read to their end.

    `told` gets records and bytes so far, a block at a time. Synchronous: one pass, with memory that is bounded.
    """
    preflight = Preflight(terms, chosen.time_fields)
    converter = chosen.make()
    choice = _PreflightSelection(filters)
    look = _looker(converter, finish, choice)
    broken: list[BrokenSource] = []
    records = size = 0
    for file in source.files():
        with source.blocks(file) as reading:
            try:
                for block in reading:
                    for each in look(block):
                        preflight.add(*each)
                    records += len(block.records)
                    size += sum(map(len, block.records))
                    told(records, size)
                    if choice.is_full:
                        break
            except BrokenSource as error:
                broken.append(error)
        if choice.is_full:
            break
    upper_case = converter.upper_case_ids if isinstance(converter, MixpanelConverter) else 0
    return preflight.report(upper_case_ids=upper_case, broken=[error.message for error in broken]), tuple(broken)


class _PreflightSelection:
    """Filters but `--until`, of which the preflight says itself what it leaves out. Repeats count here: they are shown."""

    def __init__(self, filters: EventFilters) -> None:
        self._filters = replace(filters, until=None)
        self._until = filters.until
        self._taken = 0

    @property
    def is_full(self) -> bool:
        return self._filters.limit is not None and self._taken >= self._filters.limit

    def takes(self, event: ImportedEvent) -> bool:
        if self.is_full or left_out(event, self._filters) is not None:
            return False
        if self._until is None or event.time < self._until:
            self._taken += 1  # others don't count against the limit, as they don't when events are sent
        return True


def _looker(converter: Converter | RawConverter, finish: FinishPolicy, choice: _PreflightSelection) -> Look:
    if isinstance(converter, RawConverter):
        return _Columns(converter, RawEventFinisher(finish), choice)
    return _Records(converter, EventFinisher(finish), choice)


class _Records:
    def __init__(self, converter: Converter, finisher: EventFinisher, choice: _PreflightSelection) -> None:
        self._convert = converter.convert
        self._finish = finisher.finish
        self._choice = choice

    def __call__(self, block: RecordBlock) -> Iterator[PreflightItem]:
        for index, record in enumerate(block.records):
            place = block.place(index)
            try:
                events = self._convert(block, index)
                taken = [event for event in events if self._choice.takes(event)]
                if taken or not events:
                    yield PreflightItem(place, record, taken, [self._finish(event) for event in taken])
            except RecordRefused as refused:
                yield PreflightItem(place, record, refused)


class _Columns:
    def __init__(self, converter: RawConverter, finisher: RawEventFinisher, choice: _PreflightSelection) -> None:
        self._convert = converter.convert_block
        self._finish = finisher.finish
        self._choice = choice

    def __call__(self, block: RecordBlock) -> Iterator[PreflightItem]:
        events = self._convert(block)
        columns = zip(events.names, events.distinct_ids, events.times, events.uuids, strict=True)
        taken = [index for index, event in enumerate(_events(columns)) if self._choice.takes(event)]
        chosen = events.only(taken) if len(taken) < len(events) else events
        chosen.refused = events.refused
        return preflight_items(block, chosen, self._finish(chosen))


def _events(columns: Iterable[tuple[str, str, int, str]]) -> Iterator[ImportedEvent]:
    return (ImportedEvent(name, distinct_id, time, uuid, {}) for name, distinct_id, time, uuid in columns)
