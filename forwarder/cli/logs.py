"""`forwarder logs`: how far each followed file is read, from the running daemon or, if none
answers, from the stored positions.

Invariant: paths and lines of other programs can't control the terminal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forwarder.cli.options import Admin, Config, Output, TableOrJson
from forwarder.core.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.text import Text

    from forwarder.telemetry.snapshot import LogFile, LogSourceState

SHOWN: Final = 20
"""Files of a source that are shown unless all are asked for."""
_HEADS: Final = ("lag", "position", "size", "last read", "file")


def logs(
    admin: Admin = None,
    config: Config = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="NAME", help="Only the log source with this `name`."),
    ] = None,
    show_all: Annotated[
        bool,
        typer.Option(
            "--all",
            help=(
                f"Every file, not only the {SHOWN} with the most unread bytes; without a "
                "daemon also those that are gone."
            ),
        ),
    ] = False,
    output: TableOrJson = Output.TABLE,
) -> None:
    """Show how far the files of log sources are read: position, size, lag and last line of each.

    Asks the running daemon; if none answers, reads the stored positions, and the files as they are
    now. With --admin it only asks. A daemon itself lists at most 200 files of a source, those with
    the most unread bytes.

    Exit codes: 0 shown; 3 no daemon answers and no positions are stored.

    Example: forwarder logs --config /etc/forwarder/forwarder.yaml --source nginx
    """
    from forwarder.cli.admin_client import NoDaemon, get, resolve

    address = resolve(admin, config)
    stored: Sequence[LogSourceState] | None = None
    try:
        get(address, "/livez")
    except NoDaemon:
        stored = None if admin else _stored(config, everything=show_all)
        statuses, now = (stored, time.time()) if stored is not None else _from_daemon(address)
    else:
        statuses, now = _from_daemon(address)
        if (
            show_all
            and not admin
            and any(candidate.followed > len(candidate.files) for candidate in statuses)
        ):
            statuses = _with_the_rest(statuses, _stored(config, everything=False) or ())
    chosen = [candidate for candidate in statuses if source in (None, candidate.name)]
    if source is not None and not chosen:
        names = ", ".join(candidate.name for candidate in statuses)
        hint = (
            f"Log sources: {names}."
            if names
            else "There are no log sources: `sources.logs` is empty."
        )
        raise ConfigurationError(f"--source: {source!r} is not a log source", hint=hint)
    if output is Output.JSON:
        typer.echo(_as_json(chosen))
    else:
        asked = "" if stored is not None else address
        _print(chosen, now, None if show_all else SHOWN, asked)


def _from_daemon(address: str) -> tuple[Sequence[LogSourceState], float]:
    """Ends the command with exit code 3 if no daemon answers."""
    from forwarder.admin.status import parse
    from forwarder.cli.admin_client import require_status

    snapshot = parse(require_status(address))
    return snapshot.logs, snapshot.now


def _stored(config: Path | None, *, everything: bool) -> Sequence[LogSourceState] | None:
    """From the stored positions; None if there are none."""
    from forwarder.config.load import load_settings
    from forwarder.inspect.logs import stored_logs

    return stored_logs(
        load_settings(config, os.environ, require_upstream=False).settings,
        os.environ,
        everything=everything,
    )


def _with_the_rest(
    statuses: Sequence[LogSourceState], stored: Sequence[LogSourceState]
) -> list[LogSourceState]:
    """Sources with the files that the daemon knows but doesn't list, as they are stored."""
    rest = {source.name: source.files for source in stored}
    whole = []
    for source in statuses:
        listed = {file.identity for file in source.files}
        more = [file for file in rest.get(source.name, ()) if file.identity not in listed]
        whole.append(replace(source, files=(*source.files, *more)))
    return whole


def _print(sources: Sequence[LogSourceState], now: float, limit: int | None, asked: str) -> None:
    """`asked` is the address of the daemon that listed the sources; empty if files did."""
    from rich.text import Text

    from forwarder.cli.output import visible
    from forwarder.cli.tables import console, log_source

    out = console()
    if not sources:
        what = (
            f"The daemon at {asked} has no log sources. Name another with --admin ADDRESS."
            if asked
            else "No log sources: `sources.logs` is empty."
        )
        out.print(what, soft_wrap=True, markup=False)
    for source in sources:
        out.print(log_source(source, now), soft_wrap=True)
        if source.why:
            hint = f" ({visible(source.hint)})" if source.hint else ""
            out.print(
                Text(f"    ! {visible(source.why)}{hint}", style="yellow"),
                soft_wrap=True,
            )
        shown = source.files[:limit]
        for line in _file_lines(shown, now):
            out.print(line, soft_wrap=True)
        if source.followed > len(shown):
            out.print(f"    and {source.followed - len(shown):,} more files", style="dim")


def _file_lines(files: Sequence[LogFile], now: float) -> Iterator[Text]:
    """A line for each file, its last line below it. Long paths aren't cut: they may be copied."""
    from rich.text import Text

    from forwarder.cli.output import visible

    rows = [_HEADS[:-1], *(_figures(file, now) for file in files)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    heads, *figures = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    if files:
        yield Text(f"    {heads}  {_HEADS[-1]}", style="dim")
    for file, state in zip(files, figures, strict=True):
        yield Text(
            f"    {state}  "
            f"{visible(file.path)}{'' if file.open or file.last_read is None else ' (closed)'}"
        )
        if file.last_line:
            yield Text(f"    {' ' * len(state)}    {visible(file.last_line)}", style="dim")


def _figures(file: LogFile, now: float) -> tuple[str, ...]:
    from forwarder.telemetry.readable import duration, size

    read = "" if file.last_read is None else f"{duration(now - file.last_read)} ago"
    return size(file.lag), f"{file.position:,}", f"{file.size:,}", read


def _as_json(sources: Sequence[LogSourceState]) -> str:
    import msgspec

    from forwarder.cli.output import as_json

    return as_json({"sources": msgspec.to_builtins(sources)}, indent=2)
