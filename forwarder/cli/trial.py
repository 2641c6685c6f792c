"""What a source would make of sample records: of each the events that would be sent, or why none
would.

Kafka and logs differ in how bytes become records, and in what is known of a record beside its
bytes (`TrialSource`); the rest is the same. Invariant: a record is shown as sent only if nothing
between the source and the buffer would make a dead letter of it.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from forwarder.config.settings import Settings
from forwarder.config.source_settings import MappingSettings
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import split_events
from forwarder.core.ports import Reason
from forwarder.mapping import NotJson, Unmappable
from forwarder.sources.logs.splitting import LogRecords, Splitter
from forwarder.wire.identity import ABSENT, id_text, second_ids

_KEY: Final = "the record's key"
_COMPLETED: Final = len('"uuid":"12345678-1234-1234-1234-123456789012","timestamp":,')
"""Bytes that a log source adds to an event, beside the timestamp's text."""


class TrialOutcome(StrEnum):
    """What would become of a record."""

    SENT = "sent"
    SKIPPED = "skipped"
    UNMATCHED = "unmatched"
    REJECTED = "refused"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One record: the events that would be sent for it, each with the members that would be
    derived; or the dead letter's reason.
    """

    line: int
    """The number of its (first) line in the sample."""
    outcome: TrialOutcome
    events: Sequence[tuple[bytes, dict[str, str]]] = ()
    reason: Reason | None = None
    why: str = ""
    record: bytes = b""
    """The record of a log that gives no event, for a person to see why."""
    members: bytes = b""
    """What the rules see of a log's record that isn't JSON itself: the object that its format made
    of it.
    """


@dataclass(slots=True)
class TrialTally:
    """Counts of records by outcome."""

    counts: dict[TrialOutcome, int] = field(default_factory=lambda: dict.fromkeys(TrialOutcome, 0))

    @property
    def rejected(self) -> int:
        """Records that would become dead letters."""
        return self.counts[TrialOutcome.REJECTED]

    def counted(self, results: Iterable[TrialResult]) -> Iterator[TrialResult]:
        """Pass the results through, and count them."""
        for result in results:
            self.counts[result.outcome] += 1
            yield result


class ParsedRecord(NamedTuple):
    """A record as its source's mapping gets it, and what is known of it beside its bytes."""

    data: bytes
    at: float | None
    """Its own time, seconds since 1970."""
    timestamp: str
    """What an event without a timestamp would get."""
    added: int = 0
    """Bytes that completing an event would add to it."""
    members: bytes = b""
    """`data`, if a person should see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSource:
    """How a source reads its records."""

    split: Callable[[int], Splitter]
    parse: Callable[[bytes], ParsedRecord | None]
    """None: it isn't of the source's format."""
    convert: Callable[[bytes, float | None], bytes | None]
    """The mapping: an event, or an array of them; None if `where` leaves none."""
    key_is_distinct_id: bool = False
    needs_time: bool = False
    """Whether an event without a timestamp becomes a dead letter."""
    uuid: str
    """What an event without a uuid would get."""
    max_event: int
    max_record: int
    is_log: bool
    """Whether a record that gives no event is shown, blank ones too, and one that isn't JSON can't
    be mapped.
    """


class Trial:
    """A sample in the making: bytes are fed, and results come."""

    def __init__(self, source: TrialSource) -> None:
        self._source = source
        self._splitter = source.split(0)
        self._lines: deque[int] = deque([0])
        """Where the lines begin that records may still begin with."""
        self._number = 1
        """The number of the first of them."""
        self._fed = 0

    def feed(self, data: bytes, now: float) -> Iterator[TrialResult]:
        """The results of the records that are whole with `data`; `now` counts seconds."""
        at = data.find(b"\n")
        while at >= 0:
            self._lines.append(self._fed + at + 1)
            at = data.find(b"\n", at + 1)
        self._fed += len(data)
        return self._results(self._splitter.feed(data, now))

    def overdue(self, now: float) -> Iterator[TrialResult]:
        """The results of records of several lines that have waited for more for as long as the
        source would.
        """
        return self._results(self._splitter.overdue(now))

    def finish(self) -> Iterator[TrialResult]:
        """The results of what is left at the sample's end."""
        return self._results(self._splitter.finish())

    def _results(self, records: LogRecords) -> Iterator[TrialResult]:
        whole = [
            (offset, value, False)
            for offset, value in zip(records.offsets, records.values, strict=True)
        ]
        cut = [(offset, value, True) for offset, value in records.overlong]
        for offset, value, is_cut in sorted(whole + cut):
            line = self._line(offset)
            if is_cut:
                why = f"the record is longer than {self._source.max_record:,} bytes (max_line)"
                yield TrialResult(
                    line,
                    TrialOutcome.REJECTED,
                    reason=Reason.TOO_LARGE,
                    why=why,
                    record=self._shown(value),
                )
            elif self._source.is_log or value.strip():
                yield self._result(line, value)

    def _line(self, offset: int) -> int:
        while len(self._lines) > 1 and self._lines[1] <= offset:
            self._lines.popleft()
            self._number += 1
        return self._number

    def _shown(self, record: bytes) -> bytes:
        return record if self._source.is_log else b""

    def _result(self, line: int, value: bytes) -> TrialResult:
        source = self._source
        rejected = TrialOutcome.REJECTED
        shown = self._shown(value)
        parsed = source.parse(value)
        if parsed is None:
            return TrialResult(line, TrialOutcome.UNMATCHED, why="not of the format", record=shown)
        result = partial(TrialResult, line, record=shown, members=parsed.members)
        try:
            with interruptible():
                mapped = source.convert(parsed.data, parsed.at)
        except (NotJson, Unmappable) as error:
            undecodable = isinstance(error, NotJson) and not source.is_log
            return result(
                rejected,
                reason=Reason.UNDECODABLE if undecodable else Reason.UNMAPPABLE,
                why=error.message,
            )
        if mapped is None:
            return result(TrialOutcome.SKIPPED, why="where")
        events = [bytes(raw) for raw in split_events(mapped)] if mapped[:1] == b"[" else [mapped]
        for event in events:
            if (size := len(event) + parsed.added) > source.max_event:
                return result(
                    rejected,
                    reason=Reason.TOO_LARGE,
                    why=f"{size:,} bytes are more than upstream.max_event",
                )
            found = _decode_members(event)
            if not source.key_is_distinct_id and not _own_id(found):
                return result(
                    rejected,
                    reason=Reason.MISSING_DISTINCT_ID,
                    why="distinct_id: the expression returns nothing",
                )
            if source.needs_time and found.timestamp is ABSENT:
                return result(
                    rejected,
                    reason=Reason.MISSING_TIMESTAMP,
                    why="timestamp: the expression returns nothing",
                )
        made = [(event, _derived(event, parsed.timestamp, source.uuid)) for event in events]
        return TrialResult(line, TrialOutcome.SENT, made, members=parsed.members)


