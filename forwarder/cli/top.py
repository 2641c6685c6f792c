"""`forwarder top`: a live view of the running daemon in a terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from forwarder.cli.admin_client import get_status, require_status, resolve
from forwarder.cli.options import INTERVAL, Admin, Config


def top(
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.1, max=3600, help="Time between refreshes."
        ),
    ] = INTERVAL,
    admin: Admin = None,
    config: Config = None,
) -> None:
    """Watch the running daemon live: rates, buffer, upstream, lanes and what needs attention.

    Press ? for the keys. It waits for a daemon that isn't there. Without a terminal it prints one
    status with rates.

    Exit codes: 0 ended by q; 3 no daemon answers, without a terminal.

    Example: forwarder top --interval 1
    """
    address = resolve(admin, config)
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        _print_once(address, interval)
        return
    from forwarder.admin.status import parse
    from forwarder.cli.top_screen import TopApp

    TopApp(address, lambda: parse(get_status(address)), interval).run(mouse=False)


def _print_once(address: str, interval: float) -> None:
    """One status, with the rates of an interval."""
    import time

    from forwarder.admin.status import parse
    from forwarder.cli.tables import console, status_page
    from forwarder.telemetry.rates import rates_between

    before = parse(require_status(address))
    time.sleep(interval)
    after = parse(require_status(address))
    console().print(status_page(after, address, rates_between(before, after)))
