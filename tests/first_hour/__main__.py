"""`make first-hour`: pastes each block of the README and of the first tutorial, as it stands, in a
fresh clone on a bare machine.

The clone has what is committed. Its commands see an empty home, and of the surroundings only
what pip has to know; what they print has to be what the page shows. Each step is printed
with its time. What can't run here is printed as skipped, with the reason. The exit code is 1
as soon as a step fails.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.markdown import Step, steps
from tests.support.repository import ROOT
from tests.support.shells import Shell
from tests.support.walkthrough import Walkthrough

PAGES: Final = ("README.md", "docs/tutorials/*first-event*.md")
PORTS: Final = (8320, 8321, 8322)
LIMIT: Final = 300.0
"""Seconds for a step: the first one fetches every requirement."""
LISTENING: Final = "…listening…"
"""What a daemon logs once it can be asked, whatever else is in that line."""


class BareShell(Shell):
    """A shell of someone who has just arrived: a home with nothing in it, and the machine's own
    programs.

    What a block exports holds for those after it, and for new terminals, in which the pages have
    it repeated.
    """

    @property
    def environ(self) -> dict[str, str]:
        """The variables that it starts with."""
        home = self.folder.parent / "home"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_")) or name.lower().endswith("_proxy")
        }
        # as on a terminal, which the pages show
        shown = {"FORWARDER_LOG__FORMAT": "console", "NO_COLOR": "1"}
        return {
            **inherited,
            **shown,
            "HOME": str(home),
            "PATH": f"{home}/.local/bin:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }

    @property
    def exported(self) -> Path:
        """The script with what was exported."""
        return self.folder.parent / "exported.sh"

    async def started(self, block: str, *, alone: bool = False) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(
                "bash",
                "-euo",
                "pipefail",
                "-c",
                f". {self.exported}\n{block}" + ("" if alone else f"\nexport -p > {self.exported}"),
            ),
            cwd=self.folder,
            env=self.environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=alone,
        )

    def lacks(self, block: str) -> str:
        """Why the block can't run on this machine, or nothing."""
        program = block.split(maxsplit=1)[0]
        if (
            program == "docker"
            and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
        ):
            return "there is no Docker engine here"
        if (
            program in {"docker", "pipx", "uv"}
            and shutil.which(program, path=self.environ["PATH"]) is None
        ):
            return f"{program} isn't installed here"
        return ""


def in_use(port: int) -> bool:
    """Whether something listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cloned(folder: Path) -> BareShell:
    """A shell in a fresh clone of this repository."""
    (folder / "home").mkdir()
    subprocess.run(
        ["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(folder / "forwarder")],
        check=True,
    )
    return BareShell(folder / "forwarder", limit=LIMIT)


def followed(page: Path) -> Iterator[Step]:
    """The steps of a page. After a daemon was started, the reader continues once it listens."""
    for step in steps(page.read_text("utf-8")):
        if step.action == "start" and "forwarder run" in step.text and not step.shows:
            step.shows = (LISTENING,)
        yield step


async def spend(shell: BareShell) -> None:
    """Follow the pages; fails at the first step that does something else than its page says."""
    began = time.monotonic()
    async with Walkthrough(shell, {}) as walk:
        for page in (page for pattern in PAGES for page in sorted(shell.folder.glob(pattern))):
            print(page.relative_to(shell.folder))
            shell.exported.write_text("")
            for step in followed(page):
                what = step.text.strip() or f"Ctrl-C in the terminal of {step.name}"
                reason = shell.lacks(step.text) if step.action in {"run", "start"} else ""
                at = time.monotonic()
                if not reason:
                    await walk.follow([step])
                outcome = f"skipped: {reason}" if reason else f"{time.monotonic() - at:.1f} s"
                print(
                    f"  line {step.line}, {outcome}",
                    *(f"    $ {line}" for line in what.splitlines()),
                    sep="\n",
                    flush=True,
                )
    print(f"all of it: {time.monotonic() - began:.0f} s")


def main() -> int:
    """Follow them in a temporary folder. SIGTERM ends what was started, too."""
    busy_ports = [port for port in PORTS if in_use(port)]
    if busy_ports:
        sys.stderr.write(
            f"{busy_ports} on 127.0.0.1 are in use, which the pages name: stop what listens there\n"
        )
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        try:
            asyncio.run(spend(cloned(Path(folder))))
        except AssertionError as failed:
            sys.stderr.write(f"{failed}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
