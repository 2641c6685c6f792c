"""`forwarder import verify`: an import's manifest compared, by day, with a sandbox's events or with an export of the service."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from forwarder import __version__
from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import Config, TextOrJson, TextOutput
from forwarder.core.errors import ConfigurationError

if TYPE_CHECKING:
    from forwarder.config.load import Loaded
    from forwarder.sources.imports.manifest import ImportManifest
    from forwarder.sources.imports.verification import StoredDays


def verify(
    *,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="State folder of the import. Default: the only one in `import.state`.")
    ] = None,
    manifest: Annotated[Path | None, typer.Option("--manifest", metavar="FILE", help="A manifest.json instead of a folder.")] = None,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", metavar="URL", help="Sandbox to ask. Default: the one at `upstream.url`.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", metavar="KEY", help="Only this project's events. Default: `import.api_key`, or any project.")
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option("--export", metavar="PATH", help="Export of the service: file, folder, pattern or address; repeatable."),
    ] = None,
    any_job: Annotated[
        bool, typer.Option("--any-job", help="Count all events of the export, also those that don't name this import.")
    ] = False,
    config: Config = None,
    output: TextOrJson = TextOutput.TEXT,
) -> None:
    """Compare an import's manifest with the events that arrived: by day, their number and their uuids.

    The events are those of a sandbox, or of exports of the service.

    Exit codes: 0 the same; 1 different; 2 wrong usage, or something can't be read; 3 no sandbox answers.

    Example: forwarder import verify --state /var/lib/forwarder/imports/segment-1a2b3c4d --export 'exports/*.jsonl.gz'
    """
    _check(state, manifest, sandbox, export, any_job=any_job)
    from forwarder.cli.import_request import loaded, state_root
    from forwarder.sources.imports import manifest as manifests
    from forwarder.sources.imports.verification import verify as compare

    read = loaded(config)
    kept = manifests.read(manifest) if manifest else manifest_in(state or only_folder(state_root(read.settings)))
    stored = _of_exports(kept, read, export, any_job=any_job) if export else _of_sandbox(kept, read, sandbox, api_key)
    found = compare(kept, stored)
    words = msgspec.json.encode(found).decode() if output is TextOutput.JSON else "\n".join(found.words())
    sys.stdout.write(words + "\n")
    raise typer.Exit(ExitCode.DONE if found.same else ExitCode.NO)


def _check(state: Path | None, manifest: Path | None, sandbox: str | None, export: list[str] | None, *, any_job: bool) -> None:
    """Raises `BadParameter` for options that exclude each other."""
    if state is not None and manifest is not None:
        raise typer.BadParameter("give one of --state and --manifest")
    if sandbox is not None and export:
        raise typer.BadParameter("give one of --sandbox and --export")
    if any_job and not export:
        raise typer.BadParameter("--any-job requires --export")


def only_folder(root: Path) -> Path:
    """The state folder of the only import in `root`. Raises `ConfigurationError` if there is none, or several."""
    from forwarder.cli.import_request import folders

    found = folders(root)
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigurationError(f"there is no import in {root}", hint="Name its folder with --state DIR, or its --manifest FILE.")
    names = ", ".join(each.name for each in found)
    raise ConfigurationError(f"there are several imports in {root}: {names}", hint=f"Choose one with --state DIR, such as {found[0]}.")


def manifest_in(folder: Path) -> ImportManifest:
    """The manifest in a state folder; if its checkpoint is newer, what the manifest would be now.

    A killed run leaves a checkpoint, and no manifest or an older one. Raises `ConfigurationError`.
    """
    from forwarder.sources.imports import checkpoint
    from forwarder.sources.imports import manifest as manifests

    saved = checkpoint.read_checkpoint(folder)  # first, as it reports a folder that can't be read
    path = folder / manifests.FILE
    written = manifests.read(path) if path.is_file() else None
    if saved is not None and (written is None or written.books != saved.books):
        return manifests.manifest_of(saved, __version__, time.time())
    if written is None:
        raise ConfigurationError(f"{folder} has neither a manifest nor a checkpoint", hint="Name the folder of an import, or its manifest.")
    return written


def _of_exports(kept: ImportManifest, read: Loaded, paths: list[str], *, any_job: bool) -> StoredDays:
    from forwarder.cli.tables import EventProgress
    from forwarder.sources.files.records import ReadOptions
    from forwarder.sources.imports.verification import read_exports

    job, options = None if any_job else kept.job.id, ReadOptions(store=read.settings.import_.store, follow_links=True)
    with tempfile.TemporaryDirectory(prefix="forwarder-verify-") as folder, EventProgress("Reading the export", kept.events) as progress:
        return read_exports(paths, job, options, Path(folder), progress.advance)


def _of_sandbox(kept: ImportManifest, read: Loaded, url: str | None, api_key: str | None) -> StoredDays:
    """Ends the command with exit code 3 if no sandbox answers."""
    from forwarder.cli.import_request import project_key
    from forwarder.cli.output import report
    from forwarder.cli.tables import EventProgress
    from forwarder.sources.imports.verification import Unreachable, ask_sandbox

    key = project_key(read, api_key, required=False)
    address = url or read.settings.upstream.url
    if not address:
        hint = "Name a sandbox with --sandbox URL, or files exported by the service with --export PATH."
        raise ConfigurationError("there is nothing to compare with", hint=hint)
    try:
        with EventProgress("Asking the sandbox", kept.events) as progress:
            return ask_sandbox(address, kept.job.id, key, progress.advance)
    except Unreachable as error:
        report(error)
        raise typer.Exit(ExitCode.UNREACHABLE) from error
