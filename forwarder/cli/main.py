"""The entry point of the `forwarder` command: how it starts, and how errors end it.

The daemon is started without the command line's library: what is loaded for it stays in memory as
long as the daemon runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forwarder.cli.exit_codes import ExitCode
from forwarder.core.errors import ForwarderError


def main() -> None:
    """Run a command. An expected error is reported without a traceback."""
    arguments = sys.argv[1:]
    try:
        if is_plain_run(arguments):
            from forwarder.cli.launch import launch

            sys.exit(launch(Path(arguments[-1]) if arguments[1:] else None))
        from forwarder.cli.app import app

        app(prog_name="forwarder")
    except ForwarderError as error:
        from forwarder.cli.output import report

        report(error)
        sys.exit(ExitCode.WRONG_USAGE)
    except KeyboardInterrupt:
        # `python -m` dies by the signal, whatever the exit code, if the last exec() was interrupted
        # (a dataclass being made, say)
        exec("")  # noqa: S102
        sys.exit(ExitCode.INTERRUPTED)


def is_plain_run(arguments: Sequence[str]) -> bool:
    """Whether these are `run` or `run --config FILE`, which need no parser. Any others, wrong ones
    too, are for the library.
    """
    return list(arguments) == ["run"] or (
        len(arguments) == 3 and list(arguments[:2]) == ["run", "--config"]
    )
