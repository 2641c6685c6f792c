"""`forwarder run`: the daemon."""

from __future__ import annotations

import typer

from forwarder.cli.launch import launch
from forwarder.cli.options import Config


def run(config: Config = None) -> None:
    """Run the daemon: receive events and deliver them to the upstream.

    With `workers` above 1, a supervisor runs that many processes.

    SIGTERM and SIGINT drain and stop it (exit code 1 if events are left), as does the end of
    standard input if a log source reads that; a second signal ends the drain: what memory holds
    becomes dead letters (130). Signals within a second are one. SIGHUP reloads the configuration,
    SIGUSR2 restarts it in place. Sockets passed by systemd's socket activation are used.

    Example: FORWARDER_UPSTREAM__URL=https://us.i.example.com forwarder run
    """
    raise typer.Exit(launch(config))
