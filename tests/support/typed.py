"""What can be typed: forwarder's commands and their options, as a document's or a manifest's words name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.main import get_command

from forwarder.cli.app import app
from forwarder.cli.lazy import LAZY, load


def commands() -> set[str]:
    """The first words that `forwarder` takes."""
    return set(getattr(get_command(app), "commands", {})) | set(LAZY)


def command(words: Sequence[str]) -> Any:
    """The command that the first of these words name; more may follow them."""
    found = load(words[0]) if words[0] in LAZY else getattr(get_command(app), "commands", {})[words[0]]
    for word in words[1:]:
        found = getattr(found, "commands", {}).get(word, found)
    return found


def options(words: Sequence[str]) -> set[str]:
    """The options of that command."""
    return {option for parameter in command(words).params for option in parameter.opts}
