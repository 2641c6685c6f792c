"""The sandbox with many events stored: what is too much isn't good."""

from __future__ import annotations

from benchmarks.stored import ALLOWED_RATIO, ALLOWED_START, NAME, StoredResult, stored_line


def test_what_is_too_slow_is_not_good() -> None:
    """A request, or the start."""
    assert StoredResult(NAME, 0.002, 0.002 * ALLOWED_RATIO, ALLOWED_START).good
    late = StoredResult(NAME, 0.002, 0.002, ALLOWED_START + 0.1)
    slow = StoredResult(NAME, 0.002, 0.0021 * ALLOWED_RATIO, 1.0)
    for result in (late, slow):
        assert not result.good
        assert stored_line(result).endswith("NOT GOOD")
