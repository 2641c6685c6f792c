"""Where imports keep what they know: the folders of all of them, and the manifest of one."""

from __future__ import annotations

import time
from pathlib import Path

from forwarder import __version__
from forwarder.cli.import_access import SECTIONS
from forwarder.cli.sections import loaded_sections
from forwarder.config.load import DEFAULT_FILE, Loaded
from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports import checkpoint, manifest
from forwarder.sources.imports.manifest import ImportManifest, manifest_of
from forwarder.storage.directory import is_locked


def loaded(config: Path | None) -> Loaded:
    """The settings that concern imports. Raises `InvalidConfiguration`."""
    return loaded_sections(SECTIONS, config, DEFAULT_FILE)


def folders(root: Path) -> list[Path]:
    """The folders below this one that belong to imports, by name. Raises `ConfigurationError` if they can't be looked at."""
    try:
        return sorted(each for each in root.iterdir() if is_state(each)) if root.is_dir() else []
    except OSError as error:
        hint = "Ask as the user that imports, or name one folder with --state DIR."
        raise ConfigurationError(f"{root} can't be looked at: {error.strerror or error}", hint=hint) from error


def is_state(folder: Path) -> bool:
    """Whether an import has left something there, or one is at work."""
    return any((folder / name).is_file() for name in (checkpoint.FILE, manifest.FILE)) or is_locked(folder)


def only_folder(root: Path) -> Path:
    """The folder of the only import that there is. Raises `ConfigurationError` if there is none, or several."""
    found = folders(root)
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigurationError(f"no import has left anything in {root}", hint="Name its folder with --state DIR, or its --manifest FILE.")
    names = ", ".join(each.name for each in found)
    raise ConfigurationError(f"{root} has several imports: {names}", hint=f"Name the one that is meant: --state {found[0]}.")


def manifest_in(folder: Path) -> ImportManifest:
    """The manifest of the import in a folder; where its checkpoint is newer, what the manifest would be now.

    A run that was killed has left a checkpoint and no manifest, or that of a run before. Raises `ConfigurationError` and its kinds.
    """
    saved = checkpoint.read_checkpoint(folder)  # the first to be told if the folder can't be looked into
    path = folder / manifest.FILE
    written = manifest.read(path) if path.is_file() else None
    if saved is not None and (written is None or written.books != saved.books):
        return manifest_of(saved, __version__, time.time())
    if written is None:
        raise ConfigurationError(f"{folder} has neither a manifest nor a checkpoint", hint="Name the folder of an import, or its manifest.")
    return written
