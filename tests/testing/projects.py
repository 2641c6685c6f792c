"""Runs pytest on the tests of a project, as its developer does: a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMIT: Final = 150.0
"""Seconds that a run may take: far more than it does."""


@dataclass(frozen=True, slots=True)
class ProjectRun:
    """A run that has ended."""

    code: int
    text: str

    @property
    def outcomes(self) -> dict[str, int]:
        """How many tests passed, failed or had an error, by the summary."""
        summary = self.text.rstrip().splitlines()[-1]
        return {
            what: int(count)
            for count, what in re.findall(r"(\d+) (passed|failed|error|skipped)", summary)
        }


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a project."""
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")


def run_tests(folder: Path, *options: str, plugins: tuple[str, ...] = ()) -> ProjectRun:
    """Run a project's tests with these plugins besides ours, and no others."""
    names = [part for name in ("forwarder.testing.plugin", *plugins) for part in ("-p", name)]
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "FORWARDER_"))
    }
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(*names, *options),
        ],
        cwd=folder,
        env={**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return ProjectRun(done.returncode, done.stdout)