class _Members(Struct, gc=False):
    """The members that the intake looks at."""

    distinct_id: Raw = ABSENT
    timestamp: Raw = ABSENT
    uuid: Raw = ABSENT
    properties: Raw = ABSENT


_decode_members = msgspec.json.Decoder(_Members).decode


def _own_id(members: _Members) -> str:
    return id_text(members.distinct_id) or id_text(second_ids(members.properties).distinct_id)


def _derived(event: bytes, timestamp: str, uuid: str) -> dict[str, str]:
    members = _decode_members(event)
    derived = {} if _own_id(members) else {"distinct_id": _KEY}
    if members.timestamp is ABSENT:
        derived["timestamp"] = timestamp
    if members.uuid is ABSENT:
        derived["uuid"] = uuid
    return derived


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the process at once: an expression that loops never returns to Python, where a
    handler would run.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def trial_source(settings: Settings, name: str, sample: str, written: float) -> TrialSource:
    """The configured source of this name. Raises `ConfigurationError`.

    `sample`: the file's path, of which CRI reads the pod; `written`: a time before which it was
    written, for years that are missing.
    """
    for number, cluster in enumerate(settings.sources.kafka):
        if cluster.name == name:
            return _kafka(settings, number)
    for number, source in enumerate(settings.sources.logs):
        if source.name == name:
            return _log(settings, number, sample, written)
    names = ", ".join(
        [
            *(configured.name for configured in settings.sources.kafka),
            *(configured.name for configured in settings.sources.logs),
        ]
    )
    hint = (
        f"Configured sources: {names}."
        if names
        else "The configuration has no Kafka or log sources; name another one with --config FILE."
    )
    raise ConfigurationError(f"--source: {name!r} is not a configured source", hint=hint)


def trial_mapping(settings: Settings, rules: MappingSettings, place: str) -> TrialSource:
    """The rules of an import, without a source. Raises `ConfigurationError`."""
    from forwarder.daemon.mappings import mapping_of

    mapping = mapping_of(rules, "import", place, has_time=False)
    max_record = 1 << 30
    return TrialSource(
        split=lambda offset: Splitter(offset, max_record),
        parse=lambda value: ParsedRecord(value.strip(), None, ""),
        convert=lambda data, _: mapping.map_record(data),
        needs_time=True,
        uuid="derived from the file's content and the record's position",
        max_event=settings.max_event,
        max_record=max_record,
        is_log=False,
    )


def _kafka(settings: Settings, number: int) -> TrialSource:
    from forwarder.daemon.mappings import kafka_mapping

    cluster = settings.sources.kafka[number]
    mapping = kafka_mapping(cluster, number)
    if mapping is None:
        hint = f"A mapping needs sources.kafka[{number}].format: json, and rules in `mapping`."
        raise ConfigurationError(
            f"--source: {cluster.name} has no mapping; its records are events already", hint=hint
        )
    max_record = 1 << 30
    return TrialSource(
        split=lambda offset: Splitter(offset, max_record),
        parse=lambda value: ParsedRecord(value.strip(), time.time(), "the record's own time"),
        convert=mapping.map_record,
        key_is_distinct_id=cluster.key_is_distinct_id,
        uuid="derived from the record's position",
        max_event=settings.max_event,
        max_record=max_record,
        is_log=False,
    )


def _log(settings: Settings, number: int, sample: str, written: float) -> TrialSource:
    from forwarder.daemon.logs import policy_of
    from forwarder.sources.logs.formats import replace_undecodable

    policy = policy_of(settings, number)
    is_json = settings.sources.logs[number].format == "json"
    parse_line = policy.line_format.for_file(sample).parse
    reference = written if policy.line_format.has_time else time.time()

    def parse(value: bytes) -> ParsedRecord | None:
        parsed = parse_line(replace_undecodable([value])[0][0], reference)
        if parsed is None:
            return None
        data, own_time, seconds = parsed
        stamp = (
            f"the line's own time, {own_time.decode()[1:-1]}"
            if own_time
            else "the time at which the line is read first"
        )
        added = _COMPLETED + len(own_time or '"2026-01-31T12:00:00.000Z"')
        return ParsedRecord(data, seconds, stamp, added, b"" if is_json else data)

    return TrialSource(
        split=policy.split,
        parse=parse,
        convert=policy.mapping.map,
        uuid="derived from the line's position",
        max_event=settings.max_event,
        max_record=policy.max_line,
        is_log=True,
    )
