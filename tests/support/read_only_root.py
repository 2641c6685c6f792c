"""The `forwarder` command with a root file system that can't be written to, as containers are run.

In a mount namespace of its own, where this machine lets us have one; without capabilities, so that
root's own don't hide what a plain user could not do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.commands import LIMIT, Running

_SCRIPT: Final = """
set -e
state=$1; shift
mount --make-rprivate /
mount --bind "$state" "$state"
while read -r _ _ _ _ place _; do
  case "$place" in "$state"|/proc|/proc/*|/sys|/sys/*|/dev|/dev/pts|/dev/mqueue) ;; *) mount -o \
remount,bind,ro "$place" ;; esac
done < /proc/self/mountinfo
cd /
exec setpriv --inh-caps=-all --bounding-set=-all --no-new-privs -- "$@"
"""


def _command(state: Path, *command: str) -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--mount", "sh", "-c", _SCRIPT, "sh", str(state), *command]


def needs_read_only_root(state: Path) -> None:
    """Skip the test where there is no way to a read-only root; fail it if that root can be written
    to after all.
    """
    outside = state.parent / "outside"
    try:
        tried = subprocess.run(
            _command(
                state,
                "sh",
                "-c",
                (
                    f"echo here; touch {state}/inside; touch {outside} /dev/shm/outside "
                    "2>/dev/null && echo writable"
                ),
            ),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except FileNotFoundError as error:
        pytest.skip(f"no read-only root here: {error.filename} isn't installed")
    if not tried.stdout.startswith("here"):
        pytest.skip(f"no read-only root here: {tried.stderr.strip()}")
    assert tried.stdout == "here\n"
    assert not outside.exists()
    (state / "inside").unlink()


@contextlib.asynccontextmanager
async def confined(state: Path, *args: str, env: Mapping[str, str]) -> AsyncIterator[Running]:
    """`forwarder` with `args`, which may write to `state` and nowhere else,
    with this environment alone.
    """
    process = await asyncio.create_subprocess_exec(
        *_command(state, sys.executable, "-m", "forwarder", *args),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "COLUMNS": "200",
            **env,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
