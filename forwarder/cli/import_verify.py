"""`forwarder import verify`: the manifest of an import against what a sandbox holds, or an export of the service, by day."""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forwarder.cli.import_options import Form

if TYPE_CHECKING:
    from forwarder.config.load import Loaded
    from forwarder.sources.imports.manifest import ImportManifest
    from forwarder.sources.imports.verification import StoredDays

DIFFERENT = 1
UNREACHABLE = 3

State = Annotated[Path | None, typer.Option("--state", metavar="DIR", help="The import's folder; else the only one in `import.state`.")]
ManifestFile = Annotated[Path | None, typer.Option("--manifest", metavar="FILE", help="A manifest.json, instead of a folder.")]
SandboxUrl = Annotated[str | None, typer.Option("--sandbox", metavar="URL", help="Ask this sandbox; else the one at `upstream.url`.")]
Key = Annotated[
    str | None, typer.Option("--api-key", metavar="KEY", help="Only what came with this project key; else `import.api_key`, or any key.")
]
Exports = Annotated[
    list[str] | None,
    typer.Option("--export", metavar="PATH", help="Read this export of the service: file, folder, pattern or address; may be given again."),
]
AnyJob = Annotated[
    bool, typer.Option("--any-job", help="Count all events of the export, also those that don't say that they are of this import.")
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The configuration that the import had.")]
Output = Annotated[Form, typer.Option("--output", help="Text for a person, or JSON.")]


def verify(
    *,
    state: State = None,
    manifest: ManifestFile = None,
    sandbox: SandboxUrl = None,
    api_key: Key = None,
    export: Exports = None,
    any_job: AnyJob = False,
    config: Config = None,
    output: Output = Form.TEXT,
) -> None:
    """Compare an import's manifest with what is there: how many events each day has, and whether they are the same, by their uuids.

    What is there is asked of a sandbox, or read from exports of the service.

    Exit codes: 0 it is the same; 1 it isn't; 2 wrong usage, or something can't be read; 3 no sandbox answers.

    Example: forwarder import verify --state /var/lib/forwarder/imports/segment-1a2b3c4d --export 'exports/*.jsonl.gz'
    """
    _check(state, manifest, sandbox, export, any_job=any_job)
    from forwarder.cli.import_access import state_root
    from forwarder.cli.import_places import loaded, manifest_in, only_folder
    from forwarder.sources.imports import manifest as manifests
    from forwarder.sources.imports.verification import verify as compare

    read = loaded(config)
    kept = manifests.read(manifest) if manifest else manifest_in(state or only_folder(state_root(read.settings)))
    holding = _of_exports(kept, read, export, any_job=any_job) if export else _of_sandbox(kept, read, sandbox, api_key)
    found = compare(kept, holding)
    words = found.json().decode() if output is Form.JSON else "\n".join(found.words())
    sys.stdout.write(words + "\n")
    raise typer.Exit(0 if found.same else DIFFERENT)


def _check(state: Path | None, manifest: Path | None, sandbox: str | None, export: list[str] | None, *, any_job: bool) -> None:
    """Raises `BadParameter` for what doesn't fit together."""
    if state is not None and manifest is not None:
        raise typer.BadParameter("give one of --state and --manifest")
    if sandbox is not None and export:
        raise typer.BadParameter("give one of --sandbox and --export")
    if any_job and not export:
        raise typer.BadParameter("--any-job is for exports: give it with --export")


def _of_exports(kept: ImportManifest, read: Loaded, paths: list[str], *, any_job: bool) -> StoredDays:
    from forwarder.cli.import_export import hold_exports
    from forwarder.cli.progress import EventProgress
    from forwarder.sources.files import ReadOptions

    job, options = None if any_job else kept.job.id, ReadOptions(store=read.settings.import_.store, follow_links=True)
    with tempfile.TemporaryDirectory(prefix="forwarder-verify-") as folder, EventProgress("Reading the export", kept.events) as progress:
        return hold_exports(paths, job, options, Path(folder), progress.advance)


def _of_sandbox(kept: ImportManifest, read: Loaded, url: str | None, api_key: str | None) -> StoredDays:
    """Ends the command with 3 if nobody answers."""
    from forwarder.cli.import_access import project_key
    from forwarder.cli.import_options import Shared
    from forwarder.cli.import_sandbox import SandboxAnswers, Unreachable
    from forwarder.cli.main import report
    from forwarder.cli.progress import EventProgress

    key = project_key(read, Shared(paths=[], api_key=api_key, dry_run=True))  # it may be missing, as for a look at the source
    try:
        with closing(SandboxAnswers(_address(read, url))) as answers, EventProgress("Asking the sandbox", kept.events) as progress:
            return answers.hold(kept.job.id, key, progress.advance)
    except Unreachable as error:
        report(error)
        raise typer.Exit(UNREACHABLE) from error


def _address(read: Loaded, url: str | None) -> str:
    from forwarder.core.errors import ConfigurationError

    address = url or read.settings.upstream.url
    if not address:
        hint = "Name a sandbox with --sandbox URL, or files that the service exported with --export PATH."
        raise ConfigurationError("there is nothing to compare with", hint=hint)
    return address
