"""`forwarder buffer`: look into, check, save or empty a disk buffer, also one whose daemon is down or gone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from forwarder.cli.formats import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forwarder.config.settings import Settings
    from forwarder.inspect.buffer_contents import BufferContent

DAMAGED = LEFT = 1
"""Exit code: the answer is no."""
UNREACHABLE = 3
"""Exit code."""

app = typer.Typer(name="buffer", no_args_is_help=True, help="Look into, check, save or empty a disk buffer, also one whose daemon is down.")

Where = Annotated[
    Path | None,
    typer.Argument(metavar="[PATH]", help="A buffer's directory (buffer.path), or one worker's in it; without it the configured one."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The configuration that names the buffer, where no PATH does."),
]


@app.command()
def ls(
    path: Where = None,
    config: Config = None,
    output: Annotated[Output, typer.Option("--output", help="A table for a person, or JSON.")] = Output.TABLE,
) -> None:
    """Show what waits in a disk buffer: for each worker and lane its events, their bytes and the age of the oldest.

    Works beside a running daemon. Project keys are shown by their labels only.

    Example: forwarder buffer ls /var/lib/forwarder
    """
    from forwarder.cli.buffer_tables import as_json, print_contents

    contents = _look(_directories(path, config))
    if output is Output.JSON:
        typer.echo(json.dumps(as_json(contents), indent=2, ensure_ascii=False))
    else:
        print_contents(contents)


@app.command()
def verify(path: Where = None, config: Config = None) -> None:
    """Check every record's checksum; say which places are damaged, and how many events were in them.

    Works beside a running daemon, and changes nothing.

    Exit codes: 0 all is whole; 1 something is damaged; 2 it is no buffer.

    Example: forwarder buffer verify /var/lib/forwarder/worker-0
    """
    from forwarder.cli.buffer_tables import verdict

    contents = _look(_directories(path, config))
    for line in verdict(contents):
        typer.echo(line)
    if any(content.damaged for content in contents):
        raise typer.Exit(DAMAGED)


@app.command()
def export(
    path: Where = None,
    config: Config = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write to this file, whole or not at all.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    lane: Annotated[str | None, typer.Option("--lane", metavar="LABEL", help="Only this lane, by its label in `ls`.")] = None,
) -> None:
    """Write each waiting event as a line of JSON that could be sent again. The lines hold project keys.

    Each line is {"api_key":…,"historical_migration":…,"batch":[EVENT]}, with the event's bytes as they were received.

    Example: forwarder buffer export /var/lib/forwarder --output events.jsonl
    """
    from forwarder.inspect.export import check_lane
    from forwarder.storage.private import atomic_file

    directories = _directories(path, config)
    contents = _look(directories)
    if lane is not None:
        check_lane(contents, lane)
    total = sum(each.events for content in contents for each in content.lanes if lane in (None, each.label))
    if output is None:
        count = _export(directories, lane, sys.stdout.buffer, total)
    else:
        with atomic_file(output, replace=force) as file:
            count = _export(directories, lane, file, total)
    _say_exported(count, output, contents)


def _export(directories: Sequence[Path], lane: str | None, file: BinaryIO, total: int) -> int:
    from forwarder.cli.progress import EventProgress
    from forwarder.inspect.export import export as write_lines

    try:
        with EventProgress("exporting", total) as progress:
            count = sum([write_lines(directory, lane, file.write, progress.advance) for directory in directories])
        file.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter stumbles over the pipe at its end
        raise typer.Exit(LEFT) from None
    return count


def _say_exported(count: int, output: Path | None, contents: Sequence[BufferContent]) -> None:
    where = f" to {output}" if output else ""
    sys.stderr.write(f"{count:,} events exported{where}. They hold project keys: keep them as you keep those.\n")
    damaged = sum(flaw.events for content in contents for flaw in content.flaws)
    if any(content.flaws for content in contents):
        what = f"parts of the buffer can't be read ({damaged:,} events at least)"
        sys.stderr.write(f"Error: {what}\n  `forwarder buffer verify` says which.\n")
        raise typer.Exit(DAMAGED)


@app.command()
def drain(
    path: Where = None,
    config: Config = None,
    upstream: Annotated[str | None, typer.Option("--upstream", metavar="URL", help="Deliver to this service.")] = None,
) -> None:
    """Deliver what waits in a disk buffer whose daemon is down. What the service refuses for good becomes a dead letter beside it.

    Exit codes: 0 the buffer is empty; 1 events are left; 2 it is no buffer, or a process has it; 3 the upstream can't be reached.

    Example: forwarder buffer drain /var/lib/forwarder --upstream https://us.i.example.com
    """
    from forwarder.telemetry.logs import configure_logging

    directories = _directories(path, config)
    settings = _delivering(config, upstream)
    configure_logging(settings.log.format, "warning")
    raise typer.Exit(_drain(directories, settings))


def _delivering(config: Path | None, upstream: str | None) -> Settings:
    """The configuration, to deliver a disk buffer's events with."""
    from forwarder.config.load import load_settings

    given = {"FORWARDER_UPSTREAM__URL": upstream} if upstream else {}
    return load_settings(config, {**os.environ, **given}).settings


