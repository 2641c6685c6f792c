"""Threads as steps: what a thread would do at once is done on the loop, at an instant that the seed
draws; nothing else of the loop runs meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from forwarder.storage import committer

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop


class CommitThread:
    """Stands for the committer's thread."""

    def __init__(self, *, target: Any, **_: object) -> None:
        self._committer: Any = target.__self__

    def start(self) -> None:
        """Groups are steps from now on."""
        self._committer._groups = _Groups(self._committer)

    def join(self) -> None:
        """It has ended."""


class _Groups:
    """Stands for the queue of groups."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def put(self, group: Any) -> None:
        """One more to commit; None: the last was before."""
        loop: SimulatedLoop = asyncio.get_running_loop()  # type: ignore[assignment]
        loop.call_later(loop.chance.uniform(0.0, 0.02), self._step, group)

    def _step(self, group: Any) -> None:
        if group is None:
            self._owner._ended.set()
        else:
            self._owner._finish(committer._run(group))
