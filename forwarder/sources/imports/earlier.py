"""Earlier imports of the same files into the same project, by what their state folders say: events
that are there can't be taken back, and under other options the same records become other events.

Imports on other machines, and those whose folders were removed, aren't known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.checkpoint import ImportJob, SourceContent, read_checkpoint
from forwarder.sources.imports.job import option_changes
from forwarder.sources.imports.preflight_report import EarlierImport
from forwarder.sources.imports.report import MANIFEST, ImportManifest, manifest_of, read_manifest

_TARGET: Final = ("upstream", "via", "api-key")
_SELECTING: Final = frozenset({"since", "until", "event", "exclude-event", "limit", "sort"})
"""Options that change which events are sent, and none of them."""


def earlier_imports(
    root: Path, own: Path, job: ImportJob, contents: Sequence[SourceContent]
) -> tuple[EarlierImport, ...]:
    """Those in the folders of `root`, the one with the most events first, apart from the one in
    `own`, and those that send the same events.
    """
    files = {(content.size, content.digest) for content in contents}
    runs = []
    for folder, manifest in _manifests(root):
        begun = manifest.job
        common = files & {(source.size, source.digest) for source in manifest.sources}
        differences = option_changes(*map(_without_selection, (begun, job)))
        if begun.format != job.format:
            differences.insert(0, f"its format was {begun.format!r}, now it is {job.format!r}")
        if (
            common
            and differences
            and manifest.events
            and own not in (folder, folder.parent)
            and all(begun.options.get(name) == job.options.get(name) for name in _TARGET)
        ):
            runs.append(
                EarlierImport(
                    str(folder), begun.id, manifest.events, len(common), tuple(differences)
                )
            )
    return tuple(sorted(runs, key=lambda run: (-run.events, run.folder)))


def _manifests(root: Path) -> Iterator[tuple[Path, ImportManifest]]:
    """What is known of each import, also of each shard; of one whose checkpoint is lost by its
    manifest. What can't be read isn't known.
    """
    folders: list[Path] = []
    with suppress(OSError):
        folders = sorted([*root.glob("*/"), *root.glob("*/shard-*-of-*/")])
    for folder in folders:
        manifest = None
        with suppress(ConfigurationError):
            checkpoint = read_checkpoint(folder)
            manifest = None if checkpoint is None else manifest_of(checkpoint)
        if manifest is None and (folder / MANIFEST).is_file():
            with suppress(ConfigurationError):
                manifest = read_manifest(folder / MANIFEST)
        if manifest is not None:
            yield folder, manifest


def _without_selection(job: ImportJob) -> ImportJob:
    options = {name: value for name, value in job.options.items() if name not in _SELECTING}
    return replace(job, options=options)
