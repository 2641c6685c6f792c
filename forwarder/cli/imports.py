"""`forwarder import`: a command for each format of the catalog, `status` of imports, and `verify` (`import_verify`)."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.import_options import common_options, parameters
from forwarder.cli.import_verify import verify
from forwarder.cli.options import CommandGroup, Config, Group, TextOrJson, TextOutput, generated
from forwarder.sources.imports.format import ImportFormat
from forwarder.sources.imports.formats.catalog import BY_NAME, FORMATS

if TYPE_CHECKING:
    from forwarder.sources.imports.report import ImportStatus

_CODES: Final = (
    "Exit codes: 0 complete; 1 records were rejected, files are damaged, or findings stop the import; 2 wrong usage, or the source "
    "changed; 3 the service can't be reached or doesn't know the key; 130 interrupted: the same command resumes."
)


class FormatGroup(Group):
    """Lists the formats if another one is typed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that `args` name."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(f"Unknown format {args[0]!r}. The formats are {', '.join(BY_NAME)}.")
        return super().resolve_command(ctx, args)


def status(
    *,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="State folder of one import. Default: all in `import.state`.")
    ] = None,
    config: Config = None,
    output: TextOrJson = TextOutput.TEXT,
) -> None:
    """Show the progress of imports by their last checkpoints, also while they run.

    Exit codes: 0 shown, complete or not; 1 there is no import; 2 wrong usage, or a checkpoint can't be read.

    Example: forwarder import status --state /var/lib/forwarder/imports/segment-1a2b3c4d
    """
    from forwarder.cli.import_request import folders, loaded, state_root
    from forwarder.cli.output import report
    from forwarder.sources.imports.checkpoint import CheckpointDamaged
    from forwarder.sources.imports.report import status_json

    place = state or state_root(loaded(config).settings)
    found, damaged = [], False
    for folder in [state] if state else folders(place):
        try:
            found.append(_standing(folder))
        except CheckpointDamaged as error:
            if state:
                raise
            report(error)
            damaged = True
    if not damaged and all(each.checkpoint is None and not each.running for each in found):
        sys.stderr.write(f"Error: there is no import in {place}\n  Name the folder of another one with --state DIR.\n")
        raise typer.Exit(ExitCode.NO)
    if output is TextOutput.JSON:
        sys.stdout.write(status_json(found).decode() + "\n")
    else:
        now = time.time()
        sys.stdout.write("\n".join("".join(f"{line}\n" for line in each.words(now)) for each in found))
    raise typer.Exit(ExitCode.WRONG_USAGE if damaged else ExitCode.DONE)


def _standing(folder: Path) -> ImportStatus:
    """Checks the lock first: a process that ends meanwhile is shown as running, never as stopped early."""
    from forwarder.sources.imports.checkpoint import read_checkpoint
    from forwarder.sources.imports.preflight_report import saved_report
    from forwarder.sources.imports.report import ImportStatus
    from forwarder.storage.directory import is_locked

    running, analyzed = is_locked(folder), saved_report(folder)
    return ImportStatus(folder, read_checkpoint(folder), running, None if analyzed is None else analyzed.records)


def _run(form: ImportFormat[Any], typed: dict[str, Any]) -> None:
    """Run an import."""
    from forwarder.cli.import_request import request_of
    from forwarder.cli.import_run import ImportCommand, say, termination_interrupts
    from forwarder.cli.output import report_visible
    from forwarder.core.clock import SystemClock
    from forwarder.core.errors import ForwarderError
    from forwarder.daemon.imports import ImportRun, UpstreamRefuses
    from forwarder.telemetry.logs import configure_logging

    common = common_options(typed)
    try:
        request = request_of(form, common, typed)
        log = request.settings.log
        configure_logging(log.format, "warning" if log.level == "info" else log.level)
        with termination_interrupts():
            code = ImportCommand(ImportRun(request, SystemClock()), request, common).run()
    except KeyboardInterrupt:
        say("Interrupted. Nothing is in flight; the same command starts again, or resumes.")
        code = ExitCode.INTERRUPTED
    except ForwarderError as error:
        report_visible(error)
        code = ExitCode.UNREACHABLE if isinstance(error, UpstreamRefuses) else ExitCode.WRONG_USAGE
    raise typer.Exit(code)


def _build() -> CommandGroup:
    commands = CommandGroup(
        "import", "Import historical events from files; an interrupted import resumes without duplicates.", cls=FormatGroup
    )
    for form in FORMATS:
        words = f"{form.summary}\n\n{_CODES}\n\nExample: forwarder import {form.name} {form.example}"
        commands.command(form.name, help=words)(generated(partial(_run, form), list(parameters(form))))
    commands.command("status")(status)
    commands.command("verify")(verify)
    return commands


app = _build()
