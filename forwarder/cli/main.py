"""The entry point of the `forwarder` command: how it starts, and how errors look.

The daemon is started without the command line's library: what is loaded for it stays in memory for as long as it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forwarder.core.errors import ForwarderError

if TYPE_CHECKING:
    from forwarder.config.settings import Settings

WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130


def main() -> None:
    """Run a command. Expected errors are reported in words, without a traceback."""
    arguments = sys.argv[1:]
    try:
        if is_plain_run(arguments):
            sys.exit(launch(Path(arguments[-1]) if arguments[1:] else None))
        from forwarder.cli.app import app

        app(prog_name="forwarder")
    except ForwarderError as error:
        report(error)
        sys.exit(WRONG_USAGE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def report(error: ForwarderError) -> None:
    """Say on stderr what happened, and what to do next."""
    sys.stderr.write(f"Error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"  {error.hint}\n")


def is_plain_run(arguments: Sequence[str]) -> bool:
    """Whether these are `run` or `run --config FILE`, which need no parser. Any others, wrong ones too, are for the library."""
    return list(arguments) == ["run"] or (len(arguments) == 3 and list(arguments[:2]) == ["run", "--config"])


def launch(config: Path | None) -> int:
    """Run the daemon, a worker of one, or the supervisor of several; the exit code. Raises `ForwarderError`."""
    _import_structlog()
    from forwarder.daemon.inheritance import inherit
    from forwarder.storage.failpoints import arm_from_environment
    from forwarder.workers.adoption import needs_supervisor
    from forwarder.workers.channel import read_assignment

    def load() -> Settings:
        from forwarder.config.load import load_settings
        from forwarder.telemetry.logs import configure_logging

        settings = load_settings(config, os.environ).settings
        configure_logging(settings.log.format, settings.log.level)
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
    given = ["--config", str(config)] if config else []
    restart = restart_of(["run", *given], ["config", "check", *given])
    if needs_supervisor(settings):
        from forwarder.workers.supervisor import run_supervisor

        return run_supervisor(settings, load, ["run", *given], restart, inherited)
    from forwarder.daemon.daemon import run_daemon

    return run_daemon(settings, load, restart, inherited)


def _import_structlog() -> None:
    """Import structlog without rich, which it loads where it is installed, for tracebacks that the daemon's log doesn't use: 3 MB."""
    modules: dict[str, Any] = sys.modules
    if "rich" not in modules:
        modules["rich"] = None
        import structlog  # noqa: F401

        del modules["rich"]
