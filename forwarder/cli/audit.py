"""`forwarder audit`: the books of the running daemon."""

from __future__ import annotations

import sys

import typer

from forwarder.cli.admin_client import resolve
from forwarder.cli.status import Admin, Config, ask


def audit(admin: Admin = None, config: Config = None) -> None:
    """Print the books of the running daemon, per lane: received = delivered + buffered + dead-lettered + dropped.

    Exits with 1 when they don't balance, 3 when no daemon answers.
    """
    from forwarder.cli.output import console, lane_table
    from forwarder.runtime.status import parse
    from forwarder.telemetry.snapshot import unbalanced

    snapshot = parse(ask(resolve(admin, config)))
    console().print(lane_table(snapshot.lanes, books=True))
    off = unbalanced(snapshot)
    if not off:
        sys.stdout.write("The books balance: received = delivered + buffered + dead-lettered + dropped.\n")
        return
    names = ", ".join(lane.label for lane in off)
    sys.stderr.write(f"Error: the books don't balance for {names}\n  This is a bug in forwarder: please report the table above.\n")
    raise typer.Exit(1)
