"""Programs that tests ask for their opinion and that come as Go modules: found on the path, or
built once where Go is.

    .venv/bin/python -m tests.support.go_tools      builds those that aren't on the path into
                                                    .venv/tools

Building takes minutes of processor time, at low priority, so tests only look for them.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

BUILDING: Final = 900.0
"""Seconds that fetching and building one may take, on a machine that does other things too."""


class CannotBuild(Exception):
    """Go, or the way to its modules, is missing."""


@dataclass(frozen=True, slots=True)
class GoTool:
    """A program of a Go module."""

    name: str
    package: str
    version: str

    def path(self) -> str:
        """Where it is. Skips the test where it can't be found: `.ci/run` builds it first."""
        return self._found() or pytest.skip(
            f"{self.name} isn't on the path (`python -m tests.support.go_tools` builds it where "
            "Go is)"
        )

    def _found(self) -> str | None:
        return shutil.which(self.name) or (str(self._program) if self._program.exists() else None)

    def build(self) -> str:
        """Where it is, built if it wasn't. Raises `CannotBuild`."""
        self._program.parent.mkdir(exist_ok=True)
        with _alone(self._program.with_name(self._program.name + ".lock")):
            return self._found() or self._build()

    @property
    def _program(self) -> Path:
        return Path(sys.prefix) / "tools" / f"{self.name}-{self.version}"

    def _build(self) -> str:
        """Make it in a module of its own: `go install` would refuse one that replaces some of what
        it needs.
        """
        place = self._program.with_name(self._program.name + ".module")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        _go(place, "mod", "init", "tool")
        _go(place, "get", f"{self.package}@{self.version}")
        # optimizing takes a quarter of the time, and isn't worth it for a few questions
        _go(place, "build", "-gcflags=all=-N -l", "-ldflags=-s -w", "-o", self.name, self.package)
        (place / self.name).rename(self._program)
        shutil.rmtree(place)
        return str(self._program)


HELM: Final = GoTool("helm", "helm.sh/helm/v3/cmd/helm", "v3.21.4")
PROMTOOL: Final = GoTool("promtool", "github.com/prometheus/prometheus/cmd/promtool", "v0.305.1")


def _go(place: Path, *args: str) -> None:
    try:
        done = subprocess.run(
            ["nice", "go", *args],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=BUILDING,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"go {args[0]}: {error}") from error
    if done.returncode:
        raise CannotBuild(f"go {' '.join(args)} failed: {done.stderr.strip()[-500:]}")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time: several run the tests."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for tool in (HELM, PROMTOOL):
        print(tool.build())
