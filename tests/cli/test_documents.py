"""docs/commands.md is held against the commands: each command and each option is in its table, and nothing else.

Those of the management API stand there as one: `test_manage_documents.py` holds the page that has them one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from forwarder.cli.lazy import LAZY, load
from forwarder.cli.main import app

DOCUMENT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
MANAGE = "forwarder manage"
ROW = re.compile(r"^\| (?:`(?P<command>forwarder [a-z -]+)`)? ?\| (?:`(?P<option>--[a-z-]+)[^`]*`)? ?\|", re.MULTILINE)


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that can be run, by the words that run it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from commands(load(name) if path == "forwarder" and name in LAZY else child, f"{path} {name}")


def options(path: str, command: Any) -> Iterator[str]:
    """The options of a command; of those of the management API what isn't a field of one endpoint."""
    for option in command.params:
        if not (path == MANAGE and getattr(option, "rich_help_panel", None) == "Fields" and option.name != "data"):
            yield from (name for name in option.opts if name.startswith("--") and name != "--help")


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
    real = set()
    for words, command in commands(get_command(app), "forwarder"):
        path = MANAGE if words.startswith(f"{MANAGE} ") else words
        real |= {(path, ""), *((path, name) for name in options(path, command))}
    assert documented() == real
