"""The repository as text: its files, for tests of the rules that hold for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

CACHES: Final = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache", ".cache"})
NOT_OURS: Final = CACHES | {".git", ".venv", "build", "dist"}
"""Folders that are made, not written."""
PICTURE: Final = ".png"
"""How names of files end that are made, too, and are no text."""


def files(suffix: str = "", under: str = "") -> list[Path]:
    """The files that people wrote, whose names end with `suffix`, in the folder `under`."""
    return sorted(path for path in _walk(ROOT / under) if path.name.endswith(suffix))


def name(path: Path) -> str:
    """A file's path from the root, to be shown."""
    return str(path.relative_to(ROOT))


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each not in NOT_OURS and not each.endswith(".egg-info")]
        yield from (Path(place) / each for each in names if not each.endswith(PICTURE))
