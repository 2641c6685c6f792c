"""What the C library keeps of memory that was freed."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from forwarder.daemon.allocator import fix_thresholds
from tests.support.cases import cases

HAS_MALLOPT = hasattr(ctypes.CDLL(None), "mallopt")

AFTER_LARGE_BLOCKS = """
from pathlib import Path
from forwarder.daemon.allocator import fix_thresholds

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

assert fix_thresholds(environment={})
before = resident()
for _ in range(3):
    large = bytearray(b"x") * 16_000_000
    behind = [bytes(100_000) for _ in range(3)]
    del large
print(resident() - before)
"""
"""The first large block that is freed makes glibc take the next ones from the heap, where what
lies behind them keeps their place.
"""


@pytest.mark.skipif(
    not HAS_MALLOPT or sys.platform != "linux", reason="only glibc has these settings"
)
def test_large_blocks_are_given_back() -> None:
    """Of several large requests nothing stays resident, whatever was allocated after them."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_LARGE_BLOCKS],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert int(done.stdout) < 4_000_000


RECURRING_BLOCKS = """
from resource import RUSAGE_SELF, getrusage
from forwarder.daemon.allocator import fix_thresholds

assert fix_thresholds(8_000_000, environment={})
for size in (8_000_000, 16_000_000):
    before = 0
    for _ in range(3):
        block = bytearray(b"x") * size
        del block
        now = getrusage(RUSAGE_SELF).ru_minflt
        before, last = now, now - before
    print(last)
"""


@pytest.mark.skipif(
    not HAS_MALLOPT or sys.platform != "linux", reason="only glibc has these settings"
)
def test_blocks_that_come_again_keep_their_memory() -> None:
    """Up to the size that is said; larger ones are mapped anew each time, page by page."""
    done = subprocess.run(
        [sys.executable, "-c", RECURRING_BLOCKS],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    reused, mapped = map(int, done.stdout.split())
    assert reused < 100
    assert mapped > 1_000


@cases("word", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_operator_has_the_last_word(word: str) -> None:
    """What the environment says about the allocator isn't overruled."""
    assert not fix_thresholds(environment={word: "1"})
