"""`forwarder buffer`: list, verify, export or drain a disk buffer, also while its
daemon is down.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import (
    CommandGroup,
    Config,
    Output,
    Quiet,
    TableOrJson,
    TextOrJson,
    TextOutput,
)
from forwarder.cli.signals import run_to_end
from forwarder.core.installation import help_on
from forwarder.core.proposals import proposed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from forwarder.config.settings import Settings
    from forwarder.inspect.buffer_contents import BufferContent, Flaw, LaneContent, QuarantinedFile
    from forwarder.telemetry.labels import LaneNames
    from forwarder.telemetry.snapshot import LaneSnapshot

app = CommandGroup(
    "buffer", "List, verify, export or drain a disk buffer, also while its daemon is down."
)

Directory = Annotated[
    Path | None,
    typer.Argument(
        metavar="PATH",
        help=(
            "Directory of a buffer (buffer.path) or of one worker in it. Default: the "
            "configured one."
        ),
    ),
]

OfDestination = Annotated[
    str | None,
    typer.Option(
        "--destination",
        metavar="NAME",
        help="Only what waits for this one of several destinations.",
    ),
]


@app.command()
def ls(path: Directory = None, config: Config = None, output: TableOrJson = Output.TABLE) -> None:
    """List buffered events by worker and lane: count, bytes and the age of the oldest.

    Works while the daemon runs. Project keys are shown by their names or labels only.

    Example: forwarder buffer ls /var/lib/forwarder
    """
    from forwarder.cli.settings import configured_names

    contents = _inspect(_directories(path, config))
    names = configured_names(config)
    if output is Output.JSON:
        typer.echo(json.dumps(as_json(contents, names), indent=2, ensure_ascii=False))
    else:
        print_contents(contents, names)


@app.command()
def verify(
    path: Directory = None,
    config: Config = None,
    output: TextOrJson = TextOutput.TEXT,
    quiet: Quiet = False,
) -> None:
    """Verify every record's checksum, and report what is damaged and how many events it held.

    Works while the daemon runs, and changes nothing.

    Exit codes: 0 undamaged; 1 damaged; 2 not a buffer.

    Example: forwarder buffer verify /var/lib/forwarder/worker-0
    """
    from forwarder.cli.settings import configured_names

    contents = _inspect(_directories(path, config))
    damaged = any(content.damaged for content in contents)
    if output is TextOutput.JSON and not quiet:
        document = {"damaged": damaged, **as_json(contents, configured_names(config))}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    elif damaged or not quiet:
        for line in verdict(contents):
            typer.echo(line, err=quiet)
    if damaged:
        raise typer.Exit(ExitCode.NO)


@app.command()
def export(  # noqa: PLR0917 - a command's options
    path: Directory = None,
    config: Config = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write to this file, atomically."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    lane: Annotated[
        str | None,
        typer.Option(
            "--lane", metavar="LABEL", help="Only this lane, by its name or label in `ls`."
        ),
    ] = None,
    destination: OfDestination = None,
) -> None:
    """Write each buffered event as a line of JSON that can be sent again. The lines contain
    project keys.

    Each line is {"api_key":…,"historical_migration":…,"batch":[EVENT]}, with the event's bytes as
    received. An event for several destinations is a line for each, with its project key there.

    Example: forwarder buffer export /var/lib/forwarder --output events.jsonl
    """
    from forwarder.cli.settings import configured_names
    from forwarder.inspect.export import labels_of
    from forwarder.storage.private import atomic_file

    directories = _directories(path, config, destination)
    contents = _inspect(directories)
    labels = None if lane is None else labels_of(lane, contents, configured_names(config))
    total = sum(
        totals.events
        for content in contents
        for totals in content.lanes
        if labels is None or totals.label in labels
    )
    if output is None:
        count = _export(directories, labels, sys.stdout.buffer, total)
    else:
        with atomic_file(output, replace=force) as file:
            count = _export(directories, labels, file, total)
    where = f" to {output}" if output else ""
    sys.stderr.write(
        f"{_events(count)} exported{where}. Events contain project keys: protect them like the "
        "keys.\n"
    )
    if any(content.flaws for content in contents):
        damaged = sum(flaw.events for content in contents for flaw in content.flaws)
        what = f"parts of the buffer can't be read (at least {_events(damaged)})"
        sys.stderr.write(f"Error: {what}\n  `{proposed('buffer verify')}` lists them.\n")
        raise typer.Exit(ExitCode.NO)


@app.command()
def drain(
    path: Directory = None,
    config: Config = None,
    upstream: Annotated[
        str | None,
        typer.Option(
            "--upstream", metavar="URL", help="Deliver to this service, not to the configured one."
        ),
    ] = None,
    destination: OfDestination = None,
) -> None:
    """Deliver the events of a disk buffer whose daemon is down, each to its own destination. Events
    that the service refuses become dead letters beside it.

    Exit codes: 0 the buffer is empty; 1 events are left; 2 not a buffer, or in use by a process; 3
    the upstream can't be reached.

    Example: forwarder buffer drain /var/lib/forwarder --upstream https://us.i.example.com
    """
    from forwarder.cli.target import checked
    from forwarder.config.addresses import check_upstream
    from forwarder.config.load import load_settings
    from forwarder.inspect.drain import of_directory
    from forwarder.telemetry.logs import configure_logging

    url = "" if upstream is None else checked("--upstream", check_upstream, upstream)
    directories = _directories(path, config, destination)
    if url:
        _reject_several(directories)
    settings = load_settings(config, os.environ, require_upstream=not url).settings
    configure_logging(settings.log.format, "warning")
    raise typer.Exit(
        _drain([(directory, of_directory(settings, directory, url)) for directory in directories])
    )


def _reject_several(directories: Sequence[Path]) -> None:
    """Events of several destinations aren't for one service. Raises `ConfigurationError`."""
    from forwarder.core.errors import ConfigurationError
    from forwarder.storage.directory import destination_of

    names = sorted({destination_of(directory) for directory in directories})
    if len(names) > 1:
        raise ConfigurationError(
            f"--upstream: there are buffers of several destinations ({', '.join(names)})",
            hint=f"Say whose events go to that service, for example --destination {names[-1]}.",
        )


