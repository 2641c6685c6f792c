"""`forwarder import`: a command for each format of the catalog, with options by its description;
`status` and `verify` of imports.

What only some of the commands need is imported when they run: help and completion don't wait for
it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.import_options import common_options, parameters
from forwarder.cli.options import CommandGroup, Config, Group, TextOrJson, TextOutput, generated
from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.format import ImportFormat
from forwarder.sources.imports.formats.catalog import BY_NAME, FORMATS

if TYPE_CHECKING:
    from forwarder.config.load import Loaded
    from forwarder.config.settings import Settings
    from forwarder.sources.imports.report import ImportManifest, ImportStatus
    from forwarder.sources.imports.shards import ImportShards
    from forwarder.sources.imports.verification import StoredDays, Verification

_CODES: Final = (
    "Exit codes: 0 complete; 1 records were rejected, files are damaged, or findings stop the "
    "import; 2 wrong usage, or the source "
    "changed; 3 the service can't be reached or doesn't know the key; 130 interrupted: the same "
    "command resumes."
)


def _unknown_format(args: list[str]) -> str:
    """What to type in place of a format that is none: a similar one, or the one that a file looks
    like that stands in its place.
    """
    import shlex
    from difflib import get_close_matches

    formats = f"The formats are {', '.join(BY_NAME)}."
    if Path(args[0]).exists():
        looks = _recognized(args[0])
        example = looks or "FORMAT"
        like = f", and {args[0]} looks like {BY_NAME[looks].looks_like}" if looks else ""
        return (
            f"The format is missing before the path{like}. Write: forwarder import {example} "
            f"{shlex.join(args)}\n{formats}"
        )
    close = get_close_matches(args[0].lower(), BY_NAME, n=1)
    return f"Unknown format {args[0]!r}. {f'Did you mean {close[0]}? ' if close else ''}{formats}"


def _recognized(path: str) -> str:
    """The format that the first file of a path looks like; empty if it is none."""
    from forwarder.core.errors import ForwarderError
    from forwarder.sources.files.source import open_source
    from forwarder.sources.imports.recognition import looks_of

    try:
        with open_source([path]) as source, closing(source.files()) as files:
            first = next(files, None)
        looks = {} if first is None else looks_of(source, [first.name], FORMATS)
        return next((match.format for match in looks.values()), "")
    except ForwarderError:
        return ""


class FormatGroup(Group):
    """Lists the formats if another one is typed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that `args` name."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(_unknown_format(args))
        return super().resolve_command(ctx, args)


def _check_exist(paths: Sequence[str]) -> None:
    """Raises `ConfigurationError` for a misspelled path, before anything else that is missing is
    asked for.
    """
    import glob

    from forwarder.sources.files.origins import local_files
    from forwarder.sources.files.record_blocks import ReadOptions

    for path in paths:
        is_local = path != "-" and "://" not in path and not glob.has_magic(path)
        whole = Path(path).absolute()
        if is_local and not os.path.lexists(whole):
            list(local_files(str(whole), ReadOptions()))  # its error has the names that there are


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
        _check_exist(common.paths)
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


app = CommandGroup(
    "import",
    "Import historical events from files; an interrupted import resumes without duplicates.",
    cls=FormatGroup,
)
for _form in FORMATS:
    _words = (
        f"{_form.summary}\n\n{_CODES}\n\nExample: forwarder import {_form.name} {_form.example}"
    )
    app.command(_form.name, help=_words)(generated(partial(_run, _form), list(parameters(_form))))


