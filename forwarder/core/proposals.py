"""Commands that messages propose. They can be pasted as they are: they name the configuration file
that this process was given.

Invariant: every message that proposes a `forwarder` command has it from here
(`tests/test_proposals.py`).
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Final

WITHOUT_CONFIG: Final = frozenset({"sandbox", "demo", "drill", "help"})
"""Commands that take no `--config`."""

_given: list[str] = []
"""The file that was given with `--config`, if one was: a process has one configuration."""


def use_configuration(file: Path | None) -> None:
    """Remember the file that this process was given with `--config`; None if none was."""
    _given[:] = [] if file is None else [str(file)]


def proposed(command: str, *arguments: object) -> str:
    """The command line of a command such as `status` or `buffer ls`; arguments and the file are
    quoted for a shell where they need it.
    """
    name = command.partition(" ")[0]
    words = " ".join([command, *[quote(str(argument)) for argument in arguments]])
    options = (
        ""
        if name in WITHOUT_CONFIG or command.endswith("--help")
        else "".join(f" --config {quote(file)}" for file in _given)
    )
    return f"forwarder {words}{options}"
