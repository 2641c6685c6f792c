"""The `forwarder` command: its sub-commands and its version."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from forwarder import __version__
from forwarder.cli import lazy
from forwarder.cli.audit import audit
from forwarder.cli.demo import demo
from forwarder.cli.run import run
from forwarder.cli.status import health, status

UPSTREAM = "FORWARDER_UPSTREAM__URL=https://us.i.example.com"

app = typer.Typer(name="forwarder", cls=lazy.LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)
app.command(epilog=f"Example: {UPSTREAM} forwarder run")(run)
app.command(epilog="Example: forwarder demo --once")(demo)
app.command(epilog="Example: forwarder status --admin 127.0.0.1:8321")(status)
app.command(epilog="Example: forwarder health --ready")(health)
app.command(epilog="Example: forwarder audit --config /etc/forwarder/forwarder.yaml")(audit)
lazy.register(app)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        sys.stdout.write(f"forwarder {__version__}\n")
        raise typer.Exit


@app.callback(epilog=f"Example: {UPSTREAM} forwarder run")
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Takes product-analytics events and brings every one of them, unchanged and on time, to an analytics service.

    Exit codes: 0 done; 1 the answer is no; 2 wrong usage or configuration; 3 unreachable; 130 interrupted.
    """
