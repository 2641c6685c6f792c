"""`forwarder mapping`: try the rules of a mapping on sample records, without a daemon and without sending anything.

Invariant: a record is shown as sent only if nothing between the source and the buffer would make a dead letter of it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import typer
from msgspec import Raw, Struct

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import CommandGroup, Config, Output, TableOrJson
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import split_events
from forwarder.core.ports import Reason
from forwarder.core.secrets import mask_secrets
from forwarder.mapping import Mapping, NotJson, Unmappable
from forwarder.wire.identity import ABSENT, id_text, second_ids

_RECORDS_TIME: Final = "the record's own time"
_PLACE: Final = "derived from the record's position"
_KEY: Final = "the record's key"

app = CommandGroup("mapping", "Try the rules of a mapping on sample records before any is sent.")


@app.callback()
def options() -> None:
    """Try the rules of a mapping on sample records before any is sent."""


@app.command("try")
def try_records(
    sample: Annotated[str, typer.Argument(metavar="SAMPLE", help="File with one record per line; - reads standard input.")],
    *,
    config: Config = None,
    source: Annotated[str, typer.Option("--source", metavar="NAME", help="`name` of the Kafka cluster whose mapping is tried.")],
    output: TableOrJson = Output.TABLE,
) -> None:
    """Show for each record what would be sent, or why it would not. Anything that looks like a key is masked.

    Exit codes: 0 each record would be sent, or is skipped by `where`; 1 some would become dead letters; 2 invalid rules.

    Example: forwarder mapping try --config kafka.yaml --source orders sample.jsonl
    """
    trial = _trial(config, source)
    tally = TrialTally()
    with _opened(sample) as file, _interruptible():
        results = tally.counted(trial.results(file))
        if output is Output.JSON:
            typer.echo(as_json(list(results), tally))
        else:
            for result in results:
                print_result(result)
            print_tally(tally)
    raise typer.Exit(ExitCode.NO if tally.rejected else ExitCode.DONE)


class TrialOutcome(StrEnum):
    """What would become of a record."""

    SENT = "sent"
    SKIPPED = "skipped"
    REJECTED = "refused"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One record: the events that would be sent for it, each with the members that the intake would derive; or the dead letter's reason."""

    line: int
    outcome: TrialOutcome
    events: Sequence[tuple[bytes, dict[str, str]]] = ()
    reason: Reason | None = None
    why: str = ""


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


class Trial:
    """A mapping, and the settings that decide beside it about its source's records."""

    def __init__(self, mapping: Mapping, *, key_is_distinct_id: bool, max_event: int) -> None:
        self._mapping = mapping
        self._key_is_distinct_id = key_is_distinct_id
        self._max_event = max_event

    def results(self, lines: Iterable[bytes]) -> Iterator[TrialResult]:
        """The result of each line; empty lines are skipped."""
        for number, line in enumerate(lines, 1):
            record = line.strip()
            if record:
                yield self.result(number, record)

    def result(self, line: int, record: bytes) -> TrialResult:
        """The result of one record."""
        rejected = TrialOutcome.REJECTED
        try:
            mapped = self._mapping.map_record(record)
        except (NotJson, Unmappable) as error:
            reason = Reason.UNDECODABLE if isinstance(error, NotJson) else Reason.UNMAPPABLE
            return TrialResult(line, rejected, reason=reason, why=error.message)
        if mapped is None:
            return TrialResult(line, TrialOutcome.SKIPPED, why="where")
        events = [bytes(raw) for raw in split_events(mapped)] if mapped[:1] == b"[" else [mapped]
        for event in events:
            if len(event) > self._max_event:
                return TrialResult(line, rejected, reason=Reason.TOO_LARGE, why=f"{len(event):,} bytes are more than upstream.max_event")
            if not self._key_is_distinct_id and not _own_id(_decode_members(event)):
                return TrialResult(line, rejected, reason=Reason.MISSING_DISTINCT_ID, why="distinct_id: the expression returns nothing")
        return TrialResult(line, TrialOutcome.SENT, [(event, _derived(_decode_members(event))) for event in events])


