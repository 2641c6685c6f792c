"""What all imports of this folder share."""

from __future__ import annotations

import asyncio

import pytest
import uvloop


@pytest.fixture(scope="module", autouse=True)
def first_loop() -> None:
    """libuv keeps a pipe of its own from the first loop on."""
    uvloop.run(asyncio.sleep(0))