@app.command()
def status(
    *,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="State folder of one import. Default: all in `import.state`."
        ),
    ] = None,
    config: Config = None,
    output: TextOrJson = TextOutput.TEXT,
) -> None:
    """Show the progress of imports by their last checkpoints, also while they run; of an import in
    shards, that of each and of all.

    Exit codes: 0 shown, complete or not; 1 there is no import, or one in shards isn't complete; 2
    wrong usage, or a checkpoint can't be read.

    Example: forwarder import status --state /var/lib/forwarder/imports/segment-1a2b3c4d
    """
    from forwarder.cli.import_request import folders, state_root
    from forwarder.cli.output import report
    from forwarder.cli.settings import load_for_person
    from forwarder.sources.imports.checkpoint import CheckpointDamaged
    from forwarder.sources.imports.report import ImportStatus

    place = state or state_root(load_for_person(config).settings)
    statuses: list[ImportStatus | ImportShards] = []
    damaged = False
    for folder in [state] if state else folders(place):
        shards = _shards_in(folder)
        statuses += shards
        damaged |= any(shard.damaged for shard in shards)
        try:
            statuses += [] if shards else [_status_of(folder)]
        except CheckpointDamaged as error:
            if state:
                raise
            report(error)
            damaged = True
    if not damaged and all(
        isinstance(status, ImportStatus) and status.checkpoint is None and not status.running
        for status in statuses
    ):
        sys.stderr.write(
            f"Error: there is no import in {place}\n  Name the folder of another one with --state "
            "DIR.\n"
        )
        raise typer.Exit(ExitCode.NO)
    if output is TextOutput.JSON:
        sys.stdout.write(
            msgspec.json.encode({"imports": [status.plain() for status in statuses]}).decode()
            + "\n"
        )
    else:
        _print_status(statuses)
    if damaged:
        raise typer.Exit(ExitCode.WRONG_USAGE)
    is_open = any(
        not isinstance(status, ImportStatus) and not status.gaps.complete for status in statuses
    )
    raise typer.Exit(ExitCode.NO if is_open else ExitCode.DONE)


def _status_of(folder: Path) -> ImportStatus:
    """How far the import in a state folder is. Raises `CheckpointDamaged`."""
    from forwarder.sources.imports.checkpoint import read_checkpoint
    from forwarder.sources.imports.preflight_report import saved_report
    from forwarder.sources.imports.report import ImportStatus
    from forwarder.storage.directory import is_locked

    # the lock first: a process that ends meanwhile is shown as running, never as stopped early
    running = is_locked(folder)
    analyzed = saved_report(folder)
    return ImportStatus(
        folder, read_checkpoint(folder), running, None if analyzed is None else analyzed.records
    )


def _shards_in(folder: Path) -> list[ImportShards]:
    """The import in shards in a state folder, if it has one; several, if folders of another
    division were copied there.

    A checkpoint that can't be read is reported. Raises `ConfigurationError` if the folder can't be
    listed.
    """
    from forwarder.cli.output import report
    from forwarder.core.error_text import error_text
    from forwarder.sources.imports.checkpoint import CheckpointDamaged
    from forwarder.sources.imports.shards import ImportShards, shard_folders

    try:
        listed = shard_folders(folder)
    except OSError as error:
        hint = "Run this as the user that imports, or name another folder with --state DIR."
        raise ConfigurationError(
            f"{folder} can't be read: {error_text(error)}", hint=hint
        ) from error
    imports = []
    for of, places in sorted(listed.items()):
        shards = {}
        damaged = set()
        for number, place in sorted(places.items()):
            try:
                shards[number] = _status_of(place)
            except CheckpointDamaged as error:
                report(error)
                damaged.add(number)
        imports.append(ImportShards(folder, of, shards, frozenset(damaged)))
    return imports


def _print_status(statuses: Sequence[ImportStatus | ImportShards]) -> None:
    from forwarder.cli.tables import console
    from forwarder.sources.imports.report import ImportStatus

    now = time.time()
    out = console()
    for place, status in enumerate(statuses):
        if place:
            out.print()
        if isinstance(status, ImportStatus):
            for line in status.words(now):
                out.print(line, markup=False, soft_wrap=True)
        else:
            out.print(status.page(now), soft_wrap=True)


