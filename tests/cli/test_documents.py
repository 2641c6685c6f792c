"""docs/reference/commands.md is compared with the commands: each command and each option is in its
table, and nothing else.

Those of the management API stand there as one: `test_manage_documents.py` holds the page
that has them one by one. Imports of all formats have their common options there once,
and each format its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from forwarder.cli.app import app, load
from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.import_options import parameters
from forwarder.sources.imports.formats import catalog
from tests.support.documents import text_of

DOCUMENT = text_of("commands")
MANAGE = "forwarder manage"
IMPORT = "forwarder import"
FORMATS = {f"{IMPORT} {each.name}" for each in catalog.FORMATS}
COMMON = set.intersection(
    *({each.name for each in parameters(form)} for form in catalog.FORMATS)
) | {"framing", "time_offset", "zone"}
"""What most formats have."""
ROW = re.compile(
    r"^\| (?:`(?P<command>forwarder [a-z0-9 -]+)`)? ?\| (?:`(?P<option>--[a-z-]+)[^`]*`)? ?\|",
    re.MULTILINE,
)


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that can be run, by the words that run it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from commands(load(name) if path == "forwarder" else child, f"{path} {name}")


def options(path: str, command: Any) -> Iterator[str]:
    """The options of a command; of those of the management API what isn't a field of
    one endpoint.
    """
    for option in command.params:
        if not (
            path == MANAGE
            and getattr(option, "rich_help_panel", None) == "Fields"
            and option.name != "data"
        ):
            yield from (name for name in option.opts if name.startswith("--") and name != "--help")


def rows(words: str, command: Any) -> Iterator[tuple[str, str]]:
    """What the table has to have of a command."""
    path = MANAGE if words.startswith(f"{MANAGE} ") else words
    if words not in FORMATS:
        yield path, ""
        yield from ((path, name) for name in options(path, command))
        return
    yield IMPORT, ""
    for option in command.params:
        yield from (
            (IMPORT if option.name in COMMON else words, name)
            for name in option.opts
            if name.startswith("--")
        )


def documented() -> set[tuple[str, str]]:
    """Commands with their options, and once with none, as the table has them."""
    found: set[tuple[str, str]] = set()
    command = ""
    for row in ROW.finditer(DOCUMENT):
        command = row["command"] or command
        if row["option"] or command not in FORMATS:
            found.add((command, row["option"] or ""))
    return found


def test_every_command_and_option_is_documented() -> None:
    """What can be typed is in the document, and what is in the document can be typed."""
    real = set()
    for words, command in commands(get_command(app), "forwarder"):
        real |= set(rows(words, command))
    assert documented() == real


def test_every_exit_code_is_documented() -> None:
    """The table has each once, and no other."""
    section = DOCUMENT.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == list(
        ExitCode
    )
