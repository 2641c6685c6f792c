"""docs/commands.md is held against the commands: each command and each option is in its table, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from forwarder.cli.lazy import LAZY, load
from forwarder.cli.main import app

DOCUMENT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
ROW = re.compile(r"^\| (?:`(?P<command>forwarder [a-z -]+)`)? ?\| (?:`(?P<option>--[a-z-]+)[^`]*`)? ?\|", re.MULTILINE)


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that can be run, by the words that run it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from commands(load(name) if path == "forwarder" and name in LAZY else child, f"{path} {name}")


def documented() -> set[tuple[str, str]]:
    """Commands with their options, and once with none, as the table has them."""
    found: set[tuple[str, str]] = set()
    command = ""
    for row in ROW.finditer(DOCUMENT):
        command = row["command"] or command
        found.add((command, row["option"] or ""))
    return found


def test_every_command_and_option_is_documented() -> None:
    """What can be typed is in the document, and what is in the document can be typed."""
    real = {(path, "") for path, _ in commands(get_command(app), "forwarder")}
    for path, command in commands(get_command(app), "forwarder"):
        real |= {(path, name) for option in command.params for name in option.opts if name.startswith("--") and name != "--help"}
    assert documented() == real
