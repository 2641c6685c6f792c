"""What an import leaves in its state folder for people and machines: the manifest, and the report as JSON and as a page.

They are written when a run ends. One that is killed behind its last checkpoint leaves none, or those of the run before: whoever needs them
makes them of the checkpoint, which is all that they say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from forwarder import __version__
from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports import manifest as manifests
from forwarder.sources.imports import report, report_page
from forwarder.sources.imports.checkpoint import ImportCheckpoint
from forwarder.sources.imports.manifest import ImportManifest, manifest_of
from forwarder.storage.private import atomic_file

JSON: Final = "report.json"
PAGE: Final = "report.html"


def write_reports(found: ImportManifest, folder: Path) -> None:
    """Write all of them, in the place of former ones. Raises `ConfigurationError` if that can't be."""
    for name, text in ((JSON, report.as_json(found) + b"\n"), (PAGE, report_page.page(found))):
        with atomic_file(folder / name, replace=True) as file:
            file.write(text)
    manifests.write(found, folder / manifests.FILE)


def complete_reports(saved: ImportCheckpoint, folder: Path) -> ImportManifest:
    """The manifest of an import that is complete; it and the reports are made of the checkpoint, if they aren't there.

    Raises `ConfigurationError` if they can't be written.
    """
    kept = _kept(folder)
    if kept is not None and kept.complete and kept.books == saved.books:
        return kept
    made = manifest_of(saved, __version__, saved.written_at)
    write_reports(made, folder)
    return made


def _kept(folder: Path) -> ImportManifest | None:
    """The manifest in the folder; None if it can't be relied on, or the files beside it aren't there."""
    if not all((folder / name).is_file() for name in (JSON, PAGE)):
        return None
    try:
        return manifests.read(folder / manifests.FILE)
    except ConfigurationError:
        return None
