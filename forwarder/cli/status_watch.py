"""`forwarder status --watch`: the status again and again, on one screen of a terminal, or one
after the other elsewhere.

A daemon that doesn't answer is asked again: it may be restarted meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from forwarder.admin.status import NotAStatus, parse
from forwarder.cli.admin_client import NoDaemon, get_status
from forwarder.cli.options import Output
from forwarder.cli.tables import console, status_page
from forwarder.telemetry.rates import RateWindow


def watch_status(address: str, seconds: float, output: Output) -> None:
    """Show the status of the daemon at `address` every so many seconds, until
    the process is interrupted.
    """
    if output is Output.JSON:
        _print_documents(address, seconds)
    window = RateWindow()
    with _screen() as show:
        while True:
            show(_page(address, seconds, window))
            time.sleep(seconds)


def _print_documents(address: str, seconds: float) -> None:
    """A document a line; errors go to standard error."""
    while True:
        try:
            body = get_status(address)
            parse(body)
        except (NoDaemon, NotAStatus) as error:
            sys.stderr.write(f"{error.message}\n")
        else:
            sys.stdout.write(msgspec.json.format(body, indent=-1).decode() + "\n")
            sys.stdout.flush()
        time.sleep(seconds)


def _page(address: str, seconds: float, window: RateWindow) -> RenderableType:
    """What to show now."""
    head = Text(
        f"{datetime.now(UTC):%H:%M:%S} UTC, every {seconds:g} s; Ctrl-C ends it", style="dim"
    )
    try:
        snapshot = parse(get_status(address))
    except (NoDaemon, NotAStatus) as error:
        window.clear()
        return Group(
            head,
            Text(error.message, style="bold red"),
            Text(f"  {error.hint}\n  It is asked again."),
        )
    return Group(head, status_page(snapshot, address, window.add(snapshot)))


@contextlib.contextmanager
def _screen() -> Iterator[Callable[[RenderableType], None]]:
    """Shows a page in place of the last one on a terminal, else below it."""
    target = console()
    if not target.is_terminal:
        yield lambda page: target.print(page, Text())
        return
    with Live(console=target, screen=True, auto_refresh=False) as live:
        yield lambda page: live.update(page, refresh=True)
