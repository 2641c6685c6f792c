"""End to end is no unit: these run in `make test`, and `make check` leaves them out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.end_to_end.importing import RunningSandbox, sandbox

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder as slow."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def service() -> Iterator[RunningSandbox]:
    """A sandbox for all imports of a module. libuv keeps a pipe of its own from the
    first loop on.
    """
    uvloop.run(asyncio.sleep(0))
    with sandbox() as running_sandbox:
        yield running_sandbox
