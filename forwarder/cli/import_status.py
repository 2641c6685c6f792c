"""`forwarder import status`: how far imports are, from their state folders, also while they run."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forwarder.cli.import_options import Form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forwarder.sources.imports.status import ImportStatus

NOTHING = 1
DAMAGED = 2

State = Annotated[Path | None, typer.Option("--state", metavar="DIR", help="The folder of one import; else all those in `import.state`.")]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The configuration that the imports had.")]
Output = Annotated[Form, typer.Option("--output", help="Text for a person, or JSON.")]


def status(*, state: State = None, config: Config = None, output: Output = Form.TEXT) -> None:
    """Show how far imports are: what was read and what became of it, by their last checkpoints, also while they run.

    Exit codes: 0 shown, complete or not; 1 there is no import; 2 wrong usage, or a checkpoint can't be read.

    Example: forwarder import status --state /var/lib/forwarder/imports/segment-1a2b3c4d
    """
    from forwarder.cli.import_access import state_root
    from forwarder.cli.import_places import loaded

    place = state or state_root(loaded(config).settings)
    found, damaged = ([_standing(state)], False) if state else _all_in(place)
    if not damaged and all(each.checkpoint is None and not each.running for each in found):
        sys.stderr.write(f"Error: no import has left anything in {place}\n  Name its folder with --state DIR, if it is another.\n")
        raise typer.Exit(NOTHING)
    _show(found, output)
    raise typer.Exit(DAMAGED if damaged else 0)


def _all_in(root: Path) -> tuple[list[ImportStatus], bool]:
    """The imports below a folder, and whether there are some that can't be read: that is said."""
    from forwarder.cli.import_places import folders
    from forwarder.cli.main import report
    from forwarder.sources.imports.checkpoint import CheckpointDamaged

    found, damaged = [], False
    for folder in folders(root):
        try:
            found.append(_standing(folder))
        except CheckpointDamaged as error:
            report(error)
            damaged = True
    return found, damaged


def _standing(folder: Path) -> ImportStatus:
    """Asked for the lock first: a process that comes to its end meanwhile is shown as running, never as stopped before its end."""
    from forwarder.sources.imports.checkpoint import read_checkpoint
    from forwarder.sources.imports.status import ImportStatus, counted_in
    from forwarder.storage.directory import is_locked

    running = is_locked(folder)
    return ImportStatus(folder, read_checkpoint(folder), running, counted_in(folder))


def _show(found: Sequence[ImportStatus], output: Form) -> None:
    from forwarder.sources.imports.status import as_json

    if output is Form.JSON:
        sys.stdout.write(as_json(list(found)).decode() + "\n")
        return
    now = time.time()
    sys.stdout.write("\n".join("".join(f"{line}\n" for line in each.words(now)) for each in found))
