"""`forwarder status` and `forwarder health`: how the running daemon is, for a person and for a container's health check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from forwarder.cli.admin_client import MISDIRECTED, NoDaemon, get, resolve
from forwarder.cli.formats import Output

Admin = Annotated[str | None, typer.Option("--admin", metavar="ADDRESS", help="The daemon's admin address: host:port or unix:/path.")]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Read the admin address from this configuration.")]

UNREACHABLE = 3


def status(
    admin: Admin = None,
    config: Config = None,
    output: Annotated[Output, typer.Option("--output", help="A table for a person, or the JSON document.")] = Output.TABLE,
) -> None:
    """Show the running daemon: what came in, what waits, what went out, and what needs a hand.

    Exits with 3 when no daemon answers.
    """
    address = resolve(admin, config)
    body = ask(address)
    if output is Output.JSON:
        sys.stdout.write(body.decode() + "\n")
        return
    from forwarder.admin.status import parse
    from forwarder.cli.output import console, status_page

    console().print(status_page(parse(body), address))


def health(
    admin: Admin = None,
    config: Config = None,
    ready: Annotated[bool, typer.Option("--ready", help="Whether it can take events, not only whether it lives.")] = False,
) -> None:
    """Exit with 0 when the running daemon is well, else with 1: for a container's health check."""
    address = resolve(admin, config)
    try:
        code, body = get(address, "/readyz" if ready else "/livez")
    except NoDaemon as error:
        sys.stderr.write(f"{error.message}\n")
        raise typer.Exit(1) from error
    sys.stdout.write(body.decode(errors="replace"))
    raise typer.Exit(0 if code == 200 else 1)


def ask(address: str) -> bytes:
    """The daemon's status document. Ends the command with exit code 3 when no daemon answers."""
    try:
        code, body = get(address, "/status")
    except NoDaemon as error:
        from forwarder.cli.main import report

        report(error)
        raise typer.Exit(UNREACHABLE) from error
    if code != 200:
        hint = body.decode(errors="replace").strip() if code == MISDIRECTED else "Is this the address of forwarder's admin server?"
        sys.stderr.write(f"Error: {address} answered {code} to /status\n  {hint}\n")
        raise typer.Exit(UNREACHABLE)
    return body