class _Members(Struct, gc=False):
    """The members that the intake looks at."""

    distinct_id: Raw = ABSENT
    timestamp: Raw = ABSENT
    uuid: Raw = ABSENT
    properties: Raw = ABSENT


_decode_members = msgspec.json.Decoder(_Members).decode


def _own_id(members: _Members) -> str:
    return id_text(members.distinct_id) or id_text(second_ids(members.properties).distinct_id)


def _derived(members: _Members) -> dict[str, str]:
    derived = {} if _own_id(members) else {"distinct_id": _KEY}
    if members.timestamp is ABSENT:
        derived["timestamp"] = _RECORDS_TIME
    if members.uuid is ABSENT:
        derived["uuid"] = _PLACE
    return derived


def _trial(config: Path | None, source: str) -> Trial:
    """The rules of a source. Raises `ConfigurationError`."""
    from forwarder.config.load import load_settings
    from forwarder.daemon.mappings import kafka_mapping

    settings = load_settings(config, os.environ, require_upstream=False).settings
    for number, cluster in enumerate(settings.sources.kafka):
        if cluster.name == source:
            mapping = kafka_mapping(cluster, number)
            if mapping is None:
                hint = f"A mapping needs sources.kafka[{number}].format: json, and rules in `mapping`."
                raise ConfigurationError(f"--source: {source} has no mapping; its records are events already", hint=hint)
            return Trial(mapping, key_is_distinct_id=cluster.key_is_distinct_id, max_event=settings.upstream.max_event)
    names = ", ".join(cluster.name for cluster in settings.sources.kafka)
    hint = f"Configured sources: {names}." if names else "The configuration has no Kafka sources; name another one with --config FILE."
    raise ConfigurationError(f"--source: {source!r} is not a configured source", hint=hint)


@contextmanager
def _opened(sample: str) -> Iterator[BinaryIO]:
    """The sample's bytes. Raises `ConfigurationError` if the file can't be read."""
    if sample == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(sample).open("rb")  # noqa: SIM115 - closed below, so that errors while reading are distinguished
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{sample} can't be read: {why}", hint="Name a file with one record per line.") from error
    with file:
        yield file


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the process at once: an expression that loops never returns to Python, where a handler would run."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def print_result(result: TrialResult) -> None:
    """Print one record."""
    from rich.text import Text

    from forwarder.cli.tables import console

    out = console()
    if result.outcome is TrialOutcome.REJECTED:
        out.print(Text(f"line {result.line}: not sent, {result.reason}: {mask_secrets(result.why)}", style="red"), soft_wrap=True)
    elif result.outcome is TrialOutcome.SKIPPED:
        out.print(Text(f"line {result.line}: skipped by where", style="dim"), soft_wrap=True)
    for event, derived in result.events:
        out.print(Text(f"line {result.line}: sent", style="green"))
        out.print(Text(mask_secrets(msgspec.json.format(event, indent=2).decode())), soft_wrap=True)
        for name, origin in derived.items():
            out.print(Text(f"  {name}: {origin}", style="dim"), soft_wrap=True)


def print_tally(tally: TrialTally) -> None:
    """Print the counts."""
    from forwarder.cli.tables import console

    total = sum(tally.counts.values())
    records = "1 record" if total == 1 else f"{total:,} records"
    figures = {"sent": tally.counts[TrialOutcome.SENT], "skipped by where": tally.counts[TrialOutcome.SKIPPED], "not sent": tally.rejected}
    console().print(f"{records}: {', '.join(f'{count:,} {what}' for what, count in figures.items())}")


def as_json(results: Sequence[TrialResult], tally: TrialTally) -> str:
    """The same for programs."""
    counts = {str(outcome): count for outcome, count in tally.counts.items()}
    document = {"count": len(results), **counts, "results": [_result_as_json(result) for result in results]}
    return mask_secrets(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _result_as_json(result: TrialResult) -> dict[str, Any]:
    return {
        "line": result.line,
        "outcome": result.outcome,
        "reason": result.reason,
        "why": result.why,
        "events": [{"event": Raw(event), "derived": derived} for event, derived in result.events],
    }
