"""`forwarder import verify`: an import's manifest compared, by day, with a sandbox's events or with an export of the service.

A sandbox is asked page by page over one connection (docs/sandbox.md: An import into it). An export is files of events, one object per row.
"""

from __future__ import annotations

import http.client
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

import typer

from forwarder import __version__
from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import Config, TextOrJson, TextOutput

if TYPE_CHECKING:
    from forwarder.config.load import Loaded
    from forwarder.sources.files.records import ReadOptions
    from forwarder.sources.files.source import BlockReader
    from forwarder.sources.imports.manifest import ImportManifest
    from forwarder.sources.imports.verification import ArrivedEvents, StoredDays

from forwarder.cli.admin_client import MISDIRECTED
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.secrets import mask_secrets

Read = TypeVar("Read")

PAGE: Final = 10_000
"""Events per answer: the sandbox's maximum."""
TIMEOUT: Final = 120.0
"""Seconds for each answer: a sandbox may be busy with an import."""
_SANDBOX_HINT: Final = "The service itself can't be asked for its events: export them, and name the files with `--export`."
_EXPORT_HINT: Final = (
    "Each row requires `uuid`, `timestamp` (ISO 8601) and `properties` (an object, or one as text), as in the service's batch "
    "exports of events: JSON lines or Parquet, compressed or not."
)


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
    holding = _of_exports(kept, read, export, any_job=any_job) if export else _of_sandbox(kept, read, sandbox, api_key)
    found = compare(kept, holding)
    words = found.json().decode() if output is TextOutput.JSON else "\n".join(found.words())
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

    job, options = None if any_job else kept.job.id, ReadOptions(store=read.settings.import_.store, follow_links=True)
    with tempfile.TemporaryDirectory(prefix="forwarder-verify-") as folder, EventProgress("Reading the export", kept.events) as progress:
        return hold_exports(paths, job, options, Path(folder), progress.advance)


def _of_sandbox(kept: ImportManifest, read: Loaded, url: str | None, api_key: str | None) -> StoredDays:
    """Ends the command with exit code 3 if no sandbox answers."""
    from forwarder.cli.import_request import project_key
    from forwarder.cli.output import report
    from forwarder.cli.tables import EventProgress

    key = project_key(read, api_key, required=False)
    address = url or read.settings.upstream.url
    if not address:
        hint = "Name a sandbox with --sandbox URL, or files exported by the service with --export PATH."
        raise ConfigurationError("there is nothing to compare with", hint=hint)
    try:
        with closing(SandboxClient(address)) as client, EventProgress("Asking the sandbox", kept.events) as progress:
            return client.hold(kept.job.id, key, progress.advance)
    except Unreachable as error:
        report(error)
        raise typer.Exit(ExitCode.UNREACHABLE) from error


def hold_exports(paths: Sequence[str], job: str | None, options: ReadOptions, folder: Path, found: Callable[[int], None]) -> StoredDays:
    """The events of a job, or with None of any, in these files; `folder` is for what memory can't hold.

    `found` is called with the number of its events, block by block. Raises `ConfigurationError` and `BrokenSource`: files that can't be
    read to their end prove nothing.
    """
    from forwarder.sources.files.source import open_source
    from forwarder.sources.imports.verification import StoredDays

    with StoredDays(folder) as holding, open_source(paths, options) as source:
        for file in source.files():
            with source.blocks(file) as blocks:
                _hold_file(blocks, job, holding, found)
    return holding


def _hold_file(blocks: BlockReader, job: str | None, holding: StoredDays, found: Callable[[int], None]) -> None:
    from forwarder.sources.imports.verification import InvalidRow, add_stored, decode_rows

    for block in blocks:
        try:
            found(add_stored(decode_rows(block.records, block.lines), job, holding))
        except InvalidRow as error:
            raise ConfigurationError(f"{blocks.name}:{error.line} is not an exported event: {error.why}", hint=_EXPORT_HINT) from error


class Unreachable(ForwarderError):
    """No sandbox answers."""

    code = "unreachable"


class SandboxClient:
    """Asks a running sandbox for the events of an import. To be closed."""

    def __init__(self, url: str) -> None:
        """Doesn't connect yet. Raises `ConfigurationError` if `url` is invalid."""
        self._url = url.rstrip("/")
        self._connection = _connection(urlsplit(self._url), url)
        self._base = urlsplit(self._url).path

    def hold(self, job: str, api_key: str, found: Callable[[int], None]) -> StoredDays:
        """The events of an import in one project; `found` is called with the number of events of each page.

        Raises `Unreachable`, and `ConfigurationError` if it is no sandbox, or has the import in several projects and none was named.
        """
        from forwarder.sources.imports.verification import StoredDays, decode_page

        query = {"import": job, **({"api_key": api_key} if api_key else {})}
        projects = self.arrived(query)
        if len(projects) > 1:
            keys = ", ".join(each.api_key for each in projects)
            raise ConfigurationError(
                f"{self._url} has this import in several projects: {keys}", hint="Choose one by its key: `--api-key KEY`."
            )
        holding, after = StoredDays(), ""
        holding.conflicts = sum(each.conflicts for each in projects)
        while projects:
            page = self._read(decode_page, "import-events", {**query, "limit": str(PAGE), "after": after})
            for row in page.results:
                holding.add(row.uuid, row.timestamp)
            found(len(page.results))
            if page.next is None:
                break
            after = page.next
        return holding

    def arrived(self, query: Mapping[str, str]) -> list[ArrivedEvents]:
        """Its counts of an import, by project."""
        from forwarder.sources.imports.verification import decode_arrived

        return self._read(decode_arrived, "imports", query)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read(self, read: Callable[[bytes], Read], name: str, query: Mapping[str, str]) -> Read:
        status, body = self._get(f"{self._base}/sandbox/{name}?{urlencode(query)}")
        if status >= 500:
            raise Unreachable(f"{self._url} answers {status}", hint="Check its log, and try again.")
        try:
            if status == 200:
                return read(body)
            why = f"it answers {status}"
            if status == MISDIRECTED:
                raise ConfigurationError(f"{self._url} {why}: {body.decode(errors='replace').strip()}", hint="Or name its address.")
        except ValueError as error:  # msgspec's errors are, too
            why = f"its answer can't be read: {error}"
        raise ConfigurationError(f"{self._url} is not a sandbox of this version: {why}", hint=_SANDBOX_HINT)

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            self._connection.request("GET", path, headers={"Accept": "application/json"})
            with closing(self._connection.getresponse()) as response:
                return response.status, response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error) or type(error).__name__
            raise Unreachable(
                f"no sandbox answers at {self._url}: {mask_secrets(why)}",
                hint="Start it with `forwarder sandbox --database FILE`, or name its address with `--sandbox URL`.",
            ) from error


def _connection(parts: SplitResult, url: str) -> http.client.HTTPConnection:
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"{mask_secrets(url)!r} is not the address of a sandbox", hint="Write it as http://127.0.0.1:8322.")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=TIMEOUT)
