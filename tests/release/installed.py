"""forwarder in an environment of its own, and what its user types there."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.support.repository import ROOT

LIMIT: Final = 120.0
"""Seconds that a command may take: far more than it does."""
_PIN: Final = re.compile(r"^([\w.-]+==\S+)", re.MULTILINE)


class ReleaseCheckFailed(Exception):
    """A command of the installed forwarder did something else than it should."""


class Installed:
    """An environment in a folder; commands run below it, with a home of their own and nothing of
    the repository on their paths.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = folder / "environment" / "bin"
        constraints = folder / "constraints.txt"
        constraints.write_text(
            "\n".join(_PIN.findall((ROOT / "requirements" / "dev.txt").read_text()))
        )
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_")) or name.endswith("_proxy")
        }
        self._environ = {
            **inherited,
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "PIP_CACHE_DIR": self._cache(),
            "PIP_CONSTRAINT": str(constraints),
            "PIP_ONLY_BINARY": ":all:",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "LANG": "C.UTF-8",
        }

    @staticmethod
    def _cache() -> str:
        command = [sys.executable, "-m", "pip", "cache", "dir"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def install(self, artefact: Path) -> None:
        """Make the environment: the pinned requirements, and what was built. A source archive is
        built without fetching anything.
        """
        self.run(sys.executable, "-m", "venv", str(self.folder / "environment"))
        pins = [
            f"--requirement={ROOT / 'requirements' / filename}"
            for filename in ("run.txt", "build.txt")
        ]
        hashed = {name: value for name, value in self._environ.items() if name != "PIP_CONSTRAINT"}
        self.run(
            "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--require-hashes",
            *pins,
            environ=hashed,
        )
        source = () if artefact.suffix == ".whl" else ("--no-binary=analytics-forwarder",)
        self.run(
            "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            *source,
            str(artefact),
        )

    def install_extra(self, message: str) -> None:
        """Run the command that a message about a missing extra names."""
        match = re.search(r"Install the extra [\w-]+: (.+)", message)
        if match is None:
            raise ReleaseCheckFailed(f"no command that installs the extra in:\n{message}")
        self.run(*shlex.split(match[1]))

    def run(self, *words: str, code: int = 0, environ: dict[str, str] | None = None) -> str:
        """What a command prints on both outputs; it has to end with `code`."""
        done = subprocess.run(
            self._command(words),
            cwd=self.folder / "home",
            env=environ or self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode != code:
            raise ReleaseCheckFailed(
                f"`{shlex.join(words)}` ended with {done.returncode} instead of {code}:\n"
                f"{done.stdout}"
            )
        return done.stdout

    @contextlib.contextmanager
    def serving(self, *words: str) -> Iterator[str]:
        """The address at which a command listens, while it runs."""
        command = self._command(words)
        with subprocess.Popen(
            command, cwd=self.folder / "home", env=self._environ, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                line = next((line for line in process.stdout if "listening on" in line), "")
                if not line:
                    raise ReleaseCheckFailed(f"`{shlex.join(words)}` listens nowhere")
                yield line.split()[-1]
            finally:
                process.terminate()

    def _command(self, words: Sequence[str]) -> list[str]:
        return [shutil.which(words[0], path=self._environ["PATH"]) or words[0], *words[1:]]
