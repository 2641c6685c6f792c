"""Tests in a browser: they run when this folder is asked for by name (`make test-browser`), for
not every machine has one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from playwright.async_api import Browser

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder out unless it, or something in it, is among what was asked for."""
    asked = [
        Path(config.invocation_params.dir, argument.partition("::")[0]).resolve()
        for argument in config.args
    ]
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests of a process; each visits with a profile of its own."""
    # Where this folder is left out, playwright may not be installed.
    from tests.browser.chromium import chromium  # noqa: PLC0415

    async with chromium() as started:
        yield started
