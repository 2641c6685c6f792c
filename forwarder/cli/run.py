"""`forwarder run`: the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forwarder.config import Settings

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
    from forwarder.daemon.daemon import run_daemon
    from forwarder.daemon.inheritance import inherit
    from forwarder.daemon.own_address import reject_own_address
    from forwarder.daemon.restart import restart_of
    from forwarder.storage.failpoints import arm_from_environment
    from forwarder.workers.channel import assignment
    from forwarder.workers.supervisor import needs_supervisor, run_supervisor
    from forwarder.workers.worker import run_worker

    def load() -> Settings:
        from forwarder.config import load_settings
        from forwarder.telemetry.logs import configure_logging

        settings = load_settings(config, os.environ).settings
        configure_logging(settings.log.format, settings.log.level)
        return settings

    arm_from_environment(os.environ)
    inherited = inherit(os.environ)
    settings = load()
    assigned = assignment(os.environ)
    if assigned is not None:
        raise typer.Exit(run_worker(settings, load, assigned))
    reject_own_address(settings)
    given = ["--config", str(config)] if config else []
    restart = restart_of(["run", *given], ["config", "check", *given])
    if needs_supervisor(settings):
        raise typer.Exit(run_supervisor(settings, load, ["run", *given], restart, inherited))
    raise typer.Exit(run_daemon(settings, load, restart, inherited))