def _drain(directories: Sequence[Path], settings: Settings) -> int:
    """Empty one directory after the other, as long as the upstream can be used; the exit code."""
    from forwarder.cli.buffer_tables import left_lines
    from forwarder.cli.progress import EventProgress
    from forwarder.core.clock import SystemClock
    from forwarder.inspect.drain import drain_directory

    left = 0
    contents = _look(directories)
    _refuse_if_in_use(contents)
    if any(content.events for content in contents) and (lines := _unreachable(settings)):
        sys.stderr.write("Error: " + "\n".join(lines) + "\n")
        return UNREACHABLE
    for directory, content in zip(directories, contents, strict=True):
        with EventProgress(f"draining {directory}", content.events) as progress:
            done = asyncio.run(drain_directory(settings, directory, SystemClock(), progress.advance))
        still = max(done.left_events, _look([directory])[0].events)
        dead = f", {done.buried:,} became dead letters" if done.buried else ""
        typer.echo(f"{directory}: {done.delivered:,} events delivered{dead}, {still:,} left")
        if done.unreachable:
            sys.stderr.write(f"Error: the upstream can't be used: {done.unreachable}\n  What is left stays in the buffer.\n")
            return UNREACHABLE
        for line in left_lines(done.left):
            sys.stderr.write(line + "\n")
        if still > done.left_events:
            sys.stderr.write("Error: not all of what was delivered could be written down; it would be delivered again\n")
        left += still
    return LEFT if left else 0


def _refuse_if_in_use(contents: Sequence[BufferContent]) -> None:
    from forwarder.core.errors import ConfigurationError

    for content in contents:
        if content.process is not None:
            who = f" (process {content.process})" if content.process else ""
            hint = "It delivers what is there itself; stop it first if you want to do it yourself."
            raise ConfigurationError(f"{content.directory} is in use by another forwarder{who}", hint=hint)


def _unreachable(settings: Settings) -> list[str]:
    """Why the upstream can't be reached, asked once, before anything is opened; nothing if it answers."""
    from forwarder.cli.upstream_check import ask_upstream

    findings = asyncio.run(ask_upstream(settings.upstream, ()))
    return findings.lines(settings.upstream.url) if findings.error else []


def _directories(path: Path | None, config: Path | None) -> list[Path]:
    """The workers' directories that are meant. A PATH goes before the configuration."""
    from forwarder.inspect.state_files import buffers_at, buffers_of

    return buffers_at(path) if path is not None else buffers_of(_settings(config))


def _settings(config: Path | None) -> Settings:
    from forwarder.config.load import load_settings

    return load_settings(config, os.environ, require_upstream=False).settings


def _look(directories: Sequence[Path]) -> list[BufferContent]:
    from forwarder.inspect.buffer_contents import read_contents

    return [read_contents(directory) for directory in directories]