@app.command()
def verify(
    *,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="State folder of the import. Default: the only one in `import.state`.",
        ),
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A manifest.json instead of a folder.")
    ] = None,
    sandbox: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Sandbox to ask. Default: the one at `upstream.url`."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Only this project's events. Default: `import.api_key`, or any project.",
        ),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Export of the service: file, folder, pattern or address; repeatable.",
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(metavar="NAME", help="Encoding of the export, if it isn't UTF-8.")
    ] = None,
    any_job: Annotated[
        bool,
        typer.Option(
            "--any-job",
            help="Count all events of the export, also those that don't name this import.",
        ),
    ] = False,
    config: Config = None,
    output: TextOrJson = TextOutput.TEXT,
) -> None:
    """Compare an import's manifest with the events that arrived: by day, their number and their
    uuids.

    The events are those of a sandbox, or of exports of the service. The shards of an import are
    verified together.

    Exit codes: 0 the same; 1 different, or shards aren't complete; 2 wrong usage, or something
    can't be read; 3 no sandbox answers.

    Example: forwarder import verify --state /var/lib/forwarder/imports/segment-1a2b3c4d --export
    'exports/*.jsonl.gz'
    """
    for is_wrong, why in (
        (state and manifest, "give one of --state and --manifest"),
        (sandbox is not None and export, "give one of --sandbox and --export"),
        (any_job and not export, "--any-job requires --export"),
        (encoding is not None and not export, "--encoding requires --export"),
    ):
        if is_wrong:
            raise typer.BadParameter(why)
    from forwarder.cli.settings import load_for_person
    from forwarder.sources.imports.report import read_manifest
    from forwarder.sources.imports.verification import verify as compare

    read = load_for_person(config)
    shards = None
    if manifest:
        imported = read_manifest(manifest)
    else:
        folder = state or _only_import(read.settings)
        shards = _shards_to_verify(folder)
        imported = (shards and shards.whole) or _manifest_in(folder)
    if imported.job.shard is not None:
        hint = (
            "The shards of an import are verified together, for their events name one import: "
            "--state is the folder above theirs."
        )
        raise ConfigurationError(
            f"{manifest or state} is of shard {imported.job.shard} alone", hint=hint
        )
    jobs = shards.job_ids if shards else [imported.job.id]
    stored = (
        _of_exports(imported, None if any_job else jobs, read, export, encoding or "utf-8")
        if export
        else _of_sandbox(imported, jobs, read, sandbox, api_key)
    )
    verification = compare(imported, stored, shards.gaps if shards else None)
    if imported.complete and not (manifest or shards):
        against = (
            ", ".join(export) if export else f"the sandbox {sandbox or read.settings.upstream.url}"
        )
        _keep_verification(imported, folder, against, verification)
    if output is TextOutput.JSON:
        sys.stdout.write(msgspec.json.encode(verification).decode() + "\n")
    else:
        _print_status([shards] if shards else [])
        sys.stdout.write("\n".join(verification.words()) + "\n")
    raise typer.Exit(
        ExitCode.DONE
        if verification.same and (shards is None or shards.gaps.complete)
        else ExitCode.NO
    )


def _only_import(settings: Settings) -> Path:
    """The state folder of the only import. Raises `ConfigurationError` if there is none, or there
    are several.
    """
    from forwarder.cli.import_request import folders, state_root

    root = state_root(settings)
    imports = folders(root)
    if not imports:
        raise ConfigurationError(
            f"there is no import in {root}",
            hint="Name its folder with --state DIR, or its --manifest FILE.",
        )
    if len(imports) > 1:
        names = ", ".join(status.name for status in imports)
        hint = f"Choose one with --state DIR, such as {imports[0]}."
        raise ConfigurationError(f"there are several imports in {root}: {names}", hint=hint)
    return imports[0]


