"""`forwarder import FORMAT PATH…`: a command for each format of the catalog, beside `status` and `verify`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperGroup

from forwarder.cli.import_options import parameters, shared
from forwarder.cli.import_status import status
from forwarder.cli.import_verify import verify
from forwarder.sources.imports.catalog import BY_NAME, FORMATS
from forwarder.sources.imports.format import ImportFormat

HELP = "Move years of events into the service: run it twice, kill it anywhere, and each is there once."
WRONG_USAGE: Final = 2
REFUSED: Final = 3
INTERRUPTED: Final = 130
_CODES: Final = (
    "Exit codes: 0 all is there; 1 records were refused, files are broken, or findings stop it; 2 wrong usage, or the source changed; "
    "3 the service can't be reached or doesn't know the key; 130 interrupted: the same command goes on."
)


class Formats(TyperGroup):
    """Says which formats there are to who types another."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that `args` name."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(f"There is no format {args[0]!r}. The formats are {', '.join(BY_NAME)}.")
        return super().resolve_command(ctx, args)


def build() -> typer.Typer:
    """All commands."""
    group = typer.Typer(name="import", cls=Formats, no_args_is_help=True, help=HELP)
    for form in FORMATS:
        group.command(form.name, help=f"{form.summary}\n\n{_CODES}", epilog=f"Example: forwarder import {form.name} {form.example}")(
            _command(form)
        )
    group.command("status")(status)
    group.command("verify")(verify)
    return group


def _command(form: ImportFormat[Any]) -> Callable[..., None]:
    """The function that typer makes a command of: its parameters are the format's."""

    def command(**typed: Any) -> None:
        raise typer.Exit(_run(form, typed))

    found = list(parameters(form))
    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in found}
    return command


def _run(form: ImportFormat[Any], typed: dict[str, Any]) -> int:
    """Run an import; the exit code that says what came of it."""
    from forwarder.cli.import_flow import Flow
    from forwarder.cli.import_request import request_of
    from forwarder.cli.import_signals import termination_interrupts
    from forwarder.cli.import_words import say, tell
    from forwarder.core.clock import SystemClock
    from forwarder.core.errors import ForwarderError
    from forwarder.imports.job import ImportRun
    from forwarder.imports.target import UpstreamRefuses
    from forwarder.telemetry.logs import configure_logging

    asked = shared(typed)
    try:
        request = request_of(form, asked, typed)
        log = request.settings.log
        configure_logging(log.format, "warning" if log.level == "info" else log.level)
        with termination_interrupts():
            return Flow(ImportRun.open(request, SystemClock()), request, asked).run()
    except KeyboardInterrupt:
        say("Interrupted. Nothing is on its way; the same command goes on, or begins.")
        return INTERRUPTED
    except ForwarderError as error:
        tell(error)
        return REFUSED if isinstance(error, UpstreamRefuses) else WRONG_USAGE


app = build()
