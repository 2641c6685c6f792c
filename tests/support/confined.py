"""`python -m tests.support.confined run …`: forwarder with little memory, on a clock that hurries:
for tests of what takes hours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from forwarder.cli.main import main
from forwarder.core.clock import SystemClock
from forwarder.daemon import daemon
from tests.support.waiting import FastClock

CONFINED: Final = (sys.executable, "-m", "tests.support.confined")
GROUP: Final = "CONFINED_GROUP"
"""The variable with the folder of the cgroup to run in; not there: in the one that it has."""
SPEED: Final = "CONFINED_SPEED"
"""The variable with how many times as fast as the real clock its own runs."""

_FILES: Final = (("memory.limit_in_bytes", "memory"), ("memory.max", ""))
"""The file with the limit in version 1 and 2 of cgroups, and the controller in their paths."""


@contextmanager
def cgroup(limit: int) -> Iterator[Path | None]:
    """The folder of a cgroup below ours whose processes may take so many bytes of memory; None
    where none can be made. All of them have ended when the block is left.
    """
    folder = _made(limit)
    try:
        yield folder
    finally:
        if folder is not None:
            folder.rmdir()


def _made(limit: int) -> Path | None:
    for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        for file, controller in _FILES:
            if controller not in controllers.split(","):
                continue
            folder = Path("/sys/fs/cgroup") / controller / path.lstrip("/") / f"test-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                # A file that the kernel hasn't put there can't be made.
                with (folder / file).open("r+", encoding="ascii") as written:
                    written.write(str(limit))
            except OSError:
                folder.rmdir()
                continue
            return folder
    return None


if __name__ == "__main__":
    group = os.environ.pop(GROUP, None)
    if group is not None:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()), "ascii")
    speed = float(os.environ.pop(SPEED))
    vars(daemon)[SystemClock.__name__] = partial(FastClock, speed)
    main()
