"""The repository as text: its files, for tests of the rules that hold for all of them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]

CACHES: Final = frozenset(
    {
        "__pycache__",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
        ".import_linter_cache",
        ".cache",
    }
)
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


class SourceText(NamedTuple):
    """A string constant of a module."""

    path: Path
    line: int
    text: str
    is_statement: bool
    """It is a docstring, or stands alone as one does."""
    is_option_help: bool
    """It is part of an argument `help`."""


@cache
def source_texts() -> list[SourceText]:
    """The string constants of the product's modules. Several tests read them, and it takes a
    second to find them.
    """
    return [text for path, tree in trees("forwarder") for text in _texts(path, tree)]


def trees(under: str, *words: str) -> Iterator[tuple[Path, ast.Module]]:
    """The modules in the folder `under` that have one of `words` in them, parsed. Without words:
    all modules.
    """
    for path in files(".py", under):
        text = path.read_text("utf-8")
        if not words or any(word in text for word in words):
            yield path, ast.parse(text)


def _texts(path: Path, tree: ast.Module) -> Iterator[SourceText]:
    statements: set[ast.AST] = set()
    helps: set[ast.AST] = set()
    for node in ast.walk(tree):  # a node comes before those inside it
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield SourceText(path, node.lineno, node.value, node in statements, node in helps)
        elif isinstance(node, ast.Expr):
            statements.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg == "help":
            helps.update(ast.walk(node.value))


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [
            subfolder
            for subfolder in folders
            if subfolder not in NOT_OURS and not subfolder.endswith(".egg-info")
        ]
        yield from (Path(place) / filename for filename in names if not filename.endswith(PICTURE))
