"""Shell blocks of documents, run as a reader would: in a folder of their own, with `forwarder` and
`jq` available.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from tests.support.commands import LIMIT, Finished, environment

JQ: Final = f"""#!{sys.executable}
import json, sys, jq
options = {{word for word in sys.argv[1:] if word.startswith("-")}}
program, *files = [word for word in sys.argv[1:] if not word.startswith("-")] or ["."]
text = "".join(open(file).read() for file in files) if files else sys.stdin.read()
results = jq.compile(program).input_text(text).all()
for result in results:
    compact = "-c" in options
    print(result if "-r" in options and isinstance(result, str) else json.dumps(result, \
separators=(",", ":") if compact else None))
sys.exit("-e" in options and not (results and results[-1]))
"""
"""What the pages need of jq, for machines that haven't got it."""
NEEDED: Final = ("bash", "curl", "gzip")
"""What the pages' commands use beside ours."""


def missing() -> list[str]:
    """The programs that this machine lacks."""
    return [program for program in NEEDED if shutil.which(program) is None]


@dataclass(frozen=True)
class Shell:
    """Runs blocks in `folder`, with these variables."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    limit: float = LIMIT
    """Seconds that a block may take."""

    def prepare(self) -> None:
        """Put the tools in place."""
        tools = self.folder / "bin"
        tools.mkdir()
        if shutil.which("jq") is None:
            self._program(tools / "jq", JQ)
        for name, module in (
            ("forwarder", "-m forwarder"),
            ("pytest", "-m pytest"),
            ("python", ""),
        ):
            self._program(
                tools / name, f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n'
            )

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o700)

    async def started(self, block: str, *, alone: bool = False) -> asyncio.subprocess.Process:
        """A bash that runs a block and ends at the first command that fails; both outputs are
        pipes. `alone`: in a session of its own.
        """
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", block),
            cwd=self.folder,
            env=environment({**self.variables, "PATH": path, "STATE_DIRECTORY": str(self.folder)}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=alone,
            preexec_fn=_hear_interrupts,
        )

    async def run(self, block: str) -> Finished:
        """What a block leaves; it is killed after `limit` seconds."""
        process = await self.started(block)
        try:
            async with asyncio.timeout(self.limit):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert process.returncode is not None
        return Finished(process.returncode, out.decode(), err.decode())

    async def done(self, block: str) -> str:
        """What a block says that does what it should."""
        finished = await self.run(block)
        assert finished.code == 0, finished
        return finished.out


def _hear_interrupts() -> None:
    """Ctrl-C ends a program that was started from a terminal; tests that run in the background
    would let it be ignored.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def posted(url: str, content: object) -> None:
    """A request with a body, which is answered 200."""
    async with aiohttp.ClientSession() as session, session.post(url, json=content) as answer:
        assert answer.status == 200, await answer.text()