def _shards_to_verify(folder: Path) -> ImportShards | None:
    """The import in shards in a state folder; None if that has none. Raises `ConfigurationError`
    if there is nothing to compare.
    """
    split = _shards_in(folder)
    if len(split) > 1 or any(shard.damaged or shard.whole is None for shard in split):
        counts = " and of ".join(f"{shard.of}" for shard in split)
        why = (
            f"has shards of {counts}"
            if len(split) > 1
            else "has a damaged checkpoint"
            if split[0].damaged
            else "has no checkpoint yet"
        )
        raise ConfigurationError(
            f"{folder} {why}",
            hint="Name the folder with the shards of one import, each with its checkpoint.",
        )
    return split[0] if split else None


def _keep_verification(
    manifest: ImportManifest, folder: Path, against: str, verification: Verification
) -> None:
    """Show the result in the import's report, unless that can't be written."""
    from forwarder.cli.output import report
    from forwarder.core.secrets import mask_secrets
    from forwarder.sources.imports.report import save_verification
    from forwarder.storage.directory import is_locked

    if is_locked(folder):  # a running import writes its report itself
        return
    try:
        save_verification(
            manifest,
            folder,
            at=time.time(),
            against=mask_secrets(against),
            same=verification.same,
            words=[*verification.words()],
        )
    except ConfigurationError as error:
        report(error)


def _manifest_in(folder: Path) -> ImportManifest:
    """The manifest in a state folder; if its checkpoint is newer, what the manifest would be now.

    A killed run leaves a checkpoint, and no manifest or an older one. Raises `ConfigurationError`.
    """
    from forwarder.sources.imports.checkpoint import read_checkpoint
    from forwarder.sources.imports.report import MANIFEST, manifest_of, read_manifest

    saved = read_checkpoint(folder)  # first, as it reports a folder that can't be read
    path = folder / MANIFEST
    written = read_manifest(path) if path.is_file() else None
    if saved is not None and (written is None or written.books != saved.books):
        return manifest_of(saved)
    if written is None:
        raise ConfigurationError(
            f"{folder} has neither a manifest nor a checkpoint",
            hint="Name the folder of an import, or its manifest.",
        )
    return written


def _of_exports(
    manifest: ImportManifest,
    jobs: Collection[str] | None,
    read: Loaded,
    paths: list[str],
    encoding: str,
) -> StoredDays:
    from forwarder.cli.tables import EventProgress
    from forwarder.sources.files.record_blocks import ReadOptions
    from forwarder.sources.files.transcoding import checked_encoding
    from forwarder.sources.imports.verification import read_exports

    text = checked_encoding("--encoding", encoding)
    options = ReadOptions(encoding=text, store=read.settings.import_.store, follow_links=True)
    with (
        tempfile.TemporaryDirectory(prefix="forwarder-verify-") as folder,
        EventProgress("Reading the export", manifest.events) as progress,
    ):
        return read_exports(paths, jobs, options, Path(folder), progress.advance)


def _of_sandbox(
    manifest: ImportManifest,
    jobs: Collection[str],
    read: Loaded,
    url: str | None,
    api_key: str | None,
) -> StoredDays:
    """Ends the command with exit code 3 if no sandbox answers."""
    from forwarder.cli.import_request import project_key
    from forwarder.cli.output import report
    from forwarder.cli.tables import EventProgress
    from forwarder.sources.imports.verification import Unreachable, ask_sandbox

    key = project_key(read, api_key, required=False)
    address = url or read.settings.of_destination().upstream.url
    if not address:
        hint = (
            "Name a sandbox with --sandbox URL, or files exported by the service with "
            "--export PATH."
        )
        raise ConfigurationError("there is nothing to compare with", hint=hint)
    try:
        with EventProgress("Asking the sandbox", manifest.events) as progress:
            return ask_sandbox(address, jobs, key, progress.advance)
    except Unreachable as error:
        report(error)
        raise typer.Exit(ExitCode.UNREACHABLE) from error
