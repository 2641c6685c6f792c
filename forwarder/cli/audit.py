"""`forwarder audit`: the books, from the running daemon or from its files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forwarder.cli.admin_client import NoDaemon, get, resolve
from forwarder.cli.status import Admin, ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forwarder.inspect.state_files import WorkerFiles
    from forwarder.telemetry.snapshot import LaneSnapshot

_BUG = "This is a bug in forwarder: please report the table above."
_DAMAGE = (
    "`forwarder buffer verify` says whether something can't be read any more: that is missing here, until the next start counts it as "
    "dropped (damaged). If nothing is damaged, this is a bug in forwarder: please report the table above."
)

Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The daemon's configuration: its address and its files.")]
State = Annotated[Path | None, typer.Option("--path", metavar="PATH", help="Read this state directory instead.")]


def audit(admin: Admin = None, config: Config = None, path: State = None) -> None:
    """Print the books, per lane: received = delivered + buffered + dead-lettered + dropped.

    Asks the running daemon; where none answers, reads the configured files. With --admin it only asks, with --path it only reads.

    Exits with 1 when they don't balance, 3 when no daemon answers and there are no files.
    """
    if path is not None:
        _judge(_from_files(_files_at(path)), _DAMAGE)
    elif admin is not None or (files := _files_without_daemon(config)) is None:
        _judge(_from_daemon(resolve(admin, config)), _BUG)
    else:
        _judge(_from_files(files), _DAMAGE)


def _from_daemon(address: str) -> Sequence[LaneSnapshot]:
    from forwarder.admin.status import parse

    return parse(ask(address)).lanes


def _from_files(files: Sequence[WorkerFiles]) -> Sequence[LaneSnapshot]:
    from forwarder.inspect.audit import books_of
    from forwarder.storage.directory import is_locked

    if any(each.log is not None and is_locked(each.log) for each in files):
        sys.stderr.write("A process has these files: figures may be of different instants. Ask it with --admin ADDRESS.\n")
    where = ", ".join(dict.fromkeys(str(each.log or (each.dead_letters and each.dead_letters.parent)) for each in files))
    sys.stdout.write(f"From the files in {where}:\n")
    return books_of(files)


def _files_at(path: Path) -> list[WorkerFiles]:
    from forwarder.inspect.state_files import NotABuffer, files_at

    files = files_at(path)
    if not files:
        raise NotABuffer(f"{path} holds no buffer and no dead letters", hint="Name the directory of `buffer.path` or `dead_letters.path`.")
    return files


def _files_without_daemon(config: Path | None) -> list[WorkerFiles] | None:
    """The configured files; None if a daemon answers, or there are none: then it is to be asked."""
    from forwarder.config.load import load_settings
    from forwarder.inspect.state_files import files_of

    try:
        get(resolve(None, config), "/livez")
    except NoDaemon:
        return files_of(load_settings(config, os.environ, require_upstream=False).settings, os.environ) or None
    return None


def _judge(lanes: Sequence[LaneSnapshot], hint: str) -> None:
    """Print the books, and end with 1 if they are off, with what that means."""
    from forwarder.cli.output import console, lane_table

    console().print(lane_table(lanes, books=True))
    off = [lane for lane in lanes if lane.difference]
    if not off:
        sys.stdout.write("The books balance: received = delivered + buffered + dead-lettered + dropped.\n")
        return
    names = ", ".join(lane.label for lane in off)
    sys.stderr.write(f"Error: the books don't balance for {names}\n  {hint}\n")
    raise typer.Exit(1)
