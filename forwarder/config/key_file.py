"""Project keys in a file of their own: one a line; empty lines and those that begin with # don't count."""

from __future__ import annotations

from pathlib import Path

from forwarder.config.values import check_project_key


def read_key_file(file: Path) -> tuple[str, ...]:
    """The keys in `file`. Raises `ValueError`, without repeating a key, if it can't be read, holds none, or one that can't be one."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its path or its text is not one"
        raise ValueError(f"{file} can't be read, {reason}: name a text file in UTF-8, with one key a line") from error
    found = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise ValueError(f"{file} holds no key: write one a line (without the file every well-formed key is taken)")
    return tuple(_checked(file, number, key) for number, key in found)


def _checked(file: Path, number: int, key: str) -> str:
    try:
        return check_project_key(key)
    except ValueError as error:
        raise ValueError(f"{file}, line {number}: {error}") from error
