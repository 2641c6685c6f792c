"""`forwarder explain`: where one event is, asked of the running daemon and of the files."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forwarder.cli.status import Admin

if TYPE_CHECKING:
    from forwarder.inspect.explain import Trace
    from forwarder.inspect.state_files import WorkerFiles

EXAMPLE = "Example: forwarder explain 01890a5d-ac96-774b-bcce-b302099a8057"
NOT_FOUND = 1
"""Exit code: the answer is no."""


def explain(
    uuid: Annotated[str, typer.Argument(metavar="UUID", help="The event's uuid, however it is spelled.")],
    admin: Admin = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The configuration of the daemon.")] = None,
    path: Annotated[Path | None, typer.Option("--path", metavar="PATH", help="Look into this state directory instead.")] = None,
) -> None:
    """Say where one event is: buffered and since when, dead-lettered and why, else that it was delivered, or never here.

    Asks the running daemon, and looks into the files of buffer and dead letters; lanes are shown by their labels.

    Exit codes: 0 found; 1 not found.
    """
    from forwarder.admin.event_lookup import WantedUuid
    from forwarder.inspect.explain import search_files

    wanted = WantedUuid.parse(uuid)
    told, asked = _ask(wanted.text, admin, config)
    traces = [*told, *(trace for trace in search_files(wanted, _files(config, path)) if not _is_told(trace, told))]
    for trace in traces:
        typer.echo(_line(trace, time.time()))
    if traces:
        return
    typer.echo("delivered, or never here")
    if not asked:
        sys.stderr.write("No daemon was asked: none answers, or it doesn't say. What one holds in memory only isn't known.\n")
    raise typer.Exit(NOT_FOUND)


def register(app: typer.Typer) -> None:
    """Add the command to forwarder's."""
    app.command(epilog=EXAMPLE)(explain)


def _ask(uuid: str, admin: str | None, config: Path | None) -> tuple[list[Trace], bool]:
    """What the running daemon has at hand, and whether it could be asked."""
    from forwarder.cli.admin_client import NoDaemon, get, resolve
    from forwarder.inspect.explain import parse_traces

    try:
        code, body = get(resolve(admin, config), f"/explain?uuid={uuid}")
    except NoDaemon:
        return [], False
    return (parse_traces(body), True) if code == 200 else ([], False)


def _files(config: Path | None, path: Path | None) -> list[WorkerFiles]:
    """The files to look into."""
    from forwarder.config.load import load_settings
    from forwarder.inspect.state_files import files_at, files_of

    if path is not None:
        return files_at(path)
    return files_of(load_settings(config, os.environ, require_upstream=False).settings, os.environ)


def _is_told(trace: Trace, told: list[Trace]) -> bool:
    """Whether the daemon has told of the same copy, and knows more of it than its files."""
    return any((trace.where, trace.lane, trace.since) == ("buffered", each.lane, each.since) for each in told)


def _line(trace: Trace, now: float) -> str:
    from forwarder.telemetry.readable import duration

    when = datetime.fromtimestamp(trace.since, UTC).isoformat(timespec="seconds")
    parts = [f"{trace.where}, lane {trace.lane}, since {when} ({duration(now - trace.since)})", trace.reason, trace.why]
    return ": ".join(part for part in parts if part) + (f"\n    {trace.note}" if trace.note else "")
