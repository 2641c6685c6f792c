"""docs/reference/commands.md is made of the commands' own help: each command has a heading, each
option a row.

The commands of the management API have one heading together: `test_manage_documents.py` holds the
page that has them one by one. So have imports of all formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from forwarder.cli.app import load
from forwarder.cli.exit_codes import ExitCode
from tests.support import commands_page
from tests.support.documents import sections, text_of

DOCUMENT = text_of("commands")
MANAGE = "forwarder manage"
OPTION = re.compile(r"`(--[a-z-]+)")


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


def test_the_page_is_what_help_says() -> None:
    """`python -m tests.support.commands_page` writes it again."""
    assert commands_page.current() == DOCUMENT


def test_every_command_and_option_is_documented() -> None:
    """What can be typed is in the document, and what is in the document can be typed."""
    headings = {name.strip("`") for name in sections(DOCUMENT)}
    assert headings == {*commands_page.commands(), "Exit codes", "Common options"}
    for heading, text in sections(DOCUMENT).items():
        leaves = commands_page.commands().get(heading.strip("`"), {})
        names = {
            name for path, leaf in leaves.items() for name in options(heading.strip("`"), leaf)
        }
        rows = re.findall(r"^(?:\| `.*|\[Common options\].*)$", text, re.MULTILINE)
        named = {name for row in rows for name in OPTION.findall(row.partition(" | ")[0])}
        if leaves:
            assert names <= named | {"--data"}, heading


def test_every_exit_code_is_documented() -> None:
    """The table has each once, and no other."""
    section = DOCUMENT.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == list(
        ExitCode
    )
