"""What the tests of the management half's handlers call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sandbox.exporting import Exports
from tests.sandbox.half import ManagementTables, opened


@pytest.fixture
def half() -> Iterator[ManagementTables]:
    """An organization with its owner."""
    with opened() as half:
        yield half


@pytest.fixture
def exports(half: ManagementTables) -> Exports:
    """A project's batch export, which goes to S3."""
    return Exports(half)