def _export(
    directories: Sequence[Path], labels: Collection[str] | None, file: BinaryIO, total: int
) -> int:
    from forwarder.cli.tables import EventProgress
    from forwarder.inspect.export import export as write_lines

    try:
        with EventProgress("exporting", total) as progress:
            count = 0
            for directory in directories:
                count += write_lines(directory, labels, file.write, progress.advance)
        file.flush()
    except BrokenPipeError:
        # or the interpreter fails on the pipe when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.NO) from None
    return count


def _drain(directories: Sequence[tuple[Path, Settings]]) -> ExitCode:
    """Empty one directory after the other, as long as its upstream is available."""
    from forwarder.cli.tables import EventProgress
    from forwarder.core.clock import SystemClock
    from forwarder.inspect.drain import drain_directory

    left = 0
    contents = _inspect([directory for directory, _ in directories])
    _reject_if_in_use(contents)
    unreachable = _unreachable(
        settings
        for (_, settings), content in zip(directories, contents, strict=True)
        if content.events
    )
    for (directory, settings), content in zip(directories, contents, strict=True):
        if content.events and settings.destination.address in unreachable:
            continue
        with EventProgress(f"draining {directory}", content.events) as progress:
            done = run_to_end(drain_directory(settings, directory, SystemClock(), progress.advance))
        still = max(done.left_events, _inspect([directory])[0].events)
        dead = f", {done.dead_lettered:,} became dead letters" if done.dead_lettered else ""
        typer.echo(f"{directory}: {_events(done.delivered)} delivered{dead}, {still:,} left")
        if done.unreachable:
            sys.stderr.write(
                f"Error: the upstream is unavailable: {done.unreachable}\n  The remaining events "
                "stay in the buffer.\n"
            )
            unreachable.add(settings.destination.address)
            continue
        for line in left_lines(done.left):
            sys.stderr.write(line + "\n")
        if still > done.left_events:
            sys.stderr.write(
                "Error: some deliveries could not be recorded on disk, so these events would be "
                "delivered again\n"
            )
        left += still
    if unreachable:
        return ExitCode.UNREACHABLE
    return ExitCode.NO if left else ExitCode.DONE


def _unreachable(destinations: Iterable[Settings]) -> set[str]:
    """The addresses of services that don't answer, which is reported. What else is wrong, their
    lanes find out, as the daemon's do.
    """
    from forwarder.cli.online import ask_upstream

    unreachable: set[str] = set()
    asked = {
        destination.upstream.url: destination.upstream
        for destination in destinations
        if not destination.destination.archive.url
    }
    for url, upstream in asked.items():
        answer = run_to_end(ask_upstream(upstream, ()))
        if not answer.reached:
            sys.stderr.write("Error: " + "\n".join(answer.lines(url)) + "\n")
            unreachable.add(url)
    return unreachable


def _reject_if_in_use(contents: Sequence[BufferContent]) -> None:
    from forwarder.core.errors import ConfigurationError

    for content in contents:
        if content.process is not None:
            who = f" (process {content.process})" if content.process else ""
            hint = "It delivers these events itself; stop it before draining."
            raise ConfigurationError(
                f"{content.directory} is in use by another forwarder{who}", hint=hint
            )


def _directories(
    path: Path | None, config: Path | None, destination: str | None = None
) -> list[Path]:
    """The workers' directories, those of one destination if it is named: in PATH, or else of the
    configuration. Raises `ConfigurationError`.
    """
    from forwarder.config.load import load_settings
    from forwarder.core.errors import ConfigurationError
    from forwarder.inspect.state_files import buffers_at, buffers_of
    from forwarder.storage.directory import destination_of

    directories = (
        buffers_at(path)
        if path is not None
        else buffers_of(load_settings(config, os.environ, require_upstream=False).settings)
    )
    if destination is None:
        return directories
    own = [directory for directory in directories if destination_of(directory) == destination]
    if not own:
        names = sorted({destination_of(directory) for directory in directories} - {""})
        raise ConfigurationError(
            f"--destination: there is no buffer for {destination}",
            hint=f"There are buffers for {', '.join(names)}."
            if names
            else "The buffer has no name: leave --destination out.",
        )
    return own


