"""`forwarder mapping`: see what the rules of a mapping make of records, without a daemon and without sending anything."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from forwarder.cli.formats import Output
from forwarder.cli.run import Config

if TYPE_CHECKING:
    from pathlib import Path

    from forwarder.cli.mapping_trial import Trial

NOT_ALL = 1
"""Exit code: some records would not be sent."""

HELP = "See what the rules of a mapping make of records, before any is sent."

app = typer.Typer(name="mapping", no_args_is_help=True, help=HELP)


@app.callback()
def group() -> None:
    """See what the rules of a mapping make of records, before any is sent."""


@app.command("try")
def try_records(
    sample: Annotated[str, typer.Argument(metavar="SAMPLE", help="A file of records, one a line; - reads standard input.")],
    *,
    config: Config = None,
    source: Annotated[str, typer.Option("--source", metavar="NAME", help="Whose mapping: the `name` of a Kafka cluster.")],
    output: Annotated[Output, typer.Option("--output", help="Text for a person, or JSON.")] = Output.TABLE,
) -> None:
    """Show record by record what would be sent, and why others would not. What looks like a key is masked.

    Exit codes: 0 each record would be sent, or is skipped by `where`; 1 some would become dead letters; 2 a rule can't be used.

    Example: forwarder mapping try --config kafka.yaml --source orders sample.jsonl
    """
    from forwarder.cli.mapping_trial import Tally, as_json, print_result, print_tally

    trial = _trial(config, source)
    tally = Tally()
    with _opened(sample) as file, _interruptible():
        results = tally.counted(trial.results(file))
        if output is Output.JSON:
            typer.echo(as_json(list(results), tally))
        else:
            for result in results:
                print_result(result)
            print_tally(tally)
    raise typer.Exit(NOT_ALL if tally.refused else 0)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the process at once: an expression that loops never comes back to Python, which would hear of it."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _trial(config: Path | None, source: str) -> Trial:
    """The rules of a source, ready to be tried. Raises `ConfigurationError`."""
    from forwarder.cli.mapping_trial import Trial
    from forwarder.config.load import load_settings
    from forwarder.core.errors import ConfigurationError
    from forwarder.daemon.mappings import kafka_mapping

    settings = load_settings(config, os.environ, require_upstream=False).settings
    for number, cluster in enumerate(settings.sources.kafka):
        if cluster.name == source:
            mapping = kafka_mapping(cluster, number)
            if mapping is None:
                hint = f"Foreign records need sources.kafka[{number}].format: json, and a mapping."
                raise ConfigurationError(f"--source: {source} takes events as they are; it has no mapping", hint=hint)
            return Trial(mapping, key_is_distinct_id=cluster.key_is_distinct_id, max_event=settings.upstream.max_event)
    names = ", ".join(cluster.name for cluster in settings.sources.kafka)
    hint = f"There is {names}." if names else "The configuration has none; --config names another one."
    raise ConfigurationError(f"--source: there is no source {source!r}", hint=hint)


@contextmanager
def _opened(sample: str) -> Iterator[BinaryIO]:
    """The sample's bytes. Raises `ConfigurationError` if the file can't be read."""
    from pathlib import Path

    from forwarder.core.errors import ConfigurationError

    if sample == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(sample).open("rb")  # noqa: SIM115 - closed below, apart from what goes wrong while it is read
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{sample} can't be read: {why}", hint="Name a file of records, one a line.") from error
    with file:
        yield file
