"""Starts the daemon, a worker of one, or the supervisor of several.

Invariant: nothing that only the command line or a terminal needs is imported here: what is loaded
stays in memory as long as the daemon runs.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forwarder.core.errors import ConfigurationError
from forwarder.core.proposals import use_configuration

if TYPE_CHECKING:
    from forwarder.config.settings import Settings


def launch(config: Path | None) -> int:
    """Run it; returns the exit code. Raises `ForwarderError`."""
    # a start makes much and leaves little: looking for garbage would be a tenth of it. What runs
    # enables it again
    gc.disable()
    try:
        return _launch(config)
    finally:
        gc.enable()


def _launch(config: Path | None) -> int:
    use_configuration(config and config.absolute())
    _import_structlog()
    from forwarder.daemon.inheritance import inherit
    from forwarder.storage.failpoints import arm_from_environment
    from forwarder.workers.adoption import needs_supervisor
    from forwarder.workers.channel import read_assignment

    def load() -> Settings:
        from forwarder.config.load import load_settings
        from forwarder.telemetry.labels import LaneNames
        from forwarder.telemetry.logs import configure_logging

        settings = load_settings(config, os.environ).settings
        configure_logging(settings.log.format, settings.log.level, LaneNames(settings.key_names))
        return settings

    arm_from_environment(os.environ)
    inherited = inherit(os.environ)
    settings = load()
    assigned = read_assignment(os.environ)
    if assigned is not None:
        from forwarder.workers.worker import run_worker

        return run_worker(settings, load, assigned)
    from forwarder.daemon.own_address import reject_own_address
    from forwarder.daemon.restart import restart_of

    reject_own_address(settings)
    # descriptor 0 is something else by now, or will be
    if sys.stdin is None and any(source.stdin for source in settings.sources.logs):
        hint = "Pipe a program's output into forwarder, or read its files with `path`."
        raise ConfigurationError(
            "sources.logs: standard input is to be read, and is closed", hint=hint
        )
    given = ["--config", str(config)] if config else []
    restart = restart_of(["run", *given], ["config", "check", *given])
    if needs_supervisor(settings):
        from forwarder.workers.supervisor import run_supervisor

        gc.enable()
        return run_supervisor(settings, load, ["run", *given], restart, inherited)
    from forwarder.daemon.daemon import run_daemon

    return run_daemon(settings, load, restart, inherited)


def _import_structlog() -> None:
    """Import structlog without rich, which it loads where it is installed, for tracebacks that the
    daemon's log doesn't use: 3 MB.
    """
    modules: dict[str, Any] = sys.modules
    if "rich" not in modules:
        modules["rich"] = None
        import structlog  # noqa: F401

        del modules["rich"]
