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
        self.instructions = [
            line.split(maxsplit=1)
            for line in self.text.splitlines()
            if line and not line.startswith("#")
        ]

    @property
    def stages(self) -> list[tuple[str, str, list[list[str]]]]:
        """Each stage: its name or nothing, what it begins with, its instructions."""
        stages: list[tuple[str, str, list[list[str]]]] = []
        for line in self.instructions:
            if line[0] == "FROM":
                base, _, name = line[1].partition(" AS ")
                stages.append((name, base, []))
            stages[-1][2].append(line)
        return stages

    def last(self, instruction: str, target: str = "") -> list[str]:
        """What follows each use of an instruction in the image: in a stage, the last one by
        default, and in those that it is based on.
        """
        known = {name: (base, lines) for name, base, lines in self.stages}
        base, lines = known[target]
        return (self.last(instruction, base) if base in known else []) + [
            line[1] for line in lines if line[0] == instruction
        ]

    @property
    def copied(self) -> list[str]:
        """What is copied from outside, over all stages: the arguments of each COPY."""
        return [
            instruction[1]
            for instruction in self.instructions
            if instruction[0] == "COPY" and "--from" not in instruction[1]
        ]

    @property
    def environment(self) -> dict[str, str]:
        """What the last stage sets."""
        pairs = (word.partition("=") for line in self.last("ENV") for word in shlex.split(line))
        return {name: value for name, _, value in pairs}


FORWARDER: Final = Dockerfile(ROOT / "Dockerfile")
