"""`forwarder mapping`: try the rules of a mapping on sample records, without a daemon and without
sending anything.

Text of the sample can't control the terminal, and what looks like a key is masked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec import Raw

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import CommandGroup, Config, Output, TableOrJson
from forwarder.cli.output import visible_lines
from forwarder.cli.sample import FOLLOWED_LINES, Sample, opened
from forwarder.cli.trial import (
    Trial,
    TrialOutcome,
    TrialResult,
    TrialTally,
    interruptible,
    trial_mapping,
    trial_source,
)
from forwarder.core.errors import ConfigurationError
from forwarder.core.secrets import mask_secrets
from forwarder.telemetry.readable import line_excerpt, plural

_MEMBERS: Final = 2_000
"""Characters that are shown of what a format makes of a line."""

app = CommandGroup("mapping", "Try the rules of a mapping on sample records before any is sent.")


@app.callback()
def options() -> None:
    """Try the rules of a mapping on sample records before any is sent."""


@app.command("try")
def try_records(
    sample: Annotated[
        str,
        typer.Argument(
            metavar="SAMPLE",
            help=(
                "File of records: lines of JSON, a log for a log source; - reads standard input."
            ),
        ),
    ],
    *,
    config: Config = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            help="`name` of the Kafka cluster or log source to be tried.",
        ),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping",
            metavar="FILE",
            help=(
                "File of rules to be tried, as `import mapping` has it; needs no configuration. "
                "Without it and --source, the rules are those of `import.mapping`."
            ),
        ),
    ] = None,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            metavar="N",
            min=0,
            help=f"Only the last N lines. Default: all; with --follow, {FOLLOWED_LINES}.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show new lines as the file grows, until Ctrl-C.")
    ] = False,
    output: TableOrJson = Output.TABLE,
) -> None:
    """Show for each record what would be sent, or why it would not. Anything that looks like a key
    is masked.

    The sample may be compressed by gzip, zstd or bzip2. With --follow, JSON is an object a line.

    Exit codes: 0 each record would be sent, is skipped by `where`, or is not of the format; 1 some
    would become dead letters; 2 invalid rules.

    Example: forwarder mapping try --config logs.yaml --source nginx --follow
    /var/log/nginx/access.log

    Of rules alone: forwarder mapping try --mapping rules.yaml orders.jsonl
    """
    from forwarder.cli.import_request import import_mapping
    from forwarder.config.load import load_settings

    if source is not None and mapping is not None:
        raise ConfigurationError(
            "--mapping can't be beside --source, which has rules of its own",
            hint="Give one of both.",
        )
    settings = load_settings(config, os.environ, require_upstream=False).settings
    with opened(sample, lines, follow=follow) as file, nullcontext() if follow else interruptible():
        if source is None:
            tried = trial_mapping(settings, *import_mapping(settings.import_, mapping))
        else:
            tried = trial_source(settings, source, sample, file.written)
        trial = Trial(tried)
        tally = TrialTally()
        with suppress(KeyboardInterrupt):  # which ends what is followed
            _show(tally.counted(_results(trial, file)), tally, as_lines=follow, output=output)
        if output is Output.TABLE:
            print_tally(tally)
    raise typer.Exit(ExitCode.NO if tally.rejected else ExitCode.DONE)


def _results(trial: Trial, sample: Sample) -> Iterator[TrialResult]:
    for data in sample.parts():
        yield from trial.feed(data, time.monotonic()) if data else trial.overdue(time.monotonic())
    yield from trial.finish()


def _show(
    results: Iterable[TrialResult], tally: TrialTally, *, as_lines: bool, output: Output
) -> None:
    if output is Output.TABLE:
        for result in results:
            print_result(result)
    elif as_lines:
        for result in results:
            typer.echo(_text(_result_as_json(result)))
    else:
        typer.echo(as_json(list(results), tally))


def print_result(result: TrialResult) -> None:
    """Print one record."""
    from rich.text import Text

    from forwarder.cli.tables import console

    out = console()
    if result.outcome is TrialOutcome.REJECTED:
        out.print(
            Text(
                f"line {result.line}: not sent, {result.reason}: {_visible(result.why)}",
                style="red",
            ),
            soft_wrap=True,
        )
    elif result.outcome is TrialOutcome.SKIPPED:
        out.print(Text(f"line {result.line}: skipped by where", style="dim"), soft_wrap=True)
    elif result.outcome is TrialOutcome.UNMATCHED:
        out.print(Text(f"line {result.line}: not of the format", style="yellow"), soft_wrap=True)
    if result.record:
        out.print(Text(f"  {_excerpt(result.record)}", style="dim"), soft_wrap=True)
    if result.events:
        out.print(Text(f"line {result.line}: sent", style="green"))
    if result.members:
        out.print(
            Text(f"  read as {_visible(result.members.decode()[:_MEMBERS])}", style="dim"),
            soft_wrap=True,
        )
    for number, (event, derived) in enumerate(result.events):
        if number:
            out.print(Text(f"line {result.line}: sent", style="green"))
        out.print(Text(_visible(msgspec.json.format(event, indent=2).decode())), soft_wrap=True)
        for name, origin in derived.items():
            out.print(Text(f"  {name}: {origin}", style="dim"), soft_wrap=True)


def print_tally(tally: TrialTally) -> None:
    """Print the counts."""
    from forwarder.cli.tables import console

    total = sum(tally.counts.values())
    unmatched = tally.counts[TrialOutcome.UNMATCHED]
    records = plural(total, "record")
    figures = {
        "sent": tally.counts[TrialOutcome.SENT],
        "skipped by where": tally.counts[TrialOutcome.SKIPPED],
    }
    figures |= ({"not of the format": unmatched} if unmatched else {}) | {
        "not sent": tally.rejected
    }
    console().print(
        f"{records}: {', '.join(f'{count:,} {what}' for what, count in figures.items())}"
    )


def as_json(results: Sequence[TrialResult], tally: TrialTally) -> str:
    """The same for programs."""
    counts = {str(outcome): count for outcome, count in tally.counts.items()}
    return _text(
        {
            "count": len(results),
            **counts,
            "results": [_result_as_json(result) for result in results],
        },
        indent=2,
    )


def _text(document: Any, indent: int = -1) -> str:
    return _visible(msgspec.json.format(msgspec.json.encode(document), indent=indent).decode())


def _visible(text: str) -> str:
    """Text without keys and what a terminal obeys."""
    return visible_lines(mask_secrets(text))


def _result_as_json(result: TrialResult) -> dict[str, Any]:
    return {
        "line": result.line,
        "outcome": result.outcome,
        "reason": result.reason,
        "why": result.why,
        "events": [{"event": Raw(event), "derived": derived} for event, derived in result.events],
        **({"record": _excerpt(result.record)} if result.record else {}),
        **({"members": Raw(result.members)} if result.members else {}),
    }


def _excerpt(record: bytes) -> str:
    return line_excerpt(record.replace(b"\n", b" "))
