"""The listener is tested under both event loops: uvloop's, under which it runs, and
asyncio's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops, for every asynchronous test here."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