def _inspect(directories: Sequence[Path]) -> list[BufferContent]:
    from forwarder.inspect.buffer_contents import read_contents

    return [read_contents(directory) for directory in directories]


def print_contents(contents: Sequence[BufferContent], names: LaneNames) -> None:
    """Print a table for each worker's directory, and the total."""
    from rich.text import Text

    from forwarder.cli.tables import console, plain_table
    from forwarder.telemetry.readable import duration, size

    def table(lanes: Iterable[LaneContent]) -> Any:
        rows = plain_table(
            {"lane": False} | dict.fromkeys(("events", "bytes", "oldest", "kind"), True)
        )
        for lane in lanes:
            oldest = "" if lane.oldest is None else duration(max(0.0, now - lane.oldest))
            rows.add_row(
                Text(names.show(lane.label)),
                f"{lane.events:,}",
                size(lane.bytes),
                oldest,
                "historical" if lane.historical else "live",
            )
        return rows

    out = console()
    now = time.time()
    for content in contents:
        head = Text(str(content.directory), style="bold")
        if content.process is not None:
            head.append(
                f" (in use by process {content.process})"
                if content.process
                else " (in use by another process)",
                style="default",
            )
        out.print(head)
        out.print(
            table(content.lanes) if content.lanes else Text("  No buffered events.", style="dim")
        )
        for line in (*_flaws(content.flaws), *_aside(content.aside)):
            out.print(Text(line, style="yellow"), soft_wrap=True)
    events = sum(content.events for content in contents)
    used = sum(content.bytes for content in contents)
    out.print(Text(f"{_events(events)} in total, {size(used)}"))


def verdict(contents: Iterable[BufferContent]) -> Iterator[str]:
    """What is damaged in each worker's directory."""
    for content in contents:
        if content.damaged:
            yield f"{content.directory}: damaged, {_events(content.events)} readable"
        else:
            yield f"{content.directory}: undamaged, {_events(content.events)}"
        yield from _flaws(content.flaws)
        yield from _aside(content.aside)


def left_lines(lanes: Iterable[LaneSnapshot]) -> Iterator[str]:
    """Which lanes still have events, and why."""
    for lane in lanes:
        why = (
            f": halted, {lane.halted}" + (f" ({lane.why})" if lane.why else "")
            if lane.halted
            else ""
        )
        yield f"! lane {lane.shown} still has {_events(lane.buffered)}{why}"
        if lane.hint:
            yield f"    what to do: {lane.hint}"


def as_json(contents: Sequence[BufferContent], names: LaneNames) -> dict[str, Any]:
    """The same for programs: times in ISO 8601, sizes in bytes."""
    return {
        "directories": [_content_as_json(content, names) for content in contents],
        "events": sum(content.events for content in contents),
        "bytes": sum(content.bytes for content in contents),
    }


def _content_as_json(content: BufferContent, names: LaneNames) -> dict[str, Any]:
    return {
        "directory": str(content.directory),
        "in_use": content.process is not None,
        "process": content.process or None,
        "lanes": [
            {
                "lane": lane.label,
                **names.beside(lane.label),
                "historical": lane.historical,
                "events": lane.events,
                "bytes": lane.bytes,
                "oldest": None if lane.oldest is None else _iso(lane.oldest),
            }
            for lane in content.lanes
        ],
        "events": content.events,
        "bytes": content.bytes,
        "damage": [
            {
                "file": str(flaw.file),
                "offset": flaw.offset,
                "size": flaw.size,
                "what": flaw.what,
                "events": flaw.events,
                "known": flaw.known,
            }
            for flaw in content.flaws
        ],
        "aside": [
            {"file": str(file.file), "size": file.size, "at": _iso(file.at), "what": file.what}
            for file in content.aside
        ],
    }


def _flaws(flaws: Iterable[Flaw]) -> Iterator[str]:
    for flaw in flaws:
        place = f" at offset {flaw.offset}, {flaw.size} bytes" if flaw.size else ""
        events = f" ({_events(flaw.events)})" if flaw.events else ""
        yield f"! {flaw.file}{place}: {flaw.what}{events}" + (
            ", already quarantined" if flaw.known else ""
        )


def _aside(files: Sequence[QuarantinedFile]) -> Iterator[str]:
    from forwarder.telemetry.readable import size

    if files:
        yield (
            f"! quarantined because it could not be read ({len(files)}; "
            f"{help_on('inspect-buffer')} says what to do with it):"
        )
        yield from (
            f"    {file.file}, {size(file.size)}, {_iso(file.at)}"
            + (f": {file.what}" if file.what else "")
            for file in files
        )


def _events(count: int) -> str:
    from forwarder.telemetry.readable import plural

    return plural(count, "event")


def _iso(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")
