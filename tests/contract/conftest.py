"""What the tests of the interface share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.calls import CalledSandbox, serving


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[CalledSandbox]:
    """A sandbox that all rows of a test share, for what changes nothing."""
    async with serving(tmp_path) as shared:
        yield shared
