"""What can be typed: forwarder's commands and their options, as a document's or a manifest's words
name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forwarder.cli.app import COMMANDS, load


def commands() -> set[str]:
    """The first words that `forwarder` takes."""
    return set(COMMANDS)


def command(words: Sequence[str]) -> Any:
    """The command that the first of these words name; more may follow them."""
    target = load(words[0])
    for word in words[1:]:
        target = getattr(target, "commands", {}).get(word, target)
    return target


def options(words: Sequence[str]) -> set[str]:
    """The options of that command."""
    return {option for parameter in command(words).params for option in parameter.opts}
