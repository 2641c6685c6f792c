"""Profiles of what is measured, by py-spy."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import BenchmarkError, Program


@contextlib.contextmanager
def profiled(program: Program, path: Path | None, seconds: float) -> Iterator[None]:
    """Record `program` with py-spy into `path` for about `seconds`; None: don't. Raises
    `BenchmarkError` without py-spy.
    """
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    py_spy = str(Path(sys.executable).parent / "py-spy")
    options = {
        "--pid": str(program.pid),
        "--duration": str(max(1, round(seconds))),
        "--output": str(path),
    }
    command = [
        py_spy,
        "record",
        "--nonblocking",
        *(word for option in options.items() for word in option),
    ]
    try:
        recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        raise BenchmarkError(
            "a profile needs py-spy beside this Python: pip install py-spy"
        ) from None
    try:
        yield
    except BaseException:
        recorder.kill()
        raise
    finally:
        recorder.wait()
