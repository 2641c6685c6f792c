"""`forwarder run`: the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forwarder.cli.main import launch

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The configuration; without it /etc/forwarder/forwarder.yaml if it is there."),
]


def run(config: Config = None) -> None:
    """Run the daemon: take events, and bring them to the upstream.

    With `workers` above 1 it supervises that many processes, which share the listening address.

    SIGTERM and SIGINT drain and end it (exit code 1 when events were left), a second one ends it at once (130), SIGHUP reads
    the configuration again, SIGUSR2 restarts it in place. Sockets of systemd's socket activation are used where it passes some.
    """
    raise typer.Exit(launch(config))
