"""End to end is no unit: these run in `make test`, and `make check` leaves them out."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder as slow."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
