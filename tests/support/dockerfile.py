"""A Dockerfile, read as text."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

from tests.support.repository import ROOT


class Dockerfile:
    """Its instructions, continued lines joined."""

    def __init__(self, path: Path) -> None:
        self.text = re.sub(r"\\\n\s*", "", path.read_text())
        self.instructions = [line.split(maxsplit=1) for line in self.text.splitlines() if line and not line.startswith("#")]

    def last(self, instruction: str) -> list[str]:
        """What follows each use of an instruction in the last stage."""
        start = max(number for number, line in enumerate(self.instructions) if line[0] == "FROM")
        return [line[1] for line in self.instructions[start:] if line[0] == instruction]

    @property
    def copied(self) -> list[str]:
        """What is copied from outside, over all stages: the arguments of each COPY."""
        return [each[1] for each in self.instructions if each[0] == "COPY" and "--from" not in each[1]]

    @property
    def environment(self) -> dict[str, str]:
        """What the last stage sets."""
        pairs = (word.partition("=") for line in self.last("ENV") for word in shlex.split(line))
        return {name: value for name, _, value in pairs}


FORWARDER: Final = Dockerfile(ROOT / "Dockerfile")
