"""A command as a process of a test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forwarder.testing.daemon import merged
from forwarder.testing.process import ServerFailed, ServerProcess

ABORTED = """
import os, sys
from forwarder.testing.process import ServerProcess
process = ServerProcess(["sandbox", "--listen", "127.0.0.1:0"])
process.line("listening on")
print(process._process.pid, flush=True)
os._exit(9)
"""


@pytest.mark.slow
def test_it_ends_with_the_process_that_started_it() -> None:
    """However that ends: an aborted run leaves no server behind."""
    done = subprocess.run(
        [sys.executable, "-c", ABORTED], stdout=subprocess.PIPE, text=True, timeout=180, check=False
    )
    assert done.returncode == 9
    status = Path(f"/proc/{int(done.stdout)}/stat")
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        continue


@pytest.mark.slow
def test_its_end_is_reported() -> None:
    """A line that never comes is an error with the output; stopping twice does nothing."""
    process = ServerProcess(["sandbox", "--listen", "127.0.0.1:0"])
    assert "127.0.0.1" in process.line("listening on")
    with pytest.raises(
        ServerFailed,
        match=(
            r"forwarder sandbox did not start within 0\.01 s\.\nIts output:\nSandbox "
            r"listening on"
        ),
    ):
        process.line("nothing of the kind", timeout=0.01)
    assert not process.running
    assert (process.stop(), process.kill()) == (-9, -9)


def test_settings_are_merged_section_by_section() -> None:
    """What is above wins, and nothing is changed in place."""
    below = {"a": {"b": 1, "c": 2}, "d": [1], "e": 5}
    assert merged(below, {"a": {"b": 3}, "d": [2], "e": {"f": 1}}) == {
        "a": {"b": 3, "c": 2},
        "d": [2],
        "e": {"f": 1},
    }
    assert below == {"a": {"b": 1, "c": 2}, "d": [1], "e": 5}
